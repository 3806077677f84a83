"""The training loop itself, with a network of one weight: which epoch's weights it returns, and how it is ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from mlflow import MlflowClient

from tencost import signals
from tencost.config import Config
from tencost.features.rows.ragged import IntArray
from tencost.models.neural.loop import (
    Optimizers,
    SelectionMetric,
    TrainingOutcome,
    TrainingPlan,
    fit_network,
    seeded,
)
from tencost.tracking.runs import setup, start_run


class Falling:
    """A weight that falls by 1 in each step; `metrics` gives those of each epoch."""

    num_batches = 2

    def __init__(
        self, metrics: Callable[[int], dict[str, float]], each_step: Callable[[int], None]
    ) -> None:
        self.network = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.network.weight)
        self._metrics, self._each_step = metrics, each_step
        self._epoch = 0

    def batches(self, epoch: int) -> Iterator[IntArray]:
        self._epoch = epoch
        return iter([np.array([0])] * self.num_batches)

    def loss(self, chosen: IntArray, step: int) -> torch.Tensor:
        self._each_step(step)
        loss: torch.Tensor = self.network(torch.ones(len(chosen), 1)).sum()
        return loss

    def validate(self) -> dict[str, float]:
        assert not self.network.training
        assert not torch.is_grad_enabled()
        return self._metrics(self._epoch)


def constant_rate(network: torch.nn.Module, *_: object) -> Optimizers:
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1000), "epoch"


def fit(
    metrics: Callable[[int], dict[str, float]] = lambda _: {},
    each_step: Callable[[int], None] = lambda _: None,
    best: SelectionMetric | None = None,
    patience: int = 0,
) -> TrainingOutcome:
    plan = TrainingPlan(
        epochs=4, gradient_clip=10.0, optimizers=constant_rate, best=best, patience=patience
    )
    with seeded(0, 1):
        return fit_network(Falling(metrics, each_step), plan, lambda *_: None)


@pytest.mark.parametrize(
    ("best", "patience", "values", "epoch", "epochs"),
    [
        (None, 0, [1.0, 2.0, 3.0, 2.0], 0, 4),
        (SelectionMetric("m", higher_is_better=True), 0, [1.0, 3.0, 3.0, 2.0], 2, 4),
        (SelectionMetric("m", higher_is_better=False), 0, [3.0, 1.0, 1.0, 2.0], 2, 4),
        (SelectionMetric("m", higher_is_better=False), 2, [1.0, 2.0, 3.0, 0.0], 1, 3),
        (
            SelectionMetric("m", higher_is_better=True),
            0,
            [float("nan"), 2.0, float("nan"), 1.0],
            2,
            4,
        ),
        (SelectionMetric("other", higher_is_better=True), 1, [1.0, 2.0, 3.0, 2.0], 0, 4),
    ],
)
def test_the_weights_are_those_of_the_best_epoch(
    best: SelectionMetric | None, patience: int, values: list[float], epoch: int, epochs: int
) -> None:
    outcome = fit(lambda index: {"m": values[index]}, best=best, patience=patience)
    assert (outcome.epoch, outcome.epochs) == (epoch, epochs)
    steps = Falling.num_batches * (epoch or epochs)
    assert outcome.weights["weight"].tolist() == [[-steps]]


def test_steps_are_counted_over_all_epochs() -> None:
    steps: list[int] = []
    fit(each_step=steps.append)
    assert steps == list(range(8))


def interrupt_at(step: int, number: int, steps: list[int]) -> None:
    steps.append(step)
    if step == 2:
        signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_training_at_once_and_its_run_as_killed(
    number: int, toy_project: Path, toy_config: Config
) -> None:
    """Lightning makes an exit of Ctrl-C (FAILED, not KILLED), and holds SIGTERM back until the epoch is over."""
    steps: list[int] = []
    run_ids: list[str] = []

    def train() -> None:
        with start_run(toy_config, toy_project, stage="train") as tracked:
            run_ids.append(tracked.run_id)
            fit(each_step=partial(interrupt_at, number=number, steps=steps))

    with signals.listening():
        handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
        with pytest.raises(KeyboardInterrupt):
            train()
        assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert steps == [0, 1, 2]
    client = MlflowClient(setup(toy_project))
    assert client.get_run(run_ids[0]).info.status == "KILLED"
    with signals.listening():
        pass  # no signal has come to what this process does next


def test_sigterm_ends_a_worker_process_at_once() -> None:
    """A worker has no handler for SIGTERM, and needs none: its parent has the run."""
    code = (
        "import signal, sys; from test_loop import fit, interrupt_at; from functools import partial\n"
        "fit(each_step=partial(interrupt_at, number=signal.SIGTERM, steps=[]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, check=False
    )
    assert ended.returncode == -signal.SIGTERM, ended.stderr.decode()
