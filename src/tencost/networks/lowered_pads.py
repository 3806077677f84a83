"""Padding that TVM's ONNX frontend has lowered already, found again as the operator that it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tencost.networks.sample_rules import static_shape
from tencost.programs.codegen.blocks import number_like


def with_pads(mod: Any) -> Any:
    """Return a module in which padding with a constant is an operator: TVM's ONNX frontend lowers a Pad at once."""
    from tvm import relax
    from tvm.relax.expr_functor import PyExprMutator, mutator

    @mutator
    class Pads(PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            visited = self.visit_expr_post_order(call)
            if getattr(call.op, "name", "") != "relax.call_tir" or len(call.args[1].fields) != 1:
                return visited
            (data,) = call.args[1].fields
            found = _padding_of(mod[call.args[0]], static_shape(data), static_shape(call))
            if found is None:
                return visited
            return relax.op.nn.pad(visited.args[1].fields[0], found[0], "constant", found[1])

    pads = Pads(mod)
    changed = pads.visit_expr(mod["main"])
    pads.builder_.update_func(mod.get_global_var("main"), changed)
    return relax.transform.DeadCodeElimination(["main"])(pads.builder_.get())


def _padding_of(
    function: Any, before: tuple[int, ...], after: tuple[int, ...]
) -> tuple[list[int], float] | None:
    """Return the widths and the value with which a PrimFunc pads its one tensor; None of anything else."""
    from tvm import ir, tirx
    from tvm.s_tir import SBlock
    from tvm.sym import Analyzer
    from tvm_ffi import structural_walk

    condition: Any = None
    blocks: list[Any] = []
    structural_walk(function.body, (SBlock, blocks.append))
    blocks = [block for block in blocks if block.iter_vars]
    if len(blocks) != 1 or len(before) != len(after):
        return None
    (block,) = blocks
    if not isinstance(block.body, tirx.BufferStore):
        return None
    axes = [axis.var for axis in block.iter_vars]
    value, filled = block.body.value, 0.0
    if getattr(getattr(value, "op", None), "name", "").endswith(".if_then_else"):
        condition, value, other = value.args
        if not isinstance(other, tirx.FloatImm):
            return None
        filled = float(other.value)
    is_store = all(
        place.same_as(axis) for place, axis in zip(block.body.indices, axes, strict=False)
    )
    if not isinstance(value, ir.TensorLoad) or not is_store or len(axes) != len(before):
        return None
    widths: list[int] = []
    for place, axis, given, made in zip(value.indices, axes, before, after, strict=True):
        begin = Analyzer().simplify(axis - place)
        if not hasattr(begin, "value") or int(begin) < 0 or int(begin) + given > made:
            return None
        widths += [int(begin), made - given - int(begin)]
    ends = [(widths[2 * place], given) for place, given in enumerate(before)]
    return (widths, filled) if _says_where(condition, axes, ends, after) else None


def _says_where(
    condition: Any, axes: Sequence[Any], ends: Sequence[tuple[int, int]], shape: Sequence[int]
) -> bool:
    """Say whether a condition holds between each axis' (begin, length), and nowhere else in the shape; None: always."""
    from tvm import ir
    from tvm.sym import Analyzer

    def holds(begins: Sequence[int], lengths: Sequence[int]) -> Any:
        analyzer = Analyzer()
        for axis, begin, length in zip(axes, begins, lengths, strict=True):
            numbers = (number_like(number, axis) for number in (begin, length))
            analyzer.bind(axis, ir.Range.from_min_extent(*numbers))
        value = analyzer.simplify(condition)
        return bool(value) if hasattr(value, "value") else None

    if condition is None:
        return all(length == size for (_, length), size in zip(ends, shape, strict=True))
    if holds(*zip(*ends, strict=True)) is not True:
        return False
    for place, (begin, length) in enumerate(ends):
        for outside in ((0, begin), (begin + length, shape[place] - begin - length)):
            if outside[1] == 0:
                continue
            begins, lengths = [0] * len(axes), list(shape)
            begins[place], lengths[place] = outside
            if holds(begins, lengths) is not False:
                return False
    return True
