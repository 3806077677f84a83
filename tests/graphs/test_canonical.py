"""Networks of CG's families written in PyTorch and exported say what CG's rows say; others say what they can."""

from __future__ import annotations

import gzip
import json
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tencost.config import NetworkConfig, NetworkInput
from tencost.errors import ConfigError
from tencost.networks.graph.canonical import CanonicalNetwork, canonical_network
from tencost.networks.graph.graph_set import GraphSet
from tencost.networks.graph.identity import graph_ids
from tencost.networks.graph.operators import COLUMNS, OPERATOR_CODES, OPERATORS
from tencost.networks.onnx_graph import read_model
from tencost.networks.source import network_to_onnx

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

from cg_networks import rebuilt  # noqa: E402  # needs torch
from torch import nn  # noqa: E402

from tencost.networks.torch_modules import module_to_onnx  # noqa: E402

ROWS = [
    json.loads(line)
    for line in gzip.decompress(
        Path(__file__).with_name("cg_rows.jsonl.gz").read_bytes()
    ).splitlines()
]

Node = tuple[str, tuple[int, ...]]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def graph_of(row: dict[str, Any]) -> GraphSet:
    """Return a stored row as a set of one graph."""
    operator = np.array([OPERATOR_CODES[name] for name in row["operators"]], np.uint8)
    columns = np.array(row["columns"], np.int32)
    edges = np.array(row["edges"], np.int32)
    starts = np.array([0, len(operator)], np.int64), np.array([0, edges.shape[1]], np.int64)
    return GraphSet(
        graph_ids(operator, columns, starts[0], edges, starts[1]),
        np.array([row["family"]]),
        np.array([row["family"]]),
        np.array([row["position"]], np.int32),
        operator,
        columns,
        starts[0],
        edges,
        starts[1],
    )


def nodes_of(graph: GraphSet) -> list[Node]:
    return [
        (OPERATORS[code], tuple(columns))
        for code, columns in zip(graph.operator, graph.columns.tolist(), strict=True)
    ]


def nodes_and_edges(graph: GraphSet) -> tuple[Counter[Node], Counter[tuple[Node, Node]]]:
    """Return how often each node and each pair of joined nodes occurs, whatever their order."""
    nodes = nodes_of(graph)
    return Counter(nodes), Counter((nodes[a], nodes[b]) for a, b in graph.edges.T.tolist())


def with_relus_merged(graph: GraphSet) -> GraphSet:
    """Return a graph in which ReLUs of the same node are one: exporters do not compute the same thing twice."""
    of: dict[int, int] = {}
    same = np.arange(len(graph.operator))
    for source, target in graph.edges.T.tolist():
        if OPERATORS[graph.operator[target]] == "Relu":
            same[target] = of.setdefault(source, target)
    kept = np.unique(same)
    place = np.searchsorted(kept, same)
    edges = np.unique(place[graph.edges], axis=1).astype(np.int32)
    return replace(
        graph,
        operator=graph.operator[kept],
        columns=graph.columns[kept],
        node_start=np.array([0, len(kept)]),
        edges=edges,
        edge_start=np.array([0, edges.shape[1]]),
    )


def exported(module: Any, *tensors: Any, **options: Any) -> CanonicalNetwork:
    return canonical_network(module_to_onnx("mine", module, tensors), name="mine", **options)


def words(network: CanonicalNetwork) -> str:
    """Return the operators in order."""
    return " ".join(OPERATORS[code] for code in network.graphs.operator)


def column(network: CanonicalNetwork, operator: str, name: str) -> list[int]:
    chosen = network.graphs.operator == OPERATOR_CODES[operator]
    found: list[int] = network.graphs.columns[chosen, COLUMNS.index(name)].tolist()
    return found


def row_of_each_family() -> list[Any]:
    """Return the rows as parameters, the second of a family among the slow ones."""
    families: set[str] = set()
    parameters = []
    for row in ROWS:
        marks = [pytest.mark.slow] if row["family"] in families else []
        families.add(row["family"])
        parameters.append(pytest.param(row, marks=marks, id=f"{row['family']}-{row['position']}"))
    return parameters


@pytest.mark.parametrize("row", row_of_each_family())
def test_a_network_of_cg_written_in_pytorch_has_the_nodes_and_edges_of_its_row(
    row: dict[str, Any],
) -> None:
    expected = graph_of(row)
    network, tensors = rebuilt(expected)
    model = module_to_onnx(row["family"], network, tuple(tensors))
    if row["family"] == "nasbench201s":  # rows with a batch that is not known, and with equal ReLUs
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
        expected = with_relus_merged(expected)
    found = canonical_network(model, name=row["family"], family=row["family"])
    assert not found.foreign
    nodes, edges = nodes_and_edges(found.graphs)
    wanted_nodes, wanted_edges = nodes_and_edges(expected)
    assert nodes == wanted_nodes
    assert edges == wanted_edges


def test_both_of_pytorchs_exporters_give_the_same_graph() -> None:
    network, tensors = rebuilt(
        graph_of(next(row for row in ROWS if row["family"] == "shufflenetv2s"))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own deprecations
        program = torch.onnx.export(network, tuple(tensors), dynamo=True, verbose=False)
    other = canonical_network(program.model_proto, name="other")
    assert nodes_and_edges(exported(network, *tensors).graphs) == nodes_and_edges(other.graphs)


@pytest.mark.parametrize(
    ("batch_norm", "expected"),
    [("unfold", "FusedBatchNorm"), ("bias", "BiasAdd")],
)
def test_a_convolutions_bias_is_a_batch_norm_that_was_folded_or_a_bias(
    batch_norm: str, expected: str
) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU())
    found = exported(module, torch.ones(1, 3, 8, 8), batch_norm=batch_norm)
    assert words(found) == f"Placeholder Conv2D {expected} Relu"
    assert found.graphs.columns[2].tolist() == [1, 4, 4, 4, 0, 0, 0, 0, 0, 0, 0, 1, 4, 4, 4, 0]


def test_the_bias_of_a_single_pixel_stays_a_bias() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 8), nn.ReLU())
    assert words(exported(module, torch.ones(1, 3, 8, 8))) == "Placeholder Conv2D BiasAdd Relu"


def test_an_unknown_way_with_batch_norms_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch_norm must be one of unfold, bias"):
        exported(nn.ReLU(), torch.ones(1, 3), batch_norm="fold")


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Hardswish(), "Const Add Relu6 Const Mul Mul"),
        (nn.Hardsigmoid(), "Const Add Relu6 Const Mul"),
        (nn.ReLU6(), "Relu6"),
        (nn.Sequential(nn.Dropout(), nn.Identity(), nn.ReLU()), "Relu"),
        (nn.Sequential(nn.ZeroPad2d(1), nn.Conv2d(3, 3, 3, bias=False)), "Conv2D"),
        (nn.Conv2d(3, 6, 3, groups=3, bias=False), "DepthwiseConv2dNative"),
        (nn.Conv2d(3, 3, 1, bias=False), "Conv2D"),
        (nn.ConvTranspose2d(3, 2, 3, bias=False), "Conv2DTranspose"),
        (nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)), "Mean Reshape MatMul BiasAdd"),
        (nn.Sequential(nn.AvgPool2d(8), nn.Conv2d(3, 2, 1)), "AvgPool Conv2D BiasAdd"),
        (nn.Upsample(scale_factor=2), "Resize"),
        (nn.SiLU(), "Sigmoid Mul"),
        (nn.GELU(), "Gelu"),
        (nn.ELU(), "Other"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_an_operator_is_spelt_as_the_data_spell_it(module: Any, expected: str) -> None:
    assert words(exported(module, torch.ones(1, 3, 8, 8))) == f"Placeholder {expected}"


def test_what_cgs_data_do_not_have_is_counted() -> None:
    found = exported(nn.Sequential(nn.ELU(), nn.GELU(), nn.ELU()), torch.ones(1, 4))
    assert found.foreign == {"Other": 2, "Gelu": 1}
    assert found.other == {"Elu": 2}


def test_grouped_convolutions_and_strides_have_their_columns() -> None:
    found = exported(nn.Conv2d(8, 12, (3, 5), (1, 2), groups=4, bias=False), torch.ones(1, 8, 9, 9))
    assert found.graphs.columns[1].tolist() == [1, 9, 9, 8, 0, 3, 5, 2, 12, 1, 2, 1, 7, 3, 12, 0]
    assert words(found) == "Placeholder GroupConv2D"


@pytest.mark.parametrize(
    ("module", "size", "unstated"),
    [
        (nn.Conv2d(4, 4, 3, dilation=2), (4, 9, 9), {"Conv2D with dilation 2x2": 1}),
        (
            nn.Conv2d(4, 4, 3, dilation=(1, 3), groups=4),
            (4, 9, 9),
            {"DepthwiseConv2dNative with dilation 1x3": 1},
        ),
        (nn.Conv1d(4, 4, 3, dilation=2), (4, 9), {"Conv1D with dilation 2": 1}),
        (nn.MaxPool2d(2, dilation=2), (4, 9, 9), {"MaxPool with dilation 2x2": 1}),
        (
            nn.ConvTranspose2d(4, 4, 3, groups=2, dilation=2),
            (4, 9, 9),
            {"Conv2DTranspose with dilation 2x2": 1, "Conv2DTranspose with 2 groups": 1},
        ),
        (nn.Conv2d(4, 4, 3, bias=False).half(), (4, 9, 9), {"weights in float16": 1}),
        (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.MaxPool2d(2)), (4, 9, 9), {}),
    ],
)
def test_a_setting_that_no_column_states_is_counted(
    module: Any, size: tuple[int, ...], unstated: dict[str, int]
) -> None:
    dtype = next((weight.dtype for weight in module.parameters()), torch.float32)
    assert exported(module.eval(), torch.ones((1, *size), dtype=dtype)).unstated == unstated


def test_tokens_are_no_images_and_turning_one_into_the_other_costs_nothing() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 16, 4, 4, bias=False)
            self.norm, self.dense = nn.LayerNorm(16), nn.Linear(16, 16)

        def forward(self, x: Any) -> Any:
            image = self.patches(x)
            tokens = self.dense(self.norm(image.permute(0, 2, 3, 1)))
            return image + tokens.permute(0, 3, 1, 2)

    found = exported(Block(), torch.ones(1, 3, 16, 24))
    assert words(found) == "Placeholder Conv2D LayerNorm MatMul BiasAdd Add"
    assert found.graphs.columns[3, 11:].tolist() == [1, 4, 6, 16, 0]


def test_a_transformers_definition_and_its_torch_export_program_become_one_graph(
    tmp_path: Path,
) -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
    config = NetworkConfig(
        name="tiny",
        architecture="BertModel",
        config_class="BertConfig",
        config={**sizes, "intermediate_size": 32, "vocab_size": 50, "attn_implementation": "eager"},
        inputs={"input_ids": NetworkInput(shape=[1, 8], dtype="int64", high=50)},
    )
    found = canonical_network(network_to_onnx(config), name="tiny")
    assert found.other == {}
    assert {"LayerNorm", "Softmax", "Gelu", "Gather"} <= found.foreign.keys()
    assert (found.graphs.edges[0] < found.graphs.edges[1]).all()
    assert column(found, "Gather", "in_1") == [8]
    assert column(found, "Gather", "out_2") == [16]


def test_files_of_onnx_and_torch_export_are_read_with_the_shapes_asked_for(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.ReLU()).eval()
    sizes = {2: torch.export.Dim("height"), 3: torch.export.Dim("width")}
    image = torch.ones(1, 3, 6, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own deprecations
        program = torch.export.export(module, (image,), dynamic_shapes=(sizes,))
        torch.export.save(program, tmp_path / "mine.pt2")
        torch.onnx.export(program, (), dynamo=True, verbose=False).save(tmp_path / "mine.onnx")
    for source, path in (("onnx", "mine.onnx"), ("torch_export", "mine.pt2")):
        config = NetworkConfig(name="mine", source=source, path=path, size=10, trusted=True)
        found = canonical_network(network_to_onnx(config, tmp_path), name="mine")
        assert words(found) == "Placeholder Conv2D Relu"
        assert column(found, "Relu", "out_1") == [10]


def test_a_network_whose_operators_are_lowered_already_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.npz").write_bytes(b"")
    config = NetworkConfig(name="mine", source="saved", path="mine.npz")
    with pytest.raises(ConfigError, match="onnx, torch_export, transformers"):
        network_to_onnx(config, tmp_path)


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x09"])
def test_what_is_no_whole_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.onnx"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="expected a whole ONNX model in"):
        read_model(path)


def test_a_graph_without_operators_on_its_inputs_is_refused(make_model: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="expected an ONNX graph with operators on its inputs"):
        canonical_network(make_model([], "x"), name="mine")


def test_shapes_that_contradict_each_other_are_refused(make_model: Callable[..., Any]) -> None:
    node = onnx.helper.make_node("MatMul", ["x", "x"], ["y"])
    with pytest.raises(
        ConfigError, match="whose shapes can be inferred, found none for what MatMul"
    ):
        canonical_network(make_model([node], "y"), name="mine")


@pytest.fixture
def make_model() -> Callable[..., Any]:
    """Return a function: nodes, output -> model with the input x [2, 3]."""

    def make(nodes: list[Any], output: str) -> Any:
        kind = onnx.TensorProto.FLOAT
        ends = [
            onnx.helper.make_tensor_value_info("x", kind, (2, 3)),
            onnx.helper.make_tensor_value_info(output, kind, None),
        ]
        graph = onnx.helper.make_graph(nodes, "mine", ends[:1], ends[1:])
        return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)])

    return make
