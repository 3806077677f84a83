"""Attention in one function: scores, their softmax and the values that they weigh, for a few rows at a time.

As three functions, the scores of all rows are written and read twice: 500 rows by 500 columns of four heads are more
than the second cache holds. Here the scores of one tile of rows stay in the first cache (as in FlashAttention, Dao et
al., 2022, though a row is kept whole: its softmax is that of :mod:`~tencost.programs.codegen.softmax`).
:func:`with_attention` finds the three functions in a network; :func:`attention` writes the one that takes their place
from what they compute: a mask, a scale or a bias of the scores is what stands behind their product, whatever it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tencost.programs.codegen.blocks import PARALLEL_WORK, nests_of, replaced
from tencost.programs.codegen.products import (
    Product,
    Vectors,
    free_buffers,
    product_of,
    vectors_of,
)
from tencost.programs.codegen.softmax import row_exponentials, row_peak, softmax_shape
from tencost.programs.codegen.tiles import (
    BUSY,
    FIRST_CACHE,
    LOOP,
    MAX_UNROLLED,
    MAX_VECTORS,
    SECOND_RATE,
)

LEAST_ROWS = 4
"""Rows below which there is nothing to gain: a decoder's step has one."""
MAX_ROWS = 10
"""With 11 rows of two vectors LLVM runs out of registers."""
MOST_SCORES = 32 << 10
"""Bytes of a tile's scores, at most: they are to stay in the first cache."""
_SCHEDULED = "tirx.is_scheduled"


@dataclass(frozen=True)
class _Part:
    """A product, and what is done with it.

    Attributes:
        product: with one axis of rows, one of columns and one sum.
        axes: variables of the output's dimensions; the last two are rows and columns.
        summed: variable of the sum.
        term: what is summed up.
        after: for each tensor that is computed one after the other, the first from the sums: the tensor that it is, its
            value, and the variables of its dimensions.
        sums: the tensor of the sums.
    """

    product: Product
    axes: tuple[Any, ...]
    summed: Any
    term: Any
    after: tuple[tuple[Any, Any, tuple[Any, ...]], ...]
    sums: Any


def with_attention(mod: Any, target: dict[str, Any]) -> Any:
    """Return a network's module whose attention is one function, as far as its parts are not scheduled and fit.

    Args:
        mod: Relax module, operators lowered and fused to calls of PrimFuncs.
        target: for which CPU.
    """
    from tvm import relax
    from tvm.relax.analysis import get_var2val
    from tvm.relax.expr_functor import PyExprMutator, mutator

    functions: dict[tuple[Any, ...], Any] = {}
    """What :func:`attention` returned for three functions and a place."""
    values: dict[Any, Any] = {}
    uses: Counter[Any] = Counter()

    def merged(call: Any) -> tuple[Any, list[Any]] | None:
        """Return the function that takes a call's place, and its arguments."""
        for place, weights in enumerate(_arguments(call)):
            softmax = values.get(weights)
            rows = _arguments(softmax)
            first = values.get(rows[0]) if len(rows) == 1 else None
            if not _arguments(first) or uses[weights] > 1 or uses[rows[0]] > 1:
                continue
            names = [each.args[0] for each in (first, softmax, call) if each is not None]
            key = (*names, place)
            if key not in functions:
                scores, weighed, last = (mod[name] for name in names)
                functions[key] = attention(scores, weighed, last, place, target)
            if functions[key] is not None:
                others = [each for at, each in enumerate(_arguments(call)) if at != place]
                return functions[key], [*_arguments(first), *others]
        return None

    @mutator
    class Merge(PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            found = merged(call)
            if found is None:
                return super().visit_call_(call)
            function, arguments = found
            name = self.builder_.add_func(function, "attention")
            visited = [self.visit_expr(each) for each in arguments]
            return relax.call_tir(name, relax.Tuple(visited), call.ty_args[0])

    merge = Merge(mod)
    for name, function in mod.functions.items():
        if isinstance(function, relax.Function):
            values = dict(get_var2val(function))
            uses = _uses(function)
            if any(merged(call) for call in values.values()):
                merge.builder_.update_func(name, merge.visit_expr(function))
    if not any(functions.values()):
        return mod
    return relax.transform.DeadCodeElimination()(merge.builder_.get())


def _arguments(call: Any) -> list[Any]:
    """Return the arguments of a call of a PrimFunc that has one output; none of anything else."""
    from tvm import relax

    if getattr(getattr(call, "op", None), "name", "") != "relax.call_tir":
        return []
    if len(call.ty_args) != 1 or not isinstance(call.ty_args[0], relax.TensorType):
        return []
    return list(call.args[1].fields)


def _uses(function: Any) -> Counter[Any]:
    """Return how often each variable is used."""
    from tvm import relax

    uses: Counter[Any] = Counter()

    def used(expression: Any) -> None:
        if isinstance(expression, relax.Var):
            uses[expression] += 1

    relax.analysis.post_order_visit(function.body, used)
    return uses


def attention(
    scores: Any, softmax: Any, values: Any, place: int, target: dict[str, Any]
) -> Any | None:
    """Return the PrimFunc that computes three in one; None where they are not what this one is for.

    Args:
        scores: PrimFunc of a product and what is done with it.
        softmax: PrimFunc of its softmax along the last axis.
        values: PrimFunc of the product of these weights with something.
        place: of the weights among the parameters of `values`.
        target: for which CPU.

    Returns:
        A function of the parameters of `scores` without the last one, and of `values` without the weights.
    """
    from tvm import IRModule, ir, tirx
    from tvm.s_tir import SBlock, SBlockRealize, Schedule
    from tvm_ffi import structural_map

    if values.same_as(
        scores
    ):  # as many rows as columns, as the numbers of a head: with parameters of its own
        values = ir.load_json(ir.save_json(scores))
    vectors = vectors_of(target)
    parts = (scores, softmax, values)
    if vectors is None or any(dict(each.attrs or {}).get(_SCHEDULED) for each in parts):
        return None
    schedule = Schedule(IRModule({"main": softmax}))
    nests = [schedule.get(block).name_hint for block in nests_of(schedule)]
    shape = softmax_shape(softmax, nests, vectors.lanes)
    first, second = _part(scores, vectors), _part(values, vectors)
    weights = values.params[place]
    if shape is None or first is None or second is None:
        return None
    if any([int(size) for size in each.shape] != shape for each in (scores.params[-1], weights)):
        return None
    if not _weighs(second, weights):
        return None
    plan = _plan(first.product, second.product, vectors)
    if plan is None:
        return None
    height, wide, deep = plan
    *batch, rows, columns = shape
    lanes, depth = vectors.lanes, second.product.extents[second.product.column]
    tiles = -(-rows // height)
    number, row = tirx.Var("tile", "int64"), tirx.Var("row", "int64")
    start = tirx.Min(tirx.floormod(number, tiles) * height, _whole(rows - height))
    leading: list[Any] = []
    stride = math.prod(batch)
    for size in batch:
        stride //= size
        leading.append(tirx.floormod(tirx.floordiv(number, tiles * stride), size))
    rows_of_scores = tirx.decl_buffer((height, columns), "float32", "scores")
    peaks, shares = (tirx.decl_buffer((height,), "float32", name) for name in ("peaks", "shares"))
    row_of_peak = tirx.Var("row", "int64")

    def score(above: Any, column: Any, total: Any) -> Any:
        value = _finished(first, [*leading, start + above, column], total)
        return tirx.BufferStore(rows_of_scores, value, [above, column])

    def output(above: Any, column: Any, total: Any) -> Any:
        places = [*leading, start + above, column]
        total = total * tirx.BufferLoad(shares, [above])
        return tirx.BufferStore(values.params[-1], _finished(second, places, total), places)

    def term(part: _Part, above: Any, column: Any, step: Any) -> Any:
        places = [*leading, start + above, column]
        by_name = dict(zip(part.axes, places, strict=True)) | {part.summed: step}

        def load(node: Any) -> Any:
            return (
                tirx.BufferLoad(rows_of_scores, [above, step])
                if node.source.same_as(weights)
                else node
            )

        return replaced(structural_map(part.term, (ir.TensorLoad, load)), by_name)

    steps = (_depth(first), _depth(second))
    # The maxima of all rows first: a core is through with several at a time.
    peak_of, peak = row_peak(rows_of_scores, [row_of_peak], columns, lanes)
    peak_of.append(tirx.BufferStore(peaks, peak, [row_of_peak]))
    peak = tirx.BufferLoad(peaks, [row])
    halvings = (columns - 1).bit_length()  # so that no sum is more than the largest value
    exponentials, share, tail = row_exponentials(
        rows_of_scores, rows_of_scores, [row], columns, lanes, peak, halvings
    )
    if tail is not None:
        last = tirx.Ramp(_whole(columns - lanes), _whole(1), lanes)
        exponentials.append(tirx.BufferStore(rows_of_scores, tail, [row, last]))
    exponentials.append(tirx.BufferStore(shares, share, [row]))
    body = tirx.SeqStmt(
        [
            tirx.AllocBuffer(rows_of_scores),
            tirx.AllocBuffer(peaks),
            tirx.AllocBuffer(shares),
            _tiles(
                (height, wide, lanes),
                columns,
                steps[0],
                lambda above, column, step: term(first, above, column, step),
                score,
            ),
            *(
                tirx.For(
                    each, _whole(0), _whole(height), tirx.ForKind.SERIAL, tirx.SeqStmt(statements)
                )
                for each, statements in ((row_of_peak, peak_of), (row, exponentials))
            ),
            _tiles(
                (height, deep, lanes),
                depth,
                steps[1],
                lambda above, column, step: term(second, above, column, step),
                output,
            ),
        ]
    )
    cores = int(target.get("num-cores", 1))
    is_parallel = cores > 1 and math.prod(first.product.extents) >= PARALLEL_WORK
    kind = tirx.ForKind.PARALLEL if is_parallel else tirx.ForKind.SERIAL
    loop = tirx.For(number, _whole(0), _whole(math.prod(batch) * tiles), kind, body)
    whole = SBlockRealize([], True, SBlock([], [], [], "root", loop))
    others = [each for each in values.params if not each.same_as(weights)]
    function = tirx.PrimFunc([*scores.params[:-1], *others], whole, values.ret_type)
    return function.with_attr({"tirx.noalias": True, _SCHEDULED: True})


def _depth(part: _Part) -> int:
    """Return how many numbers are summed up."""
    (axis,) = part.product.sums
    return part.product.extents[axis]


def _part(function: Any, vectors: Vectors) -> _Part | None:
    """Return a function's product as this module needs it; None for any other function."""
    from tvm import IRModule, ir, tirx
    from tvm.s_tir import Schedule
    from tvm_ffi import structural_walk

    schedule = Schedule(IRModule({"main": function}), debug_mask=0)
    product = product_of(schedule, vectors)
    if product is None or product.inlined or product.copied or product.dear:
        return None
    if len(product.rows) != 1 or len(product.sums) != 1:
        return None
    block = schedule.get(schedule.get_sblock(product.block))
    names = [axis.var for axis in block.iter_vars]
    free = free_buffers(schedule)
    store = block.body
    axes = tuple(store.indices)
    wanted = [names[axis] for axis in (*product.batch, product.rows[0], product.column)]
    columns = names[product.column]
    if not _same(axes, wanted) or any(
        region.source.name in free and any(each.min.same_as(columns) for each in region.region)
        for region in block.reads
    ):  # columns that are known are better laid out anew
        return None
    if product.group != product.extents[product.column]:
        return None
    computed, after, fits = [store.buffer], [], True
    for name in product.after:
        stmt = schedule.get(schedule.get_sblock(name)).body
        if not isinstance(stmt, tirx.BufferStore) or len(stmt.indices) != len(axes):
            return None
        variables = tuple(stmt.indices)

        def read(node: Any, variables: tuple[Any, ...] = variables) -> None:
            nonlocal fits
            if any(node.source.same_as(tensor) for tensor in computed):
                fits = fits and _same(node.indices, variables)

        structural_walk(stmt.value, (ir.TensorLoad, read))
        fits = fits and all(isinstance(variable, tirx.Var) for variable in variables)
        after.append((stmt.buffer, stmt.value, variables))
        computed.append(stmt.buffer)
    if not fits or not computed[-1].same_as(function.params[-1]):
        return None
    (summed,) = (names[axis] for axis in product.sums)
    return _Part(product, axes, summed, store.value.b, tuple(after), store.buffer)


def _weighs(part: _Part, weights: Any) -> bool:
    """Say whether a product reads the weights of each row in their order, once, and nothing else does."""
    from tvm import ir
    from tvm_ffi import structural_walk

    loads: list[Any] = []

    def read(node: Any) -> None:
        if node.source.same_as(weights):
            loads.append(node)

    for value in (part.term, *(value for _, value, _ in part.after)):
        structural_walk(value, (ir.TensorLoad, read))
    return len(loads) == 1 and _same(loads[0].indices, (*part.axes[:-1], part.summed))


def _plan(first: Product, second: Product, vectors: Vectors) -> tuple[int, int, int] | None:
    """Return rows of a tile, and vectors of the scores' and of the output's tiles; None where none is worth it.

    As :mod:`~tencost.programs.codegen.tiles` counts the cycles of a step. Each tile of rows reads all columns of keys
    and values again, from the second cache where the first one does not hold them.
    """
    (axis,) = first.rows
    rows, columns = first.extents[axis], first.extents[first.column]

    def cycles(product: Product, height: int) -> tuple[float, int]:
        """Return the cycles of a tile of rows, with the best number of vectors; none fits: infinitely many."""
        size = product.extents[product.column]
        most = min(MAX_VECTORS, size // vectors.lanes)
        steps = math.prod(product.extents[axis] for axis in product.sums)
        is_near = 4 * size * steps > FIRST_CACHE
        options = []
        for wide in range(1, most + 1):
            sums = height * wide
            if sums + wide + 1 <= vectors.registers:
                near = 4 * vectors.lanes * wide / SECOND_RATE if is_near else 0.0
                step = max(sums / 2, (height + wide) / 2, BUSY / 2, near)
                step += 0.05 * (height + wide) + LOOP / MAX_UNROLLED
                options.append((-(-size // (vectors.lanes * wide)) * steps * step, wide))
        return min(options, default=(math.inf, 0))

    best, plan = math.inf, None
    for height in range(1, min(rows, MAX_ROWS) + 1):
        (one, wide), (two, deep) = cycles(first, height), cycles(second, height)
        total = -(-rows // height) * (one + two)
        if total < best and 4 * height * columns <= MOST_SCORES:
            best, plan = total, (height, wide, deep)
    return plan if rows >= LEAST_ROWS else None


def _tiles(
    tile: tuple[int, int, int],
    columns: int,
    depth: int,
    term: Callable[[Any, Any, Any], Any],
    store: Callable[[Any, Any, Any], Any],
) -> Any:
    """Return a loop over tiles of columns, the last of which may overlap the one before it.

    Args:
        tile: its rows, its vectors, and their lanes.
        columns: at least those of a tile.
        depth: numbers that are summed up.
        term: what is summed up, for a row of the tile, a column and a step.
        store: the statement that stores a sum, for a row of the tile, a column and the sum.
    """
    from tvm import tirx

    height, wide, lanes = tile
    width = wide * lanes
    number, outer = tirx.Var("columns", "int64"), tirx.Var("k_0", "int64")
    begin = tirx.Min(number * width, _whole(columns - width))
    sums = tirx.decl_buffer((height, width), "float32", "sums", scope="local")

    def each(statement: Callable[[Any, Any, Any], Any]) -> Any:
        """Return a statement for each sum; it is given the row, the place in the tile, and the column."""
        row, vector, lane = (tirx.Var(name, "int64") for name in ("row", "vector", "lane"))
        place = vector * lanes + lane
        body = statement(row, place, begin + place)
        for name, extent, kind in (
            (lane, lanes, tirx.ForKind.VECTORIZED),
            (vector, wide, tirx.ForKind.UNROLLED),
            (row, height, tirx.ForKind.UNROLLED),
        ):
            body = tirx.For(name, _whole(0), _whole(extent), kind, body)
        return body

    def summed(step: Any) -> Any:
        return each(
            lambda row, place, column: tirx.BufferStore(
                sums, tirx.BufferLoad(sums, [row, place]) + term(row, column, step), [row, place]
            )
        )

    def steps(first: Any, count: int) -> Any:
        inner = tirx.Var("k_1", "int64")
        return tirx.For(
            inner, _whole(0), _whole(count), tirx.ForKind.UNROLLED, summed(first + inner)
        )

    whole, rest = divmod(depth, MAX_UNROLLED)
    statements = [
        tirx.AllocBuffer(sums),
        each(
            lambda row, place, _: tirx.BufferStore(sums, tirx.const(0.0, "float32"), [row, place])
        ),
    ]
    if whole:
        statements.append(
            tirx.For(
                outer,
                _whole(0),
                _whole(whole),
                tirx.ForKind.SERIAL,
                steps(outer * MAX_UNROLLED, MAX_UNROLLED),
            )
        )
    if rest:
        statements.append(steps(_whole(whole * MAX_UNROLLED), rest))
    statements.append(
        each(lambda row, place, column: store(row, column, tirx.BufferLoad(sums, [row, place])))
    )
    count = -(-columns // width)
    body = tirx.SeqStmt(statements)
    return tirx.For(number, _whole(0), _whole(count), tirx.ForKind.SERIAL, body)


def _finished(part: _Part, places: Sequence[Any], total: Any) -> Any:
    """Return what is made of a sum, at some place of the output."""
    from tvm import ir
    from tvm_ffi import structural_map

    computed = [(part.sums, total)]
    for tensor, value, variables in part.after:

        def load(node: Any) -> Any:
            same = (other for source, other in computed if node.source.same_as(source))
            return next(same, node)

        value = structural_map(
            replaced(value, dict(zip(variables, places, strict=True))), (ir.TensorLoad, load)
        )
        computed.append((tensor, value))
    return computed[-1][1]


def _same(indices: Sequence[Any], variables: Sequence[Any]) -> bool:
    return len(indices) == len(variables) and all(
        index.same_as(variable) for index, variable in zip(indices, variables, strict=True)
    )


def _whole(value: int) -> Any:
    from tvm import tirx

    return tirx.const(value, "int64")
