"""Recurrent layers compute what ONNX Runtime and PyTorch compute, whatever their attributes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from tencost.config import NetworkConfig
from tencost.errors import MeasureError
from tencost.networks.network import load_network
from tencost.networks.recurrent import MARK
from tencost.programs.codegen.rules import schedule_rest
from tencost.tune.deploy import compile_network, output_agreement
from tencost.tune.hosts import Deployed

pytestmark = pytest.mark.tvm
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, INPUTS, HIDDEN = 5, 9, 4, 19  # neither a whole number of vectors nor of rows


class Layers:
    """A model of layers side by side that read one input."""

    def __init__(self, dtype: Any = np.float32) -> None:
        self.rng = np.random.default_rng(0)
        self.dtype = np.dtype(dtype)
        self.nodes: list[Any] = []
        self.tensors: dict[str, np.ndarray] = {}
        self.outputs: list[Any] = []

    def constant(self, *shape: int) -> str:
        return self.stored(self.rng.uniform(-1, 1, shape).astype(self.dtype))

    def stored(self, array: np.ndarray) -> str:
        self.tensors[name := f"w{len(self.tensors)}"] = array
        return name

    def add(
        self, kind: str, *, reads: str = "", writes: tuple[int, ...] = (0, 1, 2), **settings: Any
    ) -> None:
        """Add a layer that reads these of its optional inputs (B, lengths, h, c, P) and writes these outputs."""
        both = 2 if settings.get("direction") == "bidirectional" else 1
        columns, state = GATES[kind] * HIDDEN, (both, BATCH, HIDDEN)
        optional: dict[str, Callable[[], str]] = {
            "B": lambda: self.constant(both, 2 * columns),
            "l": lambda: self.stored(np.arange(BATCH, dtype=np.int32) * 2 % (STEPS + 1)),
            "h": lambda: self.constant(*state),
            "c": lambda: self.constant(*state),
            "P": lambda: self.constant(both, 3 * HIDDEN),
        }
        names = ["x", self.constant(both, columns, INPUTS), self.constant(both, columns, HIDDEN)]
        names += [make() if letter in reads else "" for letter, make in optional.items()]
        names = names[:8] if kind == "LSTM" else names[:6]
        shapes = [(STEPS, *state[:1], BATCH, HIDDEN), state, state][: 3 if kind == "LSTM" else 2]
        index = len(self.nodes)
        outputs = [f"y{index}_{place}" if place in writes else "" for place, _ in enumerate(shapes)]
        self.nodes.append(helper.make_node(kind, names, outputs, hidden_size=HIDDEN, **settings))
        self.outputs += [
            value(name, shape, self.dtype)
            for name, shape in zip(outputs, shapes, strict=True)
            if name
        ]

    def save(self, path: Path) -> None:
        graph = helper.make_graph(
            self.nodes, "layers", [value("x", (STEPS, BATCH, INPUTS), self.dtype)], self.outputs,
            [numpy_helper.from_array(array, name) for name, array in self.tensors.items()],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def value(name: str, shape: tuple[int, ...], dtype: Any) -> Any:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
    )


def check(
    path: Path,
    target: dict[str, Any],
    computed_by: str,
    source: str = "onnx",
    limit: float = 1e-5,
    cores: int = 1,
) -> None:
    """Compile a file by rule and compare all outputs."""
    config = NetworkConfig(name="mine", source=source, path=path.name, trusted=True)
    network = load_network(config, path.parent)
    assert network.computed_by == computed_by
    built = compile_network(network, target | {"num-cores": cores}, None, by_rule=True)
    outputs = Deployed(built, network, cores).outputs()
    for name, output, expected in zip(network.outputs, outputs, network.expected, strict=True):
        agreement = output_agreement(output, expected)
        assert agreement.max_abs < limit * np.max(np.abs(expected)), (name, agreement)


def test_directions_and_items_are_divided_among_cores(tmp_path: Path) -> None:
    """Each goes through all steps by itself: no core waits for another one at a step."""
    layers = Layers()
    layers.add("GRU", direction="bidirectional")
    layers.save(tmp_path / "gru.onnx")
    config = NetworkConfig(name="mine", source="onnx", path="gru.onnx")
    mod = load_network(config, tmp_path).mod
    for cores in (1, 2):
        scheduled = schedule_rest(mod, {"kind": "llvm", "num-cores": cores})
        (layer,) = (
            function.script()
            for function in scheduled.functions.values()
            if MARK in dict(function.attrs or {})
        )
        assert layer.count("T.parallel(") == cores - 1


@pytest.mark.parametrize("cores", [1, 2])
def test_lstms(tmp_path: Path, target: dict[str, Any], cores: int) -> None:
    layers = Layers()
    layers.add("LSTM")
    layers.add("LSTM", reads="B", direction="reverse", writes=(1,))
    layers.add("LSTM", reads="BhcP", direction="bidirectional")
    layers.add("LSTM", reads="BlhcP", direction="bidirectional")
    layers.add("LSTM", reads="Bl", direction="reverse", writes=(0, 2))
    layers.add("LSTM", reads="BP", clip=0.3)
    layers.add("LSTM", reads="BhP", input_forget=1)
    layers.add(
        "LSTM", reads="B", activations=["HardSigmoid", "Softsign", "relu"], activation_alpha=[0.3]
    )
    layers.save(tmp_path / "lstm.onnx")
    check(tmp_path / "lstm.onnx", target, "ONNX Runtime", cores=cores)


@pytest.mark.parametrize("cores", [1, 2])
def test_grus(tmp_path: Path, target: dict[str, Any], cores: int) -> None:
    layers = Layers()
    for before in (0, 1):
        layers.add("GRU", linear_before_reset=before)
        layers.add("GRU", reads="Bh", direction="bidirectional", linear_before_reset=before)
        layers.add("GRU", reads="Blh", direction="reverse", linear_before_reset=before, writes=(1,))
        layers.add("GRU", reads="B", clip=0.25, linear_before_reset=before)
    layers.save(tmp_path / "gru.onnx")
    check(tmp_path / "gru.onnx", target, "ONNX Runtime", cores=cores)


@pytest.mark.parametrize("cores", [1, 2])
def test_rnns_with_every_activation(tmp_path: Path, target: dict[str, Any], cores: int) -> None:
    layers = Layers()
    layers.add("RNN", reads="Blh", direction="bidirectional", activations=["Relu", "Tanh"])
    layers.add("RNN", reads="B", clip=0.2)
    numbers: dict[str, dict[str, list[float]]] = {
        "Affine": {"activation_alpha": [0.5], "activation_beta": [0.1]},
        "Elu": {"activation_alpha": [0.7]},
        "HardSigmoid": {"activation_alpha": [0.3], "activation_beta": [0.4]},
        "LeakyRelu": {"activation_alpha": [0.05]},
        "ScaledTanh": {"activation_alpha": [0.8], "activation_beta": [1.2]},
        "ThresholdedRelu": {"activation_alpha": [0.2]},
    }
    for name in ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus", *numbers):
        settings: dict[str, Any] = numbers.get(name, {})
        layers.add("RNN", reads="B", activations=[name], **settings)
    for name in ("Elu", "HardSigmoid", "LeakyRelu"):
        layers.add("RNN", reads="B", activations=[name])
    layers.save(tmp_path / "rnn.onnx")
    check(tmp_path / "rnn.onnx", target, "ONNX Runtime", cores=cores)


@pytest.mark.parametrize(
    ("dtype", "computed_by", "limit"),
    [(np.float16, "ONNX Runtime", 2e-3), (np.float64, "ONNX's reference", 1e-12)],
)
def test_other_types(
    dtype: Any, computed_by: str, limit: float, tmp_path: Path, target: dict[str, Any]
) -> None:
    layers = Layers(dtype)
    layers.add("GRU", reads="Bh", direction="bidirectional")
    layers.add("LSTM", reads="BhcP")
    layers.save(tmp_path / "typed.onnx")
    check(tmp_path / "typed.onnx", target, computed_by, limit=limit)


class Recurrent(torch.nn.Module):
    """Layers of a kind, and a dense layer of all that they return."""

    def __init__(self, kind: str, *, batch_first: bool, **settings: Any) -> None:
        super().__init__()
        layer = getattr(torch.nn, kind)
        self.layers = layer(7, 24, 2, bidirectional=True, batch_first=batch_first, **settings)
        self.dense = torch.nn.Linear(48, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, state = self.layers(x)
        hidden, *cell = state if isinstance(state, tuple) else (state,)
        return self.dense(y), torch.cat([hidden, *cell])


@pytest.mark.parametrize("source", ["onnx", "torch_export"])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [("LSTM", {}), ("LSTM", {"bias": False}), ("GRU", {}), ("RNN", {"nonlinearity": "relu"})],
)
@pytest.mark.parametrize("batch_first", [False, True])
def test_networks_of_pytorch(
    kind: str,
    settings: dict[str, Any],
    batch_first: bool,
    source: str,
    tmp_path: Path,
    target: dict[str, Any],
) -> None:
    """Two bidirectional layers, exported in both ways; few steps, as torch.export writes each of them down."""
    torch.manual_seed(0)
    network = Recurrent(kind, batch_first=batch_first, **settings).eval()
    example = (torch.randn(2, 3, 7),)
    path = tmp_path / ("layers.onnx" if source == "onnx" else "layers.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if source == "onnx":
            torch.onnx.export(network, example, path, dynamo=False)
        else:
            torch.export.save(torch.export.export(network, example), path)
    check(path, target, "ONNX Runtime" if source == "onnx" else "PyTorch", source)


def test_lengths_that_are_inputs(tmp_path: Path, target: dict[str, Any]) -> None:
    layers = Layers()
    layers.add("LSTM", reads="Blhc", direction="bidirectional")
    (name,) = (name for name, array in layers.tensors.items() if array.dtype == np.int32)
    del layers.tensors[name]
    path = tmp_path / "lengths.onnx"
    layers.save(path)
    model = onnx.load(path)
    model.graph.input.append(value(name, (BATCH,), np.int32))
    onnx.save(model, path)
    check(path, target, "ONNX Runtime")


def test_a_layer_of_constants_is_not_folded(tmp_path: Path, target: dict[str, Any]) -> None:
    """ONNX's reference, which folds constants, looks at no clip."""
    layers = Layers()
    layers.add("LSTM", reads="B", clip=0.1)
    layers.nodes[0].input[0] = layers.constant(STEPS, BATCH, INPUTS)
    layers.nodes.append(helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0))
    layers.nodes.append(helper.make_node("Add", ["y0_0", "largest"], ["sum"]))
    layers.outputs = [value("sum", (STEPS, 1, BATCH, HIDDEN), np.float32)]
    layers.save(tmp_path / "constant.onnx")
    check(tmp_path / "constant.onnx", target, "ONNX Runtime")


def test_the_function_is_no_task_and_runs_on_cpus(tmp_path: Path, target: dict[str, Any]) -> None:
    layers = Layers()
    layers.add("GRU", reads="B")
    layers.save(tmp_path / "gru.onnx")
    config = NetworkConfig(name="mine", source="onnx", path="gru.onnx")
    tasks = load_network(config, tmp_path).tasks(target)
    assert tasks
    assert not [task.name for task in tasks if "gru" in task.name]
    with pytest.raises(MeasureError, match="expected operators that run on cuda, found GRU, which"):
        load_network(config, tmp_path, target={"kind": "cuda"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"direction": "backward"}, "LSTM with direction=backward .forward, reverse, bidirect"),
        ({"activations": ["Tanh"]}, "LSTM with 1 activations .3 a direction would do"),
        ({"activations": ["Tanh", "Sine", "Tanh"]}, "LSTM with activation sine .affine, "),
        ({"activations": ["Affine", "Tanh", "Tanh"]}, "activation affine without activation_alpha"),
        ({"activation_alpha": [1.0]}, "LSTM with more activation_alpha or activation_beta"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    layers = Layers()
    layers.add("LSTM", **settings)
    layers.save(tmp_path / "lstm.onnx")
    with pytest.raises(MeasureError, match=message):
        load_network(NetworkConfig(name="mine", source="onnx", path="lstm.onnx"), tmp_path)


def test_projections_of_pytorch_are_refused(tmp_path: Path) -> None:
    layer = torch.nn.LSTM(4, 8, proj_size=3).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(layer, (torch.randn(5, 2, 4),))
        torch.export.save(program, tmp_path / "projected.pt2")
    config = NetworkConfig(name="mine", source="torch_export", path="projected.pt2", trusted=True)
    with pytest.raises(MeasureError, match="LSTM with proj_size"):
        load_network(config, tmp_path)
