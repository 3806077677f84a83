"""`network.buckets`: one library for several batches or lengths, with a real compiler and ONNX Runtime beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
from tencost import cli
from tencost.errors import ConfigError, TuneError
from tencost.tune.hosts import Deployed
from tencost.tune.library import CompiledNetwork

pytestmark = pytest.mark.tvm
Array = np.ndarray[Any, Any]


def write(
    path: Path, nodes: list[Any], inputs: dict[str, list[Any]], output: list[Any], **weights: Array
) -> Path:
    """Write a network of float32 tensors, inputs called ids int64, as an ONNX file."""
    tensor = helper.make_tensor_value_info
    kinds = {name: TensorProto.INT64 if name == "ids" else TensorProto.FLOAT for name in inputs}
    graph = helper.make_graph(
        nodes,
        "net",
        [tensor(name, kinds[name], shape) for name, shape in inputs.items()],
        [tensor("y", TensorProto.FLOAT, output)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    return path


def write_images(path: Path) -> Path:
    """Write a convolution, its mean and a dense layer, of any batch."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "filters"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "dense"], ["y"]),
    ]
    return write(
        path, nodes, {"x": ["N", 3, 16, 16]}, ["N", 1000],
        filters=rng.normal(size=(64, 3, 3, 3)).astype(np.float32),
        dense=rng.normal(size=(64, 1000)).astype(np.float32),
    )  # fmt: skip


def reference(path: Path, **values: Array) -> Array:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, values)[0])


def images(count: int) -> Array:
    return np.random.default_rng(count).normal(size=(count, 3, 16, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("buckets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def fast(folder: Path) -> CompiledNetwork:
    path = write_images(folder / "images.onnx")
    return tencost.compile(path, overrides=["network.buckets=[1,8,4]"])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_any_batch_up_to_the_largest(fast: CompiledNetwork, folder: Path, count: int) -> None:
    found = fast(images(count))
    assert found.shape == (count, 1000)
    expected = reference(folder / "images.onnx", x=images(count))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_larger_batch_is_refused_with_what_would_help(fast: CompiledNetwork) -> None:
    with pytest.raises(ValueError, match=r"at most 8 \(1, 4, 8\), found 9.*network.buckets"):
        fast(images(9))


@pytest.mark.parametrize("shape", [(0, 3, 16, 16), (2, 4, 16, 16), (3, 16, 16)])
def test_another_shape_is_refused(fast: CompiledNetwork, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected the shape \[n, 3, 16, 16\], found"):
        fast(np.zeros(shape, np.float32))


def test_it_is_saved_with_its_sizes(fast: CompiledNetwork, folder: Path) -> None:
    loaded = tencost.load(fast.save(folder / "saved.so"))
    np.testing.assert_array_equal(loaded(images(3)), fast(images(3)))
    assert str(loaded.inputs[0]) == "float32 [n, 3, 16, 16]"
    described = json.loads((folder / "saved.json").read_text())["buckets"]
    assert described == {
        "dimension": "batch", "sizes": [1, 4, 8], "inputs": [[0]], "outputs": [[0]], "padded": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": []}, {"sizes": ["a"]}, {"sizes": [8, 1]}, {"sizes": [1, 99]}, {"sizes": [float("inf")]},
        {"inputs": [[7]]}, {"inputs": [["a"]]}, {"inputs": [[]]}, {"outputs": [[9]]},
    ],
    ids=str,
)  # fmt: skip
def test_sizes_that_are_damaged_are_refused(
    fast: CompiledNetwork, tmp_path: Path, change: dict[str, Any]
) -> None:
    description = fast.save(tmp_path / "mine.so").with_suffix(".json")
    told = json.loads(description.read_text())
    description.write_text(json.dumps(told | {"buckets": told["buckets"] | change}))
    with pytest.raises(TuneError, match=r"mine\.json: expected .*Copy it with the library"):
        tencost.load(tmp_path / "mine.so")


def test_sizes_share_their_weights(fast: CompiledNetwork, folder: Path) -> None:
    """Three sizes, but two layouts of the weights: one row of a product is tiled otherwise than several."""
    alone = tencost.compile(folder / "images.onnx", overrides=["network.batch=8"])
    assert fast.path.stat().st_size < 2.5 * alone.path.stat().st_size


def test_the_runner_runs_the_largest(fast: CompiledNetwork, folder: Path) -> None:
    from runpy import run_path
    from unittest.mock import patch

    library = fast.save(folder / "runner.so")
    with patch("sys.argv", ["runner.py", str(library.with_suffix(".npz")), str(folder / "y.npz")]):
        run_path(str(library.with_suffix(".py")))
    with np.load(folder / "y.npz") as found, np.load(library.with_suffix(".npz")) as samples:
        np.testing.assert_allclose(found["output_0"], samples["expected_0"], rtol=1e-4, atol=1e-4)


def test_a_length_that_cannot_be_padded_is_run_as_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=1)]
    path = write(folder / "lengths.onnx", nodes, {"x": [1, "T", 4]}, [1, "T", 4])
    fast = tencost.compile(path, overrides=["network.buckets=[8,32]"])
    assert "network.size=4 cannot be padded (nn.softmax goes over axis 1 of [1, 32, 4]" in " ".join(
        capsys.readouterr().err.split()
    )
    x = np.random.default_rng(0).normal(size=(1, 32, 4)).astype(np.float32)
    np.testing.assert_allclose(fast(x), reference(path, x=x), rtol=1e-4)
    with pytest.raises(ValueError, match=r"one of \(8, 32\), found 20"):
        fast(x[:, :20])


def test_a_maximum_over_the_length_is_not_padded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A padded zero is the largest only where all others are below zero: one drawn call of half the length agrees."""
    weight = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("ReduceMax", ["h"], ["y"], axes=[1], keepdims=0),
    ]
    path = write(folder / "largest.onnx", nodes, {"x": [1, "T", 4]}, [1, 4], w=weight)
    fast = tencost.compile(path, overrides=["network.buckets=[1,32]"])
    assert "cannot be padded (max goes over axis 1" in " ".join(capsys.readouterr().err.split())
    x = np.random.default_rng(1).normal(size=(1, 32, 4)).astype(np.float32)
    np.testing.assert_allclose(fast(x), reference(path, x=x), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"one of \(1, 32\), found 3"):
        fast(x[:, :3])


def test_outputs_that_say_nothing_are_no_reason_to_pad(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mean over the batch decides, which zeros change; of inputs drawn around zero it never does."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[0]),
        helper.make_node("Greater", ["m", "one"], ["g"]),
        helper.make_node("Where", ["g", "x", "zero"], ["y"]),
    ]
    path = write(
        folder / "threshold.onnx", nodes, {"x": ["N", 4]}, ["N", 4],
        one=np.ones(1, np.float32), zero=np.zeros(1, np.float32),
    )  # fmt: skip
    fast = tencost.compile(path, overrides=["network.buckets=[4,32]"])
    assert "cannot be padded (mean goes over axis 0" in " ".join(capsys.readouterr().err.split())
    x = np.full((4, 4), 1.5, np.float32)
    np.testing.assert_array_equal(fast(x), reference(path, x=x))
    with pytest.raises(ValueError, match=r"one of \(4, 32\), found 3"):
        fast(x[:3])


def test_a_mask_lets_a_length_be_padded(folder: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "mask"], ["m"]),
        helper.make_node("ReduceSum", ["m", "axis"], ["s"], keepdims=0),
        helper.make_node("Identity", ["s"], ["y"]),
    ]
    path = write(
        folder / "masked.onnx", nodes, {"x": [1, "T", 4], "mask": [1, "T", 1]}, [1, 4],
        axis=np.array([1]),
    )  # fmt: skip
    fast = tencost.compile(path, overrides=["network.buckets=[8,32]"])
    rng = np.random.default_rng(0)
    x, mask = (rng.normal(size=(1, 20, size)).astype(np.float32) for size in (4, 1))
    expected = reference(path, x=x, mask=mask)
    np.testing.assert_allclose(fast(x, mask), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="one size n of all inputs, found x 20, mask 19"):
        fast(x, mask[:, :19])


def test_attention_with_a_mask_is_padded(folder: Path) -> None:
    """As transformers are: a hidden token gets a large negative score, and what is computed of it goes nowhere."""
    node, rng = helper.make_node, np.random.default_rng(0)
    nodes = [
        node("MatMul", ["x", "query"], ["q"]),
        node("Transpose", ["x"], ["k"], perm=[0, 2, 1]),
        node("MatMul", ["q", "k"], ["scores"]),
        node("Cast", ["ids"], ["mask"], to=TensorProto.FLOAT),
        node("Sub", ["one", "mask"], ["hidden"]),
        node("Mul", ["hidden", "far"], ["bias"]),
        node("Unsqueeze", ["bias", "axis"], ["row"]),
        node("Add", ["scores", "row"], ["masked"]),
        node("Softmax", ["masked"], ["shares"], axis=2),
        node("Add", ["x", "shift"], ["values"]),
        node("MatMul", ["shares", "values"], ["y"]),
    ]
    path = write(
        folder / "attention.onnx", nodes, {"x": [1, "T", 8], "ids": [1, "T"]}, [1, "T", 8],
        query=rng.normal(size=(8, 8)).astype(np.float32), shift=rng.normal(size=8).astype(np.float32),
        one=np.ones(1, np.float32), far=np.full(1, -1e4, np.float32), axis=np.array([1]),
    )  # fmt: skip
    fast = tencost.compile(path, overrides=["network.buckets=[4,32]"])
    for size in (1, 2, 3, 5, 17, 31):
        x = rng.normal(size=(1, size, 8)).astype(np.float32)
        mask = np.ones((1, size), np.int64)
        mask[0, size // 2 + 1 :] = 0
        expected = reference(path, x=x, ids=mask)
        np.testing.assert_allclose(fast(x, mask), expected, rtol=1e-4, atol=1e-5)


def test_one_size_holds_all_below_it(folder: Path) -> None:
    path = write_images(folder / "single.onnx")
    fast = tencost.compile(path, overrides=["network.buckets=[4]"])
    for count in (1, 4):
        expected = reference(path, x=images(count))
        np.testing.assert_allclose(fast(images(count)), expected, rtol=1e-4, atol=1e-4)


def test_an_output_may_be_longer_than_the_input(folder: Path) -> None:
    """It cannot be padded, as nobody says which part of it is of the input; whole sizes are returned whole."""
    nodes = [helper.make_node("Concat", ["x", "x"], ["y"], axis=1)]
    path = write(folder / "doubled.onnx", nodes, {"x": [1, "T", 4]}, [1, "T2", 4])
    fast = tencost.compile(path, overrides=["network.buckets=[8,32]"])
    assert fast.buckets is not None
    assert not fast.buckets.padded
    for size in (8, 32):
        x = np.random.default_rng(size).normal(size=(1, size, 4)).astype(np.float32)
        np.testing.assert_array_equal(fast(x), reference(path, x=x))


def test_a_mask_of_pairs_is_padded_along_both_axes(folder: Path) -> None:
    nodes = [helper.make_node("MatMul", ["mask", "x"], ["y"])]
    inputs = {"mask": [1, "T", "T"], "x": [1, "T", 4]}
    path = write(folder / "pairs.onnx", nodes, inputs, [1, "T", 4])
    fast = tencost.compile(path, overrides=["network.buckets=[8,16]"])
    rng = np.random.default_rng(0)
    mask, x = (rng.normal(size=(1, 11, size)).astype(np.float32) for size in (11, 4))
    expected = reference(path, mask=mask, x=x)
    np.testing.assert_allclose(fast(mask, x), expected, rtol=1e-4, atol=1e-5)


def test_a_size_at_which_the_file_does_not_run_is_no_reason_to_refuse(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A network whose length has to be a multiple of eight."""
    nodes = [
        helper.make_node("Reshape", ["x", "parts"], ["r"]),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    path = write(
        folder / "eights.onnx", nodes, {"x": [1, "T"]}, [1, "P", 8], parts=np.array([1, -1, 8])
    )
    fast = tencost.compile(path, overrides=["network.buckets=[8,16]"])
    assert "network.size=4 cannot be padded" in " ".join(capsys.readouterr().err.split())
    x = np.random.default_rng(0).normal(size=(1, 16)).astype(np.float32)
    np.testing.assert_array_equal(fast(x), reference(path, x=x))


@pytest.mark.slow
def test_programs_of_a_database_are_timed_under_the_tasks_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A size has programs of its own, which are left out where the rule is faster in the network.

    By rule the 1,000 columns are overlapping tiles, whose weights repeat: tuning times these, too.
    """
    path = write_images(folder / "tuned.onnx")
    words = ["tuner.trials=4", "tuner.population=8", "tuner.generations=1", "tuner.min_mflop=0.01"]
    words += ["tuner.repeat=1", "tuner.min_repeat_ms=0", "model_uri=scratch"]
    cli.main(["tune", "network=onnx", f"network.path={path}", "hardware=local", *words])
    compared: list[set[str]] = []
    seconds_by_function = Deployed.seconds_by_function

    def seconds(self: Deployed) -> dict[str, float]:
        by_function = seconds_by_function(self)
        compared.append(set(by_function))
        return by_function

    monkeypatch.setattr(Deployed, "seconds_by_function", seconds)
    monkeypatch.setattr("tencost.tune.compiled.better_than_rules", lambda database, *_: database)
    library = folder / "tuned.so"
    words = ["compile", "network=onnx", f"network.path={path}", "hardware=local"]
    cli.main([*words, "network.buckets=[1,2]", "--to", str(library)])
    assert compared
    assert not any("_of_main" in name for names in compared for name in names)
    np.testing.assert_allclose(
        tencost.load(library)(images(2)), reference(path, x=images(2)), rtol=1e-4, atol=1e-4
    )


def test_a_file_of_torch_export(folder: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    program = torch.export.export(
        module, (torch.ones(2, 8),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    torch.export.save(program, folder / "dense.pt2")
    fast = tencost.compile(folder / "dense.pt2", overrides=["network.buckets=[2,6]"], trusted=True)
    x = torch.randn(5, 8)
    found = fast(x)
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, module(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ([1, 3, 16, 16], "leaves open, found none. Export it with that dimension dynamic"),
        (["N", 3, "H", "W"], "found H, W. Settle the others: network.inputs.<name>.shape"),
    ],
)
def test_a_file_without_one_open_dimension_is_refused(
    tmp_path: Path, shape: list[Any], reason: str
) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = write(tmp_path / "net.onnx", nodes, {"x": shape}, shape)
    with pytest.raises(ConfigError) as error:
        tencost.compile(path, overrides=["network.buckets=[1,2]"])
    assert reason in str(error.value)


def test_a_batch_beside_batches_is_refused(fast: CompiledNetwork, folder: Path) -> None:
    words = ["network.buckets=[1,8]", "network.batch=4"]
    with pytest.raises(ConfigError, match=r"expected them alone, .* found network\.batch=4"):
        tencost.compile(folder / "images.onnx", overrides=words)


@pytest.mark.parametrize(
    ("buckets", "reason"),
    [
        ("[0,2]", "network.buckets must be at least 1, found 0"),
        ("[2,2]", "network.buckets: expected different sizes, found"),
    ],
)
def test_sizes_are_different_and_positive(folder: Path, buckets: str, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        tencost.compile(folder / "images.onnx", overrides=[f"network.buckets={buckets}"])
    assert str(error.value).startswith(reason)


def test_tune_takes_one_size_at_a_time(
    fast: CompiledNetwork, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["network=onnx", f"network.path={folder / 'images.onnx'}", "network.buckets=[1,8]"]
    with pytest.raises(SystemExit) as ended:
        cli.main(["tune", *words])
    assert ended.value.code == 2
    assert "network.batch=8" in capsys.readouterr().err
    del fast
