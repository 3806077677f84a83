"""Float arithmetic that becomes whole numbers or truth values keeps the order and the roundings that were written.

LLVM may order sums and products anew in a module by rule (:func:`tencost.programs.codegen.rules.leave`), which moves a
value by its last bit. In data that is noise; ``ceil((i + 0.5) * scale - 1.0)`` is then another pixel, ``x * s > t``
another answer. :func:`kept_in_order` puts a fence (LLVM's ``arithmetic.fence``) around each sum, difference, product
and quotient below what makes whole numbers of floats: casts, floor, ceil, round, trunc, remainders and comparisons. So
are values that a function stores before, and those that another function of the network passes on. A sum over an axis
is not fenced, nor what a comparison only chooses between, as a leaky ReLU does, nor the power of two in an exponential
that is written out (:func:`~.vector_math.exp_at_most_one`): they lose no bit that counts.

A fence costs half a nanosecond a number, as LLVM makes no vectors of it; most functions have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from tencost.programs.codegen.vector_math import jumps_of_exp_at_most_one

_FENCE = "llvm.arithmetic.fence"
_WHOLE = {"floor", "ceil", "round", "nearbyint", "trunc", "fmod"}
"""Functions whose value jumps where their argument moves by its last bit."""


def kept_in_order(function: Any, outputs: Iterable[Any] = ()) -> Any:
    """Return a PrimFunc whose arithmetic below whole numbers is fenced; the same one where there is none.

    Args:
        function: for a CPU, scheduled or not.
        outputs: its parameters whose values become whole numbers elsewhere.
    """
    from tvm import ir, tirx
    from tvm_ffi import structural_map

    whole = _sources_of_whole(function, outputs)
    unseen = _unseen_jumps(function.body)

    def remainder(node: Any) -> Any:
        return type(node)(_fenced(node.a), _fenced(node.b)) if _is_float(node.a) else node

    def compared(node: Any) -> Any:
        return node if _is_in(node, unseen) else remainder(node)

    def cast(node: Any) -> Any:
        if not _rounds(node) or _is_in(node, unseen):
            return node
        return tirx.Cast(node.ty, _fenced(node.value))

    def call(node: Any) -> Any:
        if _name(node) not in _WHOLE or _is_in(node, unseen):
            return node
        return ir.Call(
            node.op, [_fenced(argument) for argument in node.args], node.attrs, ret_ty=node.ty
        )

    def stored(node: Any) -> Any:
        if not _is_in(node.buffer, whole) or not _is_elementwise(node):
            return node
        return tirx.BufferStore(node.buffer, _fenced(node.value), node.indices)

    def bound(node: Any) -> Any:
        return tirx.Bind(node.var, _fenced(node.value)) if _is_in(node.var, whole) else node

    callbacks = [
        ((tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE), compared),
        ((tirx.Mod, tirx.FloorMod, tirx.FloorDiv), remainder),
        (tirx.Cast, cast),
        (ir.Call, call),
        (tirx.BufferStore, stored),
        (tirx.Bind, bound),
    ]
    return structural_map(function, callbacks, order="pre")


def network_kept_in_order(mod: Any) -> Any:
    """Return a network's module with :func:`kept_in_order` done to all of its functions.

    What a function computes is fenced, too, where a function that it is passed on to makes whole numbers of it.

    Args:
        mod: Relax module, operators lowered and fused to calls of PrimFuncs.
    """
    from tvm import IRModule, tirx

    functions = {
        name: function
        for name, function in mod.functions.items()
        if isinstance(function, tirx.PrimFunc)
    }
    outputs = _passed_on(mod, functions)
    changed = {name: kept_in_order(function, outputs[name]) for name, function in functions.items()}
    if all(function.same_as(functions[name]) for name, function in changed.items()):
        return mod
    return IRModule({**mod.functions, **changed}, attrs=mod.attrs)


def _passed_on(mod: Any, functions: dict[Any, Any]) -> dict[Any, list[Any]]:
    """Return for each function its output parameters whose values become whole numbers in functions called later."""
    from tvm import relax

    calls: list[tuple[Any, Any, list[Any]]] = []
    parts: list[tuple[Any, Any, int]] = []
    for function in mod.functions.values():
        if not isinstance(function, relax.Function):
            continue
        for block in function.body.blocks:
            for binding in block.bindings:
                value = getattr(binding, "value", None)
                if value is None:
                    continue
                if getattr(getattr(value, "op", None), "name", "") == "relax.call_tir":
                    calls.append((binding.var, value.args[0], list(value.args[1].fields)))
                elif isinstance(value, relax.TupleGetItem):
                    parts.append((binding.var, value.tuple_value, int(value.index)))
                elif isinstance(value, relax.Var):
                    parts.append((binding.var, value, -1))
    outputs: dict[Any, list[Any]] = {name: [] for name in functions}
    sources = {name: _sources_of_whole(function, ()) for name, function in functions.items()}
    whole: list[Any] = []
    grew = True
    while grew:
        grew = False
        for variable, name, arguments in reversed(calls):
            if name not in functions:
                continue
            parameters = functions[name].params
            places = [
                index
                for part, source, index in parts
                if source.same_as(variable) and _is_in(part, whole)
            ]
            places += [0] if _is_in(variable, whole) else []
            for place in places:
                output = parameters[len(arguments) + max(place, 0)]
                if not _is_in(output, outputs[name]):
                    outputs[name].append(output)
                    sources[name] = _sources_of_whole(functions[name], outputs[name])
                    grew = True
            for argument, parameter in zip(arguments, parameters, strict=False):
                if _is_in(parameter, sources[name]) and not _is_in(argument, whole):
                    whole.append(argument)
                    grew = True
        for part, source, index in parts:
            if index == -1 and _is_in(part, whole) and not _is_in(source, whole):
                whole.append(source)
                grew = True
    return outputs


def compares_data(node: Any) -> bool:
    """Say whether a statement compares floats for more than a choice between them, as a test for NaN (x != x) does."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    choices = _choices(node)
    matches: list[bool] = []

    def compared(comparison: Any) -> None:
        matches.append(_is_float(comparison.a) and not _is_in(comparison, choices))

    structural_walk(node, ((tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE), compared))
    return any(matches)


def _sources_of_whole(function: Any, outputs: Iterable[Any]) -> list[Any]:
    """Return `outputs`, and the buffers and variables of a function whose floats become whole numbers in it."""
    from tvm import ir, tirx
    from tvm_ffi import structural_walk

    unseen = _unseen_jumps(function.body)
    roots: list[Any] = []
    stores: list[tuple[Any, Any]] = []

    def both(node: Any) -> None:
        if _is_float(node.a) and not _is_in(node, unseen):
            roots.extend((node.a, node.b))

    def cast(node: Any) -> None:
        if _rounds(node) and not _is_in(node, unseen):
            roots.append(node.value)

    def call(node: Any) -> None:
        if _name(node) in _WHOLE and not _is_in(node, unseen):
            roots.extend(node.args)

    def store(node: Any) -> None:
        if _is_elementwise(node):
            stores.append((node.buffer, node.value))

    callbacks = [
        ((tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE), both),
        ((tirx.Mod, tirx.FloorMod, tirx.FloorDiv), both),
        (tirx.Cast, cast),
        (ir.Call, call),
        (tirx.BufferStore, store),
        (tirx.Bind, lambda node: stores.append((node.var, node.value))),
    ]
    structural_walk(function.body, callbacks)
    sources: list[Any] = list(outputs)
    for root in roots:
        sources += [source for source in _loads(root) if not _is_in(source, sources)]
    place = 0
    while place < len(sources):
        for buffer, value in stores:
            if buffer.same_as(sources[place]):
                sources += [source for source in _loads(value) if not _is_in(source, sources)]
        place += 1
    return sources


def _fenced(value: Any) -> Any:
    """Return an expression with a fence around each float of its arithmetic, once."""
    from tvm import ir, tirx
    from tvm_ffi import structural_map

    def fenced(node: Any) -> Any:
        if not _is_float(node):
            return node
        return tirx.call_llvm_pure_intrin(str(node.ty.dtype), _FENCE, node)

    def once(node: Any) -> Any:
        inner = node.args[-1] if _is_fence(node) else None
        return inner if inner is not None and _is_fence(inner) else node

    arithmetic = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div)
    return structural_map(value, [(arithmetic, fenced), (ir.Call, once)])


def _is_fence(node: Any) -> bool:
    return _name(node) == "call_llvm_pure_intrin" and int(node.args[0].value) == _fence_number()


@cache
def _fence_number() -> int:
    """Return LLVM's number of the intrinsic, which TVM writes in place of its name."""
    from tvm import tirx

    call = tirx.call_llvm_pure_intrin("float32", _FENCE, tirx.const(0.0, "float32"))
    return int(call.args[0].value)


def _name(node: Any) -> str:
    """Return the name of what a call calls, without its dialect's; empty of what is no call of an operator."""
    return str(getattr(getattr(node, "op", None), "name", "")).rpartition(".")[2]


def _is_float(node: Any) -> bool:
    return str(getattr(node.ty, "dtype", "")).startswith(("float", "bfloat"))


def _rounds(cast: Any) -> bool:
    return _is_float(cast.value) and not _is_float(cast)


def _is_in(node: Any, nodes: Iterable[Any]) -> bool:
    return any(node.same_as(other) for other in nodes)


def _is_elementwise(store: Any) -> bool:
    """Say whether a store adds nothing to what it overwrites, as a sum over an axis does."""
    return not _is_in(store.buffer, _loads(store.value))


def _loads(value: Any) -> list[Any]:
    """Return the buffers and variables that an expression reads."""
    from tvm import ir, tirx
    from tvm_ffi import structural_walk

    sources: list[Any] = []
    callbacks = [
        (ir.TensorLoad, lambda node: sources.append(node.source)),
        (tirx.Var, sources.append),
    ]
    structural_walk(value, callbacks)
    return sources


def _unseen_jumps(node: Any) -> list[Any]:
    """Return a statement's jumps that its values do not show: :func:`_choices`, and those inside of an exponential."""
    from tvm import ir, tirx
    from tvm_ffi import structural_equal, structural_walk

    unseen = _choices(node)

    def select(expression: Any) -> None:
        jumps = jumps_of_exp_at_most_one(expression)

        def jump(part: Any) -> None:
            if any(structural_equal(part, each) for each in jumps):
                unseen.append(part)

        if jumps and not _is_in(expression.condition, unseen):
            structural_walk(expression, ((tirx.LT, tirx.Cast, ir.Call), jump))

    structural_walk(node, (tirx.Select, select))
    return unseen


def _choices(node: Any) -> list[Any]:
    """Return the comparisons that choose between their own operands, as in a maximum: of equal ones either will do."""
    from tvm import ir, tirx
    from tvm_ffi import structural_equal, structural_walk

    comparisons = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
    choices: list[Any] = []

    def chosen(condition: Any, branches: Sequence[Any]) -> None:
        if isinstance(condition, comparisons) and any(
            structural_equal(side, branch)
            for side in (condition.a, condition.b)
            for branch in branches
        ):
            choices.append(condition)

    def select(expression: Any) -> None:
        chosen(expression.condition, (expression.true_value, expression.false_value))

    def call(expression: Any) -> None:
        if _name(expression) == "if_then_else":
            chosen(expression.args[0], expression.args[1:])

    structural_walk(node, [(tirx.Select, select), (ir.Call, call)])
    return choices
