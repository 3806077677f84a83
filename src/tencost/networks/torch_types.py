"""What PyTorch does without being told, written into an exported graph: TVM's frontend does not do it.

PyTorch computes `n < 2.5` of whole numbers in floating point; the frontend makes the constant a whole number, 2. So
every operand gets the type that PyTorch computes in, by a cast of its own. And `x[:, -1]` counts from the end.
"""

from __future__ import annotations

from typing import Any

_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
_AS_RESULT = {
    *("add", "sub", "rsub", "mul", "div", "remainder", "fmod", "pow", "maximum", "minimum"),
    *("clamp", "clamp_min", "clamp_max", "where", "cumsum", "sum", "prod"),
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh"),
    *("atanh", "tanh", "sigmoid", "erf", "cat", "stack"),
}
"""Operators that PyTorch computes in the type of their result."""


def with_types_written(program: Any) -> Any:
    """Return a decomposed torch.export program, casts put in place where PyTorch promotes types."""
    import torch

    graph = program.graph_module.graph
    for node in list(graph.nodes):
        found = node.meta.get("val")
        if node.op != "call_function" or not isinstance(found, torch.Tensor):
            continue
        name = _name(node)
        if name in _COMPARISONS:
            _cast(graph, node, torch.result_type(*map(_value, node.args[:2])))
        elif name in _AS_RESULT:
            _cast(graph, node, found.dtype)
            if node.target is torch.ops.aten.clamp.default and not found.is_floating_point():
                _bound(node, torch.iinfo(found.dtype))
        elif name == "select" and isinstance(node.args[2], int) and node.args[2] < 0:
            node.update_arg(2, node.args[2] + _value(node.args[0]).shape[node.args[1]])
    program.graph_module.recompile()
    return program


def without_detaching_in_place(program: Any) -> Any:
    """Return a torch.export program that can be exported again: of a constant, PyTorch refuses `detach_`."""
    import torch

    for node in program.graph_module.graph.nodes:
        if node.target is torch.ops.aten.detach_.default:
            node.target = torch.ops.aten.detach.default
    program.graph_module.recompile()
    return program


def quotient_converters() -> dict[str, Any]:
    """Return what converts quotients that are rounded, for from_exported_program's custom_convert_map."""
    return {"div.Tensor_mode": _rounded_quotient}


def _rounded_quotient(node: Any, importer: Any) -> Any:
    """Divide and round; the frontend takes a constant divisor for one of 32 bits, and rounds twice."""
    from tvm import relax

    number, divisor = importer.retrieve_args(node)[:2]
    kind = str(number.ty.dtype)
    if not isinstance(divisor, relax.Expr):
        divisor = relax.const(divisor, kind)
    emit = importer.block_builder.emit
    if node.kwargs["rounding_mode"] == "floor":
        return emit(relax.op.floor_divide(number, divisor))
    quotient = emit(relax.op.divide(number, divisor))
    return emit(relax.op.trunc(quotient)) if "float" in kind else quotient


def _bound(node: Any, range_: Any) -> None:
    """Write the bounds that a clamp of whole numbers lacks: the frontend takes infinity for them."""
    bounds = {"min": range_.min, "max": range_.max}
    written = {**dict(zip(bounds, node.args[1:], strict=False)), **node.kwargs}
    bounds |= {name: bound for name, bound in written.items() if bound is not None}
    node.args, node.kwargs = (node.args[0], *bounds.values()), {}


def _name(node: Any) -> str:
    return str(getattr(getattr(node.target, "overloadpacket", None), "__name__", ""))


def _value(argument: Any) -> Any:
    return argument.meta["val"] if hasattr(argument, "meta") else argument


def _cast(graph: Any, node: Any, dtype: Any) -> None:
    """Let a node read tensors of this type, and floats where it is one."""
    import torch
    from torch.fx.node import map_arg

    def cast(argument: Any) -> Any:
        value = _value(argument)
        if not isinstance(value, torch.Tensor) or value.dtype == dtype:
            return argument
        with graph.inserting_before(node):
            made = graph.call_function(
                torch.ops.aten._to_copy.default, (argument,), {"dtype": dtype}
            )
        made.meta["val"] = value.to(dtype)
        return made

    kept = 1 if _name(node) == "where" else 0  # its condition
    node.args = (*node.args[:kept], *map_arg(node.args[kept:], cast))
    if _name(node) == "div" and dtype.is_floating_point and type(node.args[1]) is int:
        node.update_arg(1, float(node.args[1]))
