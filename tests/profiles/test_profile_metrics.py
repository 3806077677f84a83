"""Units and names: one of each, whatever was written."""

from __future__ import annotations

import pytest

from tencost.errors import ProfileError
from tencost.records.counters.metrics import (
    CURRENT_NAMES,
    NAMES,
    canonical_unit,
    current_name,
    parse_metric,
    require,
    rollup,
    same_kind,
)


@pytest.mark.parametrize(
    ("unit", "canonical", "factor"),
    [
        ("ns", "ns", 1.0),
        ("nsecond", "ns", 1.0),
        ("us", "ns", 1e3),
        ("usecond", "ns", 1e3),
        ("ms", "ns", 1e6),
        ("msecond", "ns", 1e6),
        ("second", "ns", 1e9),
        ("byte", "byte", 1.0),
        ("Kbyte", "byte", 1e3),
        ("Mbyte", "byte", 1e6),
        ("Gbyte", "byte", 1e9),
        ("Tbyte", "byte", 1e12),
        ("Gbyte/second", "byte/second", 1e9),
        ("Tbyte/s", "byte/second", 1e12),
        ("byte/nsecond", "byte/second", 1e9),
        ("Kbyte/block", "byte/block", 1e3),
        ("hertz", "hertz", 1.0),
        ("Khz", "hertz", 1e3),
        ("Mhz", "hertz", 1e6),
        ("Ghz", "hertz", 1e9),
        ("cycle/nsecond", "hertz", 1e9),
        ("cycle/second", "hertz", 1.0),
        ("%", "%", 1.0),
        ("inst", "inst", 1.0),
        ("Kinst", "inst", 1e3),
        ("inst/cycle", "inst/cycle", 1.0),
        ("register/thread", "register/thread", 1.0),
        ("sector/request", "sector/request", 1.0),
        ("", "", 1.0),
        ("tag", "tag", 1.0),
    ],
)
def test_units(unit: str, canonical: str, factor: float) -> None:
    found, by = canonical_unit(unit)
    assert found == canonical
    assert by == pytest.approx(factor)


def test_bytes_and_counts_do_not_share_a_column() -> None:
    assert same_kind("inst", "")
    assert same_kind("block", "thread")
    assert not same_kind("byte", "")
    assert not same_kind("ns", "hertz")


@pytest.mark.parametrize(
    ("metric", "unit", "canonical"),
    [
        ("gpu__time_duration.sum", "usecond", ("ns", 1e3)),
        ("gpu__time_duration.sum", "", ("ns", 1.0)),
        ("gpu__time_duration.sum", "usecoXd", None),
        ("dram__bytes_read.sum", "Kbyte", ("byte", 1e3)),
        ("dram__bytes_read.sum.per_second", "byte", None),
        ("dram__bytes_read.sum.pct_of_peak_sustained_elapsed", "%", ("%", 1.0)),
    ],
)
def test_a_unit_that_a_metric_cannot_have_is_refused(
    metric: str, unit: str, canonical: tuple[str, float] | None
) -> None:
    assert parse_metric(metric, unit) == (canonical and (metric, *canonical))


def test_a_share_of_one_becomes_percent() -> None:
    metric = parse_metric("achieved_occupancy", "")
    assert metric == ("sm__warps_active.avg.pct_of_peak_sustained_active", "%", 100.0)


def test_words_of_the_details_page_are_names_by_section() -> None:
    assert current_name("Memory Throughput", "GPU Speed Of Light Throughput").startswith(
        "gpu__compute_memory"
    )
    assert (
        current_name("Memory Throughput", "Memory Workload Analysis")
        == "dram__bytes.sum.per_second"
    )
    assert current_name("Memory Throughput", unit="Gbyte/second") == "dram__bytes.sum.per_second"
    assert current_name("Duration", "GPU Speed Of Light") == "gpu__time_duration.sum"
    assert current_name("SM Busy", "Compute Workload Analysis").startswith(
        "sm__instruction_throughput"
    )
    assert current_name("Something New", "Occupancy") == "Occupancy: Something New"
    assert (
        current_name("dram_read_bytes")
        == current_name("dram__read_bytes.sum")
        == "dram__bytes_read.sum"
    )
    assert (
        current_name("dram__bytes_read.sum", "Command line profiler metrics")
        == "dram__bytes_read.sum"
    )


def test_the_table_of_names_ends_at_names_of_today() -> None:
    for name in set(CURRENT_NAMES.values()):
        assert name not in CURRENT_NAMES, name
    for section, metrics in NAMES.items():
        words = [word for names in metrics.values() for word in names.split(" | ")]
        assert len(words) == len(set(words)), section


@pytest.mark.parametrize(
    ("metric", "how"),
    [
        ("gpu__time_duration.sum", "sum"),
        ("dram__bytes_read.sum", "sum"),
        ("sm__cycles_active.avg", "sum"),
        ("sass__inst_executed_global_loads", "sum"),
        ("dram__bytes.sum.per_second", "time"),
        ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "time"),
        ("lts__t_sector_hit_rate.pct", "time"),
        ("smsp__thread_inst_executed_per_inst_executed.ratio", "time"),
        ("sm__inst_executed.avg.per_cycle_active", "time"),
        ("sm__maximum_warps_per_active_cycle_pct", "time"),
        ("launch__occupancy_limit_registers", "min"),
        ("launch__grid_size", "largest"),
        ("launch__waves_per_multiprocessor", "largest"),
        ("dram__bytes.sum.peak_sustained", "max"),
        ("device__attribute_multiprocessor_count", "max"),
    ],
)
def test_how_kernels_become_a_program(metric: str, how: str) -> None:
    assert rollup(metric) == how


def test_a_missing_metric_is_named_with_the_nearest() -> None:
    require(["a__b.sum"], ["a__b.sum"], "table")
    with pytest.raises(
        ProfileError,
        match=r"expected dram__bytes_reads\.sum \(the nearest there is: dram__bytes_read\.sum\)",
    ):
        require(["dram__bytes_read.sum", "x"], ["x", "dram__bytes_reads.sum"], "table")
