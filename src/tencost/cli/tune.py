"""`tencost tune`: the stage, and what its runs say side by side."""

from __future__ import annotations

from pathlib import Path

import click

from tencost.cli.grammar import Place, Text, ValueOption, option
from tencost.cli.overrides import StageCommand, StageGroup, stage_function

TUNE = StageGroup(
    StageCommand(
        "tune",
        stage_function("tencost.tune.stage"),
        uses=(
            "network", "hardware", "tuner", "features", "model_uri", "jobs", "experiment_name", "paths.store",
        ),
        examples=(
            "tencost tune network=bert_tiny hardware=epyc-avx512-1c tuner.trials=128",
            "tencost tune network=onnx network.path=model.onnx model_uri=models:/tencost-epyc-avx2-1c/1",
            "tencost tune network=saved network.path=bert_tiny.npz model_uri=champion",
            "tencost tune network=bert_tiny hardware=local hardware.cores=2 --to model.so",
        ),
        defaults=("hardware=local",),
        options=(
            ValueOption(
                ["--to"],
                type=Place("FILE"),
                help="A library that gets the best network, with its runners; Ctrl-C at any moment leaves one there.",
            ),
        ),
        help="Tune a network with TVM's MetaSchedule and a registered model.",
    ),
    examples=("tencost tune report tuned/bert_tiny-epyc-avx512-1c scratch/bert_tiny-epyc-avx512-1c",),
    help=(
        "Tune a network with TVM's MetaSchedule and a registered model.\n\nWith a command below: ask runs that have "
        "been."
    ),
)  # fmt: skip


@TUNE.command(
    "report",
    examples=[
        "tencost tune report tuned/bert_tiny-local scratch/bert_tiny-local --labels pretrained,scratch",
        "tencost tune report 0f3c9a2b7d5e4c1f8a6b0d2e4f6a8c1e --arms --to reports/tune",
    ],
)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@option(
    "--labels",
    type=Text("A,B,..."),
    help="What each run is called, in order; runs with one label are its seeds. [default: by the run's model]",
)
@click.option(
    "--arms",
    is_flag=True,
    help="The models of each run apart, on its batches: as registered, corrected, trees that know this run only.",
)
@option(
    "--to",
    type=Place("FOLDER"),
    help="The folder that gets report.csv and report.png. [default: tune/ among the project's reports]",
)
def report(runs: tuple[str, ...], labels: str | None, arms: bool, to: Path | None) -> None:
    """Draw how well models predicted batches that they had not seen, and the latency, of several runs.

    RUN is a work folder of `tencost tune`, or the id of its MLflow run.
    """
    from rich.console import Console

    from tencost.config.composition import compose
    from tencost.tune import report as reporting

    names = [name.strip() for name in labels.split(",")] if labels else []
    cfg, root = compose([])
    folder = to or root / cfg.paths.reports / "tune"
    reporting.report(runs, names, folder, cfg, root, arms=arms, console=Console())
