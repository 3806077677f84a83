"""`tencost measure`: a raw dataset of one's own networks on one's own hardware, step by step."""

from __future__ import annotations

from tencost.cli.grammar import Group, Text, flag, option
from tencost.cli.overrides import StageCommand

_STAGE = "tencost.measure.stage"
_STEPS = [
    StageCommand(
        "networks",
        f"{_STAGE}:collect_networks",
        "Import a network and write its tasks into the collection.",
        uses="network hardware measure",
        params=(
            flag(
                "--listed",
                "Import all networks that measure.networks lists (measure=tenset), but for those that are there.",
            ),
            flag("--dry-run", "Print the networks and the shapes of their inputs; import nothing."),
        ),
        examples=(
            "tencost measure networks network=bert_tiny",
            "tencost measure networks -m network=bert_tiny,resnet_18",
            "tencost measure networks network=onnx network.path=model.onnx measure.name=mine",
            "tencost measure networks --listed measure=tenset",
        ),
    ),
    StageCommand(
        "programs",
        f"{_STAGE}:programs",
        "Make programs for every task of the collection.",
        uses="hardware measure model_uri execution jobs",
        examples=(
            "tencost measure programs",
            "tencost measure programs measure.programs=128",
            "tencost measure programs execution=ray execution.address=10.0.0.5:6379",
        ),
    ),
    StageCommand(
        "run",
        f"{_STAGE}:run",
        "Measure the programs on a hardware, then pack the dataset.",
        uses="hardware measure paths.store",
        examples=(
            "tencost measure run hardware=local",
            "tencost measure run hardware=epyc-avx2-1c measure.shard=0/2",
        ),
    ),
    StageCommand(
        "hardware",
        "tencost.measure.describe",
        "Describe this host as conf/hardware/<name>.yaml.",
        uses="hardware measure",
        defaults=("hardware=local",),  # the one description that is read from the host
        examples=(
            "tencost measure hardware",
            "tencost measure hardware measure.isa=avx2 hardware.name=desk-avx2-1c",
        ),
    ),
    StageCommand(
        "pack",
        f"{_STAGE}:pack",
        "Pack the collection as a dataset.\n\nIt writes datasets/<name>.tar.zst and conf/dataset/<name>.yaml.",
        uses="measure",
        examples=("tencost measure pack measure.name=mine",),
    ),
    StageCommand(
        "export",
        "tencost.networks.saving",
        "Write a network to a file, for a machine without PyTorch.",
        uses="network",
        params=(
            option(
                "--to",
                Text("FILE.npz"),
                "The file, or a folder (there already, or with a slash at the end) that gets <name>.npz.",
                required=True,
                old=("to",),
            ),
        ),
        examples=(
            "tencost measure export network=bert_tiny --to bert_tiny.npz",
            "tencost measure export -m network=bert_tiny,resnet_18 --to networks/",
        ),
    ),
]
MEASURE = Group(
    "measure",
    "Collect a raw dataset on your hardware.\n\nIn this order: networks, programs, run. Each step continues where it "
    "was stopped.",
    examples=(
        "tencost measure networks network=bert_tiny",
        "tencost measure programs",
        "tencost measure run hardware=local",
    ),
    commands=_STEPS,
)
