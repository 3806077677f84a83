"""`tencost evaluate`: the stage, and what bounds the programs of a tuned network."""

from __future__ import annotations

from tencost.cli.overrides import StageCommand, StageGroup, stage_function

EVALUATE = StageGroup(
    StageCommand(
        "evaluate",
        stage_function("tencost.evaluate.stage"),
        uses=(
            "dataset", "hardware", "split", "experiment_name", "paths.records", "paths.features", "paths.splits",
            "paths.models", "paths.reports",
        ),
        examples=("tencost evaluate hardware=epyc-avx2-1c",),
        help="Compare all trained models of a hardware on the test split.",
    ),
    examples=("tencost evaluate roofline network=bert_tiny hardware=epyc-avx512-1c",),
    help=(
        "Compare all trained models of a hardware on the test split.\n\nWith a command below: programs instead of "
        "models."
    ),
)  # fmt: skip
