"""nn-Meter's layout: lines as its dataset has them are graphs of CG's operators and columns; bad lines are named."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from nn_meter_lines import nn_meter_lines
from small_graphs import assert_equal, small_graphs
from tencost.errors import GraphError
from tencost.networks.graph.graph_set import LabelledGraphs
from tencost.networks.graph.operators import CG_OPERATORS, OPERATOR_CODES
from tencost.records.network_graphs.formats import cg
from tencost.records.network_graphs.reading import read_folder


def made_graphs(seed: int = 0) -> LabelledGraphs:
    """Return graphs of CG's operators whose columns are those that a format with attributes can tell."""
    labelled = small_graphs({"aaa": 5, "bbb": 4}, seed, nodes=(4, 9))
    graphs = labelled.graphs
    operator = graphs.operator % len(CG_OPERATORS)
    operator[graphs.operator % len(CG_OPERATORS) == 0] = OPERATOR_CODES["Relu"]
    operator[graphs.node_start[:-1]] = OPERATOR_CODES["Placeholder"]
    columns = np.maximum(graphs.columns, 1)
    kinds = {kind: operator == OPERATOR_CODES[kind] for kind in CG_OPERATORS}
    convolution = kinds["Conv2D"] | kinds["DepthwiseConv2dNative"]
    pooling = kinds["AvgPool"] | kinds["MaxPool"]
    columns[~convolution, 7:9] = 0
    columns[~(convolution | pooling), 5:11] = 0
    columns[::3, [4, 15]] = 0
    columns[1::5, [0, 11]] = -1
    columns[kinds["Const"], :11] = 0
    columns[kinds["Const"], 12:] = 0
    columns[graphs.node_start[:-1], :5] = 0
    return replace(labelled, graphs=replace(graphs, operator=operator, columns=columns))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "set", made_graphs())
    return tmp_path / "set"


def write(folder: Path, labelled: LabelledGraphs) -> None:
    folder.mkdir()
    lines = np.array(nn_meter_lines(labelled), dtype=object)
    for family in ("aaa", "bbb"):
        own = lines[labelled.graphs.family == family]
        (folder / f"{family}.jsonl").write_bytes(b"".join(own))


@pytest.mark.parametrize("seed", range(4))
def test_lines_are_the_graphs_of_the_csv_files(seed: int, tmp_path: Path) -> None:
    labelled = made_graphs(seed)
    write(tmp_path / "lines", labelled)
    cg.write(tmp_path / "csv", labelled)
    lines, files = read_folder(tmp_path / "lines"), read_folder(tmp_path / "csv")
    assert_equal(lines.labelled, files.labelled)
    assert lines.rejects == files.rejects == ()
    assert lines.nodes.file.tolist() == ["aaa.jsonl"] * 5 + ["bbb.jsonl"] * 4
    assert lines.nodes.line.tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 4]


def test_gzip_whole_and_cut(folder: Path) -> None:
    expected = read_folder(folder).labelled
    path = folder / "bbb.jsonl"
    data = gzip.compress(path.read_bytes())
    path.unlink()
    (folder / "bbb.jsonl.gz").write_bytes(data)
    assert_equal(read_folder(folder).labelled, expected)
    (folder / "bbb.jsonl.gz").write_bytes(data[:-12])
    read = read_folder(folder)
    assert_equal(read.labelled, expected.take(range(len(read.labelled))))
    assert "ends early or is damaged" in read.rejects[-1].reason


def change_line(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the third line of bbb."""
    path = folder / "bbb.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    entry = orjson.loads(lines[2])
    change(entry)
    lines[2] = orjson.dumps(entry) + b"\n"
    path.write_bytes(b"".join(lines))


def first(entry: dict[str, Any]) -> dict[str, Any]:
    return list(entry["graph"].values())[1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda entry: entry.pop("graph"), "expected a JSON object with a graph"),
        (lambda entry: entry.update(graph=[1]), "expected a JSON object with a graph"),
        (lambda entry: entry.update(graph={}), "expected a graph of 1 to"),
        (lambda entry: first(entry).pop("inbounds"), "KeyError: 'inbounds'"),
        (lambda entry: first(entry).pop("attr"), "KeyError: 'attr'"),
        (lambda entry: first(entry).update(attr=3), "expected nodes with inbounds"),
        (lambda entry: first(entry).update(outbounds=3), "expected a list of outbounds, found 3"),
        (lambda entry: first(entry).update(inbounds=[{}]), "expected nodes with inbounds"),
        (
            lambda entry: first(entry)["attr"].update(type="Conv9D"),
            "known operators, found 'Conv9D'",
        ),
        (
            lambda entry: first(entry)["attr"].update(type=["Conv2D"]),
            "expected nodes with inbounds",
        ),
        (lambda entry: first(entry)["attr"].update(type="Conv2D", attr={}), "'weight_shape'"),
        (
            lambda entry: first(entry)["attr"].update(
                type="MaxPool", attr={"ksize": [2], "strides": [1, 1]}
            ),
            r"expected a height and a width, found \[2\]",
        ),
        (lambda entry: first(entry)["attr"].update(output_shape=[[1] * 6]), "at most five numbers"),
        (lambda entry: first(entry)["attr"].update(output_shape=[[1.5]]), "whole numbers below"),
        (lambda entry: first(entry)["attr"].update(output_shape=[[2**40]]), "whole numbers below"),
        (lambda entry: first(entry)["attr"].update(output_shape=[[-7]]), "sizes from -1"),
        (lambda entry: first(entry)["attr"].update(output_shape="a"), "expected some numbers"),
        (
            lambda entry: first(entry).update(inbounds=[list(entry["graph"])[1]]),
            "expected a graph without cycles",
        ),
    ],
)
def test_a_bad_line_costs_its_graph(
    folder: Path, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    expected = read_folder(folder).labelled.take([0, 1, 2, 3, 4, 5, 6, 8])
    change_line(folder, change)
    read = read_folder(folder)
    assert_equal(read.labelled, expected)
    (reject,) = read.rejects
    assert (reject.file, reject.line, reject.family, reject.graph) == ("bbb.jsonl", 3, "bbb", 2)
    assert re.search(reason, reject.reason), reject.reason


@pytest.mark.parametrize("text", [b"no JSON\n", b'{"id": \n', b"\xff\xfe\n", b"NaN\n", b"[1]\n"])
def test_a_line_that_is_no_object(folder: Path, text: bytes) -> None:
    expected = read_folder(folder).labelled
    path = folder / "aaa.jsonl"
    path.write_bytes(path.read_bytes() + b"\n" + text)
    read = read_folder(folder)
    assert_equal(read.labelled, expected)
    (reject,) = read.rejects
    assert (reject.file, reject.line, reject.graph) == ("aaa.jsonl", 7, 5)
    assert reject.reason.startswith("expected a JSON object")


@pytest.mark.parametrize(
    ("value", "kept"), [(None, True), (0, False), (-2.0, False), ("3", False), (True, False)]
)
def test_latencies(folder: Path, value: object, kept: bool) -> None:
    expected = read_folder(folder).labelled
    latency = expected.latency_ms.copy()
    latency[7, 0] = np.nan
    change_line(folder, lambda entry: entry.update(cortexA76cpu_tflite21=value))
    read = read_folder(folder)
    assert_equal(read.labelled, replace(expected, latency_ms=latency))
    assert [(reject.line, reject.graph) for reject in read.rejects] == ([] if kept else [(3, 2)])


def test_versions_of_operators_and_edges_told_once(folder: Path) -> None:
    expected = read_folder(folder).labelled

    def change(entry: dict[str, Any]) -> None:
        names = list(entry["graph"])
        nodes = list(entry["graph"].values())
        for place, node in enumerate(nodes):
            others = {"Add": "AddV2", "FusedBatchNorm": "FusedBatchNormV3"}
            node["attr"]["type"] = others.get(node["attr"]["type"], node["attr"]["type"])
            if place % 2:
                node["inbounds"] = [name for name in node["inbounds"] if name not in names]
            else:
                node["outbounds"] = [name for name in node["outbounds"] if names.index(name) % 2]

    change_line(folder, change)
    found = read_folder(folder).labelled
    assert found.graphs.graph_id.tolist() == expected.graphs.graph_id.tolist()


def test_an_input_shape_that_is_missing_is_the_output_before(folder: Path) -> None:
    def change(entry: dict[str, Any]) -> None:
        nodes = list(entry["graph"].values())
        nodes[0]["attr"]["output_shape"] = [[None, 7, 8, 9]]
        nodes[1]["attr"].pop("input_shape")

    change_line(folder, change)
    graphs = read_folder(folder).labelled.graphs
    assert graphs.columns[graphs.node_start[7] + 1, :5].tolist() == [-1, 7, 8, 9, 0]


def test_two_layouts_in_a_folder_are_told(folder: Path) -> None:
    cg.write(folder / "csv", made_graphs())
    assert len(read_folder(folder).labelled) == 9  # families one folder down are no layout
    cg.write(folder.parent / "both", made_graphs())
    (folder / "aaa.jsonl").rename(folder.parent / "both" / "aaa.jsonl")
    with pytest.raises(GraphError, match=r"expected only one of .*\(CG\) or .*\(nn-Meter\)"):
        read_folder(folder.parent / "both")
