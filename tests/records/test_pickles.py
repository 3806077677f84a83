"""TenSet's pickles: classes of TVM's names and state are pickled by Python, and read back without being made."""

from __future__ import annotations

import codecs
import contextlib
import copyreg
import importlib
import io
import json
import os
import pickle
import pickletools
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tencost.errors import RecordError
from tencost.records.tenset import unpickling
from tencost.records.tenset.pickles import (
    RelayNetwork,
    SearchTask,
    WeightedTask,
    read_all_tasks,
    read_relay,
    read_tasks,
)
from tencost.records.tenset.unpickling import RefusedError, unpickle

KEY = '["12b88bedece6984af589a28b43e0f3c4", 1, 56, 56, 64]'
HARDWARE = (20, 64, 64, 0, 0, 0, 0, 0)
PROTOCOLS = [2, 3, 4, 5]


class Tvm:
    """Modules named as TVM's were, with objects that pickle as TVM's did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        modules: dict[str, ModuleType] = {}

        def module(name: str) -> ModuleType:
            """Return the fake module of a name; the real one, if it is loaded, is left as it is."""
            if name not in modules:
                modules[name] = ModuleType(name)
                monkeypatch.setitem(sys.modules, name, modules[name])
            return modules[name]

        for name in ("tvm", "tvm.runtime", "tvm.ir", "tvm.target", "tvm.auto_scheduler"):
            module(name)
        runtime = module("tvm.runtime.object")

        def _new_object(cls: type) -> Any:
            raise AssertionError("a function that a pickle names was called")

        _new_object.__module__, _new_object.__qualname__ = "tvm.runtime.object", "_new_object"
        runtime._new_object = _new_object  # type: ignore[attr-defined]

        class Object:
            def __init__(self, handle: str) -> None:
                self.handle = handle

            def __reduce__(self) -> Any:
                return _new_object, (type(self),), self.__getstate__()

            def __getstate__(self) -> Any:
                return {"handle": self.handle}

            def __setstate__(self, state: Any) -> None:
                raise AssertionError("the state of an object was set")

        class String(str):
            __slots__ = ("__tvm_object__",)

        def place(cls: type, where: str, name: str) -> type:
            cls.__module__, cls.__qualname__, cls.__name__ = where, name, name
            setattr(module(where), name, cls)
            return cls

        self.object = place(Object, "tvm.runtime.object", "Object")
        self.string_class = place(String, "tvm.runtime.container", "String")
        search, dag = "tvm.auto_scheduler.search_task", "tvm.auto_scheduler.compute_dag"
        self.array = place(type("Array", (Object,), {}), "tvm.ir.container", "Array")
        self.target_class = place(type("Target", (Object,), {}), "tvm.target.target", "Target")
        self.hardware = place(type("HardwareParams", (Object,), {}), search, "HardwareParams")

        class Stateful(Object):
            def __init__(self, state: dict[str, Any]) -> None:
                self.state = state

            def __getstate__(self) -> Any:
                return self.state

        self.dag = place(type("ComputeDAG", (Stateful,), {}), dag, "ComputeDAG")
        self.search_task = place(type("SearchTask", (Stateful,), {}), search, "SearchTask")

    def string(self, text: str) -> Any:
        string = self.string_class(text)
        string.__tvm_object__ = self.object(graph({"type_key": "runtime.String", "repr_str": text}))
        return string

    def target(self, kind: str = "llvm", **attributes: Any) -> Any:
        return self.target_class(target_graph(kind, attributes))

    def task(self, **state: Any) -> Any:
        numbers = dict(zip(HARDWARE_NAMES, map(str, HARDWARE), strict=True))
        node = {"type_key": "auto_scheduler.HardwareParams", "attrs": numbers}
        names = {"type_key": "Array", "data": [2]}, {"type_key": "runtime.String", "repr_str": "w"}
        return self.search_task(
            {
                "compute_dag": self.dag({"tensors": graph({"type_key": "Array"})}),
                "workload_key": self.string(KEY),
                "target": self.target(model="platinum-8272"),
                "target_host": None,
                "hardware_params": self.hardware(graph(node)),
                "layout_rewrite_option": 2,
                "task_input_names": self.array(graph(*names)),
                "desc": self.string("conv2d"),
                **state,
            }
        )


HARDWARE_NAMES = (
    "num_cores",
    "vector_unit_bytes",
    "cache_line_bytes",
    "max_shared_memory_per_block",
    "max_local_memory_per_block",
    "max_threads_per_block",
    "max_vthread_extent",
    "warp_size",
)
TASK = SearchTask(
    KEY, "llvm -keys=cpu -link-params=0 -model=platinum-8272", "", HARDWARE, 2, ("w",)
)


def graph(*nodes: dict[str, Any]) -> str:
    return json.dumps({"root": 1, "nodes": [{"type_key": ""}, *nodes], "b64ndarrays": []})


def target_graph(kind: str, attributes: dict[str, str]) -> str:
    pieces = {"link-params": {"type_key": "IntImm", "attrs": {"dtype": "bool", "value": "0"}}}
    pieces |= {
        name: {"type_key": "runtime.String", "repr_str": text} for name, text in attributes.items()
    }
    return graph(
        {
            "type_key": "Target",
            "attrs": {"attrs": "5", "host": "null", "keys": "3", "kind": "2", "tag": "6"},
        },
        {"type_key": "TargetKind", "repr_str": kind},
        {"type_key": "Array", "data": [4]},
        {"type_key": "runtime.String", "repr_str": "cpu" if kind == "llvm" else kind},
        {
            "type_key": "Map",
            "keys": list(pieces),
            "data": list(range(7, 7 + len(pieces))),
        },
        {"type_key": "runtime.String"},
        *pieces.values(),
    )


@pytest.fixture
def tvm(monkeypatch: pytest.MonkeyPatch) -> Tvm:
    return Tvm(monkeypatch)


def save(path: Path, pickled: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(pickled, protocol))
    return path


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tasks_with_weights(tvm: Tvm, tmp_path: Path, protocol: int) -> None:
    path = save(tmp_path / "a.task.pkl", ([tvm.task(), tvm.task()], [3, 1]), protocol)
    assert read_tasks(path) == [WeightedTask(TASK, 3), WeightedTask(TASK, 1)]
    assert TASK.kind == "llvm"


@pytest.mark.parametrize("protocol", [0, 1])
def test_older_protocols(tvm: Tvm, tmp_path: Path, protocol: int) -> None:
    plain = tvm.task(workload_key=KEY, desc="")  # a class with slots has no older protocol
    assert read_all_tasks(save(tmp_path / "all_tasks.pkl", [plain], protocol)) == [TASK]


def test_an_older_task_says_less(tvm: Tvm, tmp_path: Path) -> None:
    state = {
        "workload_key": KEY,
        "target": tvm.target("cuda"),
        "target_host": tvm.target(mcpu="core-avx2"),
        "hardware_params": tvm.hardware(
            graph({"type_key": "auto_scheduler.HardwareParams", "attrs": {"num_cores": "4"}})
        ),
    }
    path = save(tmp_path / "all_tasks.pkl", [tvm.search_task(state)])
    (task,) = read_all_tasks(path)
    assert task == SearchTask(
        KEY, "cuda -keys=cuda -link-params=0", "llvm -keys=cpu -link-params=0 -mcpu=core-avx2"
    )


def test_a_target_with_its_host_and_an_attribute_with_spaces(tvm: Tvm, tmp_path: Path) -> None:
    nodes = json.loads(target_graph("llvm", {"device": "a b"}))["nodes"]
    nodes[1]["attrs"]["host"] = str(len(nodes))
    nodes += [{"type_key": "Target", "attrs": {"kind": "2", "keys": "0", "attrs": "0"}}]
    target = tvm.target_class(json.dumps({"root": 1, "nodes": nodes}))
    (task,) = read_all_tasks(save(tmp_path / "all_tasks.pkl", [tvm.task(target=target)]))
    assert task.target == "llvm -keys=cpu -device='a b' -link-params=0"
    assert task.target_host == "llvm"


def test_a_task_that_shares_its_objects(tvm: Tvm, tmp_path: Path) -> None:
    target = tvm.target(model="t4")
    tasks = [tvm.task(target=target, workload_key=f'["k{number}"]') for number in range(300)]
    read = read_all_tasks(save(tmp_path / "all_tasks.pkl", tasks))
    assert [task.workload_key for task in read] == [f'["k{number}"]' for number in range(300)]
    assert {task.target for task in read} == {"llvm -keys=cpu -link-params=0 -model=t4"}


@pytest.mark.parametrize("protocol", [0, *PROTOCOLS])
def test_relay_network(tmp_path: Path, protocol: int) -> None:
    pickled = (
        '{"root": 1}',
        46_000_000,
        [("input0", (1, 3, 224, 224), "float32"), ("s", (), "i8")],
    )
    path = save(tmp_path / "a.relay.pkl", pickled, protocol)
    assert read_relay(path) == RelayNetwork(
        '{"root": 1}', 46_000_000, (("input0", (1, 3, 224, 224), "float32"), ("s", (), "i8"))
    )


class _Calls:
    """Pickles as a call of whatever it is given."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def _hostile(marker: Path) -> dict[str, Any]:
    command = f"touch {marker}"
    return {
        "os.system": _Calls(os.system, command),
        "eval": _Calls(eval, f"open({str(marker)!r}, 'w')"),
        "exec": _Calls(exec, f"open({str(marker)!r}, 'w')"),
        "subprocess": _Calls(subprocess.Popen, ["touch", str(marker)]),
        "open": _Calls(open, str(marker), "w"),
        "import": _Calls(importlib.import_module, "antigravity"),
        "getattr": _Calls(getattr, _Calls(importlib.import_module, "os"), "system"),
        "bytearray": _Calls(bytearray, 1 << 40),
        "list": _Calls(list, "abc"),
        "reconstructed": _Calls(copyreg._reconstructor, io.StringIO, object, None),  # type: ignore[attr-defined]
        "path": marker,
        "set": {1, 2},
    }


@pytest.mark.parametrize("name", sorted(_hostile(Path("x"))))
@pytest.mark.parametrize("protocol", [0, *PROTOCOLS])
def test_hostile_pickles_run_nothing(tvm: Tvm, tmp_path: Path, name: str, protocol: int) -> None:
    marker = tmp_path / "touched"
    pickled = _hostile(marker)[name]
    for hidden in (
        pickled,
        ([pickled], [1]),
        ([tvm.task(workload_key=KEY, desc=pickled)], [1]),
        ([tvm.task(workload_key=KEY, desc="", target=tvm.target_class(pickled))], [1]),
    ):
        path = save(tmp_path / "hostile.task.pkl", hidden, protocol)
        codecs.lookup("raw_unicode_escape")  # of protocol 0
        before = set(sys.modules)
        with pytest.raises(RecordError, match="Nothing in it was executed"):
            read_tasks(path)
        assert not marker.exists()
        assert set(sys.modules) == before


@pytest.mark.parametrize(
    ("pickled", "name"),
    [
        (_Calls(os.system, "true"), r"'posix\.system'"),
        (_Calls(eval, "1"), r"'builtins\.eval'"),
        (_Calls(getattr, 1, "real"), r"'builtins\.getattr'"),
    ],
)
def test_what_is_refused_is_named(pickled: Any, name: str) -> None:
    with pytest.raises(RefusedError, match=f"names {name}, which is none of TVM's"):
        unpickle(pickle.dumps([pickled]))


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"(ios\nsystem\nX\x04\x00\x00\x00true.",
        b"(cos\nsystem\nX\x04\x00\x00\x00trueo.",
        b"\x80\x02\x82\x01.",  # an extension code
        b"P1\n.",  # a persistent id
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",  # a byte array of 1 TiB
        b"ctvm.runtime.object\n_new_object\n(cbuiltins\nobject\ntR.",
        b"ctvm.runtime.object\n_new_object\n(X\x01\x00\x00\x00atR.",
        b"ctvm.runtime.object\n_new_object\n)R.",
        b"ctvm.target.target\nTarget\n(X\x01\x00\x00\x00atR.",
        b"ctvm.target.target\nTarget\nX\x01\x00\x00\x00a\x81.",
        b"ctvm.target.target\nTarget\n}b.",  # the state of a class
        b"ctvm\nauto_scheduler\n.",
        b"X\x01\x00\x00\x00a)R.",
        b"}K\x01K\x02s.",  # a key that is no text
        b"}(X\x01\x00\x00\x00au.",  # a key without a value
        b"K\x01K\x02a.",  # appended to a number
        b"K\x01K\x02b.",
    ],
)
def test_programs_for_the_stack_machine(program: bytes) -> None:
    with pytest.raises(RefusedError, match=r"^byte "):
        unpickle(program)


def test_a_machine_takes_nothing_below_a_mark() -> None:
    for program in (b"K\x01(\x85.", b".", b"t.", b"K\x01(.", b"K\x01s.", b"a.", b"g5\n.", b"0."):
        with pytest.raises(RefusedError, match=r"takes more than there is|Memo value not found"):
            unpickle(program)


def test_a_huge_number_in_the_memo_reserves_nothing() -> None:
    assert unpickle(b"]r\xff\xff\xff\xffj\xff\xff\xff\xff\x86.") == ([], [])


def test_deep_and_wide_pickles_end() -> None:
    depth = 150_000
    nested = unpickle(b")" + b"\x85" * depth + b".")
    assert isinstance(nested, tuple)
    del nested
    with pytest.raises(RefusedError, match="expected text as a key"):
        unpickle(b"})" + b"\x85" * depth + b"K\x01s.")
    laughs = (
        b"]"
        + b"q\x00"
        + b"".join(
            b"]("
            + b"h"
            + bytes([level])
            + (b"h" + bytes([level])) * 9
            + b"e"
            + b"q"
            + bytes([level + 1])
            for level in range(60)
        )
    )
    assert len(unpickle(laughs + b".")) == 10


def test_too_many_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpickling, "MAX_OPERATIONS", 100)
    assert len(unpickle(b"](" + b"N" * 90 + b"e.")) == 90
    with pytest.raises(RefusedError, match="expected at most 100 operations"):
        unpickle(b"](" + b"N" * 100 + b"e.")


def test_too_large_a_file(tmp_path: Path) -> None:
    path = tmp_path / "all_tasks.pkl"
    with path.open("wb") as file:
        file.truncate((1 << 30) + 1)  # sparse
    with pytest.raises(RecordError, match="expected at most 1073741824 bytes, found 1073741825"):
        read_all_tasks(path)


def test_truncated_anywhere(tvm: Tvm, tmp_path: Path) -> None:
    pickled = pickle.dumps(([tvm.task()], [2]))
    for length in range(len(pickled)):
        with pytest.raises(RefusedError, match="damaged or no pickle"):
            unpickle(pickled[:length])
    path = tmp_path / "a.task.pkl"
    path.write_bytes(pickled[:-1])
    with pytest.raises(RecordError, match=r"expected a TenSet pickle at .* exhausted"):
        read_tasks(path)


def test_any_byte_changed(tvm: Tvm, tmp_path: Path) -> None:
    pickled = pickletools.optimize(pickle.dumps(([tvm.task()], [2])))
    path = tmp_path / "a.task.pkl"
    readable = 0
    for position in range(0, len(pickled), 2):
        flip = (0x01, 0x20, 0x80)[position // 2 % 3]
        path.write_bytes(
            pickled[:position] + bytes([pickled[position] ^ flip]) + pickled[position + 1 :]
        )
        try:
            read = read_tasks(path)
        except RecordError:
            continue
        readable += 1
        assert len(read) == 1
    assert readable > 0  # inside a text a changed byte is another text


@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        ([], "Expected `array` of length 2, got 0"),
        (([], [1]), "expected a weight a task, found 0 and 1"),
        ((["x"], [1]), "SearchTask with its state, found a str"),
        (({}, []), "Expected `array`, got `object`"),
    ],
)
def test_other_values(tmp_path: Path, pickled: Any, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        read_tasks(save(tmp_path / "a.task.pkl", pickled))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"workload_key": 3}, r"Expected `str`, got `int` - at `\$\[0\]\.workload_key`"),
        ({"workload_key": "\udc80"}, "surrogates not allowed"),
        ({"target": 3}, "target.Target with its state, found a int"),
        ({"target": "-model=t4"}, "expected a target that begins with its kind"),
        ({"hardware_params": []}, "HardwareParams with its state, found a list"),
        ({"layout_rewrite_option": True}, r"Expected `int \| null`, got `bool`"),
    ],
)
def test_other_states(tvm: Tvm, tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        read_all_tasks(save(tmp_path / "all_tasks.pkl", [tvm.task(**changed)]))


@pytest.mark.parametrize("weight", [1.5, "1", None, -1, 1 << 40, 1 << 70])
def test_other_weights(tvm: Tvm, tmp_path: Path, weight: Any) -> None:
    with pytest.raises(RecordError, match=r"Expected `int` .*weight`|Expected `int`, got"):
        read_tasks(save(tmp_path / "a.task.pkl", ([tvm.task()], [weight])))


@pytest.mark.parametrize(
    "handle",
    [
        "",
        "[]",
        '{"root": 9, "nodes": []}',
        "[" * 5_000,
        graph({"type_key": "Target", "attrs": {"kind": "0"}}),
        graph({"type_key": "Target", "attrs": {"kind": "1"}}),  # contains itself
        graph(*({"type_key": "Array", "data": [level + 2] * 8} for level in range(20))),
        "x" * 70_000,
        None,
    ],
)
def test_damaged_graphs(tvm: Tvm, tmp_path: Path, handle: Any) -> None:
    path = save(tmp_path / "all_tasks.pkl", [tvm.task(target=tvm.target_class(handle))])
    with pytest.raises(
        RecordError, match=r"expected a JSON graph|expected .* (nodes|kind|characters)"
    ):
        read_all_tasks(path)


@given(st.binary(max_size=40), st.sampled_from([b"", b"\x80\x04", b"](", b"}("]))
@settings(max_examples=500, deadline=None)
def test_any_bytes_end_in_a_value_or_a_refusal(pickled: bytes, start: bytes) -> None:
    with contextlib.suppress(RefusedError):
        content = unpickle(start + pickled + b".")
        assert content is None or isinstance(
            content, (bool, int, float, str, list, tuple, dict, unpickling.StandIn)
        )


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="found no file"):
        read_relay(tmp_path)
