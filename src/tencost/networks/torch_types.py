"""What PyTorch does without being told, written into an exported graph: TVM's frontend does not do it.

PyTorch computes `n < 2.5` of whole numbers in floating point; the frontend makes the constant a whole number, 2. So
every operand gets the type that PyTorch computes in, by a cast of its own. And `x[:, -1]` counts from the end. Factors
that an operator takes beside its operands, which the frontend does not read, are written as products.
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
_SCALED = {"add": 1, "sub": 1, "rsub": 0}
"""Operator -> position of the operand that its argument `alpha` multiplies."""


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
        elif node.target is torch.ops.aten.clamp.Tensor:
            _as_extremes(graph, node, found.dtype)
        elif name in _AS_RESULT:
            _cast(graph, node, found.dtype)
            if name in _SCALED:
                _multiply_by_alpha(graph, node, found.dtype)
            if node.target is torch.ops.aten.clamp.default:
                _bound(node, found.dtype)
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


def converters() -> dict[str, Any]:
    """Converters of rounded quotients and ELU, by operator, for from_exported_program's custom_convert_map."""
    return {"div.Tensor_mode": _rounded_quotient, "elu.default": _elu}


def _elu(node: Any, importer: Any) -> Any:
    """Scale the output, and the input below 0, as the decomposition of SELU asks: the frontend reads alpha only."""
    from tvm import relax

    op, given = relax.op, tuple(node.args[1:])
    alpha, scale, input_scale = given + (1.0, 1.0, 1.0)[len(given) :]
    if scale == input_scale == 1:
        return importer._elu(node)
    data = importer.env[node.args[0]]
    zero, one, scale, input_scale, factor = (
        relax.const(number, data.ty.dtype) for number in (0, 1, scale, input_scale, alpha * scale)
    )
    exponential = op.exp(op.multiply(op.minimum(data, zero), input_scale))
    below = op.multiply(op.subtract(exponential, one), factor)
    return importer.block_builder.emit(op.add(op.multiply(op.nn.relu(data), scale), below))


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


def _multiply_by_alpha(graph: Any, node: Any, dtype: Any) -> None:
    """Replace the argument `alpha` of a sum or difference by a product, in the type of the result."""
    import torch

    overload = node.target._schema.arguments
    settings = {
        **dict(zip((item.name for item in overload), node.args, strict=False)),
        **node.kwargs,
    }
    alpha, place = settings.get("alpha", 1), _SCALED[_name(node)]
    operands = list(node.args[:2])
    if alpha != 1:
        operand = operands[place]
        if hasattr(operand, "meta"):
            with graph.inserting_before(node):
                operands[place] = graph.call_function(torch.ops.aten.mul.Tensor, (operand, alpha))
            operands[place].meta["val"] = (_value(operand) * alpha).to(dtype)
        else:
            operands[place] = operand * alpha
    node.args, node.kwargs = tuple(operands), {}


def _bounds(node: Any) -> dict[str, Any]:
    """Return what a clamp is told, min and max, without those that are None."""
    told = {**dict(zip(("min", "max"), node.args[1:], strict=False)), **node.kwargs}
    return {name: bound for name, bound in told.items() if bound is not None}


def _bound(node: Any, dtype: Any) -> None:
    """Write bounds as the frontend takes them: for whole numbers both, which it takes infinity for, and in order.

    Of a lower bound above the upper one PyTorch takes the upper one; -3 is 253 for bytes.
    """
    import torch

    bounds = _bounds(node)
    if not dtype.is_floating_point:
        told = {name: int(torch.tensor(bound).to(dtype)) for name, bound in bounds.items()}
        bounds = {"min": torch.iinfo(dtype).min, "max": torch.iinfo(dtype).max, **told}
    if len(bounds) == 2:
        bounds["min"] = min(bounds["min"], bounds["max"])
    node.args, node.kwargs = (node.args[0], bounds.get("min"), bounds.get("max")), {}


def _as_extremes(graph: Any, node: Any, dtype: Any) -> None:
    """Compute a clamp by tensors as the larger and the smaller of two: the frontend knows it for numbers."""
    import torch

    value = node.args[0]
    ways = {"min": torch.ops.aten.maximum.default, "max": torch.ops.aten.minimum.default}
    bounds = _bounds(node)
    for name, way in ways.items():
        if name not in bounds:
            continue
        with graph.inserting_before(node):
            made = graph.call_function(way, (value, bounds[name]))
        made.meta["val"] = way(_value(value).to(dtype), _value(bounds[name]).to(dtype))
        _cast(graph, made, dtype)
        value = made
    node.replace_all_uses_with(value)
    graph.erase_node(node)


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
