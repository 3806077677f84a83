from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tencost.errors import ConfigError
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.models.neural.loop import seeded
from tencost.models.programs.families import tvm_mlp
from tencost.models.programs.families.mlp import MlpConfig, MlpRanker
from tencost.models.programs.families.tlp import TlpConfig, score_sequences
from tencost.models.programs.neural import mlp_training, tlp_training, tvm_mlp_training
from tencost.models.programs.neural.layers import Scaler, dense, layer_norm, softmax
from tencost.models.programs.neural.network_ranker import NetworkInputs, served
from tencost.models.programs.neural.ranking_training import GroupLoss, TaskBatches
from tencost.models.programs.ranker import Samples
from tencost.models.programs.ranker.losses import RankingLoss

RNG = np.random.default_rng(0)
LENGTHS = [1, 9, 4, 8, 16, 3]
ROWS = Ragged.from_blocks(
    [RNG.normal(size=(length, 7)).astype(np.float32) for length in LENGTHS], 7
)
BESIDE = RNG.normal(size=(len(LENGTHS), 3)).astype(np.float32)
ALL = np.arange(len(LENGTHS))


def weights_of(network: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in network.state_dict().items()}


@pytest.mark.parametrize("beside", [None, BESIDE])
def test_mlp_is_served_as_it_was_trained(beside: np.ndarray | None) -> None:
    config = MlpConfig(family="mlp", hidden=8)
    inputs = NetworkInputs(ROWS, beside)
    network = mlp_training.SegmentSumNetwork(7, 0 if beside is None else 3, config).eval()
    with torch.no_grad():
        expected = network(*mlp_training.collated_sums(inputs)(ALL)).numpy()
    ranker = MlpRanker(config, None)  # type: ignore[arg-type]
    found = ranker._forward(served(weights_of(network)), inputs)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("beside", [None, BESIDE])
@pytest.mark.parametrize("layers", [1, 2])
def test_tlp_is_served_as_it_was_trained(beside: np.ndarray | None, layers: int) -> None:
    config = TlpConfig(family="tlp", hidden=8, heads=2, layers=layers)
    inputs = NetworkInputs(ROWS, beside)
    network = tlp_training.AttentionNetwork(7, 0 if beside is None else 3, 16, config).eval()
    with torch.no_grad():
        expected = network(*tlp_training.collated_steps(inputs)(ALL)).numpy()
    found = score_sequences(served(weights_of(network), ("position",)), inputs, config)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_tvm_mlp_is_served_as_it_was_trained() -> None:
    network = tvm_mlp_training.TvmNetwork(7).eval()
    with torch.no_grad():
        expected = network(*tvm_mlp_training._collate(ROWS)(ALL)).numpy()
    found = tvm_mlp.score_stores(served(weights_of(network)), ROWS)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.tvm
def test_tvm_network_and_loss_are_tvms() -> None:
    theirs = pytest.importorskip("tvm.s_tir.meta_schedule.cost_model.mlp_model")
    label = torch.from_numpy(RNG.uniform(0, 1, 12).astype(np.float32))
    scores = torch.from_numpy(RNG.normal(size=12).astype(np.float32))
    ours = tvm_mlp_training.lambda_rank_loss(scores, label)
    assert float(ours) == pytest.approx(float(theirs.lambda_rank_loss(scores, label)), rel=1e-5)
    network, model = tvm_mlp_training.TvmNetwork(7), theirs.SegmentSumMLP(input_dim=7)
    names = {
        "encoder.0": "encoder1",
        "encoder.2": "encoder2",
        "layer0.0": "layer0",
        "layer1.0": "layer1",
        "decoder": "decoder",
    }
    state = network.state_dict()
    model.load_state_dict(
        {
            f"{theirs}.{part}": state[f"{our}.{part}"]
            for theirs, our in names.items()
            for part in ("weight", "bias")
        }
    )
    with torch.no_grad():
        expected = model(torch.tensor(LENGTHS), torch.from_numpy(ROWS.values))
        found = network(*tvm_mlp_training._collate(ROWS)(ALL))
    assert found.numpy() == pytest.approx(expected.numpy(), rel=1e-5, abs=1e-5)


def test_layers_agree_with_torch() -> None:
    values = RNG.normal(size=(5, 8)).astype(np.float32)
    weight, bias = RNG.normal(size=(2, 8)).astype(np.float32)
    normed = torch.nn.functional.layer_norm(
        torch.from_numpy(values), (8,), torch.from_numpy(weight), torch.from_numpy(bias)
    )
    assert layer_norm(values, weight, bias) == pytest.approx(normed.numpy(), rel=1e-4, abs=1e-5)
    assert softmax(values).sum(axis=1) == pytest.approx(np.ones(5))
    assert dense(values[:, :2], np.eye(2, dtype=np.float32), bias[:2], relu=True).min() >= 0


def test_scaler_ignores_constant_columns_and_cuts_outliers() -> None:
    rows = np.array([[1, 5], [3, 5], [2, 5]], np.float32)
    scaler = Scaler.fit(rows)
    assert scaler(rows)[:, 1].tolist() == [0, 0, 0]
    assert scaler(np.array([[1e9, 99]], np.float32)).tolist() == [[4, 0]]


def test_batches_hold_whole_groups_and_repeat_with_the_seed() -> None:
    group = np.array([0, 1, 0, 2, 1, 2, 3, 3, 4])
    epochs = [list(TaskBatches(group, 2, seed)) for seed in (0, 0)]
    assert [batch.tolist() for batch in epochs[0]] == [batch.tolist() for batch in epochs[1]]
    for batch in epochs[0]:
        for member in set(group[batch].tolist()):
            assert (group[batch] == member).sum() == (group == member).sum()
    covered = np.sort(np.concatenate(epochs[0]))
    assert covered.tolist() == list(range(8)), "a group of one program has no pairs"
    assert len(TaskBatches(group, 2, 0)) == len(epochs[0])


def test_the_loss_hands_its_gradient_to_autograd() -> None:
    label = np.array([1.0, 0.2, 0.5, 1.0], np.float32)
    group = np.array([0, 0, 0, 1])
    config = MlpConfig(family="mlp", objective="pairwise", label_power=1.0)
    samples = Samples(
        ROWS.take(np.arange(4)), label, group, np.ones(4), np.array(["a", "b", "c", "d"])
    )
    scores = torch.tensor([0.3, 0.1, -0.2], requires_grad=True)
    loss = GroupLoss(config, samples, 0)(scores, np.array([2, 0, 1]))
    torch.autograd.backward(loss)
    direct, _ = RankingLoss("pairwise", label[:3], group[:3])(np.array([0.1, -0.2, 0.3]))
    assert scores.grad is not None
    assert scores.grad.numpy() == pytest.approx(direct[[2, 0, 1]] * 4 / 3, rel=1e-5)


def test_torchs_state_is_left_as_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeded(1, threads + 1):
        torch.rand(1)
    spec = FeatureSpec(name="toy", kind="trace", columns=tuple("abcdefg"))
    ids = np.array([f"r{index}" for index in ALL])
    label = np.linspace(0.1, 1, len(ALL)).astype(np.float32)
    samples = Samples(ROWS, label, np.repeat([0, 1], 3), np.ones(len(ALL)), ids)
    ranker = MlpRanker(MlpConfig(family="mlp", hidden=4, epochs=2), spec)
    ranker.fit(samples, samples, seed=0, log=lambda name, value, step: None)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads
    assert torch.are_deterministic_algorithms_enabled() == strict
    assert list(tmp_path.iterdir()) == [], "training writes nothing into the working directory"


def on_meta(*inputs: object) -> list[object]:
    """Tensors without values, which refuse to meet those of the CPU, as a GPU's do."""
    return [one.to("meta") if isinstance(one, torch.Tensor) else one for one in inputs]


def test_networks_run_where_their_inputs_are() -> None:
    mlp = mlp_training.SegmentSumNetwork(7, 3, MlpConfig(family="mlp", hidden=8)).to("meta")
    tlp_config = TlpConfig(family="tlp", hidden=8, heads=2)
    tlp = tlp_training.AttentionNetwork(7, 3, 16, tlp_config).to("meta")
    tvm = tvm_mlp_training.TvmNetwork(7).to("meta")
    inputs = NetworkInputs(ROWS, BESIDE)
    for network, given in (
        (mlp, mlp_training.collated_sums(inputs)(ALL)),
        (tlp, tlp_training.collated_steps(inputs)(ALL)),
        (tvm, tvm_mlp_training._collate(ROWS)(ALL)),
    ):
        assert network(*on_meta(*given)).device.type == "meta"


def test_an_accelerator_is_lightnings_and_one_that_is_not_there_is_said_so() -> None:
    spec = FeatureSpec(name="toy", kind="trace", columns=tuple("abcdefg"))
    label = (np.arange(6) / 6).astype(np.float32)
    samples = Samples(ROWS, label, np.zeros(6, np.int64), np.ones(6), np.array(list("abcdef")))
    found = {}
    for accelerator in ("cpu", "auto") if not torch.cuda.is_available() else ("cpu",):
        config = MlpConfig(family="mlp", hidden=4, epochs=2, accelerator=accelerator)
        ranker = MlpRanker(config, spec)
        ranker.fit(samples, samples, seed=0, log=lambda *_: None)
        (found[accelerator],) = ranker.networks
    first = found.pop("cpu")
    assert all((one[name] == first[name]).all() for one in found.values() for name in first)
    with pytest.raises(ConfigError, match=r"model\.accelerator must be one of cpu, gpu"):
        MlpConfig(family="mlp", accelerator="quantum")
    absent = "cuda" if not torch.cuda.is_available() else "mps"
    wanted = f"{absent}: expected such a device.*accelerator=cpu"
    config = MlpConfig(family="mlp", hidden=4, epochs=2, accelerator=absent)
    with pytest.raises(ConfigError, match=rf"model\.accelerator={wanted}"):
        MlpRanker(config, spec).fit(samples, samples, seed=0, log=lambda *_: pytest.fail("trained"))


def test_patience_stops_and_the_best_epoch_is_kept() -> None:
    spec = FeatureSpec(name="toy", kind="trace", columns=tuple("abcdefg"))
    ids = np.array([f"r{index}" for index in ALL])
    label = np.linspace(0.1, 1, len(ALL)).astype(np.float32)
    samples = Samples(ROWS, label, np.repeat([0, 1], 3), np.ones(len(ALL)), ids)
    steps: list[int] = []
    config = MlpConfig(family="mlp", hidden=4, epochs=60, patience=3, learning_rate=1e-7)
    MlpRanker(config, spec).fit(
        samples, samples, seed=0, log=lambda name, value, step: steps.append(step)
    )
    assert max(steps) < 60
