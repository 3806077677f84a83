"""From the operators of an imported network to fused functions that TVM compiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from tencost.networks.bindings import call_if
from tencost.networks.chains import cut_chains

_FUSION = ("FoldConstant", "FuseOps", "FuseTIR")


def fuse(mod: Any) -> Any:
    """Lower and fuse as TVM's own `static_shape_tuning` pipeline does before it tunes, what it gets wrong set right."""
    from tvm import relax

    mod = _repaired(mod)
    mod = relax.transform.DecomposeOpsForInference()(mod)
    mod = relax.transform.CanonicalizeBindings()(mod)  # else a tuple keeps ReLU out of the fusion
    mod = relax.transform.LegalizeOps()(mod)
    mod = cut_chains(relax.transform.AnnotateTIROpPattern()(mod))
    for name in _FUSION:
        mod = getattr(relax.transform, name)()(mod)
    return mod


_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
_SINGLE = 2.0**-23


@dataclass(frozen=True)
class Precision:
    """How coarsely the values are stored that an output is computed from.

    Attributes:
        epsilon: the relative step of the coarsest type of floats.
        is_quantized: floats are stored as integers of 8 bits, whose step is the same for small and large values.
    """

    epsilon: float = _SINGLE
    is_quantized: bool = False

    @property
    def tolerance(self) -> float:
        """The difference that is accepted, relative to a value: eight steps of a half type, 1e-4 of float32.

        Quantized, it is eight steps of 256: a sum that another runtime adds in another order may be rounded to the
        next step.
        """
        return max(1e-4, 8 * self.epsilon * (self.epsilon > _SINGLE), 2.0**-5 * self.is_quantized)

    def coarser(self, other: Precision) -> Precision:
        """Combine with the precision of another operand."""
        return Precision(max(self.epsilon, other.epsilon), self.is_quantized or other.is_quantized)


def precisions_of(mod: Any) -> list[Precision]:
    """Return the precision of each output of a fused network: of the functions that it is computed with, no others."""
    from tvm import relax
    from tvm.relax.analysis import all_global_vars, free_vars

    main = mod["main"]
    of_function = {
        name: _precision_of(function)
        for name, function in mod.functions.items()
        if not name.same_as(mod.get_global_var("main"))
    }
    of_variable: dict[Any, Precision] = {}

    def of(value: Any) -> Precision:
        precision = Precision()
        for name in all_global_vars(value):
            precision = precision.coarser(of_function[name])
        for variable in free_vars(value):
            precision = precision.coarser(of_variable.get(variable, Precision()))
        return precision

    values: dict[Any, Any] = {}
    for block in main.body.blocks:
        for binding in block.bindings:
            values[binding.var] = binding.value
            of_variable[binding.var] = of(binding.value)
    returned = main.body.body
    while returned in values and isinstance(values[returned], relax.Tuple | relax.Var):
        returned = values[returned]
    if isinstance(returned, relax.Tuple):
        return [of(field) for field in returned.fields]
    return [of(returned)] * len(getattr(main.ret_ty, "fields", [None]))


def _precision_of(function: Any) -> Precision:
    """Return the precision of the values that a function stores."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    precisions = [Precision()]

    def visit(store: Any) -> None:
        kind = str(store.buffer.dtype)
        source = store.value.value if isinstance(store.value, tirx.Cast) else None
        is_quantized = (
            kind in ("int8", "uint8") and source is not None and "float" in str(source.ty.dtype)
        )
        precisions.append(Precision(_EPSILON.get(kind, _SINGLE), is_quantized))

    structural_walk(function, (tirx.BufferStore, visit))
    return reduce(Precision.coarser, precisions)


def _repaired(mod: Any) -> Any:
    from tvm import relax
    from tvm.relax.expr_functor import PyExprMutator, mutator

    pools = [f"relax.nn.{kind}_pool{rank}d" for kind in ("avg", "max") for rank in (1, 2, 3)]
    repairs = {"relax.cumsum": _counted} | dict.fromkeys(pools, _clipped)
    repairs |= dict.fromkeys(("relax.argmax", "relax.argmin"), _a_place)
    repairs |= dict.fromkeys(("relax.equal", "relax.not_equal"), _no_number)
    repairs |= dict.fromkeys(_QUOTIENTS, _divisible)

    @mutator
    class Repair(PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            call = self.visit_expr_post_order(call)
            name = getattr(call.op, "name", "")
            if name in ("relax.max", "relax.min"):
                return _extreme(self.builder_, call)
            if name == "relax.astype":
                return _narrowed(self.builder_, call)
            return repairs[name](call) if name in repairs else call

    repaired = Repair(mod)
    for name, function in mod.functions.items():
        if isinstance(function, relax.Function):
            repaired.builder_.update_func(name, repaired.visit_expr(function))
    return repaired.builder_.get()


def _counted(call: Any) -> Any:
    """Sum truth values up as integers, as PyTorch does; TVM's frontend keeps them truth values."""
    from tvm import relax

    data, attrs = call.args[0], call.attrs
    if data.ty.dtype != "bool" or call.ty.dtype != "bool":
        return call
    axis = None if attrs.axis is None else int(attrs.axis)
    return relax.op.cumsum(data, axis, "int64", bool(attrs.exclusive))


def _a_place(call: Any) -> Any:
    """Have argmax of nothing but -inf be 0: TVM leaves the place -1, which nothing is at."""
    from tvm import relax

    if not str(call.args[0].ty.dtype).startswith("float"):
        return call
    return relax.op.maximum(call, relax.const(0, str(call.ty.dtype)))


def _extreme(builder: Any, call: Any) -> Any:
    """Begin a maximum of floats with -inf, a minimum with inf: TVM begins with the largest finite number.

    So an attention mask's row of -inf, or no value at all, has its extreme.
    """
    from tvm import te, tirx

    data, attrs = call.args[0], call.attrs
    if not str(call.ty.dtype).startswith("float"):
        return call
    rank = len(data.ty.shape)
    axes = list(range(rank)) if attrs.axis is None else [int(axis) % rank for axis in attrs.axis]
    keep, largest = bool(attrs.keepdims), call.op.name == "relax.max"
    better = tirx.max if largest else tirx.min
    reducer = te.comm_reducer(
        lambda first, second: better(first, second),
        lambda dtype: tirx.const(-math.inf if largest else math.inf, dtype),
    )

    def reduced(values: Any) -> Any:
        over = {axis: te.reduce_axis((0, values.shape[axis]), f"k{axis}") for axis in axes}
        remaining = [axis for axis in range(rank) if keep or axis not in over]
        shape = [1 if axis in over else values.shape[axis] for axis in remaining]

        def value(*places: Any) -> Any:
            index = dict(zip(remaining, places, strict=True)) | over
            return reducer(values(*(index[axis] for axis in range(rank))), axis=[*over.values()])

        return te.compute(shape, value, name="extreme")

    primfunc = "max" if largest else "min"
    return builder.call_te(reduced, data, primfunc_name_hint=primfunc)


_NARROW = ("int8", "uint8", "int16", "uint16")


def _narrowed(builder: Any, call: Any) -> Any:
    """Make floats integers of few bits by way of 32, whose last bits they are then, as in PyTorch and ONNX Runtime.

    LLVM leaves open what becomes of a number outside the type: 70000 may stay 70000. Clipped numbers lie inside.
    """
    from tvm import relax

    kind = str(call.ty.dtype)
    if kind not in _NARROW or not str(call.args[0].ty.dtype).startswith(("float", "bfloat")):
        return call
    value = call.args[0]
    is_var = isinstance(value, relax.Var)
    clip = call_if("relax.clip", builder.lookup_binding(value)) if is_var else None
    if clip is not None:
        low, high = (float(limit.value) for limit in clip.args[1:])
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return call
    return relax.op.astype(builder.emit(relax.op.astype(value, "int32")), kind)


_QUOTIENTS = ("relax.divide", "relax.floor_divide", "relax.floor_mod", "relax.mod")


def _divisible(call: Any) -> Any:
    """Have integers divided by 0 be 0, as in NumPy, and the least by -1 itself: CPUs end the process at either.

    ONNX Runtime raises an error for the first, and is ended by the second. Constants without either stay as they are.
    """
    from tvm import relax

    op, kind = relax.op, str(call.ty.dtype)
    number, divisor = call.args
    if "int" not in kind or not hasattr(divisor.ty, "shape") or _is_harmless(divisor):
        return call
    is_zero = op.equal(divisor, relax.const(0, kind))
    is_opposite = None if kind.startswith("u") else op.equal(divisor, relax.const(-1, kind))
    fatal = is_zero if is_opposite is None else op.logical_or(is_zero, is_opposite)
    safe = op.where(fatal, relax.const(1, kind), divisor)
    quotient = relax.Call(call.op, [number, safe], call.attrs)
    if call.op.name in ("relax.floor_mod", "relax.mod"):
        return quotient  # what 1 leaves is 0, too
    if is_opposite is not None:
        quotient = op.where(is_opposite, op.negative(number), quotient)
    return op.where(is_zero, relax.const(0, kind), quotient)


def _is_harmless(divisor: Any) -> bool:
    """Say whether a divisor is a constant that is 0 or -1 nowhere."""
    from tvm import ir

    return (
        isinstance(divisor, ir.GenericConst) and not np.isin(divisor.value.numpy(), (0, -1)).any()
    )


def _no_number(call: Any) -> Any:
    """Replace x != x and x == x of floats by isnan: TVM folds them to false and true, which is wrong for NaN."""
    from tvm import relax

    left, right = call.args
    if not left.same_as(right) or "float" not in str(left.ty.dtype):
        return call
    is_nan = relax.op.isnan(left)
    return is_nan if call.op.name == "relax.not_equal" else relax.op.logical_not(is_nan)


def _clipped(call: Any) -> Any:
    """Let a pooling window that is larger than its padded input end with it.

    transformers' EfficientNet pools 7 x 7 pixels with a window of 1280 x 1280: the values are those of 7 x 7, but TVM
    pads the input to the window and reads all of that. Such a window has one position, else PyTorch and ONNX refuse it;
    it begins with the padding and is divided by what it covers of input and padding. So does the clipped one.
    """
    from tvm import relax

    attrs = call.attrs
    axes = [axis for axis, letter in enumerate(str(attrs.layout)) if letter in "DHW"]
    sizes = call.args[0].ty.shape
    shape = [sizes[axis] for axis in axes] if isinstance(sizes, relax.ShapeExpr) else []
    if not shape or not all(hasattr(size, "value") for size in shape):
        return call
    windows, strides = [list(map(int, sizes)) for sizes in (attrs.pool_size, attrs.strides)]
    padding, rank = [int(size) for size in attrs.padding], len(axes)
    for index, size in enumerate(shape):
        whole = int(size) + padding[index] + padding[index + rank]
        if windows[index] > whole and int(attrs.dilation[index]) == 1:
            windows[index], strides[index] = whole, 1
    if windows == list(map(int, attrs.pool_size)):
        return call
    name = call.op.name.rpartition(".")[2]
    ceil_mode = bool(attrs.ceil_mode) and strides != [1] * rank
    return getattr(relax.op.nn, name)(
        call.args[0], windows, strides, padding, list(map(int, attrs.dilation)), ceil_mode,
        bool(attrs.count_include_pad), str(attrs.layout), str(attrs.out_layout),
    )  # fmt: skip


def compilable(mod: Any) -> Any:
    """Write arithmetic on truth values, and casts, in a way that TVM compiles; other functions stay as they are.

    TVM 0.27's code generator takes a bool for a floating-point number where it compares, adds or multiplies, and LLVM
    refuses that: `equal` of two masks is enough (gpt2, llama). Numbers of one byte are compared instead, and sums and
    products of truth values are what PyTorch takes them for.

    It computes bfloat16 in float32 and rounds where a tensor is stored: a cast to bfloat16 that is read at once, as
    after fusion, would round nothing. So the rounding is written out.
    """
    from tvm import IRModule, tirx
    from tvm_ffi import structural_map

    def is_bool(value: Any) -> bool:
        return str(value.ty.dtype) == "bool"

    def compared(node: Any) -> Any:
        if not is_bool(node.a):
            return node
        return type(node)(tirx.Cast("int8", node.a), tirx.Cast("int8", node.b))

    def logical(operator: Any) -> Any:
        return lambda node: operator(node.a, node.b) if is_bool(node) else node

    def cast(node: Any) -> Any:
        return _rounded(node) if str(node.ty.dtype) == "bfloat16" else node

    callbacks = [
        (tirx.Cast, cast),
        ((tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE), compared),
        ((tirx.Mul, tirx.Min), logical(tirx.And)),
        ((tirx.Add, tirx.Max), logical(tirx.Or)),
    ]
    changed = {
        name: compiled
        for name, function in mod.functions.items()
        if isinstance(function, tirx.PrimFunc)
        and not (compiled := structural_map(function, callbacks)).same_as(function)
    }
    return IRModule({**mod.functions, **changed}, attrs=mod.attrs) if changed else mod


def _rounded(cast: Any) -> Any:
    """Return a cast to bfloat16 of a number that is one already: to the nearest, of two the even one."""
    from tvm import tirx

    def const(value: int) -> Any:
        return tirx.const(value, "uint32")

    bits = tirx.reinterpret("uint32", tirx.Cast("float32", cast.value))
    is_number = (bits & const(0x7FFFFFFF)) <= const(0x7F800000)
    nearest = bits + const(0x7FFF) + ((bits >> const(16)) & const(1))
    quiet = bits | const(0x400000)
    rounded = tirx.Select(is_number, nearest, quiet) & const(0xFFFF0000)
    return tirx.Cast("bfloat16", tirx.reinterpret("float32", rounded))
