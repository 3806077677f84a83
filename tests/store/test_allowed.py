"""Modules and traces that would run code of others are refused before TVM reads them; what TVM makes passes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from matmuls import make_matmul
from tencost.errors import UntrustedError
from tencost.programs.trace.allowed import check_module, check_trace, load_checked
from tencost.programs.trace.replay import load_module, replay


def text_of(module: Any) -> str:
    from tvm.ir import save_json

    return str(save_json(module))


def edited(change: Callable[[dict[str, Any]], object]) -> str:
    graph = json.loads(text_of(make_matmul(16)))
    change(graph)
    return json.dumps(graph)


def of_type(graph: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(node for node in graph["nodes"] if node["type"] == kind)
    return found


def add(graph: dict[str, Any], kind: str, data: Any) -> int:
    graph["nodes"].append({"type": kind, "data": data})
    return len(graph["nodes"]) - 1


def annotate(graph: dict[str, Any], key: str) -> None:
    loop = of_type(graph, "tirx.For")
    pair = [add(graph, "ffi.String", key), add(graph, "ffi.String", "x")]
    loop["data"]["annotations"] = add(graph, "ffi.Map", pair)


def call_of(graph: dict[str, Any], callee: Callable[[dict[str, Any]], int]) -> None:
    store = of_type(graph, "tirx.BufferStore")
    data = {"span": 0, "ty": 0, "op": callee(graph), "args": add(graph, "ffi.Array", [])}
    store["data"]["value"] = add(graph, "ir.Call", data)


def foreign_function(graph: dict[str, Any]) -> int:
    name = add(graph, "ffi.String", "system")
    return add(graph, "ir.GlobalVar", {"span": 0, "ty": 0, "name_hint": name})


@pytest.mark.parametrize(
    "name",
    ["tirx.call_extern", "tirx.call_pure_extern", "tirx.call_llvm_intrin", "tirx.tvm_call_packed",
     "tirx.tvm_call_cpacked", "tirx.tvm_call_packed_lowered", "tirx.call_ffi_kernel", "tirx.tvm_struct_set",
     "tirx.lookup_param", "relax.call_pure_packed", "relax.call_dps_packed", "relax.run_shell"],
)  # fmt: skip
def test_operators_that_name_functions(name: str) -> None:
    text = edited(lambda graph: call_of(graph, lambda graph: add(graph, "ir.Op", name)))
    with pytest.raises(UntrustedError, match=f"found the operator '{name}'"):
        load_module(text)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda graph: call_of(graph, foreign_function), "function that it does not define 'system'"),
        (lambda graph: call_of(graph, lambda graph: add(graph, "relax.expr.ExternFunc", {})), "ExternFunc"),
        (lambda graph: call_of(graph, lambda graph: 0), "the call of 'None'"),
        (lambda graph: annotate(graph, "pragma_import_llvm"), "attribute 'pragma_import_llvm'"),
        (lambda graph: annotate(graph, "pragma_import_c"), "attribute 'pragma_import_c'"),
        (lambda graph: add(graph, "ffi.Map", [add(graph, "ffi.String", "Codegen"), 0]), "attribute 'Codegen'"),
        (lambda graph: add(graph, "ffi.Map", [0, 0]), "a key of type None"),
        (lambda graph: add(graph, "ffi.Module", "bytes"), r"type 'ffi\.Module'"),
        (lambda graph: add(graph, "ffi.Function", "system"), r"type 'ffi\.Function'"),
        (lambda graph: add(graph, "tirx.AttrStmt", {}), r"type 'tirx\.AttrStmt'"),
        (lambda graph: add(graph, "ir.IRModule", {}), "expected one module, found 2"),
        (lambda graph: graph.update(root_index=0), "expected one module"),
        (lambda graph: graph.update(root_index=10**9), "IndexError"),
        (lambda graph: graph.pop("root_index"), "KeyError"),
        (lambda graph: graph.update(nodes={}), "JSON without nodes"),
        (lambda graph: graph.update(nodes=[1]), "TypeError"),
        (lambda graph: graph["nodes"].append({"type": []}), "TypeError"),
        (lambda graph: graph["nodes"].append({"type": "ir.GlobalVar", "data": 1}), "TypeError"),
    ],
)  # fmt: skip
def test_modules_of_another_making(change: Callable[[dict[str, Any]], object], told: str) -> None:
    with pytest.raises(UntrustedError, match=told):
        load_module(edited(change))


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", '{"nodes": 1}', "[" * 100_000])
def test_no_modules(text: str) -> None:
    with pytest.raises(UntrustedError, match="expected TVM's JSON graph"):
        load_module(text)


def test_a_key_that_stands_twice_is_refused() -> None:
    text = text_of(make_matmul(16)).replace(
        '{"type":"None"}', '{"type":"ffi.Module","type":"None"}', 1
    )
    with pytest.raises(UntrustedError, match="a key stands twice"):
        check_module(text)


def test_what_tvm_makes_passes() -> None:
    import tvm

    module = make_matmul(16)
    tvm.ir.assert_structural_equal(load_checked(text_of(module)), module)


def test_the_programs_of_a_search_pass_and_replay(matmul: Any, candidates: list[Any]) -> None:
    for candidate in candidates:
        trace = json.loads(_text_of_trace(candidate.sch.trace))
        check_trace(trace)
        assert replay(matmul, json.dumps(trace)).schedule is not None


def _text_of_trace(trace: Any) -> str:
    from tencost.programs.trace.instructions import trace_values

    return json.dumps(trace_values(trace))


LOOPS = [
    ["GetSBlock", [], ["matmul", "main"], ["b0"]],
    ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
]


def graph_of(*nodes: tuple[str, Any]) -> str:
    made = [{"type": kind, "data": data} for kind, data in nodes]
    return json.dumps({"root_index": 0, "nodes": made})


@pytest.mark.parametrize(
    ("instruction", "told"),
    [
        (["Annotate", ["l1", '"; ModuleID"'], ["pragma_import_llvm"], []], "annotation 'pragma_import_llvm'"),
        (["Annotate", ["l1", '"int x;"'], ["pragma_import_c"], []], "annotation 'pragma_import_c'"),
        (["Unannotate", ["l1"], ["pragma_import_llvm"], []], "annotation 'pragma_import_llvm'"),
        (["RunShell", ["l1"], ["ls"], []], "instruction 'RunShell'"),
        (["UnsafeSetDType", ["b0"], [0, "int8"], []], "instruction 'UnsafeSetDType'"),
        (["TransformLayout", ["b0", graph_of(("ffi.Module", "x"))], [0, 0, None, False], []], "index map"),
        (["TransformLayout", ["b0", graph_of(("ir.Call", {}))], [0, 0, None, False], []], "index map"),
        (["TransformLayout", ["b0", "{"], [0, 0, None, False], []], "found no JSON"),
        (["TransformLayout", ["b0"], [0, 0, [graph_of(("ffi.Module", "x"))], False], []], "index map"),
        (["TransformLayout", ["b0", {"a": 1}], [0, 0, None, False], []], "an object"),
        (["Split", ["l1", 4, 4], [True, None], ["l4", "l5"]], "attribute of Split 'None'"),
        (["Split", ["l1", 4, 4], [[None], False], ["l4", "l5"]], "attribute of Split 'None'"),
        (["SampleCategorical", [], [None, [0.5, 0.5]], ["v4"]], "attribute of SampleCategorical"),
        (["Parallel"], "expected .instructions, decisions."),
        ([["Parallel"], [], [], []], "expected .instructions, decisions."),
    ],
)  # fmt: skip
def test_traces_of_another_making(instruction: list[Any], told: str, matmul: Any) -> None:
    found = replay(matmul, json.dumps([[*LOOPS, instruction], []]))
    assert found.schedule is None
    with pytest.raises(UntrustedError, match=told):
        check_trace([[*LOOPS, instruction], []])


@pytest.mark.parametrize("trace", [None, [], [1], [[], [], []], {"a": 1}, [[["x"]], []], 7])
def test_no_traces(trace: Any, matmul: Any) -> None:
    with pytest.raises(UntrustedError, match="expected"):
        check_trace(trace)
    assert replay(matmul, json.dumps(trace)).schedule is None


SPLIT = [
    ["SamplePerfectTile", ["l1"], [2, 16], ["v4", "v5"]],
    ["Split", ["l1", "v4", None], [1, 0], ["l6", "l7"]],
]


@pytest.mark.parametrize(
    "decisions",
    [[[2, None]], [[2, [None]]], [[2, [4, "4"]]], [[2, [4, 4.0]]], [[2, True]], [[2, {}]], [[8000000000, [4, 4]]],
     [[-1, [4, 4]]], [["2", [4, 4]]]],
)  # fmt: skip
def test_decisions_that_end_tvm_are_refused(decisions: list[Any], matmul: Any) -> None:
    """TVM takes what is no number for one, or looks behind the instructions: signal 11."""
    check_trace([[*LOOPS, *SPLIT], [[2, [4, 4]]]])
    with pytest.raises(UntrustedError, match="the decision"):
        check_trace([[*LOOPS, *SPLIT], decisions])
    assert replay(matmul, json.dumps([[*LOOPS, *SPLIT], decisions])).schedule is None


def test_an_input_that_lacks_is_refused(matmul: Any) -> None:
    step = ["Unannotate", [None], ["meta_schedule.unroll_explicit"], []]
    with pytest.raises(UntrustedError, match="the input of Unannotate"):
        check_trace([[*LOOPS, step], []])
    assert replay(matmul, json.dumps([[*LOOPS, step], []])).schedule is None


def test_a_list_with_a_hole_is_refused() -> None:
    def hole(graph: dict[str, Any]) -> None:
        empty = add(graph, "None", None)
        ranges = [node for node in graph["nodes"] if node["type"] == "ffi.Array" and node["data"]]
        ranges[-1]["data"][0] = empty

    with pytest.raises(UntrustedError, match="list with a hole"):
        check_module(edited(hole))


def test_a_layout_of_tvms_own_making_passes(matmul: Any) -> None:
    import tvm

    index_map = tvm.tirx.IndexMap.from_func(lambda i, j: [i // 4, j, i % 4])
    step = ["TransformLayout", ["b0", text_of(index_map)], [0, 0, None, False], []]
    check_trace([[*LOOPS, step], []])


def test_a_database_to_compare_with_is_looked_at(tmp_path: Path, matmul: Any) -> None:
    import base64

    from tencost.tune.deploy import open_database

    def write(text: str, trace: Any) -> None:
        packed = base64.b64encode(len(text).to_bytes(8, "little") + text.encode()).decode()
        (tmp_path / "database_workload.json").write_text(json.dumps(["1", packed]) + "\n")
        line = [0, [trace, [1.0], {"kind": "llvm"}, []]]
        (tmp_path / "database_tuning_record.json").write_text(json.dumps(line) + "\n")

    evil = ["Annotate", ["l1", '"; ModuleID"'], ["pragma_import_llvm"], []]
    write(text_of(matmul), [[*LOOPS, evil], []])
    with pytest.raises(UntrustedError, match=r"tuning_record\.json, line 1: .*pragma_import_llvm"):
        open_database(tmp_path, {"kind": "llvm"})
    write(edited(lambda graph: annotate(graph, "pragma_import_llvm")), [LOOPS, []])
    with pytest.raises(UntrustedError, match=r"workload\.json, line 1: .*pragma_import_llvm"):
        open_database(tmp_path, {"kind": "llvm"})
