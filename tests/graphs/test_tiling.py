"""Tiles of convolutions: counts worked out by hand, and what must hold whatever the sizes."""

from __future__ import annotations

import numpy as np
import pytest

from made_graphs import chain
from tencost.features.graph.tiling import depthwise_tiles_of, tiles_of
from tencost.features.graph.tokens import AMOUNTS, amounts, find_kernels


def tiles(side: int, inner: int, outer: int, kernel: int, stride: int = 1) -> list[float]:
    out = side // stride
    found = tiles_of(
        np.array([[side, side, inner]]), np.array([[out, out, outer]]), np.array([[kernel, kernel]]),
        np.array([stride]),
    )  # fmt: skip
    return [float(value) for value in found[0]]


def test_a_small_convolution_is_one_tile() -> None:
    """16 channels on one block each: 9 cycles and an overhead of 31 for all 16 outputs; 4 on 4 blocks is cheaper."""
    assert tiles(14, 16, 16, 3) == [14 * 14 * min(9 + 31, 2 * 9 + 19, 4 * 9 + 11, 8 * 9 + 5), 0, 1]


def test_one_output_channel_more_is_another_group() -> None:
    """256 inputs on 16 blocks compute 16 outputs at a time."""
    cycles, _, groups = tiles(14, 256, 16, 3)
    more, _, further = tiles(14, 256, 17, 3)
    assert (groups, further) == (1, 2)
    assert more == 2 * cycles


def test_coefficients_that_do_not_fit_cut_the_input_channels() -> None:
    """16 blocks hold 5 channels each of 7x7: 80; what a second cut adds is summed into every output."""
    assert tiles(14, 80, 16, 7)[1] == 0
    assert tiles(14, 81, 16, 7)[1] == 14 * 14 * 16
    assert tiles(14, 161, 16, 7)[1] == 2 * 14 * 14 * 16


def test_outputs_that_do_not_fit_cut_the_image() -> None:
    assert tiles(56, 64, 64, 1)[2] == 1 * tiles(28, 64, 64, 1)[2]
    assert tiles(224, 64, 64, 1)[2] > tiles(56, 64, 64, 1)[2]


@pytest.mark.parametrize("kernel", [1, 3, 5, 7, 11])
def test_cycles_are_never_fewer_than_the_multipliers_allow(kernel: int) -> None:
    random = np.random.default_rng(kernel)
    sizes = random.integers(1, 300, size=(200, 2))
    sides = random.integers(1, 120, size=200)
    image, output = (np.column_stack([sides, sides, channels]) for channels in sizes.T)
    found = tiles_of(image, output, np.full((200, 2), kernel), np.ones(200, dtype=np.int64))
    work = sides**2 * sizes.prod(axis=1) * kernel**2
    assert (found[:, 0] >= work / 256).all()
    assert (found[:, 2] >= 1).all()


def test_what_fits_no_tiles_keeps_the_multipliers_busy() -> None:
    assert tiles(7, 60_000, 256, 1) == [49 * 60_000, 0, 1]


def test_depthwise_runs_in_small_groups() -> None:
    """3x3: 32 of 64 channels on 8 blocks, 4 each, is 4 * 9 + 19 cycles for a pixel of a group."""
    image = np.array([[14, 14, 64]])
    found = depthwise_tiles_of(image, image, np.array([[3, 3]]), np.array([1]))
    assert found[0].tolist() == [14 * 14 * 2 * (4 * 9 + 19), 0, 2]


def test_order_and_repetition_do_not_matter() -> None:
    image = np.array([[28, 28, 40], [7, 7, 512], [28, 28, 40]])
    kernel, stride = np.full((3, 2), 3), np.ones(3, dtype=np.int64)
    for tiled in (tiles_of, depthwise_tiles_of):
        found = tiled(image, image, kernel, stride)
        assert np.array_equal(found[0], found[2])
        assert np.array_equal(found[1], tiled(image[1:2], image[1:2], kernel[:1], stride[:1])[0])


def test_no_convolutions_are_no_rows() -> None:
    nothing = np.zeros((0, 3), dtype=np.int64)
    for tiled in (tiles_of, depthwise_tiles_of):
        assert tiled(nothing, nothing, nothing[:, :2], nothing[:, 0]).shape == (0, 3)


def test_amounts_of_a_chain() -> None:
    """An input, which no matrix unit runs, and a convolution from 3 to 8 channels."""
    found = dict(zip(AMOUNTS, amounts(find_kernels(chain([8])).integers).T, strict=True))
    assert found["flop"][1] == 2 * 16 * 16 * 9 * 3 * 8
    assert found["moved"][1] == 1 + found["read"][1] + found["written"][1] + found["weights"][1]
    assert [found[name][0] for name in ("cycles", "partial", "tiles")] == [0, 0, 0]
    assert [found["cycles"][1], found["tiles"][1]] == [tiles(16, 3, 8, 3)[0], tiles(16, 3, 8, 3)[2]]
    assert found["kernels"].tolist() == [1, 1]
