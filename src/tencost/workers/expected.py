"""What a workload computes on fixed inputs, and whether a program computes the same.

A schedule must not change what its workload computes, but it may: a tensor intrinsic that lies about itself, a
primitive that was told to assume too much, a defect of the compiler. Such a program is often the fastest of all. Its
outputs are compared with those of the unscheduled workload, which both get the same inputs: floats in [-1, 1) (both
signs, so that nothing hides behind a ReLU; in [0.1, 1) where the workload's own outputs would not be finite then: a
variance below 0), integers below 8, and 0 up to the axis' length for integers that are an index.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock

from tencost.programs.magnitudes import largest_of_kind
from tencost.writing import whole_file

Array = npt.NDArray[Any]
Run = Callable[[Sequence[Array]], Sequence[Array]]
"""Runs the unscheduled workload: all arguments before -> all arguments after."""

_SEED = 20
_INTEGERS_BELOW = 8
_FACTOR = 16.0
_MAX_TOLERANCE = 0.1


@dataclass(frozen=True)
class Reference:
    """What a program has to compute.

    Attributes:
        workload: file with the unscheduled module (TVM JSON).
        expected: file for its outputs (.npz); made when it is missing.
    """

    workload: Path
    expected: Path


@dataclass(frozen=True)
class OutputDifference:
    """How far a program's outputs are from its workload's.

    Attributes:
        argument: index of the argument that differs most, compared with what is tolerated.
        max_abs: its largest absolute difference; NaN where one is finite and the other is not.
        max_rel: of a float: its difference divided by the largest absolute value of its kind, see
            :mod:`tencost.programs.magnitudes`; of an integer: its difference.
        tolerance: the largest max_rel that is accepted.
        accepted: whether every argument is within its tolerance.
    """

    argument: int
    max_abs: float
    max_rel: float
    tolerance: float
    accepted: bool

    def __str__(self) -> str:
        return (
            f"argument {self.argument} differs from the unscheduled workload's by {self.max_abs:.3g} "
            f"({self.max_rel:.3g} of its largest value; {self.tolerance:.2g} is accepted)"
        )


@dataclass(frozen=True)
class Facts:
    """What decides about a workload's inputs and tolerance.

    Attributes:
        dtypes: of the arguments.
        shapes: of the arguments.
        below: an integer argument's values are below this.
        reduction: length of the longest reduction, 1 for none.
        epsilon: machine epsilon of the coarsest float type that values pass through; 0 without floats.
        positive: floats are in [0.1, 1) instead of [-1, 1).
    """

    dtypes: list[str]
    shapes: list[list[int]]
    below: list[int]
    reduction: int
    epsilon: float
    positive: bool = False

    @property
    def indices(self) -> list[int]:
        """Return the arguments that are, or become, an index into others."""
        return [n for n, below in enumerate(self.below) if below != _INTEGERS_BELOW]

    @property
    def tolerance(self) -> float:
        """Largest accepted difference of floats, relative to the largest value of the same kind.

        A schedule changes the order of a sum and thus its rounding. Rounding errors of n terms of both signs add up
        like a random walk, to some 0.1 sqrt(n) epsilon of the largest sum; 16 sqrt(n) epsilon lets no rounding count
        as wrong, while a term left out of a sum changes it by some 1 / (4 sqrt(n)) of the largest. Capped for half
        precision, where that would accept anything.
        """
        return min(_MAX_TOLERANCE, _FACTOR * self.epsilon * math.sqrt(self.reduction))


@dataclass(eq=False)
class Expected:
    """A workload's inputs and outputs.

    Attributes:
        facts: how inputs are drawn, and what is tolerated.
        outputs: what the arguments hold afterwards, by index; those that are not here stay as they were.
    """

    facts: Facts
    outputs: dict[int, Array]
    _scales: dict[int, Array] = field(default_factory=dict, init=False)

    @cached_property
    def inputs(self) -> list[Array]:
        """All arguments before the call; outputs hold something, so that one left unwritten is found."""
        return draw_arguments(self.facts)

    def difference(self, after: Sequence[Array]) -> OutputDifference:
        """Compare all arguments after a program has run."""
        return max(map(self._difference, range(len(after)), after), key=_badness)

    def _difference(self, index: int, after: Array) -> OutputDifference:
        expected = self.outputs.get(index, self.inputs[index])
        after, expected = (
            _plain(array).astype(np.float64, copy=False) for array in (after, expected)
        )
        is_float = "float" in self.facts.dtypes[index]
        # A float that is rounded to an integer may fall on the other side.
        tolerance = self.facts.tolerance if is_float else float(self.facts.epsilon > 0)
        same = (after == expected) | (np.isnan(after) & np.isnan(expected))
        if same.all():
            return OutputDifference(index, 0.0, 0.0, tolerance, accepted=True)
        with np.errstate(invalid="ignore"):
            distance = np.where(same, 0.0, np.abs(after - expected))
        if is_float and index not in self._scales:
            self._scales[index] = largest_of_kind(expected)
        relative = distance / self._scales[index] if is_float else distance
        largest = float(np.max(relative))
        return OutputDifference(
            index, float(np.max(distance)), largest, tolerance, accepted=largest <= tolerance
        )

    def save(self, path: Path) -> None:
        """Write everything but the inputs, which are drawn again; in one step, as others read it."""
        arrays: dict[str, Any] = {f"arg{n}": _plain(array) for n, array in self.outputs.items()}
        arrays["facts"] = np.array(json.dumps(asdict(self.facts)))
        with whole_file(path) as temporary:
            np.savez(temporary, **arrays)

    @classmethod
    def load(cls, path: Path) -> Expected:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            facts = Facts(**json.loads(str(file["facts"])))
            outputs = {int(name[3:]): file[name] for name in file.files if name != "facts"}
        return cls(facts, outputs)


def make_expected(module: Any, run: Run) -> Expected:
    """Run a workload on inputs that suit it.

    Args:
        module: IRModule of the workload, one function ``main``.
        run: runs it as it is.

    Raises:
        ValueError: arguments of a type that cannot be drawn, or a workload whose outputs are not finite.
    """
    facts = read_facts(module)
    for positive in (False, True):
        facts = replace(facts, positive=positive)
        inputs = draw_arguments(facts)
        changed = {
            index: array
            for index, array in enumerate(run(inputs))
            if not np.array_equal(array, inputs[index])
        }
        finite = [float(np.isfinite(_plain(array)).mean()) for array in changed.values()]
        if min(finite, default=1.0) == 1.0:
            break
    if min(finite, default=1.0) == 0.0:
        raise ValueError("the workload's own output is nowhere finite on random inputs")
    if not changed:
        raise ValueError("the workload writes to none of its arguments")
    return Expected(facts, changed)


def draw_arguments(facts: Facts) -> list[Array]:
    """Draw all arguments; the same ones in every process.

    Raises:
        ValueError: a type that NumPy does not have.
    """
    generator = np.random.default_rng(_SEED)
    low = 0.1 if facts.positive else -1.0
    arrays: list[Array] = []
    for dtype, shape, below in zip(facts.dtypes, facts.shapes, facts.below, strict=True):
        if dtype == "bool":
            arrays.append(generator.integers(0, 2, size=shape).astype(bool))
        elif "int" in dtype and "float" not in dtype:
            arrays.append(generator.integers(0, below, size=shape).astype(dtype))
        else:
            unit = generator.random(shape, dtype=np.float32)
            arrays.append((unit * np.float32(1.0 - low) + np.float32(low)).astype(_float(dtype)))
    return arrays


def read_facts(module: Any) -> Facts:
    """Read a workload's arguments, reductions and types.

    Raises:
        ValueError: other than tensor arguments of fixed shapes.
    """
    function = module["main"]
    if any(not isinstance(argument.ty, tirx.BufferType) for argument in function.params):
        raise ValueError("expected tensor arguments only")
    dtypes = [str(argument.dtype) for argument in function.params]
    shapes = [[int(extent) for extent in argument.shape] for argument in function.params]
    reductions, floats = [1], [dtype for dtype in dtypes if "float" in dtype]

    def note(block: Any) -> None:
        extents = [int(axis.dom.extent) for axis in block.iter_vars if int(axis.iter_type) == 2]
        reductions.append(math.prod(extents))
        allocated = (str(buffer.dtype) for buffer in block.alloc_buffers)
        floats.extend(dtype for dtype in allocated if "float" in dtype)

    tvm_ffi.structural_walk(function, (SBlock, note))
    epsilon = max((_epsilon(dtype) for dtype in floats), default=0.0)
    return Facts(dtypes, shapes, _bounds(function), max(reductions), epsilon)


def _bounds(function: Any) -> list[int]:
    """Return below which each argument's integers stay: 1 (only zeros) where an index is computed from them."""
    stores: list[tuple[Any, Any]] = []
    uses: list[tuple[Any, int]] = []

    def note(source: Any, access: Any) -> None:
        uses.extend(zip(access.indices, map(int, source.shape), strict=True))

    def note_store(store: Any) -> None:
        note(store.buffer, store)
        stores.append((store.buffer, store.value))

    callbacks = [(TensorLoad, lambda load: note(load.source, load)), (tirx.BufferStore, note_store)]
    tvm_ffi.structural_walk(function, callbacks)
    bounds = []
    for argument in function.params:
        carriers, is_plain = _carriers(argument, stores)
        indexed = [
            (index, extent)
            for index, extent in uses
            if any(_loads(index, carrier) for carrier in carriers)
        ]
        is_plain = is_plain and all(_is_load(index) for index, _ in indexed)
        extents = [extent if is_plain else 1 for _, extent in indexed]
        bounds.append(min(extents, default=_INTEGERS_BELOW))
    return bounds


def _carriers(argument: Any, stores: Sequence[tuple[Any, Any]]) -> tuple[list[Any], bool]:
    """Return the buffers that hold integers made from an argument's, and whether they are all mere copies."""
    carriers, is_plain, grew = [argument], True, "int" in str(argument.dtype)
    while grew:
        grew = False
        for buffer, value in stores:
            if "int" not in str(buffer.dtype) or any(map(buffer.same_as, carriers)):
                continue
            if any(_loads(value, carrier) for carrier in carriers):
                carriers.append(buffer)
                is_plain, grew = is_plain and _is_load(value), True
    return carriers, is_plain


def _loads(expression: Any, buffer: Any) -> bool:
    loads: list[bool] = []
    tvm_ffi.structural_walk(
        expression, (TensorLoad, lambda load: loads.append(load.source.same_as(buffer)))
    )
    return any(loads)


def _is_load(expression: Any) -> bool:
    """Say whether it is a value as it was loaded: converted or clipped at most."""
    while isinstance(expression, (tirx.Cast, tirx.Min, tirx.Max)):
        if isinstance(expression, tirx.Cast):
            expression = expression.value
        elif isinstance(expression.b, tirx.IntImm):
            expression = expression.a
        elif isinstance(expression.a, tirx.IntImm):
            expression = expression.b
        else:
            return False
    return isinstance(expression, TensorLoad)


def _badness(difference: OutputDifference) -> float:
    """Return the difference as a multiple of what is tolerated."""
    if math.isnan(difference.max_rel):
        return math.inf
    if difference.tolerance == 0:
        return math.inf if difference.max_rel else 0.0
    return difference.max_rel / difference.tolerance


def _plain(array: Array) -> Array:
    """Return floats that only ml_dtypes has as float32: NumPy cannot store or compare them."""
    return array if array.dtype.kind in "biuf" else array.astype(np.float32)


def _float(dtype: str) -> Any:
    try:
        return np.dtype(getattr(ml_dtypes, dtype, dtype))
    except TypeError as error:
        raise ValueError(f"no random values of type {dtype!r} can be made") from error


def _epsilon(dtype: str) -> float:
    info: Any = ml_dtypes.finfo
    return float(info(_float(dtype)).eps)
