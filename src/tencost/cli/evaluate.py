"""`tencost evaluate`: the stage, and what bounds the programs of a tuned network."""

from __future__ import annotations

import click

from tencost.cli.grammar import Place, Text, ValueOption
from tencost.cli.overrides import StageCommand, StageGroup, stage_function

EVALUATE = StageGroup(
    StageCommand(
        "evaluate",
        stage_function("tencost.evaluate.stage"),
        uses=(
            "dataset", "hardware", "split", "execution", "jobs", "experiment_name", "paths.records", "paths.features",
            "paths.splits", "paths.models", "paths.reports",
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

EVALUATE.add_command(
    StageCommand(
        "roofline",
        stage_function("tencost.tune.roofline.stage"),
        uses=(
            "network", "hardware", "tuner.workdir", "experiment_name", "paths.store", "paths.reports",
        ),
        options=(
            ValueOption(
                ["--run"],
                type=Text("RUN"),
                old=("run",),
                help="A work folder of `tencost tune`, or the id of its MLflow run. [default: the network's own]",
            ),
            click.Option(["--store"], is_flag=True, help="Ask the live store, although there is a work folder."),
            click.Option(
                ["--measured"],
                is_flag=True,
                help="Measure this host's roofs, a memory at a time, instead of reading conf/hardware.",
            ),
            ValueOption(
                ["--memory-gbs"],
                type=click.FloatRange(min=0, min_open=True),
                help="GB/s of the device's memory, for what its caches cannot hold and for counted bytes.",
            ),
            ValueOption(
                ["--profiles"],
                type=Place("PATH"),
                help="Counters of the programs, from `tencost profiles import`: bytes as they were counted.",
            ),
            ValueOption(
                ["--to"],
                type=Place("FOLDER"),
                help="The folder that gets roofline.csv and roofline.png. [default: among the project's reports]",
            ),
        ),
        examples=(
            "tencost evaluate roofline network=bert_tiny hardware=epyc-avx512-1c",
            "tencost evaluate roofline network=mobilenet_v2 hardware=local --measured",
            "tencost evaluate roofline network=bert_tiny hardware=epyc-avx512-1c --store",
        ),
        help=(
            "Hold the best programs of a tuned network against what its hardware can do.\n\nThe tasks in which "
            "most time is lost come first: which stand at 90 % of their roof, which at 5 %."
        ),
    )
)  # fmt: skip

EVALUATE.add_command(
    StageCommand(
        "leave-out",
        stage_function("tencost.compat.curves.leave_out"),
        uses=(
            "dataset", "hardware", "features", "split", "model", "seeds", "execution", "jobs", "experiment_name",
            "paths.records", "paths.features", "paths.splits", "paths.reports",
        ),
        options=(
            ValueOption(
                ["--by"],
                type=click.Choice(["machine", "isa"]),
                multiple=True,
                default=("machine", "isa"),
                show_default=True,
                help="What is left out together with a hardware: all of its machine, all of its vector width.",
            ),
            ValueOption(
                ["--from", "sources"],
                type=Text("HARDWARE"),
                multiple=True,
                help="Hardware that the left-out ones are learnt from. [default: all others]",
            ),
        ),
        examples=(
            "tencost evaluate leave-out dataset=tencost-cpu hardware=all features=per_store_tiles "
            "'seeds=[0,1,2]'",
            "tencost evaluate leave-out dataset=tencost-cpu hardware=all features=per_store_tiles --by machine",
        ),
        help=(
            "Ask models about hardware that they have not seen.\n\nEach hardware of the dataset is left out with its "
            "whole machine, and with its vector width; native models and pooled ones stand beside."
        ),
    )
)  # fmt: skip
