"""`tencost profiles`: hardware counters of programs, and what they and pretraining are worth."""

from __future__ import annotations

from pathlib import Path

import click

from tencost.cli.grammar import Group, Place, Text, ValueOption, Whole, option
from tencost.cli.overrides import StageCommand, stage_function
from tencost.cli.records import HARDWARE

PROFILES = Group(
    "profiles",
    help="Hardware counters of programs: read them, look at them, learn from them.",
    examples=(
        "tencost profiles import raw.csv --programs manifest.csv",
        "tencost profiles show",
        "tencost profiles transfer --profiles data/profiles profile_features=ncu",
    ),
)
_FOLDER = "data/profiles"


@PROFILES.command(
    "import",
    examples=[
        "tencost profiles import raw.csv",
        "tencost profiles import exports/ --programs manifest.csv --hardware v100 --warm-up 1",
    ],
)
@click.argument("paths", nargs=-1, required=True, type=Place("FILES"), metavar="FILES...")
@option(
    "--programs",
    type=Place("MANIFEST"),
    help="A CSV file that says which file or kernel is which record: columns file, kernel, record_id.",
)
@option("--hardware", type=HARDWARE, help="The device of launches that do not name theirs.")
@option(
    "--to",
    type=Place("FOLDER"),
    default=_FOLDER,
    show_default=True,
    help="The folder that the table is written to; an earlier one there is replaced.",
)
@option(
    "--store",
    type=Text("URI"),
    help="The record store to join with. [default: the live one and those of all builds]",
)
@option(
    "--warm-up",
    type=Whole(0),
    default=0,
    show_default=True,
    help="Launches of each kernel of a program that are left out.",
)
@option(
    "--runs",
    type=Whole(1),
    help="How often each program ran while it was profiled. [default: found from the order of its kernels]",
)
def import_profiles(
    paths: tuple[Path, ...],
    programs: Path | None,
    hardware: str | None,
    to: Path,
    store: str | None,
    warm_up: int,
    runs: int | None,
) -> None:
    """Read hardware counters into a table of programs.

    FILES are exports of Nsight Compute (ncu --page raw --csv, the same as .xlsx, or what ncu --csv prints), KTT's
    results, and folders of them; plain or gzipped. What cannot be read is listed in rejects.jsonl.
    """
    from tencost.config import composition
    from tencost.records.counters import import_command

    root = composition.config_folder()[0]
    import_command.run(
        paths,
        root,
        to=to if to != Path(_FOLDER) else root / to,
        manifest=programs,
        hardware=hardware,
        store_uri=store,
        warm_up=warm_up,
        runs=runs,
    )


@PROFILES.command(
    "show",
    examples=[
        "tencost profiles show",
        "tencost profiles show data/profiles --metric gpu__time_duration.sum --metric dram__bytes_read.sum",
    ],
)
@click.argument("table", required=False, type=Place("TABLE"))
@option("--metric", type=Text("NAME"), multiple=True, help="Only this metric; as often as needed.")
def show(table: Path | None, metric: tuple[str, ...]) -> None:
    """Print the metrics of a table of programs with units, minimum, median and maximum."""
    from tencost.config import composition
    from tencost.records.counters import import_command

    import_command.show(table or composition.config_folder()[0] / _FOLDER, metric)


_SEEDS = "seeds=[0,1,2,3,4]"

PROFILES.add_command(
    StageCommand(
        "transfer",
        stage_function("tencost.compat.counters.transfer_stage"),
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
                help="What was imported, or files of profiles and folders of them. [default: data/profiles]",
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
        stage_function("tencost.compat.counters.pretraining_stage"),
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
