"""Launches become programs: by id, as each metric asks, whatever was run how often."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import exports
import numpy as np
import pytest

from tencost.errors import ProfileError, RecordError
from tencost.records.counters.reading import ReadProfiles, read_files
from tencost.records.counters.table import Profiles
from tencost.store.record import Record, Source
from tencost.store.record_store import RecordStore
from tencost.store.status import Status

ID, OTHER = "0123456789abcdef" * 2, "fedcba9876543210" * 2
COUNT, RATE = "dram__bytes_read.sum", "dram__bytes.sum.per_second"
SHARE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
LIMIT, GRID = "launch__occupancy_limit_warps", "launch__grid_size"
UNITS = {
    exports.TIME: "ns",
    COUNT: "byte",
    RATE: "byte/second",
    SHARE: "%",
    LIMIT: "block",
    GRID: "",
}


def launch(
    number: int, kernel: str, values: Sequence[object], **other: str
) -> tuple[list[str], dict[str, object]]:
    return exports.who(number, kernel, **other), dict(zip(UNITS, values, strict=True))


def read(
    path: Path, launches: Sequence[tuple[list[str], dict[str, object]]], **keywords: object
) -> ReadProfiles:
    path.write_text(exports.wide(launches, UNITS))
    return read_files([path], **keywords)  # type: ignore[arg-type]


def row(profiles: Profiles, at: int = 0) -> dict[str, float]:
    return dict(zip(profiles.metrics, profiles.values[at].tolist(), strict=True))


A = [1000.0, 10.0, 4.0, 20.0, 8.0, 64.0]
B = [3000.0, 30.0, 8.0, 60.0, 2.0, 32.0]


def test_kernels_of_a_program_are_added_weighted_or_bounded(tmp_path: Path) -> None:
    found = read(tmp_path / f"{ID}.csv", [launch(0, "a", A), launch(1, "b", B)])
    assert found.profiles.program_id.tolist() == [ID]
    assert found.profiles.time_ns.tolist() == [4000.0]
    values = row(found.profiles)
    assert values[exports.TIME] == 4000.0
    assert values[COUNT] == 40.0
    assert values[RATE] == pytest.approx((1000 * 4 + 3000 * 8) / 4000)
    assert values[SHARE] == pytest.approx((1000 * 20 + 3000 * 60) / 4000)
    assert values[LIMIT] == 2.0
    assert values[GRID] == 32.0  # of the kernel that takes longest


@pytest.mark.parametrize("runs", [1, 2, 5])
def test_repeated_runs_are_averaged(tmp_path: Path, runs: int) -> None:
    once = [("a", A), ("b", B), ("a", A)]
    launches = [
        launch(number, kernel, [value * (1 + 0.1 * (number // 3)) for value in values])
        for number, (kernel, values) in enumerate(once * runs)
    ]
    found = read(tmp_path / f"{ID}.csv", launches)
    scale = 1 + 0.1 * (runs - 1) / 2
    assert found.profiles.time_ns[0] == pytest.approx(5000.0 * scale)
    assert row(found.profiles)[COUNT] == pytest.approx(50.0 * scale)


def test_the_first_launches_warm_up(tmp_path: Path) -> None:
    cold = [value * 100 for value in A]
    launches = [launch(number, "a", cold if number < 2 else A) for number in range(5)]
    assert read(tmp_path / "x.csv", launches, warm_up=2).profiles.time_ns.tolist() == [1000.0]
    assert read(tmp_path / "x.csv", launches).profiles.time_ns[0] == pytest.approx(
        (2 * 100_000 + 3 * 1000) / 5
    )
    # A single launch stays, however many are to warm up.
    assert read(tmp_path / "x.csv", launches[4:], warm_up=2).profiles.time_ns.tolist() == [1000.0]


def test_runs_that_are_told_count(tmp_path: Path) -> None:
    launches = [launch(number, "a", A) for number in range(6)]
    assert read(tmp_path / f"{ID}.csv", launches).profiles.time_ns.tolist() == [1000.0]
    assert read(tmp_path / f"{ID}.csv", launches, runs=2).profiles.time_ns.tolist() == [3000.0]


def test_runs_that_do_not_divide_the_launches_are_told(tmp_path: Path) -> None:
    launches = [launch(number, "a", A) for number in range(6)]
    found = read(tmp_path / f"{ID}.csv", launches, runs=4)
    assert any("4 runs do not divide" in note and ID in note for note in found.notes)
    even = read(tmp_path / f"{ID}.csv", launches, runs=3)
    assert not any("do not divide" in note for note in even.notes)


@pytest.mark.parametrize(("warm_up", "told"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_warm_up_that_leaves_no_launch_is_told(tmp_path: Path, warm_up: int, told: bool) -> None:
    launches = [launch(number, "ab"[number % 2], A) for number in range(4)]
    notes = read(tmp_path / f"{ID}.csv", launches, warm_up=warm_up).notes
    assert any(f"no more than {warm_up} times" in note and ID in note for note in notes) == told


def test_a_program_on_two_devices_is_named_twice(tmp_path: Path) -> None:
    for capability in ("8.6", "9.0"):
        marked = [launch(number, f"tencost:{ID}", A, CC=capability) for number in range(2)]
        (tmp_path / f"{capability}.csv").write_text(exports.wide(marked, UNITS))
    found = read_files([tmp_path])
    assert len(found.profiles) == 2
    assert any("2 by a range of NVTX" in note for note in found.notes)


def test_launches_in_no_order_are_one_run_and_that_is_told(tmp_path: Path) -> None:
    launches = [launch(number, kernel, A) for number, kernel in enumerate("abbab")]
    found = read(tmp_path / f"{ID}.csv", launches)
    assert found.profiles.time_ns.tolist() == [5000.0]
    assert any("no order that repeats" in note and ID in note for note in found.notes)


def test_a_metric_that_some_kernels_lack_is_no_half_sum(tmp_path: Path) -> None:
    lacking = [1000.0, "n/a", 4.0, "n/a", 8.0, 64.0]
    found = read(tmp_path / f"{ID}.csv", [launch(0, "a", lacking), launch(1, "b", B)])
    values = row(found.profiles)
    assert np.isnan(values[COUNT])
    assert values[SHARE] == 60.0  # of the kernels that have the rate at all
    assert any(COUNT in note for note in found.notes)


def test_kernels_without_a_time_weigh_as_often_as_they_ran(tmp_path: Path) -> None:
    a, b = (["n/a", *values[1:]] for values in (A, B))
    found = read(tmp_path / f"{ID}.csv", [launch(0, "a", a), launch(1, "b", b)])
    assert np.isnan(found.profiles.time_ns[0])
    assert row(found.profiles)[SHARE] == 40.0
    assert row(found.profiles)[GRID] == 64.0
    assert any("without a time" in note for note in found.notes)


def test_programs_are_found_by_nvtx_then_kernel_then_file_then_manifest(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.csv"
    manifest.write_text(
        f"file,kernel,record_id,workload\n,plain,{'4' * 32},matmul\n{ID}.csv,,{'5' * 32},\n"
    )
    rows = [
        [*exports.IDENTITY, exports.MARK, exports.TIME],
        [*[""] * 12, "ns"],
        [*exports.who(0, f"{OTHER}_kernel"), f"<default domain>:tencost:{'1' * 32}:none:none", "1"],
        [*exports.who(1, f"fused_{OTHER}_kernel0"), "", "2"],
        [*exports.who(2, "plain(float*)"), "", "3"],
    ]
    (tmp_path / f"{ID}.csv").write_text(exports.rows_text(rows))
    (tmp_path / "other.csv").write_text(
        exports.rows_text([*rows[:2], rows[4], [*exports.who(5, "more"), "", "4"]])
    )
    found = read_files([tmp_path / f"{ID}.csv", tmp_path / "other.csv"], manifest=manifest)
    times = dict(
        zip(found.profiles.program_id.tolist(), found.profiles.time_ns.tolist(), strict=True)
    )
    assert times == {"1" * 32: 1.0, OTHER: 2.0, ID: 3.0, "4" * 32: 3.0, "other/more": 4.0}
    workload = dict(
        zip(found.profiles.program_id.tolist(), found.profiles.workload.tolist(), strict=True)
    )
    assert workload["4" * 32] == "matmul"
    assert workload["other/more"] == "other/more"  # competes with nothing
    assert any("1 of 2 rows" in note and f"{ID}.csv" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("file,id\na,b\n", "expected the columns record_id"),
        ("", "found nothing"),
        ("file,record_id\na.csv,\n", "m.csv:2"),
        ("file,record_id\na.csv,x\na.csv,y\n", "in line 3, y"),
    ],
)
def test_a_bad_manifest_is_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "m.csv").write_text(text)
    with pytest.raises(ProfileError, match=told):
        read(tmp_path / "a.csv", [launch(0, "a", A)], manifest=tmp_path / "m.csv")


def record(number: int) -> Record:
    """A record of a made-up workload, with an id as any other's."""
    return Record(
        record_id=hashlib.sha256(f"{number}".encode()).hexdigest()[:32],
        program_id=f"program-{number}",
        workload_id=f"{number:032x}",
        task_name="task",
        networks=(),
        hardware="gpu",
        target={"kind": "cuda"},
        program_format="metaschedule_trace",
        program=f"[{number}]",
        run_secs=(1e-3,),
        status=Status.ok,
        error="",
        source=Source("made-up", "a", number),
    )


def test_programs_join_with_records_and_the_rest_is_counted_and_kept(tmp_path: Path) -> None:
    store = RecordStore(str(tmp_path / "store"))
    store.write([record(number) for number in range(3)])
    rows = store.read(columns=["record_id", "workload_id"])
    ids = rows["record_id"].to_list()
    names = [*ids, "abcdef0" + "1" * 25, OTHER]
    launches = [launch(number, f"k_{name}", A) for number, name in enumerate(names)]
    found = read(tmp_path / "a.csv", launches, stores=[str(tmp_path / "store")])
    assert (found.joined, len(found.profiles)) == (3, 5)
    assert found.profiles.workload.tolist()[:3] == rows["workload_id"].to_list()
    told = next(note for note in found.notes if "no record store" in note)
    assert told.startswith("2 of 5 programs")
    assert OTHER in told
    with pytest.raises(RecordError):
        read(tmp_path / "a.csv", launches, stores=[str(tmp_path / "no store")])


_MEASURE = """
import resource, sys
from pathlib import Path
from tencost.records.counters.reading import read_files
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = read_files([Path(sys.argv[1])])
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(found.launches, len(found.profiles), after - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "megabytes"), [("wide", 200), ("long", 100)])
def test_memory_grows_with_the_programs_and_not_with_the_file(
    tmp_path: Path, layout: str, megabytes: int
) -> None:
    """Launches of 50 kernels, 200 MB of them, take less than a tenth of that."""
    units = {exports.TIME: "ns", **{f"unit{place}__made_up.sum": "inst" for place in range(474)}}
    values = {name: 100_000_000.123 + place for place, name in enumerate(units)}
    kernels = [f"kernel{place}" for place in range(50)]
    if layout == "wide":
        head, row_of_units, *_ = exports.wide([(exports.who(0), values)], units).splitlines()
        body = "\n".join(
            exports.wide([(exports.who(0, name), values) for name in kernels], units).splitlines()[
                2:
            ]
        )
        head = f"{head}\n{row_of_units}"
    else:
        metrics = {("S", name): (unit, str(values[name])) for name, unit in units.items()}
        head, body = exports.long(
            [(place, name, metrics) for place, name in enumerate(kernels)]
        ).split("\n", 1)
    path = tmp_path / "large.csv"
    size = 0
    with path.open("w") as file:
        size += file.write(head + "\n")
        while size < megabytes * 1_000_000:
            size += file.write(body.rstrip("\n") + "\n")
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=550,
    )
    launches, programs, kilobytes = map(int, done.stdout.split())
    assert launches >= 1_000
    assert programs == 50
    assert kilobytes * 1024 < size / 10
