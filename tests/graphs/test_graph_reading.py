"""Reading folders of the CG layout: what is there comes back, what is damaged is named and costs nobody else."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from small_graphs import CG_DEVICES, assert_equal, small_graphs
from tencost.errors import GraphError
from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs
from tencost.networks.graph.identity import graph_ids, shape_keys
from tencost.networks.graph.operators import COLUMNS, OPERATOR_CODES
from tencost.records.network_graphs.formats import cg
from tencost.records.network_graphs.reading import (
    MAX_NODES,
    GraphReject,
    ReadGraphs,
    gate,
    places,
    read_folder,
)

CG = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "cg"
GRAPHS = small_graphs({"aaa": 7, "bbb": 5}, nodes=(4, 9))
SOMEWHERE = places(["f"] * 12, range(1, 13), 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cg.write(tmp_path / "set", GRAPHS)
    return tmp_path / "set"


def edit(path: Path, change: Callable[[list[str]], object]) -> None:
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("".join(f"{line}\n" for line in lines))


def without(*rows: int) -> LabelledGraphs:
    return GRAPHS.take([row for row in range(len(GRAPHS)) if row not in rows])


def one_reject(read: ReadGraphs) -> GraphReject:
    assert len(read.rejects) == 1, read.rejects
    return read.rejects[0]


@settings(max_examples=30, deadline=None)
@given(
    counts=st.dictionaries(st.sampled_from(["a", "resnets", "z-9"]), st.integers(1, 6), min_size=1),
    seed=st.integers(0, 2**32 - 1),
    hardware=st.sampled_from([CG_DEVICES, CG_DEVICES[1:3], ("adreno-640", "my-host"), ("a-host",)]),
    zipped=st.booleans(),
)
def test_what_is_written_is_read(
    counts: dict[str, int],
    seed: int,
    hardware: tuple[str, ...],
    zipped: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    graphs = small_graphs(counts, seed, hardware)
    folder = tmp_path_factory.mktemp("cg")
    cg.write(folder, graphs)
    for path in folder.glob("*/*.csv") if zipped else ():
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    read = read_folder(folder)
    assert_equal(read.labelled, graphs)
    assert read.rejects == ()


def test_positions_of_a_sample_are_kept(tmp_path: Path) -> None:
    sample = GRAPHS.take([1, 4, 6, 7, 8])
    cg.write(tmp_path / "sample", sample)
    assert_equal(read_folder(tmp_path / "sample").labelled, sample)
    assert (tmp_path / "sample" / "aaa" / "position.csv").read_text() == "1\n4\n6\n"
    assert not (tmp_path / "sample" / "bbb" / "position.csv").exists()


def test_a_folder_of_one_family(folder: Path) -> None:
    read = read_folder(folder / "bbb")
    assert_equal(read.labelled, GRAPHS.take(range(7, 12)))
    assert set(read.nodes.file.tolist()) == {"bbb/node-feat.csv"}


def test_places_are_those_of_the_files(folder: Path) -> None:
    read = read_folder(folder)
    lines = (folder / "bbb" / "node-feat.csv").read_text().splitlines()
    for graph in range(7, 12):
        assert lines[read.nodes.line[graph] - 1].startswith("Placeholder,")
    edges = (folder / "bbb" / "edge.csv").read_text().splitlines()
    assert edges[read.edges.line[-1] - 1] == "0,1"


@pytest.mark.parametrize("line", range(0, 25, 2))
@pytest.mark.parametrize("file", ["node-feat.csv", "edge.csv"])
def test_a_row_too_few_costs_its_graph(folder: Path, file: str, line: int) -> None:
    edit(folder / "aaa" / file, lambda lines: lines.pop(line))
    starts = GRAPHS.graphs.node_start if file == "node-feat.csv" else GRAPHS.graphs.edge_start
    assert line < starts[7]
    owner = int(np.searchsorted(starts, line, side="right")) - 1
    read = read_folder(folder)
    found = {reject.graph for reject in read.rejects}
    assert owner in found
    assert found <= {owner - 1, owner, owner + 1}  # where the lost row made its neighbour ambiguous
    assert_equal(read.labelled, without(*found))
    for reject in read.rejects:
        assert reject.file == f"aaa/{file}"
        assert abs(reject.line - (line + 1)) <= 20
        assert "cannot be told" in reject.reason


@settings(max_examples=40, deadline=None)
@given(
    file=st.sampled_from(["node-feat.csv", "edge.csv"]),
    places=st.lists(st.integers(0, 2**16), min_size=1, max_size=3),
    twice=st.booleans(),
)
def test_rows_lost_or_doubled_never_make_another_graph(
    file: str, places: list[int], twice: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cg") / "set"
    cg.write(folder, GRAPHS)

    def change(lines: list[str]) -> None:
        for place in places:
            line = lines.pop(place % len(lines))
            lines[place % (len(lines) + 1) : place % (len(lines) + 1)] = (
                [line, line] if twice else []
            )

    edit(folder / "aaa" / file, change)
    read = read_folder(folder)
    ids = dict(zip(GRAPHS.graphs.name.tolist(), GRAPHS.graphs.graph_id.tolist(), strict=True))
    found = dict(
        zip(read.labelled.graphs.name.tolist(), read.labelled.graphs.graph_id.tolist(), strict=True)
    )
    assert found.items() <= ids.items()
    assert {
        f"{reject.family}/{reject.graph}" for reject in read.rejects
    } >= ids.keys() - found.keys()


def test_the_last_row_cut_off(folder: Path) -> None:
    edit(folder / "aaa" / "node-feat.csv", lambda lines: lines.pop())
    read = read_folder(folder)
    assert one_reject(read).graph == 6
    assert_equal(read.labelled, without(6))


def test_rows_too_many_are_nobodys(folder: Path) -> None:
    edit(folder / "aaa" / "edge.csv", lambda lines: lines.append("0,1"))
    read = read_folder(folder)
    assert_equal(read.labelled, GRAPHS)
    assert (one_reject(read).graph, one_reject(read).line) == (-1, GRAPHS.graphs.edge_start[7] + 1)


def test_a_count_that_is_none(folder: Path) -> None:
    edit(folder / "aaa" / "num-node-list.csv", lambda lines: lines.__setitem__(2, "many"))
    read = read_folder(folder)
    assert_equal(read.labelled, without(2))
    assert "expected a whole number in line 3 of num-node-list.csv" in one_reject(read).reason


def test_a_count_too_few_costs_the_family(folder: Path) -> None:
    edit(folder / "aaa" / "num-edge-list.csv", lambda lines: lines.pop())
    read = read_folder(folder)
    assert_equal(read.labelled, GRAPHS.take(range(7, 12)))
    reject = one_reject(read)
    assert (reject.file, reject.family, reject.graph) == ("aaa/num-edge-list.csv", "aaa", -1)
    assert reject.reason.startswith("expected 7 lines as in num-node-list.csv, found 6")


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("node-feat.csv", "Conv9D" + ",1" * 16, "known operators, found 'Conv9D'"),
        ("node-feat.csv", "Conv2D" + ",1" * 15, "expected 17 values, found 16"),
        ("node-feat.csv", "Conv2D" + ",1" * 17, "expected 17 values, found 18"),
        ("node-feat.csv", "Conv2D,x" + ",1" * 15, "whole numbers"),
        ("node-feat.csv", "Conv2D,1.5" + ",1" * 15, "whole numbers"),
        ("node-feat.csv", "Conv2D,nan" + ",1" * 15, "whole numbers"),
        ("node-feat.csv", "Conv2D,99999999999" + ",1" * 15, "whole numbers"),
        ("node-feat.csv", "Conv2D,-2" + ",1" * 15, "sizes from -1"),
        ("node-feat.csv", "", "expected 17 values, found 1"),
        ("node-feat.csv", "\x00\ufffd", "expected 17 values"),
        ("node-feat.csv", '"Conv2D' + ",1" * 16, ""),
        ("edge.csv", "0,99", "found the edge 0,99"),
        ("edge.csv", "-1,1", "found the edge -1,1"),
        ("edge.csv", "1,1", "a graph without cycles, found one through the edge 1,1"),
        ("edge.csv", "0,a", "whole numbers"),
        ("edge.csv", "0", "expected 2 values, found 1"),
    ],
)
def test_a_bad_line_costs_its_graph(folder: Path, file: str, text: str, reason: str) -> None:
    starts = GRAPHS.graphs.node_start if file == "node-feat.csv" else GRAPHS.graphs.edge_start
    line = int(starts[3])
    assert starts[4] > line + 1
    edit(folder / "aaa" / file, lambda lines: lines.__setitem__(line, text))
    read = read_folder(folder)
    if text.startswith('"'):  # a quote around nothing else is left out
        assert len(read.rejects) <= 1
        return
    assert_equal(read.labelled, without(3))
    reject = one_reject(read)
    assert (reject.file, reject.line, reject.family, reject.graph) == (
        f"aaa/{file}",
        line + 1,
        "aaa",
        3,
    )
    assert reason in reject.reason


def test_numbers_may_be_floats_quoted_or_end_in_a_carriage_return(folder: Path) -> None:
    path = folder / "aaa" / "node-feat.csv"
    lines = [line.split(",") for line in path.read_text().splitlines()]
    path.write_text(
        "".join(f'"{name}",{",".join(f"{n}.0" for n in rest)}\r\n' for name, *rest in lines)
    )
    read = read_folder(folder)
    assert_equal(read.labelled, GRAPHS)
    assert read.rejects == ()


def test_bad_latencies_cost_themselves(folder: Path) -> None:
    def change(lines: list[str]) -> None:
        lines[:6] = ["nan", "-1.5", "0", "fast", '""', ""]

    edit(folder / "aaa" / "label-630gpu.csv", change)
    read = read_folder(folder)
    expected = GRAPHS.latency_ms.copy()
    expected[:6, 1] = np.nan
    assert_equal(read.labelled, LabelledGraphs(GRAPHS.graphs, GRAPHS.hardware, expected))
    assert [(reject.file, reject.line, reject.graph) for reject in read.rejects] == [
        ("aaa/label-630gpu.csv", line, line - 1) for line in range(1, 5)
    ]
    assert read.rejects[3].reason == (
        "expected milliseconds above 0 on adreno-630, found 'fast'; the graph is kept without it"
    )


@pytest.mark.parametrize("change", [list.pop, lambda lines: lines.append("3.0")])
def test_labels_of_another_number_are_not_used(
    folder: Path, change: Callable[[list[str]], None]
) -> None:
    edit(folder / "bbb" / "label-vpu.csv", change)
    read = read_folder(folder)
    expected = GRAPHS.latency_ms.copy()
    expected[7:, 3] = np.nan
    assert_equal(read.labelled, LabelledGraphs(GRAPHS.graphs, GRAPHS.hardware, expected))
    reject = one_reject(read)
    assert (reject.file, reject.line) == ("bbb/label-vpu.csv", 0)
    assert reject.reason.startswith("expected 5 lines, one a graph, found")
    assert read.notes == ("bbb has no latency on myriad-vpu",)


def test_missing_labels_at_the_end_are_rows(folder: Path) -> None:
    for device in ("cortex", "vpu"):
        edit(folder / "bbb" / f"label-{device}.csv", lambda lines: lines.__setitem__(4, ""))
    read = read_folder(folder)
    assert np.isnan(read.labelled.latency_ms[-1, [0, 3]]).all()
    assert read.rejects == ()


def test_a_family_without_a_device_is_noted(folder: Path) -> None:
    (folder / "bbb" / "label-630gpu.csv").unlink()
    edit(
        folder / "bbb" / "label-640gpu.csv",
        lambda lines: lines.__setitem__(slice(None), ['""'] * 5),
    )
    read = read_folder(folder)
    assert read.rejects == ()
    assert read.notes == ("bbb has no latency on adreno-630, adreno-640",)
    assert np.isnan(read.labelled.latency_ms[7:, 1:3]).all()
    np.testing.assert_array_equal(read.labelled.latency_ms[:7], GRAPHS.latency_ms[:7])


@pytest.mark.parametrize("file", ["num-node-list", "num-edge-list", "node-feat", "edge"])
def test_a_missing_or_damaged_file_costs_its_family(folder: Path, file: str) -> None:
    path = folder / "aaa" / f"{file}.csv"
    data = gzip.compress(path.read_bytes())
    path.unlink()
    read = read_folder(folder)
    assert one_reject(read).reason == f"expected {file}.csv or {file}.csv.gz, found neither"
    assert_equal(read.labelled, GRAPHS.take(range(7, 12)))
    for bad in (data[:-9], b"no gzip", data[:20] + b"\xff" * 8 + data[28:]):
        (folder / "aaa" / f"{file}.csv.gz").write_bytes(bad)
        reject = one_reject(read_folder(folder))
        assert reject.file == f"aaa/{file}.csv.gz"
        assert "expected a whole file, found a damaged one" in reject.reason


def test_an_empty_list_costs_its_family(folder: Path) -> None:
    (folder / "aaa" / "num-node-list.csv").write_text("")
    (folder / "aaa" / "num-edge-list.csv").write_text("")
    assert one_reject(read_folder(folder)).reason == "expected a line a graph, found an empty file"


def test_nothing_to_read(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(
        GraphError, match=r"expected a folder of networks at .*nowhere, found nothing"
    ):
        read_folder(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(GraphError, match=r"expected one of .* found nothing"):
        read_folder(empty)
    (empty / "a.txt").write_text("a")
    with pytest.raises(GraphError, match=r"expected one of .* found a\.txt"):
        read_folder(empty)
    for family in ("aaa", "bbb"):
        (folder / family / "edge.csv").unlink()
    with pytest.raises(GraphError, match=r"found none\. aaa/edge\.csv:0: expected edge\.csv or"):
        read_folder(folder)
    for path in folder.glob("*/label-*.csv"):
        path.unlink()
    with pytest.raises(GraphError, match=r"expected label-<device>\.csv of at least one device"):
        read_folder(folder)


def chain(nodes: int) -> GraphSet:
    operator = np.full(nodes, OPERATOR_CODES["Relu"], dtype=np.uint8)
    operator[:1] = OPERATOR_CODES["Placeholder"]
    place = np.arange(max(nodes, 1), dtype=np.int32)
    return GraphSet(
        np.array([""]), np.array(["chains"]), np.array(["chains/0"]), np.zeros(1, np.int32), operator,
        np.ones((nodes, len(COLUMNS)), np.int32), np.array([0, nodes]), np.stack([place[:-1], place[1:]]),
        np.array([0, max(nodes - 1, 0)]),
    )  # fmt: skip


def through_gate(graphs: GraphSet) -> ReadGraphs:
    labelled = LabelledGraphs(graphs, ("host",), np.ones((1, 1)))
    return gate(ReadGraphs(labelled, places(["n"], [10], 1), places(["e"], [20], 1)))


def test_a_graph_of_too_many_nodes() -> None:
    assert len(through_gate(chain(MAX_NODES)).labelled) == 1
    for nodes, text in ((50_000, "50,000"), (0, "0")):
        read = through_gate(chain(nodes))
        assert len(read.labelled) == 0
        assert one_reject(read) == GraphReject(
            "n", 10, f"expected a graph of 1 to 20,000 nodes, found {text}", "chains", 0
        )


def test_a_cyclic_graph_is_named_by_an_edge_of_its_cycle() -> None:
    graphs = chain(6)
    edges = graphs.edges.copy()
    edges[:, 3] = (3, 1)  # 0 > 1 > 2 > 3 > 1, 4 > 5
    read = through_gate(replace(graphs, edges=edges))
    assert len(read.labelled) == 0
    reject = one_reject(read)
    assert reject.file == "e"
    assert edges[:, reject.line - 20].tolist() in ([1, 2], [2, 3], [3, 1])


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 12))
def test_nodes_are_sorted_and_stay_the_same_graph(seed: int, size: int) -> None:
    graphs = small_graphs({"a": 1}, seed, ("host",), nodes=(1, size)).graphs
    count = len(graphs.operator)
    place = np.random.default_rng(seed).permutation(count)  # old node -> new
    shuffled = replace(
        graphs,
        operator=graphs.operator[np.argsort(place)],
        columns=graphs.columns[np.argsort(place)],
        edges=place[graphs.edges].astype(np.int32),
    )
    found = through_gate(shuffled).labelled.graphs
    assert (found.edges[0] < found.edges[1]).all()

    def told(one: GraphSet) -> list[object]:
        """Edges by the content of their ends; columns are random, so that nodes differ."""
        nodes = [
            (int(op), *row.tolist()) for op, row in zip(one.operator, one.columns, strict=True)
        ]
        return [sorted(nodes), sorted((nodes[a], nodes[b]) for a, b in one.edges.T.tolist())]

    assert told(found) == told(graphs)


def test_sorted_nodes_are_left_as_they_are() -> None:
    read = gate(ReadGraphs(GRAPHS, SOMEWHERE, SOMEWHERE))
    assert_equal(read.labelled, GRAPHS)
    swapped = GRAPHS.take([*range(7, 12), *range(7)])
    read = gate(ReadGraphs(swapped, SOMEWHERE, SOMEWHERE))
    assert_equal(read.labelled, GRAPHS)


def test_latencies_of_any_format_pass_the_gate() -> None:
    latency = GRAPHS.latency_ms.copy()
    latency[:3, 0] = (0.0, -1.0, np.inf)
    labelled = LabelledGraphs(GRAPHS.graphs, GRAPHS.hardware, latency)
    read = gate(ReadGraphs(labelled, SOMEWHERE, SOMEWHERE))
    assert [(reject.line, reject.graph) for reject in read.rejects] == [(1, 0), (2, 1), (3, 2)]
    assert np.isnan(read.labelled.latency_ms[:3, 0]).all()


def test_ids_are_of_the_content() -> None:
    graphs = GRAPHS.graphs

    def ids(**changes: object) -> list[str]:
        changed = replace(graphs, **changes)  # type: ignore[arg-type]
        found = graph_ids(
            changed.operator, changed.columns, changed.node_start, changed.edges, changed.edge_start
        )
        return found.tolist()

    first = ids()
    assert all(name.startswith("g") and len(name) == 33 for name in first)
    backwards = graphs.edges.copy()
    own = slice(graphs.edge_start[3], graphs.edge_start[4])
    backwards[:, own] = backwards[:, own][:, ::-1]
    assert ids(edges=backwards) == first
    columns = graphs.columns.copy()
    columns[graphs.node_start[3], 0] += 1
    operator = graphs.operator.copy()
    operator[graphs.node_start[3]] += 1
    edges = graphs.edges.copy()
    edges[0, own.stop - 1] = (edges[0, own.stop - 1] + 1) % edges[1, own.stop - 1]
    for changes in ({"columns": columns}, {"operator": operator}, {"edges": edges}):
        found = ids(**changes)
        assert [a == b for a, b in zip(first, found, strict=True)] == [i != 3 for i in range(12)]


def shuffled(graphs: GraphSet, seed: int) -> GraphSet:
    """Return a single graph with its nodes in another order, sources before targets still."""
    rng = np.random.default_rng(seed)
    count = len(graphs.operator)
    place = np.full(count, -1)
    for number in range(count):
        free = [
            node
            for node in range(count)
            if place[node] < 0 and (place[graphs.edges[0][graphs.edges[1] == node]] >= 0).all()
        ]
        place[rng.choice(free)] = number
    order = np.argsort(place)
    edges = place[graphs.edges].astype(np.int32)
    return replace(
        graphs,
        operator=graphs.operator[order],
        columns=graphs.columns[order],
        edges=edges[:, rng.permutation(edges.shape[1])],
    )


@given(seed=st.integers(0, 2**32 - 1))
def test_shape_keys_do_not_see_the_order_of_nodes(seed: int) -> None:
    graphs = small_graphs({"a": 3}, seed, ("host",)).graphs
    keys = shape_keys(graphs).tolist()
    assert len(set(keys)) == 3
    for row, one in enumerate(graphs.batches(1)):
        assert shape_keys(shuffled(one, seed)).tolist() == [keys[row]]


def test_shape_keys_see_everything_else() -> None:
    graphs = small_graphs({"a": 1}, 3, ("host",), nodes=(8, 8)).graphs
    columns, operator, edges = graphs.columns.copy(), graphs.operator.copy(), graphs.edges.copy()
    columns[2, 15] += 1
    operator[5] += 1
    edges[0, edges[1] == 7] = 4
    changed = [replace(graphs, columns=columns), replace(graphs, operator=operator)]
    changed.append(replace(graphs, edges=edges))
    alike = np.zeros_like(graphs.columns)  # nodes that only their places tell apart
    relu = np.ones_like(graphs.operator)
    changed += [replace(one, columns=alike, operator=relu) for one in (graphs, changed[2])]
    assert len({int(shape_keys(one)[0]) for one in (graphs, *changed)}) == 6


@pytest.mark.slow
def test_the_benchmark(tmp_path: Path) -> None:
    if not CG.is_dir():
        pytest.skip(f"the benchmark's 16 MB are not at {CG}")
    read = read_folder(CG)
    graphs = read.labelled.graphs
    assert read.rejects == ()
    assert read.notes == ("shufflenetv2s has no latency on adreno-630, adreno-640",)
    assert len(graphs) == 25_998
    assert len(np.unique(graphs.family)) == 13
    assert np.isnan(read.labelled.latency_ms).sum(axis=0).tolist() == [80, 2005, 2005, 281]
    # Nodes and edges as they stand; 81 more graphs of nasbench201s list the same edges in another order.
    listed = {
        (one.operator.tobytes(), one.columns.tobytes(), one.edges.tobytes())
        for one in graphs.batches(1)
    }
    assert len(listed) == 25_068
    assert len(np.unique(graphs.graph_id)) == 24_987
    assert len(np.unique(shape_keys(graphs))) == 24_789  # and 198 more its nodes
    cg.write(tmp_path / "again", read.labelled)
    assert_equal(read_folder(tmp_path / "again").labelled, read.labelled)
