"""The stages of programs, from raw datasets to tuned networks, and the commands that print what they made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tencost.cli.grammar import Command, Names, PathType, Text, flag, option
from tencost.cli.overrides import StageCommand, StageGroup
from tencost.config import Config

_TRAINED = "paths.records paths.features paths.splits"
_ADAPTED = f"paths.raw {_TRAINED}"

FETCH = StageCommand(
    "fetch",
    "tencost.records.fetch.stage",
    "Bring a raw dataset from where it lives to data/raw/.",
    uses="dataset paths.raw",
    examples=("tencost fetch", "tencost fetch dataset=tencost-xeon"),
)
FEATURES = StageCommand(
    "features",
    "tencost.features.stage",
    "Turn every program into rows of named columns.",
    uses="dataset features execution jobs paths.records paths.features",
    examples=(
        "tencost features features=per_store_tiles",
        "tencost features features=trace jobs=4",
        "tencost features features=per_store execution=ray execution.address=10.0.0.5:6379",
    ),
)
SPLITS = StageCommand(
    "splits",
    "tencost.splits.stage",
    "Divide the records into train, valid and test, leak-proof.",
    uses="dataset split paths.records paths.splits",
    examples=(
        "tencost splits split=by_network",
        "tencost splits split=by_task split.test_fraction=0.3",
    ),
)
COMPILE = StageCommand(
    "compile",
    "tencost.tune.compiled",
    "Write a tuned network as one library that TVM's runtime runs.\n\nRunners in Python and C++ lie beside it.",
    uses="network hardware tuner.workdir paths.store",
    defaults=("hardware=local",),
    needs_network=True,
    params=(
        option(
            "--to", PathType("FILE"), "The library; compiled/<network>-<hardware>.so unless given."
        ),
        option(
            "--database",
            PathType("FOLDER"),
            "A MetaSchedule database; what `tencost tune` left of the network unless given.",
        ),
    ),
    examples=(
        "tencost compile network=bert_tiny hardware=epyc-avx512-1c --to model.so",
        "tencost compile model.onnx --to model.so",
        "tencost compile network=onnx network.path=model.onnx --database tuned",
    ),
)


def train_and_score(config: Config, root: Path) -> float:
    """Train every seed, score the test split into the same MLflow run; return the validation metric (maximize)."""
    from tencost.tracking.runs import check_tracking
    from tencost.train.data import Data
    from tencost.train.programs import run

    check_tracking(config, root)
    tables = Data(config, root)
    if config.score_test:
        from tencost.evaluate.stage import load_truth, score_run

        # Refuses a part that nothing can be judged on now, not after the training.
        load_truth(tables, "test")
    training = run(config, root, tables)
    if config.score_test:
        score_run(tables, training.folder)
    return float(training.valid_score)


def _train_sweep(overrides: list[str]) -> Any:
    from tencost.train import sweeps

    return sweeps.run("train", overrides, _train_in_sweep, sweeps.train_watched)


def _train_in_sweep(config: Config, root: Path, folder: Path) -> float:
    """Train one combination of a sweep; one that cannot work is skipped with its reason, and the sweep goes on."""
    from rich.console import Console

    if config.features.name not in config.model.reads:
        Console(stderr=True).print(
            f"skipped model={config.model_name} features={config.features.name}: the family "
            f"{config.model.family} reads {', '.join(config.model.reads)}"
        )
        return float("nan")
    # Jobs may differ in any field, so each has a folder of its own and the pipeline's outputs stay as they are.
    config.folds = 0  # what is not compared with the project's models is not chosen among them
    config.paths.models = str(folder / "models")
    return train_and_score(config, root)


TRAIN = StageCommand(
    "train",
    train_and_score,
    "Train a model family and score it on the held-out split.\n\nWith -m: every combination of some choices.",
    uses="dataset hardware features split model seeds folds score_test execution jobs experiment_name "
    f"{_TRAINED} paths.models",
    examples=(
        "tencost train model=mlp features=per_store_tiles hardware=epyc-avx512-1c",
        "tencost train model.eta=0.05 'seeds=[0,1,2]'",
        "tencost train -m model=xgb,mlp hardware=epyc-avx512-1c,epyc-avx2-1c",
        "tencost train -m experiment=search_xgb",
        "tencost train model=tlp 'seeds=[0,1,2,3,4]' execution=ray",
        "tencost train model=tlp --cfg job",
    ),
    sweep=_train_sweep,
)
_ROOFLINE = StageCommand(
    "roofline",
    "tencost.tune.roofline.stage",
    "Hold the best programs of a tuned network against what its hardware can do.\n\nThe tasks in which most time is "
    "lost come first: which stand at 90 % of their roof, which at 5 %.",
    uses="network hardware tuner.workdir experiment_name paths.store paths.reports",
    params=(
        option(
            "--run",
            Text("RUN"),
            "A work folder of `tencost tune`, or the id of its MLflow run. [default: the network's own]",
            old=("run",),
        ),
        flag("--store", "Ask the live store, although there is a work folder."),
        flag("--measured", "Measure this host's roofs, a memory at a time, instead of reading conf/hardware."),
        option(
            "--memory-gbs",
            click.FloatRange(min=0, min_open=True),
            "GB/s of the device's memory, for what its caches cannot hold and for counted bytes.",
        ),
        option(
            "--profiles",
            PathType("PATH"),
            "Counters of the programs, from `tencost profiles import`: bytes as they were counted.",
        ),
        option(
            "--to",
            PathType("FOLDER"),
            "The folder that gets roofline.csv and roofline.png. [default: among the project's reports]",
        ),
    ),
    examples=(
        "tencost evaluate roofline network=bert_tiny hardware=epyc-avx512-1c",
        "tencost evaluate roofline network=mobilenet_v2 hardware=local --measured",
        "tencost evaluate roofline network=bert_tiny hardware=epyc-avx512-1c --store",
    ),
)  # fmt: skip
_LEAVE_OUT = StageCommand(
    "leave-out",
    "tencost.compat.curves.leave_out",
    "Ask models about hardware that they have not seen.\n\nEach hardware of the dataset is left out with its whole "
    "machine, and with its vector width; native models and pooled ones stand beside.",
    uses=f"dataset hardware features split model seeds execution jobs experiment_name {_TRAINED} paths.reports",
    params=(
        option(
            "--by",
            click.Choice(["machine", "isa"]),
            "What is left out together with a hardware: all of its machine, all of its vector width.",
            default=("machine", "isa"),
            multiple=True,
        ),
        option(
            "--from",
            Text("HARDWARE"),
            "Hardware that the left-out ones are learnt from. [default: all others]",
            parameter="sources",
            multiple=True,
        ),
    ),
    examples=(
        "tencost evaluate leave-out dataset=tencost-cpu hardware=all features=per_store_tiles 'seeds=[0,1,2]'",
        "tencost evaluate leave-out dataset=tencost-cpu hardware=all features=per_store_tiles --by machine",
    ),
)
EVALUATE = StageGroup(
    StageCommand(
        "evaluate",
        "tencost.evaluate.stage",
        "Compare all trained models of a hardware on the test split.",
        uses=f"dataset hardware split execution jobs experiment_name {_TRAINED} paths.models paths.reports",
        examples=("tencost evaluate hardware=epyc-avx2-1c",),
    ),
    "Compare all trained models of a hardware on the test split.\n\nWith a command below: programs instead of models.",
    examples=("tencost evaluate roofline network=bert_tiny hardware=epyc-avx512-1c",),
    commands=[_ROOFLINE, _LEAVE_OUT],
)


class _OfModel(StageCommand):
    """A command whose `model=` is a registered model or a bundle, not a family: it goes to `model_uri`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [
            f"model_uri={word.removeprefix('model=')}" if word.startswith("model=") else word
            for word in args
        ]
        return super().parse_args(ctx, words)


_BUNDLE = "model=data/models/tencost-zen5/epyc-avx512-1c/xgb-per_store_tiles hardware=epyc-avx2-1c"
ADAPT = StageGroup(
    _OfModel(
        "adapt",
        "tencost.adapt.stage",
        "Adapt a registered model to new hardware with few labels, and register it.",
        uses="dataset hardware split adapt measure labels model_uri seeds experiment_name "
        f"{_ADAPTED} paths.store",
        examples=(
            "tencost adapt model=models:/tencost-epyc-avx512-1c@champion hardware=epyc-sse42-1c labels=100",
            "tencost adapt model=models:/tencost-epyc-avx512-1c@champion hardware=local adapt=zero_shot",
        ),
    ),
    "Adapt a registered model to new hardware with few labels, and register it.\n\nWith the command below: ask what "
    "labels are worth.",
    examples=(f"tencost adapt curve {_BUNDLE}",),
    commands=[
        _OfModel(
            "curve",
            "tencost.compat.curves.label_curve_stage",
            "Draw labels against the share of the native model's figures, on records that are there.",
            uses=f"dataset hardware split adapt model_uri seeds experiment_name {_ADAPTED} paths.reports",
            examples=(
                f"tencost adapt curve {_BUNDLE} 'seeds=[0,1,2]'",
                "tencost adapt curve model=models:/tencost-epyc-avx512-1c@champion dataset=tencost-xeon "
                "hardware=xeon-avx2-1c 'adapt.counts=[0,100]'",
            ),
        )
    ],
)


def _tune_report(
    runs: tuple[str, ...], labels: list[str] | None, arms: bool, to: Path | None
) -> None:
    from rich.console import Console

    from tencost.config.composition import compose
    from tencost.tune import report

    cfg, root = compose([])
    folder = to or root / cfg.paths.reports / "tune"
    report.report_runs(runs, labels or [], folder, cfg, root, arms=arms, console=Console())


TUNE = StageGroup(
    StageCommand(
        "tune",
        "tencost.tune.stage",
        "Tune a network with TVM's MetaSchedule and a registered model.",
        uses="network hardware tuner features model_uri jobs experiment_name paths.store",
        needs_network=True,
        examples=(
            "tencost tune network=bert_tiny hardware=epyc-avx512-1c tuner.trials=128",
            "tencost tune network=onnx network.path=model.onnx model_uri=models:/tencost-epyc-avx2-1c/1",
            "tencost tune network=saved network.path=bert_tiny.npz model_uri=champion",
            "tencost tune network=bert_tiny hardware=local hardware.cores=2 --to model.so",
        ),
        defaults=("hardware=local",),
        params=(
            option(
                "--to",
                PathType("FILE"),
                "A library that gets the best network, with its runners; Ctrl-C at any moment leaves one there.",
            ),
        ),
    ),
    "Tune a network with TVM's MetaSchedule and a registered model.\n\nWith a command below: ask runs that have been.",
    examples=(
        "tencost tune report tuned/bert_tiny-epyc-avx512-1c scratch/bert_tiny-epyc-avx512-1c",
    ),
    commands=[
        Command(
            "report",
            _tune_report,
            "Draw how well models predicted batches that they had not seen, and the latency, of several runs.\n\nRUN "
            "is a work folder of `tencost tune`, or the id of its MLflow run.",
            examples=(
                "tencost tune report tuned/bert_tiny-local scratch/bert_tiny-local --labels pretrained,scratch",
                "tencost tune report 0f3c9a2b7d5e4c1f8a6b0d2e4f6a8c1e --arms --to reports/tune",
            ),
            params=(
                click.Argument(["runs"], nargs=-1, required=True, metavar="RUN..."),
                option(
                    "--labels",
                    Names("A,B,..."),
                    "What each run is called, in order; runs with one label are its seeds. [default: by the run's "
                    "model]",
                ),
                flag(
                    "--arms",
                    "The models of each run apart, on its batches: as registered, corrected, trees that know this run "
                    "only.",
                ),
                option(
                    "--to",
                    PathType("FOLDER"),
                    "The folder that gets report.csv and report.png. [default: tune/ among the project's reports]",
                ),
            ),
        )
    ],
)


def _show_leaderboards(config: Config, root: Path, *, hardware: str | None = None) -> None:
    from tencost.evaluate.networks.report import print_boards
    from tencost.evaluate.report import print_leaderboards
    from tencost.register import registry_status

    reports, hardware = root / config.paths.reports, hardware or ""
    of_networks = print_boards(root, config.paths, hardware=hardware)
    of_programs = [path.parent.name for path in reports.glob("*/*/leaderboard.json")]
    if not of_networks or hardware in of_programs or (of_programs and not hardware):
        print_leaderboards(reports, hardware=hardware)
    registry_status.print_champions(root)


LEADERBOARD = StageCommand(
    "leaderboard",
    _show_leaderboards,
    "Print the last leaderboards, and the champions in the registry.",
    uses="paths.reports",
    params=(option("--hardware", Text("NAME"), "Its leaderboards alone."),),
    examples=("tencost leaderboard", "tencost leaderboard --hardware epyc-avx512-1c"),
)
REPORT = StageCommand(
    "report",
    "tencost.cli.page",
    "Write a dataset, its leaderboards and tuning runs as one HTML file that can be mailed.\n\nIt needs no network and "
    "no other file; light and dark, readable on a phone.",
    uses="dataset paths.records paths.reports",
    params=(
        option(
            "--tuned",
            PathType("FOLDER"),
            "The work folder of a tuning run, which gets a part of its own.",
            multiple=True,
        ),
        option("--to", PathType("FILE"), "The page.", default="report.html"),
    ),
    examples=(
        "tencost report",
        "tencost report dataset=tencost-zen5 --tuned tuned/bert_tiny-epyc-avx512-1c --to epyc.html",
    ),
)
