"""A batch computed sample by sample: what a sample's operators hand on then stays in a core's caches.

Eight images through one layer after the other write and read all of a layer's values beyond the second cache; each
image through all layers writes and reads an eighth (depth first, as Alwani et al., 2016, fuse layers). The weights are
read again for each sample; where that is more, the batch stays together, or is computed in a few parts.

Several cores take a sample each, or as many each, and the next together: a core then reads nothing that another wrote.

It is sound where the samples do not meet: every tensor's leading axis is that of the samples, or of several numbers of
each (heads of attention), and no operator mixes along it. Which ones those are, :mod:`~tencost.networks.sample_rules`
says; a network with any other stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tencost.networks.lowered_pads import with_pads
from tencost.networks.sample_rules import (
    IN_PLACE,
    RULES,
    SHAPED,
    TABLES,
    MeetError,
    count_of,
    is_divided,
    static_shape,
)
from tencost.programs.codegen.blocks import replaced
from tencost.programs.codegen.tiles import LAST_CACHE, SECOND_CACHE

MOST_PARTS = 16
"""Parts of a batch, each with its own calls: those of a larger batch are of several samples."""
FEW_ROWS = 32
"""Rows that a weight is multiplied with in the time in which the next one comes from the last cache."""
MOST_CALLS = 6400
"""Operators of all parts together: they all stand in the graph, which takes time to compile."""


def sample_by_sample(mod: Any, inputs: int, cores: int = 1) -> Any:
    """Return a network that computes the samples of a batch one after the other; the same one where that is no gain.

    Args:
        mod: Relax module, its operators not lowered yet; ``main`` takes the inputs, then the weights.
        inputs: how many parameters of ``main`` are inputs.
        cores: among which the samples of a part are divided, if they can be.
    """
    sizes = {(static_shape(parameter) or (1,))[0] for parameter in mod["main"].params[:inputs]}
    if len(sizes) != 1 or not sizes.isdisjoint({0, 1}):
        return mod
    (samples,) = sizes
    known = with_pads(mod)
    main = known["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    if not bindings:  # an input is returned as it is
        return mod
    try:
        divided = _divided(bindings, main.params[:inputs], samples)
        parts = _parts_of(bindings, divided, samples, cores)
        return mod if parts == 1 else _rewritten(known, inputs, divided, parts)
    except MeetError:
        return mod


def _divided(bindings: Sequence[Any], inputs: Sequence[Any], samples: int) -> dict[Any, bool]:
    """Return the variables whose leading axis is that of the samples; raises MeetError where these meet."""
    from tvm import relax

    divided = dict.fromkeys(inputs, True)
    for binding in bindings:
        value = binding.value
        if isinstance(value, relax.Call):
            if any(is_divided(argument, divided) for argument in value.args):
                name = getattr(value.op, "name", "")
                shape = static_shape(binding.var)
                if name not in RULES or (shape and shape[0] % samples):
                    raise MeetError(name)
                RULES[name](value, divided)
                divided[binding.var] = True
        elif is_divided(value, divided):
            divided[binding.var] = True
    return divided


def _parts_of(
    bindings: Sequence[Any], divided: Mapping[Any, bool], samples: int, cores: int
) -> int:
    """Return in how many parts the batch is computed: those with which the least is read from beyond the second cache.

    That are the values of the operators whose parts the caches do not hold, and, for each part again, the weights, as
    far as a core waits for them: with many rows it computes while they come. A part has a sample for each core, or for
    as many cores as the batch has samples for. What is computed where another operator stores its values, and the
    scores of an attention, are neither written nor read.
    """
    from tvm import relax

    values: list[int] = []
    # Bytes, and with how many rows of all parts each number is multiplied.
    weights: list[tuple[int, int]] = []
    scores = _scores(bindings, divided)
    for binding in bindings:
        call = binding.value
        if binding.var not in divided or not isinstance(call, relax.Call):
            continue
        arguments = [argument for argument in call.args if static_shape(argument)]
        handed = [argument for argument in arguments if is_divided(argument, divided)]
        stored = handed[1:] if call.op.name in IN_PLACE else [binding.var, *handed]
        values.append(4 * sum(count_of(value) for value in stored if value not in scores))
        if call.op.name not in TABLES:  # of which few rows are read
            known = 4 * sum(map(count_of, arguments)) - 4 * sum(map(count_of, handed))
            rows = math.prod(static_shape(binding.var)[:-1])
            weights.append((known, max(rows, 1)))

    def cost(size: int, parts: int, caches: int) -> int:
        """Return what reading so much of all parts costs: twice as much from memory as from the last cache."""
        return size * ((size > parts * caches) + (size > parts * LAST_CACHE))

    def beyond(parts: int) -> tuple[float, int]:
        total = sum(size for size, _ in weights)
        waits = sum(size * min(1.0, FEW_ROWS * parts / rows) for size, rows in weights if size)
        again = parts * waits * cost(total, 1, SECOND_CACHE // 2) / max(total, 1)
        return again + sum(cost(size, parts, each * SECOND_CACHE) for size in values), parts

    each = math.gcd(samples, cores)
    most = min(samples, MOST_PARTS, max(1, MOST_CALLS // len(bindings)))
    counts = [count for count in range(1, most + 1) if samples % (count * each) == 0]
    return min(beyond(count) for count in counts)[1]


def _scores(bindings: Sequence[Any], divided: Mapping[Any, bool]) -> set[Any]:
    """Return the variables of attentions, from the product of queries and keys to the shares that weigh the values."""
    from tvm import relax

    values = {binding.var: binding.value for binding in bindings}

    def is_call(value: Any, *names: str) -> bool:
        return isinstance(value, relax.Call) and getattr(value.op, "name", "") in names

    found: set[Any] = set()
    for variable, call in values.items():
        if not is_call(call, "relax.nn.softmax"):
            continue
        chain = [variable, call.args[0]]
        while is_call(values.get(chain[-1]), *IN_PLACE):
            chain.append(values[chain[-1]].args[0])
        product: Any = values.get(chain[-1])
        if is_call(product, "relax.matmul") and all(
            is_divided(each, divided) for each in product.args
        ):
            found.update(chain)
    return found


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
                    writing.whole[binding.var] = builder.emit(
                        replaced(binding.value, writing.whole)
                    )
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
        """Write what a divided variable is for a part; raises MeetError where that has another shape than a part's."""
        from tvm import relax

        shape, value = static_shape(binding.var), binding.value
        shape = shape and (shape[0] // self._parts, *shape[1:])
        if isinstance(value, relax.Call):
            shared = RULES[value.op.name](value, self._divided)
            arguments = [
                self._read(argument, part, is_shared=place in shared)
                for place, argument in enumerate(value.args)
            ]
            if value.op.name in SHAPED:
                arguments[1] = relax.ShapeExpr(list(shape))
            value = relax.Call(value.op, arguments, value.attrs)
        else:
            value = self._read(value, part)
        made = self._builder.emit(value)
        if static_shape(made) != shape:
            raise MeetError(binding.var.name_hint)
        self.of_part[part][binding.var] = made

    def share(self, value: Any, part: int) -> Any:
        """Return a part's share of a tensor's leading axis."""
        from tvm import relax

        size = static_shape(value)[0] // self._parts
        begin = part * size
        return self._builder.emit(relax.op.strided_slice(value, [0], [begin], [begin + size]))

    def together(self, output: Any, values: Mapping[Any, Any]) -> Any:
        """Return an output of all parts; `values` says what each variable is bound to."""
        from tvm import relax

        if isinstance(output, relax.Tuple):
            return relax.Tuple([self.together(field, values) for field in output.fields])
        if not is_divided(output, self._divided):
            return self.whole.get(output, output)
        if isinstance(values.get(output), (relax.Tuple, relax.Var)):
            return self.together(values[output], values)
        if not static_shape(output):
            raise MeetError("several outputs of one operator")
        return self._builder.emit(relax.op.concat([of[output] for of in self.of_part], axis=0))

    def _read(self, value: Any, part: int, *, is_shared: bool = False) -> Any:
        from tvm import relax

        if isinstance(value, relax.Tuple):
            fields = [self._read(field, part, is_shared=is_shared) for field in value.fields]
            return relax.Tuple(fields)
        if isinstance(value, relax.TupleGetItem):
            return relax.TupleGetItem(self._read(value.tuple_value, part), value.index)
        if is_divided(value, self._divided):
            return self.of_part[part][value]
        value = self.whole.get(value, value) if isinstance(value, relax.Var) else value
        return self.share(value, part) if is_shared else value
