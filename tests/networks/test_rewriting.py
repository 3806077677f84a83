"""A network written in other ways computes the same; batch norms and changes of layout are gone."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import tvm
import tvm_ffi
from test_definitions import small
from tvm import relax
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from relax_networks import run, two_layers, written
from tencost.config import GraphChoice, NetworkConfig
from tencost.config.composition import compose
from tencost.errors import ConfigError, MeasureError
from tencost.networks import rewriting
from tencost.networks.batch_norms import fold_batch_norms
from tencost.networks.bindings import bindings_of
from tencost.networks.lowering import fuse
from tencost.networks.network import load_network, lowered, variant_name
from tencost.networks.rewriting import (
    candidates,
    with_packed_weights,
    with_weights_computed,
    written_as,
)
from tencost.networks.sources import transformers
from tencost.networks.sources.saved import save_network
from tencost.networks.torch_modules import (
    module_to_onnx,
    module_to_relax,
    positional_module,
)
from tencost.programs.codegen.rules import schedule_rest
from tencost.programs.refusals import TvmRefusal
from tencost.tune.deploy import compile_network, meaningless, output_agreement
from tencost.tune.hosts import Deployed

pytestmark = [pytest.mark.tvm, pytest.mark.usefixtures("networks_read_once")]
CHOICES = [GraphChoice.folded, GraphChoice.channels_last]


def definition(name: str, choice: str, size: int = 64) -> NetworkConfig:
    config, _ = compose([f"network={name}", f"network.size={size}", f"network.graph={choice}"])
    return config.network


def operators(mod: Any) -> Counter[str]:
    found: Counter[str] = Counter()

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call):
            found[str(getattr(node.op, "name", ""))] += 1

    relax.analysis.post_order_visit(mod["main"].body, visit)
    return found


@pytest.fixture(scope="module")
def mobilenet() -> Any:
    return transformers._read(definition("mobilenet_v2", "as_is"))


@pytest.mark.parametrize("choice", CHOICES)
def test_batch_norms_are_in_the_weights(mobilenet: Any, choice: GraphChoice) -> None:
    before = operators(mobilenet.mod)
    assert before["relax.nn.batch_norm"] == before["relax.nn.conv2d"] == 52
    mod, params = written_as(mobilenet.mod, mobilenet.params, choice)
    after = operators(mod)
    assert after["relax.nn.batch_norm"] == 0
    assert after["relax.nn.conv2d"] == 52
    # Nothing but the weights is computed beside the network: one array and one shift a convolution.
    assert len(params) == 2 * 52
    assert after["relax.add"] == before["relax.add"] + 52
    assert not {"relax.sqrt", "relax.divide", "relax.multiply"} & set(after)


class Rows(torch.nn.Module):
    """A linear layer whose rows are normalized together, as LeViT's are."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(12, 20, bias=bias)
        self.norm = drawn(torch.nn.BatchNorm1d(20))

    def forward(self, x: Any) -> Any:
        sums = self.linear(x)
        return torch.relu(self.norm(sums.flatten(0, 1)).reshape_as(sums))


def drawn(norm: Any) -> Any:
    torch.nn.init.uniform_(norm.running_var, 0.5, 2.0)
    torch.nn.init.normal_(norm.running_mean)
    torch.nn.init.uniform_(norm.weight, 0.5, 2.0)
    return norm


def operators_when_folded(network: Any, x: Any, target: dict[str, Any]) -> Counter[str]:
    """Return the operators of a network with one batch norm, folded; it computes what PyTorch does."""
    with torch.no_grad():
        expected = network(x).numpy()
    module, _ = positional_module(network, lambda net, tensors: {"y": net(*tensors)})
    mod, params = module_to_relax("normed", module.eval(), (x,))
    assert operators(mod)["relax.nn.batch_norm"] == 1
    mod, params = written_as(mod, params, GraphChoice.folded)
    built = tvm.compile(fuse(mod), target=Target(target))
    machine = relax.VirtualMachine(built, tvm.cpu())
    (output,) = machine["main"](tvm.runtime.tensor(x.numpy()), *params)
    np.testing.assert_allclose(output.numpy(), expected, rtol=1e-4, atol=1e-5)
    return operators(mod)


WITH_NORMS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "rows": (lambda: Rows(bias=False), (2, 7, 12)),
    "rows and a bias": (lambda: Rows(bias=True), (2, 7, 12)),
    "perceptron": (
        lambda: torch.nn.Sequential(torch.nn.Linear(12, 20), drawn(torch.nn.BatchNorm1d(20))),
        (5, 12),
    ),
    "convolution and a bias": (
        lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), drawn(torch.nn.BatchNorm2d(8))),
        (2, 3, 9, 9),
    ),
}


@pytest.mark.parametrize("name", WITH_NORMS)
def test_batch_norms_of_products_are_in_the_weights(name: str, target: dict[str, Any]) -> None:
    torch.manual_seed(0)
    make, shape = WITH_NORMS[name]
    found = operators_when_folded(make().eval(), torch.randn(shape), target)
    assert found["relax.nn.batch_norm"] == found["relax.divide"] == 0
    assert found["relax.add"] == 1


def test_a_product_of_stacks_stays_one_where_it_is_reshaped_again() -> None:
    """Else it would be computed twice, or its detour kept."""

    class Twice(torch.nn.Module):
        def forward(self, q: Any, k: Any) -> Any:
            scores = q @ k.transpose(-2, -1)
            return scores.softmax(-1), scores.reshape(2, 3, -1).mean(-1)

    tensors = (torch.randn(2, 3, 8, 5), torch.randn(2, 3, 9, 5))
    module, _ = positional_module(
        Twice(), lambda net, given: dict(zip("ab", net(*given), strict=True))
    )
    mod, _ = written_as(*module_to_relax("twice", module.eval(), tensors), GraphChoice.folded)
    found = operators(mod)
    assert found["relax.matmul"] == found["relax.reshape"] == 1


class Others(torch.nn.Module):
    """Batch norms of what is no product's columns, or of a product that is used otherwise, too."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.linear, self.convolution = torch.nn.Linear(12, 20), torch.nn.Conv2d(3, 8, 3)
        self.norm: Any = {
            "used twice": lambda: drawn(torch.nn.BatchNorm1d(20)),
            "other columns": lambda: drawn(torch.nn.BatchNorm1d(10)),
            "convolution used twice": lambda: drawn(torch.nn.BatchNorm2d(8)),
            "input": lambda: drawn(torch.nn.BatchNorm1d(12)),
        }[kind]()

    def forward(self, x: Any) -> Any:
        if self.kind == "input":
            return self.linear(self.norm(x))
        if self.kind == "other columns":
            return self.norm(self.linear(x).reshape(-1, 10))
        sums = self.linear(x) if self.kind == "used twice" else self.convolution(x)
        return torch.relu(self.norm(sums)) + sums


OTHERS = {
    "used twice": (5, 12),
    "other columns": (5, 12),
    "convolution used twice": (2, 3, 9, 9),
    "input": (5, 12),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_batch_norms_are_a_product_and_a_sum(name: str, target: dict[str, Any]) -> None:
    torch.manual_seed(0)
    found = operators_when_folded(Others(name).eval(), torch.randn(OTHERS[name]), target)
    assert found["relax.nn.batch_norm"] == found["relax.divide"] == found["relax.sqrt"] == 0
    assert found["relax.multiply"] == 1


def test_weights_of_another_layout_are_not_scaled() -> None:
    """As a Relax module may have them whose kernel's axes are in another order than the data's."""
    shapes = {"x": (2, 3, 5, 5), "w": (1, 1, 3, 3)} | dict.fromkeys("gbmv", (3,))
    x, weights, *norm = (
        relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in shapes.items()
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, weights, *norm]):
        with builder.dataflow():
            sums = builder.emit(relax.op.nn.conv2d(x, weights, kernel_layout="HWIO"))
            normed = builder.emit(relax.op.nn.batch_norm(sums, *norm, 1))
            output = builder.emit_output(normed[0])
        builder.emit_func_output(output)
    folded = fold_batch_norms(builder.get())["main"]
    values = bindings_of(folded).values()
    (convolution,) = (call for call in values if getattr(call.op, "name", "") == "relax.nn.conv2d")
    assert convolution.args[1].same_as(folded.params[1])


REPEATED = {
    "the same rows": ((4, 5), (5, 6), (3, 5, 6)),
    "one row for all": ((4, 5), (1, 6), (5, 6)),
    "one row for all of a stack": ((3, 4, 5), (1, 6), (3, 5, 6)),
}
"""Shapes of rows, of a matrix, and to which it is repeated."""


@pytest.mark.parametrize("name", REPEATED)
def test_a_matrix_that_is_repeated_otherwise_stays_so(name: str, target: dict[str, Any]) -> None:
    *shapes, repeated = REPEATED[name]

    class Repeated(torch.nn.Module):
        def forward(self, x: Any, w: Any) -> Any:
            return x @ w.expand(repeated)

    tensors = tuple(torch.randn(shape) for shape in shapes)
    module, _ = positional_module(Repeated(), lambda net, given: {"y": net(*given)})
    mod, _ = written_as(*module_to_relax("repeated", module, tensors), GraphChoice.folded)
    machine = relax.VirtualMachine(tvm.compile(fuse(mod), target=Target(target)), tvm.cpu())
    (output,) = machine["main"](*(tvm.runtime.tensor(tensor.numpy()) for tensor in tensors))
    np.testing.assert_allclose(output.numpy(), Repeated()(*tensors), rtol=1e-5, atol=1e-6)


def test_a_multihead_attention_keeps_its_matrices() -> None:
    """PyTorch's exporter repeats the matrix of queries, keys and values for each token where there is a batch."""
    network = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    module, _ = positional_module(
        network, lambda net, given: {"y": net(*given, *given, *given, need_weights=False)[0]}
    )
    x = torch.randn(4, 7, 32)
    mod, params = written_as(*module_to_relax("heads", module.eval(), (x,)), GraphChoice.folded)
    assert sum(math.prod(tensor.shape) for tensor in params) == 4 * 32 * 32 + 4 * 32
    found = operators(mod)
    assert found["relax.broadcast_to"] == 0
    assert found["relax.permute_dims"] == 4  # of the heads


def test_channels_last_changes_the_layout_at_the_ends_only(mobilenet: Any) -> None:
    mod, _ = written_as(mobilenet.mod, mobilenet.params, GraphChoice.channels_last)
    after = operators(mod)
    assert after["relax.permute_dims"] <= 3
    assert after["relax.clip"] == 0
    layouts = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and str(getattr(node.op, "name", "")) == "relax.nn.conv2d":
            layouts.append((str(node.attrs.data_layout), str(node.attrs.kernel_layout)))

    relax.analysis.post_order_visit(mod["main"].body, visit)
    assert set(layouts) == {("NHWC", "HWIO")}


def test_convolutions_of_volumes_are_folded_and_have_channels_last(
    target: dict[str, Any],
) -> None:
    torch.manual_seed(0)
    convolution = torch.nn.Conv3d(3, 8, 3, stride=(1, 2, 2), padding=1, bias=False)
    norm: Any = torch.nn.BatchNorm3d(8)
    torch.nn.init.uniform_(norm.running_var, 0.5, 2.0)
    network = torch.nn.Sequential(convolution, norm, torch.nn.MaxPool3d(2), torch.nn.Flatten())
    network.eval()
    x = torch.randn(2, 3, 4, 12, 8)
    with torch.no_grad():
        expected = network(x).numpy()
    module, _ = positional_module(network, lambda net, tensors: {"y": net(*tensors)})
    mod, params = module_to_relax("volumes", module.eval(), (x,))
    assert operators(mod)["relax.nn.batch_norm"] == 1
    mod, params = written_as(mod, params, GraphChoice.channels_last)
    assert operators(mod)["relax.nn.batch_norm"] == 0
    layouts: list[str] = []

    def visit(node: Any) -> None:
        name = str(getattr(node.op, "name", "")) if isinstance(node, relax.Call) else ""
        if name.endswith(("conv3d", "pool3d")):
            attrs = node.attrs
            layouts.append(str(attrs.data_layout if name.endswith("conv3d") else attrs.layout))

    relax.analysis.post_order_visit(mod["main"].body, visit)
    assert layouts == ["NDHWC", "NDHWC"]
    built = tvm.compile(fuse(mod), target=Target(target))
    machine = relax.VirtualMachine(built, tvm.cpu())
    (output,) = machine["main"](tvm.runtime.tensor(x.numpy()), *params)
    np.testing.assert_allclose(output.numpy(), expected, rtol=1e-4, atol=1e-5)


class Attention(torch.nn.Module):
    """Attention of two heads, written in one of the ways that PyTorch has for it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.project = torch.nn.Linear(32, 96)
        self.multihead = torch.nn.MultiheadAttention(32, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "multihead":
            return self.multihead(x, x, x, need_weights=False)[0]
        batch, tokens, _ = x.shape
        q, k, v = self.project(x).reshape(batch, tokens, 3, 2, 16).permute(2, 0, 3, 1, 4)
        if self.kind == "function":
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        elif self.kind == "masked":
            mask = torch.ones(tokens, tokens, dtype=torch.bool).tril(-1)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        elif self.kind == "matmul":
            scores = torch.matmul(q, k.transpose(-1, -2)) / 4 + torch.ones(1, 1, tokens, tokens)
            y = torch.matmul(torch.softmax(scores, dim=-1), v)
        else:
            y = torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) / 4, -1) @ v
        return y.transpose(1, 2).reshape(batch, tokens, 32)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", ["multihead", "function", "matmul", "einsum", "masked"])
def test_what_the_exporter_adds_to_attention_is_taken_back(
    kind: str, batch: int, target: dict[str, Any], tmp_path: Path
) -> None:
    """So attention is one function by rule, of a torch.export file as of an ONNX one.

    An einsum turns axes round; of a row that a mask leaves nothing of PyTorch makes zeros: these stay several.
    """
    torch.manual_seed(0)
    path = tmp_path / "attention.pt2"
    x = torch.randn(batch, 24, 32)
    torch.export.save(torch.export.export(Attention(kind).eval(), (x,)), path)
    config = NetworkConfig(
        name="attention",
        source="torch_export",
        path=str(path),
        graph=GraphChoice.auto,
        trusted=True,
    )
    network = load_network(config)
    deployed = Deployed(compile_network(network, target, None, by_rule=True), network)
    for output, expected in zip(deployed.outputs(), network.expected, strict=True):
        assert output_agreement(output, expected).accepted
    assert ("attention" in deployed.seconds_by_function()) == (
        kind in ("multihead", "function", "matmul")
    )


def sound_network(kind: str) -> torch.nn.Module:
    nn = torch.nn
    first = [nn.Conv1d(3, 8, 5, 2, 2, bias=False), nn.BatchNorm1d(8), nn.ReLU()]
    last: dict[str, list[torch.nn.Module]] = {
        "pools": [nn.MaxPool1d(3, 2, 1), nn.AvgPool1d(2, ceil_mode=True), nn.AdaptiveAvgPool1d(1)],
        "groups": [nn.Conv1d(8, 16, 3, groups=2, dilation=2), nn.Flatten()],
        "depthwise": [nn.Conv1d(8, 8, 7, padding=3, groups=8), nn.SiLU()],
        "transposed": [nn.ConvTranspose1d(8, 4, 4, 2, 1), nn.Conv1d(4, 4, 3)],
    }
    network = nn.Sequential(*first, *last[kind])
    nn.init.uniform_(network.get_buffer("1.running_var"), 0.5, 2.0)
    return network.eval()


@pytest.mark.parametrize("kind", ["pools", "groups", "depthwise", "transposed"])
@pytest.mark.parametrize("source", ["onnx", "torch"])
def test_convolutions_of_sound_have_channels_last(
    source: str, kind: str, tmp_path: Path, target: dict[str, Any]
) -> None:
    """The same numbers as PyTorch or ONNX Runtime; pools of torch.export were taken along the wrong axis."""
    torch.manual_seed(0)
    network, x = sound_network(kind), torch.randn(2, 3, 53)
    if source == "onnx":
        onnx.save(module_to_onnx("sound", network, (x,)), tmp_path / "sound.onnx")
        overrides = ["network=onnx", f"network.path={tmp_path / 'sound.onnx'}"]
        loaded = load_network(compose([*overrides, "network.graph=channels_last"])[0].network)
        assert not meaningless(loaded)
        built = Deployed(compile_network(loaded, target, None, by_rule=True), loaded)
        assert output_agreement(built.outputs()[0], loaded.expected[0]).accepted
        return
    with torch.no_grad():
        expected = network(x).numpy()
    module, _ = positional_module(network, lambda net, tensors: {"y": net(*tensors)})
    mod, params = module_to_relax("sound", module.eval(), (x,))
    mod, params = written_as(mod, params, GraphChoice.channels_last)
    assert operators(mod)["relax.nn.batch_norm"] == 0
    layouts = re.findall(r"R.nn.conv1d\(.*?data_layout=\"(\w+)\"", mod.script())
    assert set(layouts) == {"NWC"}
    machine = relax.VirtualMachine(tvm.compile(fuse(mod), target=Target(target)), tvm.cpu())
    (output,) = machine["main"](tvm.runtime.tensor(x.numpy()), *params)
    assert output_agreement(output.numpy(), expected).accepted


def test_parts_of_a_weight_are_weights() -> None:
    """An attention's in_proj was split and transposed at each call."""
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    w = relax.Var("w", relax.TensorType((24, 8), "float32"))
    builder, op = relax.BlockBuilder(), relax.op
    with builder.function("main", [x, w]):
        with builder.dataflow():
            parts = builder.emit(op.split(w, [8], 0))
            products = [
                builder.emit(op.matmul(x, builder.emit(op.permute_dims(builder.emit(part)))))
                for part in (parts[0], parts[1])
            ]
            output = builder.emit_output(relax.Tuple(products))
        builder.emit_func_output(output)
    array = np.arange(192, dtype=np.float32).reshape(24, 8)
    mod, params = with_weights_computed(builder.get(), [tvm.runtime.tensor(array)])
    assert set(operators(mod)) == {"relax.matmul"}
    first, second = (each.numpy() for each in params)
    np.testing.assert_array_equal(first, array[:8].T)
    np.testing.assert_array_equal(second, array[8:].T)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("operator", ["conv2d_transpose", "layer_norm"])
def test_what_tvm_cannot_turn_round_keeps_its_own_layout(
    operator: str, groups: int, target: dict[str, Any]
) -> None:
    """Between convolutions with channels last: the one was not lowered, the other computed something else."""
    rng = np.random.default_rng(0)

    def const(*shape: int) -> Any:
        return relax.const(rng.standard_normal(shape).astype(np.float32))

    values = rng.standard_normal((1, 8, 12, 12)).astype(np.float32)
    op, first, last = relax.op, const(16, 8, 3, 3), const(4, 16, 3, 3)
    others = [const(16, 16 // groups, 2, 2), const(16, 12, 12), const(16, 12, 12)]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(values.shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.nn.conv2d(x, first, padding=1))
            if operator == "conv2d_transpose":
                y = builder.emit(
                    op.nn.conv2d_transpose(y, others[0], strides=groups, groups=groups)
                )
            else:
                y = builder.emit(op.nn.layer_norm(y, *others[1:], [1, 2, 3]))
            output = builder.emit_output(op.nn.conv2d(y, last, padding=1))
        builder.emit_func_output(output)
    mod = builder.get()
    changed, params = written_as(mod, [], GraphChoice.channels_last)
    assert operators(changed)["relax.reshape"] == 0
    expected = run(fuse(mod), [values], target)
    found = run(fuse(changed), [values, *(one.numpy() for one in params)], target)
    assert output_agreement(found, expected).accepted


def test_numbers_without_axes_are_stacked_beside_a_convolution(target: dict[str, Any]) -> None:
    """TVM's change of layouts divided by their number of axes, which ended the process (SIGFPE)."""
    image, weights = np.ones((1, 8, 2, 2), np.float32), np.ones((4, 8, 1, 1), np.float32)
    numbers = [np.array(number, np.float32) for number in (3, 5)]
    mod = written(
        [image.shape, weights.shape, (), ()],
        lambda x, w, *pair: relax.op.add(relax.op.nn.conv2d(x, w), relax.op.stack(pair, 0)),
    )
    changed, _ = written_as(mod, [], GraphChoice.channels_last)
    found = run(fuse(changed), [image, weights, *numbers], target)
    np.testing.assert_array_equal(found, np.broadcast_to(np.add(numbers, 8), found.shape))


@pytest.mark.parametrize(
    ("shape", "settings", "is_plain"),
    [
        ((4, 4), {"strides": 2, "padding": 1}, True),
        ((3, 3), {"strides": 2, "padding": 1, "output_padding": 1}, True),
        ((5, 3), {"strides": (3, 1), "padding": (0, 1, 2, 0)}, True),
        ((2, 2), {"strides": 2, "output_padding": 1}, False),  # pixels beyond all sums
        ((3, 3), {"strides": 2, "dilation": 2}, False),
        ((3, 3), {"strides": 1, "padding": 1}, False),
    ],
)
def test_a_transposed_convolution_has_no_zeros_between_pixels(
    shape: tuple[int, int], settings: dict[str, Any], is_plain: bool, target: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((2, 8, 7, 9)).astype(np.float32)
    weights = rng.standard_normal((8, 16, *shape)).astype(np.float32)
    builder = relax.BlockBuilder()
    x, kernel = (
        relax.Var(n, relax.TensorType(v.shape, "float32"))
        for n, v in (("x", values), ("w", weights))
    )
    with builder.function("main", [x, kernel]):
        with builder.dataflow():
            output = builder.emit_output(relax.op.nn.conv2d_transpose(x, kernel, **settings))
        builder.emit_func_output(output)
    params = [tvm.runtime.tensor(weights)]
    changed, computed = written_as(builder.get(), params, GraphChoice.channels_last)
    assert operators(changed)["relax.nn.conv2d_transpose"] == (not is_plain)
    assert operators(changed)["relax.flip"] == 0  # the weights are computed once
    found = run(fuse(changed), [values, *(each.numpy() for each in computed)], target)
    expected = run(fuse(builder.get()), [values, weights], target)
    assert output_agreement(found, expected).accepted


KINDS = [
    *((name, choice) for name in ("mobilenet_v3", "resnet_18") for choice in CHOICES),
    *((name, CHOICES[1]) for name in ("efficientnet_b0", "convnext_tiny", "poolformer_s12")),
]


@pytest.mark.parametrize(("name", "choice"), KINDS)
def test_it_computes_what_pytorch_does(
    name: str, choice: GraphChoice, unoptimized: dict[str, Any]
) -> None:
    network = load_network(replace(small(name), graph=choice))
    assert not meaningless(network)
    compiled = compile_network(network, unoptimized, None, by_rule=True)
    outputs = Deployed(compiled, network).outputs()
    for found, expected in zip(outputs, network.expected, strict=True):
        assert output_agreement(found, expected).accepted


def test_auto_is_channels_last_where_a_cpu_convolves(mobilenet: Any) -> None:
    auto = GraphChoice.auto
    assert candidates(mobilenet.mod, auto, "llvm")[0] is GraphChoice.channels_last
    assert candidates(mobilenet.mod, auto, "cuda")[0] is GraphChoice.folded
    assert candidates(mobilenet.mod, GraphChoice.as_is, "llvm") == (GraphChoice.as_is,)
    last = lowered(definition("mobilenet_v2", "channels_last"), mobilenet)
    chosen = lowered(definition("mobilenet_v2", "auto"), mobilenet)
    assert (chosen.name, chosen.notes) == ("mobilenet_v2-s64", ())
    assert tvm_ffi.structural_equal(chosen.mod, last.mod)
    folded = lowered(definition("mobilenet_v2", "folded"), mobilenet)
    for_gpu = lowered(definition("mobilenet_v2", "auto"), mobilenet, target={"kind": "cuda"})
    assert tvm_ffi.structural_equal(for_gpu.mod, folded.mod)
    two = two_layers().mod
    assert candidates(two, auto, "llvm")[0] is GraphChoice.folded


def test_auto_says_what_tvm_does_not_lower(mobilenet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> Any:
        raise TvmRefusal("no layout for it\nand more")

    monkeypatch.setattr(rewriting, "channels_last", refuse)
    network = lowered(definition("mobilenet_v2", "auto"), mobilenet)
    (note,) = network.notes
    assert (
        note
        == "network.graph=auto: TVM cannot lower the network as channels_last: no layout for it"
    )
    with pytest.raises(MeasureError, match="cannot lower it: no layout for it"):
        lowered(definition("mobilenet_v2", "channels_last"), mobilenet)


def test_it_has_a_name_of_its_own() -> None:
    names = {
        choice.value: variant_name(definition("mobilenet_v2", choice.value, 224))
        for choice in GraphChoice
    }
    assert names == {
        "auto": "mobilenet_v2",
        "as_is": "mobilenet_v2",
        "folded": "mobilenet_v2-folded",
        "channels_last": "mobilenet_v2-nhwc",
    }
    unpacked, _ = compose(["network=bert_tiny", "network.pack_weights=false"])
    assert variant_name(unpacked.network) == "bert_tiny-unpacked"


@pytest.mark.usefixtures("cpu_intrinsics")
def test_packed_weights_are_reordered_once(target: dict[str, Any]) -> None:
    """A program that MetaSchedule wrote for free weights: reordered outside of the function, the numbers stay."""
    overrides = ["network=bert_tiny", "network.size=16", "network.config.num_hidden_layers=1"]
    plain = load_network(compose([*overrides, "network.pack_weights=false"])[0].network)
    packed = load_network(compose(overrides)[0].network)
    before = {task.name: task.mod for task in plain.tasks(target, 0.5)}
    tasks = packed.tasks(target, 0.5)
    assert tasks
    free = [dict(task.mod["main"].attrs)["layout_free_buffers"] for task in tasks]
    assert all(list(places) for places in free)
    assert not any("layout_free_buffers" in dict(mod["main"].attrs) for mod in before.values())
    database = ms.database.MemoryDatabase()
    for task in tasks:
        context = ms.TuneContext(
            task.mod, target=Target(target), space_generator="post-order-apply", task_name=task.name
        )
        assert context.space_generator is not None
        schedule = context.generate_design_space()[-1]
        assert all(one.apply(schedule) for one in context.space_generator.postprocs)
        workload = database.commit_workload(task.mod)
        database.commit_tuning_record(
            ms.database.TuningRecord(schedule.trace, workload, [1e-3], Target(target))
        )
    with Target(target), database:
        applied = relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(
            packed.deployable(target)
        )
    assert "layout_rewrite_preproc" in applied.script()
    assert "layout_rewrite_preproc" not in with_packed_weights(applied).script()
    outputs = Deployed(compile_network(packed, target, database), packed).outputs()
    for found, expected in zip(outputs, packed.expected, strict=True):
        assert output_agreement(found, expected).accepted


def test_programs_for_a_gpu_have_the_weights_as_they_are(target: dict[str, Any]) -> None:
    """TVM's rules for GPUs never reorder them: a mark would only make other workloads."""
    network = load_network(compose(["network=bert_tiny", "network.size=16"])[0].network)

    def marked(where: dict[str, Any]) -> list[bool]:
        return [
            "layout_free_buffers" in dict(task.mod["main"].attrs)
            for task in network.tasks(where, 0.5)
        ]

    assert all(marked(target))
    board = marked({"kind": "cuda", "arch": "sm_80"})
    assert board
    assert not any(board)


def test_a_network_without_convolutions_stays() -> None:
    config, _ = compose(["network=bert_tiny", "network.size=16"])
    imported = transformers._read(config.network)
    mod, params = written_as(imported.mod, imported.params, GraphChoice.as_is)
    assert mod is imported.mod
    assert params is imported.params
    mod, _ = written_as(imported.mod, imported.params, GraphChoice.channels_last)
    assert operators(mod)["relax.matmul"] == operators(imported.mod)["relax.matmul"]


def test_weights_are_computed_exactly(mobilenet: Any) -> None:
    """The first convolution's, by hand."""
    _, params = written_as(mobilenet.mod, mobilenet.params, GraphChoice.folded)
    arrays = [one.numpy() for one in params]
    originals = {one.name: tensor.numpy() for one, tensor in zip(
        list(mobilenet.mod["main"].params)[1:], mobilenet.params, strict=True
    )}  # fmt: skip
    first = next(array for name, array in originals.items() if array.shape == (32, 3, 3, 3))
    scaled = [array for array in arrays if array.shape == (32, 3, 3, 3)]
    assert len(scaled) == 1
    ratio = scaled[0] / first
    assert np.allclose(ratio, ratio[:, :1, :1, :1], rtol=1e-4)  # one factor a channel
    assert np.ptp(ratio[:, 0, 0, 0]) > 0


def test_a_saved_network_is_fused_already(tmp_path: Path) -> None:
    path = tmp_path / "saved.npz"
    save_network(two_layers(), path)
    saved = NetworkConfig(
        name="saved",
        source="saved",
        path=str(path),
        graph=GraphChoice.folded,
    )
    with pytest.raises(
        ConfigError, match=r"network\.graph=folded: expected a network whose operators"
    ):
        load_network(saved)


def test_a_transposed_convolution_of_single_weights_reads_its_own_pixels(
    target: dict[str, Any],
) -> None:
    """Its padding is a copy, which is inlined: the last of overlapping rows were those of other pixels."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, np.float32) for shape in ((1, 7, 8, 8), (7, 8, 1, 1))]
    mod = written(
        [array.shape for array in arrays],
        lambda x, w: relax.op.nn.conv2d_transpose(x, w, strides=2),
    )
    expected = run(fuse(mod), arrays, target)
    assert output_agreement(
        run(schedule_rest(fuse(mod), target), arrays, target), expected
    ).accepted
