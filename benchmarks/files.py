"""ONNX files of networks that conf/network does not hold: `tencost compile` by default against ONNX Runtime, one core.

    python benchmarks/files.py [--files levit dinov2 ...] [--work FOLDER] [--report]

Each file is exported from a network definition of transformers, or from one below, with weights drawn at random
(seed 0), as a user's file would come, and compiled with the one command that a user types, without a setting:

    tencost compile network=onnx network.path=FILE --to LIBRARY

Library and ONNX Runtime (CPU provider, default graph optimizations, one thread) are then timed in turn, each in a
process of its own on the same CPU; outputs are compared with PyTorch's. Results: one file a network in
benchmarks/results/files, with the CPU, the versions and the load of the host; --report prints them and times nothing.
A file that cannot be compiled stays in the table with its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from network_arms import Case
from network_processes import ROOT, Clock, Failed, command, time_arms, write

from tencost.measure.host_state import host_facts
from tencost.networks.variants.builders import BUILDERS
from tencost.networks.variants.variants import draw_batch_norms
from tencost.workers.noise import is_busy

RESULTS = ROOT / "benchmarks" / "results" / "files"
Shapes = dict[str, tuple[int, ...]]
IMAGE: Shapes = {"pixel_values": (1, 3, 224, 224)}
TOKENS: Shapes = {"input_ids": (1, 128)}
FILES: dict[str, tuple[str, dict[str, Any], Shapes]] = {
    "mobilevit": ("MobileViT", {"image_size": 256}, {"pixel_values": (1, 3, 256, 256)}),
    "levit": ("Levit", {}, IMAGE),
    "dinov2": (
        "Dinov2",
        {"hidden_size": 384, "num_attention_heads": 6, "num_hidden_layers": 4, "image_size": 224},
        IMAGE,
    ),
    "resnet_odd": (
        "ResNet",
        {
            "embedding_size": 40,
            "hidden_sizes": [104, 216, 440, 872],
            "depths": [1, 1, 1, 1],
            "layer_type": "basic",
        },
        IMAGE,
    ),
    "roberta": (
        "Roberta",
        {"num_hidden_layers": 4, "hidden_size": 384, "intermediate_size": 1536},
        TOKENS,
    ),
    "t5_encoder": ("T5", {"num_layers": 4, "d_model": 384, "d_ff": 1024, "num_heads": 6}, TOKENS),
}
"""Name of a file -> (architecture of transformers, its settings, shapes of its inputs)."""


def wave1d() -> Any:
    """Return strided 1-D convolutions over sound as in wav2vec 2.0, with batch norms: 3199, 1599, 799, ... rows."""
    from torch import nn

    layers: list[Any] = []
    width = 1
    for kernel, stride in ((10, 5), *((3, 2),) * 4, *((2, 2),) * 2):
        convolution = nn.Conv1d(width, 128, kernel, stride, bias=False)
        layers += [convolution, nn.BatchNorm1d(128), nn.ReLU()]
        width = 128
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, 35))


def densenet() -> Any:
    """Return DenseNet's blocks: batch norms before convolutions, channels that grow by 24."""
    return BUILDERS["densenet"]([24, 24, 24, 24], [3, 6, 8, 6], 3)


def mobilenet_v3() -> Any:
    """Return inverted residuals with squeeze and excitation."""
    return BUILDERS["mobilenet_v3"]([16, 24, 40, 96], [1, 2, 3, 4], 5)


def decoder() -> Any:
    """Return two layers of DETR's decoder, 100 queries, whose attention splits one weight in three."""
    import torch
    from torch import nn

    class Decoder(nn.Module):
        """The decoder with its queries learnt."""

        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerDecoderLayer(256, 8, 1024, batch_first=True)
            self.layers = nn.TransformerDecoder(layer, 2)
            self.queries = nn.Parameter(torch.randn(1, 100, 256))

        def forward(self, features: Any) -> Any:
            """Return vectors [1, 100, 256] of features [1, 400, 256]."""
            return self.layers(self.queries, features)

    return Decoder()


MODULES: dict[str, tuple[Callable[[], Any], Shapes]] = {
    "wave1d": (wave1d, {"waveform": (1, 1, 16_000)}),
    "densenet": (densenet, IMAGE),
    "mobilenet_v3": (mobilenet_v3, IMAGE),
    "decoder": (decoder, {"features": (1, 400, 256)}),
}
"""Name of a file -> (its network, shapes of its inputs)."""
TURN_S = 8.0
"""Seconds that an arm is timed for, about."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*FILES, *MODULES]
    parser.add_argument("--files", nargs="+", choices=names, default=names)
    parser.add_argument("--work", type=Path, default=ROOT / "tuned" / "files-benchmark")
    parser.add_argument("--report", action="store_true", help="print results, time nothing")
    options = parser.parse_args()
    if not options.report:
        RESULTS.mkdir(parents=True, exist_ok=True)
        for name in options.files:
            write(RESULTS / f"{name}.json", benchmark(name, options.work.resolve() / name))
    print(report())
    return 0


def benchmark(name: str, folder: Path) -> dict[str, Any]:
    """Export a file, compile it as a user does, and time the library beside ONNX Runtime on the last CPU."""
    case = Case(network=name, via="", cores=1, hardware="local", settings=(), folder=str(folder))
    (folder / "rules").mkdir(parents=True, exist_ok=True)
    cpus = sorted(os.sched_getaffinity(0))[-1:]
    export(name, folder)
    rows: dict[str, dict[str, Any]] = {"onnxruntime": {}, "rules": {}}
    words = ["compile", "network=onnx", f"network.path={folder / 'model.onnx'}"]
    clock = Clock(folder / "rules" / "spent.json")
    print(f"{name}: tencost {' '.join(words[:2])} ...", flush=True)
    try:
        command(
            [*words, "--to", str(folder / "rules" / "library.so")],
            folder / "rules" / "log.txt",
            clock,
        )
        rows["rules"]["seconds"] = clock.spent
    except Failed as failed:
        rows["rules"]["error"] = str(failed)
    before, after = time_arms(case, rows, cpus, TURN_S)
    return {
        "file": name,
        "timestamp": round(time.time()),
        "host": host_facts(cpus),
        "versions": {
            part: version(part) for part in ("tencost", "apache-tvm", "onnxruntime", "torch")
        },
        "busy": is_busy(before) or is_busy(after) or "",
        "arms": rows,
    }


def export(name: str, folder: Path) -> None:
    """Write model.onnx, inputs.npz and expected.npz, what PyTorch computes for these inputs."""
    import onnx
    import torch
    import transformers

    from tencost.networks.torch_modules import module_to_onnx

    torch.manual_seed(0)
    if name in MODULES:
        build, shapes = MODULES[name]
        network = build().eval()
        draw_batch_norms(network)
    else:
        architecture, settings, shapes = FILES[name]
        config_class = getattr(transformers, f"{architecture}Config")
        config = config_class(**settings, attn_implementation="eager")
        class_name = "T5EncoderModel" if architecture == "T5" else f"{architecture}Model"
        network = getattr(transformers, class_name)(config).eval()

    class Positional(torch.nn.Module):
        """The network with its inputs by position and one output."""

        def forward(self, *tensors: Any) -> Any:
            if name in MODULES:
                return network(*tensors)
            return network(**dict(zip(shapes, tensors, strict=True))).last_hidden_state

    generator = torch.Generator().manual_seed(0)
    tensors = tuple(
        torch.randint(5, 1000, shape, generator=generator)
        if input_name == "input_ids"
        else torch.randn(shape, generator=generator)
        for input_name, shape in shapes.items()
    )
    module = Positional()
    module.network = network
    module.eval()
    with torch.inference_mode():
        expected = module(*tensors)
    onnx.save(module_to_onnx(name, module, tensors), folder / "model.onnx")
    np.savez(
        folder / "inputs.npz",
        **{key: value.numpy() for key, value in zip(shapes, tensors, strict=True)},
    )
    np.savez(folder / "expected.npz", **{"0": expected.numpy()})


def report() -> str:
    """Return the table of all results: milliseconds (median, quartiles), their ratio, and its geometric mean."""
    results = [
        json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))
    ]
    lines = [
        "| file | ONNX Runtime, ms | tencost by default, ms | ratio | largest difference | host |",
        "|---|---|---|---|---|---|",
    ]
    ratios = []
    for result in results:
        peer, ours = (result["arms"][arm] for arm in ("onnxruntime", "rules"))
        host = f"{result['host']['cpu']}{', busy' if result['busy'] else ''}"
        if "error" in ours or "error" in peer:
            reason = ours.get("error") or peer.get("error")
            lines.append(
                f"| {result['file']} | {spread(peer)} | {spread(ours)} | | {reason} | {host} |"
            )
            continue
        ratios.append(statistics.median(ours["times_s"]) / statistics.median(peer["times_s"]))
        difference = f"{ours['max_rel_error']:.1e}"
        lines.append(
            f"| {result['file']} | {spread(peer)} | {spread(ours)} | {ratios[-1]:.2f} | {difference} | {host} |"
        )
    if ratios:
        mean = statistics.geometric_mean(ratios)
        lines.append(f"| geometric mean of {len(ratios)} of {len(results)} | | | {mean:.2f} | | |")
    return "\n".join(lines)


def spread(row: dict[str, Any]) -> str:
    """Return "median [first, third quartile]" of an arm's times in milliseconds, "" without times."""
    if "times_s" not in row:
        return ""
    low, middle, high = (1e3 * value for value in np.percentile(row["times_s"], [25, 50, 75]))
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    sys.exit(main())
