"""Training of graph neural networks: learning, seeds, interruption, and its end."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chains import TRAIN, VALID, settings, silent, weights_of

from tencost.errors import ConfigError, TrainError
from tencost.models.networks.families.gnn import GnnModel
from tencost.models.networks.gnn.training import Labels, annealed, encoder_of, graph_batches

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("log", [True, False])
def test_labels_are_decoded_as_they_were_encoded(log: bool) -> None:
    labels = Labels.of(TRAIN.latency_ms, log)
    encoded = labels.encode(TRAIN.latency_ms)
    known = np.isfinite(TRAIN.latency_ms)
    assert (torch.isfinite(encoded).numpy() == known).all()
    assert labels.decode(encoded)[known] == pytest.approx(TRAIN.latency_ms[known], rel=1e-4)
    wild = labels.decode(torch.tensor([[1e6, -1e6], [float("nan"), float("inf")]]))
    assert np.isfinite(wild).all()
    assert (wild > 0).all()


@pytest.mark.parametrize(("label", "pool"), [("log", "log_sum"), ("log", "sum"), ("raw", "sum")])
def test_it_learns_and_missing_labels_count_nothing(label: str, pool: str) -> None:
    curve: dict[str, list[float]] = {}
    model = GnnModel(settings(label=label, pool=pool, epochs=30, learning_rate=0.01, hidden=32), 2)
    model.fit(
        TRAIN, VALID, seed=0, report=lambda name, value, _: curve.setdefault(name, []).append(value)
    )
    assert len(curve["train/valid_mape"]) == 30
    assert curve["train/loss"][-1] < curve["train/loss"][0] / 2
    found = model.predict(VALID.graphs)
    known = np.isfinite(VALID.latency_ms)
    error = np.abs(found / VALID.latency_ms - 1)[known].mean()
    assert error == pytest.approx(min(curve["train/valid_mape"]), rel=1e-5)
    middle = np.nanmedian(TRAIN.latency_ms, axis=0) / VALID.latency_ms - 1
    assert error < np.nanmean(np.abs(middle)) / 2


@pytest.mark.parametrize("convolution", ["gin", "performer", "magnet"])
def test_the_same_seed_gives_the_same_bundle(convolution: str, tmp_path: Path) -> None:
    found = []
    for index, seed in enumerate((3, 3, 4)):
        model = GnnModel(settings(convolution=convolution, dropout=0.1), 2)
        model.fit(TRAIN, VALID, seed=seed, report=silent)
        found.append(weights_of(model, tmp_path / str(index)))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("convolution", ["gin", "gps", "magnet", "dgcn"])
def test_a_batch_moves_as_a_whole(convolution: str) -> None:
    config = settings(convolution=convolution)
    batch = graph_batches(config, TRAIN.graphs, encoder_of(config)).take(np.arange(4))
    moved = batch.to(torch.device("meta"))
    tensors = [one for one in vars(moved).values() if isinstance(one, torch.Tensor)]
    assert len(tensors) >= 6
    assert {one.device.type for one in (*tensors, *moved.matrices)} == {"meta"}
    assert len(moved.matrices) == len(batch.matrices)


def test_an_accelerator_that_is_not_there_is_said_before_anything_is_trained() -> None:
    absent = "mps" if torch.cuda.is_available() else "cuda"
    model = GnnModel(settings(accelerator=absent), 2)
    with pytest.raises(ConfigError, match=rf"model\.accelerator={absent}: expected such"):
        model.fit(TRAIN, VALID, seed=0, report=silent)
    with pytest.raises(ConfigError, match=r"model\.accelerator must be one of"):
        settings(accelerator="quantum")


class Interrupted(Exception):
    pass


def test_an_interrupted_training_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    config = settings(epochs=4, dropout=0.2)
    whole = GnnModel(config, 2)
    whole.fit(TRAIN, VALID, seed=5, report=silent)

    def stop_in_epoch_3(name: str, value: float, step: int) -> None:
        if step == 3:
            raise Interrupted

    folder = tmp_path / "resume"
    with pytest.raises(Interrupted):
        GnnModel(config, 2, folder).fit(TRAIN, VALID, seed=5, report=stop_in_epoch_3)
    steps: list[int] = []
    model = GnnModel(config, 2, folder)
    model.fit(TRAIN, VALID, seed=5, report=lambda name, value, step: steps.append(step))
    assert min(steps) == 3
    assert weights_of(model, tmp_path / "a") == weights_of(whole, tmp_path / "b")
    # Once it is through, there is nothing left to do.
    again = GnnModel(config, 2, folder)
    again.fit(TRAIN, VALID, seed=5, report=silent)
    assert weights_of(again, tmp_path / "c") == weights_of(whole, tmp_path / "d")


def test_another_training_does_not_go_on_from_it(tmp_path: Path) -> None:
    GnnModel(settings(), 2, tmp_path).fit(TRAIN, VALID, seed=0, report=silent)
    with pytest.raises(TrainError, match=r"another one \(seed changed\)"):
        GnnModel(settings(), 2, tmp_path).fit(TRAIN, VALID, seed=1, report=silent)
    with pytest.raises(TrainError, match=r"another one \(settings changed\)"):
        GnnModel(settings(epochs=3), 2, tmp_path).fit(TRAIN, VALID, seed=0, report=silent)


@pytest.mark.parametrize("content", [b"nothing", 3, {"tencost": 3}, {"tencost": {"task": "other"}}])
def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path, content: object) -> None:
    path = tmp_path / "training.ckpt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(TrainError, match="Delete the folder"):
        GnnModel(settings(), 2, tmp_path).fit(TRAIN, VALID, seed=0, report=silent)


def test_steps_fall_to_nothing_within_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock tells a minute a batch: of the two limits, ten minutes are over first."""
    assert [annealed(part) for part in (0.0, 0.5, 1.0, 3.0)] == pytest.approx([1.0, 0.5, 0.0, 0.0])
    clock = itertools.count(step=60.0)
    monkeypatch.setattr("tencost.models.neural.loop.time.monotonic", lambda: next(clock))
    rates: list[float] = []
    step = torch.optim.Adam.step

    def watched(self: torch.optim.Adam, *args: Any, **kwargs: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    config = settings(epochs=50, max_minutes=10.0, learning_rate=0.01)
    GnnModel(config, 2).fit(TRAIN, VALID, seed=0, report=silent)
    assert len(rates) < 50 * 8
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 0.009
    assert rates[-1] < 0.002


def test_time_and_patience_end_it(caplog: pytest.LogCaptureFixture) -> None:
    steps: list[int] = []

    def note(name: str, value: float, step: int) -> None:
        steps.append(step)

    GnnModel(settings(epochs=50, max_minutes=1e-6), 2).fit(TRAIN, VALID, seed=0, report=note)
    assert max(steps) == 1
    assert "after 1 of 50 epochs" in caplog.text
    hopeless = settings(epochs=50, patience=2, learning_rate=1e-12)
    GnnModel(hopeless, 2).fit(TRAIN, VALID, seed=0, report=note)
    assert max(steps) < 50


def test_torch_is_left_as_it_was() -> None:
    threads = torch.get_num_threads()
    before = torch.random.get_rng_state()
    model = GnnModel(settings(), 2)
    model.fit(TRAIN, VALID, seed=0, report=silent)
    model.predict(VALID.graphs)
    assert torch.get_num_threads() == threads
    assert (torch.random.get_rng_state() == before).all()
    assert not torch.are_deterministic_algorithms_enabled()
