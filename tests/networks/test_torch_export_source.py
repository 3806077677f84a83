from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sample_networks import ConvNet, block, conv_net, save_pt2
from torch import nn

from tencost.config import NetworkConfig, NetworkInput
from tencost.errors import ConfigError, MeasureError, UntrustedError
from tencost.networks.network import load_network
from tencost.tune.deploy import compile_network, output_agreement
from tencost.tune.hosts import Deployed

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """conv.pt2 and block.pt2, with dynamic shapes."""
    folder = tmp_path_factory.mktemp("pt2")
    save_pt2(folder / "conv.pt2", *conv_net())
    save_pt2(folder / "block.pt2", *block())
    return folder


def config(path: str, **values: Any) -> NetworkConfig:
    values = {"name": "mine", "source": "torch_export", "path": path, "trusted": True, **values}
    return NetworkConfig(**values)


def test_a_convolutional_network(files: Path, target: dict[str, Any]) -> None:
    inputs = {"x": NetworkInput(shape=[3, 3, 12, 16])}
    network = load_network(config("conv.pt2", batch=3, inputs=inputs), files)
    assert network.name == "mine-b3"
    names = [task.name for task in network.tasks(target)]
    convolutions = [name for name in names if "conv2d" in name]
    assert len(convolutions) == 2
    assert all(name.startswith("fused_conv2d") for name in convolutions), "the norm rides along"
    assert not [name for name in names if "norm" in name or "sqrt" in name]
    outputs = Deployed(compile_network(network, target, None), network).outputs()
    assert output_agreement(outputs[0], network.expected[0]).accepted
    original = conv_net()[0]
    with torch.no_grad():
        eager = original(torch.from_numpy(network.inputs["x"])).numpy()
    assert output_agreement(network.expected[0], eager).accepted


def test_a_transformer_layer_with_named_outputs(files: Path, target: dict[str, Any]) -> None:
    network = load_network(config("block.pt2", batch=2, size=7, output="pooled"), files)
    assert network.output == 1
    assert [array.shape for array in network.expected] == [(2, 7, 16), (2, 16)]
    outputs = Deployed(compile_network(network, target, None), network).outputs()
    for found, expected in zip(outputs, network.expected, strict=True):
        assert output_agreement(found, expected).accepted
    with pytest.raises(ConfigError, match="one of hidden, pooled; found 'logits'"):
        load_network(config("block.pt2", size=7, output="logits"), files)
    assert load_network(config("block.pt2", size=7, name=""), files).name == "block-s7"


class Outputs(NamedTuple):
    first: torch.Tensor
    rest: list[torch.Tensor]


class Odd(nn.Module):
    """Arguments that are no tensors, nested outputs, an unused input, a buffer."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(4.0))

    def forward(
        self, pair: tuple[torch.Tensor, int], *, other: torch.Tensor, bias: None = None
    ) -> Any:
        x, factor = pair
        return {"a": x * factor, "b": (x + self.table, [x.sum(1), None])}


def test_arguments_and_outputs_in_containers(tmp_path: Path, target: dict[str, Any]) -> None:
    arguments = {"pair": (torch.ones(2, 4), 3), "other": torch.ones(1), "bias": None}
    save_pt2(tmp_path / "odd.pt2", Odd().eval(), arguments, None)  # type: ignore[arg-type]
    network = load_network(config("odd.pt2", output="b.1.0"), tmp_path)
    assert [array.shape for array in network.inputs.values()] == [(2, 4), (1,)]
    assert network.output == 2
    outputs = Deployed(compile_network(network, target, None), network).outputs()
    for found, expected in zip(outputs, network.expected, strict=True):
        assert output_agreement(found, expected).accepted


def test_a_program_of_transformers_own_output_type(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    settings = BertConfig(
        num_hidden_layers=1,
        hidden_size=16,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=50,
    )
    ids = {"input_ids": torch.zeros(1, 8, dtype=torch.int64)}
    save_pt2(tmp_path / "bert.pt2", BertModel(settings).eval(), ids, None)
    network = load_network(config("bert.pt2", output="pooler_output"), tmp_path)
    assert network.output == 1


@pytest.mark.parametrize("kind", ["empty", "text", "truncated", "weights"])
def test_a_damaged_file_is_named(
    kind: str, files: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.pt2"
    whole = (files / "conv.pt2").read_bytes()
    content = {"empty": b"", "text": b"hello", "truncated": whole[: len(whole) // 2]}
    if kind == "weights":
        torch.save(ConvNet().state_dict(), path)
    else:
        path.write_bytes(content[kind])
    with pytest.raises(ConfigError, match=r"expected a whole file of torch.export.save in .*mine"):
        load_network(config("mine.pt2"), tmp_path)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "Give one: network=torch_export network.path=<file>.pt2"),
        ("none.pt2", "found nothing"),
        ("conv.onnx", "Read it with network=onnx"),
        ("conv.pt", "Save the network with"),
    ],
)
def test_a_wrong_path_is_named(path: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_network(config(path), tmp_path)


def test_shapes_outside_of_what_was_exported(files: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not run on inputs of shape \[1, 65\]"):
        load_network(config("block.pt2", size=65), files)
    with pytest.raises(ConfigError, match=r"dimension 2 .* of input x is dynamic"):
        load_network(config("conv.pt2"), files)


def test_a_program_in_training_mode_is_refused(tmp_path: Path) -> None:
    network, inputs, _ = conv_net()
    save_pt2(tmp_path / "train.pt2", network.train(), inputs, None)
    with pytest.raises(ConfigError, match=r"batch_norm in training mode .*Call model.eval\(\)"):
        load_network(config("train.pt2"), tmp_path)


class Computes(nn.Module):
    """A function of one tensor."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def statistics() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(4), torch.ones(4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.dropout(x, 0.5, training=True),
        lambda x: F.dropout(x * 1, 0.5, training=True, inplace=True),
        lambda x: F.dropout2d(x, 0.5, training=True),
        lambda x: F.alpha_dropout(x, 0.5, training=True),
        lambda x: F.feature_alpha_dropout(x, 0.5, training=True),
        lambda x: F.feature_alpha_dropout(x * 1, 0.5, training=True, inplace=True),
        lambda x: torch.native_dropout(x, 0.5, None)[0],
        lambda x: F.batch_norm(x, *statistics(), training=True),
        lambda x: F.instance_norm(x, *statistics(), use_input_stats=True),
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
        nn.LSTM(6, 5, num_layers=2, dropout=0.5).train(),
    ],
)
def test_a_function_in_training_mode_is_refused(function: Any, tmp_path: Path) -> None:
    shape = (4, 2, 6) if isinstance(function, nn.LSTM) else (2, 4, 6, 6)
    save_pt2(tmp_path / "train.pt2", Computes(function), {"x": torch.ones(shape)}, None)
    with pytest.raises(ConfigError, match=r"in training mode .*training=self.training"):
        load_network(config("train.pt2"), tmp_path)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.randn(2, 4),
        torch.rand_like,
        lambda x: torch.bernoulli(x.sigmoid()),
        lambda x: torch.empty_like(x).exponential_() * x,
    ],
)
def test_random_numbers_are_refused(function: Any, tmp_path: Path) -> None:
    save_pt2(tmp_path / "random.pt2", Computes(function).eval(), {"x": torch.ones(2, 4)}, None)
    with pytest.raises(MeasureError, match=r"draws random numbers, in .*Take them as an input"):
        load_network(config("random.pt2"), tmp_path)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 3 + 2


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.InstanceNorm1d(4), drawn(3, 4, 6)),
        (nn.InstanceNorm2d(4, affine=True), drawn(3, 4, 6, 5)),
        (nn.InstanceNorm3d(2, affine=True), drawn(3, 2, 2, 3, 4)),
        (nn.InstanceNorm2d(4, affine=True, track_running_stats=True), drawn(3, 4, 6, 5)),
        (nn.BatchNorm1d(4, track_running_stats=False), drawn(8, 4)),
        (nn.BatchNorm2d(4, track_running_stats=False, affine=False, eps=0.5), drawn(3, 4, 6, 5)),
        (nn.GroupNorm(2, 4), drawn(3, 4, 6, 5)),
        (nn.LSTM(6, 5, num_layers=2, dropout=0.5), drawn(4, 2, 6)),
        (Computes(lambda x: F.dropout(x, 0.0, training=True) + 1), drawn(3, 4)),
        (Computes(lambda x: F.batch_norm(x, None, None, training=True)), drawn(3, 4, 6)),
    ],
)
def test_norms_of_their_own_inputs_statistics(
    module: nn.Module, x: torch.Tensor, tmp_path: Path, target: dict[str, Any]
) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(0.5, 2)
    save_pt2(tmp_path / "mine.pt2", Computes(module).eval(), {"x": x}, None)
    network = load_network(config("mine.pt2", output=""), tmp_path)
    outputs = Deployed(compile_network(network, target, None), network).outputs()
    with torch.no_grad():
        eager = module.eval()(torch.from_numpy(network.inputs["x"]))
    eager = eager[0] if isinstance(eager, tuple) else eager
    assert output_agreement(outputs[0], eager.numpy()).accepted


class Stateful(nn.Module):
    """A function of a tensor and of the module, which has a buffer and a counter."""

    memory: torch.Tensor
    count: torch.Tensor

    def __init__(self, function: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("memory", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


def _assigned(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.memory = module.memory + x
    return module.memory * 1


def _put_back(module: Any, x: torch.Tensor) -> torch.Tensor:
    before = module.memory.clone()
    result: torch.Tensor = module.memory.add_(x) * 2
    module.memory.copy_(before)
    return result


def _of_one_element(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.memory[0] = x[0]
    return x + module.memory


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda module, x: x + module.memory.add_(x), "reads memory, which the calls before"),
        (lambda module, x: module.memory.add_(x), "reads memory, which"),
        (_assigned, "reads memory, which"),
        (_of_one_element, "reads memory, which"),
        (lambda module, x: module.memory.add_(module.count.add_(1)) + x, "reads count, memory, wh"),
        (lambda module, x: x.add_(1) * 2, r"writes to x\. .*x\.clone\(\)"),
        (lambda module, x: F.relu(x.view(2, 2), inplace=True) + 1, "writes to x"),
    ],
)
def test_a_program_that_keeps_state_is_refused(
    function: Callable[[Any, torch.Tensor], torch.Tensor], message: str, tmp_path: Path
) -> None:
    save_pt2(tmp_path / "mine.pt2", Stateful(function).eval(), {"x": torch.ones(4)}, None)
    with pytest.raises(MeasureError, match=message):
        load_network(config("mine.pt2"), tmp_path)


@pytest.mark.parametrize(
    "function",
    [
        lambda module, x: (module.count.add_(1), x + 1)[1],
        lambda module, x: module.memory.zero_().add_(x) * 2,
        lambda module, x: module.memory.copy_(x * 3) + 1,
        _put_back,
        lambda module, x: (x * 2).add_(1).clamp_(max=2),
        lambda module, x: torch.zeros(4).copy_(x) + module.memory,
    ],
    ids=["a counter", "zeroed first", "overwritten", "put back", "an intermediate", "a constant"],
)
def test_a_write_that_no_later_call_sees(
    function: Callable[[Any, torch.Tensor], torch.Tensor], tmp_path: Path, target: dict[str, Any]
) -> None:
    save_pt2(tmp_path / "mine.pt2", Stateful(function).eval(), {"x": torch.ones(4)}, None)
    network = load_network(config("mine.pt2"), tmp_path)
    deployed = Deployed(compile_network(network, target, None), network)
    module = Stateful(function).eval()
    for _ in range(2):
        with torch.no_grad():
            eager = module(torch.from_numpy(network.inputs["x"].copy())).numpy()
        assert output_agreement(deployed.outputs()[0], eager).accepted


def table(rows: int) -> nn.Embedding:
    return nn.Embedding(rows, 2)


class Tables(nn.Module):
    """Three categories beside numbers, each with a table of its own; the first is read in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(table(rows) for rows in (4, 2, 300))

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        first, *_ = columns = categories.unbind(1)
        read = [each(column) for each, column in zip(self.tables, columns, strict=True)]
        read += [F.one_hot(first, 5), numbers[:, first[:2] - 1], numbers.gather(1, first[:, None])]
        return torch.cat([numbers, *read], 1)


class Read(nn.Module):
    """Tables of 3 and 5 rows, read at ids that a function makes of an input."""

    def __init__(
        self, function: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    ) -> None:
        super().__init__()
        self.function, self.small, self.large = function, table(3), table(5)
        self.register_buffer("start", torch.tensor([10, 20]))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        first, second = self.function(ids)
        return self.small(first).sum() + self.large(second).sum()


def test_categories_are_drawn_within_their_tables(tmp_path: Path) -> None:
    categories = torch.tensor([[3, 1, 299], [1, 0, 7], [2, 1, 3]])
    inputs = {"numbers": torch.randn(3, 4), "categories": categories}
    dims = {name: {0: torch.export.Dim("n")} for name in inputs}
    save_pt2(tmp_path / "tables.pt2", Tables().eval(), inputs, dims)
    network = load_network(config("tables.pt2", batch=64), tmp_path)
    drawn = network.inputs["categories"]
    assert np.array_equal(drawn.min(0)[:2], [0, 0])
    assert np.array_equal(drawn.max(0)[:2], [3, 1])
    assert drawn.max() > 250
    assert drawn[:2, 0].min() >= 1
    assert network.inputs["numbers"].min() < 0, "floats stay as they are"


@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        (lambda ids: (ids[:, 0], ids[:, 1]), [0, 0], [2, 4]),
        (lambda ids: ((ids - 40).T[0], ids.permute(1, 0)[1] + 1), [40, 0], [42, 3]),
        (
            lambda ids: torch.cat([ids, ids + 0], 1).int().long().tensor_split([1], 1),
            [0, 0],
            [2, 4],
        ),
        (lambda ids: (ids.view(-1, 2)[..., :1], torch.stack([ids[:, 1:]] * 2)), [0, 0], [2, 4]),
        (lambda ids: (ids % 3, (ids + 0.5).clamp(0, 4).long()), None, None),
    ],
)
def test_ids_are_followed_to_their_tables(
    function: Any, low: list[int] | None, high: list[int] | None, tmp_path: Path
) -> None:
    ids = torch.tensor([[1, 100], [2, 3]])
    save_pt2(
        tmp_path / "read.pt2",
        Read(function).eval(),
        {"ids": ids},
        {"ids": {0: torch.export.Dim("n")}},
    )
    network = load_network(config("read.pt2", batch=64), tmp_path)
    drawn = network.inputs["ids"]
    assert drawn.max() == 100 if high is None else np.array_equal(drawn.max(0), high)
    assert low is None or np.array_equal(drawn.min(0), low)


def test_ids_that_cannot_be_followed_ask_for_a_range(tmp_path: Path) -> None:
    module = Read(lambda ids: (ids // 10, ids // 10)).eval()
    save_pt2(tmp_path / "read.pt2", module, {"ids": torch.tensor([99, 5])}, None)
    message = (
        r"out of range.* ids from 0 to 99; .*: network\.inputs\.ids\.shape=.*ids\.high=<number>"
    )
    with pytest.raises(ConfigError, match=message):
        load_network(config("read.pt2"), tmp_path)
    inputs = {"ids": NetworkInput(shape=[2], dtype="int64", high=30)}
    assert load_network(config("read.pt2", inputs=inputs), tmp_path).inputs["ids"].max() == 29
    save_pt2(
        tmp_path / "read.pt2",
        Read(lambda ids: (ids, ids)).eval(),
        {"ids": torch.ones(2).long()},
        None,
    )
    with pytest.raises(ConfigError, match="Drawn were ids from 0 to 29"):
        load_network(
            config("read.pt2", inputs=inputs), tmp_path
        )  # a range that was asked for stays


class Spectrum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x).abs()


class Nothing(nn.Module):
    def forward(self, x: torch.Tensor) -> int:
        return 3


class Closed(nn.Module):
    def forward(self) -> torch.Tensor:
        return torch.ones(2)


@pytest.mark.parametrize(
    ("network", "inputs", "message"),
    [
        (Spectrum(), {"x": torch.ones(2, 8)}, r"has no operator _fft_r2c.default. Write the layer"),
        (Nothing(), {"x": torch.ones(2)}, "expected a program that returns tensors, found none"),
        (Closed(), {}, "expected a program with inputs, found none"),
        (
            nn.Conv2d(3, 4, 3).double(),
            {"input": torch.ones(1, 3, 8, 8, dtype=torch.float64)},
            r"expected numbers of float32, found torch\.float64, .*module\.float\(\)",
        ),
    ],
)
def test_a_program_that_cannot_be_imported_says_why(
    network: nn.Module, inputs: dict[str, torch.Tensor], message: str, tmp_path: Path
) -> None:
    save_pt2(tmp_path / "mine.pt2", network.eval(), inputs, None)
    with pytest.raises(MeasureError, match=message):
        load_network(config("mine.pt2"), tmp_path)


def test_inputs_of_bfloat16_are_refused(tmp_path: Path) -> None:
    x = torch.ones(2, 3, dtype=torch.bfloat16)
    save_pt2(tmp_path / "mine.pt2", nn.Linear(3, 4).bfloat16().eval(), {"input": x}, None)
    with pytest.raises(ConfigError, match=r"NumPy has, found bfloat16.*module\.float\(\)"):
        load_network(config("mine.pt2"), tmp_path)


class Evil:
    """What pickle calls when it reads one back."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (Path(self.path),))


def test_a_file_that_nobody_trusts_is_not_opened(tmp_path: Path) -> None:
    """Sample inputs are a pickle: one that would touch a file when it is read."""
    import io
    import zipfile

    import torch

    class Network(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    torch.export.save(torch.export.export(Network(), (torch.ones(2),)), tmp_path / "whole.pt2")
    pickled = io.BytesIO()
    torch.save(((Evil(str(tmp_path / "touched")),), {}), pickled)
    with (
        zipfile.ZipFile(tmp_path / "whole.pt2") as whole,
        zipfile.ZipFile(tmp_path / "evil.pt2", "w") as evil,
    ):
        for name in whole.namelist():
            is_inputs = "sample_inputs" in name
            evil.writestr(name, pickled.getvalue() if is_inputs else whole.read(name))
    with pytest.raises(UntrustedError, match=r"network\.trusted=true"):
        load_network(config("evil.pt2", trusted=False), tmp_path)
    assert not (tmp_path / "touched").exists()


def _whole(function: Any, *, high: int = 12) -> Any:
    class Computing(torch.nn.Module):
        def forward(self, n: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(function(n))

    return Computing().eval(), (torch.arange(high),)


@pytest.mark.parametrize(
    "function",
    [
        lambda n: n < 2.5,
        lambda n: n == 2.5,
        lambda n: (n * 0.5).long(),
        lambda n: (n * 1.5).floor().long() + 0 * n,
        lambda n: torch.where(n < 2.5, n, 0.5),
        lambda n: n / 3,
        lambda n: n.to(torch.uint8) / 255,
        lambda n: n // 3,
        lambda n: torch.div(n - 6, 4, rounding_mode="trunc"),
        lambda n: torch.div(n * 0.7, 0.3, rounding_mode="floor"),
        lambda n: n.int().cumsum(0),
        lambda n: torch.exp(n * -1),
        lambda n: n.clamp(max=2.7),
        lambda n: n.clamp(max=3),
        lambda n: n.to(torch.uint8).clamp(max=3),
        lambda n: (n - 5).clamp(min=0),
        lambda n: n.to(torch.uint8).clamp(min=-3, max=9),
        lambda n: n.clamp(min=5, max=1),
        lambda n: (n * 0.5).clamp(min=5.0, max=1.0),
        lambda n: n.int().clamp(min=torch.full((12,), 3, dtype=torch.int32)),
        lambda n: n.clamp(torch.tensor([2]), torch.tensor([7])),
        lambda n: (n * 0.5).clamp(max=torch.tensor([3])),
        lambda n: 1.5 - n,
        lambda n: torch.cat([n, n * 0.5]),
        lambda n: n + n.int() * True,
        lambda n: n.float().reshape(1, 3, 4)[:, -1],
        lambda n: n.reshape(3, 4)[..., -2],
        lambda n: n.reshape(3, 4)[:, [-1, 0]],
        lambda n: n.reshape(6, 2) + torch.tensor([1.0, 2.0]),
    ],
)
def test_types_are_promoted_and_counted_from_the_end_as_in_pytorch(
    function: Any, tmp_path: Path, target: dict[str, Any]
) -> None:
    module, example = _whole(function)
    torch.export.save(torch.export.export(module, example), tmp_path / "whole.pt2")
    network = load_network(config("whole.pt2"), tmp_path, target=target, is_deployed=True)
    (n,) = network.inputs.values()
    assert n.max() == 11, "as in the example input"
    (found,) = Deployed(compile_network(network, target, None), network).outputs()
    wanted = module(torch.from_numpy(n)).numpy()
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
