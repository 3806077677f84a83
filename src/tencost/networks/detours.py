"""What exporters write around a network's operators, and TVM fuses nothing across, taken back."""

from __future__ import annotations

import math
from typing import Any

from tencost.networks.bindings import bindings_of, uses_of


def without_detours(mod: Any) -> Any:
    """Take back what PyTorch's exporter adds to an attention, across which TVM fuses nothing.

    A stack of matrices has several batch axes: the exporter makes one of them for a product, and several of one again.
    And its softmax looks for rows of -inf, which a mask leaves nothing of: where there is no mask there is none.
    A tensor that is reshaped twice is reshaped once, and not at all where it then has the shape it had. A matrix that
    is repeated for each of a stack, as in nn.MultiheadAttention with a batch, is multiplied with all of them as it is.
    """
    from tvm import ir, relax
    from tvm.relax.expr_functor import PyExprMutator, mutator

    values, uses = bindings_of(mod["main"]), uses_of(mod["main"])

    def shape_of(value: Any) -> list[int] | None:
        shape = getattr(value.ty, "shape", None)
        if shape is None or not all(hasattr(size, "value") for size in shape):
            return None
        return [int(size) for size in shape]

    def call_of(value: Any, *names: str) -> Any:
        """Return the call that a variable is bound to, if it is of one of these operators."""
        call = values.get(value)
        name = getattr(getattr(call, "op", None), "name", "")
        return call if name.removeprefix("relax.") in names else None

    def unshaped(value: Any) -> Any:
        """Return the value that reshapes began with, or the stacked product that the last of them is."""
        call = call_of(value, "reshape")
        return value if call is None or stacks(call) is not None else unshaped(call.args[0])

    def plain(value: Any) -> Any:
        """Return what a value is where it is only broadcast to its own shape."""
        call = call_of(value, "broadcast_to")
        shape = None if call is None else shape_of(call)
        return plain(call.args[0]) if shape and shape == shape_of(call.args[0]) else value

    def repeated(product: Any) -> Any:
        """Return the matrix that a product's second stack repeats for stacked rows; None of any other product."""
        rows, stack = (shape_of(each) for each in product.args)
        call = call_of(product.args[1], "broadcast_to")
        if call is None or rows is None or stack is None or rows[:-2] != stack[:-2]:
            return None
        matrix = call.args[0]
        return matrix if shape_of(matrix) == stack[-2:] and len(stack) > 2 else None

    def stacks(call: Any) -> list[Any] | None:
        """Return the two stacks whose product a reshape returns, None where it is something else."""
        product, shape = call_of(call.args[0], "matmul"), shape_of(call)
        if product is None or uses[call.args[0]] != 1 or shape is None or len(shape) < 4:
            return None
        parts = [call_of(each, "reshape") for each in product.args]
        if None in parts:
            return None
        matrices = [plain(each.args[0]) for each in parts]
        first, second = (shape_of(each) for each in matrices)
        if first is None or second is None or first[-1] != second[-2]:
            return None
        batch, flat = shape[:-2], [math.prod(shape[:-2])]
        fits = (first[:-1], second[:-2], second[-1]) == (shape[:-1], batch, shape[-1])
        fits = fits and [shape_of(each) for each in parts] == [
            flat + first[-2:],
            flat + second[-2:],
        ]
        return matrices if fits else None

    def unmasked(call: Any) -> Any:
        """Return the softmax of a choice that only looks for rows of -inf, in scores without a mask; else None."""
        value, zeros, weights = call.args
        softmax = call_of(weights, "nn.softmax")
        if softmax is None or call_of(zeros, "full_like") is None:
            return None
        for name in ("logical_not", "astype", "max", "astype", "logical_not"):
            step = call_of(value, name)
            if step is None:
                return None
            value = step.args[0]
        test, scores = call_of(value, "equal"), softmax.args[0]
        if test is None or not test.args[0].same_as(scores):
            return None
        limit = test.args[1]
        if not isinstance(limit, ir.GenericConst) or limit.value.numpy() != -math.inf:
            return None
        reshaped = call_of(scores, "reshape")
        product = call_of(scores if reshaped is None else reshaped.args[0], "matmul")
        return None if product is None else weights

    @mutator
    class Rewrite(PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            name = getattr(call.op, "name", "")
            if name == "relax.where" and (weights := unmasked(call)) is not None:
                return self.visit_expr(weights)
            if name == "relax.matmul" and (matrix := repeated(call)) is not None:
                rows = plain(call.args[0])
                return relax.op.matmul(self.visit_expr(rows), self.visit_expr(matrix))
            if name == "relax.reshape" and (matrices := stacks(call)) is not None:
                return relax.op.matmul(*(self.visit_expr(each) for each in matrices))
            if name == "relax.reshape" and (shape := shape_of(call)) is not None:
                base = unshaped(call.args[0])
                whole = self.visit_expr(base)
                return whole if shape == shape_of(base) else relax.op.reshape(whole, shape)
            return super().visit_call_(call)

    rewriting = Rewrite(mod)
    rewriting.builder_.update_func(mod.get_global_var("main"), rewriting.visit_expr(mod["main"]))
    rewritten = relax.transform.Normalize()(rewriting.builder_.get())
    rewritten = relax.transform.CanonicalizeBindings()(rewritten)  # where no reshape is left
    return relax.transform.DeadCodeElimination()(rewritten)
