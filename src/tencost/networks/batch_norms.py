"""Batch norms with known statistics: in the weights of the product before them, or a product and a sum."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tencost.networks.bindings import bindings_of, call_if, uses_of
from tencost.networks.sample_rules import static_shape

CONVOLUTIONS = {
    "relax.nn.conv1d": ["NWC", "WIO"],
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv3d": ["NDHWC", "DHWIO"],
}
"""Operator -> the layouts of its data and its weights that channels_last gives it."""


def fold_batch_norms(mod: Any) -> Any:
    """Multiply a convolution's weights by the scale of the batch norm that follows it; its shift stays, as a bias.

    So are those of a matrix product, whose rows may be laid out otherwise before they are normalized, as LeViT's are.
    Any other batch norm is a product and a sum. What is computed of weights only is folded when the weights are bound.
    Without it TVM 0.27 keeps four operators at each output of a convolution, a division among them.
    """
    from tvm import relax
    from tvm.relax.expr_functor import PyExprMutator, mutator

    bound, used = bindings_of(mod["main"]), uses_of(mod["main"])

    @mutator
    class Fold(PyExprMutator):
        def visit_tuple_getitem_(self, item: Any) -> Any:
            norm = call_if("relax.nn.batch_norm", bound.get(item.tuple_value))
            if norm is None or item.index != 0 or norm.attrs.axis != 1:
                return super().visit_tuple_getitem_(item)
            found = _product_before(norm, bound, used)
            if found is None:
                scale, shift = (_along_second(part, norm) for part in _scale_and_shift(norm))
                scaled = relax.op.multiply(self.visit_expr(norm.args[0]), scale)
                return relax.op.add(self.builder_.emit(scaled), shift)
            product, bias = found
            weights, shift = _scaled(product, bias, norm)
            data = [self.visit_expr(product.args[0]), self.builder_.normalize(weights)]
            scaled = relax.Call(product.op, data, product.attrs, product.ty_args)
            sums, shape = relax.op.add(scaled, shift), norm.args[0].ty.shape
            if len(shape) == len(product.ty.shape):
                return sums
            return relax.op.reshape(self.builder_.emit(sums), shape)

    folding = Fold(mod)
    folding.builder_.update_func(mod.get_global_var("main"), folding.visit_expr(mod["main"]))
    return relax.transform.DeadCodeElimination()(
        relax.transform.Normalize()(folding.builder_.get())
    )


def _product_before(norm: Any, bound: dict[Any, Any], used: Counter[Any]) -> tuple[Any, Any] | None:
    """Return the product that a batch norm is of, and the bias that is added to it or None; None for anything else."""

    def step_before(value: Any, name: str) -> Any:
        """Return the call that a value is, which nothing else takes, if it is of this operator."""
        return call_if(name, bound.get(value)) if used[value] == 1 else None

    sums, is_reshaped = norm.args[0], False
    while (rows := step_before(sums, "relax.reshape")) is not None:
        sums, is_reshaped = rows.args[0], True
    added = step_before(sums, "relax.add")
    pairs = [(sums, None)] if added is None else [tuple(added.args), tuple(added.args)[::-1]]
    for value, bias in pairs:
        for name in ("relax.matmul", *CONVOLUTIONS):
            product = step_before(value, name)
            if product is None:
                continue
            is_matrix = name == "relax.matmul"
            if is_matrix and not _are_columns(product, norm):
                continue
            if not is_matrix and (is_reshaped or not _has_channels_second(product)):
                continue
            shape = static_shape(product)
            if bias is None or _is_along(bias, -1 if is_matrix else 1 - len(shape), shape):
                return product, bias
    return None


def _has_channels_second(convolution: Any) -> bool:
    """Say whether a convolution's output has the channels that its weights lead with as its second axis."""
    attrs = convolution.attrs
    layouts = (str(attrs.data_layout), str(attrs.out_layout or attrs.data_layout))
    return all(layout[:2] == "NC" for layout in layouts) and str(attrs.kernel_layout)[0] == "O"


def _are_columns(product: Any, norm: Any) -> bool:
    """Say whether a batch norm is of the columns that a matrix product makes of rows, however these are laid out."""
    rows, weights = (static_shape(operand) for operand in product.args)
    normalized = static_shape(norm.args[0])
    is_known = len(rows) >= 2 and len(weights) == 2 and len(normalized) == 2
    return is_known and normalized[-1] == weights[-1]


def _is_along(bias: Any, axis: int, shape: tuple[int, ...]) -> bool:
    """Say whether a bias has one number for each place along an axis, counted from the end."""
    own = static_shape(bias)
    ones = (1,) * (len(shape) - len(own))
    wanted = [size if place - len(shape) == axis else 1 for place, size in enumerate(shape)]
    return bool(shape) and [*ones, *own] == wanted


def _scaled(product: Any, bias: Any, norm: Any) -> tuple[Any, Any]:
    """Return a product's weights with the scale of its batch norm in them, and what is then to be added."""
    from tvm import relax

    op = relax.op
    scale, shift = _scale_and_shift(norm)
    weights = product.args[1]
    if product.op.name != "relax.matmul":
        channels, ones = weights.ty.shape[0], (1,) * (len(weights.ty.shape) - 2)
        weights = op.multiply(weights, op.reshape(scale, (channels, 1, *ones)))
        scale, shift = (op.reshape(each, (1, channels, *ones)) for each in (scale, shift))
    else:
        weights = op.multiply(weights, scale)
    return weights, shift if bias is None else op.add(op.multiply(bias, scale), shift)


def _scale_and_shift(norm: Any) -> tuple[Any, Any]:
    """Return what a batch norm multiplies each channel by, and what it then adds."""
    from tvm import relax

    op, attrs = relax.op, norm.attrs
    data, gamma, beta, mean, variance = norm.args
    kind = str(data.ty.dtype)
    root = op.sqrt(op.add(variance, relax.const(float(attrs.epsilon), kind)))
    scale = op.divide(gamma if attrs.scale else relax.const(1.0, kind), root)
    shift = op.multiply(mean, scale)
    return scale, op.subtract(beta, shift) if attrs.center else op.negative(shift)


def _along_second(values: Any, norm: Any) -> Any:
    """Return a value a channel in the shape that is broadcast along the second axis of what is normalized."""
    from tvm import relax

    shape = norm.args[0].ty.shape
    return relax.op.reshape(values, (1, shape[1], *(1,) * (len(shape) - 2)))
