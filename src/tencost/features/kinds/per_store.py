"""`per_store`: TVM's PerStoreFeature, one row a buffer store of the lowered program. Its extractors need TVM.

The columns are the layout of apache-tvm 0.27, ``per_store_feature.cc``: 164 values a store, amounts as
sign(x) * log2(|x| + 1), then 8 flags of the workload, the same on every row of a program. A change of them is a change
of meaning: raise FEATURE_ABI in spec.py with it.

A program's summary is what a tree needs to compare two programs. A packed sum over stores (TenSet, TVM) sees each store
alone. A comparison of programs is mostly about the heaviest store and how its accesses relate to its iterations and to
the work of the whole program. So the summary is: that store's columns (most floating-point operations, then iterations,
then first), amounts derived from them, and four numbers about the program. Columns that are the same on every row
(workload flags, what a joined kind appends, device attributes) ride along with the heaviest store. Amounts are
log2(1 + x), so a difference of two columns is the logarithm of a ratio.

Legend: N programs, R rows, C columns, of which those of a store come first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from tencost.features.rows.kind import Chunk, FeatureKind, Options, Outcome, Relations, Summary
from tencost.features.rows.ragged import FloatArray, IntArray, Ragged

NUM_BUFFERS = 5
"""Buffers described per store, largest first; further ones are dropped, missing ones are zeros."""
NUM_INTENSITIES = 10
"""Samples of the arithmetic-intensity curve per store."""

_OPERATIONS = ("mad", "addsub", "mul", "divmod", "cmp", "mathfunc", "otherfunc")
_POSITIONS = (
    "none", "inner_spatial", "middle_spatial", "outer_spatial",
    "inner_reduce", "middle_reduce", "outer_reduce", "mixed",
)  # fmt: skip
_BUFFER = (
    "acc_read", "acc_write", "acc_read_write", "bytes", "unique_bytes", "lines", "unique_lines",
    "reuse_loop_multiple_read", "reuse_serial_multiple_read_write", "reuse_none",
    "reuse_dis_iter", "reuse_dis_bytes", "reuse_count",
    "bytes_d_reuse_count", "unique_bytes_d_reuse_count", "lines_d_reuse_count",
    "unique_lines_d_reuse_count", "stride",
)  # fmt: skip


def _annotation(name: str) -> list[str]:
    return [
        f"{name}_num",
        f"{name}_prod",
        f"{name}_len",
        *(f"{name}_{where}" for where in _POSITIONS),
    ]


PER_STORE_COLUMNS: tuple[str, ...] = (
    *(f"float_{name}" for name in _OPERATIONS),
    *(f"int_{name}" for name in _OPERATIONS),
    "bool_op",
    "select_op",
    *_annotation("vectorize"),
    *_annotation("unroll"),
    *_annotation("parallel"),
    "is_gpu",
    *(f"block_idx_{axis}_len" for axis in "xyz"),
    *(f"thread_idx_{axis}_len" for axis in "xyz"),
    "vthread_len",
    *(f"b{buffer}_{name}" for buffer in range(NUM_BUFFERS) for name in _BUFFER),
    *(f"arith_intensity_{sample}" for sample in range(NUM_INTENSITIES)),
    "alloc_size",
    "alloc_prod",
    "alloc_outer_prod",
    "alloc_inner_prod",
    "outer_prod",
    "num_loops",
    "auto_unroll_max_step",
)
"""The 164 columns of one buffer store: 57 computation, 5 x 18 buffers, 10 intensities, 4 allocation, 3 outer loops."""

WORKLOAD_COLUMNS: tuple[str, ...] = (
    "is_softmax", "is_max_min", "is_add", "is_batch_matmul", "is_matmul", "is_depthwise_conv2d",
    "is_conv2d_winograd", "is_conv2d",
)  # fmt: skip
"""The 8 flags that PerStoreFeature(extract_workload=True) appends: names of the workload's blocks, 0 or 1."""

COLUMNS = (*PER_STORE_COLUMNS, *WORKLOAD_COLUMNS)

Floats = npt.NDArray[np.float64]


def extract(context: Any, candidates: Sequence[Any]) -> list[FloatArray | None]:
    """Extract features on the context's threads.

    Args:
        context: tvm.s_tir.meta_schedule.TuneContext of the workload.
        candidates: MeasureCandidates of that workload.

    Returns:
        For each candidate float32 [stores, 172], in the program's store order, or None where TVM cannot lower it.
    """
    if not candidates:
        return []
    extractor = _extractor()
    try:
        arrays = extractor.extract_from(context, list(candidates))
    except Exception:  # noqa: BLE001 - one candidate fails the whole call in TVM: find out which
        if len(candidates) == 1:
            return [None]
        middle = len(candidates) // 2
        return [*extract(context, candidates[:middle]), *extract(context, candidates[middle:])]
    return [_checked(array.numpy()) for array in arrays]


def _checked(array: Any) -> FloatArray | None:
    """Return float32 rows; TVM marks a program that does not lower by an array of no or only zero rows."""
    if array.ndim != 2 or not len(array):
        return None
    assert array.shape[1] == len(COLUMNS), (
        f"PerStoreFeature gave {array.shape[1]} columns, expected {len(COLUMNS)}"
    )
    if not array[:, : len(PER_STORE_COLUMNS)].any() or not np.isfinite(array).all():
        return None
    return np.ascontiguousarray(array, dtype=np.float32)


def _extractor() -> Any:
    from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature

    return PerStoreFeature(
        buffers_per_store=NUM_BUFFERS,
        arith_intensity_curve_num_samples=NUM_INTENSITIES,
        extract_workload=True,
    )


def _stored(chunk: Chunk) -> list[Outcome]:
    from tvm.s_tir.meta_schedule import TuneContext
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate
    from tvm.target import Target

    from tencost.programs.trace.allowed import NoGraphError
    from tencost.programs.trace.intrinsics import register_intrinsics
    from tencost.programs.trace.replay import error_line, load_module, replay

    try:
        target = Target(orjson.loads(chunk.target))
        register_intrinsics(target.kind.name)
        module = load_module(chunk.mod_json)
    except (
        NoGraphError, ValueError, TypeError, LookupError, AttributeError, RuntimeError,
    ) as error:  # fmt: skip
        # Of another TVM: that is so of these programs, and says nothing of others'.
        return [f"the workload cannot be read: {error_line(error)}"] * len(chunk.programs)
    context = TuneContext(module, target=target, num_threads=1)
    replayed = [replay(module, program) for program in chunk.programs]
    schedules = [program.schedule for program in replayed if program.schedule is not None]
    extracted = iter(extract(context, [MeasureCandidate(schedule, []) for schedule in schedules]))
    outcomes: list[Outcome] = []
    for program in replayed:
        rows = next(extracted) if program.schedule is not None else None
        outcomes.append(program.error or "TVM cannot lower the program" if rows is None else rows)
    return outcomes


_PLACE = {name: position for position, name in enumerate(PER_STORE_COLUMNS)}


def _places(names: Sequence[str]) -> slice:
    """Return where columns stand that follow each other."""
    first, last = _PLACE[names[0]], _PLACE[names[-1]]
    assert last - first + 1 == len(names), f"{names[0]} to {names[-1]} do not follow each other"
    return slice(first, last + 1)


_FLOPS = _places([f"float_{name}" for name in _OPERATIONS])
_INTENSITY = _places([f"arith_intensity_{sample}" for sample in range(NUM_INTENSITIES)])
_ITERATIONS = _PLACE["outer_prod"]
_NUM_DESCRIBED = 3
"""Buffers with derived amounts of their own."""

_SIZES = {
    "bytes": "bytes",
    "unique_bytes": "unique_bytes",
    "lines": "lines",
    "unique_lines": "unique_lines",
    "bytes_d_reuse_count": "bytes_per_reuse",
    "unique_bytes_d_reuse_count": "unique_bytes_per_reuse",
    "lines_d_reuse_count": "lines_per_reuse",
    "unique_lines_d_reuse_count": "unique_lines_per_reuse",
}
"""A buffer's column -> what it is called in a derived amount."""

_CACHE_LOG2_BYTES = {"l1": 15.6, "l2": 21.0}
"""Typical first- and second-level caches, as reference points for footprints."""

DERIVED_NAMES: tuple[str, ...] = (
    "iterations_of_work", "flops_of_work", "flops_per_iteration", "iterations_per_vector_loop",
    "iterations_per_vector_and_unroll",
    *(
        name
        for slot in range(_NUM_DESCRIBED)
        for name in (
            *(f"b{slot}_{size}_per_iteration" for size in _SIZES.values()),
            f"b{slot}_lines_per_unique_line",
            f"b{slot}_bytes_per_unique_byte",
        )
    ),
    "lines", "lines_per_iteration", "lines_of_work", "unique_bytes",
    *(f"unique_bytes_of_{cache}" for cache in _CACHE_LOG2_BYTES),
    "unique_bytes_of_work", "largest_stride", "num_unit_strides", "num_long_strides", "num_zero_strides",
    "largest_intensity", "least_intensity", "intensity_gain",
)  # fmt: skip
"""Names of the amounts derived from each store."""

_PROGRAM_NAMES = ("scalar_share", "num_stores", "work", "iterations_of_busiest_store")


def _summary(features: Ragged) -> FloatArray:
    """Summarize programs with rows: float32 [N, C + derived amounts + 4]."""
    rows, starts = features.values.astype(np.float64), features.offsets[:-1]
    segment, iterations = features.segment_ids, rows[:, _ITERATIONS]
    flops = _log(_amount(rows[:, _FLOPS]).sum(axis=1))
    heaviest = _first_of_each(segment, flops, iterations)
    work = _work_of_programs(rows, starts)
    scalar = _amount(iterations) * (rows[:, _PLACE["vectorize_prod"]] <= 0)
    scalar[heaviest] = 0.0
    total = np.maximum(np.add.reduceat(_amount(iterations), starts), 1e-9)
    program = np.stack(
        [
            np.add.reduceat(scalar, starts) / total,
            features.lengths.astype(np.float64),
            work,
            np.maximum.reduceat(iterations, starts) - iterations[heaviest],
        ],
        axis=1,
    )
    main = rows[heaviest]
    return np.concatenate([main, _derived(main, work), program], axis=1).astype(np.float32)


def derived(features: Ragged) -> FloatArray:
    """Return the amounts derived from each store of programs with rows: float32 [R, len(DERIVED_NAMES)]."""
    rows = features.values.astype(np.float64)
    work = _work_of_programs(rows, features.offsets[:-1])
    return _derived(rows, np.repeat(work, features.lengths)).astype(np.float32)


def _work_of_programs(rows: Floats, starts: IntArray) -> Floats:
    """log2(1 + iterations of all stores) of each program: float64 [N]."""
    return _log(np.add.reduceat(_amount(rows[:, _ITERATIONS]), starts))


def _first_of_each(segment: IntArray, *keys: Floats) -> IntArray:
    """Position of each segment's row with the largest keys, by the first key first; int64."""
    order = np.lexsort((np.arange(len(segment)), *(-key for key in reversed(keys)), segment))
    first = np.ones(len(order), bool)
    first[1:] = np.diff(segment[order]) != 0
    return np.asarray(order[first])


def _derived(rows: Floats, work: Floats) -> Floats:
    """Amounts relative to the store's iterations and to the program's work.

    Args:
        rows: float64 [R, C].
        work: float64 [R], of the program that each row belongs to.

    Returns:
        float64 [R, len(DERIVED_NAMES)].
    """
    iterations = rows[:, _ITERATIONS]
    flops = _log(_amount(rows[:, _FLOPS]).sum(axis=1))
    out = [iterations - work, flops - work, flops - iterations]
    out.append(iterations - np.maximum(rows[:, _PLACE["vectorize_len"]], 0.0))
    out.append(
        iterations
        - np.maximum(rows[:, _PLACE["vectorize_prod"]], 0.0)
        - rows[:, _PLACE["unroll_prod"]]
    )
    for slot in range(_NUM_DESCRIBED):
        column = {name: rows[:, _PLACE[f"b{slot}_{name}"]] for name in _BUFFER}
        present = column["acc_read"] + column["acc_write"] + column["acc_read_write"] > 0
        out += [np.where(present, column[size] - iterations, -5.0) for size in _SIZES]
        out.append(np.where(present, column["lines"] - column["unique_lines"], -5.0))
        out.append(np.where(present, column["bytes"] - column["unique_bytes"], -5.0))
    lines = _log(_amount(rows[:, _of_buffers("lines")]).sum(axis=1))
    unique = _log(_amount(rows[:, _of_buffers("unique_bytes")]).sum(axis=1))
    out += [lines, lines - iterations, lines - work, unique]
    out += [unique - size for size in _CACHE_LOG2_BYTES.values()]
    out.append(unique - work)
    strides = rows[:, _of_buffers("stride")]
    out.append(strides.max(axis=1))
    out += [counted.sum(axis=1) for counted in (strides == 1, strides > 1, strides == 0)]
    intensity = rows[:, _INTENSITY]
    out += [intensity.max(axis=1), intensity.min(axis=1), intensity[:, -1] - intensity[:, 0]]
    return np.stack(out, axis=1)


def _of_buffers(name: str) -> list[int]:
    return [_PLACE[f"b{slot}_{name}"] for slot in range(NUM_BUFFERS)]


def _amount(logs: Floats) -> Floats:
    return np.asarray(np.exp2(logs) - 1.0)


def _log(amounts: Floats) -> Floats:
    return np.asarray(np.log2(1.0 + np.maximum(amounts, 0.0)))


def _relations(features: Ragged, _: Options, device: Mapping[str, Floats]) -> Floats:
    """Relate each program's heaviest store to a device's lanes and cores: float64 [N, relations]."""
    rows = features.values.astype(np.float64)
    flops = _log(_amount(rows[:, _FLOPS]).sum(axis=1))
    main = rows[_first_of_each(features.segment_ids, flops, rows[:, _ITERATIONS])]
    lanes = np.round(_amount(device["device_log2_simd_bits"])) / 32.0
    cores = np.round(_amount(device["device_log2_cores"]))
    parts = np.maximum(np.round(_amount(main[:, _PLACE["parallel_prod"]])), 1.0)
    out = []
    for name in ("vectorize_len", "vectorize_prod"):
        amount = _amount(main[:, _PLACE[name]])
        out.append(np.where(amount > 0, np.log2(np.maximum(amount, 1.0) / lanes), -9.0))
    out += [np.log2(parts / cores), np.ceil(parts / cores) * cores / parts]
    return np.stack(out, axis=1)


RELATIONS = Relations(
    names=(
        "rel_vectorized_of_lanes", "rel_all_vectorized_of_lanes", "rel_parallel_of_cores", "rel_parallel_padding",
    ),
    needs=("device_log2_simd_bits", "device_log2_cores"),
    columns=_relations,
)  # fmt: skip

KIND = FeatureKind(
    columns=lambda _: COLUMNS,
    one_row=False,
    program_format="metaschedule_trace",
    stored=lambda _: _stored,
    live=lambda _: extract,
    lowers=True,
    preference=2,
    constant=WORKLOAD_COLUMNS,
    summary=Summary(
        names=lambda columns: [*columns, *DERIVED_NAMES, *_PROGRAM_NAMES], rows=_summary
    ),
    derived=derived,
    relations=RELATIONS,
)
