from __future__ import annotations

import itertools
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from chains import DEVICES, TRAIN, VALID, settings, silent
from torch_geometric.nn import GPSConv

from tencost.config.composition import compose
from tencost.errors import BundleError, ConfigError, TrainError
from tencost.features.graph.encodings import Encoder
from tencost.models.networks.families.gnn import (
    CONVOLUTIONS,
    DIRECTIONS,
    WITH_EDGES,
    GnnConfig,
    GnnModel,
)
from tencost.models.networks.gnn.embedding import (
    NumberEmbedding,
    StableEdgeEmbedding,
    WordEmbedding,
)
from tencost.models.networks.gnn.graph_data import Batches, distinct_rows
from tencost.models.networks.gnn.networks import GpsLayer, GraphNetwork, similar
from tencost.models.networks.gnn.training import encoder_of, graph_batches
from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.usefixtures("one_thread")


def network_of(config: GnnConfig) -> tuple[GraphNetwork, Encoder]:
    torch.manual_seed(0)
    encoder = encoder_of(config)
    return GraphNetwork(config, encoder, 2, 9.0).eval(), encoder


def outputs(config: GnnConfig, graphs: GraphSet) -> torch.Tensor:
    """Return what an untrained network gives, in the order of the graphs."""
    network, encoder = network_of(config)
    batch = graph_batches(config, graphs, encoder).take(np.arange(len(graphs)))
    with torch.no_grad():
        return network(batch)[torch.from_numpy(np.argsort(batch.chosen))]


WAYS = [
    *itertools.product(("gcn", *WITH_EDGES), DIRECTIONS, ("none",)),
    *itertools.product(("magnet", "digcn", "dgcn"), ("undirected",), ("none",)),
    *itertools.product(WITH_EDGES, ("undirected", "bidirectional"), ("laplacian", "magnetic")),
]  # fmt: skip


@pytest.mark.parametrize(("convolution", "direction", "edge_encoding"), WAYS)
def test_a_graph_does_not_depend_on_the_graphs_beside_it_nor_on_its_nodes_order(
    convolution: str, direction: str, edge_encoding: str
) -> None:
    config = settings(convolution=convolution, direction=direction, edge_encoding=edge_encoding)
    graphs = VALID.graphs.take(range(12))
    together = outputs(config, graphs)
    alone = torch.cat([outputs(config, graphs.take([index])) for index in range(12)])
    assert alone.numpy() == pytest.approx(together.numpy(), rel=1e-4, abs=1e-5)
    first = graphs.take([0])
    order = np.random.default_rng(0).permutation(len(first.operator))
    edges = np.argsort(order)[first.edges].astype(np.int32)
    shuffled = replace(
        first, operator=first.operator[order], columns=first.columns[order], edges=edges
    )
    assert outputs(config, shuffled).numpy() == pytest.approx(alone[:1].numpy(), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_every_weight_is_learnt(convolution: str) -> None:
    edge = "magnetic" if convolution in WITH_EDGES else "none"
    config = settings(
        convolution=convolution, direction="bidirectional", encoding="laplacian", edge_encoding=edge
    )
    network, encoder = network_of(config)
    network.train()
    network(graph_batches(config, VALID.graphs, encoder).take(range(12))).sum().backward()
    idle = [
        name
        for name, weight in network.named_parameters()
        if weight.grad is None or not torch.isfinite(weight.grad).all()
    ]
    assert not idle


@pytest.mark.parametrize("convolution", ["gin", "gcn", "gat", "gps", "magnet", "digcn", "dgcn"])
def test_directions_are_told_apart(convolution: str) -> None:
    """A network sees whether edges are turned around; only an undirected convolution does not."""
    graphs = VALID.graphs.take(range(4))
    turned = replace(graphs, edges=graphs.edges[::-1])

    def difference(direction: str) -> float:
        config = settings(convolution=convolution, direction=direction)
        return float((outputs(config, graphs) - outputs(config, turned)).abs().max())

    assert difference("bidirectional") > 1e-4
    if convolution not in ("magnet", "digcn", "dgcn"):
        assert difference("undirected") < 1e-5


@pytest.mark.parametrize("attention", ["multihead", "performer"])
def test_a_gps_layer_is_pygs(attention: str) -> None:
    """Graph by graph, where torch-geometric has nothing to pad."""
    kind = "performer" if attention == "performer" else "gps"
    network, encoder = network_of(settings(convolution=kind, dropout=0.5))
    layer = network.layers[0]
    assert isinstance(layer, GpsLayer)
    batch = graph_batches(network.config, VALID.graphs, encoder).take(range(20))
    inputs = torch.randn(len(batch.row_of_node), 16)
    ways = network._ways(batch)
    with torch.no_grad():
        found = layer(inputs, ways, batch.sizes)
        local = layer.conv(inputs, ways)
        conv, layer.conv = layer.conv, None
        for index in range(20):
            mine = batch.graph_of_node == index
            # Without its convolution torch-geometric's layer lacks the local part: both without the rest of it.
            attended = layer._attend(inputs[mine], [int(mine.sum())])
            theirs = _pygs_attention(layer, inputs[mine])
            assert attended.numpy() == pytest.approx(theirs.numpy(), abs=1e-5)
        layer.conv = conv
        both = layer.norm1(local + inputs) + layer.norm2(
            layer._attend(inputs, batch.sizes) + inputs
        )
        expected = layer.norm3(both + layer.mlp(both))
    assert found.numpy() == pytest.approx(expected.numpy(), abs=1e-5)


def _pygs_attention(layer: GpsLayer, nodes: torch.Tensor) -> torch.Tensor:
    """Return what torch-geometric's forward adds to the nodes: its norms and layers left out."""
    parts = {name: getattr(layer, name) for name in ("norm1", "norm2", "norm3", "mlp")}
    for name in ("norm1", "norm2", "norm3"):
        setattr(layer, name, None)
    layer.mlp = torch.nn.Sequential(torch.nn.Linear(16, 16))
    torch.nn.init.zeros_(layer.mlp[0].weight)
    torch.nn.init.zeros_(layer.mlp[0].bias)
    found = GPSConv.forward(layer, nodes, None, torch.zeros(len(nodes), dtype=torch.long)) - nodes
    for name, part in parts.items():
        setattr(layer, name, part)
    return torch.Tensor(found)


def test_similar_sizes_stand_together() -> None:
    assert list(similar([10, 10, 11, 12, 30], 1.1)) == [[10, 10, 11], [12], [30]]
    assert list(similar([4, 4, 5], 1.0)) == [[4, 4], [5]]
    assert list(similar([], 1.1)) == []


def test_words_have_room_for_every_size_and_clip_what_is_beyond() -> None:
    torch.manual_seed(0)
    embed = WordEmbedding(34)
    rows = torch.tensor([[2, *[value] * 16] for value in (-1, 0, 8, 6963, 50_000, 2**31 - 1)]).int()
    found = embed(rows)
    assert torch.isfinite(found).all()
    assert all(
        (found[a] - found[b]).abs().max() > 0 for a, b in itertools.combinations(range(5), 2)
    )
    assert (found[4] == found[5]).all()
    assert (rows[:, 1] == torch.tensor([-1, 0, 8, 6963, 50_000, 2**31 - 1])).all()
    vgg = torch.zeros(2, 17, dtype=torch.int32)
    vgg[0, 8], vgg[1, 8] = 6962, 6963
    assert (embed(vgg)[0] != embed(vgg)[1]).any()


def test_numbers_of_unseen_sizes_are_finite_and_unknown_is_not_zero() -> None:
    torch.manual_seed(0)
    embed = NumberEmbedding(8)
    rows = torch.tensor([[2, *[value] * 16] for value in (-1, 0, 2**31 - 1)]).int()
    found = embed(rows)
    assert torch.isfinite(found).all()
    assert (found[0] - found[1]).abs().max() > 1e-3


def test_stable_edges_are_sums_over_eigenspaces() -> None:
    torch.manual_seed(0)
    encoder = Encoder("none", "magnetic", 5, 0.1)
    batch = Batches(VALID.graphs, encoder, None).take(range(6))
    embed = StableEdgeEmbedding()
    assert batch.edge_products is not None
    assert batch.edge_values is not None
    found = embed(batch.edge_products, batch.edge_values, batch.graph_of_edge).detach().numpy()
    first = 0
    for index, graph in enumerate(batch.chosen):
        one = Batches(VALID.graphs.take([int(graph)]), encoder, None)._distinct[0]
        stable = encoder.encode_edges(one)
        weights = embed.functions(batch.edge_values[index][:, None]).detach().numpy()
        expected = stable.products @ weights
        mine = found[first : first + len(expected)]
        first += len(expected)
        assert mine[:, :8] == pytest.approx(expected.real, abs=1e-4)
        assert mine[:, 8:] == pytest.approx(expected.imag, abs=1e-4)
    assert first == len(found)


def test_a_batch_holds_the_graphs_that_it_was_asked_for() -> None:
    graphs = VALID.graphs
    batch = Batches(graphs, Encoder("random_walk", "none", 3, 0.1), None).take([7, 3, 7, 11])
    assert sorted(batch.chosen.tolist()) == [3, 7, 7, 11]
    assert list(batch.sizes) == sorted(batch.sizes)
    expected = graphs.take(batch.chosen)
    rows = batch.rows[batch.row_of_node].numpy()
    assert (rows[:, 0] == expected.operator).all()
    assert (rows[:, 1:] == expected.columns).all()
    assert (batch.edge_index.numpy() == expected.global_edges).all()
    assert (batch.graph_of_node.numpy() == expected.graph_of_node).all()
    assert (batch.graph_of_edge.numpy() == expected.graph_of_edge).all()
    assert len(batch.rows) == len(np.unique(rows, axis=0))


def test_distinct_rows_give_back_all_nodes() -> None:
    rows, which = distinct_rows(TRAIN.graphs)
    assert (rows[which][:, 1:] == TRAIN.graphs.columns).all()
    assert len(rows) == len(np.unique(rows, axis=0)) < len(which)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    model = GnnModel(settings(convolution="performer", encoding="random_walk"), 2)
    model.fit(TRAIN, VALID, seed=0, report=silent)
    model.save(folder)
    np.save(folder.parent / "expected.npy", model.predict(VALID.graphs))
    return folder


def load(folder: Path, **values: object) -> GnnModel:
    model = GnnModel(
        settings(**{"convolution": "performer", "encoding": "random_walk", **values}), 2
    )
    model.load(folder)
    return model


def test_what_was_saved_is_loaded(bundle: Path) -> None:
    assert sorted(path.name for path in bundle.iterdir()) == ["gnn.json", "gnn.safetensors"]
    model = load(bundle)
    assert (model.predict(VALID.graphs) == np.load(bundle.parent / "expected.npy")).all()
    assert model.predict(VALID.graphs.take([])).shape == (0, 2)
    assert model.epoch in (1, 2)


def test_other_settings_are_refused(bundle: Path) -> None:
    with pytest.raises(BundleError, match="expected the settings"):
        load(bundle, layers=3)
    # What only training needs may differ.
    assert load(bundle, learning_rate=0.5, epochs=9).epoch in (1, 2)


@pytest.mark.parametrize("name", ["gnn.json", "gnn.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"[1]", b"\xff" * 40])
def test_damaged_files_are_refused(
    bundle: Path, tmp_path: Path, name: str, content: bytes | None
) -> None:
    for path in bundle.iterdir():
        if path.name != name:
            (tmp_path / path.name).write_bytes(path.read_bytes())
        elif content is not None:
            (tmp_path / name).write_bytes(content)
    with pytest.raises(BundleError, match=name):
        load(tmp_path)


def test_what_there_is_nothing_to_learn_from_is_refused() -> None:
    unlabelled = LabelledGraphs(
        TRAIN.graphs, DEVICES, np.stack([TRAIN.latency_ms[:, 0], np.full(120, np.nan)], axis=1)
    )
    with pytest.raises(TrainError, match="latency on myriad-vpu, found none"):
        GnnModel(settings(), 2).fit(unlabelled, VALID, seed=0, report=silent)
    empty = LabelledGraphs(VALID.graphs, DEVICES, np.full((30, 2), np.nan))
    with pytest.raises(TrainError, match="for validation"):
        GnnModel(settings(), 2).fit(TRAIN, empty, seed=0, report=silent)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"convolution": "sage"}, "convolution must be one of"),
        ({"hidden": 10, "convolution": "gat"}, "multiple of model.heads"),
        ({"convolution": "gcn", "edge_encoding": "laplacian"}, "reads edges"),
        ({"q": 0.3}, "model.q must be in"),
        ({"label": "sqrt"}, "label must be one of"),
    ],
)
def test_wrong_settings_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(**values)


MODELS = sorted(
    path.stem
    for path in (ROOT / "conf" / "model").glob("*.yaml")
    if "family: gnn" in path.read_text()
)


def test_the_benchmarks_models_are_there() -> None:
    wanted = {"gcn", "gin", "gat", "gps", "performer", "bigin", "bigps", "magnet", "digcn", "dgcn"}
    assert wanted <= set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_a_configured_model_can_be_made(name: str) -> None:
    config = compose([f"graph_model={name}"])[0].graph_model
    assert isinstance(config, GnnConfig)
    text = (ROOT / "conf" / "model" / f"{name}.yaml").read_text()
    assert set(yaml.safe_load(text)) == {field.name for field in fields(GnnConfig)}
    network, encoder = network_of(config)
    batch = graph_batches(config, VALID.graphs, encoder).take(range(4))
    assert network(batch).shape == (4, 2)
