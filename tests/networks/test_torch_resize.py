from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from relax_modules import compiled
from tencost.errors import MeasureError
from tencost.networks.torch_modules import module_to_relax

pytestmark = pytest.mark.tvm

MODES = {
    3: ["nearest", "nearest-exact", "linear"],
    4: ["nearest", "nearest-exact", "bilinear", "bicubic"],
    5: ["nearest", "nearest-exact", "trilinear"],
}
"""Modes of F.interpolate by the rank of what they resize."""


class Resized(nn.Module):
    """Several interpolations, an input each."""

    def __init__(self, *settings: dict[str, Any]) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            F.interpolate(x, **told) for x, told in zip(tensors, self.settings, strict=True)
        )


def drawn(rng: random.Random) -> tuple[torch.Tensor, dict[str, Any]]:
    rank = rng.choice([3, 4, 4, 5])
    count, mode = rank - 2, rng.choice(MODES[rank])
    told: dict[str, Any] = {"mode": mode}
    if rng.random() < 0.5:
        told["size"] = tuple(rng.randint(1, 30) for _ in range(count))
    else:
        told["scale_factor"] = tuple(round(rng.uniform(0.55, 2.6), 2) for _ in range(count))
        told["recompute_scale_factor"] = rng.random() < 0.3
    if "nearest" not in mode:
        told["antialias"] = mode in ("bilinear", "bicubic") and rng.random() < 0.5
        told["align_corners"] = not told["antialias"] and rng.random() < 0.5
    return torch.randn(rng.randint(1, 2), 2, *(rng.randint(2, 19) for _ in range(count))), told


@pytest.mark.parametrize("seed", range(4))
def test_every_size_and_scale_is_resized_as_pytorch_does(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    tensors, settings = zip(*(drawn(rng) for _ in range(6)), strict=True)
    module = Resized(*settings)
    for output, expected, told in zip(
        compiled(module, *tensors), module(*tensors), settings, strict=True
    ):
        tolerance = 0 if "nearest" in told["mode"] else 5e-6
        torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance, msg=str(told))


def test_half_types_are_weighted_in_float32_and_bytes_are_gathered() -> None:
    half = torch.randn(1, 2, 5, 7).half()
    whole = torch.randint(0, 256, (1, 2, 5, 7), dtype=torch.uint8)
    module = Resized({"size": (8, 9), "mode": "bilinear"}, {"size": (8, 9), "mode": "nearest"})
    weighted, gathered = compiled(module, half, whole)
    expected = module(half, whole)
    torch.testing.assert_close(weighted, expected[0], rtol=1e-3, atol=1e-3)
    assert torch.equal(gathered, expected[1])


def test_weighted_sums_of_bytes_are_refused() -> None:
    x = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    with pytest.raises(MeasureError, match=r"upsample_bilinear2d of torch\.uint8"):
        module_to_relax("mine", Resized({"size": (6, 6), "mode": "bilinear"}), (x,))
