"""Ids that tables are read and overwritten at, checked at each call: beyond a table lies foreign memory.

A small function of its own copies the ids, counts those below 0 from the table's end, and ends the call with an error
where one lies outside. The operator behind it then asks nothing any more. Constants are checked on import: the
framework that computes the expected outputs refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from tencost.networks.bindings import bindings_of, call_if
from tencost.networks.sample_rules import count_of, static_shape


def _along(call: Any) -> list[int]:
    shape = static_shape(call.args[0])
    axis = call.attrs.axis
    return [count_of(call.args[0]) if axis is None else shape[int(axis)]] if shape else []


def _taken(call: Any) -> list[int]:
    return _along(call) if str(call.attrs.mode) == "fast" else []  # the others wrap or clip


def _coordinates(first: Callable[[Any], int]) -> Callable[[Any], list[int]]:
    def sizes(call: Any) -> list[int]:
        begin, count = first(call), (static_shape(call.args[1]) or (0,))[-1]
        return list(static_shape(call.args[0])[begin : begin + count])

    return sizes


_SIZES: dict[str, Callable[[Any], list[int]]] = {
    "relax.take": _taken,
    "relax.gather_elements": _along,
    "relax.gather_nd": _coordinates(lambda call: int(call.attrs.batch_dims)),
    "relax.scatter_elements": _along,
    "relax.scatter_nd": _coordinates(lambda _: 0),
}
"""Operator whose second argument is ids -> how many places there are, for each column of the ids or for all."""
_TUPLES = ("relax.index_tensor", "relax.index_put")
"""Operators that take ids of each axis."""
_OPAQUE = 8
"""TVM's kind of a function that no other is fused with."""
_MOVES = (
    "relax.astype",
    "relax.expand_dims",
    "relax.reshape",
    "relax.squeeze",
    "relax.strided_slice",
)


def with_checked_ids(mod: Any, inputs: Sequence[str]) -> Any:
    """Return a network, its operators not lowered yet, that ends a call with an IndexError for ids outside a table.

    Args:
        mod: Relax module; ``main`` takes the inputs, then the weights.
        inputs: what a caller calls the inputs, for the errors.
    """
    from tvm import ir, relax
    from tvm.relax.expr_functor import PyExprMutator, mutator

    main = mod["main"]
    bindings = bindings_of(main)
    called = dict(zip(main.params, inputs, strict=False))

    @mutator
    class Check(PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            name = getattr(call.op, "name", "")
            if name not in (*_SIZES, *_TUPLES):
                return self.visit_expr_post_order(call)
            data, ids, *others = call.args
            ids = bindings.get(ids, ids) if name in _TUPLES else ids
            if isinstance(ids, relax.Tuple):
                pairs = zip(ids.fields, static_shape(data), strict=False)
                checked: Any = relax.Tuple(
                    [self._checked(each, [size], name) for each, size in pairs]
                )
            else:
                checked = self._checked(ids, _SIZES[name](call), name)
            data, *others = map(self.visit_expr, (data, *others))
            return relax.Call(call.op, [data, checked, *others], call.attrs, call.ty_args)

        def _checked(self, ids: Any, sizes: list[int], name: str) -> Any:
            if isinstance(ids, ir.GenericConst) and sizes:
                return _counted(ids, sizes)
            given = _as_given(ids, bindings, is_flat=len(sizes) == 1)
            shape = static_shape(given)
            is_checked = isinstance(given, relax.Var) and "int" in str(given.ty.dtype)
            if not is_checked or not sizes or given.ty.ndim != len(shape):
                return self.visit_expr(ids)
            kinds = str(given.ty.dtype), "int32" if str(given.ty.dtype) == "int32" else "int64"
            owner = f"{_owner(given, bindings, called)} of {name.rpartition('.')[2]}"
            text = f"{owner}: {_expected(sizes, is_unsigned=kinds[0].startswith('u'))}"
            function = _function(shape, kinds, sizes, text)
            variable = self.builder_.add_func(function, "checked_ids")
            kind = relax.TensorType(shape, kinds[1])
            checked = self.builder_.emit(relax.call_tir(variable, [self.visit_expr(given)], kind))
            if static_shape(ids) == shape:
                return checked
            return self.builder_.emit(relax.op.reshape(checked, ids.ty.shape))

    checking = Check(mod)
    checking.builder_.update_func(mod.get_global_var("main"), checking.visit_expr(main))
    return relax.transform.DeadCodeElimination(["main"])(checking.builder_.get())


def _counted(ids: Any, sizes: Sequence[int]) -> Any:
    """Return constant ids, those below 0 counted from the table's end."""
    from tvm import relax

    values = ids.value.numpy()
    ends = np.array(sizes if len(sizes) > 1 else sizes[0], values.dtype)
    return relax.const(np.where(values < 0, values + ends, values))


def _as_given(ids: Any, bindings: Mapping[Any, Any], *, is_flat: bool) -> Any:
    """Return ids as they were before frontends made int32 of them and counted those below 0 from the table's end."""
    value = bindings.get(ids)
    choice = call_if("relax.where", value)
    if choice is not None and _counts_from_end(choice, bindings):
        return _as_given(choice.args[2], bindings, is_flat=is_flat)
    cast, reshape = call_if("relax.astype", value), call_if("relax.reshape", value)
    if cast is not None and (ids.ty.dtype, cast.args[0].ty.dtype) == ("int32", "int64"):
        return _as_given(cast.args[0], bindings, is_flat=is_flat)
    if reshape is not None and is_flat:
        return _as_given(reshape.args[0], bindings, is_flat=is_flat)
    return ids


def _counts_from_end(choice: Any, bindings: Mapping[Any, Any]) -> bool:
    """Say whether a choice is the ONNX frontend's: of ids + what a shape says, where they are below 0."""
    added, ids = call_if("relax.add", bindings.get(choice.args[1])), choice.args[2]
    if added is None or not added.args[0].same_as(ids):
        return False
    size = _before(added.args[1], bindings, ("relax.astype", "relax.strided_slice", "relax.take"))
    return call_if("relax.shape_to_tensor", bindings.get(size)) is not None


def _before(value: Any, bindings: Mapping[Any, Any], names: Sequence[str]) -> Any:
    """Return what a variable was before operators of these names."""
    while getattr(getattr(bindings.get(value), "op", None), "name", "") in names:
        value = bindings[value].args[0]
    return value


def _owner(ids: Any, bindings: Mapping[Any, Any], called: Mapping[Any, str]) -> str:
    """Return how an error calls ids: by the input that they are part of, if they are."""
    ids = _before(ids, bindings, _MOVES)
    return f"input {called[ids]}" if ids in called else "computed ids"


def _expected(sizes: Sequence[int], *, is_unsigned: bool) -> str:
    ranges = ", ".join(f"{0 if is_unsigned else -size} to {size - 1}" for size in sizes)
    return f"expected ids from {ranges}, found an id outside"


def _function(shape: Sequence[int], dtypes: Sequence[str], sizes: Sequence[int], text: str) -> Any:
    """Return the PrimFunc that copies ids of this shape from one type to another, or fails; it has a schedule."""
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as t

    axes = shape if len(sizes) == 1 else shape[:-1]
    with IRBuilder() as builder:
        with t.prim_func(private=True, s_tir=True):
            t.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": _OPAQUE})
            given = t.arg("ids", t.buffer(shape, dtypes[0]))
            checked = t.arg("checked", t.buffer(shape, dtypes[1]))
            with t.sblock("root"):  # Relax looks into it for a reshape
                wrong = t.alloc_buffer((1,), "int32", scope="local")
                t.buffer_store(wrong, t.int32(0), [0])
                with ExitStack() as loops:
                    row = [loops.enter_context(t.serial(0, extent)) for extent in axes]
                    for column, size in enumerate(sizes):
                        place = [*row, column] if len(sizes) > 1 else row
                        zero, end = tirx.const(0, "int64"), tirx.const(size, "int64")
                        unsigned = tirx.Cast("uint64", given[tuple(place)])
                        found = tirx.Cast("int64", given[tuple(place)])
                        is_wrong = unsigned >= tirx.const(size, "uint64")
                        if not dtypes[0].startswith("u"):
                            found = tirx.Select(found < zero, found + end, found)
                            is_wrong = tirx.any(found < zero, found >= end)
                        t.buffer_store(wrong, tirx.Select(is_wrong, t.int32(1), wrong[0]), [0])
                        t.buffer_store(checked, tirx.Cast(dtypes[1], found), place)
                with t.Assert(wrong[0] == 0, text, "IndexError"):
                    t.evaluate(0)
        return builder.get()
