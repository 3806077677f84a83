"""A batch computed sample by sample: what a sample's operators hand on then stays in a core's caches.

Eight images through one layer after the other write and read all of a layer's values beyond the second cache; each
image through all layers writes and reads an eighth (depth first, as Alwani et al., 2016, fuse layers). The weights are
read again for each sample; where that is more, the batch stays together, or is computed in a few parts.

It is sound where the samples do not meet: every tensor's leading axis is that of the samples, or of several numbers of
each (heads of attention), and no operator mixes along it. Which ones those are, :data:`_RULES` says; a network with any
other stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tencost.programs.codegen.tiles import SECOND_CACHE

MOST_PARTS = 16
"""Parts of a batch, each with its own calls: those of a larger batch are of several samples."""
MOST_CALLS = 6400
"""Operators of all parts together: they all stand in the graph, which takes time to compile."""


class _MeetError(Exception):
    """Samples meet in an operator, or may."""


def sample_by_sample(mod: Any, inputs: int) -> Any:
    """Return a network that computes the samples of a batch one after the other; the same one where that is no gain.

    Args:
        mod: Relax module, its operators not lowered yet; ``main`` takes the inputs, then the weights.
        inputs: how many parameters of ``main`` are inputs.
    """
    sizes = {(_shape(parameter) or (1,))[0] for parameter in mod["main"].params[:inputs]}
    if len(sizes) != 1 or sizes == {1}:
        return mod
    (samples,) = sizes
    known = _with_pads(mod)
    main = known["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    try:
        divided = _divided(bindings, main.params[:inputs], samples)
        parts = _parts_of(bindings, divided, samples)
        return mod if parts == 1 else _rewritten(known, inputs, divided, parts)
    except _MeetError:
        return mod


def _with_pads(mod: Any) -> Any:
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
            found = _padding_of(mod[call.args[0]], _shape(data), _shape(call))
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
            numbers = (_number(number, axis) for number in (begin, length))
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


def _number(value: int, like: Any) -> Any:
    from tvm import tirx

    return tirx.const(value, str(like.ty.dtype))


def _divided(bindings: Sequence[Any], inputs: Sequence[Any], samples: int) -> dict[Any, bool]:
    """Return the variables whose leading axis is that of the samples; raises _MeetError where these meet."""
    from tvm import relax

    divided = dict.fromkeys(inputs, True)
    for binding in bindings:
        value = binding.value
        if isinstance(value, relax.Call):
            if any(_is_divided(argument, divided) for argument in value.args):
                name = getattr(value.op, "name", "")
                shape = _shape(binding.var)
                if name not in _RULES or (shape and shape[0] % samples):
                    raise _MeetError(name)
                _RULES[name](value, divided)
                divided[binding.var] = True
        elif _is_divided(value, divided):
            divided[binding.var] = True
    return divided


def _is_divided(value: Any, divided: Mapping[Any, bool]) -> bool:
    from tvm import relax

    if isinstance(value, relax.Tuple):
        return any(_is_divided(field, divided) for field in value.fields)
    if isinstance(value, relax.TupleGetItem):
        return _is_divided(value.tuple_value, divided)
    return isinstance(value, relax.Var) and divided.get(value, False)


def _parts_of(bindings: Sequence[Any], divided: Mapping[Any, bool], samples: int) -> int:
    """Return in how many parts the batch is computed: those with which the least is read from beyond the second cache.

    That are the values of the operators whose parts the cache does not hold, and, for each part again, the weights.
    """
    from tvm import relax

    values, weights = [], 0
    for binding in bindings:
        call = binding.value
        if binding.var not in divided or not isinstance(call, relax.Call):
            continue
        arguments = [argument for argument in call.args if _shape(argument)]
        handed = [each for each in arguments if _is_divided(each, divided)]
        values.append(4 * sum(map(_size, [binding.var, *handed])))
        if call.op.name not in _TABLES:  # of which few rows are read
            weights += 4 * sum(map(_size, arguments)) - 4 * sum(map(_size, handed))

    def beyond(parts: int) -> tuple[int, int]:
        again = weights * parts if weights > SECOND_CACHE // 2 else weights
        return again + sum(size for size in values if size > parts * SECOND_CACHE), parts

    most = min(samples, MOST_PARTS, max(1, MOST_CALLS // len(bindings)))
    counts = range(1, most + 1)
    return min(beyond(count) for count in counts if samples % count == 0)[1]


def _rewritten(mod: Any, inputs: int, divided: Mapping[Any, bool], parts: int) -> Any:
    """Return the network, each operator on divided tensors called for each part before the next part's."""
    from tvm import IRModule, relax

    main = mod["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    builder = relax.BlockBuilder()
    with builder.function("main", list(main.params), attrs=dict(main.attrs or {})):
        with builder.dataflow():
            writing = _Writing(builder, divided, parts)
            for binding in bindings:
                if binding.var not in divided:
                    writing.whole[binding.var] = builder.emit(_with(binding.value, writing.whole))
            for part in range(parts):
                for parameter in main.params[:inputs]:
                    writing.of_part[part][parameter] = writing.share(parameter, part)
                for binding in bindings:
                    if binding.var in divided:
                        writing.write(binding, part)
            values = {binding.var: binding.value for binding in bindings}
            output = builder.emit_output(writing.together(main.body.body, values))
        builder.emit_func_output(output)
    return IRModule(builder.get().functions, attrs=mod.attrs)


class _Writing:
    """A network's dataflow as it is written anew.

    Attributes:
        whole: what the variables that are not divided are now.
        of_part: of each part, what the divided ones are.
    """

    def __init__(self, builder: Any, divided: Mapping[Any, bool], parts: int) -> None:
        self._builder, self._divided, self._parts = builder, divided, parts
        self.whole: dict[Any, Any] = {}
        self.of_part: list[dict[Any, Any]] = [{} for _ in range(parts)]

    def write(self, binding: Any, part: int) -> None:
        """Write what a divided variable is for a part; raises _MeetError where that has another shape than a part's."""
        from tvm import relax

        shape, value = _shape(binding.var), binding.value
        shape = shape and (shape[0] // self._parts, *shape[1:])
        if isinstance(value, relax.Call):
            shared = _RULES[value.op.name](value, self._divided)
            arguments = [
                self._read(argument, part, is_shared=place in shared)
                for place, argument in enumerate(value.args)
            ]
            if value.op.name in _SHAPED:
                arguments[1] = relax.ShapeExpr(list(shape))
            value = relax.Call(value.op, arguments, value.attrs)
        else:
            value = self._read(value, part)
        made = self._builder.emit(value)
        if _shape(made) != shape:
            raise _MeetError(binding.var.name_hint)
        self.of_part[part][binding.var] = made

    def share(self, value: Any, part: int) -> Any:
        """Return a part's share of a tensor's leading axis."""
        from tvm import relax

        size = _shape(value)[0] // self._parts
        begin = part * size
        return self._builder.emit(relax.op.strided_slice(value, [0], [begin], [begin + size]))

    def together(self, output: Any, values: Mapping[Any, Any]) -> Any:
        """Return an output of all parts; `values` says what each variable is bound to."""
        from tvm import relax

        if isinstance(output, relax.Tuple):
            return relax.Tuple([self.together(field, values) for field in output.fields])
        if not _is_divided(output, self._divided):
            return self.whole.get(output, output)
        if isinstance(values.get(output), (relax.Tuple, relax.Var)):
            return self.together(values[output], values)
        if not _shape(output):
            raise _MeetError("several outputs of one operator")
        return self._builder.emit(relax.op.concat([of[output] for of in self.of_part], axis=0))

    def _read(self, value: Any, part: int, *, is_shared: bool = False) -> Any:
        from tvm import relax

        if isinstance(value, relax.Tuple):
            fields = [self._read(field, part, is_shared=is_shared) for field in value.fields]
            return relax.Tuple(fields)
        if isinstance(value, relax.TupleGetItem):
            return relax.TupleGetItem(self._read(value.tuple_value, part), value.index)
        if _is_divided(value, self._divided):
            return self.of_part[part][value]
        value = self.whole.get(value, value) if isinstance(value, relax.Var) else value
        return self.share(value, part) if is_shared else value


def _with(value: Any, values: Mapping[Any, Any]) -> Any:
    """Return an expression with its variables replaced."""
    from tvm import ir
    from tvm_ffi import structural_map

    return structural_map(value, (ir.Var, lambda name: values.get(name, name)))


def _shape(value: Any) -> tuple[int, ...]:
    """Return a tensor's shape; empty of anything else, of a number, and of shapes that are not known."""
    sizes = getattr(getattr(value, "ty", None), "shape", None)
    sizes = getattr(sizes, "values", sizes)
    if sizes is None or not all(hasattr(size, "value") for size in sizes):
        return ()
    return tuple(int(size) for size in sizes)


def _size(value: Any) -> int:
    return math.prod(_shape(value))


Rule = Callable[[Any, Mapping[Any, bool]], set[int]]
"""A call and the divided variables -> the arguments of which each part reads its own share of the leading axis.

It raises _MeetError where samples meet.
"""


def _aligned(call: Any, divided: Mapping[Any, bool]) -> set[int]:
    """An operator of which every number needs those of the same place, broadcast: its leading axis is the operands'."""
    from tvm import relax

    arguments = list(call.args)
    if isinstance(arguments[0], relax.Tuple):
        arguments = list(arguments[0].fields)
    rank, shared = len(_shape(call)), set()
    for place, argument in enumerate(arguments):
        shape = _shape(argument)
        if not shape:
            if _is_divided(argument, divided):
                raise _MeetError
            continue
        leads = len(shape) == rank and shape[0] == _shape(call)[0]
        if leads and not _is_divided(argument, divided):
            shared.add(place)
        elif not leads and (
            _is_divided(argument, divided) or (len(shape) == rank and shape[0] > 1)
        ):
            raise _MeetError
    return shared


def _needs(condition: Callable[[Any], bool]) -> Rule:
    """Return the rule of an operator of which the first argument alone may be divided, under a condition."""

    def rule(call: Any, divided: Mapping[Any, bool]) -> set[int]:
        others = any(_is_divided(argument, divided) for argument in call.args[1:])
        if others or not _is_divided(call.args[0], divided) or not condition(call):
            raise _MeetError
        return set()

    return rule


def _rank(call: Any) -> int:
    return len(_shape(call.args[0]))


def _axes(call: Any, names: Sequence[str]) -> list[int]:
    """Return an operator's axes, not negative; raises _MeetError where it takes all of them."""
    found: list[int] = []
    for name in names:
        value = getattr(call.attrs, name)
        if value is None:
            raise _MeetError
        values = value if hasattr(value, "__len__") else [value]
        found += [int(axis) % _rank(call) for axis in values]
    return found


def _not_along(*names: str) -> Rule:
    return _needs(lambda call: 0 not in _axes(call, names))


def _matmul(call: Any, divided: Mapping[Any, bool]) -> set[int]:
    """Rows, or stacks, of the first operand are divided; stacks of the second one with those of the first."""
    first, second = (len(_shape(argument)) for argument in call.args)
    if not _is_divided(call.args[1], divided):
        if first == 1 or (second > 2 and first == 2):
            raise _MeetError
        if second == 2:
            return set()
    elif second == 2 or first == 2:
        raise _MeetError
    return _aligned(call, divided)


def _take(call: Any, divided: Mapping[Any, bool]) -> set[int]:
    """Places are divided, of a table; or the same places are taken of each sample."""
    places = _is_divided(call.args[1], divided)
    axis = call.attrs.axis
    if axis is None or places == _is_divided(call.args[0], divided):
        raise _MeetError
    if (int(axis) % _rank(call) == 0) != places:
        raise _MeetError
    return set()


def _concat(call: Any, _divided: Mapping[Any, bool]) -> set[int]:
    from tvm import relax

    if not isinstance(call.args[0], relax.Tuple) or int(call.attrs.axis) % len(_shape(call)) == 0:
        raise _MeetError
    leading = {(_shape(field) or (0,))[0] for field in call.args[0].fields}
    if leading != {_shape(call)[0]}:
        raise _MeetError
    return {0}


def _gathered(call: Any, divided: Mapping[Any, bool]) -> set[int]:
    if int(call.attrs.axis) % _rank(call) == 0:
        raise _MeetError
    return _aligned(call, divided)


def _sliced(call: Any) -> bool:
    """Whether a slice leaves the leading axis whole."""
    axes = [int(axis.value) % _rank(call) for axis in call.args[1].fields]
    return 0 not in axes


def _reshaped(call: Any) -> bool:
    return len(_shape(call)) > 0


_SAME_PLACE = (
    "abs",
    "add",
    "astype",
    "bitwise_and",
    "bitwise_or",
    "ceil",
    "clip",
    "cos",
    "cosh",
    "divide",
    "equal",
    "erf",
    "exp",
    "floor",
    "floor_divide",
    "floor_mod",
    "greater",
    "greater_equal",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "negative",
    "not_equal",
    "nn.gelu",
    "nn.gelu_tanh",
    "nn.leakyrelu",
    "nn.relu",
    "nn.relu6",
    "nn.silu",
    "nn.softplus",
    "power",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "where",
)
_WINDOWS = (
    "nn.avg_pool1d",
    "nn.avg_pool2d",
    "nn.avg_pool3d",
    "nn.max_pool1d",
    "nn.max_pool2d",
    "nn.max_pool3d",
    "nn.adaptive_avg_pool1d",
    "nn.adaptive_avg_pool2d",
    "nn.adaptive_avg_pool3d",
    "image.resize2d",
)
_CONVOLUTIONS = (
    "nn.conv1d",
    "nn.conv2d",
    "nn.conv3d",
    "nn.conv1d_transpose",
    "nn.conv2d_transpose",
)
_SUMS = ("max", "mean", "min", "prod", "std", "sum", "variance")
_TABLES = ("relax.take", "relax.gather_elements")
_SHAPED = ("relax.reshape", "relax.broadcast_to")
_RULES: dict[str, Rule] = {
    **{f"relax.{name}": _aligned for name in _SAME_PLACE},
    **{f"relax.{name}": _needs(lambda call: str(call.attrs.layout)[0] == "N") for name in _WINDOWS},
    **{
        f"relax.{name}": _needs(lambda call: str(call.attrs.data_layout)[0] == "N")
        for name in _CONVOLUTIONS
    },
    **{f"relax.{name}": _not_along("axis") for name in (*_SUMS, "argmax", "argmin", "cumsum")},
    **{f"relax.nn.{name}": _not_along("axis") for name in ("softmax", "log_softmax")},
    **{f"relax.nn.{name}": _not_along("axes") for name in ("layer_norm", "rms_norm")},
    "relax.nn.group_norm": _not_along("channel_axis", "axes"),
    "relax.nn.instance_norm": _not_along("channel_axis", "axes"),
    "relax.nn.batch_norm": _not_along("axis"),
    "relax.nn.pad": _needs(lambda call: not any(map(int, list(call.attrs.pad_width)[:2]))),
    "relax.broadcast_to": _needs(lambda call: len(_shape(call)) == _rank(call)),
    "relax.concat": _concat,
    "relax.expand_dims": _needs(
        lambda call: all(int(axis) % len(_shape(call)) for axis in call.attrs.axis)
    ),
    "relax.gather_elements": _gathered,
    "relax.matmul": _matmul,
    "relax.permute_dims": _needs(
        lambda call: call.attrs.axes is not None and int(call.attrs.axes[0]) % _rank(call) == 0
    ),
    "relax.reshape": _needs(_reshaped),
    "relax.split": _not_along("axis"),
    "relax.squeeze": _not_along("axis"),
    "relax.strided_slice": _needs(_sliced),
    "relax.take": _take,
}
"""Operator -> its rule. A reshape keeps the order of numbers: what leads is divided before and after it."""
