"""A search for settings with Optuna: workers, processes of this host or of a Ray cluster, each ask, try and tell.

A trial is a function ``function(trial, material, folder)`` of a module, as workers import it. It reads its settings
from ``trial.params``, returns their value, and calls `report_value` at each step where the pruner may end it.
`material` is the same for all trials; `folder` is for what an interrupted trial needs to go on.

The study is a journal in the search's folder, which all machines of a cluster must share, or lies in a database of the
user's. A trial that an interrupted command left RUNNING becomes FAIL, and the next command tries its settings before
any others, in the folder that it had.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState
from rich.console import Console

from tencost.config import ExecutionConfig
from tencost.errors import ConfigError, TencostError, TrainError
from tencost.workers.parallel.mapping import Rescue, in_order
from tencost.workers.parallel.workers import open_workers

TrialFunction = Callable[[Trial, Any, Path], float]

NOTE = "note"
"""Attribute of a trial: why it has no value of its own. An interrupted trial has no such attribute."""
TRIAL_LIMIT_S = 24 * 3600.0
"""Seconds that one trial may take before its worker is thought to hang."""

_FOLDER = "folder"
"""Attribute of a trial: the folder that it takes over from an interrupted one."""
_EXHAUSTED = "exhausted"
"""Attribute of a study: its sampler has tried every combination."""
_RUNNING, _VALUED = (TrialState.RUNNING,), (TrialState.COMPLETE, TrialState.PRUNED)
_Outcome = tuple[str, Exception | None]
"""What is printed of a trial, and its error."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """How settings are searched.

    Attributes:
        name: of the study.
        folder: of the search, with the journal and a folder for each trial.
        space: setting -> its distribution.
        trials: how many have a value in the end, those of earlier commands included.
        sampler: makes the sampler of a trial, given how many trials there are; a function that can be pickled.
        pruner: ends trials early by what they report; None: they report nothing.
        maximize: whether large values are good.
        storage: the URL of a database; None: the journal.
        failure_rate: share of the command's trials that may fail before the search fails.
        jobs: trials side by side; None: one for every core.
        execution: where trials run; None: processes of this host.
    """

    name: str
    folder: Path
    space: Mapping[str, BaseDistribution]
    trials: int
    sampler: Callable[[int], BaseSampler]
    pruner: BasePruner | None = None
    maximize: bool = False
    storage: str | None = None
    failure_rate: float = 1.0
    jobs: int | None = None
    execution: ExecutionConfig | None = None

    @property
    def journal(self) -> Path:
        """The file with the study, unless `storage` names another place."""
        return self.folder / "study.log"

    def open_study(self) -> optuna.Study:
        """Open the study, or create it.

        Raises:
            ConfigError: the storage cannot be opened, or an older Optuna wrote it.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            study_name=self.name,
            storage=self._open_storage(),
            pruner=self.pruner or NopPruner(),
            direction="maximize" if self.maximize else "minimize",
            load_if_exists=True,
        )
        study.sampler = self.sampler(len(study.get_trials(deepcopy=False)))
        return study

    def _open_storage(self) -> BaseStorage:
        if self.storage is None:
            return JournalStorage(JournalFileBackend(str(self.journal)))
        try:
            return optuna.storages.get_storage(self.storage)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            if "storage upgrade" in str(error):
                reason = f"one of an older version: see `optuna storage upgrade --storage {self.storage}`"
            raise ConfigError(
                f"hydra.sweeper.storage={self.storage}: expected a database of Optuna {optuna.__version__}, found "
                f"{reason}"
            ) from error


def tpe(seed: int, trials: int) -> BaseSampler:
    """Return TPE (Bergstra et al. 2011) for a trial, which draws with another seed than the trials before it."""
    return TPESampler(seed=seed + trials, multivariate=False, constant_liar=True)


def halving(steps: int) -> BasePruner:
    """Return ASHA (Li et al. 2020): it ends the worse half early, none before a fifth of its steps."""
    return SuccessiveHalvingPruner(min_resource=max(1, steps // 5), reduction_factor=2)


def report_value(trial: Trial, value: float, step: int) -> None:
    """Report a trial's value at a step.

    Raises:
        optuna.TrialPruned: the pruner ends the trial.
    """
    trial.report(value, step)
    if trial.should_prune():
        raise optuna.TrialPruned


def ended_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that have a value or failed; not those that were interrupted."""
    return [trial for trial in study.trials if trial.state in _VALUED or NOTE in trial.user_attrs]


def best_trial(study: optuna.Study) -> FrozenTrial:
    """Return the trial with the best value, pruned ones included; the first of them on ties.

    Raises:
        TrainError: no trial has a value.
    """
    trials = ended_trials(study)
    valued = [trial for trial in trials if trial.value is not None]
    if not valued:
        reason = (
            f"{len(trials)} that failed: {trials[-1].user_attrs.get(NOTE)}" if trials else "none"
        )
        raise TrainError(f"expected a trial that trains, found {reason}")
    best = max if study.direction == optuna.study.StudyDirection.MAXIMIZE else min
    return best(valued, key=lambda trial: trial.value or 0.0)


@contextlib.contextmanager
def opened(search: Search, *, anew: bool = False) -> Iterator[optuna.Study]:
    """Have the study of a search as earlier commands left it, or anew; no other command runs it meanwhile.

    Raises:
        ConfigError: another command runs the search, or as `Search.open_study`.
    """
    from filelock import FileLock, Timeout

    search.folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(f"{search.folder}.lock", timeout=0))
        except Timeout as error:
            raise ConfigError(
                f"{search.folder}: expected a search that no other command runs, found one that does"
            ) from error
        if anew:
            shutil.rmtree(search.folder, ignore_errors=True)
        search.folder.mkdir(exist_ok=True)
        # A kill may have left the journal's lock, and a line that it cut off.
        Path(f"{search.journal}.lock").unlink(missing_ok=True)
        if search.journal.is_file():
            os.truncate(search.journal, search.journal.read_bytes().rfind(b"\n") + 1)
        yield search.open_study()


def run(search: Search, study: optuna.Study, function: TrialFunction, material: Any) -> None:
    """Run the trials that a study lacks.

    Args:
        search: how settings are searched.
        study: of `opened`.
        function: a trial, see this module.
        material: sent to each worker once.

    Raises:
        ExecutionError: a machine of the cluster cannot be used.
        TrainError: no trial has a value.
        Exception: the error of a trial, where more failed than `failure_rate` allows.
    """
    for trial in study.get_trials(states=_RUNNING):
        _tell(study, trial.number, TrialState.FAIL)
        folder = trial.user_attrs.get(_FOLDER, trial.number)
        study.enqueue_trial(trial.params, user_attrs={_FOLDER: folder})
    waiting = study.get_trials(states=(TrialState.WAITING,))
    missing = search.trials - len(study.get_trials(states=_VALUED))
    if waiting or _EXHAUSTED not in study.user_attrs:
        _run_trials(search, missing, (search, function, material, Path.cwd()))
    for trial in study.get_trials(states=_RUNNING):
        Trial(study, trial._trial_id).set_user_attr(NOTE, "its worker died")
        _tell(study, trial.number, TrialState.FAIL)
    best_trial(study)


def _run_trials(search: Search, count: int, shared: tuple[Any, ...]) -> None:
    def lose(_: int, reason: str) -> Sequence[_Outcome]:
        error = TrainError(f"{reason} each time a trial was tried, most often for want of memory")
        return [(str(error), error)]

    if count <= 0:
        return
    workers = open_workers(_work, shared, search.execution, search.jobs, TRIAL_LIMIT_S)
    failed = ended = 0
    with contextlib.closing(in_order(workers, range(count), Rescue(lose))) as outcomes:
        for line, error in chain.from_iterable(outcomes):
            ended += 1
            failed += error is not None
            if error is not None and failed > search.failure_rate * ended:
                raise error
            Console(stderr=True, soft_wrap=True).print(
                f"{search.name}: {line}", highlight=False, markup=False
            )


def _work(shared: tuple[Search, TrialFunction, Any, Path], _: int) -> Sequence[_Outcome]:
    """Ask for settings, try them, and tell the study how it went; nothing where there are none left to try."""
    search, function, material, working_folder = shared
    os.chdir(working_folder)
    study = search.open_study()
    waiting = study.get_trials(states=(TrialState.WAITING,))
    if _EXHAUSTED in study.user_attrs and not waiting:
        return []
    trial = study.ask(dict(search.space))
    folder = search.folder / str(trial.user_attrs.get(_FOLDER, trial.number))
    value, state, note, failure = None, TrialState.FAIL, "", None
    try:
        value = float(function(trial, material, folder))
        if math.isfinite(value):
            state = TrialState.COMPLETE
        else:
            value, note = None, f"its value is {value}"
    except optuna.TrialPruned:
        state, note = TrialState.PRUNED, "pruned"
    except Exception as error:  # noqa: BLE001 - the search decides what is done about it
        if not isinstance(error, TencostError):
            traceback.print_exc()
        note, failure = (str(error).splitlines() or [type(error).__name__])[-1], error
    trial.set_user_attr(NOTE, note)
    _tell(study, trial.number, state, value)
    return [(f"trial {trial.number}: {note or f'{value:.4f}'}", failure)]


def _tell(study: optuna.Study, number: int, state: TrialState, value: float | None = None) -> None:
    try:
        study.tell(number, value, state=state)
    except RuntimeError as error:  # how the sampler of a grid says that it has tried all of it
        if "Study.stop" not in str(error):
            raise
        study.set_user_attr(_EXHAUSTED, True)
