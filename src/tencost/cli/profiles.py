"""`tencost profiles`: hardware counters as features, and what they and pretraining are worth."""

from __future__ import annotations

from tencost.cli.grammar import Group, Place, ValueOption, Whole
from tencost.cli.overrides import StageCommand, stage_function

PROFILES = Group(
    "profiles",
    help="Hardware counters of programs as features of a cost model, and what they and pretraining are worth.",
    examples=(
        "tencost profiles transfer --profiles profiles/ profile_features=ncu",
        "tencost profiles pretraining model=mlp",
    ),
)
_SEEDS = "seeds=[0,1,2,3,4]"

PROFILES.add_command(
    StageCommand(
        "transfer",
        stage_function("tencost.profiles.stages.transfer"),
        uses=(
            "profile_features", "dataset", "features", "seeds", "experiment_name", "paths.records", "paths.features",
            "paths.reports",
        ),
        defaults=(_SEEDS,),
        options=(
            ValueOption(
                ["--profiles"],
                type=Place(),
                multiple=True,
                required=True,
                help="A file of profiles, or a folder of them; may be given more than once.",
            ),
            ValueOption(
                ["--programs"], type=Whole(2), default=128, show_default=True, help="Programs drawn at a time."
            ),
            ValueOption(
                ["--top"], type=Whole(1), default=32, show_default=True, help="How many of them count as the fastest."
            ),
            ValueOption(
                ["--draws"], type=Whole(1), default=20, show_default=True, help="Draws of each seed."
            ),
        ),
        examples=(
            "tencost profiles transfer --profiles ktt_data/ profile_features=ncu_raw",
            "tencost profiles transfer --profiles a.csv --profiles b.csv --programs 64 --top 16",
        ),
        help=(
            "Learn which programs of a workload are fast from their counters, and ask about those of another.\n\nAll "
            "ordered pairs of workloads, each workload with itself as a control, and what columns that tell the run "
            "time do to the scores. Programs that are records of the dataset are compared with their features, too."
        ),
    )
)  # fmt: skip
PROFILES.add_command(
    StageCommand(
        "pretraining",
        stage_function("tencost.profiles.stages.pretraining"),
        uses=(
            "dataset", "hardware", "features", "split", "model", "seeds", "experiment_name", "paths.records",
            "paths.features", "paths.splits", "paths.reports",
        ),
        defaults=("model=mlp", "seeds=[0,1,2]"),
        options=(
            ValueOption(
                ["--batch"], type=Whole(2), default=64, show_default=True, help="Programs measured at a time."
            ),
            ValueOption(
                ["--top"], type=Whole(1), default=32, show_default=True, help="How many of them count as the fastest."
            ),
            ValueOption(
                ["--epochs"],
                type=Whole(1),
                default=20,
                show_default=True,
                help="Passes over all that was measured, after each batch.",
            ),
        ),
        examples=(
            "tencost profiles pretraining experiment=roller_v100 features=ansor_tiles",
            "tencost profiles pretraining hardware=epyc-avx512-1c --batch 10 --top 5",
        ),
        help=(
            "Compare a pretrained network with one from scratch on workloads that neither has seen.\n\nThe programs of "
            "the split's test part are replayed batch by batch: how many of a batch's fastest does a model find before "
            "it learns from the batch?"
        ),
    )
)  # fmt: skip
