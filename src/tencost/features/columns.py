"""The names of all feature columns, in order: the one table that extractors, models and reports share.

`per_store` is the layout of TVM's PerStoreFeature (apache-tvm 0.27, ``per_store_feature.cc``): 164 values a buffer
store, amounts as sign(x) * log2(|x| + 1), then 8 flags of the workload, the same on every row of a program.
A change here is a change of meaning: raise FEATURE_ABI in spec.py with it.
"""

from __future__ import annotations

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

PRIMITIVES: tuple[str, ...] = (
    "SamplePerfectTile", "SamplePartitionedTile", "SampleCategorical", "SampleComputeLocation",
    "Split", "LoopPartition", "Merge", "Fuse", "Reorder", "ReorderBlockIterVar", "AddUnitLoop",
    "Parallel", "Vectorize", "Bind", "Unroll",
    "CacheRead", "CacheWrite", "ReindexCacheRead", "ReindexCacheWrite", "CacheInplace", "CacheIndex", "ReIndex",
    "ComputeAt", "ReverseComputeAt", "ComputeInline", "ReverseComputeInline", "FuseReductionEpilogue",
    "DecomposeReduction", "RFactor", "StorageAlign", "SetScope", "SetDType",
    "Blockize", "Tensorize", "Annotate", "Unannotate",
    "TransformLayout", "TransformBlockLayout", "SetAxisSeparator", "DecomposePadding", "PadEinsum",
    "RollingBuffer", "UnsafeHideBufferAccess", "AnnotateBufferAccess",
)  # fmt: skip
"""MetaSchedule's primitives that change a program or sample a decision; any other is `Other`."""

LOOKUPS = frozenset(
    {
        "GetSBlock",
        "GetBlock",
        "GetLoops",
        "GetChildBlocks",
        "GetProducers",
        "GetConsumers",
        "GetOutputBlocks",
    }
)
"""Primitives that only name blocks and loops: they are followed, not given a row."""


def trace_columns(vocabulary_buckets: int, max_numbers: int) -> tuple[str, ...]:
    """Return the columns of the `trace` feature set: position, primitive, numbers, hashed names."""
    return (
        "position",
        *(f"is_{name}" for name in (*PRIMITIVES, "Other")),
        *(f"number_{index}" for index in range(max_numbers)),
        *(f"name_bucket_{index}" for index in range(vocabulary_buckets)),
    )
