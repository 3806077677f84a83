"""`tencost graphs`: the latency of whole networks, from data to an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tencost.cli.grammar import Group, Place, Text, ValueOption, Whole
from tencost.cli.overrides import StageCommand, stage_function
from tencost.config import Config

GRAPHS = Group(
    "graphs",
    help=(
        "Predict a network's latency before it is compiled.\n\nIn this order: tencost fetch dataset=cg-sample, then "
        "records, splits, train, evaluate, register; then latency. All at once: make graphs"
    ),
    examples=(
        "tencost graphs latency network=mobilenet_v2 hardware=cortex-a76",
        "tencost graphs train model=additive",
        "tencost graphs evaluate split=cg",
    ),
)
_SAMPLE = "dataset=cg-sample"
_DEVICE = "hardware=cortex-a76"


def _train_sweep(overrides: list[str]) -> Any:
    from tencost.train import sweeps

    return sweeps.run("graphs train", overrides, _train_in_sweep)


def _train_in_sweep(config: Config, root: Path, folder: Path) -> float:
    from tencost.train.networks.stage import run

    # Jobs may differ in any field, so each has a folder of its own and the pipeline's outputs stay as they are.
    config.paths.models = str(folder / "models")
    return run(config, root)


GRAPHS.add_command(
    StageCommand(
        "records",
        stage_function("tencost.records.network_graphs.stage"),
        uses=("dataset", "paths.raw", "paths.graphs"),
        defaults=(_SAMPLE,),
        examples=("tencost graphs records", "tencost graphs records dataset=cg"),
        help="Read networks with latencies into tables: CG's CSV folders, nn-Meter's lines, one's own measurements.",
    )
)
GRAPHS.add_command(
    StageCommand(
        "splits",
        stage_function("tencost.splits.network_stage"),
        uses=("dataset", "graph_split", "paths.graphs"),
        defaults=(_SAMPLE,),
        examples=(
            "tencost graphs splits split=by_graph",
            "tencost graphs splits split=by_family 'split.test_families=[vggs]'",
        ),
        help="Divide the graphs into train, valid, test, and test_ood: families that nothing is learnt of.",
    )
)
GRAPHS.add_command(
    StageCommand(
        "train",
        stage_function("tencost.train.networks.stage"),
        uses=(
            "dataset", "graph_split", "graph_model", "seeds", "experiment_name", "paths.graphs", "paths.models",
        ),
        defaults=(_SAMPLE,),
        examples=(
            "tencost graphs train model=additive 'seeds=[0,1,2]'",
            "tencost graphs train -m model=summed,additive",
        ),
        help="Train a family of graph models for all devices of the dataset.\n\nWith -m: every combination of choices.",
        sweep=_train_sweep,
    )
)  # fmt: skip
GRAPHS.add_command(
    StageCommand(
        "tune",
        stage_function("tencost.train.networks.search"),
        uses=(
            "dataset", "graph_split", "graph_model", "seeds", "execution", "experiment_name", "paths.graphs",
            "paths.searches",
        ),
        options=(
            ValueOption(["--trials"], type=Whole(1), default=50, show_default=True, help="How many settings to try."),
            ValueOption(
                ["--cpus"],
                type=Whole(1),
                help="CPUs that all trials together use; all by default. A trial uses model.num_threads.",
            ),
            click.Option(["--resume"], is_flag=True, help="Go on with the search that was interrupted."),
        ),
        defaults=(_SAMPLE, "model=gin"),
        examples=(
            "tencost graphs tune model=gin model.max_minutes=5 --trials 50",
            "tencost graphs tune model=gin model.max_minutes=5 --trials 50 --resume",
        ),
        help=(
            "Search settings of a graph neural network, and print the best for `graphs train`.\n\n"
            "Judged by the validation part. Trials are runs in MLflow; worse ones end early."
        ),
    )
)  # fmt: skip
GRAPHS.add_command(
    StageCommand(
        "evaluate",
        stage_function("tencost.evaluate.networks.stage"),
        uses=(
            "dataset", "graph_split", "experiment_name", "paths.graphs", "paths.models", "paths.reports",
        ),
        defaults=(_SAMPLE,),
        examples=("tencost graphs evaluate", "tencost graphs evaluate dataset=cg split=cg"),
        help="Compare all models that were trained on a split, device by device.",
    )
)  # fmt: skip
GRAPHS.add_command(
    StageCommand(
        "register",
        stage_function("tencost.register.networks.stage"),
        uses=(
            "dataset", "hardware", "graph_split", "experiment_name", "paths.graphs", "paths.models",
            "paths.reports", "paths.registry",
        ),
        defaults=(_SAMPLE, _DEVICE),
        examples=("tencost graphs register hardware=adreno-640",),
        help="Register the best model of a device; it becomes champion if the rule allows.",
    )
)  # fmt: skip
GRAPHS.add_command(
    StageCommand(
        "measure",
        stage_function("tencost.measure.networks.stage"),
        uses=("network", "hardware"),
        defaults=("hardware=local",),
        options=(
            ValueOption(
                ["--to"],
                type=Place("FOLDER"),
                help="The folder to measure into; measured/graphs-<hardware> unless given.",
            ),
            ValueOption(["--count"], type=Whole(1), help="Networks at most."),
            ValueOption(
                ["--variants"],
                type=Whole(1),
                help="Make that many variants of network=... (width, depth) instead of the standard ones.",
            ),
            ValueOption(["--cpus"], type=Text("LIST"), help="CPUs to run on: 3, or 0,1."),
            ValueOption(
                ["--threads"],
                type=Whole(1),
                default=1,
                show_default=True,
                help="Threads a network.",
            ),
            ValueOption(
                ["--rounds"],
                type=Whole(1),
                default=1,
                show_default=True,
                help="How often all networks are timed in turn; the quietest round of each counts.",
            ),
            ValueOption(
                ["--clock"],
                type=click.Choice(["wall", "cpu"]),
                default="wall",
                show_default=True,
                help="What is counted: time on the wall, or the CPU's (one thread, on a host that others use, too).",
            ),
        ),
        examples=(
            "tencost graphs measure --cpus 3 --rounds 3",
            "tencost graphs measure network=resnet_18 --variants 40 --to measured/resnets",
        ),
        help="Time whole networks on this host with ONNX Runtime.\n\nWhat is measured already is skipped.",
    )
)
GRAPHS.add_command(
    StageCommand(
        "latency",
        stage_function("tencost.register.latency.stage"),
        uses=("network", "hardware", "model_uri"),
        defaults=(_DEVICE,),
        options=(
            ValueOption(
                ["--top"],
                type=Whole(0),
                default=10,
                show_default=True,
                help="How many of the costliest operators are shown.",
            ),
            click.Option(["--json", "as_json"], is_flag=True, help="Print JSON."),
        ),
        examples=(
            "tencost graphs latency network=mobilenet_v2 hardware=cortex-a76",
            "tencost graphs latency network=onnx network.path=model.onnx hardware=adreno-640 --json",
        ),
        help="Predict a network's latency on a device with its registered model.",
    )
)
