"""The CG benchmark's own interface: its configuration, its data, its runner."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import yaml
from torch_geometric.data import Batch

from made_up_graphs import DEVICES, chain, latency_ms
from process_words import words_of
from tencost.compat.cg import CGDataProcessor, CGRunner, load_config
from tencost.compat.cg.data import ID_FAMILIES, OOD_FAMILIES, graph_set
from tencost.compat.cg.network import CGModel
from tencost.compat.cg.runner import COLUMNS
from tencost.compat.cg.settings import MODELS, checked
from tencost.errors import ConfigError, GraphError, TrainError
from tencost.features.graph.encodings import Encoder
from tencost.features.graph.topology import topologies
from tencost.networks.graph.graph_set import LabelledGraphs, concatenate
from tencost.networks.graph.operators import OPERATOR_CODES
from tencost.records.network_graphs.formats import cg

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "cg"
GENERAL = """
utils:
  seed: 123
  torch_num_threads: 1

task:
  name: 'CG'
  type: CG # type: cdfg or dfg
  target: cpu # different target prediction
  processed_folder: '~/processed/'
  divide_seed: default #set as default or a seed
  raw_data_path: '~/CG/'
  data_processor: CGDataProcessor

train:
  batch_size: 16
  epoch: 3
  optimizer: Adam
  scheduler:
    name: StepLR
    step_size: 100
    gamma: 0.95
  lr : 0.0095
  criterion: MSE
  wandb: 0
  train_files: '~/train_files/'
  directed: 1

model:
  name: BIGIN
  hidden_dim: 34
  num_layers: 2
  node_input_dim: 7
  edge_input_dim: 2
  dropout: 0
  mlp_out:
    num_layer: 2
"""
PE = """
model:
  pe_file_name: maglap_1q_spe
  pe_type: maglap
  q: 0.1
  q_dim: 1
  pe_strategy: invariant_fixed
  pe_encoder: spe
  mag_pe_dim_input: 10
  mag_pe_dim_output: 10
  se_pe_dim_input: 3
  se_pe_dim_output: 0

  eigval_encoder:
    in: 1
    hidden: 32
    out: 8
    num_layer: 3
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made_up(count: int = 20) -> LabelledGraphs:
    """Return `count` networks of each of the benchmark's families; squeezenets have no latency on the VPU."""
    generator = np.random.default_rng(0)
    sets = []
    for family in (*ID_FAMILIES, *OOD_FAMILIES):
        for position in range(count):
            widths = generator.integers(4, 40, int(generator.integers(2, 6))).tolist()
            sets.append(chain(f"{family}_{position}", family, position, widths))
    graphs = concatenate(sets)
    measured = latency_ms(graphs)
    measured[graphs.family == "squeezenets", 1] = np.nan
    return LabelledGraphs(graphs, DEVICES, measured)


@pytest.fixture
def general(home: Path) -> Path:
    """The benchmark's configuration as a file, and a folder of made-up graphs where it says."""
    cg.write(home / "CG", made_up())
    path = home / "bigin.yaml"
    path.write_text(GENERAL)
    return path


def changed(general: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    return load_config(general, sections)


def test_the_configuration_is_read_as_it_is(home: Path, general: Path) -> None:
    (home / "maglap_1q_spe.yaml").write_text(PE)
    config = checked(load_config(general, home / "maglap_1q_spe.yaml"))
    assert config.raw_folder == home / "CG"
    assert config.processed_folder == home / "processed" / "CG" / "CG" / "processed_10k_1q0.1"
    folder = home / "train_files" / "CG_CG" / "cpu_maglap_1q_spe" / "BIGIN"
    assert config.train_folder == folder
    network = config.network()
    assert (network.convolution, network.direction) == ("gin", "bidirectional")
    assert (network.encoding, network.edge_encoding) == ("none", "magnetic")
    assert (network.hidden, network.layers, network.mlp_layers) == (34, 2, 2)


@pytest.mark.parametrize(
    ("name", "directed", "expected"),
    [
        ("GIN", 0, ("gin", "undirected")),
        ("GINE", 1, ("gin", "directed")),
        ("DIGCN", 1, ("gcn", "directed")),
        ("BIGAT", 0, ("gat", "bidirectional")),
        ("DIPERFORMER", 1, ("performer", "directed")),
        ("DiiGCN", 0, ("digcn", "directed")),
        ("MSGNN", 0, ("magnet", "directed")),
    ],
)
def test_names_of_models(
    general: Path, name: str, directed: int, expected: tuple[str, str]
) -> None:
    found = checked(changed(general, model={"name": name}, train={"directed": directed})).network()
    assert (found.convolution, found.direction) == expected


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("model", "hidden", 3, "model.hidden: .*Valid keys here: dropout"),
        ("train", "criterion", "MAE", "train.criterion must be one of MSE, L1, SmoothL1"),
        ("train", "wandb", 1, "train.wandb must be 0, found 1"),
        ("task", "target", "tpu", "task.target must be one of cpu, gpu630, gpu640, vpu"),
        ("model", "name", "SAGE", "model.name must be one of DGCN"),
        ("utils", "seed", "many", "utils.seed"),
        ("model", "pe_type", "rw", "model.pe_type must be one of"),
    ],
)
def test_what_is_wrong_is_one_clear_error(
    general: Path, section: str, key: str, value: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        CGRunner(changed(general, **{section: {key: value}}))


def test_a_seed_may_be_text(general: Path) -> None:
    assert checked(changed(general, utils={"seed": "7"})).utils.seed == 7


def test_the_data_are_those_of_the_files(general: Path) -> None:
    labelled = made_up()
    train = CGDataProcessor(load_config(general), "train")
    assert [len(CGDataProcessor(general, mode)) for mode in ("valid", "test", "test_ood")] == [
        5,
        5,
        6,
    ]
    assert len(train) == 5 * 18
    first = train[0]
    graph = labelled.graphs.take([0])
    assert first.x.dtype == torch.int64
    assert first.x[:, 0].tolist() == graph.operator.tolist()
    assert first.x[:, 1].tolist() == (graph.columns[:, 0] + 1).tolist()
    assert first.x[:, 12].tolist() == (graph.columns[:, 11] + 1).tolist()
    assert first.x[:, 2:12].tolist() == graph.columns[:, 1:11].tolist()
    assert first.edge_index.tolist() == graph.edges.tolist()
    for field, latency in (
        ("y_cpu", labelled.latency_ms[0, 0]),
        ("y_vpu", labelled.latency_ms[0, 1]),
    ):
        assert first[field].shape == (1,)
        assert first[field].dtype == torch.float32
        np.testing.assert_allclose(first[field].item(), latency, rtol=1e-6)
    assert torch.isnan(first.y_gpu630).all()  # no file of it
    assert train.families.tolist() == sorted(train.families.tolist())
    assert Path(train.processed_paths[0]).name == "train_default.pt"


def test_a_batch_is_the_graphs_that_it_was_made_of(general: Path) -> None:
    train = CGDataProcessor(general, "train")
    found = graph_set(Batch.from_data_list([train[3], train[70]]))
    for index, row in enumerate((3, 70)):
        one = found.take([index])
        alone = graph_set(train[row])
        np.testing.assert_array_equal(one.columns, alone.columns)
        np.testing.assert_array_equal(one.operator, alone.operator)
        np.testing.assert_array_equal(one.edges, alone.edges)


def test_the_vocabulary_does_not_depend_on_what_is_read_first(general: Path, home: Path) -> None:
    """The seed numbered operators by first sight: a folder without a family changed the codes of the others."""
    found = CGDataProcessor(general, "train").read_csv_graph_raw(home / "CG" / "resnets", False)
    operators = {int(code) for graph in found for code in graph["node_feat"][:, 0]}
    assert operators == {OPERATOR_CODES[name] for name in ("Placeholder", "Conv2D", "Relu")}
    assert len(found) == 20
    assert found[0]["y_cpu"].shape == (1,)


def test_repeated_edges_go_however_often_they_are_there(general: Path, home: Path) -> None:
    path = home / "CG" / "resnets"
    counts = (path / "num-edge-list.csv").read_text().split()
    edges = (path / "edge.csv").read_text().split()
    edges[:1] = [edges[0]] * 3
    (path / "edge.csv").write_text("\n".join(edges) + "\n")
    (path / "num-edge-list.csv").write_text("\n".join([str(int(counts[0]) + 2), *counts[1:]]))
    data = CGDataProcessor(changed(general, task={"raw_data_path": str(home / "CG")}), "train")
    assert data.read_csv_graph_raw(path, False)[0]["edge_index"].shape[1] == int(counts[0]) + 2
    once = data.read_csv_graph_raw(path, True)[0]["edge_index"]
    assert once.tolist() == [[*range(int(counts[0]))], [*range(1, int(counts[0]) + 1)]]


def test_encodings_leave_the_graph_alone(general: Path) -> None:
    """The seed's padding added nodes to graphs with fewer nodes than eigenvectors."""
    plain = CGDataProcessor(general, "train")
    config = load_config(load_config(general), yaml.safe_load(PE))
    encoded = CGDataProcessor(config, "train")
    assert min(graph.num_nodes for graph in plain) < 10
    for before, after in zip(plain, encoded, strict=True):
        assert torch.equal(before.x, after.x)
        assert after.mag_pe.shape == (after.num_nodes, 1, 10)
        assert after.mag_pe.dtype == torch.complex64
        assert after.Lambda.shape == (1, 1, 10)
        assert after.rw_se.shape == (after.num_nodes, 3)
    (topology,), _ = topologies(graph_set(encoded[0]))
    expected = Encoder("magnetic", "none", 10, 0.1).encode_nodes(topology)
    np.testing.assert_array_equal(encoded[0].mag_pe[:, 0].real.numpy(), expected[:, :10])


def test_a_wrong_mode_and_a_folder_that_is_not_there(general: Path) -> None:
    with pytest.raises(ConfigError, match="mode must be one of train, valid, test, test_ood"):
        CGDataProcessor(general, "tune")
    nowhere = changed(general, task={"raw_data_path": "~/nowhere", "processed_folder": "~/other"})
    with pytest.raises(GraphError, match="nowhere/densenets"):
        CGDataProcessor(nowhere, "train")


@pytest.mark.parametrize("name", MODELS)
def test_every_model_runs_and_sees_the_edges(general: Path, name: str) -> None:
    """The seed's DIGCN passed no messages at all."""
    config = checked(changed(general, model={"name": name, "hidden_dim": 36}))
    graph = CGDataProcessor(config, "test")[0]
    torch.manual_seed(0)
    model = CGModel(config).eval()
    with torch.no_grad():
        before = model(graph)
        graph.edge_index = graph.edge_index[:, ::2]
        assert before.shape == (1, 1)
        assert not torch.allclose(before, model(graph))


def test_train_and_test(general: Path, home: Path) -> None:
    runner = CGRunner(changed(general, train={"epoch": 40}))
    runner.save_config()
    runner.train()
    (kept,) = runner.train_folder.glob("model_epoch*.pth")
    rows = runner.test()
    assert [row.name for row in rows] == [*ID_FAMILIES, "id avg", *OOD_FAMILIES, "ood avg"]
    assert [row.samples for row in rows] == [1] * 5 + [5] + [2] * 3 + [3]
    by_name = {row.name: row for row in rows}
    means = [by_name[name].acc10 for name in ID_FAMILIES]
    assert by_name["id avg"].acc10 == pytest.approx(np.mean(means))
    latency = made_up().latency_ms[:, 0]
    assert by_name["id avg"].rmse < latency.std() / 2  # far better than the mean
    with runner.result_csv.open() as file:
        table = list(csv.reader(file))
    assert tuple(table[0]) == COLUMNS
    assert len(table) == 11
    again = CGRunner(runner.train_folder / "config.yaml")
    assert again.test(test_num_idx=1) == rows
    assert len(runner.result_csv.read_text().splitlines()) == 22
    again.train()
    assert again.test() == rows  # the same seed
    assert [path.name for path in runner.train_folder.glob("model_epoch*.pth")] == [kept.name]


def test_large_losses_are_kept_too(general: Path, home: Path) -> None:
    """The seed kept nothing where no validation loss fell below 10,000, and then tested older weights."""
    labelled = made_up()
    slow = LabelledGraphs(labelled.graphs, DEVICES, labelled.latency_ms * 1e5)
    cg.write(home / "slow", slow)
    places = {"raw_data_path": "~/slow", "processed_folder": "~/processed_slow"}
    runner = CGRunner(changed(general, task=places, train={"epoch": 1}))
    runner.train()
    assert runner.test()[0].rmse > 100


def test_rmse_is_no_root_of_another_loss(general: Path) -> None:
    runner = CGRunner(changed(general, train={"criterion": "L1", "epoch": 1}))
    runner.train()
    loader = [Batch.from_data_list(list(CGDataProcessor(general, "valid")))]
    loss, rmse, acc5, acc10 = runner.train_one_epoch(loader, "valid", 0)
    assert runner.model is not None
    with torch.no_grad():
        error = (runner.model(loader[0]).squeeze(1) - loader[0].y_cpu).double()
    assert loss == pytest.approx(error.abs().mean().item(), rel=1e-5)
    assert rmse == pytest.approx((error**2).mean().sqrt().item(), rel=1e-5)
    assert 0 <= acc5 <= acc10 <= 1


def test_missing_latencies_count_nothing(general: Path) -> None:
    runner = CGRunner(changed(general, task={"target": "vpu"}, train={"epoch": 1}))
    runner.train()
    by_name = {row.name: row for row in runner.test()}
    assert by_name["squeezenets"].samples == 0
    assert np.isnan(by_name["squeezenets"].rmse)
    assert np.isfinite(by_name["ood avg"].rmse)
    none = CGRunner(changed(general, task={"target": "gpu630"}))
    with pytest.raises(TrainError, match="latency on adreno-630 in the part train"):
        none.train()


def test_a_test_without_a_training(general: Path) -> None:
    with pytest.raises(TrainError, match="call train first"):
        CGRunner(general).test()


def test_weights_of_another_configuration(general: Path) -> None:
    CGRunner(changed(general, train={"epoch": 1})).train()
    with pytest.raises(TrainError, match="expected weights of this configuration"):
        CGRunner(changed(general, model={"hidden_dim": 68})).test()


class Foreign:
    """What a pickle may hold that runs code where it is opened."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self._mark,))


@pytest.mark.parametrize("kind", ["foreign", "cut", "empty", "text", "a list"])
def test_damaged_or_foreign_weights_are_one_sentence(
    general: Path, tmp_path: Path, kind: str
) -> None:
    """Nothing of a file's own runs, whatever it holds."""
    runner = CGRunner(changed(general, train={"epoch": 1}))
    runner.train()
    (path,) = runner.train_folder.glob("model_epoch*.pth")
    mark = tmp_path / "ran"
    if kind == "foreign":
        torch.save({"weights": Foreign(mark)}, path)
    elif kind == "a list":
        torch.save([1, 2], path)
    else:
        path.write_bytes(
            {"cut": path.read_bytes()[:500], "empty": b"", "text": b"no weights"}[kind]
        )
    with pytest.raises(TrainError, match="expected weights of this configuration"):
        runner.test()
    assert not mark.exists()


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs CG's folder in ../shared/data/cg")
def test_the_benchmarks_own_sizes(general: Path) -> None:
    config = changed(general, task={"raw_data_path": str(SHARED), "processed_folder": "~/real"})
    sizes = {
        mode: len(CGDataProcessor(config, mode)) for mode in ("train", "valid", "test", "test_ood")
    }
    assert sizes == {"train": 9000, "valid": 500, "test": 500, "test_ood": 600}
    ood = CGDataProcessor(config, "test_ood")
    assert torch.isfinite(ood._data.y_cpu).all()
    assert set(np.unique(ood.families)) == set(OOD_FAMILIES)


@pytest.mark.slow
def test_raytune_ends_with_a_configuration_that_trains(
    general: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The seed's crashed at the end of a whole search."""
    (home / "BIGIN.yaml").write_text(
        "name: BIGIN\nhidden_dim: [1,3]\nnum_layers: [1,3]\nlr: [1e-3, 1e-2]\nbatch_size: [16, 32]\n"
        "dropout: [0, 0.1]\npe_dim_input: 32\npe_dim_output: 8\n\nmlp_out:\n  num_layer: [2,4]\n"
    )
    others = psutil.Process().children(recursive=True)  # of tests before this one
    general.write_text(general.read_text().replace("'~/train_files/'", "'train_files/'"))
    runner = CGRunner(general)
    assert not runner.train_folder.is_absolute(), (
        "Ray takes a relative folder for a URI without a scheme"
    )
    tuned = runner.raytune(home / "BIGIN.yaml", num_samples=2, num_cpu=1)
    assert tuned["model"]["hidden_dim"] in (34, 68)
    assert tuned["utils"] == runner.config["utils"]
    assert "best of 2 trials" in capsys.readouterr().out
    best = CGRunner(runner.train_folder / "tuned.yaml")
    assert best.config == tuned
    best.train()
    assert np.isfinite(best.test()[5].rmse)
    started = set(psutil.Process().children(recursive=True)) - set(others)
    trackers = {process for process in started if "resource_tracker" in words_of(process)}
    _, alive = psutil.wait_procs(started - trackers, timeout=20)
    assert alive == []


def test_a_search_space_with_a_key_too_few(general: Path) -> None:
    with pytest.raises(ConfigError, match="expected a search space of name, batch_size"):
        CGRunner(general).raytune({"name": "BIGIN", "lr": [1e-3, 1e-2]}, 2, 1)


@pytest.mark.parametrize("strategy", ["variant", "invariant_fixed"])
@pytest.mark.parametrize("kind", ["lap", "maglap"])
def test_encodings_are_learnt_from(general: Path, kind: str, strategy: str) -> None:
    words = {"pe_type": kind, "pe_strategy": strategy, "pe_file_name": f"{kind}_{strategy}"}
    runner = CGRunner(changed(general, model={"name": "BIGINE", **words}, train={"epoch": 1}))
    runner.train()
    assert runner.model is not None
    network = runner.model.network
    assert (network.encoding is None) == (strategy == "invariant_fixed")
    assert (network.edge_embedding is None) == (strategy == "variant")
    assert all(np.isfinite(row.rmse) for row in runner.test())
