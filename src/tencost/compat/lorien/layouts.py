"""The data layout that an AutoTVM convolution works on, as its template and configuration imply it.

On a CPU or Intel graphics, the conv2d and depthwise_conv2d templates with the knobs tile_ic and tile_oc compute in
NCHW<c>c: channels in blocks of tile_ic on the way in and of tile_oc on the way out. Two configurations of one layer
with other blocks need other transformations around the layer, so the fastest of each layout is worth keeping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from tencost.compat.lorien.keys import target_keys

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
    shapes = [_shape(arg) for arg in args[:2]]
    if tile_ic is None or tile_oc is None or len(args) < 4 or None in shapes or len(shapes) < 2:
        return None
    data, kernel = (shape for shape in shapes if shape is not None)
    steps = _pair(args[2])
    spread = _pair(args[4]) if len(args) > 4 else (1, 1)
    if steps is None or spread is None or min(steps) < 1:
        return None
    reach = [(size - 1) * step + 1 for size, step in zip(kernel[2:], spread, strict=True)]
    padding = _padding(args[3], reach, steps, data[2:])
    if padding is None:
        return None
    height, width = (
        (size + pad - length) // step + 1
        for size, pad, length, step in zip(data[2:], padding, reach, steps, strict=True)
    )
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
        if isinstance(entity, list) and len(entity) == 3 and entity[:2] == [name, "sp"]:
            size = entity[2][-1] if isinstance(entity[2], (list, tuple)) and entity[2] else None
            return size if _is_int(size) and size > 0 else None
    return None


def _shape(arg: Any) -> tuple[int, ...] | None:
    if not (isinstance(arg, (list, tuple)) and len(arg) == 3 and arg[0] == "TENSOR"):
        return None
    sizes = arg[1]
    if not (isinstance(sizes, (list, tuple)) and len(sizes) == 4 and all(map(_is_int, sizes))):
        return None
    return tuple(sizes)


def _pair(value: Any) -> tuple[int, int] | None:
    values = value if isinstance(value, (list, tuple)) else (value, value)
    return (values[0], values[1]) if len(values) == 2 and all(map(_is_int, values)) else None


def _padding(
    value: Any, reach: Sequence[int], steps: Sequence[int], sizes: Sequence[int]
) -> tuple[int, int] | None:
    """Return the padding of height and width, both sides together; top, left, bottom, right where there are four."""
    if value == "VALID":
        return (0, 0)
    if value == "SAME":
        needed = [
            max((-(-size // step) - 1) * step + length - size, 0)
            for size, length, step in zip(sizes, reach, steps, strict=True)
        ]
        return (needed[0], needed[1])
    if isinstance(value, (list, tuple)) and len(value) == 4 and all(map(_is_int, value)):
        return (value[0] + value[2], value[1] + value[3])
    sides = _pair(value)
    return None if sides is None else (2 * sides[0], 2 * sides[1])


def _is_int(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
