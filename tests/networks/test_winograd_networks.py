"""Networks whose convolutions are Winograd's: those that are deployed, their weights transformed once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from tencost.config import GraphChoice, NetworkConfig
from tencost.networks.network import Network, load_network
from tencost.networks.torch_modules import module_to_onnx
from tencost.programs.codegen.winograd import is_winograd
from tencost.tune.deploy import compile_network
from tencost.tune.hosts import Deployed

pytestmark = pytest.mark.tvm


class Blocks(nn.Module):
    """Two convolutions that are worth it, and some that are others: a stem, strides, five taps, groups."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.first, self.second = (nn.Conv2d(32, 32, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList([nn.BatchNorm2d(32) for _ in range(2)])
        self.down = nn.Conv2d(32, 48, 3, stride=2, padding=1)
        self.wide = nn.Conv2d(48, 48, 5, padding=2)
        self.depthwise = nn.Conv2d(48, 48, 3, padding=1, groups=48)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(image))
        inner = nn.functional.silu(self.norms[0](self.first(x)))
        x = torch.relu(x + self.norms[1](self.second(inner)))
        return self.depthwise(torch.relu(self.wide(torch.relu(self.down(x)))))


def loaded(
    folder: Path,
    target: dict[str, Any],
    batch: int = 1,
    is_deployed: bool = False,
    graph: GraphChoice = GraphChoice.auto,
    winograd: bool = True,
) -> Network:
    torch.manual_seed(0)
    module, image = Blocks().eval(), torch.randn(batch, 3, 26, 30)
    path = folder / "blocks.onnx"
    onnx.save(module_to_onnx("blocks", module, (image,)), path)
    config = NetworkConfig(
        name="blocks", source="onnx", path=str(path), graph=graph, winograd=winograd
    )
    return load_network(config, folder, target=target, is_deployed=is_deployed)


@pytest.mark.parametrize("dilation", [1, 4])
def test_a_sequence(dilation: int, target: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = [
        nn.Conv1d(32, 48, 3, padding=dilation, dilation=dilation),
        nn.ReLU(),
        nn.Conv1d(48, 32, 3, padding=dilation, dilation=dilation),
    ]
    module, sound = nn.Sequential(*layers).eval(), torch.randn(1, 32, 203)
    path = tmp_path / "sound.onnx"
    onnx.save(module_to_onnx("sound", module, (sound,)), path)
    config = NetworkConfig(name="sound", source="onnx", path=str(path), graph=GraphChoice.auto)
    network = load_network(config, tmp_path, target=target, is_deployed=True)
    assert winograds(network) == 2
    built = compile_network(network, target, None, by_rule=True)
    (found,), (expected,) = Deployed(built, network).outputs(), network.expected
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def winograds(network: Network) -> int:
    return sum(map(is_winograd, network.mod.functions.values()))


@pytest.mark.parametrize(("batch", "cores"), [(1, 1), (4, 2)])
def test_it_computes_what_onnx_runtime_does(
    batch: int, cores: int, target: dict[str, Any], tmp_path: Path
) -> None:
    target = target | {"num-cores": cores}
    network = loaded(tmp_path, target, batch, is_deployed=True)
    assert winograds(network) == 2
    built = compile_network(network, target, None, by_rule=True)
    (found,), (expected,) = Deployed(built, network, cores).outputs(), network.expected
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_what_is_measured_are_its_operators(target: dict[str, Any], tmp_path: Path) -> None:
    measured = loaded(tmp_path, target)
    deployed = loaded(tmp_path, target, is_deployed=True)
    assert winograds(measured) == 0
    tasks = {task.name for task in measured.tasks(target)}
    left = {task.name for task in deployed.tasks(target)}
    assert len(tasks) == len(left) + 2
    assert not [name for name in left if "winograd" in name]


def test_only_the_transformed_taps_are_kept(target: dict[str, Any], tmp_path: Path) -> None:
    network = loaded(tmp_path, target, is_deployed=True)
    shapes = [tuple(tensor.shape) for tensor in network.params]
    assert shapes.count((6, 6, 32, 32)) == 2
    assert (3, 3, 32, 32) not in shapes


@pytest.mark.parametrize(
    "settings",
    [{"graph": GraphChoice.folded}, {"graph": GraphChoice.as_is}, {"winograd": False}],
    ids=["folded", "as it came", "not wanted"],
)
def test_other_graphs_have_none(
    settings: dict[str, Any], target: dict[str, Any], tmp_path: Path
) -> None:
    assert winograds(loaded(tmp_path, target, is_deployed=True, **settings)) == 0
