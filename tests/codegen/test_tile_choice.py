"""What the rule decides for a tile: bands of an image, the squarest of equal tiles, how much of a sum is unrolled."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tvm import relax

from product_workloads import fused, nhwc, task_of
from tencost.programs.codegen import tiles
from tencost.programs.codegen.candidates import Candidate, draw_candidates, rank_candidates

pytestmark = [pytest.mark.tvm, pytest.mark.usefixtures("cpu_intrinsics")]
TARGET = {"kind": "llvm", "mcpu": "x86-64-v3"}
op = relax.op


def convolution(image: int, channels: int, outputs: int, *, groups: int = 1) -> Any:
    shapes = [(1, image, image, channels), (3, 3, channels // groups, outputs)]
    return task_of(fused(shapes, lambda x, w: op.nn.relu(nhwc(x, w, groups=groups))))


def first(task: Any, cores: int = 1) -> Candidate:
    return draw_candidates(task, TARGET | {"num-cores": cores}, 1)[0]


@pytest.mark.parametrize("channels", [32, 64, 192, 256])
@pytest.mark.parametrize("image", [12, 64])
def test_a_depthwise_convolution_reads_an_image_in_bands(image: int, channels: int) -> None:
    chosen = first(convolution(image, channels, channels, groups=channels))
    (outside, inside, wide), (bands, rows, height), *_ = chosen.decisions
    lanes = chosen.product.lanes
    assert chosen.product.apart
    assert chosen.near
    assert outside * inside * wide * lanes == channels
    assert 2 <= inside <= tiles.PIXEL_VECTORS
    assert bands * rows * height == image
    assert rows <= tiles.BAND_TILES
    padded = 4 * (image + 2) * inside * wide * lanes
    assert (rows * height + 2) * padded <= 1.25 * tiles.BAND or rows == 1


@pytest.mark.parametrize("channels", [32, 256])
def test_its_bands_are_enough_for_the_cores(channels: int) -> None:
    (outside, *_), (bands, rows, _), *_ = first(
        convolution(32, channels, channels, groups=channels), cores=4
    ).decisions
    assert outside * bands >= 16 or rows == 1


def test_of_equal_tiles_the_squarest_is_first() -> None:
    task = convolution(24, 16, 48)
    chosen = first(task)
    equal = [
        each
        for each in rank_candidates(task, TARGET)
        if (each.cycles, each.tile[0], each.decisions[0])
        == (chosen.cycles, chosen.tile[0], chosen.decisions[0])
    ]
    around = [tiles.read_around(each.product, each.tile[1]) for each in equal]
    assert len(set(around)) > 1
    assert around[0] == min(around)
    assert min(chosen.tile[1]) > 1


def test_a_tile_of_one_vector_is_unrolled_less() -> None:
    task = task_of(fused([(60, 64), (64, 128)], op.matmul))
    unrolled = {
        each.tile[0]: math.prod(inner for _, inner in each.decisions[2:])
        for each in rank_candidates(task, TARGET)
    }
    assert unrolled[1] == 4
    assert unrolled[2] == 8
