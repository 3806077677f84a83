"""Convolutions on a matrix unit with memories of its own: in which tiles a compiler cuts them, and what these take.

Accelerators run a convolution in tiles: what a tile reads and writes must fit memories on the chip, its coefficients
those beside the multipliers. What follows is steps with the sizes, not smooth: a channel more is another pass over the
image; kernels of 7x7 leave room for 80 input channels, and what further ones add is summed in passes of its own. The
rules are those by which OpenVINO's compiler chooses tiles for the Myriad X (inference-engine/src/vpu/graph_transformer,
releases 2019 to 2022; Apache-2.0), in short: 16 blocks of memory serve 256 multipliers; 1, 2, 4, 8 or 16 of them share
the input channels (`_OVERHEAD` is what that costs), and of the output channels 256, 128, 64, 32 or 16 are computed at a
time. Depthwise convolutions run as dense ones over small groups of channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_MULTIPLIERS = 256
_OVERHEAD = (0, 5, 11, 19, 31)
"""Cycles that sharing the input channels among 1, 2, 4, 8 and 16 blocks adds to each output."""
_COEFFICIENTS = 256
"""That a block holds of each output channel."""
_BLOCK_BYTES = 128 * 1024
"""Of all blocks together: lines of the image that is read."""
_TILE_BYTES = 576 * 1024
"""What a tile may write."""
_BYTES = 2
_ROW = 8
"""Rows and output channels are padded to so many numbers."""
_CHANNELS = 2048
_CUTS = 15
"""Along a dimension, at most."""
_NARROWEST = 64
"""Rows are not cut into shorter ones."""
_GROUP = 128
"""Largest group of channels of a depthwise convolution."""


def tiles_of(image: Integers, output: Integers, kernel: Integers, stride: Integers) -> Floats:
    """Return what dense convolutions take: cycles, partial sums that are added up, and tiles (float64 [K, 3]).

    A tile is taken for each group of output channels that is computed at a time. What fits no tiles counts
    as one that keeps all multipliers busy.

    Args:
        image: [K, 3]; height, width and channels (of a group) that are read.
        output: [K, 3]; of what is written.
        kernel: [K, 2]; height and width.
        stride: [K].
    """
    shapes, which = np.unique(
        np.column_stack([image, output, kernel, stride]), axis=0, return_inverse=True
    )
    height, width, channels, out_h, out_w, out_c, kernel_h, kernel_w, stride = shapes.T
    pixels = out_h * out_w
    cost = np.full(len(shapes), np.inf)
    tiled = np.zeros((len(shapes), 3))
    tiled[:, 0] = pixels * channels * out_c * kernel_h * kernel_w / _MULTIPLIERS
    tiled[:, 2] = 1
    for cuts_c in range(1, _CUTS + 1):
        inner = _up(channels, cuts_c)
        # Adding up outweighs whatever smaller tiles save.
        worth = (inner <= _CHANNELS) & ((cuts_c - 1) * pixels * out_c < cost)
        for cuts_w in range(1, _CUTS + 1):
            open_ = worth & ((cuts_w == 1) | (_up(width, cuts_w) >= _NARROWEST))
            for cuts_h in range(1, _CUTS + 1):
                row = np.flatnonzero(open_)
                if not len(row):
                    break
                high, wide = _up(out_h[row], cuts_h), _up(out_w[row], cuts_w)
                steps, groups = _steps(
                    np.minimum((high - 1) * stride[row] + kernel_h[row], height[row]),
                    np.minimum((wide - 1) * stride[row] + kernel_w[row], width[row]),
                    inner[row],
                    out_c[row],
                    (kernel_h[row], kernel_w[row]),
                    stride[row],
                )
                written = _padded(wide) * high * _padded(out_c[row]) * _BYTES
                fits = np.isfinite(steps) & (written <= _TILE_BYTES)
                open_[row[fits]] = False  # smaller tiles of the same width only repeat more
                planes = cuts_w * cuts_h
                added = (cuts_c - 1) * high * wide * planes * out_c[row]
                price = steps * cuts_c * planes + added
                better = fits & (price < cost[row])
                row, price, steps, groups, added, high, wide = (
                    each[better] for each in (row, price, steps, groups, added, high, wide)
                )
                cost[row] = price
                tiled[row] = np.column_stack(
                    [steps * cuts_c * high * wide * planes, added, groups * cuts_c * planes]
                )
    return tiled[which.ravel()]


def depthwise_tiles_of(
    image: Integers, output: Integers, kernel: Integers, stride: Integers
) -> Floats:
    """Return the same of depthwise convolutions, which need no partial sums; arguments as of `tiles_of`."""
    shapes, which = np.unique(np.column_stack([image, kernel, stride]), axis=0, return_inverse=True)
    height, width, channels, kernel_h, kernel_w, stride = shapes.T
    cost, tiles = np.full((2, len(shapes)), np.inf)
    for group in range(1, min(_GROUP, int(channels.max(initial=1))) + 1):
        channel = np.full(len(shapes), group)
        steps, _ = _steps(height, width, channel, channel, (kernel_h, kernel_w), stride)
        count = _up(channels, group)
        better = (steps * count < cost) & (group < np.maximum(channels, 2))
        cost = np.where(better, steps * count, cost)
        tiles = np.where(better, count, tiles)
    fits = np.isfinite(cost)
    cost = np.where(fits, cost, channels * kernel_h * kernel_w)
    tiles = np.where(fits, tiles, 1.0)
    which = which.ravel()
    pixels = output[:, 0] * output[:, 1]
    return np.column_stack([cost[which] * pixels, np.zeros(len(which)), tiles[which]])


def _steps(
    height: Integers,
    width: Integers,
    channels: Integers,
    out_channels: Integers,
    kernel: tuple[Integers, Integers],
    stride: Integers,
) -> tuple[Floats, Integers]:
    """Return the cycles that an output pixel takes in the best mode (inf: none fits), and groups of output channels."""
    kernel_h, kernel_w = kernel
    best, least = np.full(len(channels), np.inf), np.zeros(len(channels), dtype=np.int64)
    line = _padded(width) * _BYTES
    needed = np.minimum(kernel_h + stride + 2 + (width <= _ROW), height)
    for mode, overhead in enumerate(_OVERHEAD):
        blocks = 1 << mode
        each = _up(channels, blocks)
        at_once = np.minimum(_MULTIPLIERS // blocks, _padded(out_channels))
        groups = _up(out_channels, at_once)
        steps = groups * (each * kernel_h * kernel_w + overhead)
        lines = np.minimum((_BLOCK_BYTES >> mode) // each // line, height)
        fits = (each * kernel_h * kernel_w <= _COEFFICIENTS) & (each * blocks <= _CHANNELS)
        fits &= lines >= needed
        better = fits & ((steps < best) | ((steps == best) & (groups < least)))
        best, least = np.where(better, steps, best), np.where(better, groups, least)
    return best, least


def _padded(size: Integers) -> Integers:
    return _up(size, _ROW) * _ROW


def _up(size: Any, parts: Any) -> Integers:
    """Divide, rounded up."""
    quotient: Integers = -(-size // parts)
    return quotient
