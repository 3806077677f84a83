"""The inputs of a network from a file: dynamic dimensions settled, arrays drawn."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from tencost.config import NetworkConfig
from tencost.errors import ConfigError

Array = npt.NDArray[Any]

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@dataclass(frozen=True)
class DeclaredInput:
    """An input as a network's file declares it.

    Attributes:
        dims: its dimensions: a number where the file fixes one, the dimension's name where it is dynamic, "" for one
            without a name; None if the file does not say how many there are.
        dtype: NumPy name of its type.
        high: whole numbers that nothing else is said about are drawn from [0, high).
    """

    dims: tuple[int | str, ...] | None
    dtype: str
    high: int = 2


def option_name(name: str) -> str:
    """Return an input's name as it is written in network.inputs.<name>: other than word characters become "_"."""
    return re.sub(r"\W", "_", name)


def resolve_shapes(
    config: NetworkConfig, declared: dict[str, DeclaredInput]
) -> dict[str, tuple[int, ...]]:
    """Settle the dynamic dimensions of all inputs.

    What network.inputs.<name>.shape says counts first and holds for dimensions of the same name in other inputs; else
    the first dimension is network.batch and the others are network.size, if that is given.

    Raises:
        ConfigError: a dimension that nothing settles, a shape that the file contradicts, an unknown input, or a
            batch or size that no input takes.
    """
    requested = _requested(config, declared)
    sizes: dict[str, int] = {}
    for name, shape in requested.items():
        _settle(config, name, declared[name], shape, sizes)
    for name, item in declared.items():
        if item.dims and name not in requested and isinstance(item.dims[0], str) and item.dims[0]:
            sizes.setdefault(item.dims[0], config.batch)
    shapes = {
        name: requested[name] if name in requested else _shape(config, name, item, sizes)
        for name, item in declared.items()
    }
    _check_taken(config, shapes)
    return shapes


def open_dimension(config: NetworkConfig, declared: dict[str, DeclaredInput]) -> str:
    """Return which setting chooses the one dimension that a file leaves open: ``batch``, of the first, or ``size``.

    What network.inputs or network.size settles is not open; beside another dimension the first one is of one batch.

    Raises:
        ConfigError: none is open, or several; they are named.
    """
    given = {name for name in declared if {name, option_name(name)} & set(config.inputs)}
    settled = {dim for name in given for dim in declared[name].dims or () if dim}
    first: set[str] = set()
    others: set[str] = set()
    for name in declared.keys() - given:
        for axis, dim in enumerate(declared[name].dims or ()):
            if isinstance(dim, str) and dim not in settled:
                (others if axis else first).add(dim or f"dimension {axis} of {name}")
    others = set() if config.size else others - first
    if len(others) > 1 or not (first or others):
        raise ConfigError(
            f"network.buckets: expected one dimension that {config.path} leaves open, found "
            f"{', '.join(sorted(others)) or 'none'}. "
            + (
                "Settle the others: network.inputs.<name>.shape=[...]"
                if others
                else "Export it with that dimension dynamic"
            )
        )
    if not others and config.batch != 1:
        raise ConfigError(
            f"network.buckets={config.buckets}: expected them alone, as the first dimension is all that {config.path} "
            f"leaves open; found network.batch={config.batch}, too. Leave one of them out"
        )
    return "size" if others else "batch"


def batch_notes(config: NetworkConfig, declared: dict[str, DeclaredInput]) -> list[str]:
    """Return what a user may not know of a dynamic batch that nothing was said about: it is 1."""
    names = [
        name
        for name, item in declared.items()
        if item.dims
        and isinstance(item.dims[0], str)
        and not {name, option_name(name)} & set(config.inputs)
    ]
    if config.batch != 1 or config.buckets or not names:
        return []
    return [
        f"the first dimension of {', '.join(names)} is dynamic in {config.path}: it is built for 1. For another batch: "
        "network.batch=8; to compile several into one library: network.buckets=[1,8]"
    ]


def _requested(
    config: NetworkConfig, declared: dict[str, DeclaredInput]
) -> dict[str, tuple[int, ...]]:
    by_option = {option_name(name): name for name in declared} | {name: name for name in declared}
    requested = {}
    for key, item in config.inputs.items():
        if key not in by_option:
            raise ConfigError(
                f"network.inputs: network {config.name!r} has the inputs "
                f"{', '.join(option_name(name) for name in declared)}; found {key!r}"
            )
        requested[by_option[key]] = tuple(int(size) for size in item.shape)
    return requested


def _settle(
    config: NetworkConfig,
    name: str,
    item: DeclaredInput,
    shape: tuple[int, ...],
    sizes: dict[str, int],
) -> None:
    """Check a given shape against the file and note the dimensions that it settles."""
    dims = shape if item.dims is None else item.dims
    settled = dict(sizes)
    agrees = len(dims) == len(shape) and all(size > 0 for size in shape)
    if agrees:
        for dim, size in zip(dims, shape, strict=True):
            if isinstance(dim, int):
                agrees = agrees and dim == size
            elif dim:
                agrees = agrees and settled.setdefault(dim, size) == size
    if not agrees:
        raise ConfigError(
            f"network.inputs.{option_name(name)}.shape: network {config.name!r} expected {_pattern(dims, sizes)}, "
            f"found {list(shape)}"
        )
    sizes.update(settled)


def _shape(
    config: NetworkConfig, name: str, item: DeclaredInput, sizes: dict[str, int]
) -> tuple[int, ...]:
    option = f"network.inputs.{option_name(name)}.shape"
    if item.dims is None:
        raise ConfigError(
            f"network {config.name!r}: input {name} has no shape in its file. Give one: {option}=[{config.batch},...]"
        )
    shape = []
    for axis, dim in enumerate(item.dims):
        size = sizes.get(dim) if isinstance(dim, str) else dim
        if size is None:
            size = config.batch if axis == 0 else config.size
        if not size:
            called = f" ({dim})" if dim else ""
            raise ConfigError(
                f"network {config.name!r}: dimension {axis}{called} of input {name} is dynamic; expected a number for "
                f"it, found none. Give the input's shape: {option}={_pattern(item.dims, sizes, config.batch)}, or "
                "network.size=<number> for all such dimensions; to compile several sizes: network.buckets=[16,64]"
            )
        if size < 0:
            raise ConfigError(
                f"network {config.name!r}: expected a size of dimension {axis} of input {name}, found {size} in its "
                "file. Export it with a number, or with that dimension dynamic"
            )
        shape.append(size)
    return tuple(shape)


def _pattern(dims: tuple[int | str, ...], sizes: dict[str, int], batch: int | None = None) -> str:
    words = []
    for axis, dim in enumerate(dims):
        size = sizes.get(dim) if isinstance(dim, str) else dim
        if size is None and axis == 0:
            size = batch
        words.append(f"<{dim or 'number'}>" if size is None else str(size))
    return f"[{','.join(words)}]"


def _check_taken(config: NetworkConfig, shapes: dict[str, tuple[int, ...]]) -> None:
    listed = ", ".join(f"{option_name(name)}={list(shape)}" for name, shape in shapes.items())
    advice = "Export it with that dimension dynamic, or leave the option out"
    if config.batch != 1 and not any(shape[:1] == (config.batch,) for shape in shapes.values()):
        raise ConfigError(
            f"network.batch={config.batch}: no input of network {config.name!r} takes it ({listed}). {advice}"
        )
    if config.size and not any(config.size in shape[1:] for shape in shapes.values()):
        raise ConfigError(
            f"network.size={config.size}: no input of network {config.name!r} takes it ({listed}). {advice}"
        )


def draw_inputs(
    config: NetworkConfig,
    declared: dict[str, DeclaredInput],
    shapes: dict[str, tuple[int, ...]],
) -> dict[str, Array]:
    """Draw the inputs of a file's network with the configured seed: normal floats, integers below `high`.

    Integers begin with 0 and end with the largest, high - 1, so that the ends of what they index are read. Masks that
    nothing is said about hide the last quarter of their last axis: a row that is hidden altogether is not a number.

    Raises:
        ConfigError: an input of a type that cannot be drawn.
    """
    rng = np.random.default_rng(config.seed)
    arrays = {}
    for name, item in declared.items():
        settings = config.inputs.get(name, config.inputs.get(option_name(name)))
        if item.dtype == "bool" or (
            settings is None and item.dtype in _INTEGERS and "mask" in name.lower()
        ):
            arrays[name] = _mask(shapes[name], item.dtype)
        else:
            high = settings.high if settings else item.high
            arrays[name] = draw_array(rng, shapes[name], item.dtype, high, f"input {name}")
            if item.dtype in _INTEGERS and arrays[name].size > 1:
                arrays[name].flat[0], arrays[name].flat[-1] = 0, high - 1
    return arrays


def _mask(shape: tuple[int, ...], dtype: str) -> Array:
    mask = np.ones(shape, dtype)
    if shape and shape[-1] > 1:
        mask[..., -max(1, shape[-1] // 4) :] = 0
    return mask


def draw_array(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, high: int, where: str
) -> Array:
    """Draw one array.

    Raises:
        ConfigError: a type that cannot be drawn, or more numbers than this host has memory for.
    """
    size, memory = 4 * math.prod(shape), psutil.virtual_memory().total
    if size > memory:
        raise ConfigError(
            f"{where}: expected a shape that fits into the {memory / 1e9:.0f} GB of this host's memory, found "
            f"{list(shape)}. Choose a smaller one"
        )
    if dtype in _FLOATS:
        return rng.standard_normal(shape, dtype=np.float32).astype(dtype, copy=False)
    if dtype in _INTEGERS:
        return rng.integers(0, high, size=shape, dtype=dtype)
    raise ConfigError(
        f"{where}: its type must be one of {', '.join((*_FLOATS, *_INTEGERS))}; found {dtype!r}"
    )


def range_advice(inputs: dict[str, Array]) -> str:
    """Return what an error adds for inputs of whole numbers: the range that was drawn, and how to choose another."""
    ids = [name for name, array in inputs.items() if array.dtype.kind in "iu" and array.size]
    if not ids:
        return ""
    ranges = ", ".join(f"{name} from {inputs[name].min()} to {inputs[name].max()}" for name in ids)
    option = f"network.inputs.{option_name(ids[0])}"
    return f". Drawn were {ranges}; for another range: {option}.shape=[...] {option}.high=<number>"
