"""`tencost graphs`: the latency of whole networks, from data to an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tencost.cli.grammar import Group, PathType, Text, Whole, flag, option
from tencost.cli.overrides import StageCommand
from tencost.config import Config

_SAMPLE = "dataset=cg-sample"
_DEVICE = "hardware=cortex-a76"
_FITTED = "dataset graph_split graph_model seeds experiment_name paths.graphs"
_JUDGED = "graph_split experiment_name paths.graphs paths.models paths.reports"


def _train_sweep(overrides: list[str]) -> Any:
    from tencost.train import sweeps

    return sweeps.run("graphs train", overrides, _train_in_sweep)


def _train_in_sweep(config: Config, root: Path, folder: Path) -> float:
    from tencost.train.networks.stage import run

    # Jobs may differ in any field, so each has a folder of its own and the pipeline's outputs stay as they are.
    config.paths.models = str(folder / "models")
    return run(config, root)


_STAGES = [
    StageCommand(
        "records",
        "tencost.records.network_graphs.stage",
        "Read networks with latencies into tables: CG's CSV folders, nn-Meter's lines, one's own measurements.",
        uses="dataset paths.raw paths.graphs",
        defaults=(_SAMPLE,),
        examples=("tencost graphs records", "tencost graphs records dataset=cg"),
    ),
    StageCommand(
        "splits",
        "tencost.splits.network_stage",
        "Divide the graphs into train, valid, test, and test_ood: families that nothing is learnt of.",
        uses="dataset graph_split paths.graphs",
        defaults=(_SAMPLE,),
        examples=(
            "tencost graphs splits split=by_graph",
            "tencost graphs splits split=by_family 'split.test_families=[vggs]'",
        ),
    ),
    StageCommand(
        "train",
        "tencost.train.networks.stage",
        "Train a family of graph models for all devices of the dataset.\n\nWith -m: every combination of choices.",
        uses=f"{_FITTED} paths.models",
        defaults=(_SAMPLE,),
        examples=(
            "tencost graphs train model=additive 'seeds=[0,1,2]'",
            "tencost graphs train -m model=summed,additive",
        ),
        sweep=_train_sweep,
    ),
    StageCommand(
        "tune",
        "tencost.train.networks.search",
        "Search settings of a graph neural network, and print the best for `graphs train`.\n\nJudged by the validation "
        "part. Trials are runs in MLflow; worse ones end early.",
        uses=f"{_FITTED} execution paths.searches",
        params=(
            option("--trials", Whole(1), "How many settings to try.", default=50),
            option(
                "--cpus",
                Whole(1),
                "CPUs that all trials together use; all by default. A trial uses model.num_threads.",
            ),
            flag("--resume", "Go on with the search that was interrupted."),
        ),
        defaults=(_SAMPLE, "model=gin"),
        examples=(
            "tencost graphs tune model=gin model.max_minutes=5 --trials 50",
            "tencost graphs tune model=gin model.max_minutes=5 --trials 50 --resume",
        ),
    ),
    StageCommand(
        "evaluate",
        "tencost.evaluate.networks.stage",
        "Compare all models that were trained on a split, device by device.",
        uses=f"dataset {_JUDGED}",
        defaults=(_SAMPLE,),
        examples=("tencost graphs evaluate", "tencost graphs evaluate dataset=cg split=cg"),
    ),
    StageCommand(
        "register",
        "tencost.register.networks.stage",
        "Register the best model of a device; it becomes champion if the rule allows.",
        uses=f"dataset hardware {_JUDGED} paths.registry",
        defaults=(_SAMPLE, _DEVICE),
        examples=("tencost graphs register hardware=adreno-640",),
    ),
    StageCommand(
        "measure",
        "tencost.measure.networks.stage",
        "Time whole networks on this host with ONNX Runtime.\n\nWhat is measured already is skipped.",
        uses="network hardware",
        defaults=("hardware=local",),
        params=(
            option("--to", PathType("FOLDER"), "The folder to measure into; measured/graphs-<hardware> unless given."),
            option("--count", Whole(1), "Networks at most."),
            option(
                "--variants",
                Whole(1),
                "Make that many variants of network=... (width, depth) instead of the standard ones.",
            ),
            option("--cpus", Text("LIST"), "CPUs to run on: 3, or 0,1."),
            option("--threads", Whole(1), "Threads a network.", default=1),
            option(
                "--rounds",
                Whole(1),
                "How often all networks are timed in turn; the quietest round of each counts.",
                default=1,
            ),
            option(
                "--clock",
                click.Choice(["wall", "cpu"]),
                "What is counted: time on the wall, or the CPU's (one thread, on a host that others use, too).",
                default="wall",
            ),
        ),
        examples=(
            "tencost graphs measure --cpus 3 --rounds 3",
            "tencost graphs measure network=resnet_18 --variants 40 --to measured/resnets",
        ),
    ),
    StageCommand(
        "latency",
        "tencost.register.latency.stage",
        "Predict a network's latency on a device with its registered model.",
        uses="network hardware model_uri",
        defaults=(_DEVICE,),
        params=(
            option("--top", Whole(0), "How many of the costliest operators are shown.", default=10),
            flag("--json", "Print JSON.", parameter="as_json"),
        ),
        examples=(
            "tencost graphs latency network=mobilenet_v2 hardware=cortex-a76",
            "tencost graphs latency network=onnx network.path=model.onnx hardware=adreno-640 --json",
        ),
    ),
]  # fmt: skip
GRAPHS = Group(
    "graphs",
    "Predict a network's latency before it is compiled.\n\nIn this order: tencost fetch dataset=cg-sample, then "
    "records, splits, train, evaluate, register; then latency. All at once: make graphs",
    examples=(
        "tencost graphs latency network=mobilenet_v2 hardware=cortex-a76",
        "tencost graphs train model=additive",
        "tencost graphs evaluate split=cg",
    ),
    commands=_STAGES,
)
