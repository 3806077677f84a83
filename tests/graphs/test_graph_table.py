"""The table of graphs and records: what is saved comes back, the same bytes each time; damage is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from small_graphs import CG_DEVICES, assert_equal, small_graphs
from tencost.errors import GraphError
from tencost.networks.graph.graph_set import LabelledGraphs
from tencost.networks.graph.table import load_graphs, save_graphs
from tencost.records.network_graphs.formats import cg
from tencost.records.network_graphs.reading import GraphReject, read_folder

GRAPHS = small_graphs({"aaa": 4, "bbb": 3})
FILES = ["graphs.parquet", "nodes.parquet", "edges.parquet", "records.parquet"]


@settings(max_examples=25, deadline=None)
@given(
    counts=st.dictionaries(st.sampled_from(["a", "resnets", "ö"]), st.integers(1, 5), min_size=1),
    seed=st.integers(0, 2**32 - 1),
    hardware=st.sampled_from([CG_DEVICES, ("host",), ()]),
)
def test_what_is_saved_is_loaded(
    counts: dict[str, int],
    seed: int,
    hardware: tuple[str, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    graphs = small_graphs(counts, seed, hardware)
    folder = tmp_path_factory.mktemp("table") / "set"
    save_graphs(folder, graphs)
    assert_equal(load_graphs(folder), graphs, rounding=3e-16)


def test_the_same_graphs_are_the_same_bytes(tmp_path: Path) -> None:
    reject = GraphReject("aaa/edge.csv", 3, "because", "aaa", 9)
    for name in ("first", "again"):
        save_graphs(tmp_path / name, GRAPHS, rejects=[reject])
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
    lines = (tmp_path / "first" / "rejects.jsonl").read_text().splitlines()
    assert [GraphReject(**orjson.loads(line)) for line in lines] == [reject]


def test_a_record_a_graph_and_device(tmp_path: Path) -> None:
    cg.write(tmp_path / "raw", GRAPHS)
    read = read_folder(tmp_path / "raw")
    save_graphs(tmp_path / "table", read.labelled, sources=read.nodes)
    records = pl.read_parquet(tmp_path / "table" / "records.parquet")
    assert len(records) == records["record_id"].n_unique() == 28
    assert records["row"].to_list() == [row for row in range(7) for _ in CG_DEVICES]
    assert records["hardware"].to_list() == [*CG_DEVICES] * 7
    latency = GRAPHS.latency_ms.reshape(-1) / 1e3
    assert records["status"].to_list() == ["missing" if ms != ms else "ok" for ms in latency]
    assert np.isnan(latency).any()
    found = records["latency"].fill_null(np.nan).to_numpy()
    np.testing.assert_array_equal(found, latency)
    assert records["latency"].null_count() == np.isnan(latency).sum()
    assert records["source"][-1] == {"file": "bbb/node-feat.csv", "line": read.nodes.line[-1]}
    assert records["graph_id"].to_list() == np.repeat(GRAPHS.graphs.graph_id, 4).tolist()


def test_records_of_equal_graphs_are_records_of_their_own(tmp_path: Path) -> None:
    twice = GRAPHS.take([0, 0])
    twice.graphs.position[1] = 7
    save_graphs(tmp_path / "table", twice)
    records = pl.read_parquet(tmp_path / "table" / "records.parquet")
    assert records["graph_id"].n_unique() == 1
    assert records["record_id"].n_unique() == 8


def test_a_failed_save_leaves_what_was_there(tmp_path: Path) -> None:
    save_graphs(tmp_path / "table", GRAPHS)
    unwritable = GraphReject("f", 1, "\ud800", "a", 0)  # half a character, which is no UTF-8
    with pytest.raises(TypeError):
        save_graphs(tmp_path / "table", GRAPHS.take([0]), rejects=[unwritable])
    assert_equal(load_graphs(tmp_path / "table"), GRAPHS, rounding=3e-16)
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    save_graphs(tmp_path / "table", GRAPHS)
    return tmp_path / "table"


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"expected .*graphs\.json, found nothing"):
        load_graphs(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("version", 2, "expected version 1 of the table, found 2"),
        ("operators", ["Conv2D"], "expected the operators of this version"),
        ("operators", 3, "expected the version and counts"),
        ("hardware", [1], "expected names of devices"),
        ("hardware", ["a"], "a record for each graph on each device|records, found"),
        ("hardware", [*CG_DEVICES[1:], CG_DEVICES[0]], "a record for each graph on each device"),
        ("graphs", 6, "graphs, nodes, edges and records, found"),
        ("nodes", "many", "expected names of devices and counts"),
    ],
)
def test_another_table(table: Path, field: str, value: object, reason: str) -> None:
    about = orjson.loads((table / "graphs.json").read_bytes())
    (table / "graphs.json").write_bytes(orjson.dumps({**about, field: value}))
    with pytest.raises(GraphError, match=reason):
        load_graphs(table)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"version"', b"\xff"])
def test_a_damaged_description(table: Path, text: bytes) -> None:
    (table / "graphs.json").write_bytes(text)
    with pytest.raises(GraphError, match="expected the version and counts"):
        load_graphs(table)


@pytest.mark.parametrize("file", FILES)
def test_damaged_files(table: Path, file: str) -> None:
    data = (table / file).read_bytes()
    for left in (0, len(data) // 2, len(data) - 1):
        (table / file).write_bytes(data[:left])
        with pytest.raises(GraphError, match=f"expected {file} to be whole"):
            load_graphs(table)
    (table / file).unlink()
    with pytest.raises(GraphError, match=f"expected {file}, found nothing"):
        load_graphs(table)


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_byte_is_told_or_changes_nothing(table: Path, file: str) -> None:
    data = bytearray((table / file).read_bytes())
    told = 0
    for place in range(0, len(data), 97):
        changed = data.copy()
        changed[place] ^= 0x55
        (table / file).write_bytes(changed)
        try:
            found = load_graphs(table)
        except GraphError:
            told += 1
        else:
            assert_equal(found, GRAPHS, rounding=3e-16)
    assert told


@pytest.mark.parametrize(
    ("file", "change", "reason"),
    [
        ("edges.parquet", pl.col("target") + 40, "edges to later nodes"),
        ("edges.parquet", pl.col("source") - 1, "edges to later nodes"),
        ("edges.parquet", pl.col("target").alias("source"), "edges to later nodes"),
        ("nodes.parquet", pl.lit(200, pl.UInt8).alias("operator"), "operators below"),
        ("nodes.parquet", pl.lit(1.5).alias("in_0"), r"other columns in nodes\.parquet"),
        ("graphs.parquet", pl.col("nodes") + 1, "graphs, nodes, edges and records"),
        ("graphs.parquet", pl.lit(None, pl.String).alias("family"), "no nulls in graphs"),
        ("records.parquet", pl.col("row").reverse(), "a record for each graph on each device"),
    ],
)
def test_files_that_do_not_belong_together(
    table: Path, file: str, change: pl.Expr, reason: str
) -> None:
    was = pq.read_table(table / file)
    changed = pl.from_arrow(was)
    assert isinstance(changed, pl.DataFrame)
    told = changed.with_columns(change).to_arrow()
    pq.write_table(told if "other columns" in reason else told.cast(was.schema), table / file)
    with pytest.raises(GraphError, match=reason):
        load_graphs(table)


def test_the_loaded_arrays_can_be_taken_from(table: Path) -> None:
    found = load_graphs(table)
    assert_equal(found.take([5, 1]), GRAPHS.take([5, 1]), rounding=3e-16)
    assert isinstance(found, LabelledGraphs)
