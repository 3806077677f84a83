"""The data layout that an AutoTVM convolution works on, as its template and configuration imply it.

On a CPU or Intel graphics, the conv2d and depthwise_conv2d templates with the knobs tile_ic and tile_oc compute in
NCHW<c>c: channels in blocks of tile_ic on the way in and of tile_oc on the way out. Two configurations of one layer
with other blocks need other transformations around the layer, so the fastest of each layout is worth keeping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tencost.compat.lorien.keys import target_keys
from tencost.compat.lorien.topi_flop import output_sizes

PREFIXES = ("conv2d", "depthwise_conv2d")
KEYS = frozenset({"cpu", "intel_graphics"})
_OTHER_LAYOUTS = ("nhwc", "hwcn")


@dataclass(frozen=True)
class Layout:
    """Shape and layout of a layer's input and output: ``(1, 8, 56, 56, 8), "NCHW8c"``."""

    in_shape: tuple[int, ...]
    in_layout: str
    out_shape: tuple[int, ...]
    out_layout: str


def infer_layout(
    task_name: str, args: Sequence[Any], entities: Sequence[Any], target: Mapping[str, Any]
) -> Layout | None:
    """Return the layout of a configured task; None where it cannot be inferred.

    Args:
        task_name: the template: ``conv2d_NCHWc.x86``.
        args: the task's arguments: data and kernel (``["TENSOR", shape, dtype]``), strides, padding, dilation, ...
        entities: the configuration's knobs ``[name, kind, value]``.
        target: the parsed target.
    """
    if not task_name.startswith(PREFIXES) or not KEYS & set(target_keys(target)):
        return None
    if any(name in task_name.lower() for name in _OTHER_LAYOUTS):
        return None
    tile_ic, tile_oc = _block(entities, "tile_ic"), _block(entities, "tile_oc")
    if tile_ic is None or tile_oc is None or len(args) < 4:
        return None
    dilation = args[4] if len(args) > 4 else 1
    try:
        data, kernel = _shape(args[0]), _shape(args[1])
        height, width = output_sizes(data[2:], kernel[2:], args[2], args[3], dilation)
    except ValueError:
        return None
    filters = kernel[0] * (kernel[1] if task_name.startswith("depthwise") else 1)
    return Layout(
        in_shape=(data[0], data[1] // tile_ic, *data[2:], tile_ic),
        in_layout=f"NCHW{tile_ic}c",
        out_shape=(data[0], filters // tile_oc, height, width, tile_oc),
        out_layout=f"NCHW{tile_oc}c",
    )


def _block(entities: Sequence[Any], name: str) -> int | None:
    """Return the innermost size of a split knob."""
    for entity in entities:
        match entity:
            case [str(knob), "sp", [*_, int(size)]] if knob == name:
                return size if size > 0 else None
    return None


def _shape(arg: Any) -> tuple[int, ...]:
    match arg:
        case ["TENSOR", [int(), int(), int(), int()] as sizes, _]:
            return tuple(sizes)
    raise ValueError(f"expected a tensor of four axes, found {arg!r:.60}")
