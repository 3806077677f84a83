"""Search for settings with Ray Tune.

HyperOpt proposes (Bergstra et al. 2013, TPE); ASHA ends the worse half of the trials early (Li et al. 2020, "A System
for Massively Parallel Hyperparameter Tuning").

Ray is started for one search, or one that runs is used, see :mod:`tencost.workers.parallel.ray_cluster`. What is needed
to go on after an interruption lies in the search's folder, which all machines of a cluster must share: ``trials/`` is
Ray's, ``training/<trial>/`` holds what a trial's training was at after its last epoch.

A trial is a function ``trial(settings, data, folder)`` of a module, as Ray's processes import it: `data` is the same
for all and `folder` is the trial's own. It calls `tell` with its metrics once an epoch.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from tencost.config import ExecutionConfig
from tencost.errors import ExecutionError, TrainError
from tencost.workers.parallel.ray_cluster import (  # before Ray, whose environment it prepares
    environment,
    running,
)
from tencost.workers.parallel.ray_tasks import require_code
from tencost.workers.parallel.sources import code

# isort: split
from ray import tune
from ray.tune.callback import Callback
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.hyperopt import HyperOptSearch

choice, randint, uniform, loguniform = tune.choice, tune.randint, tune.uniform, tune.loguniform
"""Domains of settings."""

Settings = dict[str, Any]
"""What a trial tries: name -> value."""

TrialFunction = Callable[[Settings, Any, Path], None]

EPOCH = "epoch"
"""The metric that tells time: epochs that are over."""

_TRIALS, _TRAINING = "trials", "training"
_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",  # the new output prints a banner even where it shall be silent
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # an interrupt ends the search like every other command
    "TUNE_GLOBAL_CHECKPOINT_S": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}
_GRACE = 5
"""No trial is ended before a fifth of its epochs, as in the CG benchmark."""
_STORE_BYTES = 100 * 2**20
"""Ray's object store beside the data, bytes; less it refuses."""


class Watch(Protocol):
    """Is told in the searching process what happens to trials."""

    def started(self, trial: str, settings: Settings) -> None:
        """Take note of a trial that begins or, after an interruption, goes on."""

    def told(self, trial: str, metrics: Mapping[str, Any]) -> None:
        """Take note of what a trial told."""

    def ended(self, trial: str, error: str | None) -> None:
        """Take note of a trial's end: by itself, by ASHA, or with an error."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How is searched.

    Attributes:
        folder: of the search; made, and emptied unless it is resumed.
        metric: that trials tell and that shall be small.
        trials: how many.
        epochs: of a trial at most.
        cpus: that all trials together use.
        cpus_a_trial: that one trial uses, at most `cpus`.
        seed: of the proposals.
        data_bytes: size of the data, about.
        execution: the cluster; by default one that is started on this host.
    """

    folder: Path
    metric: str
    trials: int
    epochs: int
    cpus: int
    cpus_a_trial: int
    seed: int
    data_bytes: int = 0
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        settings: of the best trial.
        metrics: what it told last.
        trials: that were begun.
        failed: that ended with an error.
        tried: of every trial its settings, what it told last, and its error's last line.
    """

    settings: Settings
    metrics: dict[str, float]
    trials: int
    failed: int
    tried: tuple[tuple[Settings, dict[str, float], str], ...] = ()


def resumable(folder: Path) -> bool:
    """Say whether an interrupted search lies in a folder."""
    return tune.Tuner.can_restore(str(folder / _TRIALS))


def tell(**metrics: float) -> None:
    """Tell the search how a trial stands; in a trial only. `epoch` must be among the metrics."""
    tune.report(metrics)


def search(
    trial: TrialFunction,
    space: Mapping[str, Any],
    data: Any,
    plan: Plan,
    watch: Watch,
    *,
    resume: bool = False,
) -> Found:
    """Search, and return the best settings.

    Args:
        trial: see this module.
        space: name -> a domain (choice, randint, uniform) or a value.
        data: what every trial gets; it is put into shared memory once, so that its arrays are read-only.
        plan: how is searched.
        watch: is told what happens.
        resume: go on with the search in plan.folder, which was made with the same arguments: trials that had ended
            are kept, the others go on where their folder says they were.

    Raises:
        ExecutionError: a machine of the cluster runs other code.
        TrainError: every trial failed.
    """
    if not resume:
        shutil.rmtree(plan.folder, ignore_errors=True)
    plan.folder.mkdir(parents=True, exist_ok=True)
    with _running(plan), _watched(watch, plan):
        function = tune.with_resources(
            tune.with_parameters(
                functools.partial(_trial, trial, str(plan.folder / _TRAINING), code()), data=data
            ),
            {"cpu": plan.cpus_a_trial},
        )
        if resume:
            tuner = tune.Tuner.restore(
                str(plan.folder / _TRIALS), function, param_space=dict(space)
            )
        else:
            tuner = _tuner(function, space, plan)
        with contextlib.redirect_stdout(io.StringIO()):
            results = tuner.fit()
    shutil.rmtree(plan.folder / _TRAINING, ignore_errors=True)
    for error in results.errors:
        if isinstance(error, ExecutionError):
            raise ExecutionError(str(error).strip().splitlines()[-1])
    told = [
        found
        for found in results
        if found.metrics and math.isfinite(found.metrics.get(plan.metric, math.nan))
    ]
    if not told:
        errors = [str(error) for error in results.errors]
        reason = errors[0].strip().splitlines()[-1] if errors else "no trial told its metrics"
        raise TrainError(
            f"expected a trial that trains, found {len(results)} that failed: {reason}"
        )
    best = min(told, key=lambda found: found.metrics[plan.metric])
    tried = tuple(
        (_plain(found.config or {}), _numbers(found.metrics or {}), _last_line(found.error))
        for found in results
    )
    numbers = _numbers(best.metrics)
    return Found(_plain(best.config), numbers, len(results), results.num_errors, tried)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _last_line(error: BaseException | None) -> str:
    return "" if error is None else str(error).strip().splitlines()[-1]


def _tuner(function: Any, space: Mapping[str, Any], plan: Plan) -> tune.Tuner:
    proposals = HyperOptSearch(random_state_seed=plan.seed)
    scheduler = ASHAScheduler(
        time_attr=EPOCH,
        max_t=plan.epochs,
        grace_period=max(1, plan.epochs // _GRACE),
        reduction_factor=2,
    )
    return tune.Tuner(
        function,
        param_space=dict(space),
        tune_config=tune.TuneConfig(
            metric=plan.metric,
            mode="min",
            num_samples=plan.trials,
            search_alg=proposals,
            scheduler=scheduler,
            max_concurrent_trials=max(1, plan.cpus // plan.cpus_a_trial),
            trial_dirname_creator=_identity,
        ),
        run_config=tune.RunConfig(
            name=_TRIALS, storage_path=str(plan.folder), verbose=0, callbacks=[_Forward()]
        ),
    )


def _identity(trial: Any) -> str:
    return str(trial.trial_id)


def _trial(
    function: TrialFunction, folder: str, expected: str, config: Settings, data: Any
) -> None:
    """Run a trial in a process of Ray's, where the code is that of the command."""
    require_code(expected)
    identity = tune.get_context().get_trial_id()
    function(_plain(config), data, Path(folder) / str(identity))


def _plain(settings: Mapping[str, Any]) -> Settings:
    """Return settings with Python's own numbers: HyperOpt gives NumPy's."""
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in settings.items()
    }


class _Forward(Callback):
    """Passes on what Ray tells. It has no state: Ray keeps a copy of it for a search that is resumed."""

    watch: ClassVar[Watch | None] = None
    training: ClassVar[Path] = Path()

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        del iteration, trials, info
        if self.watch is not None:
            self.watch.started(trial.trial_id, _plain(trial.config))

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        del iteration, trials, info
        if self.watch is not None:
            self.watch.told(trial.trial_id, result)

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        del iteration, trials, info
        self._end(trial, None)

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        del iteration, trials, info
        # Where the text of it lies is told later than this.
        lines = Path(trial.error_file).read_text(errors="replace").strip().splitlines()
        self._end(trial, lines[-1] if lines else "it ended without a word")

    def _end(self, trial: Any, error: str | None) -> None:
        shutil.rmtree(self.training / trial.trial_id, ignore_errors=True)
        if self.watch is not None:
            self.watch.ended(trial.trial_id, error)


@contextlib.contextmanager
def _watched(watch: Watch, plan: Plan) -> Iterator[None]:
    _Forward.watch, _Forward.training = watch, plan.folder / _TRAINING
    try:
        yield
    finally:
        _Forward.watch, _Forward.training = None, Path()


@contextlib.contextmanager
def _running(plan: Plan) -> Iterator[None]:
    logger = logging.getLogger("hyperopt")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # errors of trials are told here
    store_bytes = _STORE_BYTES + 2 * plan.data_bytes
    try:
        with environment(_ENVIRONMENT), running(plan.execution, plan.cpus, store_bytes):
            yield
    finally:
        logger.setLevel(level)
