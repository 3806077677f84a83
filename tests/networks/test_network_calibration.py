"""Weights that are drawn so that every layer's activations are of order one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tencost.networks.calibration import calibrate


class Net(nn.Module):
    """Two convolutions, a batch norm, and what a network may have besides; `spare` does not run."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first: Any = nn.Conv2d(3, 8, 3)
        self.norm: Any = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3)
        self.layer_scale = nn.Parameter(torch.full((8, 1, 1), 1e-6))
        self.token = nn.Parameter(torch.zeros(400))
        self.drawn = nn.Parameter(torch.linspace(0, 1, 8))
        self.gain = nn.Parameter(torch.zeros(1))
        self.spare = nn.Linear(400, 400)
        self.spare.bias.data.zero_()
        self.head = nn.Linear(8, 1000)
        self.head.bias.data.zero_()
        self.tied = nn.Linear(8, 1000, bias=False)
        self.tied.weight = self.head.weight
        self.last = nn.LayerNorm(1000)

    def forward(self, image: torch.Tensor, times: int = 1) -> torch.Tensor:
        x = self.second(torch.relu(self.norm(self.first(image))))
        for _ in range(times):
            pooled = x.mean((2, 3))
            y = self.head(pooled) + self.gain * 0 * self.tied(5 * pooled)
        return self.last(y)


def image(seed: int = 1) -> torch.Tensor:
    return torch.randn(16, 3, 12, 12, generator=torch.Generator().manual_seed(seed)) * 5


def calibrated(seed: int = 0, **inputs: Any) -> Net:
    network = Net().eval()
    calibrate(network, {"image": image(), **inputs}, seed)
    return network


def outputs_of(network: Net, **inputs: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return what each module is given and returns."""
    seen = {}

    def note(where: str, given: torch.Tensor, output: torch.Tensor) -> None:
        seen[where] = (given, output)

    handles = [
        module.register_forward_hook(lambda _, args, out, where=where: note(where, args[0], out))
        for where, module in network.named_modules()
        if where
    ]
    with torch.no_grad():
        network(**{"image": image(), **inputs})
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("times", [1, 3])
def test_what_a_matrix_returns_has_a_deviation_of_one(times: int) -> None:
    """Without its bias, on the inputs that it was calibrated on; run again, it is not scaled again."""
    network = calibrated(times=times)
    seen = outputs_of(network, times=times)
    for name in ("first", "second", "head"):
        module, (_, output) = getattr(network, name), seen[name]
        bias = module.bias.detach().view(-1, *[1] * (output.ndim - 2))
        assert float((output - bias).std()) == pytest.approx(1.0, rel=1e-3), name


def test_a_batch_norm_has_the_statistics_of_what_it_is_given() -> None:
    network = calibrated()
    given, output = outputs_of(network)["norm"]
    torch.testing.assert_close(network.norm.running_mean, given.mean((0, 2, 3)))
    torch.testing.assert_close(network.norm.running_var, given.var((0, 2, 3), unbiased=False))
    assert float(output.mean()) == pytest.approx(1.0, abs=0.2), "a rectifier cuts a sixth of it"


def test_a_channel_that_is_still_is_not_blown_up() -> None:
    class Still(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm: Any = nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.norm(x)

    network, x = Still().eval(), torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    x[:, 1] = 3.0
    calibrate(network, {"x": x}, 0)
    variance = x.var(0, unbiased=False)
    assert float(network.norm.running_var[1]) == pytest.approx(0.1 * float(variance.mean()))
    torch.testing.assert_close(network.norm.running_var[[0, 2, 3]], variance[[0, 2, 3]])


def test_what_was_one_number_throughout_is_drawn() -> None:
    network = calibrated()
    for parameter, mean in (
        (network.token, 0.0),
        (network.spare.bias, 0.0),  # of a module that did not run
        (network.head.bias, 0.0),
        (network.last.weight, 1.0),
        (network.last.bias, 0.0),
    ):
        drawn = parameter.detach()
        assert float(drawn.mean()) == pytest.approx(mean, abs=0.05)
        assert float(drawn.std()) == pytest.approx(0.2, abs=0.03)
    for parameter in (network.layer_scale, network.norm.weight, network.norm.bias):
        assert float(parameter.detach().mean()) == pytest.approx(1.0, abs=0.3)
    torch.testing.assert_close(network.drawn.detach(), torch.linspace(0, 1, 8))


def test_a_matrix_is_scaled_as_a_whole() -> None:
    before, after = Net(), calibrated()
    for name in ("first", "second", "head"):
        one, other = (getattr(net, name).weight.detach().flatten() for net in (before, after))
        likeness = float(torch.cosine_similarity(one, other, dim=0))
        assert likeness == pytest.approx(1.0, abs=1e-4), name
    assert float(after.gain.detach()) != 0


def test_the_seed_decides() -> None:
    one, same, other = (list(calibrated(seed).parameters()) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_network_is_left_as_it_was_but_for_its_weights() -> None:
    network = Net().eval()
    before = {name: value.shape for name, value in network.state_dict().items()}
    drawn = network.first.bias.detach().clone()
    with pytest.raises(RuntimeError):
        calibrate(network, {"image": torch.zeros(1, 5, 12, 12)}, 0)
    torch.testing.assert_close(network.first.bias.detach(), drawn)
    calibrate(network, {"image": image()}, 0)
    assert {name: value.shape for name, value in network.state_dict().items()} == before
    for module in network.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_a_layer_that_is_given_nothing_stays_finite() -> None:
    network = Net().eval()
    calibrate(network, {"image": torch.zeros(4, 3, 12, 12)}, 0)
    assert all(bool(torch.isfinite(value).all()) for value in network.parameters())
