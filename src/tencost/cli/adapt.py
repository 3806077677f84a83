"""`tencost adapt`: a registered model for new hardware, with few labels; and how many labels are worth what."""

from __future__ import annotations

import click

from tencost.cli.overrides import StageCommand, StageGroup, stage_function

_STAGE = "tencost.adapt.stage"
_PATHS = ("paths.raw", "paths.records", "paths.features", "paths.splits")


class _OfModel(StageCommand):
    """A command whose `model=` is a registered model or a bundle, not a family: it goes to `model_uri`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [
            f"model_uri={word.removeprefix('model=')}" if word.startswith("model=") else word
            for word in args
        ]
        return super().parse_args(ctx, words)


ADAPT = StageGroup(
    _OfModel(
        "adapt",
        stage_function(_STAGE),
        uses=(
            "dataset", "hardware", "split", "adapt", "measure", "labels", "model_uri", "seeds", "experiment_name",
            *_PATHS, "paths.store",
        ),
        examples=(
            "tencost adapt model=models:/tencost-epyc-avx512-1c@champion hardware=epyc-sse42-1c labels=100",
            "tencost adapt model=models:/tencost-epyc-avx512-1c@champion hardware=local adapt=zero_shot",
        ),
        help="Adapt a registered model to new hardware with few labels, and register it.",
    ),
    examples=(
        "tencost adapt curve model=data/models/tencost-epyc/epyc-avx512-1c/xgb-per_store_tiles hardware=epyc-sse42-1c",
    ),
    help="Adapt a registered model to new hardware with few labels, and register it.\n\nWith the command below: ask "
    "what labels are worth.",
)  # fmt: skip

ADAPT.add_command(
    _OfModel(
        "curve",
        stage_function("tencost.compat.curves.label_curve_stage"),
        uses=(
            "dataset",
            "hardware",
            "split",
            "adapt",
            "model_uri",
            "seeds",
            "experiment_name",
            *_PATHS,
            "paths.reports",
        ),
        examples=(
            "tencost adapt curve model=data/models/tencost-epyc/epyc-avx512-1c/xgb-per_store_tiles "
            "hardware=epyc-sse42-1c 'seeds=[0,1,2]'",
            "tencost adapt curve model=models:/tencost-epyc-avx512-1c@champion dataset=tencost-xeon "
            "hardware=xeon-avx2-1c 'adapt.counts=[0,100]'",
        ),
        help="Draw labels against the share of the native model's figures, on records that are there.",
    )
)
