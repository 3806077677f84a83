"""The script of docs/how-to/search-variants.md runs as it stands, but for the model and how long it searches."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tencost
from made_up_graphs import DEVICES, networks
from tencost.models.networks.bundle import (
    GraphBundleInfo,
    plain_config,
    register_for,
    save_bundle,
)
from tencost.models.networks.families.additive import FAMILY
from tencost.networks.graph.identity import shape_keys

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("matplotlib")

from torch import nn  # noqa: E402  # needs torch

from tencost.networks.torch_modules import module_to_onnx  # noqa: E402

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "search_variants.py"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An additive model that is registered for the Cortex-A76."""
    data = networks(30)
    model = FAMILY.make(FAMILY.for_tests, len(DEVICES))
    model.fit(data, data, seed=0, report=lambda *_: None)
    info = GraphBundleInfo(
        family="additive",
        model_config=plain_config(FAMILY.for_tests),
        devices=DEVICES,
        dataset="made_up",
        dataset_hash="0",
        split="by_graph",
        split_hash="0",
        seed=0,
    )
    folder = tmp_path_factory.mktemp("model")
    save_bundle(folder / "trained", model, info)
    register_for(folder / "trained", "cortex-a76", folder / "registered")
    return folder / "registered"


class Residual(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return self.body(x) + x


def mobilenet_v2(stages: list[tuple[int, ...]]) -> nn.Module:
    """Return what the script's `mobilenet` writes, in PyTorch."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU6()]
    given = 32
    for (channels, blocks, kernel, expand), first in zip(
        stages, (1, 2, 2, 2, 1, 2, 1), strict=True
    ):
        for stride in (first, *[1] * (blocks - 1)):
            inner = given * expand
            widen = [nn.Conv2d(given, inner, 1), nn.ReLU6()] if expand > 1 else []
            depthwise = nn.Conv2d(inner, inner, kernel, stride, kernel // 2, groups=inner)
            body = nn.Sequential(*widen, depthwise, nn.ReLU6(), nn.Conv2d(inner, channels, 1))
            layers.append(Residual(body) if stride == 1 and channels == given else body)
            given = channels
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000, bias=False))
    return nn.Sequential(*layers, nn.Conv2d(given, 1280, 1), nn.ReLU6(), *head).eval()


@pytest.mark.slow
def test_the_script_runs(bundle: Path, tmp_path: Path) -> None:
    script = SCRIPT.read_text()
    for written, used in (
        ("models:/tencost-graph-cortex-a76@champion", str(bundle)),
        ("ROUNDS = 8", "ROUNDS = 1"),
        ("for _ in range(40)", "for _ in range(4)"),
    ):
        assert script.count(written) == 1, written
        script = script.replace(written, used)
    script += "\nassert len(predictions) > len(uniform)\nonnx.checker.check_model('best.onnx', full_check=True)\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = re.findall(r"^\d+\.\d\d ms, (\d+) MFLOP: (.*)$", done.stdout, flags=re.MULTILINE)
    assert 2 <= len(lines) <= 6
    assert all(int(flop) >= 400 for flop, _ in lines)
    assert (tmp_path / "search-variants.png").stat().st_size > 5000

    # The first line is MobileNetV2, the second the best. What the script writes is what an exporter would.
    stages = [tuple(map(int, re.split("[x/]", one))) for one in lines[1][1].split()]
    direct = tencost.graphs_of(tmp_path / "best.onnx")
    model = module_to_onnx("mine", mobilenet_v2(stages), (torch.zeros(1, 3, 224, 224),))
    exported = tencost.graphs_of(model)
    assert shape_keys(exported).tolist() == shape_keys(direct).tolist()
