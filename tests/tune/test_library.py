"""`tencost.compile` and `tencost.load`: networks as Python objects, with a real compiler and ONNX Runtime beside it."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import tencost
from tencost.errors import ConfigError, HardwareError, TencostError, TuneError, UntrustedError
from tencost.tune import library_cache
from tencost.tune.deploy import compile_together
from tencost.tune.library import CompiledNetwork, runtime_tensor
from tencost.workers import hardware

pytestmark = pytest.mark.tvm
LEAN = "from tencost.workers.parallel.lean_imports import leave_out_unused as lean; lean()\n"
"""First line of a script: TVM is imported without PyTorch, in a third of the time."""


def write_network(path: Path, seed: int = 0) -> Path:
    """Write y = relu(conv(x) + other), z = sum of y, as an ONNX file."""
    weights = np.random.default_rng(seed).normal(size=(8, 3, 3, 3)).astype(np.float32)
    tensor = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "other"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["z"], keepdims=0),
    ]
    inputs = [
        tensor("x", TensorProto.FLOAT, (1, 3, 16, 16)),
        tensor("other", TensorProto.FLOAT, (1, 8, 1, 1)),
    ]
    outputs = [tensor("y", TensorProto.FLOAT, (1, 8, 16, 16)), tensor("z", TensorProto.FLOAT, ())]
    graph = helper.make_graph(
        nodes, "net", inputs, outputs, [numpy_helper.from_array(weights, "w")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def arguments(seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(1, 3, 16, 16)).astype(np.float32),
        "other": rng.normal(size=(1, 8, 1, 1)).astype(np.float32),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("library")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def fast(folder: Path) -> CompiledNetwork:
    return tencost.compile(write_network(folder / "net.onnx"))


def reference(path: Path, values: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return list(session.run(None, values))


def test_a_file_is_a_function(fast: CompiledNetwork, folder: Path) -> None:
    values = arguments()
    expected = reference(folder / "net.onnx", values)
    for outputs in (
        fast(values["x"], values["other"]),
        fast(values["x"], other=values["other"]),
        fast(**values),
    ):
        assert [type(output) for output in outputs] == [np.ndarray, np.ndarray]
        for output, wanted in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-5)
    assert repr(fast) == (
        "<CompiledNetwork net.so (x: float32 [1, 3, 16, 16], other: float32 [1, 8, 1, 1]) -> "
        "float32 [1, 8, 16, 16], float32 []>"
    )


def test_outside_of_a_project_nothing_is_left_in_the_current_folder(
    fast: CompiledNetwork, folder: Path
) -> None:
    assert fast.path.is_file()
    assert not (folder / "data").exists()


def test_tensors_of_torch_come_back_as_such(fast: CompiledNetwork, folder: Path) -> None:
    values = arguments(1)
    outputs = fast(torch.from_numpy(values["x"]), values["other"])
    assert all(isinstance(output, torch.Tensor) for output in outputs)
    torch.testing.assert_close(outputs[0].numpy(), reference(folder / "net.onnx", values)[0])


def test_ids_outside_a_table_end_the_call_and_no_other(folder: Path) -> None:
    table = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        "ids",
        [tensor("ids", TensorProto.INT64, (2, 3))],
        [tensor("y", TensorProto.FLOAT, (2, 3, 4))],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "ids.onnx")
    built = tencost.compile(folder / "ids.onnx")
    ids = np.array([[0, 5, -1], [-6, 2, 1]])
    for library in (built, tencost.load(built.save(folder / "saved_ids.so"))):
        for outside in (6, -7, 2**40):
            with pytest.raises(IndexError, match=r"^input ids of take: expected ids from -6 to 5"):
                library(np.where(ids == 2, outside, ids))
            np.testing.assert_array_equal(library(ids), table[ids])


@pytest.mark.parametrize("kind", ["aligned", "unaligned", "strided", "read-only"])
def test_memory_of_any_kind(kind: str, fast: CompiledNetwork, folder: Path) -> None:
    values = arguments(2)
    expected = reference(folder / "net.onnx", values)
    size = values["x"].size
    memory = np.zeros(2 * size + 32, np.float32)
    begin = -(memory.ctypes.data // 4) % 16 + (1 if kind == "unaligned" else 0)
    x = memory[begin : begin + size].reshape(values["x"].shape)
    if kind == "strided":
        x = memory[begin : begin + 2 * size : 2].reshape(values["x"].shape)
    x[...] = values["x"]
    assert (x.ctypes.data % 64 == 0) == (kind != "unaligned")
    x.flags.writeable = kind != "read-only"
    np.testing.assert_allclose(fast(x, values["other"])[0], expected[0], rtol=1e-5, atol=1e-5)
    read = np.from_dlpack(runtime_tensor(x))
    assert (read.ctypes.data == x.ctypes.data) == (kind == "aligned"), "the same memory, or a copy"


def test_outputs_of_a_call_outlive_the_next(fast: CompiledNetwork, folder: Path) -> None:
    first = fast(**arguments(3))[0]
    copy = first.copy()
    fast(**arguments(4))
    np.testing.assert_array_equal(first, copy)


def test_several_threads_call_it(fast: CompiledNetwork, folder: Path) -> None:
    expected = {seed: reference(folder / "net.onnx", arguments(seed))[0] for seed in range(8)}
    with ThreadPoolExecutor(4) as threads:
        for seed, output in zip(
            [*range(8)] * 20,
            threads.map(lambda seed: fast(**arguments(seed))[0], [*range(8)] * 20),
            strict=True,
        ):
            np.testing.assert_allclose(output, expected[seed], rtol=1e-5, atol=1e-5)


def test_a_second_compile_comes_from_the_cache(
    fast: CompiledNetwork, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = fast.path.stat().st_mtime_ns
    again = tencost.compile(str(folder / "net.onnx"))
    assert (again.path, again.path.stat().st_mtime_ns) == (fast.path, written)
    assert "compiled before" in capsys.readouterr().err
    (folder / "copy").mkdir()
    copy = shutil.copy(folder / "net.onnx", folder / "copy")
    assert tencost.compile(copy).path == fast.path, "the content counts, not the place"
    (folder / "other").mkdir()
    other = tencost.compile(write_network(folder / "other" / "net.onnx", seed=1))
    assert other.path != fast.path, "another content is another library"


def test_another_code_compiles_anew(
    fast: CompiledNetwork, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout has the same version before and after a rule of its own changed."""
    monkeypatch.setattr(library_cache, "code", lambda: "another")
    assert tencost.compile(str(folder / "net.onnx")).path != fast.path


@pytest.mark.parametrize("is_folder", [False, True], ids=["cut off", "a folder"])
@pytest.mark.parametrize("damage", [".so", ".json", ".npz"])
def test_a_damaged_library_of_the_cache_is_compiled_again(
    damage: str,
    is_folder: bool,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / f"damaged{damage}{is_folder}"))
    place = tencost.compile(write_network(folder / "net.onnx")).path.with_suffix(damage)
    capsys.readouterr()
    # Another file in its place, as after a copy that was cut off: the library itself is in use.
    whole = place.read_bytes()
    place.unlink()
    if is_folder:
        place.mkdir()
        (place / "file").touch()
    else:
        place.write_bytes(whole[: len(whole) // 2])
    again = tencost.compile(folder / "net.onnx")
    assert capsys.readouterr().err.count("compiling it again") == 1
    values = arguments(6)
    expected = reference(folder / "net.onnx", values)[0]
    np.testing.assert_allclose(again(**values)[0], expected, rtol=1e-5, atol=1e-5)
    assert again.save(folder / "healed.so").is_file()
    tencost.compile(folder / "net.onnx")
    assert "compiled before" in capsys.readouterr().err


def test_it_is_saved_and_loaded_elsewhere(fast: CompiledNetwork, tmp_path: Path) -> None:
    library = fast.save(tmp_path / "new" / "mine.so")
    values = arguments(5)
    np.testing.assert_array_equal(tencost.load(library)(**values)[0], fast(**values)[0])
    done = subprocess.run(
        [sys.executable, str(library.with_suffix(".py"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "output 0: float32 (1, 8, 16, 16)" in done.stdout, done.stderr
    with pytest.raises(ConfigError, match=r"ends in \.so; found .*mine\.dll"):
        fast.save(tmp_path / "mine.dll")


@pytest.mark.parametrize("hinder", ["a full disk", "a folder in a place"])
def test_a_library_stays_where_another_cannot_be_saved(
    hinder: str, fast: CompiledNetwork, tmp_path: Path
) -> None:
    place = tmp_path / "mine.so"
    tencost.compile(one_operator(tmp_path / "old.onnx", "Add", (4,))).save(place)
    if hinder == "a folder in a place":
        place.with_suffix(".npz").unlink()
        place.with_suffix(".npz").mkdir()
    before = sorted(tmp_path.iterdir())
    room = largest_file(20_000) if hinder == "a full disk" else nullcontext()
    with pytest.raises(OSError, match=r"too large|directory"), room:
        fast.save(place)
    assert sorted(tmp_path.iterdir()) == before
    x = np.ones(4, np.float32)
    np.testing.assert_array_equal(tencost.load(place)(x, x), x + x)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let this process write files of so many bytes at most: no room on a disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_what_took_a_librarys_place_is_loaded(
    fast: CompiledNetwork, folder: Path, tmp_path: Path
) -> None:
    """The dynamic linker gives the first library of a name again, whatever lies there now."""
    place = tmp_path / "model.so"
    first = tencost.load(fast.save(place))
    write_network(tmp_path / "net.onnx", seed=2)
    second = tencost.load(tencost.compile(tmp_path / "net.onnx").save(place))
    values = arguments(7)
    for network, file in ((first, folder / "net.onnx"), (second, tmp_path / "net.onnx")):
        expected = reference(file, values)[0]
        np.testing.assert_allclose(network(**values)[0], expected, rtol=1e-5, atol=1e-5)


def test_a_path_of_any_characters(fast: CompiledNetwork, folder: Path) -> None:
    name = "a b ü 日本=,'d{e}${hardware.name}.onnx"
    place = folder / "path ü" / name
    place.parent.mkdir(exist_ok=True)
    network = tencost.compile(shutil.copy(folder / "net.onnx", place))
    library = network.save(place.with_suffix(".so"))
    np.testing.assert_array_equal(tencost.load(library)(**arguments())[0], fast(**arguments())[0])


def test_processes_that_compile_one_file_share_one_library(folder: Path) -> None:
    """One compiles, the other waits for it: a library that is being replaced is not there for a moment."""
    place = folder / "shared"
    place.mkdir()
    write_network(place / "shared.onnx", seed=3)
    script = f"{LEAN}import tencost; print(tencost.compile('shared.onnx').path)"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=300) for process in processes]
    assert len({path for path, _ in printed}) == 1, printed
    assert sum("compiled before" in messages for _, messages in printed) == 1, printed


def test_a_cache_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "net.onnx"))
    with pytest.raises(ConfigError, match=r"cache that can be written to .* XDG_CACHE_HOME"):
        tencost.compile(folder / "net.onnx")


def test_a_forked_process_calls_it(folder: Path) -> None:
    """Threads are not there after a fork: the call would wait for them for ever. A library of two cores has one."""
    script = (
        f"{LEAN}"
        "import os, signal, sys, numpy, tencost\n"
        "fast = tencost.compile('wide.onnx', overrides=['hardware.cores=2'])\n"
        "threads = lambda: len(os.listdir('/proc/self/task'))\n"
        "x = numpy.ones((256, 256), numpy.float32); before = threads(); expected = fast(x)\n"
        "if len(os.sched_getaffinity(0)) > 1: assert threads() == before + 1, (before, threads())\n"
        "if (child := os.fork()) == 0: signal.alarm(60); os._exit(int((fast(x) != expected).any()))\n"
        "sys.exit(os.waitpid(child, 0)[1])\n"
    )
    tensor = helper.make_tensor_value_info
    weights = np.random.default_rng(0).normal(size=(256, 512)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "wide",
        [tensor("x", TensorProto.FLOAT, (256, 256))],
        [tensor("y", TensorProto.FLOAT, (256, 512))],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "wide.onnx")
    environment = {key: value for key, value in os.environ.items() if key != "TVM_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment, check=False, timeout=300
    )
    assert done.returncode == 0


def one_operator(path: Path, operator: str, second: tuple[int, ...]) -> Path:
    """Write y = operator(x, s), x of [4], as an ONNX file."""
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "s"], ["y"])],
        "one",
        [tensor("x", TensorProto.FLOAT, (4,)), tensor("s", TensorProto.FLOAT, second)],
        [tensor("y", TensorProto.FLOAT, (4,))],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    return path


def test_a_single_number_wherever_it_lies(folder: Path) -> None:
    """One that is not aligned is copied, and has no axis then either."""
    fast = tencost.compile(one_operator(folder / "scalar.onnx", "Mul", ()))
    x, memory = np.arange(4, dtype=np.float32), np.zeros(64, np.float32)
    for place in range(16):
        number = memory[place:].reshape(-1)[:1].reshape(())
        number[...] = 2.0
        np.testing.assert_array_equal(fast(x, number), 2 * x)
    np.testing.assert_array_equal(fast(x, np.float32(3)), 3 * x)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_an_output_is_the_callers_own(folder: Path, kind: str) -> None:
    """Inputs and constants that a network gives back, reshaped or not, do not change where an output is written to."""
    tensor = helper.make_tensor_value_info
    sizes = {"r": (16,), "i": (4, 4), "c": (4,), "d": (2, 2), "y": (4, 4)}
    constants = {"c": np.arange(4, dtype=np.float32), "s": np.array([16]), "t": np.array([2, 2])}
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["r"]),
        helper.make_node("Identity", ["x"], ["i"]),
        helper.make_node("Reshape", ["c", "t"], ["d"]),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "borrowed",
        [tensor("x", TensorProto.FLOAT, (4, 4))],
        [tensor(name, TensorProto.FLOAT, size) for name, size in sizes.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / f"borrowed_{kind}.onnx")
    fast = tencost.compile(folder / f"borrowed_{kind}.onnx")
    memory = np.ones(64, np.float32)
    begin = -(memory.ctypes.data // 4) % 16
    x = memory[begin : begin + 16].reshape(4, 4)  # aligned: it is not copied
    for _ in range(3):
        outputs = fast(x if kind == "numpy" else torch.from_numpy(x))
        for output, size in zip(outputs, sizes.values(), strict=True):
            expected = np.ones(size) if math.prod(size) == 16 else np.arange(4).reshape(size)
            np.testing.assert_array_equal(output, expected)
        for output in outputs:
            output[...] = 7
        assert (x == 1).all()


def test_several_threads_compile(folder: Path) -> None:
    """Hydra and file descriptors are of the whole process."""
    paths = [
        one_operator(folder / f"thread{place}.onnx", operator, (4,))
        for place, operator in enumerate(["Add", "Sub", "Mul"])
    ]
    script = (
        f"{LEAN}"
        "import os, sys, tencost\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "before = os.readlink('/proc/self/fd/2')\n"
        "with ThreadPoolExecutor(3) as threads: list(threads.map(tencost.compile, sys.argv[1:]))\n"
        "assert os.readlink('/proc/self/fd/2') == before\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, paths)],
        cwd=folder, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_parameter_may_be_returned() -> None:
    class Returning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.arange(4.0))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * self.scale, self.scale

    x = torch.ones(4)
    product, scale = tencost.compile(Returning(), (x,))(x)
    np.testing.assert_array_equal(product, np.arange(4.0))
    np.testing.assert_array_equal(scale, np.arange(4.0))


def test_weights_quantized_by_an_older_operator_set(folder: Path) -> None:
    """As ONNX Runtime's quantize_static writes them; ONNX's reference knows DequantizeLinear from set 19 on."""
    tensor = helper.make_tensor_value_info
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.integers(-127, 127, (8, 3, 3, 3)).astype(np.int8),
        "scales": rng.uniform(0.01, 0.02, 8).astype(np.float32),
        "zeros": np.zeros(8, np.int8),
        "scale": np.array(0.05, np.float32),
        "zero": np.array(3, np.uint8),
    }
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
            helper.make_node("DequantizeLinear", ["w", "scales", "zeros"], ["v"], axis=0),
            helper.make_node("Conv", ["d", "v"], ["y"], pads=[1, 1, 1, 1]),
        ],
        "quantized",
        [tensor("x", TensorProto.FLOAT, (1, 3, 16, 16))],
        [tensor("y", TensorProto.FLOAT, (1, 8, 16, 16))],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    onnx.save(model, folder / "quantized.onnx")
    x = rng.normal(size=(1, 3, 16, 16)).astype(np.float32)
    expected = onnxruntime.InferenceSession(folder / "quantized.onnx").run(None, {"x": x})[0]
    fast = tencost.compile(folder / "quantized.onnx")
    np.testing.assert_allclose(fast(x), expected, rtol=1e-4, atol=1e-4)


def test_ctrl_c_that_tvm_swallows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM makes a RuntimeError of KeyboardInterrupt in a function that it calls; another way to compile was taken."""

    def interrupted(*given: Any) -> Any:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        return compile_together(*given)

    monkeypatch.setattr("tencost.tune.compiled.compile_together", interrupted)
    path = one_operator(folder / "interrupted.onnx", "Div", (4,))
    with pytest.raises(KeyboardInterrupt):
        tencost.compile(path)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    assert not list((folder / "cache").rglob("interrupted.so"))


def test_weights_beside_a_file_that_a_constant_reads(folder: Path) -> None:
    """The same file with other weights is another network, also where no initializer reads them."""

    def outside(name: str) -> Any:
        tensor = TensorProto(
            name=name, data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL
        )
        for key, value in (("location", "beside.bin"), ("length", "16")):
            tensor.external_data.add(key=key, value=value)
        return tensor

    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["s"], value=outside("s")),
            helper.make_node("Add", ["x", "s"], ["y"]),
        ],
        "beside",
        [tensor("x", TensorProto.FLOAT, (4,))],
        [tensor("y", TensorProto.FLOAT, (4,))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "beside.onnx").write_bytes(model.SerializeToString())
    x = np.zeros(4, np.float32)
    for value in (1.0, 2.0):
        np.full(4, value, np.float32).tofile(folder / "beside.bin")
        np.testing.assert_array_equal(tencost.compile(folder / "beside.onnx")(x), np.full(4, value))


def test_it_is_pickled_and_copied(fast: CompiledNetwork) -> None:
    for network in (pickle.loads(pickle.dumps(fast)), copy.deepcopy(fast)):
        np.testing.assert_array_equal(network(**arguments())[0], fast(**arguments())[0])


def test_an_input_may_be_called_self(folder: Path) -> None:
    model = onnx.load(folder / "net.onnx")
    model.graph.input[1].name = model.graph.node[1].input[1] = "self"
    onnx.save(model, folder / "self.onnx")
    values = arguments()
    y = tencost.compile(folder / "self.onnx")(**{"x": values["x"], "self": values["other"]})[0]
    np.testing.assert_allclose(y, reference(folder / "net.onnx", values)[0], rtol=1e-5, atol=1e-5)


def test_tensors_of_torch_that_numpy_does_not_take(fast: CompiledNetwork) -> None:
    values = arguments()
    x = torch.from_numpy(values["x"])
    expected = fast(-values["x"], values["other"])[0]
    np.testing.assert_array_equal(fast(torch._neg_view(x), values["other"])[0], expected)
    torch.testing.assert_close(
        fast(x.clone().requires_grad_(), values["other"])[0], fast(x, values["other"])[0]
    )
    for tensor, word in ((x.bfloat16(), "bfloat16"), (x.to_sparse(), "sparse_coo")):
        with pytest.raises(TypeError, match=f"input x: expected a dense tensor .* found .*{word}"):
            fast(tensor, values["other"])


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_library_that_was_cut_off(fast: CompiledNetwork, tmp_path: Path, share: float) -> None:
    """The dynamic linker maps the file by its headers: beyond its end the process would crash."""
    library = fast.save(tmp_path / "cut.so")
    os.truncate(library, int(share * library.stat().st_size))
    with pytest.raises(
        TuneError, match=r"library that cut\.json describes, found another or a part"
    ):
        tencost.load(library)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": [1]}, "name, shape and dtype"),
        ({"inputs": [{"name": "x", "shape": [1], "dtype": "flot"}]}, "data type 'flot'"),
        ({"cores": "many"}, "found something else"),
        ({"cores": float("inf")}, "found something else"),
        ({"buckets": {"sizes": 3}}, "found something else"),
        ({"target": {"kind": "llvm", "mcpu": 3}}, "cannot load"),
    ],
)
def test_a_damaged_description(
    fast: CompiledNetwork, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    description = fast.save(tmp_path / "mine.so").with_suffix(".json")
    description.write_text(json.dumps(json.loads(description.read_text()) | change))
    with pytest.raises(TuneError, match=message):
        tencost.load(tmp_path / "mine.so")


def test_a_library_for_another_cpu(
    fast: CompiledNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on an older host: its first wide instruction would end the process."""
    library = fast.save(tmp_path / "mine.so")
    (tmp_path / "cpuinfo").write_text("model name : Old CPU 1\nflags : fpu sse sse2\n")
    monkeypatch.setattr(hardware, "CPUINFO", tmp_path / "cpuinfo")
    with pytest.raises(HardwareError, match=r"this host \(Old CPU 1 .*\) lacks: .*avx"):
        tencost.load(library)


def test_only_what_was_loaded_is_saved(fast: CompiledNetwork, folder: Path, tmp_path: Path) -> None:
    loaded = tencost.load(fast.save(tmp_path / "mine.so"))
    fast.save(tmp_path / "mine.so")
    with pytest.raises(TuneError, match=r"as it was loaded, found another library in its place"):
        loaded.save(tmp_path / "other.so")
    (tmp_path / "mine.npz").unlink()
    with pytest.raises(TuneError, match=r"mine\.so and its samples as they were loaded"):
        loaded.save(tmp_path / "other.so")


def test_a_module_with_example_inputs(folder: Path) -> None:
    module = nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 3))
    x = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    fast = tencost.compile(module, (x,))
    assert module.training
    assert tencost.compile(module, (x,)).path == fast.path, "from the cache"
    torch.testing.assert_close(fast(x), module.eval()(x).detach(), rtol=1e-4, atol=1e-5)


class Merging(nn.Linear):
    """A layer of low-rank adapters: leaving training adds their product to its weights, in place."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width)
        self.low = nn.Parameter(torch.randn(width, 1))
        self.calls = 0
        self.merged = False

    def train(self, mode: bool = True) -> Merging:
        super().train(mode)
        if self.merged is mode:
            self.weight.data += (-1 if mode else 1) * self.low.data @ self.low.data.T
            self.merged = not mode
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        assert self.merged, "it is exported in evaluation mode"
        return super().forward(x)


class Network(nn.Module):
    """A frozen batch norm, a normalized weight, adapters, and an operator of choice."""

    def __init__(self, last: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # this way of normalizing weights is deprecated
            self.normalized = nn.utils.weight_norm(nn.Linear(4, 4))
        self.merging = Merging(4)
        self.trained, self.frozen = nn.BatchNorm1d(4), nn.BatchNorm1d(4).eval()
        self.frozen.weight.requires_grad = False
        self.dropout = nn.Dropout()
        self.register_buffer("steps", torch.zeros(1), persistent=False)
        self.last = last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.trained(self.merging(self.normalized(x))))
        return self.last(self.frozen(x) + self.steps)


def snapshot(network: nn.Module) -> Any:
    """Return all that a user can see of a module: flags, hooks and attributes of each part, every tensor's bytes."""

    def seen(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        grad = None if value.grad is None else value.grad.numpy().tobytes()
        return id(value), value.detach().numpy().tobytes(), value.requires_grad, grad

    return [
        {
            name: {key: seen(item) for key, item in value.items()}
            if isinstance(value, dict)
            else seen(value)
            for name, value in vars(part).items()
        }
        for part in network.modules()
    ]


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (torch.relu, ""),
        (torch.fft.rfft, "TVM's PyTorch frontend has no operator _fft_r2c"),
        (torch.special.zeta, "example inputs that torch.export takes, found special_zeta"),
    ],
    ids=["compiled", "refused by TVM", "refused by torch.export"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_users_module_stays_as_it_was(
    last: Callable[[torch.Tensor], torch.Tensor], message: str, folder: Path
) -> None:
    torch.manual_seed(0)
    network = Network(last)
    x = torch.randn(3, 4)
    network.normalized(x).sum().backward()  # its weight is no leaf of the graph now
    before, generator = snapshot(network), torch.get_rng_state()
    threads, is_grad = torch.get_num_threads(), torch.is_grad_enabled()
    if message:
        with pytest.raises(TencostError, match=message):
            tencost.compile(network, (x,))
    else:
        fast = tencost.compile(network, (x,))
    assert torch.equal(torch.get_rng_state(), generator)
    assert snapshot(network) == before
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == (threads, is_grad)
    if not message:
        torch.testing.assert_close(fast(x), network.eval()(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_module_that_cannot_be_copied_is_refused(folder: Path) -> None:
    module = nn.Linear(2, 2)
    module.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"copy\.deepcopy .*cannot pickle.*torch\.export\.save"):
        tencost.compile(module, (torch.ones(1, 2),))
    assert module.training


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": None}, TypeError, "expected the input x, float32 .* found none"),
        ({"mask": np.zeros(1)}, TypeError, "found 0 by position and x, other, mask by name"),
        (
            {"x": np.zeros((1, 3, 16, 16))},
            TypeError,
            "input x: expected numbers of float32, found float64",
        ),
        (
            {"x": np.zeros((2, 3, 16, 16), np.float32)},
            ValueError,
            r"shape \[1, 3, 16, 16\], found \[2, 3, 16, 16\]",
        ),
    ],
)
def test_wrong_arguments_are_named(
    change: dict[str, Any], error: type[Exception], message: str, fast: CompiledNetwork
) -> None:
    values = {name: value for name, value in (arguments() | change).items() if value is not None}
    with pytest.raises(error, match=message):
        fast(**values)


def test_a_file_of_torch_export_is_trusted_by_either_word(folder: Path) -> None:
    module, x = torch.nn.Linear(3, 4).eval(), torch.ones(2, 3)
    torch.export.save(torch.export.export(module, (x,)), folder / "linear.pt2")
    with pytest.raises(UntrustedError, match=r"network.trusted=true \(in Python trusted=True\)"):
        tencost.compile(folder / "linear.pt2")
    for asked in ({"trusted": True}, {"overrides": ["network.trusted=true"]}):
        found = tencost.compile(folder / "linear.pt2", **asked)(x)
        torch.testing.assert_close(found, module(x).detach(), rtol=1e-4, atol=1e-5)


def test_what_is_no_library_or_network(fast: CompiledNetwork, tmp_path: Path) -> None:
    with pytest.raises(TuneError, match=r"expected a library .* found none"):
        tencost.load(tmp_path / "none.so")
    lonely = tmp_path / "lonely.so"
    lonely.write_bytes(b"no library")
    with pytest.raises(TuneError, match="Copy it with the library"):
        tencost.load(lonely)
    description = json.loads(fast.path.with_suffix(".json").read_text())
    del description["sha256"]  # descriptions of earlier versions have none
    lonely.with_suffix(".json").write_text(json.dumps(description))
    with pytest.raises(TuneError, match=r"cannot load .* Compile it again"):
        tencost.load(lonely)
    with pytest.raises(ConfigError, match=r"expected a file that ends in \.onnx, \.pt2, \.npz"):
        tencost.compile(tmp_path / "model.txt")
    with pytest.raises(ConfigError, match=r"example inputs to export Linear with, found none"):
        tencost.compile(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match=r"tuple of example inputs .* found Tensor"):
        tencost.compile(nn.Linear(2, 2), torch.ones(3, 2))  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"Linear and example inputs that torch\.export takes, .*dim"
    ):
        tencost.compile(nn.Linear(2, 2), (torch.ones(3, 5),))
    with pytest.raises(
        ConfigError, match=r"expected a list of overrides, found 'network\.batch=1'"
    ):
        tencost.compile(tmp_path / "model.onnx", overrides="network.batch=1")
    for overrides in (None, 5, [5]):
        with pytest.raises(ConfigError, match=r"list of overrides, found .*\['network\.batch=8'\]"):
            tencost.compile(tmp_path / "model.onnx", overrides=overrides)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"or an nn\.Module, found int"):
        tencost.compile(3)
    (tmp_path / "circle.onnx").symlink_to("circle.onnx")
    with pytest.raises(ConfigError, match=r"expected a file at .*circle\.onnx"):
        tencost.compile(tmp_path / "circle.onnx")


def test_loading_prints_no_line_for_each_weight(
    fast: CompiledNetwork, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TVM's loader warns "Scope Loaded" once for each constant; another message is still shown."""
    import tvm

    load_module = tvm.runtime.load_module

    def load(path: str) -> Any:
        os.write(2, b"another message\n")
        return load_module(path)

    monkeypatch.setattr(tvm.runtime, "load_module", load)
    capfd.readouterr()
    tencost.load(fast.path)
    assert capfd.readouterr().err == "another message\n"


def test_a_process_without_stderr_loads_a_library(fast: CompiledNetwork) -> None:
    code = (
        f"{LEAN}import os, tencost; os.close(2); print(tencost.load({str(fast.path)!r}).outputs[1])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "float32 []\n"
