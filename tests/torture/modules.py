"""Modules and traces of another making: saved networks, modules beside a store, and traces; forged and damaged."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tencost import cli
from torture.forked import CANARY, run
from torture.mutations import mutated_bytes, mutated_file, mutated_json, mutated_json_text
from torture.verdict import Case

TESTS = Path(__file__).resolve().parents[1]
TARGET = {"kind": "llvm", "mcpu": "core-avx2", "num-cores": 1}
FOREIGN = (
    "tirx.call_extern",
    "tirx.call_packed",
    "call_llvm",
    "pragma_import",
    "Codegen",
    "ExternFunc",
    "import_c",
)
LLVM = "define void @x() { call i32 @system(ptr null) ret void }"


def _imports() -> None:
    for room in ("store", "tune"):
        sys.path.insert(0, str(TESTS / room))
    import deltalake  # noqa: F401 - imported before forking
    import polars  # noqa: F401
    import tvm  # noqa: F401

    import tencost.networks.network
    import tencost.networks.sources.saved  # noqa: F401
    from tencost.programs.trace.intrinsics import register_cpu_intrinsics

    register_cpu_intrinsics()


def forged(rng: Random, graph: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Put code of others into a module's graph; return what was put there and the graph."""
    from test_allowed import add, annotate, call_of

    nodes = graph["nodes"]
    choice = rng.randrange(7)
    if choice == 0:
        name = rng.choice(
            ("tirx.call_extern", "tirx.call_pure_extern", "tirx.call_llvm_intrin", "tirx.tvm_call_packed",
             "relax.call_pure_packed", "relax.run_shell", "tirx.call_ffi_kernel", "tirx.call_\x65xtern ")
        )  # fmt: skip
        operators = [node for node in nodes if node["type"] == "ir.Op"]
        if operators and rng.random() < 0.5:
            rng.choice(operators)["data"] = name
        elif _has(graph, "tirx.BufferStore"):
            call_of(graph, lambda graph: add(graph, "ir.Op", name))
        else:
            add(graph, "ir.Op", name)
        return name, graph
    if choice == 1 and _has(graph, "tirx.For"):
        key = rng.choice(("pragma_import_llvm", "pragma_import_c", "Codegen"))
        annotate(graph, key)
        return key, graph
    if choice == 2:
        name = rng.choice(
            (
                "ffi.Module",
                "ffi.Function",
                "tirx.AttrStmt",
                "tirx.Evaluate",
                "relax.expr.ExternFunc",
            )
        )
        data: Any = (
            {"func": LLVM, "name": f"touch {CANARY}"} if rng.random() < 0.5 else f"touch {CANARY}"
        )
        add(graph, name, data)
        return name, graph
    if choice == 3:
        names = [node for node in nodes if node["type"] == "ir.GlobalVar"]
        text = nodes[rng.choice(names)["data"]["name_hint"]]
        # A function's name stands in one place for all: another one for a variable of its own.
        named = dict(rng.choice(names), data=dict(rng.choice(names)["data"]))
        named["data"]["name_hint"] = add(graph, text["type"], "system")
        call = {"span": 0, "ty": 0, "op": add(graph, "ir.GlobalVar", named["data"]), "args": 0}
        add(graph, "ir.Call", call)
        return "a call of system", graph
    if choice == 4:
        add(
            graph,
            "ffi.Map",
            [
                add(
                    graph,
                    "ffi.String",
                    rng.choice(("Codegen", "external_symbol", "system_lib_prefix")),
                ),
                0,
            ],
        )
        return "an attribute", graph
    if choice == 5:
        graph["nodes"][0] = {"type": "ffi.Module", "data": f"touch {CANARY}"}
        return "a library in the place of nothing", graph
    graph.setdefault("metadata", {})["x"] = 1
    add(graph, "ir.IRModule", {"functions": 0})
    return "two modules", graph


def _has(graph: dict[str, Any], kind: str) -> bool:
    return any(node["type"] == kind for node in graph["nodes"])


def damaged(rng: Random, graph: dict[str, Any]) -> str:
    """Damage a module's text: values of its graph, indices that lead elsewhere, or bytes."""
    kind = rng.randrange(4)
    if kind == 0:
        return mutated_bytes(rng, json.dumps(graph).encode()).decode("utf-8", "replace")
    if kind == 1:
        return mutated_json_text(rng, json.dumps(graph))
    nodes = graph["nodes"]
    for _ in range(rng.randint(1, 3)):
        node = rng.choice(nodes)
        data = node.get("data")
        number = rng.choice(
            (rng.randrange(len(nodes)), len(nodes), -1, 2**31, 2**63, len(nodes) * 1000, 0)
        )
        if kind == 2 and isinstance(data, dict) and data:
            data[rng.choice(sorted(data))] = number
        elif isinstance(data, list) and data:
            data[rng.randrange(len(data))] = number
        else:
            node["type"] = rng.choice(nodes)["type"]
    return json.dumps(graph)


class Modules:
    """The part `modules`."""

    name = "modules"

    def __init__(self, folder: Path) -> None:
        _imports()
        self._folder = folder

        def make() -> None:
            from known_programs import records_of
            from test_allowed import text_of

            from matmuls import make_matmul
            from relax_networks import two_layers
            from tencost.networks.sources.saved import save_network
            from tencost.store.record_store import RecordStore

            save_network(two_layers(), folder / "small.npz")
            (folder / "matmul.json").write_text(text_of(make_matmul(16)))
            RecordStore(str(folder / "store")).write(records_of(make_matmul(16), TARGET, "mine"))

        made = run(make, folder)
        assert made.status == 0, made.errors

    def case(self, rng: Random, folder: Path) -> Case:
        if rng.random() < 0.6:
            return self._network(rng, folder)
        graph = json.loads((self._folder / "matmul.json").read_text())
        if rng.random() < 0.4:
            what, graph = forged(rng, graph)
            text, refused = json.dumps(graph), True
        else:
            what, text, refused = "damaged", damaged(rng, graph), False
        if rng.random() < 0.25:
            return Case(
                f"a store's module: {what}", lambda: self._export(folder, text), ends=(0, 2)
            )
        return Case(f"a workload: {what}", lambda: _read(text), ends=(2,) if refused else (0, 2))

    def _network(self, rng: Random, folder: Path) -> Case:
        path = folder / "small.npz"
        ends: tuple[int, ...] = (0, 2)
        with np.load(self._folder / "small.npz") as file:
            arrays = dict(file)
        kind = rng.randrange(6)
        if kind == 0:
            what = "bytes"
            path.write_bytes(mutated_file(rng, (self._folder / "small.npz").read_bytes()))
            return Case(f"a network: {what}", lambda: _load(folder))
        if kind < 3:
            what, graph = forged(rng, json.loads(arrays["module"].tobytes()))
            arrays["module"], ends = _array(json.dumps(graph)), (2,)
        elif kind == 3:
            what = "its module damaged"
            arrays["module"] = _array(damaged(rng, json.loads(arrays["module"].tobytes())))
        elif kind == 4:
            what = "its header"
            arrays["header"] = _array(mutated_json_text(rng, arrays["header"].tobytes().decode()))
        else:
            name = rng.choice([name for name in arrays if "/" in name])
            what = f"its array {name}"
            arrays[name] = rng.choice(
                (np.ones(3), np.zeros((0, 4), np.float32), np.array("x" * 10), arrays[name].astype(np.complex64),
                 np.full_like(arrays[name], 255), np.array([2**63], np.uint64))
            )  # fmt: skip
            if rng.random() < 0.3:
                arrays[name] = np.array([_Touch()], dtype=object)
                ends = (2,)
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        path.write_bytes(buffer.getvalue())
        return Case(f"a network: {what}", lambda: _load(folder), ends=ends)

    def _export(self, folder: Path, text: str) -> None:
        import shutil

        from tencost.store.modules import write_modules
        from tencost.store.record_store import RecordStore

        shutil.copytree(self._folder / "store", folder / "store")
        uri = str(folder / "store")
        identity = RecordStore(uri).read("mine", ["workload_id"])["workload_id"][0]
        write_modules(uri, [(identity, text.encode("utf-8", "replace").decode(), "matmul", "1")])
        cli.main(
            ["records", "export", "metaschedule", "best", "--hardware", "mine", "--store", uri]
        )


class _Touch:
    """Unpickling this makes the canary."""

    def __reduce__(self) -> Any:
        import os

        return os.system, (f"touch {CANARY}",)


def _array(text: str) -> Any:
    return np.frombuffer(text.encode("utf-8", "replace"), np.uint8)


def _load(folder: Path) -> None:
    from tencost.config import NetworkConfig
    from tencost.networks.network import load_network

    config = NetworkConfig(name="", source="saved", path="small.npz", output="")
    network = load_network(config, folder)
    _harmless(str(network.mod))
    assert np.isfinite(
        sum(
            float(np.abs(item.astype(np.float64)).max(initial=0)) < np.inf
            for item in network.expected
        )
    )


def _read(text: str) -> None:
    from tencost.errors import FeatureError, TencostError
    from tencost.programs.trace.replay import error_line, load_module

    try:
        mod = load_module(text)
    except TencostError:
        raise
    except (
        Exception
    ) as error:  # TVM raises whatever its C++ side says; the callers make it a message
        raise FeatureError(error_line(error)) from error
    _harmless(str(mod))


def _harmless(text: str) -> None:
    found = [name for name in FOREIGN if name in text]
    assert not found, f"read, with {found}"


class Traces:
    """The part `traces`."""

    name = "traces"

    def __init__(self, folder: Path) -> None:
        _imports()

        def make() -> Any:
            from known_programs import records_of

            from matmuls import make_matmul

            return [record.program for record in records_of(make_matmul(16), TARGET, "mine")]

        made = run(make, folder)
        assert made.status == 0, made.errors
        self._programs = [json.loads(text) for text in made.told]

    def case(self, rng: Random, folder: Path) -> Case:
        trace = json.loads(json.dumps(rng.choice(self._programs)))
        if rng.random() < 0.4:
            what = _forge_trace(rng, trace)
            return Case(f"a trace: {what}", lambda: _replay(json.dumps(trace)), ends=(2,))
        kind = rng.randrange(3)
        if kind == 0:
            text = mutated_bytes(rng, json.dumps(trace).encode()).decode("utf-8", "replace")
        elif kind == 1:
            text = mutated_json_text(rng, json.dumps(trace))
        else:
            at = rng.randrange(len(trace[0]))
            trace[0][at] = mutated_json(rng, trace[0][at])
            text = json.dumps(trace)
        return Case("a trace: damaged", lambda: _replay(text))


def _forge_trace(rng: Random, trace: Any) -> str:
    """Put into a trace what would run code of others, or what no rule of MetaSchedule emits."""
    from test_allowed import graph_of

    loops = [name for step in trace[0] if step[0] == "GetLoops" for name in step[3]]
    blocks = [name for step in trace[0] if step[0] in ("GetSBlock", "GetBlock") for name in step[3]]
    loop, block = (rng.choice(names) if names else "l0" for names in (loops, blocks))

    def index_map() -> str:
        return graph_of((rng.choice(("ffi.Module", "ir.Call", "ir.Op", "ffi.Function")), {}))

    steps: list[tuple[str, list[Any]]] = [
        ("LLVM linked", ["Annotate", [loop, json.dumps(LLVM)], ["pragma_import_llvm"], []]),
        ("C linked", ["Annotate", [block, '"int x;"'], ["pragma_import_c"], []]),
        (
            "an annotation",
            [
                "Annotate",
                [loop, '"x"'],
                [rng.choice(("Codegen", "pragma_debug", "pragma_tensor_core", "x"))],
                [],
            ],
        ),
        (
            "an instruction",
            [
                rng.choice(("RunShell", "UnsafeSetDType", "CallExtern", "Import", "")),
                [loop],
                ["ls"],
                [],
            ],
        ),
        ("a layout", ["TransformLayout", [block, index_map()], [0, 0, None, False], []]),
        ("a hidden layout", ["TransformLayout", [block], [0, 0, [[index_map()]], False], []]),
        ("an object", ["TransformLayout", [block, {"a": 1}], [0, 0, None, False], []]),
    ]
    what, step = rng.choice(steps)
    trace[0].insert(rng.randint(0, len(trace[0])), step)
    return what


def _replay(text: str) -> None:
    from matmuls import make_matmul
    from tencost.errors import FeatureError
    from tencost.programs.trace.replay import replay

    found = replay(make_matmul(16), text)
    if found.schedule is None:
        raise FeatureError(found.error)
    _harmless(str(found.schedule.mod))
