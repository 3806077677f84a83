"""How long the best record of a workload takes to find as a store grows: our layout, a plain one, two peers.

    python benchmarks/lookup.py [--sizes 10000,100000,269000,1000000,10000000] [--folder DIR] [--repeats N]
                                [--peers-up-to ROWS] [--plot FILE]

The rows are made by resampling a pool of Ansor-like records on three hardware: 359 workloads, programs of about 600
bytes, 5 % failures, new ids and times for each row. A look-up includes opening the table; workload and hardware are
drawn anew each time. All sides answer the same: the whole row of lowest latency for a workload, a hardware and a
target. What is compared:

store       RecordStore(uri).best(...), after compaction
written     the same before compaction, as 100,000 rows a write left it
plain       the rows in a Delta table of default settings, not sorted, not partitioned; filtered by Arrow
duckdb      SQL over the store's Parquet files
sqlite      a table of text columns with an index of workload, hardware, target and latency
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from tencost.store.layout import data_files, latency
from tencost.store.record_store import RecordStore
from tencost.store.schema import SCHEMA, SCHEMA_VERSION

SIZES = (10_000, 100_000, 269_000, 1_000_000, 10_000_000)
WORKLOADS = 359
HARDWARE = ("v100", "k80", "mi50")
TARGET = '{"keys":["cuda","gpu"],"kind":"cuda","max_num_threads":1024,"thread_warp_size":32}'
POOL = 20_000
CHUNK = 100_000
BAR_MS = 50.0
Find = Callable[[str, str], str]
"""Workload and hardware to the best record's id."""


def workload_ids() -> list[str]:
    return [hashlib.sha256(str(number).encode()).hexdigest()[:32] for number in range(WORKLOADS)]


def hardware_of(workload: int) -> str:
    return HARDWARE[workload % len(HARDWARE)]


def program_pool(random: np.random.Generator) -> pa.Array:
    def step() -> str:
        sizes = ",".join(map(str, random.integers(1, 64, 4)))
        return f'["SP",{random.integers(9)},{random.integers(4)},512,[{sizes}],1]'

    steps = np.array([step() for _ in range(2000)])
    return pa.array(
        ["[" + ",".join(steps[random.integers(0, 2000, 22)]) + "]" for _ in range(POOL)]
    )


def hex_ids(random: np.random.Generator, count: int) -> pa.Array:
    text = random.bytes(16 * count).hex().encode()
    offsets = pa.py_buffer(np.arange(0, 32 * count + 1, 32, dtype=np.int32))
    return pa.StringArray.from_buffers(count, offsets, pa.py_buffer(text))


def chunks(rows: int, seed: int = 1) -> Iterator[pa.Table]:
    """Yield tables of the record schema, `rows` rows together."""
    random = np.random.default_rng(seed)
    programs, names = program_pool(random), workload_ids()
    typical = np.exp(random.normal(-7.0, 1.5, WORKLOADS))
    for start in range(0, rows, CHUNK):
        count = min(CHUNK, rows - start)
        workload = random.integers(0, WORKLOADS, count)
        times = typical[workload] * np.exp(np.abs(random.normal(0.0, 1.0, count)))
        failed = pa.array(random.random(count) < 0.05)
        three = (times[:, None] * (1 + 0.02 * random.random((count, 3)))).ravel()
        run_secs = pa.ListArray.from_arrays(
            np.arange(0, 3 * count + 1, 3, dtype=np.int32), three, mask=failed
        )
        mean = pc.if_else(failed, None, pa.array((times * 1.01e3).astype(np.float32)))
        texts = {
            "task_name": "dense", "schema_version": SCHEMA_VERSION, "workload": "auto_scheduler.dense",
            "engine": "tvm", "target": TARGET, "program_format": "ansor_steps",
        }  # fmt: skip
        values: dict[str, Any] = {key: pa.repeat(value, count) for key, value in texts.items()}
        values |= {
            "record_id": hex_ids(random, count),
            "program_id": hex_ids(random, count),
            "workload_id": pa.array(names).take(pa.array(workload)),
            "hardware": pa.array([hardware_of(number) for number in range(WORKLOADS)]).take(
                pa.array(workload)
            ),
            "program": programs.take(pa.array(random.integers(0, POOL, count))),
            "run_secs": run_secs,
            "execution_elapsed_ms_mean": mean,
            "status": pc.if_else(failed, "run_error", "ok"),
            "source": pa.StructArray.from_arrays(
                [pa.repeat("made", count), pa.repeat("made.json", count),
                 pa.array(np.arange(start + 1, start + count + 1))],
                names=["dataset", "file", "line"],
            ),
        }  # fmt: skip
        columns = [values.get(field.name, pa.nulls(count, field.type)) for field in SCHEMA]
        yield pa.table([column.cast(field.type) for column, field in zip(columns, SCHEMA, strict=True)],
                       schema=SCHEMA)  # fmt: skip


def store_finder(uri: str) -> Find:
    def find(workload: str, hardware: str) -> str:
        frame = RecordStore(uri).best(workload, hardware=hardware, target=TARGET)
        assert frame.width == len(SCHEMA)
        return str(frame["record_id"].item())

    return find


def plain_finder(uri: str) -> Find:
    def find(workload: str, hardware: str) -> str:
        condition = (
            (pc.field("workload_id") == workload)
            & (pc.field("hardware") == hardware)
            & (pc.field("target") == TARGET)
        )
        rows = pl.from_arrow(DeltaTable(uri).to_pyarrow_dataset().to_table(filter=condition))
        assert isinstance(rows, pl.DataFrame)
        return str(rows.sort(latency(), "record_id", nulls_last=True)["record_id"][0])

    return find


def duckdb_finder(uri: str) -> Find:
    def find(workload: str, hardware: str) -> str:
        files = [
            f"{uri}/{file.path}"
            for file in data_files(DeltaTable(uri))
            if file.hardware == hardware
        ]
        with duckdb.connect() as database:
            found = database.execute(
                "SELECT * FROM read_parquet($files) WHERE workload_id = $workload AND target = $target "
                "AND quarantine IS NULL AND run_secs IS NOT NULL "
                "ORDER BY list_median(run_secs), record_id LIMIT 1",
                {"files": files, "workload": workload, "target": TARGET},
            ).fetchone()
        assert found is not None
        return str(found[0])

    return find


def sqlite_finder(path: Path) -> Find:
    def find(workload: str, hardware: str) -> str:
        database = sqlite3.connect(path)
        found = database.execute(
            "SELECT * FROM records WHERE workload_id = ? AND hardware = ? AND target = ? "
            "AND latency IS NOT NULL AND quarantine IS NULL ORDER BY latency LIMIT 1",
            (workload, hardware, TARGET),
        ).fetchone()
        database.close()
        return str(found[0])

    return find


def fill_sqlite(path: Path, rows: int) -> None:
    database = sqlite3.connect(path)
    columns = ", ".join(f'"{name}"' for name in SCHEMA.names)
    database.execute(f"CREATE TABLE records ({columns}, latency)")
    marks = ", ".join("?" * (len(SCHEMA) + 1))
    for table in chunks(rows):
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        frame = frame.with_columns(_latency=latency())
        lists = [index for index, kind in enumerate(frame.dtypes) if kind.is_nested()]
        database.executemany(
            f"INSERT INTO records VALUES ({marks})",
            ([json.dumps(value) if index in lists else value for index, value in enumerate(row)]
             for row in frame.iter_rows()),
        )  # fmt: skip
    database.execute("CREATE INDEX best ON records (workload_id, hardware, target, latency)")
    database.commit()
    database.close()


@dataclass(frozen=True)
class Times:
    """Milliseconds of one look-up: median and 90th percentile by the clock, median of CPU time."""

    median: float
    p90: float
    cpu: float


def timed(find: Find, repeats: int) -> tuple[Times, dict[int, str]]:
    """Return the times of `repeats` look-ups, and what was found by workload."""
    random, names = np.random.default_rng(2), workload_ids()
    answers, times, cpu = {}, [], []
    for number in [0, *random.integers(0, WORKLOADS, repeats)]:
        start, start_cpu = time.perf_counter(), time.process_time()
        answers[int(number)] = find(names[number], hardware_of(int(number)))
        times.append(1e3 * (time.perf_counter() - start))
        cpu.append(1e3 * (time.process_time() - start_cpu))
    times = sorted(times[1:])  # the first one warms up
    p90 = times[int(0.9 * len(times))]
    return Times(statistics.median(times), p90, statistics.median(cpu[1:])), answers


def size_mb(path: Path) -> float:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def measure(rows: int, folder: Path, repeats: int, peers: bool) -> dict[str, Times]:
    """Make the tables of one size, print a line for each side; return the times by side."""
    uri, found = str(folder / f"store-{rows}"), {}
    answers: dict[str, dict[int, str]] = {}

    def line(side: str, find: Find, count: int, note: str) -> None:
        found[side], answers[side] = timed(find, count)
        took = found[side]
        numbers = f"{took.median:>10.1f} {took.p90:>10.1f} {took.cpu:>10.1f}"
        print(f"{rows:>11,}  {side:8} {numbers}  {note}", flush=True)

    start = time.perf_counter()
    store = RecordStore(uri)
    for table in chunks(rows):
        store.write_table(table)
    note = f"{time.perf_counter() - start:.1f} s to make and write"
    line("written", store_finder(uri), repeats, note)
    start = time.perf_counter()
    done = store.compact()
    note = f"{time.perf_counter() - start:.1f} s to compact: {done}"
    store.vacuum(0)
    line("store", store_finder(uri), repeats, f"{size_mb(Path(uri)):.0f} MB; {note}")
    if peers:
        line("duckdb", duckdb_finder(uri), min(repeats, 25), "the store's files")
        plain = folder / f"plain-{rows}"
        for table in chunks(rows):
            write_deltalake(str(plain), table, mode="append")
        line("plain", plain_finder(str(plain)), 5, f"{size_mb(plain):.0f} MB")
        database = folder / f"sqlite-{rows}.db"
        fill_sqlite(database, rows)
        line("sqlite", sqlite_finder(database), repeats, f"{size_mb(database):.0f} MB")
    for side, mine in answers.items():
        wrong = [
            number for number in mine if mine[number] != answers["store"].get(number, mine[number])
        ]
        assert not wrong, f"{side} finds other records than store for workloads {wrong}"
    return found


def plot(results: dict[int, dict[str, Times]], where: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    sides = list(dict.fromkeys(side for found in results.values() for side in found))
    for side in ("store", *(side for side in sides if side != "store")):
        sizes = [rows for rows, found in results.items() if side in found]
        medians = [results[rows][side].median for rows in sizes]
        axes.plot(sizes, medians, "o-", label=side, linewidth=2.5 if side == "store" else 1.2)
    axes.axhline(BAR_MS, color="grey", linestyle=":", label="50 ms")
    axes.set(xscale="log", yscale="log", xlabel="rows in the table", ylabel="median look-up, ms")
    axes.set_title("Best record of a workload, opening the table included")
    axes.grid(which="major", alpha=0.3)
    axes.legend()
    where.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(where, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Time of the best-of-workload look-up by table size."
    )
    parser.add_argument("--sizes", default=",".join(map(str, SIZES[:-1])))
    parser.add_argument("--folder", type=Path, help="for the tables; default: a temporary one")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--peers-up-to", type=int, default=1_000_000)
    parser.add_argument(
        "--plot", type=Path, default=Path(__file__).parent / "results" / "lookup.png"
    )
    chosen = parser.parse_args()
    cpus = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    load = os.getloadavg()[0]
    print(f"{platform.processor() or platform.machine()}, {cpus} CPUs, load {load:.1f}; "
          f"{WORKLOADS} workloads, {len(HARDWARE)} hardware")  # fmt: skip
    print(f"{'rows':>11}  {'side':8} {'median ms':>10} {'p90 ms':>10} {'CPU ms':>10}")
    results = {}
    with tempfile.TemporaryDirectory(dir=chosen.folder, prefix="lookup-") as folder:
        for rows in map(int, chosen.sizes.split(",")):
            results[rows] = measure(rows, Path(folder), chosen.repeats, rows <= chosen.peers_up_to)
    plot(results, chosen.plot)
    print(f"plot: {chosen.plot}")


if __name__ == "__main__":
    main()
