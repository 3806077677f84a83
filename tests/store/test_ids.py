"""Ids: golden values, what counts and what does not."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tencost.errors import RecordError
from tencost.records.formats.metaschedule import LoggedProgram, read_programs, read_workloads
from tencost.store.ids import (
    INLINE_INTEGERS,
    canonical_json,
    canonical_target,
    program_id,
    record_id,
    text_id,
    workload_id,
)

GOLDEN = Path(__file__).parents[1] / "records" / "golden"


def golden_module() -> dict[str, Any]:
    workloads, rejects = read_workloads(GOLDEN / "database_workload.json")
    assert not rejects
    assert workloads[0] is not None
    return json.loads(workloads[0].mod_json)


GRAPH = golden_module()
ID = "b3e746087f3fc0a20b49f622a2810bd7"
PROGRAMS = [
    "3ecec6d1dfa4fb31e3ff69e25ccd7f34",
    "89679c5c9ba750608da377810d21a64b",
    "0f54b7f961219ea680e5b48129a1b9c9",
]
RECORD = "4fa468d00189016559a59e02fec71993"


def identify(graph: dict[str, Any]) -> str:
    return workload_id(json.dumps(graph))


def names_of(graph: dict[str, Any], kind: str, field: str) -> list[int]:
    """Return the indices of the string nodes that name nodes of a kind."""
    return sorted({node["data"][field] for node in graph["nodes"] if node["type"] == kind})


def test_golden_ids() -> None:
    workloads, _ = read_workloads(GOLDEN / "database_workload.json")
    found = read_programs(GOLDEN / "database_tuning_record.json", workloads)
    programs = [item for item in found if isinstance(item, LoggedProgram)]
    assert workloads[0] is not None
    identity = workloads[0].workload_id
    ids = [program_id(identity, item.target["kind"], item.trace) for item in programs]
    assert identity == ID
    assert ids == PROGRAMS
    assert record_id(ids[0], programs[0].target, "xeon-avx2-1c") == RECORD


@given(st.randoms(use_true_random=False))
def test_renumbering_and_sharing_do_not_count(rng: Any) -> None:
    """Nodes in another order, and every constant a node of its own, are the same workload."""
    nodes = copy.deepcopy(GRAPH["nodes"])
    order = list(range(1, len(nodes)))
    rng.shuffle(order)
    place = {0: 0, **{old: new for new, old in enumerate(order, start=1)}}
    moved: list[Any] = [None] * len(nodes)
    for old, node in enumerate(nodes):
        data = node.get("data")
        if isinstance(data, list):
            node["data"] = [place[child] for child in data]
        elif isinstance(data, dict):
            node["data"] = {
                key: place[value]
                if type(value) is int and f"{node['type']}.{key}" not in INLINE_INTEGERS
                else value
                for key, value in data.items()
            }
        moved[place[old]] = node
    first = next(i for i, node in enumerate(moved) if node["type"] == "ir.IntImm")
    moved.append(copy.deepcopy(moved[first]))
    for node in moved:
        if node["type"] == "ir.Range" and node["data"]["extent"] == first:
            node["data"]["extent"] = len(moved) - 1
    assert identify({"root_index": place[GRAPH["root_index"]], "nodes": moved}) == ID


@given(st.text(max_size=8), st.integers(0, 1000))
def test_variable_names_do_not_count(name: str, position: int) -> None:
    graph = copy.deepcopy(GRAPH)
    names = names_of(graph, "ir.Var", "name")
    only = set(names) - set(names_of(graph, "s_tir.SBlock", "name_hint"))
    graph["nodes"].append({"type": "ffi.String", "data": name})
    renamed = sorted(only)[position % len(only)]
    for node in graph["nodes"]:
        if node["type"] == "ir.Var" and node["data"]["name"] == renamed:
            node["data"]["name"] = len(graph["nodes"]) - 1
    assert identify(graph) == ID


@given(st.text(min_size=1, max_size=8))
def test_block_names_count(name: str) -> None:
    graph = copy.deepcopy(GRAPH)
    blocks = names_of(graph, "s_tir.SBlock", "name_hint")
    old = graph["nodes"][blocks[-1]]["data"]
    graph["nodes"].append({"type": "ffi.String", "data": name})
    for node in graph["nodes"]:
        if node["type"] == "s_tir.SBlock" and node["data"]["name_hint"] == blocks[-1]:
            node["data"]["name_hint"] = len(graph["nodes"]) - 1
    assert (identify(graph) == ID) == (name == old)


def test_merged_variables_count() -> None:
    """C[i, j] and C[i, i] differ: which occurrences are the same variable is part of the id."""
    graph = copy.deepcopy(GRAPH)
    loops = [node for node in graph["nodes"] if node["type"] == "tirx.For"]
    first, second = (node["data"]["loop_var"] for node in loops[:2])
    for node in graph["nodes"]:
        if node["type"] == "s_tir.SBlockRealize":
            values = graph["nodes"][node["data"]["iter_values"]]
            values["data"] = [first if child == second else child for child in values["data"]]
    assert identify(graph) != ID


def test_constants_and_inline_integers_count() -> None:
    for kind, field in (("tirx.IterVar", "iter_type"), ("tirx.BufferType", "data_alignment")):
        graph = copy.deepcopy(GRAPH)
        node = next(node for node in graph["nodes"] if node["type"] == kind)
        node["data"][field] += 1
        assert identify(graph) != ID
    graph = copy.deepcopy(GRAPH)
    next(node for node in graph["nodes"] if node == {"type": "int", "data": 16})["data"] = 32
    assert identify(graph) != ID


def test_spans_do_not_count() -> None:
    graph = copy.deepcopy(GRAPH)
    graph["nodes"].append({"type": "ir.Span", "data": {"line": 3}})
    for node in graph["nodes"]:
        if isinstance(node.get("data"), dict) and "span" in node["data"]:
            node["data"]["span"] = len(graph["nodes"]) - 1
    assert identify(graph) == ID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"root_index": 5, "nodes": []}',
        '{"root_index": true, "nodes": [{"type": "None"}, {"type": "None"}]}',
        '{"root_index": 0, "nodes": [{"type": "ffi.Array", "data": [0]}]}',
        '{"root_index": 0, "nodes": [{"type": "ffi.Array", "data": ["x"]}]}',
        '{"root_index": 0, "nodes": [{"type": "ffi.Map", "data": [1]}, {"type": "None"}]}',
        '{"root_index": 0, "nodes": [3]}',
        '{"root": 1, "nodes": [{"type_key": ""}], "b64ndarrays": []}',
    ],
)
def test_other_graphs_are_refused(text: str) -> None:
    with pytest.raises(RecordError, match="expected a module as tvm-ffi's JSON graph"):
        workload_id(text)


@pytest.mark.parametrize(
    ("graph", "told"),
    [
        ({"root_index": 0, "nodes": []}, "no node 0, the graph has 0"),
        (
            {"root_index": 0, "nodes": [{"type": "ffi.Array", "data": [0]}]},
            "node 0 contains itself through node 0",
        ),
    ],
)
def test_a_damaged_graph_is_told_where(graph: dict[str, Any], told: str) -> None:
    with pytest.raises(RecordError, match=told):
        identify(graph)


def test_names_that_are_values_are_names_all_the_same() -> None:
    """TVM writes some texts in place, not as nodes; only a variable's does not count."""

    def node(kind: str, **data: Any) -> str:
        return identify({"root_index": 0, "nodes": [{"type": kind, "data": data}]})

    assert node("ir.Var", name="x") == node("ir.Var", name="y")
    assert node("ir.Var", name="x", flag=True) != node("ir.Var", name="x", flag=False)
    assert node("s_tir.SBlock", name="x") != node("s_tir.SBlock", name="y")


def test_deep_modules_need_no_recursion() -> None:
    nodes: list[dict[str, Any]] = [{"type": "None"}]
    nodes += [{"type": "ffi.Array", "data": [index]} for index in range(20_000)]
    assert len(identify({"root_index": 20_000, "nodes": nodes})) == 32


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_canonical_json_is_a_fixed_point(value: Any) -> None:
    text = canonical_json(value)
    assert canonical_json(json.loads(text)) == text


def test_canonical_json_is_ascii_and_tells_nan_from_null() -> None:
    assert canonical_json({"b": [None], "a": "\u00e9"}) == '{"a":"\\u00e9","b":[null]}'
    assert canonical_json([float("nan"), None]) == "[NaN,null]"


def test_the_id_of_texts_depends_on_where_one_ends() -> None:
    assert text_id("a", "b") == "7e18f737311b2dc3b2f269dd78396b03"
    assert len({text_id("a", "b"), text_id("ab"), text_id("b", "a"), text_id("a", "b", "")}) == 4


def test_what_a_record_id_depends_on() -> None:
    target = {"kind": "llvm", "mcpu": "a", "num-cores": 1}
    same = {"num-cores": 1.0, "mcpu": "a", "kind": "llvm", "tag": ""}
    assert canonical_target(target) == canonical_target(same)
    base = record_id("p", target, "h")
    assert base == record_id("p", same, "h")
    others = {
        base,
        record_id("q", target, "h"),
        record_id("p", {**target, "mcpu": "b"}, "h"),
        record_id("p", target, "g"),
    }
    assert len(others) == 4
    assert program_id("w", "llvm", [[], []]) != program_id("w", "cuda", [[], []])
    assert program_id("w", "llvm", [[["A", [], [1], []]], []]) == program_id(
        "w", "llvm", [[["A", [], [1.0], []]], []]
    )


@pytest.mark.tvm
def test_inline_integers_are_those_of_this_tvm() -> None:
    """The table must hold every integer field that TVM's IR nodes write as a value."""
    import tvm
    from tvm_ffi import core

    keys = [str(key) for key in tvm.get_global_func("ffi.GetRegisteredTypeKeys")()]
    wanted = set()
    for table_key in {name.rsplit(".", 1)[0] for name in INLINE_INTEGERS} | {
        key for key in keys if key.startswith(("ir.", "prim.", "tirx.", "s_tir.SBlock"))
    }:
        if "transform" in table_key or table_key in ("ir.Op", "ir.Span"):
            continue  # options of passes; operators are written by name, spans are dropped
        info = core._lookup_or_register_type_info_from_type_key(table_key)
        for field in info.fields or []:
            schema = field.metadata["type_schema"]
            schema = json.loads(schema) if isinstance(schema, str) else schema
            if schema["type"] == "int":
                wanted.add(f"{table_key}.{field.name}")
    cuda_only = {name for name in wanted if name.startswith("tirx.TensorMapEncodeTiledAttr.")}
    assert wanted - cuda_only == INLINE_INTEGERS


@pytest.mark.tvm
def test_same_workload_from_tvm_with_other_names() -> None:
    import tvm
    from tvm import te

    def module(prefix: str, block: str) -> Any:
        a = te.placeholder((16, 16), name=f"{prefix}a")
        b = te.placeholder((16, 16), name=f"{prefix}b")
        k = te.reduce_axis((0, 16), name=f"{prefix}k")
        c = te.compute((16, 16), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name=block)
        return tvm.IRModule({"main": te.create_prim_func([a, b, c])})

    ids = [
        workload_id(tvm.ir.save_json(module(*pair)))
        for pair in (("A", "C"), ("x", "C"), ("A", "D"))
    ]
    assert ids[0] == ids[1] == ID
    assert ids[2] != ID
