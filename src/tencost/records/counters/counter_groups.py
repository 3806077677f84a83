"""The columns of tvm_oraa's feature vector in their groups, and which metrics tell the run time.

tvm_oraa (summerspringwei/tvm_oraa, ``preprocessing_func_mapping`` of ncu_process_profile.py) makes 28 columns of Nsight
Compute's metrics, and 40 with a group that it defines and omits because it is "not statically derivable". Two of the 28
are no better: bytes of DRAM per second and their sustained peak. A model that reads such a column reads the answer.
"""

from __future__ import annotations

import re

from tencost.config.profiles import CounterConfig, CounterGroups, Preprocessing

_GROUPS: dict[str, tuple[str, ...]] = {
    "occupancy": ("launch__occupancy_limit_blocks",),
    "launch": ("launch__grid_size", "launch__block_size", "launch__waves_per_multiprocessor"),
    "memory": (
        "dram__bytes.sum.peak_sustained",
        "dram__bytes.sum.per_second",
        "dram__bytes_read.sum",
        "dram__sectors_read.sum",
        "dram__sectors_write.sum",
        "sass__inst_executed_shared_loads",
        "sass__inst_executed_shared_stores",
        "smsp__inst_executed_op_ldsm.sum",
        "smsp__inst_executed_op_shared_atom.sum",
        "smsp__inst_executed_op_global_red.sum",
    ),
    "conflicts": tuple(
        f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared{part}.sum"
        for part in ("", "_op_atom", "_op_ld", "_op_st")
    ),
    "instructions": (
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
        "sass__inst_executed_global_loads",
        "sass__inst_executed_global_stores",
        *(f"smsp__sass_inst_executed_op_memory_{bits}b.sum" for bits in (128, 16, 32, 64)),
        "sm__sass_inst_executed_op_ldgsts_cache_bypass.sum",
        "lts__t_sectors_srcunit_tex_op_read_lookup_hit.sum",
        "lts__t_sectors_srcunit_tex_op_read_lookup_miss.sum",
    ),
    "runtime": (
        "dram__bytes_read.sum.pct_of_peak_sustained_elapsed",
        "smsp__inst_executed_op_ldsm.sum.pct_of_peak_sustained_elapsed",
        "dram__cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_cbu_pred_on_any.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_fma_type_fp16.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_ipa.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active",
        "dram__cycles_elapsed.avg.per_second",
        "smsp__inst_executed_op_branch.sum",
    ),
}
"""Group of CounterGroups -> its metrics in tvm_oraa's order."""
_OTHER_LIMITS = [
    f"launch__occupancy_limit_{resource}" for resource in ("registers", "shared_mem", "warps")
]
_DIVISORS = {
    "launch__grid_size": "device__attribute_multiprocessor_count",
    "launch__block_size": "256",
    **dict.fromkeys((name for name in _GROUPS["runtime"] if ".pct_of_peak_" in name), "100"),
}

_TELLS_TIME = re.compile(
    r"""\.per_second | \.per_cycle_ | pct_of_peak_sustained | \.peak_sustained | cycles_(elapsed|active) | _cycles\b
    | gpu__time | duration | throughput | __time_ | issue_active | warps_active""",
    re.VERBOSE,
)


def tells_time(metric: str) -> bool:
    """Say whether a metric tells the run time: a time, a number of cycles, or something divided by one of them.

    Shares of a sustained peak are amounts per cycle. The rule goes by names, as Nsight Compute builds them:
    ``unit__counter.rollup.per_second``; it may call one leaky that is not, but misses none of the builders of rates.
    """
    return _TELLS_TIME.search(metric) is not None


def group_columns(groups: CounterGroups, *, upstream: bool) -> tuple[CounterConfig, ...]:
    """Return the columns of the groups that are in, in tvm_oraa's order.

    Args:
        groups: the mask.
        upstream: with what tells run time: the two rates of the group memory, and the group runtime.
    """
    return tuple(
        _column(metric)
        for group, metrics in _GROUPS.items()
        if getattr(groups, group) and (upstream or group != "runtime")
        for metric in metrics
        if upstream or not tells_time(metric)
    )


def _column(metric: str) -> CounterConfig:
    if metric in _DIVISORS:
        return CounterConfig(metric=metric, how=Preprocessing.normalize_to, by=_DIVISORS[metric])
    if metric in _GROUPS["occupancy"]:
        return CounterConfig(metric=metric, how=Preprocessing.minimize, others=_OTHER_LIMITS)
    return CounterConfig(metric=metric)
