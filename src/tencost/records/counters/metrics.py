"""Names and units of metrics: one of each, whatever the profiler, its version and the GPU's generation wrote.

Units. A profiler chooses a unit by the size of the value (``--print-units auto``), so one metric comes in ns in one row
and in us in the next export. Canonical are ns, byte, hertz, ``<unit>/second`` and %; what is counted (inst, sector,
request, block, thread, warp, cycle, register/thread) stays as it is. Prefixes are decimal, as Nsight Compute's are: a
shared memory of 32,768 bytes is 32.77 Kbyte there.

    unit    product ["/" product]      byte/second, register/thread, cycle/nsecond
    product [prefix] word              prefix: K M G T, and Ki Mi Gi Ti for 1024

Names. :data:`NAMES` is the one table: today's name of a metric, and its names by nvprof, by older versions of Nsight
Compute, and in the words of its details page by section (``ncu --csv`` prints those). Nothing is computed of others
here: a metric of nvprof that is a sum or a quotient of several of today's is not in it, nor are its
``..._utilization``, which are levels from 0 to 10.

Sources: Nsight Compute's documentation (the comparison with nvprof, the names of counters and their roll-ups, the
section files), and exports of 2019 to 2025.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from tencost.errors import ProfileError

TIME = "gpu__time_duration.sum"
"""How long a kernel ran."""
_CACHED = 8192
"""Cached answers: a table asks the same for each of its rows, a damaged one something new each time."""
_TIME_UNITS = {
    1.0: "ns nsec nsecond nseconds nanosecond nanoseconds",
    1e3: "us usec usecond useconds microsecond microseconds \u00b5s \u03bcs",
    1e6: "ms msec msecond mseconds millisecond milliseconds",
    1e9: "s sec second seconds",
}
"""Nanoseconds -> words for so many."""
_PREFIXES = {
    "": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40,
}  # fmt: skip
_PREFIXED_UNITS = {
    "byte": "byte bytes b",
    "hertz": "hertz hz",
    "inst": "inst instruction instructions",
    **{
        word: f"{word} {word}s"
        for word in ("bit", "sector", "request", "block", "thread", "register", "warp", "cycle")
    },
}  # fmt: skip
"""Canonical unit -> words that may have a prefix; any other word stays as it is."""
_UNITS = {word: ("ns", factor) for factor, words in _TIME_UNITS.items() for word in words.split()} | {
    prefix + word: (unit, factor)
    for unit, words in _PREFIXED_UNITS.items() for word in words.split() for prefix, factor in _PREFIXES.items()
}  # fmt: skip
_MEASURED = ("ns", "byte", "hertz", "bit")
"""Canonical units that a number cannot be read without."""
_EXPECTED_UNITS = (
    (r"^gpu__time_duration\.sum$", "ns"),
    (
        r"^derived__\w*bytes",
        "",
    ),  # computed by ncu, whose unit of derived__lts__lts2xbar_bytes.sum.per_second is byte
    (r"(^|_)bytes(_\w+)?\.(sum|avg|min|max)\.per_second$", "byte/second"),
    (r"(^|_)bytes(_\w+)?\.(sum|avg|min|max)$", "byte"),
    (r"[._]pct$|\.pct_of_peak_\w+$", "%"),
    (r"cycles_elapsed\.\w+\.per_second$", "hertz"),
    ("", ""),
)
"""Pattern of metrics -> the canonical unit that it implies; the first that fits counts."""
_ROLLUPS = (
    (r"^launch__occupancy_limit", "min"),
    (r"^launch__", "largest"),
    (r"^(device__|profiler__|numa__)|\.peak_", "max"),
    (r"\.per_(second|cycle|issue)|\.pct|_pct$|\.ratio$|\.max_rate$|throughput|_rate\b|maximum_warps", "time"),
    ("", "sum"),
)  # fmt: skip
"""Pattern of metrics -> how kernels become a program; the first that fits counts."""
NAMES = {
    "GPU Speed Of Light": {
        "dram__cycles_elapsed.avg.per_second": "DRAM Frequency | Memory Frequency",
        "gpc__cycles_elapsed.avg.per_second": "SM Frequency",
        "gpc__cycles_elapsed.max": "Elapsed Cycles",
        TIME: "Duration",
        "sm__cycles_active.avg": "SM Active Cycles",
        "sm__throughput.avg.pct_of_peak_sustained_elapsed":
            "SOL SM | SM [%] | Compute (SM) [%] | Compute (SM) Throughput",
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed":
            "SOL Memory | Memory [%] | Memory Throughput",
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "SOL FB | SOL DRAM | DRAM Throughput",
        "lts__throughput.avg.pct_of_peak_sustained_elapsed": "SOL L2 | SOL L2 Cache | L2 Cache Throughput",
        "l1tex__throughput.avg.pct_of_peak_sustained_active": "SOL TEX | SOL L1/TEX Cache | L1/TEX Cache Throughput",
    },
    "Compute Workload Analysis": {
        "sm__inst_executed.avg.per_cycle_active": "Executed Ipc Active",
        "sm__inst_executed.avg.per_cycle_elapsed": "Executed Ipc Elapsed",
        "sm__inst_issued.avg.pct_of_peak_sustained_active": "Issue Slots Busy",
        "sm__inst_issued.avg.per_cycle_active": "Issued Ipc Active",
        "sm__instruction_throughput.avg.pct_of_peak_sustained_active": "SM Busy",
    },
    "Memory Workload Analysis": {
        "dram__bytes.sum.per_second": "Memory Throughput",
        "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed": "Mem Busy",
        "gpu__compute_memory_request_throughput.avg.pct_of_peak_sustained_elapsed": "Max Bandwidth",
        "l1tex__t_sector_hit_rate.pct": "L1 Hit Rate | L1/TEX Hit Rate",
        "lts__t_sector_hit_rate.pct": "L2 Hit Rate",
        "sm__memory_throughput.avg.pct_of_peak_sustained_elapsed": "Mem Pipes Busy",
    },
    "Scheduler Statistics": {
        "smsp__issue_active.avg.pct_of_peak_sustained_active": "One or More Eligible",
        "smsp__issue_active.avg.per_cycle_active": "Issued Warp Per Scheduler",
        "smsp__issue_inst0.avg.pct_of_peak_sustained_active": "No Eligible",
        "smsp__warps_active.avg.per_cycle_active": "Active Warps Per Scheduler",
        "smsp__warps_eligible.avg.per_cycle_active": "Eligible Warps Per Scheduler",
        "smsp__inst_issued.avg.per_issue_active": "Instructions Per Active Issue Slot",
    },
    "Warp State Statistics": {
        "smsp__average_warp_latency_per_inst_issued.ratio": "Warp Cycles Per Issued Instruction",
        "smsp__average_warps_active_per_issue_active.ratio": "Warp Cycles Per Issue Active",
        "smsp__average_warps_active_per_inst_executed.ratio": "Warp Cycles Per Executed Instruction",
        "smsp__thread_inst_executed_per_inst_executed.ratio": "Avg. Active Threads Per Warp",
        "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio": "Avg. Not Predicated Off Threads Per Warp",
    },
    "Instruction Statistics": {
        "smsp__inst_executed.avg": "Avg. Executed Instructions Per Scheduler",
        "smsp__inst_executed.sum": "Executed Instructions",
        "smsp__inst_issued.avg": "Avg. Issued Instructions Per Scheduler",
        "smsp__inst_issued.sum": "Issued Instructions",
    },
    "Launch Statistics": {
        "launch__block_size": "Block Size",
        "launch__grid_size": "Grid Size",
        "launch__cluster_size": "Cluster Size",
        "launch__registers_per_thread": "Registers Per Thread",
        "launch__shared_mem_config_size": "Shared Memory Configuration Size",
        "launch__shared_mem_per_block_driver": "Driver Shared Memory Per Block",
        "launch__shared_mem_per_block_dynamic": "Dynamic Shared Memory Per Block",
        "launch__shared_mem_per_block_static": "Static Shared Memory Per Block",
        "launch__stack_size": "Stack Size",
        "launch__thread_count": "Threads",
        "launch__waves_per_multiprocessor": "Waves Per SM",
        "launch__sm_count": "# SMs",
        "launch__tpc_count": "# TPCs",
        "launch__uses_green_context": "Uses Green Context",
    },
    "Occupancy": {
        "launch__occupancy_limit_blocks": "Block Limit SM",
        "launch__occupancy_limit_registers": "Block Limit Registers",
        "launch__occupancy_limit_shared_mem": "Block Limit Shared Mem",
        "launch__occupancy_limit_warps": "Block Limit Warps",
        "launch__occupancy_limit_barriers": "Block Limit Barriers",
        "sm__maximum_warps_per_active_cycle": "Theoretical Active Warps per SM",
        "sm__maximum_warps_per_active_cycle_pct": "Theoretical Occupancy",
        "sm__warps_active.avg.pct_of_peak_sustained_active": "Achieved Occupancy",
        "sm__warps_active.avg.per_cycle_active": "Achieved Active Warps Per SM",
    },
    "": {
        "sm__warps_active.avg.pct_of_peak_sustained_active": "achieved_occupancy",
        "smsp__sass_average_branch_targets_threads_uniform.pct": "branch_efficiency",
        "dram__bytes_read.sum": "dram_read_bytes | dram__read_bytes.sum",
        "dram__bytes_read.sum.per_second":
            "dram_read_throughput | dram__read_bytes.sum.per_second | dram__read_throughput.avg",
        "dram__sectors_read.sum": "dram_read_transactions | dram__read_sectors.sum",
        "dram__bytes_write.sum": "dram_write_bytes | dram__write_bytes.sum",
        "dram__bytes_write.sum.per_second":
            "dram_write_throughput | dram__write_bytes.sum.per_second | dram__write_throughput.avg",
        "dram__sectors_write.sum": "dram_write_transactions | dram__write_sectors.sum",
        "smsp__warps_eligible.sum.per_cycle_active": "eligible_warps_per_cycle",
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct":
            "gld_efficiency | smsp__average_data_bytes_per_sector_mem_global_op_ld.pct",
        "l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum.per_second": "gld_throughput",
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "gld_transactions",
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio": "gld_transactions_per_request",
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "global_load_requests",
        "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": "global_store_requests",
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct":
            "gst_efficiency | smsp__average_data_bytes_per_sector_mem_global_op_st.pct",
        "l1tex__t_bytes_pipe_lsu_mem_global_op_st.sum.per_second": "gst_throughput",
        "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": "gst_transactions",
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio": "gst_transactions_per_request",
        "smsp__sass_thread_inst_executed_op_conversion_pred_on.sum": "inst_bit_convert",
        "smsp__sass_thread_inst_executed_op_memory_pred_on.sum": "inst_compute_ld_st",
        "smsp__sass_thread_inst_executed_op_control_pred_on.sum": "inst_control",
        "smsp__inst_executed.sum": "inst_executed",
        "smsp__inst_executed_op_global_ld.sum": "inst_executed_global_loads",
        "smsp__inst_executed_op_global_red.sum": "inst_executed_global_reductions",
        "smsp__inst_executed_op_global_st.sum": "inst_executed_global_stores",
        "smsp__inst_executed_op_local_ld.sum": "inst_executed_local_loads",
        "smsp__inst_executed_op_local_st.sum": "inst_executed_local_stores",
        "smsp__inst_executed_op_shared_ld.sum": "inst_executed_shared_loads",
        "smsp__inst_executed_op_shared_st.sum": "inst_executed_shared_stores",
        "smsp__sass_thread_inst_executed_op_fp16_pred_on.sum": "inst_fp_16",
        "smsp__sass_thread_inst_executed_op_fp32_pred_on.sum": "inst_fp_32",
        "smsp__sass_thread_inst_executed_op_fp64_pred_on.sum": "inst_fp_64",
        "smsp__sass_thread_inst_executed_op_integer_pred_on.sum": "inst_integer",
        "smsp__inst_issued.sum": "inst_issued",
        "smsp__sass_thread_inst_executed_op_misc_pred_on.sum": "inst_misc",
        "smsp__average_inst_executed_per_warp.ratio": "inst_per_warp",
        "smsp__inst_executed.avg.per_cycle_active": "ipc",
        "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue_slot_utilization",
        "smsp__inst_issued.avg.per_cycle_active": "issued_ipc",
        "lts__t_sector_hit_rate.pct": "l2_tex_hit_rate",
        "lts__t_sector_op_read_hit_rate.pct": "l2_tex_read_hit_rate",
        "lts__t_sectors_srcunit_tex_op_read.sum": "l2_tex_read_transactions",
        "lts__t_sector_op_write_hit_rate.pct": "l2_tex_write_hit_rate",
        "lts__t_sectors_srcunit_tex_op_write.sum": "l2_tex_write_transactions",
        "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum": "local_load_transactions",
        "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum": "local_store_transactions",
        "smsp__sass_average_data_bytes_per_wavefront_mem_shared.pct": "shared_efficiency",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": "shared_load_transactions",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum": "shared_store_transactions",
        "smsp__cycles_active.avg.pct_of_peak_sustained_elapsed": "sm_efficiency",
        "l1tex__t_sector_hit_rate.pct": "tex_cache_hit_rate",
        "smsp__thread_inst_executed_per_inst_executed.pct": "warp_execution_efficiency",
        TIME: "gpu__time_duration | gpu__time_duration.avg | gpu__time_duration.max",
        "sm__maximum_warps_per_active_cycle": "sm__maximum_warps_avg_per_active_cycle",
        "sm__maximum_warps_per_active_cycle_pct": "sm__maximum_warps_avg_per_active_cycle_pct",
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio":
            "smsp__average_data_bytes_per_sector_mem_global_op_ld.ratio",
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio":
            "smsp__average_data_bytes_per_sector_mem_global_op_st.ratio",
    },
}  # fmt: skip
"""Section of the details page -> today's name -> its words; section "" -> today's name -> names by other profilers and
older versions. `Memory Throughput` is % in one section, bytes in another."""
CURRENT_NAMES = {
    f"{section}: {name}" if section else name: metric
    for section, metrics in NAMES.items() for metric, names in metrics.items() for name in names.split(" | ")
}  # fmt: skip
"""Every other name of a metric -> today's."""
_SCALED = {"achieved_occupancy": 100.0}
"""Shares of 1 under another name that are % today."""


class Metric(NamedTuple):
    """A metric as a profiler wrote it: today's name, canonical unit, and the factor of its values."""

    name: str
    unit: str
    factor: float


@lru_cache(_CACHED)
def canonical_unit(unit: str) -> tuple[str, float]:
    """Return the canonical unit of a unit, and the factor of its values; an unknown unit stays itself."""
    above, slash, below = unit.partition("/")
    word, factor = _product(above)
    if not slash:
        return word, factor
    other, divisor = _product(below)
    if other == "ns":
        return ("hertz" if word == "cycle" else f"{word}/second"), factor * (1e9 / divisor)
    return f"{word}/{other}", factor / divisor


def _product(text: str) -> tuple[str, float]:
    return _UNITS.get(text.strip().lower(), (text.strip(), 1.0))


def same_kind(unit: str, other: str) -> bool:
    """Say whether values in two canonical units may stand in one column: counts have many names, bytes have one."""
    return unit == other or not (_is_measured(unit) or _is_measured(other))


def _is_measured(unit: str) -> bool:
    return any(part in _MEASURED for part in unit.split("/")) or unit.endswith("/second")


@lru_cache(_CACHED)
def current_name(name: str, section: str = "", unit: str = "") -> str:
    """Return today's name of a metric, or the name as it is where the table has none.

    Args:
        name: as it was written.
        section: of the details page, for its words; sections have suffixes in some versions.
        unit: tells the two that are both called `Memory Throughput` apart where no section does.
    """
    if name in CURRENT_NAMES:
        return CURRENT_NAMES[name]
    if "__" in name or (" " not in name and not section):
        return name
    if section:
        prefixes = (title for title in NAMES if title and section.lower().startswith(title.lower()))
        words = f"{next(prefixes, section)}: {name}"
        return CURRENT_NAMES.get(words, words)
    if name == "Memory Throughput":
        section = "GPU Speed Of Light" if unit.strip() == "%" else "Memory Workload Analysis"
        return CURRENT_NAMES[f"{section}: {name}"]
    metrics = {CURRENT_NAMES.get(f"{title}: {name}", "") for title in NAMES} - {""}
    return metrics.pop() if len(metrics) == 1 else name


@lru_cache(_CACHED)
def parse_metric(name: str, unit: str, section: str = "") -> Metric | None:
    """Return the metric that a profiler wrote as `name`; None where its unit is none that the metric can have.

    Args:
        name: as it was written.
        unit: as it was written; "" where it was not: Nsight Compute's base unit then, which is canonical.
        section: of the details page.
    """
    metric = current_name(name, section, unit)
    expected = expected_unit(metric)
    canonical, factor = canonical_unit(unit) if unit.strip() else (expected, 1.0)
    if expected and canonical != expected:
        return None
    return Metric(metric, canonical, factor * _SCALED.get(name, 1.0))


@lru_cache(_CACHED)
def expected_unit(metric: str) -> str:
    """Return the canonical unit that a metric's name implies; "" where it implies none."""
    return _first_match(_EXPECTED_UNITS, metric)


def rollup(metric: str) -> str:
    """Return how several kernels of a program become one value: sum, time, largest, min or max.

    ``sum``: what is counted, bytes, time. ``time``: the mean, weighted by the kernels' time: %, rates, quotients.
    ``largest``: that of the kernel that takes longest: what it was launched with. ``min``: limits of occupancy.
    ``max``: what is the device's and not the kernel's.
    """
    return _first_match(_ROLLUPS, metric)


def _first_match(patterns: Iterable[tuple[str, str]], metric: str) -> str:
    return next(answer for pattern, answer in patterns if re.search(pattern, metric))


def require(metrics: Iterable[str], required: Iterable[str], where: str) -> None:
    """Check that metrics are there.

    Raises:
        ProfileError: some are not; it names each, and the nearest that there is.
    """
    available = list(metrics)
    missing = [name for name in required if name not in available]
    if not missing:
        return
    names = []
    for name in missing[:10]:
        near = difflib.get_close_matches(name, available, n=1, cutoff=0.75)
        names.append(name + (f" (the nearest there is: {near[0]})" if near else ""))
    more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
    raise ProfileError(
        f"expected {', '.join(names)}{more} in {where}, found {len(available)} metrics without "
        f"{'it' if len(missing) == 1 else 'them'}. Profile again with them (ncu --metrics ...), or leave them out; "
        "`tencost profiles show` lists what there is"
    )
