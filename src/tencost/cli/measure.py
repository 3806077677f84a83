"""`tencost measure`: a raw dataset of one's own networks on one's own hardware, step by step."""

from __future__ import annotations

from tencost.cli.grammar import Group, Text, ValueOption
from tencost.cli.overrides import StageCommand, stage_function

MEASURE = Group(
    "measure",
    help=(
        "Collect a raw dataset on your hardware.\n\nIn this order: networks, programs, run. Each step continues where "
        "it was stopped."
    ),
    examples=(
        "tencost measure networks network=bert_tiny",
        "tencost measure programs",
        "tencost measure run hardware=local",
    ),
)
_STAGE = "tencost.measure.stage"

MEASURE.add_command(
    StageCommand(
        "networks",
        stage_function(_STAGE, "networks"),
        uses=("network", "hardware", "measure"),
        examples=(
            "tencost measure networks network=bert_tiny",
            "tencost measure networks -m network=bert_tiny,resnet_18",
            "tencost measure networks network=onnx network.path=model.onnx measure.name=mine",
        ),
        help="Import a network and write its tasks into the collection.",
    )
)
MEASURE.add_command(
    StageCommand(
        "programs",
        stage_function(_STAGE, "programs"),
        uses=("hardware", "measure", "model_uri", "execution", "jobs"),
        examples=(
            "tencost measure programs",
            "tencost measure programs measure.programs=128",
            "tencost measure programs execution=ray execution.address=10.0.0.5:6379",
        ),
        help="Make programs for every task of the collection.",
    )
)
MEASURE.add_command(
    StageCommand(
        "run",
        stage_function(_STAGE, "run"),
        uses=("hardware", "measure", "paths.store"),
        examples=(
            "tencost measure run hardware=local",
            "tencost measure run hardware=epyc-avx2-1c measure.shard=0/2",
        ),
        help="Measure the programs on a hardware, then pack the dataset.",
    )
)
MEASURE.add_command(
    StageCommand(
        "hardware",
        stage_function(_STAGE, "hardware"),
        uses=("hardware", "measure"),
        defaults=("hardware=local",),  # the one description that is read from the host
        examples=(
            "tencost measure hardware",
            "tencost measure hardware measure.isa=avx2 hardware.name=desk-avx2-1c",
        ),
        help="Describe this host as conf/hardware/<name>.yaml.",
    )
)
MEASURE.add_command(
    StageCommand(
        "pack",
        stage_function(_STAGE, "pack"),
        uses=("measure",),
        examples=("tencost measure pack measure.name=mine",),
        help="Pack the collection as a dataset.\n\nIt writes datasets/<name>.tar.zst and conf/dataset/<name>.yaml.",
    )
)
MEASURE.add_command(
    StageCommand(
        "export",
        stage_function("tencost.networks.saving"),
        uses=("network",),
        options=(
            ValueOption(
                ["--to"],
                type=Text("FILE.npz"),
                required=True,
                old=("to",),
                help="The file, or a folder (there already, or with a slash at the end) that gets <name>.npz.",
            ),
        ),
        examples=(
            "tencost measure export network=bert_tiny --to bert_tiny.npz",
            "tencost measure export -m network=bert_tiny,resnet_18 --to networks/",
        ),
        help="Write a network to a file, for a machine without PyTorch.",
    )
)
