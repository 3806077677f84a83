"""Schedules by rule, with nothing measured, for what a network calls beside its tuned tasks.

TVM leaves such a function as it was lowered: one loop nest after the other over whole tensors, each value of a chain
stored and read again, sums one number at a time, one core. :func:`scheduled` puts in its place, in this order:

    inlined    a value that one loop nest reads, or that costs next to nothing, is computed where it is read; an
               exponential that two read is not, nor padding below a convolution, which would be asked for at each tap
    split      an axis that is another's rows and columns becomes two, so that what is read lies in a row
    ordered    a sum runs innermost where its operands lie one after the other along it, else the output's last axis
    banded     padding below a pooling is done for a few rows of the image at a time, which the caches hold
    tiled      some rows and columns of a product are summed at a time, in registers, where their numbers divide
    gathered   layer norm: the nests that share rows run row by row, what lies between stays in the cache
    summed     rows are summed in vectors (:mod:`tencost.programs.codegen.row_sums`)
    parallel   the outermost axes over the cores, if there is more than one and the work is worth waking them

Vector instructions are LLVM's part, which needs leave to reorder sums: :func:`leave` is the target that grants it. A
softmax has its vectors written out (:mod:`tencost.programs.codegen.softmax`).
A function that a rule does not fit stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from importlib.metadata import version as tvm_version
from pathlib import Path
from typing import Any

from tencost.programs.codegen.blocks import (
    AMONG_CORES,
    CHOICES,
    PARALLEL_NUMBERS,
    called,
    extent_of,
    kinds_of,
    moves,
    nests_of,
    remember_annotations,
    size_of,
    tried,
)
from tencost.programs.codegen.candidates import by_rule
from tencost.programs.codegen.index_arithmetic import (
    compares_data,
    kept_in_order,
    network_kept_in_order,
)
from tencost.programs.codegen.prefetch import with_prefetches
from tencost.programs.codegen.products import vectors_of
from tencost.programs.codegen.rearranging import (
    move_in_vectors,
    split_at_divisors,
    with_simple_indices,
)
from tencost.programs.codegen.row_sums import split_sums, vectorize_sums
from tencost.programs.codegen.softmax import softmax_in_vectors
from tencost.programs.codegen.winograd import is_winograd, schedule_winograd
from tencost.programs.refusals import TvmRefusal, tvm_call

LENIENT = ("fast-math-reassoc", "fast-math-nsz", "fast-math-nnan", "fast-math-contract")
"""What LLVM may do: order sums anew, not tell zeros' signs, take numbers for numbers, fuse products and sums.

Infinities stay what they are: masks of transformers are full of them. A network that asks what is no number, or makes
data of a comparison, keeps what it would find: it gets no leave for that. What becomes whole numbers keeps its order
(:mod:`tencost.programs.codegen.index_arithmetic`).
"""
_NO_NUMBERS = "fast-math-nnan"
_ASKS = {"isnan", "isinf", "isfinite"}
_LLVM = ("-disable-machine-licm:bool=true",)
"""Constants of an epilogue's polynomials are read where they are used: LLVM would hold them in registers during the
sums before it, and sums in memory instead."""
MAX_ROWS, MAX_COLUMNS = 6, 64
"""Sums held in registers at a time: of the 32 registers of AVX-512, 24 and what is read."""
MIN_DEPTH = 16
"""Numbers of a sum below which registers are not worth filling: a depthwise convolution has nine."""
WINDOW = 64
"""Numbers of a sum over a window, at most, that is done for a vector at a time."""
MAX_BAND = 8
"""Rows of a pooled image that are padded for at a time, at most."""
MORE_WORK = 1.3
"""Operations over those without bands, at most: what two bands need is padded twice."""
_DEAR = ("exp", "erf", "tanh", "sigmoid", "pow", "log", "sqrt", "rsqrt", "sin", "cos")
"""Functions whose value is kept rather than computed twice."""


@cache
def version() -> str:
    """Return which rules these are: 12 hex digits of this folder's sources and TVM's version."""
    digest = sha256(tvm_version("apache-tvm").encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def lenient(target: dict[str, Any]) -> dict[str, Any]:
    """Return a target for small operators: LLVM may reorder their sums, so that it can vectorize them."""
    if target.get("kind") != "llvm":
        return target
    return target | dict.fromkeys(LENIENT, True) | {"cl-opt": [*target.get("cl-opt", ()), *_LLVM]}


def scheduled(function: Any, target: dict[str, Any]) -> Any:
    """Return a PrimFunc with the rules' schedule; it computes the same, up to the order of sums.

    Args:
        function: as Relax lowered it, unscheduled.
        target: for which CPU: its vectors and registers, and num-cores that it may run on.
    """
    from tvm import IRModule
    from tvm.s_tir import Schedule

    remember_annotations()
    cores = int(target.get("num-cores", 1))
    vectors = vectors_of(target)
    schedule = Schedule(IRModule({"main": function}))
    if vectors is not None and is_winograd(function):
        schedule_winograd(schedule, vectors, cores)
        return kept_in_order(_divided(schedule.mod["main"]))
    tiled = by_rule(IRModule({"main": function}), target)
    if tiled is not None:
        return kept_in_order(tiled["main"])
    if vectors is not None:
        nests = [schedule.get(block).name_hint for block in nests_of(schedule)]
        softmax = softmax_in_vectors(function, nests, vectors.lanes, cores)
        if softmax is not None:
            return softmax
    tried(_inline, schedule)
    schedule = Schedule(IRModule({"main": with_simple_indices(schedule.mod["main"])}))
    tried(split_at_divisors, schedule)
    tried(_order, schedule, cores, 0 if vectors is None else vectors.lanes)
    schedule = _in_rows(schedule, cores, 0 if vectors is None else vectors.lanes)
    tried(move_in_vectors, schedule)
    if cores > 1:
        tried(_parallel, schedule, cores)
    return kept_in_order(_divided(schedule.mod["main"]))


def leave(mod: Any, target: dict[str, Any]) -> dict[str, Any]:
    """Return the target that a module by rule is compiled for: :func:`lenient`, as far as its functions allow.

    LLVM is told per module, not per function: a target in a function's attributes changes nothing.

    Args:
        mod: a network's module, or one with a single function.
        target: the hardware's.
    """
    from tvm import tirx

    granted = lenient(target)
    for function in mod.functions.values():
        if not isinstance(function, tirx.PrimFunc):
            continue
        if called(function.body) & _ASKS or compares_data(function.body):
            return {name: value for name, value in granted.items() if name != _NO_NUMBERS}
    return granted


def schedule_rest(
    mod: Any, target: dict[str, Any], refused: Callable[[str, Exception], object] | None = None
) -> Any:
    """Return a network's module in which every function without a schedule has that of the rules.

    Args:
        mod: Relax module, a database's programs already in it.
        target: the network's; the rules are for CPUs, others get the module as it is.
        refused: is told the name of a function that no schedule can be made for, which stays as it was, and why; None:
            the error is raised.

    Raises:
        TvmRefusal: TVM cannot schedule a function, without `refused`.
    """
    from tvm import IRModule, tirx

    if target.get("kind") != "llvm":
        return mod
    functions, cores = dict(mod.functions.items()), int(target.get("num-cores", 1))
    for name, function in functions.items():
        attributes = dict(function.attrs or {})
        if isinstance(function, tirx.PrimFunc) and not attributes.get("tirx.is_scheduled"):
            try:
                with tvm_call():
                    functions[name] = scheduled(function, target)
            except TvmRefusal as error:
                if refused is None:
                    raise
                refused(str(name.name_hint), error)
        elif isinstance(function, tirx.PrimFunc) and cores > 1:
            functions[name] = _divided(function)  # a recurrent layer's directions
        if isinstance(function, tirx.PrimFunc):
            functions[name] = with_prefetches(functions[name])
    return network_kept_in_order(IRModule(functions, attrs=mod.attrs))


def _inline(schedule: Any) -> None:
    changed = True
    while changed:
        changed = False
        for block in nests_of(schedule):
            if set(kinds_of(schedule, block)) - {"S"}:
                continue
            readers = schedule.get_consumers(block)
            if not readers or not _worth_inlining(schedule, block, readers):
                continue
            if tried(schedule.compute_inline, block):
                changed = True
                break
    # What follows a nest and only rearranges or scales its values.
    for block in nests_of(schedule):
        writers = schedule.get_producers(block)
        chain = len(writers) == 1 and set(kinds_of(schedule, block)) == {"S"}
        if chain and "R" not in kinds_of(schedule, writers[0]) and _reads_all(schedule, block):
            tried(schedule.reverse_compute_inline, block)


def _reads_all(schedule: Any, block: Any) -> bool:
    """Say whether each value of a nest needs one of the nest before it: not so those of a padding or concatenation.

    TVM's reverse_compute_inline does not ask: values that a choice takes from elsewhere are left unwritten.
    """
    return not called(schedule.get(block).body) & CHOICES


def _worth_inlining(schedule: Any, block: Any, readers: Sequence[Any]) -> bool:
    calls = called(schedule.get(block).body)
    size = size_of(schedule, block)
    reads = sum(size_of(schedule, reader) for reader in readers)
    if calls & set(_DEAR):
        return len(readers) == 1 and reads <= size
    if calls & CHOICES:
        return reads <= 2 * size
    return reads <= 4 * size or not calls


def _order(schedule: Any, cores: int, lanes: int) -> None:
    """Put the axis innermost along which the fewest operands of a sum jump; of equal ones one that is not summed.

    Of a sum over all but that axis, as of an image's pixels, each core gets a part of it. A window's is done for a
    vector of numbers at a time, which stays in a register.
    """
    for block in nests_of(schedule):
        kinds = kinds_of(schedule, block)
        if "R" not in kinds or "S" not in kinds or "O" in kinds:
            continue
        loops = schedule.get_loops(block)
        if len(loops) != len(kinds):
            continue
        stmt = schedule.get(block)
        names = [iter_var.var for iter_var in stmt.iter_vars]
        strided = {
            axis: sum(_jumps(region, name) for region in (*stmt.reads, *stmt.writes))
            for axis, name in enumerate(names)
            if extent_of(schedule, loops[axis]) > 1
        }
        if not strided:
            continue
        inner = min(strided, key=lambda axis: (strided[axis], kinds[axis] == "R", -axis))
        if kinds[inner] == "R":
            continue
        sums = [loops[axis] for axis, kind in enumerate(kinds) if kind == "R"]
        outer = [axis for axis, kind in enumerate(kinds) if kind == "S" and axis != inner]
        shared = _shared_axis(stmt, outer, inner, kinds)
        depth = math.prod(extent_of(schedule, loop) for loop in sums)
        worth_tiling = shared is not None and depth >= MIN_DEPTH
        tile = _tile(schedule, loops[shared], loops[inner]) if worth_tiling else None
        if shared is None or tile is None:
            around, last = [loops[axis] for axis in outer], loops[inner]
            is_small = depth <= WINDOW and _is_window(stmt, kinds)
            if is_small and lanes and extent_of(schedule, last) % lanes == 0:
                _sum_window(schedule, block, around, sums, schedule.split(last, [None, lanes]))
                continue
            few = _iterations(schedule, around) < cores
            if few and size_of(schedule, block) >= PARALLEL_NUMBERS:
                extent = extent_of(schedule, last)
                parts = max(part for part in range(1, cores + 1) if extent % part == 0)
                if parts > 1:
                    part, last = schedule.split(last, [parts, None])
                    _among_cores(schedule, part)
                    around.insert(0, part)
            schedule.reorder(*around, *sums, last)
            schedule.decompose_reduction(block, sums[0])
            continue
        rows, row = schedule.split(loops[shared], [None, tile[0]])
        columns, column = schedule.split(loops[inner], [None, tile[1]])
        rest = [loops[axis] for axis in outer if axis != shared]
        schedule.reorder(*rest, rows, columns, *sums, row, column)
        schedule.unroll(row)
        schedule.vectorize(column)
        start = schedule.decompose_reduction(block, sums[0])
        *_, row, column = schedule.get_loops(start)
        schedule.unroll(row)
        schedule.vectorize(column)


def _is_window(block: Any, kinds: str) -> bool:
    """Say whether what is summed lies around each place of the output, as below a pooling; not so a mean of all pixels.

    That reads rows one after the other: vector by vector it takes up to 3.5 times as long.
    """
    names = {
        kind: [
            axis.var for axis, letter in zip(block.iter_vars, kinds, strict=True) if letter == kind
        ]
        for kind in "SR"
    }
    return any(
        all(any(moves(dimension.min, name) for name in names[kind]) for kind in "SR")
        for region in block.reads
        for dimension in region.region
    )


def _sum_window(
    schedule: Any, block: Any, around: Sequence[Any], sums: Sequence[Any], last: Sequence[Any]
) -> None:
    """Sum a window for one vector after the other, with what is padded for it and what is made of each sum alone.

    Windows overlap, so that padding is done again for each of them: of numbers that the first cache has, a pooling of
    3 by 3 takes .45 to .6 of what it takes with a padded image, or band of it.
    """
    vector, lane = last
    schedule.reorder(*around, vector, *sums, lane)
    schedule.vectorize(lane)
    readers = schedule.get_consumers(block)
    is_alone = len(readers) == 1 and set(kinds_of(schedule, readers[0])) == {"S"}
    if is_alone and tried(schedule.reverse_compute_at, readers[0], vector):
        schedule.vectorize(schedule.get_loops(readers[0])[-1])
    for pad in schedule.get_producers(block):
        is_alone = len(schedule.get_consumers(pad)) == 1 and _is_padding(schedule, pad)
        if is_alone and tried(schedule.compute_at, pad, vector):
            schedule.set_scope(pad, 0, "local")
            schedule.vectorize(schedule.get_loops(pad)[-1])
    start = schedule.decompose_reduction(block, sums[0])
    schedule.vectorize(schedule.get_loops(start)[-1])
    for loop in sums:
        schedule.unroll(loop)


def _shared_axis(block: Any, outer: Sequence[int], inner: int, kinds: str) -> int | None:
    """Return the axis along which an operand does not move, so that several of its rows share what was read once."""
    names = [iter_var.var for iter_var in block.iter_vars]
    sums = [names[axis] for axis, kind in enumerate(kinds) if kind == "R"]

    def moved(region: Any, name: Any) -> bool:
        return any(moves(dimension.min, name) for dimension in region.region)

    for axis in reversed(outer):
        for region in block.reads:
            stays = not moved(region, names[axis]) and moved(region, names[inner])
            if stays and any(moved(region, name) for name in sums):
                return axis
    return None


def _tile(schedule: Any, shared: Any, inner: Any) -> tuple[int, int] | None:
    """Return rows and columns that are summed in registers at a time; None where the extents do not divide."""
    height, width = extent_of(schedule, shared), extent_of(schedule, inner)
    columns = [count for count in (16, 32, MAX_COLUMNS) if width % count == 0]  # LLVM's vectors
    if not columns:
        return None
    rows = max(count for count in range(1, MAX_ROWS + 1) if height % count == 0)
    return (rows, max(columns)) if rows > 1 else None


def _jumps(region: Any, name: Any) -> bool:
    """Say whether a step along an axis leaves the tensor's last dimension."""
    return any(moves(dimension.min, name) for dimension in list(region.region)[:-1])


def _banded(schedule: Any, cores: int) -> Any:
    """Return a schedule that pads below a sum over windows for a band of the image's rows, not as a whole before."""
    for pad in nests_of(schedule):
        readers = schedule.get_consumers(pad)
        if (
            not _is_padding(schedule, pad)
            or len(readers) != 1
            or "R" not in kinds_of(schedule, readers[0])
        ):
            continue
        trial = schedule.copy()
        block, reader = (
            trial.get_sblock(schedule.get(nest).name_hint) for nest in (pad, readers[0])
        )
        loops = trial.get_loops(reader)
        place = next((at for at, loop in enumerate(loops) if extent_of(trial, loop) > 1), 0)
        if _is_summed(trial, loops[place]):
            continue
        rows = extent_of(trial, loops[place])
        most = max(1, rows // (4 * cores)) if cores > 1 else rows
        band = max(size for size in range(1, min(MAX_BAND, most) + 1) if rows % size == 0)
        outer = trial.split(loops[place], [None, band])[0]
        if cores > 1 and size_of(trial, reader) >= PARALLEL_NUMBERS:
            outer = trial.fuse(*loops[:place], outer) if place else outer
            _among_cores(trial, outer)
        if tried(trial.compute_at, block, outer) and _work(trial) <= MORE_WORK * _work(schedule):
            schedule = trial
    return schedule


def _is_padding(schedule: Any, block: Any) -> bool:
    return called(schedule.get(block).body) == {"if"} and set(kinds_of(schedule, block)) == {"S"}


def _in_rows(schedule: Any, cores: int, lanes: int) -> Any:
    """Return a schedule whose nests are banded and gathered, its sums along rows in vectors of so many numbers."""
    if lanes:
        trial = schedule.copy()
        sums = split_sums(trial, lanes)
        trial = _gathered(_banded(trial, cores)) if sums else trial
        if sums and tried(vectorize_sums, trial, sums):
            return trial
    return _gathered(_banded(schedule, cores))


def _gathered(schedule: Any) -> Any:
    """Return a schedule that computes nests that sum rows, and what they need, row by row below the last nest.

    Rows have as many axes as possible, but nothing is computed twice: a sum over everything stays before all rows.
    """
    blocks = nests_of(schedule)
    kinds = [kinds_of(schedule, block) for block in blocks]
    # A sum over lanes has its lanes first.
    summed = [letters.lstrip("R") for letters in kinds if "R" in letters]
    rows = [len(letters) - len(letters.lstrip("S")) for letters in summed]
    if len(blocks) < 2 or not rows or set(kinds[-1]) != {"S"}:
        return schedule
    for depth in range(min(min(rows), len(kinds[-1]) - 1), 0, -1):
        trial = schedule.copy()
        *others, last = nests_of(trial)
        loops = trial.get_loops(last)
        if len(loops) < depth or all(extent_of(trial, loop) == 1 for loop in loops[:depth]):
            continue
        for block in reversed(others):
            tried(trial.compute_at, block, loops[depth - 1])
        if _work(trial) <= _work(schedule):
            return trial
    return schedule


def _work(schedule: Any) -> int:
    """Return how often all blocks run."""
    return sum(size_of(schedule, block) for block in nests_of(schedule))


def _among_cores(schedule: Any, loop: Any) -> None:
    """Have the iterations of a loop of spatial axes divided among the cores, see :func:`_divided`.

    TVM's primitive refuses loops over a sum whose initial value is set in a block of its own.
    """
    schedule.annotate(loop, AMONG_CORES, True)


def _is_summed(schedule: Any, loop: Any) -> bool:
    """Say whether a loop runs over a sum, or over anything else than a spatial axis, of a block in it."""
    from tvm import tirx
    from tvm.s_tir import SBlockRealize
    from tvm_ffi import structural_walk

    name = schedule.get(loop).loop_var
    summed: list[bool] = []

    def realized(node: Any) -> None:
        for axis, value in zip(node.block.iter_vars, node.iter_values, strict=True):
            if axis.iter_type != tirx.IterVar.DataPar:
                summed.append(moves(value, name))

    structural_walk(schedule.mod["main"].body, (SBlockRealize, realized))
    return any(summed)


def _divided(function: Any) -> Any:
    """Return a function whose loops that are noted so are parallel."""
    from tvm import tirx
    from tvm_ffi import structural_map

    def parallel(loop: Any) -> Any:
        if AMONG_CORES not in loop.annotations:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.PARALLEL, loop.body)

    return structural_map(function, (tirx.For, parallel))


def _iterations(schedule: Any, loops: Sequence[Any]) -> int:
    return math.prod(extent_of(schedule, loop) for loop in loops)


def _sizes_by_loop(schedule: Any) -> dict[Any, int]:
    """Return how often the blocks within each outermost loop run, by the loop's variable."""
    sizes: dict[Any, int] = {}
    for block in nests_of(schedule):
        for loop in schedule.get_loops(block)[:1]:
            name = schedule.get(loop).loop_var
            sizes[name] = sizes.get(name, 0) + size_of(schedule, block)
    return sizes


def _parallel(schedule: Any, cores: int) -> None:
    parallelized: list[Any] = []
    sizes = _sizes_by_loop(schedule)
    for block in nests_of(schedule):
        loops = schedule.get_loops(block)
        if not loops or any(schedule.get(loops[0]).same_as(loop) for loop in parallelized):
            continue
        if AMONG_CORES in schedule.get(loops[0]).annotations:
            continue  # its bands are already
        kinds = kinds_of(schedule, block)
        if sizes[schedule.get(loops[0]).loop_var] < PARALLEL_NUMBERS:
            continue
        outer: list[Any] = []
        for loop in loops[: min(len(kinds), len(loops) - 1)]:
            # Loops may be in another order than the axes: a sum's may come where the axes have the last spatial one.
            if _is_summed(schedule, loop) or _iterations(schedule, outer) >= 4 * cores:
                break
            outer.append(loop)
        if not outer or _iterations(schedule, outer) < cores:
            continue
        fused = schedule.fuse(*outer) if len(outer) > 1 else outer[0]
        _among_cores(schedule, fused)
        parallelized.append(schedule.get(fused))
