"""Names and units of metrics: one of each, whatever the profiler, its version and the GPU's generation wrote.

Units. A profiler chooses a unit by the size of the value (``--print-units auto``), so one metric comes in ns in one row
and in us in the next export. Canonical are ns, byte, hertz, ``<unit>/second`` and %; what is counted (inst, sector,
request, block, thread, warp, cycle, register/thread) stays as it is. Prefixes are decimal, as Nsight Compute's are: a
shared memory of 32,768 bytes is 32.77 Kbyte there.

    unit    product ["/" product]      byte/second, register/thread, cycle/nsecond
    product [prefix] word              prefix: K M G T, and Ki Mi Gi Ti for 1024

Names. :data:`SAME` is the one table: nvprof's names, older names of Nsight Compute, and the words of its details page
by section (``ncu --csv`` prints those), each with today's name. Nothing is computed of others here: a metric of nvprof
that is a sum or a quotient of several of today's is not in it.

Sources: Nsight Compute's documentation (the comparison with nvprof, the names of counters and their roll-ups, the
section files), and exports of 2019 to 2025.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import lru_cache

from tencost.errors import ProfileError

TIME = "gpu__time_duration.sum"
"""How long a kernel ran."""
_REMEMBERED = 8192
"""Answers that are kept: a table asks the same for each of its rows, a damaged one something new each time."""
_SECONDS = {
    "ns": 1.0, "nsec": 1.0, "nsecond": 1.0, "nseconds": 1.0, "nanosecond": 1.0, "nanoseconds": 1.0,
    "us": 1e3, "usec": 1e3, "usecond": 1e3, "useconds": 1e3, "microsecond": 1e3, "microseconds": 1e3, "\u00b5s": 1e3,
    "\u03bcs": 1e3,
    "ms": 1e6, "msec": 1e6, "msecond": 1e6, "mseconds": 1e6, "millisecond": 1e6, "milliseconds": 1e6,
    "s": 1e9, "sec": 1e9, "second": 1e9, "seconds": 1e9,
}  # fmt: skip
"""Words for time -> nanoseconds."""
_PREFIXES = {
    "": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40,
}  # fmt: skip
_WORDS = {
    "byte": "byte", "bytes": "byte", "b": "byte",
    "hz": "hertz", "hertz": "hertz",
    "bit": "bit", "bits": "bit",
    "inst": "inst", "instruction": "inst", "instructions": "inst",
    "sector": "sector", "sectors": "sector",
    "request": "request", "requests": "request",
    "block": "block", "blocks": "block",
    "thread": "thread", "threads": "thread",
    "register": "register", "registers": "register",
    "warp": "warp", "warps": "warp",
    "cycle": "cycle", "cycles": "cycle",
}  # fmt: skip
"""Words that may have a prefix -> canonical; any other word is kept, whole."""
_MEASURED = ("ns", "byte", "hertz", "bit")
"""Canonical units that a number cannot be read without."""


@lru_cache(_REMEMBERED)
def canonical_unit(unit: str) -> tuple[str, float]:
    """Return the canonical unit of a unit, and what a value is multiplied by; a unit that is not known stays itself."""
    text = unit.strip()
    above, slash, below = text.partition("/")
    word, factor = _product(above)
    if not slash:
        return word, factor
    if below.strip().lower() in _SECONDS:
        factor *= 1e9 / _SECONDS[below.strip().lower()]
        return ("hertz" if word == "cycle" else f"{word}/second"), factor
    other, divisor = _product(below)
    return f"{word}/{other}", factor / divisor


def _product(text: str) -> tuple[str, float]:
    text = text.strip()
    if text.lower() in _SECONDS:
        return "ns", _SECONDS[text.lower()]
    for prefix, factor in _PREFIXES.items():
        if text.lower().startswith(prefix) and text.lower()[len(prefix) :] in _WORDS:
            return _WORDS[text.lower()[len(prefix) :]], factor
    return text, 1.0


def same_kind(unit: str, other: str) -> bool:
    """Say whether values in two canonical units may stand in one column: counts have many names, bytes have one."""
    return unit == other or not (_is_measured(unit) or _is_measured(other))


def _is_measured(unit: str) -> bool:
    return any(part in _MEASURED for part in unit.split("/")) or unit.endswith("/second")


DETAILS = {
    "GPU Speed Of Light": {
        "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
        "Memory Frequency": "dram__cycles_elapsed.avg.per_second",
        "SM Frequency": "gpc__cycles_elapsed.avg.per_second",
        "Elapsed Cycles": "gpc__cycles_elapsed.max",
        "Duration": TIME,
        "SM Active Cycles": "sm__cycles_active.avg",
        "SOL SM": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "SM [%]": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "Compute (SM) [%]": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "Compute (SM) Throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL Memory": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "Memory [%]": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "Memory Throughput": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL FB": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL DRAM": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "DRAM Throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL L2 Cache": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "L2 Cache Throughput": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL TEX": "l1tex__throughput.avg.pct_of_peak_sustained_active",
        "SOL L1/TEX Cache": "l1tex__throughput.avg.pct_of_peak_sustained_active",
        "L1/TEX Cache Throughput": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    },
    "Compute Workload Analysis": {
        "Executed Ipc Active": "sm__inst_executed.avg.per_cycle_active",
        "Executed Ipc Elapsed": "sm__inst_executed.avg.per_cycle_elapsed",
        "Issue Slots Busy": "sm__inst_issued.avg.pct_of_peak_sustained_active",
        "Issued Ipc Active": "sm__inst_issued.avg.per_cycle_active",
        "SM Busy": "sm__instruction_throughput.avg.pct_of_peak_sustained_active",
    },
    "Memory Workload Analysis": {
        "Memory Throughput": "dram__bytes.sum.per_second",
        "Mem Busy": "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
        "Max Bandwidth": "gpu__compute_memory_request_throughput.avg.pct_of_peak_sustained_elapsed",
        "L1 Hit Rate": "l1tex__t_sector_hit_rate.pct",
        "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
        "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
        "Mem Pipes Busy": "sm__memory_throughput.avg.pct_of_peak_sustained_elapsed",
    },
    "Scheduler Statistics": {
        "One or More Eligible": "smsp__issue_active.avg.pct_of_peak_sustained_active",
        "Issued Warp Per Scheduler": "smsp__issue_active.avg.per_cycle_active",
        "No Eligible": "smsp__issue_inst0.avg.pct_of_peak_sustained_active",
        "Active Warps Per Scheduler": "smsp__warps_active.avg.per_cycle_active",
        "Eligible Warps Per Scheduler": "smsp__warps_eligible.avg.per_cycle_active",
        "Instructions Per Active Issue Slot": "smsp__inst_issued.avg.per_issue_active",
    },
    "Warp State Statistics": {
        "Warp Cycles Per Issued Instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
        "Warp Cycles Per Issue Active": "smsp__average_warps_active_per_issue_active.ratio",
        "Warp Cycles Per Executed Instruction": "smsp__average_warps_active_per_inst_executed.ratio",
        "Avg. Active Threads Per Warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
        "Avg. Not Predicated Off Threads Per Warp": "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",
    },
    "Instruction Statistics": {
        "Avg. Executed Instructions Per Scheduler": "smsp__inst_executed.avg",
        "Executed Instructions": "smsp__inst_executed.sum",
        "Avg. Issued Instructions Per Scheduler": "smsp__inst_issued.avg",
        "Issued Instructions": "smsp__inst_issued.sum",
    },
    "Launch Statistics": {
        "Block Size": "launch__block_size",
        "Grid Size": "launch__grid_size",
        "Cluster Size": "launch__cluster_size",
        "Registers Per Thread": "launch__registers_per_thread",
        "Shared Memory Configuration Size": "launch__shared_mem_config_size",
        "Driver Shared Memory Per Block": "launch__shared_mem_per_block_driver",
        "Dynamic Shared Memory Per Block": "launch__shared_mem_per_block_dynamic",
        "Static Shared Memory Per Block": "launch__shared_mem_per_block_static",
        "Stack Size": "launch__stack_size",
        "Threads": "launch__thread_count",
        "Waves Per SM": "launch__waves_per_multiprocessor",
        "# SMs": "launch__sm_count",
        "# TPCs": "launch__tpc_count",
        "Uses Green Context": "launch__uses_green_context",
    },
    "Occupancy": {
        "Block Limit SM": "launch__occupancy_limit_blocks",
        "Block Limit Registers": "launch__occupancy_limit_registers",
        "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
        "Block Limit Warps": "launch__occupancy_limit_warps",
        "Block Limit Barriers": "launch__occupancy_limit_barriers",
        "Theoretical Active Warps per SM": "sm__maximum_warps_per_active_cycle",
        "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
        "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
        "Achieved Active Warps Per SM": "sm__warps_active.avg.per_cycle_active",
    },
}  # fmt: skip
"""Section of the details page -> its words -> today's name; `Memory Throughput` is % in one, bytes in another."""

_NVPROF = {
    "achieved_occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "branch_efficiency": "smsp__sass_average_branch_targets_threads_uniform.pct",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_read_throughput": "dram__bytes_read.sum.per_second",
    "dram_read_transactions": "dram__sectors_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "dram_write_throughput": "dram__bytes_write.sum.per_second",
    "dram_write_transactions": "dram__sectors_write.sum",
    "eligible_warps_per_cycle": "smsp__warps_eligible.sum.per_cycle_active",
    "gld_efficiency": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "gld_throughput": "l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum.per_second",
    "gld_transactions": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "gld_transactions_per_request": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "gst_efficiency": "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
    "gst_throughput": "l1tex__t_bytes_pipe_lsu_mem_global_op_st.sum.per_second",
    "gst_transactions": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "gst_transactions_per_request": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
    "inst_bit_convert": "smsp__sass_thread_inst_executed_op_conversion_pred_on.sum",
    "inst_compute_ld_st": "smsp__sass_thread_inst_executed_op_memory_pred_on.sum",
    "inst_control": "smsp__sass_thread_inst_executed_op_control_pred_on.sum",
    "inst_executed": "smsp__inst_executed.sum",
    "inst_executed_global_loads": "smsp__inst_executed_op_global_ld.sum",
    "inst_executed_global_reductions": "smsp__inst_executed_op_global_red.sum",
    "inst_executed_global_stores": "smsp__inst_executed_op_global_st.sum",
    "inst_executed_local_loads": "smsp__inst_executed_op_local_ld.sum",
    "inst_executed_local_stores": "smsp__inst_executed_op_local_st.sum",
    "inst_executed_shared_loads": "smsp__inst_executed_op_shared_ld.sum",
    "inst_executed_shared_stores": "smsp__inst_executed_op_shared_st.sum",
    "inst_fp_16": "smsp__sass_thread_inst_executed_op_fp16_pred_on.sum",
    "inst_fp_32": "smsp__sass_thread_inst_executed_op_fp32_pred_on.sum",
    "inst_fp_64": "smsp__sass_thread_inst_executed_op_fp64_pred_on.sum",
    "inst_integer": "smsp__sass_thread_inst_executed_op_integer_pred_on.sum",
    "inst_issued": "smsp__inst_issued.sum",
    "inst_misc": "smsp__sass_thread_inst_executed_op_misc_pred_on.sum",
    "inst_per_warp": "smsp__average_inst_executed_per_warp.ratio",
    "ipc": "smsp__inst_executed.avg.per_cycle_active",
    "issue_slot_utilization": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "issued_ipc": "smsp__inst_issued.avg.per_cycle_active",
    "l2_tex_hit_rate": "lts__t_sector_hit_rate.pct",
    "l2_tex_read_hit_rate": "lts__t_sector_op_read_hit_rate.pct",
    "l2_tex_read_transactions": "lts__t_sectors_srcunit_tex_op_read.sum",
    "l2_tex_write_hit_rate": "lts__t_sector_op_write_hit_rate.pct",
    "l2_tex_write_transactions": "lts__t_sectors_srcunit_tex_op_write.sum",
    "local_load_transactions": "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "local_store_transactions": "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
    "shared_efficiency": "smsp__sass_average_data_bytes_per_wavefront_mem_shared.pct",
    "shared_load_transactions": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_store_transactions": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "sm_efficiency": "smsp__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "tex_cache_hit_rate": "l1tex__t_sector_hit_rate.pct",
    "warp_execution_efficiency": "smsp__thread_inst_executed_per_inst_executed.pct",
}  # fmt: skip
"""nvprof's names that are one of today's each; its `..._utilization` are levels from 0 to 10, and are not here."""

_OLDER = {
    "dram__read_bytes.sum": "dram__bytes_read.sum",
    "dram__write_bytes.sum": "dram__bytes_write.sum",
    "dram__read_bytes.sum.per_second": "dram__bytes_read.sum.per_second",
    "dram__write_bytes.sum.per_second": "dram__bytes_write.sum.per_second",
    "dram__read_throughput.avg": "dram__bytes_read.sum.per_second",
    "dram__write_throughput.avg": "dram__bytes_write.sum.per_second",
    "dram__read_sectors.sum": "dram__sectors_read.sum",
    "dram__write_sectors.sum": "dram__sectors_write.sum",
    "gpu__time_duration": TIME,
    "gpu__time_duration.avg": TIME,
    "gpu__time_duration.max": TIME,
    "sm__maximum_warps_avg_per_active_cycle": "sm__maximum_warps_per_active_cycle",
    "sm__maximum_warps_avg_per_active_cycle_pct": "sm__maximum_warps_per_active_cycle_pct",
    "smsp__average_data_bytes_per_sector_mem_global_op_ld.pct":
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "smsp__average_data_bytes_per_sector_mem_global_op_ld.ratio":
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio",
    "smsp__average_data_bytes_per_sector_mem_global_op_st.pct":
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
    "smsp__average_data_bytes_per_sector_mem_global_op_st.ratio":
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio",
}  # fmt: skip
"""Names of older versions of Nsight Compute, or of one generation of GPUs only."""

SAME: dict[str, str] = {
    **{f"{section}: {words}": today for section, by_words in DETAILS.items() for words, today in by_words.items()},
    **_NVPROF,
    **_OLDER,
}  # fmt: skip
"""Every other name of a metric -> today's."""
SCALED = {"achieved_occupancy": 100.0}
"""What is a share of 1 under another name and % today."""
_SECTIONS = {section.lower(): section for section in DETAILS}


@lru_cache(_REMEMBERED)
def today(name: str, section: str = "", unit: str = "") -> str:
    """Return today's name of a metric, or the name as it is where the table has none.

    Args:
        name: as it was written.
        section: of the details page, for its words; sections have suffixes in some versions.
        unit: tells the two that are both called `Memory Throughput` apart where no section does.
    """
    if name in SAME:
        return SAME[name]
    if "__" in name or (" " not in name and not section):
        return name
    known = next((own for low, own in _SECTIONS.items() if section.lower().startswith(low)), "")
    if known:
        return SAME.get(f"{known}: {name}", f"{known}: {name}")
    if section:
        return f"{section}: {name}"
    if name == "Memory Throughput":
        return SAME[
            f"{'GPU Speed Of Light' if unit.strip() == '%' else 'Memory Workload Analysis'}: {name}"
        ]
    found = {by_words[name] for by_words in DETAILS.values() if name in by_words}
    return found.pop() if len(found) == 1 else name


def rollup(metric: str) -> str:
    """Return how several kernels of a program become one value: sum, time, largest, min or max.

    ``sum``: what is counted, bytes, time. ``time``: the mean, weighted by the kernels' time: %, rates, quotients.
    ``largest``: that of the kernel that takes longest: what it was launched with. ``min``: limits of occupancy.
    ``max``: what is the device's and not the kernel's.
    """
    if metric.startswith("launch__occupancy_limit"):
        return "min"
    if metric.startswith("launch__"):
        return "largest"
    if metric.startswith(("device__", "profiler__", "numa__")) or ".peak_" in metric:
        return "max"
    if re.search(
        r"\.per_(second|cycle|issue)|\.pct|_pct$|\.ratio$|\.max_rate$|throughput|_rate\b|maximum_warps", metric
    ):  # fmt: skip
        return "time"
    return "sum"


def require(metrics: Iterable[str], wanted: Iterable[str], where: str) -> None:
    """Check that metrics are there.

    Raises:
        ProfileError: some are not; it names each, and the nearest that there is.
    """
    there = list(metrics)
    missing = [name for name in wanted if name not in there]
    if not missing:
        return
    told = []
    for name in missing[:10]:
        near = difflib.get_close_matches(name, there, n=1, cutoff=0.75)
        told.append(name + (f" (the nearest there is: {near[0]})" if near else ""))
    more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
    raise ProfileError(
        f"expected {', '.join(told)}{more} in {where}, found {len(there)} metrics without "
        f"{'it' if len(missing) == 1 else 'them'}. Profile again with them (ncu --metrics ...), or leave them out; "
        "`tencost profiles show` lists what there is"
    )


_BYTES = re.compile(r"(^|_)bytes(_\w+)?\.(sum|avg|min|max)(?P<rate>\.per_second)?$")


def expected_unit(metric: str) -> str:
    """Return the canonical unit that a metric's name implies; "" where it implies none."""
    if metric == TIME:
        return "ns"
    found = _BYTES.search(metric)
    if found:
        return "byte/second" if found["rate"] else "byte"
    if re.search(r"[._]pct$|\.pct_of_peak_\w+$", metric):
        return "%"
    return "hertz" if re.search(r"cycles_elapsed\.\w+\.per_second$", metric) else ""


@lru_cache(_REMEMBERED)
def unit_of(metric: str, unit: str) -> tuple[str, float] | None:
    """Return the canonical unit of a metric's values and their factor; None where it is none that the metric can have.

    Args:
        metric: today's name.
        unit: as it was written; "" where it was not: Nsight Compute's base unit then, which is canonical.
    """
    expected = expected_unit(metric)
    if not unit.strip():
        return expected, 1.0
    canonical, factor = canonical_unit(unit)
    return None if expected and canonical != expected else (canonical, factor)
