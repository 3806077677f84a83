"""The records of a build: one Parquet file, the same bytes each time; folders of earlier versions still load."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_store import AVX2, record

from tencost import cli
from tencost.errors import RecordError
from tencost.records import query
from tencost.store import layout
from tencost.store.reading import RecordFile
from tencost.store.record_store import RecordStore
from tencost.store.schema import SCHEMA, Record, to_arrow
from tencost.store.tables import RECORDS, STORE, load_records, open_records, write_records

CONF = Path(__file__).resolve().parents[2] / "conf"


def some_records() -> list[Record]:
    """Forty records of three workloads on three hardware, some failed, one in quarantine."""
    made = [
        replace(
            record(number, ("a", "b", "it's ä/%20")[number % 3], (1e-3 * (1 + number % 7),)),
            workload_id=f"w{number % 4}",
        )
        for number in range(38)
    ]
    return [*made, record(38, run_secs=()), record(39, run_secs=(2e-3, 5e-3))]


def write(folder: Path, records: list[Record]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return write_records(folder, to_arrow(records))


def test_the_same_records_are_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they come: in another order, in several pieces, some twice."""
    monkeypatch.setattr(layout, "GROUP_ROWS", (5, 5))
    records = some_records()
    assert write(tmp_path / "one", records) == 40
    shuffled = random.Random(1).sample([*records, *records[:9]], 49)
    pieces = pa.concat_tables([to_arrow(shuffled[:20]), to_arrow(shuffled[20:])])
    (tmp_path / "two").mkdir()
    assert write_records(tmp_path / "two", pieces) == 40
    file = tmp_path / "one" / RECORDS
    assert file.read_bytes() == (tmp_path / "two" / RECORDS).read_bytes()
    written = pq.ParquetFile(file)
    assert written.schema_arrow.equals(SCHEMA)
    assert written.metadata.num_row_groups == 9  # none of two hardware: 16, 12 and 12 rows
    rows = pl.read_parquet(file)
    assert rows.equals(rows.sort("hardware", "workload_id", "record_id"))


def test_a_file_answers_what_a_store_answers(tmp_path: Path) -> None:
    records = to_arrow(some_records()).to_pylist()
    records[4]["quarantine"] = "too fast"
    table = pa.Table.from_pylist(records, schema=SCHEMA)
    store = RecordStore(str(tmp_path / "store"))
    store.write_table(table)
    write_records(tmp_path, table)
    file = open_records(str(tmp_path / RECORDS))
    assert file.hardware() == store.hardware()
    for quarantined in (False, True):
        assert file.read(quarantined=quarantined).equals(store.read(quarantined=quarantined))
        for name in store.hardware():
            asked: dict[str, Any] = {"hardware": name, "target": AVX2, "quarantined": quarantined}
            for workload in ("w", "w0", "w1", "none"):
                assert file.lookup(workload, **asked).equals(store.lookup(workload, **asked))
                assert file.best(workload, n=3, **asked).equals(store.best(workload, n=3, **asked))
    assert query.best(file, hardware="a", target=AVX2, n=2).equals(
        query.best(store, hardware="a", target=AVX2, n=2)
    )
    assert query.statistics(file).equals(query.statistics(store))
    assert query.new(file, None).equals(query.new(store, None))
    counted = "SELECT hardware, count(*) AS n FROM all_records GROUP BY ALL ORDER BY ALL"
    assert query.sql(str(tmp_path), counted).equals(query.sql(store, counted))
    with pytest.raises(RecordError, match=r"expected records of c in .* found only a, b"):
        file.read("c")


def test_a_file_has_no_versions(tmp_path: Path) -> None:
    write(tmp_path, some_records())
    file = open_records(str(tmp_path))
    assert isinstance(file, RecordFile)
    assert file.version is None
    assert query.current_version(file) is None
    with pytest.raises(RecordError, match=r"found 3: a build product has one state"):
        open_records(str(tmp_path), 3)
    with pytest.raises(RecordError, match=r"versions for since=0, found .*Leave since= out"):
        query.new(file, 0)


def test_folders_of_both_kinds_load_alike(tmp_path: Path) -> None:
    """A folder that an earlier version built holds a Delta Lake table."""
    RecordStore(str(tmp_path / "old" / STORE)).write(some_records())
    write(tmp_path / "new", some_records())
    for hardware, columns in (
        (None, None),
        (["a"], ["program_id", "run_secs"]),
        (["b", "a"], ["latency_s"][:0]),
    ):
        old = load_records(tmp_path / "old", hardware, columns)
        assert old.equals(load_records(tmp_path / "new", hardware, columns))
        assert old.columns[-1] == "latency_s"
    assert isinstance(open_records(str(tmp_path / "old"), version=0), RecordStore)
    with pytest.raises(RecordError, match=r"found none\. Build it: tencost records"):
        load_records(tmp_path / "nowhere")


def test_a_build_is_queried_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its folder, its file, or the dataset's name; its quarantine can be read, not lifted."""
    shutil.copytree(CONF, tmp_path / "conf")
    monkeypatch.chdir(tmp_path)
    rows = to_arrow(some_records()).to_pylist()
    rows[0]["quarantine"] = "too fast"
    folder = tmp_path / "data" / "records" / "set"
    folder.mkdir(parents=True)
    write_records(folder, pa.Table.from_pylist(rows, schema=SCHEMA))
    asked = ("query", "best", "hardware=a", "workload=w1", "--json")
    for place in ("store=data/records/set", f"store={folder / RECORDS}", "dataset=set"):
        cli.main(["records", *asked, place])
        (found,) = json.loads(capsys.readouterr().out)
        assert found["workload_id"] == "w1"
    cli.main(["records", "query", "new", "dataset=set", "--limit", "1"])
    assert "A build has no versions" in capsys.readouterr().out
    cli.main(["records", "quarantine", f"store={folder}"])
    assert "1 quarantined records" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        cli.main(["records", "quarantine", "release=all", f"store={folder}"])
    assert "Correct the dataset and build again" in " ".join(capsys.readouterr().err.split())
