"""The same network written in other ways, which TVM compiles to faster code: batch norms folded, channels last.

Each is a rewriting of the Relax module before its operators are lowered and fused. The workloads are others than those
of the network as it is, so their records and programs do not meet.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tencost.config import GraphChoice
from tencost.networks.batch_norms import CONVOLUTIONS, fold_batch_norms
from tencost.networks.bindings import bindings_of
from tencost.networks.detours import without_detours
from tencost.networks.transpositions import with_few_transpositions


def written_as(mod: Any, params: list[Any], choice: GraphChoice) -> tuple[Any, list[Any]]:
    """Return a network as network.graph says, what depends on weights only computed.

    Args:
        mod: Relax module, its operators not lowered yet; ``main`` takes the inputs, then the weights.
        params: the weights, TVM tensors.
        choice: network.graph, one of :func:`candidates`.
    """
    if choice is GraphChoice.as_is:
        return mod, params
    mod = without_detours(fold_batch_norms(mod))
    if choice is GraphChoice.channels_last:
        mod = channels_last(mod)
    return with_weights_computed(with_few_transpositions(mod), params)


_TRANSPOSED = ("relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose")


def candidates(mod: Any, choice: GraphChoice, kind: str) -> tuple[GraphChoice, ...]:
    """Return the ways in which network.graph lets a network be written, the one that is wanted first.

    auto: channels last on CPUs, where the register tiles are for it, if the network has convolutions; else folded.

    Args:
        mod: as :func:`written_as` takes it.
        choice: network.graph.
        kind: of the target, ``llvm`` for CPUs.
    """
    if choice is not GraphChoice.auto:
        return (choice,)
    operators = {
        getattr(getattr(value, "op", None), "name", "")
        for value in bindings_of(mod["main"]).values()
    }
    convolves = not operators.isdisjoint(CONVOLUTIONS)
    first = (GraphChoice.channels_last,) if convolves and kind == "llvm" else ()
    return (*first, GraphChoice.folded, GraphChoice.as_is)


def channels_last(mod: Any) -> Any:
    """Have convolutions and pools work on NHWC (NDHWC); layouts change at the ends, and where an operator needs it."""
    from tvm import relax

    mod = _understood(_rewritten(mod, _without_zeros_between))
    fenced, is_fenced = _fenced(mod)
    mod = relax.transform.ConvertLayout(CONVOLUTIONS)(fenced)
    if is_fenced:
        mod = _unfenced(relax.transform.Normalize()(mod))
    mod = relax.transform.CanonicalizeBindings()(relax.transform.Normalize()(mod))
    return relax.transform.DeadCodeElimination()(with_few_transpositions(mod))


def _without_zeros_between(call: Any) -> Any:
    """Write a transposed convolution as a plain one whose channels are then laid side by side as pixels.

    TVM puts zeros between the pixels: with strides of 2 three quarters of the products are with those. But the sum at
    u = stride * q + r has the weights r, r + stride, ... for the inputs q, q - 1, ... only. So it is one of the
    channels of a convolution of all inputs, and there is one for each r. Groups and dilations stay as they are.
    """
    from tvm import relax

    op, attrs = relax.op, call.attrs
    if call.op.name not in _TRANSPOSED or int(attrs.groups) != 1:
        return call
    data, weights = call.args
    if not all(hasattr(size, "value") for size in [*data.ty.shape, *weights.ty.shape]):
        return call
    batch, _, *image = map(int, data.ty.shape)
    channels, filters, *kernel = map(int, weights.ty.shape)
    rank, kind = len(image), str(data.ty.dtype)
    strides, dilation, begins = (
        list(map(int, part))[:rank] for part in (attrs.strides, attrs.dilation, attrs.padding)
    )
    taps = [-(-size // stride) for size, stride in zip(kernel, strides, strict=True)]
    places = [size + count - 1 for size, count in zip(image, taps, strict=True)]
    sums = [size * stride for size, stride in zip(places, strides, strict=True)]
    ends = [begin + int(size) for begin, size in zip(begins, list(call.ty.shape)[2:], strict=True)]
    is_beyond = any(end > size for end, size in zip(ends, sums, strict=True))  # output_padding
    if max(strides) == 1 or max(dilation) > 1 or is_beyond:
        return call
    sizes = [channels, filters, *kernel]
    for axis, (count, stride) in enumerate(zip(taps, strides, strict=True), start=2):
        lacking = count * stride - sizes[axis]
        if lacking:
            zeros = np.zeros([*sizes[:axis], lacking, *sizes[axis + 1 :]], kind)
            weights, sizes[axis] = op.concat([weights, relax.const(zeros)], axis), count * stride
    pairs = [size for pair in zip(taps, strides, strict=True) for size in pair]
    along, phases = list(range(2, 2 + 2 * rank, 2)), list(range(3, 3 + 2 * rank, 2))
    parts = op.flip(op.reshape(weights, (channels, filters, *pairs)), along[0])
    for axis in along[1:]:
        parts = op.flip(parts, axis)
    parts = op.permute_dims(parts, [*phases, 1, 0, *along])
    filters_of_all = op.reshape(parts, (math.prod(strides) * filters, channels, *taps))
    convolve = op.nn.conv1d if rank == 1 else op.nn.conv2d
    margins = [count - 1 for count in taps]
    out = convolve(data, filters_of_all, padding=[*margins, *margins])
    out = op.reshape(out, (batch, *strides, filters, *places))
    axes = [axis for place in range(rank) for axis in (2 + rank + place, 1 + place)]
    out = op.reshape(op.permute_dims(out, [0, 1 + rank, *axes]), (batch, filters, *sums))
    return op.strided_slice(out, list(range(2, 2 + rank)), begins, ends)


def _fenced(mod: Any) -> tuple[Any, bool]:
    """Put a reshape, whose layout no pass changes, before each operator that TVM cannot turn; say whether one is there.

    A transposed convolution of NHWC is not lowered (:func:`_without_zeros_between` has left some), a layer norm over
    several axes would read its weights in another order than the numbers, and a pool of the image that a row of NWC is
    made into (as torch.export writes 1-D pools) would go along the wrong axis.
    """
    from tvm import relax

    names: list[str] = []

    def rewrite(call: Any) -> Any:
        name = call.op.name
        several = name == "relax.nn.layer_norm" and len(call.attrs.axes) > 1
        is_image = name == "relax.expand_dims" and len(call.args[0].ty.shape) == 3
        if not several and not is_image and name not in _TRANSPOSED:
            return call
        names.append(name)
        data, *others = call.args
        data = relax.op.reshape(data, data.ty.shape)
        return relax.Call(call.op, [data, *others], call.attrs, call.ty_args)

    fenced = _rewritten(mod, rewrite)
    return (fenced, True) if names else (mod, False)


def _unfenced(mod: Any) -> Any:
    """Take out what :func:`_fenced` put in: reshapes that change nothing."""
    from tvm_ffi import structural_equal

    def rewrite(call: Any) -> Any:
        data = call.args[0] if call.op.name == "relax.reshape" else None
        same = data is not None and structural_equal(data.ty.shape, call.args[1])
        return data if same else call

    return _rewritten(mod, rewrite)


def _understood(mod: Any) -> Any:
    """Write operators as TVM's change of layouts knows them.

    Of minimum and maximum it knows that they keep a layout, of clip it does not; a squeezed axis that is counted from
    the end makes it ask for memory without end (std::bad_alloc), and a stack of numbers without axes ends the process.
    """
    from tvm import relax

    def rewrite(call: Any) -> Any:
        if call.op.name == "relax.stack" and call.ty.ndim == 1:
            numbers = [relax.TupleGetItem(call.args[0], i) for i in range(int(call.ty.shape[0]))]
            return relax.op.concat([relax.op.reshape(number, (1,)) for number in numbers], 0)
        if call.op.name == "relax.squeeze" and call.attrs.axis is not None:
            rank = len(call.args[0].ty.shape)
            return relax.op.squeeze(call.args[0], [int(axis) % rank for axis in call.attrs.axis])
        if call.op.name != "relax.clip":
            return call
        data, low, high = call.args
        kind = str(data.ty.dtype)
        low, high = (relax.const(float(bound.value), kind) for bound in (low, high))
        return relax.op.minimum(relax.op.maximum(data, low), high)

    return _rewritten(mod, rewrite)


_ARITHMETIC = {
    f"relax.{name}": getattr(np, name)
    for name in ("add", "subtract", "multiply", "divide", "negative", "sqrt", "matmul")
}


def with_weights_computed(mod: Any, params: list[Any]) -> tuple[Any, list[Any]]:
    """Return the module with what NumPy can compute of weights alone as weights, and these.

    TVM would fold it, too, once the weights are bound, but compiles a function for each value: half a minute for the
    batch norms of a mobilenet_v2.
    """
    import tvm
    from tvm import relax
    from tvm.relax.expr_functor import PyExprMutator, mutator

    main = mod["main"]
    inputs = list(main.params)[: len(main.params) - len(params)]
    weights = list(main.params)[len(inputs) :]
    arrays = {name: tensor.numpy() for name, tensor in zip(weights, params, strict=True)}
    replacements: dict[Any, Any] = {}
    for variable, value in bindings_of(main).items():
        array = _computed(value, arrays)
        if isinstance(array, list):  # parts of a weight, each a variable of its own below
            arrays[variable] = array
        elif array is not None:
            replacement = relax.Var(f"weight_{len(replacements)}", variable.ty)
            replacements[variable] = replacement
            arrays[variable] = arrays[replacement] = array

    @mutator
    class Replace(PyExprMutator):
        def visit_var_binding_(self, binding: Any) -> None:
            if binding.var not in replacements:
                super().visit_var_binding_(binding)

        def visit_dataflow_var_(self, variable: Any) -> Any:
            if variable in replacements:
                return replacements[variable]
            return super().visit_dataflow_var_(variable)

        def visit_var_(self, variable: Any) -> Any:
            return (
                replacements[variable] if variable in replacements else super().visit_var_(variable)
            )

    everything = [*inputs, *weights, *replacements.values()]
    function = relax.Function(everything, Replace(mod).visit_expr(main.body))
    body = relax.analysis.remove_all_unused(function).body
    used = set(relax.analysis.free_vars(body))
    parameters = [name for name in (*weights, *replacements.values()) if name in used]
    function = relax.Function([*inputs, *parameters], body)
    for name, value in dict(main.attrs or {}).items():
        function = function.with_attr(name, value)
    changed = tvm.IRModule({**mod.functions, mod.get_global_var("main"): function}, attrs=mod.attrs)
    tensors = [tvm.runtime.tensor(arrays[name]) for name in parameters]
    return relax.transform.Normalize()(changed), tensors


def _computed(value: Any, known_arrays: dict[Any, Any]) -> Any:
    """Return what a binding's value is, an array, or a list of those; None where it depends on inputs or on others."""
    from tvm import ir, relax

    if isinstance(value, relax.TupleGetItem):
        parts = known_arrays.get(value.tuple_value)
        return parts[value.index] if isinstance(parts, list) else None
    if not isinstance(value, relax.Call):
        return None
    name = getattr(value.op, "name", "")
    arguments = value.args[0].fields if name == "relax.concat" else value.args
    arrays = [
        argument.value.numpy()
        if isinstance(argument, ir.GenericConst)
        else known_arrays.get(argument)
        for argument in arguments
    ]
    if name == "relax.concat":
        parts = [array for array in arrays if array is not None]
        is_whole = len(parts) == len(arrays)
        return np.concatenate(parts, int(value.attrs.axis or 0)) if is_whole else None
    if name == "relax.strided_slice" and arrays[0] is not None and len(value.args) == 4:
        axes, begins, ends = ([int(item.value) for item in part.fields] for part in value.args[1:])
        places = [slice(None)] * arrays[0].ndim
        for axis, begin, end in zip(axes, begins, ends, strict=True):
            places[axis] = slice(begin, end)
        return np.ascontiguousarray(arrays[0][tuple(places)])
    if name == "relax.flip" and arrays[0] is not None:
        return np.flip(arrays[0], int(value.attrs.axis))
    if name == "relax.reshape" and arrays[0] is not None:
        return arrays[0].reshape([int(size) for size in value.ty.shape])
    if name == "relax.permute_dims" and arrays[0] is not None:
        axes = value.attrs.axes
        return np.ascontiguousarray(np.transpose(arrays[0], axes and [int(axis) for axis in axes]))
    if name == "relax.split" and arrays[0] is not None:
        sections = value.attrs.indices_or_sections
        borders = (
            int(sections) if hasattr(sections, "value") else [int(place) for place in sections]
        )
        parts = np.split(arrays[0], borders, axis=int(value.attrs.axis))
        return [np.ascontiguousarray(part) for part in parts]
    if name in _ARITHMETIC and all(array is not None for array in arrays):
        return _ARITHMETIC[name](*arrays)
    return None


def _rewritten(mod: Any, rewrite: Any) -> Any:
    """Replace calls of operators in main."""
    from tvm import ir, relax
    from tvm.relax.expr_functor import PyExprMutator, mutator

    @mutator
    class Rewrite(PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            call = self.visit_expr_post_order(call)
            return rewrite(call) if isinstance(call.op, ir.Op) else call

    rewriting = Rewrite(mod)
    rewriting.builder_.update_func(mod.get_global_var("main"), rewriting.visit_expr(mod["main"]))
    return relax.transform.Normalize()(rewriting.builder_.get())


_REORDERS = "meta_schedule.layout_rewrite_preproc"
"""What MetaSchedule and our rules write at a block that reorders a weight."""


def with_free_weights(mod: Any) -> Any:
    """Let programs have constant weights in another order of their own; nothing else of the workloads changes.

    MetaSchedule's programs of such a function begin with a block that reorders them. It leaves the function when the
    network is compiled (:func:`with_packed_weights`), and is left out where a program is timed.
    """
    from tvm import IRModule, relax, tirx

    marked = relax.transform.AttachAttrLayoutFreeBuffers()(mod)
    functions = dict(marked.functions.items())
    for name, function in functions.items():
        attributes = dict(function.attrs or {})
        if isinstance(function, tirx.PrimFunc) and not list(
            attributes.get("layout_free_buffers", [0])
        ):
            functions[name] = function.without_attr("layout_free_buffers")
    return IRModule(functions, attrs=marked.attrs)


def with_packed_weights(mod: Any) -> Any:
    """Reorder the weights now, as the programs that are in the module ask for, instead of at each call.

    Only these programs are shown to TVM, whose pass refuses others: loops without blocks, as of ScatterElements.
    """
    from tvm import IRModule, relax, tirx

    others = {
        name: function
        for name, function in mod.functions.items()
        if isinstance(function, tirx.PrimFunc) and not _reorders(function)
    }
    reordering = {name: function for name, function in mod.functions.items() if name not in others}
    split = relax.transform.SplitLayoutRewritePreproc()(IRModule(reordering, attrs=mod.attrs))
    whole = IRModule({**split.functions, **others}, attrs=split.attrs)
    whole = relax.transform.DeadCodeElimination()(whole)
    # Programs that several calls share reorder their weights once.
    whole = relax.transform.EliminateCommonSubexpr(call_only=True)(whole)
    return relax.transform.FoldConstant()(whole)


def _reorders(function: Any) -> bool:
    """Say whether a program begins with a block that reorders a weight."""
    from tvm.s_tir import SBlock
    from tvm_ffi import structural_walk

    marks: list[bool] = []
    structural_walk(function, (SBlock, lambda block: marks.append(_REORDERS in block.annotations)))
    return any(marks)
