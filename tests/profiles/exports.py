"""Exports as Nsight Compute writes them, made up: wide, long, in any unit, locale and state of damage."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

TIME = "gpu__time_duration.sum"
PLAIN = {
    TIME: ("ns", 12_700.0),
    "dram__bytes_read.sum": ("byte", 1_234_560.0),
    "dram__bytes.sum.per_second": ("byte/second", 812_345_600_000.0),
    "dram__cycles_elapsed.avg.per_second": ("hertz", 877_000_000.0),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", 43.25),
    "smsp__inst_executed.sum": ("inst", 987_654.0),
    "launch__registers_per_thread": ("register/thread", 40.0),
    "launch__grid_size": ("", 128.0),
    "launch__block_size": ("", 256.0),
    "launch__occupancy_limit_warps": ("block", 8.0),
}
"""Metric -> (base unit, value)."""
SCALED = {
    "ns": {"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "second": 1e9, "s": 1e9},
    "byte": {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12},
    "byte/second": {
        "byte/second": 1.0, "Kbyte/second": 1e3, "Mbyte/second": 1e6, "Gbyte/second": 1e9, "Tbyte/second": 1e12,
        "Gbyte/s": 1e9, "byte/nsecond": 1e9, "byte/us": 1e6,
    },
    "hertz": {
        "hertz": 1.0, "hz": 1.0, "Khz": 1e3, "Mhz": 1e6, "Ghz": 1e9, "cycle/nsecond": 1e9, "cycle/usecond": 1e6,
        "cycle/second": 1.0,
    },
    "inst": {"inst": 1.0, "Kinst": 1e3, "Minst": 1e6},
    "%": {"%": 1.0},
}  # fmt: skip
"""Base unit -> unit that a profiler may choose -> how much it is."""
IDENTITY = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
    "Device", "CC",
)  # fmt: skip
MARK = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"


def who(number: int, kernel: str = "fused_dense_kernel", **other: str) -> list[str]:
    """The cells that say what was launched."""
    known = {
        "ID": str(number), "Process ID": "4711", "Process Name": "python", "Host Name": "127.0.0.1",
        "Kernel Name": kernel, "Context": "1", "Stream": "7", "Block Size": "(256, 1, 1)", "Grid Size": "(128, 1, 1)",
        "Device": "0", "CC": "9.0",
    }  # fmt: skip
    known.update({name.replace("_", " "): value for name, value in other.items()})
    return [known[name] for name in IDENTITY]


def rows_text(rows: Sequence[Sequence[str]], separator: str = ",") -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=separator, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(
        rows
    )
    return text.getvalue()


def wide(
    launches: Sequence[tuple[list[str], Mapping[str, object]]],
    units: Mapping[str, str],
    *,
    separator: str = ",",
    with_units: bool = True,
) -> str:
    """A raw page: launches as (cells of identity, metric -> cell), metrics in the order of `units`."""
    rows = [[*IDENTITY, *units]]
    if with_units:
        rows.append([*([""] * len(IDENTITY)), *units.values()])
    rows += [[*about, *(str(values[name]) for name in units)] for about, values in launches]
    return rows_text(rows, separator)


def plain(count: int = 1, **other: str) -> str:
    """A raw page of launches of one kernel in base units."""
    values = {name: value for name, (_, value) in PLAIN.items()}
    units = {name: unit for name, (unit, _) in PLAIN.items()}
    return wide([(who(number, **other), values) for number in range(count)], units)


LONG = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream",
    "Section Name", "Metric Name", "Metric Unit", "Metric Value",
)  # fmt: skip


def long(launches: Sequence[tuple[int, str, Mapping[tuple[str, str], tuple[str, str]]]]) -> str:
    """What `ncu --csv` prints: launches as (number, kernel, (section, metric) -> (unit, cell))."""
    rows = [list(LONG)]
    for number, kernel, metrics in launches:
        for (section, metric), (unit, value) in metrics.items():
            rows.append(
                [
                    str(number),
                    "27599",
                    "bfs",
                    "127.0.0.1",
                    kernel,
                    "2020-May-29",
                    "1",
                    "7",
                    section,
                    metric,
                    unit,
                    value,
                ]
            )
    return rows_text(rows)


def ktt(count: int, failed: int = 0) -> dict[str, object]:
    """Results as KTT 2.1 writes them: configurations of one kernel, the first of which failed."""
    results = []
    for number in range(count):
        counters = {
            "dram__sectors_read.sum": 100.0 * number, "sm__warps_active.avg.pct_of_peak_sustained_active": 50.0,
            "a__x.sum": 5.0,
        }  # fmt: skip
        computed = {
            "CompilationData": {"LocalMemorySize": 128, "RegistersCount": 28},
            "Duration": 10.0 + number,
            "GlobalSize": {"X": 64, "Y": 2, "Z": 1},
            "KernelFunction": "conv",
            "LocalSize": {"X": 32, "Y": 4, "Z": 1},
            "ProfilingData": {
                "Counters": [
                    {"Name": name, "Type": "Double", "Value": value}
                    for name, value in counters.items()
                ]
            },
        }
        good = number >= failed
        parameters = {"TILE": number, "KIND": "word"}
        results.append(
            {
                "ComputationResults": [computed] if good else [],
                "Configuration": [{"Name": key, "Value": parameters[key]} for key in parameters],
                "KernelName": "Convolution",
                "Status": "Ok" if good else "ComputationFailed",
                "TotalDuration": 10.0 + number,
            }
        )
    metadata = {
        "Device": "RTX", "GlobalSizeType": "CUDA", "KttVersion": "2.1.0", "TimeUnit": "Microseconds",
    }  # fmt: skip
    return {"Metadata": metadata, "Results": results}
