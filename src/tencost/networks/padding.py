"""Proves from a network's graph that padding its inputs with zeros changes nothing in front of the padding.

A network is compiled for one size of an open dimension, a batch or a length, and called with a smaller one. The graphs
of both sizes are walked side by side. The invariant, for every tensor: the front of the large one, as much as the small
graph has, equals the small one. An operator keeps it if each of its numbers needs only numbers of the same place along
the open axes, or of places before. Operators without a rule are refused.

An operator that goes over a whole open axis keeps the invariant only if the values in the padding change nothing there.
So each tensor has, for each open axis, bounds of its values behind the front (:class:`Values`): inputs are zero there,
which makes a mask say "hidden", which makes scores very negative, which makes softmax's shares zero, which leaves sums
as they are.

Two things are assumed: numbers of the inputs, and those computed from them, are finite; and a mask that hides positions
by a large negative number is of 0 and 1 and hides them (scores are small beside that number, and one position of each
row is not hidden). The network itself takes both for granted where a mask hides positions of a call that is not padded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tencost.networks.lowered_pads import with_pads
from tencost.networks.padding_rules import (
    RULES,
    SIZED,
    Node,
    PaddingError,
    Pair,
    recurrent_layer,
)
from tencost.networks.padding_values import ANY, FINITE, ZERO, Specials, Values, exactly
from tencost.networks.recurrent import MARK
from tencost.networks.sample_rules import static_shape
from tencost.networks.source import Imported


def padding_objection(small: Imported, large: Imported, sizes: tuple[int, int]) -> str:
    """Return why padding a call of the small size to the large one may change its result; empty where it does not.

    Args:
        small: the network of a size.
        large: the same of a larger size.
        sizes: the open dimension in both.
    """
    try:
        outputs = _outputs(small, large)
    except PaddingError as error:
        return str(error)
    for name, output in zip(large.outputs, outputs, strict=True):
        for axis in output.open:
            if (output.small[axis], output.large[axis]) != sizes or output.block(axis) > 1:
                return f"output {name} has {output.large[axis]} numbers along axis {axis} for {sizes[1]} of the inputs"
    return ""


def _outputs(small: Imported, large: Imported) -> list[Pair]:
    """Return the outputs of both graphs; raises PaddingError where the front of one may differ."""
    from tvm import relax
    from tvm_ffi import structural_equal

    mods = [relax.transform.FoldConstant()(with_pads(imported.mod)) for imported in (small, large)]
    mods = [relax.transform.DeadCodeElimination(["main"])(mod) for mod in mods]
    mains = [mod["main"] for mod in mods]
    bindings = [[each for block in main.body.blocks for each in block.bindings] for main in mains]
    if len(bindings[0]) != len(bindings[1]) or len(mains[0].params) != len(mains[1].params):
        raise PaddingError("its graph differs between sizes")
    partner: dict[Any, Any] = {}
    pairs: dict[Any, Any] = {}
    count = len(large.inputs)
    for place, (first, second) in enumerate(zip(*(main.params for main in mains), strict=True)):
        partner[first] = second
        if place < count:
            pair = Pair(static_shape(first), static_shape(second))
            pairs[second] = replace(pair, behind=dict.fromkeys(pair.open, ZERO))
        else:
            before, weight = (each.params[place - count].numpy() for each in (small, large))
            pairs[second] = _constant(before, weight, "a weight")

    def read(first: Any, second: Any) -> Any:
        """Return the pair, or the list of pairs, that an expression of both graphs is; None of what is no tensor."""
        from tvm import ir

        if type(first) is not type(second):
            raise PaddingError("its graph differs between sizes")
        if isinstance(second, relax.Var):
            if not second.same_as(partner.get(first)):
                raise PaddingError("its graph differs between sizes")
            return pairs[second]
        if isinstance(second, relax.Tuple):
            fields = [read(*each) for each in zip(first.fields, second.fields, strict=True)]
            return None if fields and all(each is None for each in fields) else fields
        if isinstance(second, relax.TupleGetItem):
            return read(first.tuple_value, second.tuple_value)[int(second.index)]
        if isinstance(second, ir.GenericConst) and hasattr(second.value, "numpy"):
            return _constant(first.value.numpy(), second.value.numpy(), "a constant")
        return None

    for first, second in zip(*bindings, strict=True):
        partner[first.var] = second.var
        if not isinstance(second, relax.VarBinding) or isinstance(second.value, relax.If):
            raise PaddingError(f"{type(second).__name__} has no rule that allows padding")
        if isinstance(second.value, relax.Call):
            pairs[second.var] = _call(first.value, second, read, mods, structural_equal)
        else:
            pairs[second.var] = read(first.value, second.value)
    outputs = read(mains[0].body.body, mains[1].body.body)
    return outputs if isinstance(outputs, list) else [outputs]


def _call(first: Any, binding: Any, read: Any, mods: Sequence[Any], equal: Any) -> Any:
    """Return the pair of a call's output, or the list of its outputs' pairs."""
    from tvm import relax

    second = binding.value
    name = getattr(second.op, "name", "").removeprefix("relax.")
    if getattr(first.op, "name", "").removeprefix("relax.") != name:
        raise PaddingError("its graph differs between sizes")
    operands: list[Pair] = []
    others_equal = len(first.args) == len(second.args)
    for x, y in zip(first.args, second.args, strict=False):
        pair = read(x, y)
        if pair is None:
            if name == "call_tir" and others_equal and hasattr(x, "name_hint"):
                x, y = mods[0][x], mods[1][y]
            others_equal = others_equal and bool(equal(x, y))
        else:
            operands += pair if isinstance(pair, list) else [pair]
    fields = [
        list(each.ty.fields) if hasattr(each.ty, "fields") else [each.ty]
        for each in (first, second)
    ]
    shapes = [(_shape(x), _shape(y)) for x, y in zip(*fields, strict=True)]
    is_closed = not any(operand.open for operand in operands) and all(
        small == large for small, large in shapes
    )
    node = Node(name, (first, second), operands, shapes, str(getattr(fields[1][0], "dtype", "")))
    if any(len(small) != len(large) for small, large in shapes):
        raise node.refuse("has another number of axes for another size")
    recurrent = name == "call_tir" and MARK in dict(mods[1][second.args[0]].attrs or {})
    rule = recurrent_layer if recurrent else RULES.get(name)
    if not others_equal and (name not in SIZED and not recurrent):
        raise node.refuse("depends on the size itself")
    if name != "split" and not recurrent and not equal(first.attrs, second.attrs):
        raise node.refuse("has other settings for another size")
    try:
        if rule is None:
            raise node.refuse("has no rule that allows padding")
        output: Any = rule(node)
    except PaddingError:
        if not is_closed or not others_equal:
            raise
        output = [Pair(small, large, ANY) for small, large in shapes]
    output = output if isinstance(output, list) else [output]
    if operands and all(operand.constant is not None for operand in operands):
        output = [replace(pair, constant=_folded(node)) for pair in output]
    integers = node.dtype.startswith(("int", "uint", "bool"))
    if integers:  # which are never other than finite
        output = [_finite(pair) for pair in output]
    return output if isinstance(second.ty, relax.TupleType) else output[0]


def _shape(kind: Any) -> tuple[int, ...]:
    sizes = getattr(getattr(kind, "shape", None), "values", ())
    return tuple(int(size) for size in sizes)


def _finite(pair: Pair) -> Pair:
    def finite(values: Values) -> Values:
        return replace(values, specials=Specials.none)

    behind = {axis: finite(values) for axis, values in pair.behind.items()}
    return replace(pair, values=finite(pair.values), behind=behind)


def _constant(small: Any, large: Any, name: str) -> Pair:
    """Return the pair of a constant; raises PaddingError where the small one is not the front of the large one."""
    front = large[tuple(map(slice, small.shape))] if small.ndim == large.ndim else large
    if front.shape != small.shape or not np.array_equal(
        front, small, equal_nan=small.dtype.kind == "f"
    ):
        raise PaddingError(f"{name} is computed from the size")
    if not large.size or large.dtype.kind not in "fiub":
        values = FINITE
    else:
        numbers = large[np.isfinite(large)] if large.dtype.kind == "f" else large
        values = Values(float(numbers.min()), float(numbers.max())) if numbers.size else FINITE
        if numbers.size < large.size:
            others = large[~np.isfinite(large)]
            minus = bool((others == -np.inf).all())
            values = replace(values, specials=Specials.minus_infinity if minus else Specials.any)
            if minus and not numbers.size:
                values = exactly(-math.inf)
    pair = Pair(small.shape, large.shape, values, constant=large)
    return replace(pair, behind=dict.fromkeys(pair.open, values))


def _folded(node: Node) -> Any:
    """Return the numbers of an operator on constants, of those that compute places; None of others."""
    constants = [operand.constant for operand in node.operands]
    if node.name in ("reshape", "expand_dims", "squeeze"):
        return constants[0].reshape(node.shapes[0][1])
    if node.name == "broadcast_to":
        return np.broadcast_to(constants[0], node.shapes[0][1])
    if node.name == "astype" and node.dtype.startswith("int"):
        return constants[0].astype(node.dtype)
    return np.add(*constants) if node.name == "add" else None
