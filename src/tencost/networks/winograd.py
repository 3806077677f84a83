"""Convolutions of 3 by 3 taps (3 of a sequence) whose weights are known, as Winograd's where that takes less time.

See :mod:`tencost.programs.codegen.winograd`: the taps are transformed here, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tencost.networks.inputs import Array
from tencost.networks.sample_rules import static_shape
from tencost.programs.codegen.products import vectors_of
from tencost.programs.codegen.winograd import TAPS, Convolution, best_size, convolve, matrices

_LAYOUTS = {
    "relax.nn.conv1d": ("NWC", "WIO", "NWC"),
    "relax.nn.conv2d": ("NHWC", "HWIO", "NHWC"),
}
"""Operator -> layouts of its data, weights and output."""
_RANKS = {len(weights) for _, weights, _ in _LAYOUTS.values()}


def with_winograd(mod: Any, params: Sequence[Any], target: Any) -> Any:
    """Return a network whose convolutions of 3 by 3 taps, or of 3, multiply less where that is worth it.

    Args:
        mod: Relax module, channels last, its operators not lowered yet; ``main`` takes the inputs, then the weights.
        params: the weights, TVM tensors. Whole numbers are left: their sums, of a quantized network's data, are exact.
        target: that it is compiled for; for one that is no CPU nothing changes.
    """
    from tvm import relax
    from tvm.relax.expr_functor import PyExprMutator, mutator
    from tvm.target import Target

    vectors = vectors_of(target)
    if vectors is None:
        return mod
    cores = int(Target(target).attrs.get("num-cores", 1))
    names = mod["main"].params[len(mod["main"].params) - len(params) :]
    weights = {
        name
        for name, tensor in zip(names, params, strict=True)
        if len(tensor.shape) in _RANKS and not _is_whole(tensor.numpy())
    }

    def size_of(call: Any) -> tuple[Convolution, int] | None:
        convolution = _convolution(call)
        if convolution is None or call.args[1] not in weights:
            return None
        size = best_size(convolution, vectors, cores)
        return None if size is None else (convolution, size)

    @mutator
    class Rewrite(PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            call = self.visit_expr_post_order(call)
            chosen = size_of(call)
            if chosen is None:
                return call
            convolution, size = chosen
            function = self.builder_.add_func(convolve(convolution, size), "winograd")
            data, taps = call.args[0], self.builder_.normalize(_transformed(call.args[1], size))
            return relax.call_tir(function, relax.Tuple([data, taps]), call.ty)

    rewriting = Rewrite(mod)
    rewriting.builder_.update_func(mod.get_global_var("main"), rewriting.visit_expr(mod["main"]))
    return relax.transform.Normalize()(rewriting.builder_.get())


def _is_whole(array: Array) -> bool:
    return bool(np.array_equal(array, np.rint(array)))


def _convolution(call: Any) -> Convolution | None:
    """Return what a call convolves; None if it is none that :class:`Convolution` describes, or not in float32."""
    name = getattr(call.op, "name", "")
    if name not in _LAYOUTS:
        return None
    attrs, kinds = call.attrs, {str(value.ty.dtype) for value in (call, *call.args)}
    data, taps, output = (static_shape(value) for value in (*call.args, call))
    layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
    steps = {int(step) for step in (*attrs.strides, attrs.groups)}
    sides = set(taps[:-2])
    if layouts != _LAYOUTS[name] or steps != {1} or sides != {TAPS} or kinds != {"float32"}:
        return None
    dilations, padding = list(map(int, attrs.dilation)), list(map(int, attrs.padding))
    if 0 in output or not data or (len(dilations) == 2 and dilations != [1, 1]):
        return None
    images, height, *width, filters = output
    _, rows, *columns, channels = data
    if width:
        above, left, dilation = padding[0], padding[1], None
    else:
        above, left, dilation, width, columns = padding[0], 0, dilations[0], [1], [1]
    return Convolution(
        images, height, width[0], above, left, channels, filters, rows, columns[0], dilation
    )


def _transformed(taps: Any, size: int) -> Any:
    """Return transformed taps [size + 2, size + 2, channels, filters] of taps [3, 3, ...]; of [3, ...] one column."""
    from tvm import relax

    op = relax.op
    matrix = matrices(size)[1].astype("float32")
    *sides, channels, filters = static_shape(taps)
    if len(sides) == 1:
        inner = op.reshape(taps, (TAPS, channels * filters))
        return op.reshape(
            op.matmul(relax.const(matrix), inner), (size + TAPS - 1, 1, channels, filters)
        )
    left, right = relax.const(matrix), relax.const(matrix.T.copy())
    inner = op.permute_dims(taps, [2, 3, 0, 1])
    return op.permute_dims(op.matmul(op.matmul(left, inner), right), [2, 3, 0, 1])
