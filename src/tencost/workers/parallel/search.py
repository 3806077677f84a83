"""A search for settings with Optuna: workers, processes of this host or of a Ray cluster, each ask, try and tell.

A trial is a function ``function(trial, data, folder)`` of a module, as workers import it. It reads its settings from
``trial.params``, returns their value, and calls `report` at each step where the pruner may end it. `data` is the same
for all trials; `folder` is for what an interrupted trial needs to go on.

The study is a journal in the search's folder, which all machines of a cluster must share, or lies in a storage of the
user's. A trial that is RUNNING though its worker is gone becomes FAIL, and its settings are tried before any others, in
the folder that it had.
"""

from __future__ import annotations

import contextlib
import math
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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

if TYPE_CHECKING:
    from collections.abc import Generator

TrialFunction = Callable[[Trial, Any, Path], float]

NOTE = "note"
"""Attribute of a trial: why it has no value of its own. An interrupted trial has no such attribute."""
TRIAL_LIMIT_S = 24 * 3600.0
"""Seconds that one trial may take before its worker is thought to hang."""

_FOLDER, _SLOT = "folder", "slot"
"""Attributes of a trial: the folder that it takes over from an interrupted one; which item of the workers it is."""
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
        storage: an SQLAlchemy URL, or a mapping with Hydra's ``_target_``; None: the journal.
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
    storage: str | Mapping[str, Any] | None = None
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
            storage=_open_storage(self.storage or self.journal),
            pruner=self.pruner or NopPruner(),
            direction="maximize" if self.maximize else "minimize",
            load_if_exists=True,
        )
        study.sampler = self.sampler(len(study.get_trials(deepcopy=False)))
        return study


def tpe(seed: int, trials: int) -> BaseSampler:
    """Return TPE (Bergstra et al. 2011) for a trial, which draws with another seed than the trials before it."""
    return TPESampler(seed=seed + trials, multivariate=False, constant_liar=True)


def halving(steps: int) -> BasePruner:
    """Return ASHA (Li et al. 2020): it ends the worse half early, none before a fifth of its steps."""
    return SuccessiveHalvingPruner(min_resource=max(1, steps // 5), reduction_factor=2)


def report(trial: Trial, value: float, step: int) -> None:
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
        reason = f"{len(trials)} that failed: {trials[-1].user_attrs[NOTE]}" if trials else "none"
        raise TrainError(f"expected a trial that trains, found {reason}")
    best = max if study.direction == optuna.study.StudyDirection.MAXIMIZE else min
    return best(valued, key=lambda trial: trial.value or 0.0)


@contextlib.contextmanager
def opened(search: Search) -> Iterator[optuna.Study]:
    """Have the study of a search, new or as earlier commands left it, which no other command runs meanwhile.

    Raises:
        ConfigError: another command runs the search, or as `Search.open_study`.
    """
    from filelock import FileLock, Timeout

    search.folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(search.folder / "search.lock", timeout=0))
        except Timeout as error:
            raise ConfigError(
                f"{search.folder}: expected a search that no other command runs, found one that does"
            ) from error
        # A kill may have left the journal's lock, and a line that it cut off.
        Path(f"{search.journal}.lock").unlink(missing_ok=True)
        if search.journal.is_file():
            os.truncate(search.journal, search.journal.read_bytes().rfind(b"\n") + 1)
        yield search.open_study()


def run(search: Search, study: optuna.Study, function: TrialFunction, data: Any) -> None:
    """Run the trials that a study lacks.

    Args:
        search: how settings are searched.
        study: of `opened`.
        function: a trial, see this module.
        data: sent to each worker once.

    Raises:
        ExecutionError: a machine of the cluster cannot be used.
        TrainError: no trial has a value.
        Exception: the error of a trial, where more failed than `failure_rate` allows.
    """
    for trial in study.get_trials(states=_RUNNING):
        _repeat(study, trial)
    missing = search.trials - len(study.get_trials(states=_VALUED))
    if missing > 0 and not _is_exhausted(study):
        shared = (search, function, data, Path.cwd())
        workers = open_workers(_work, shared, search.execution, search.jobs, TRIAL_LIMIT_S)
        rescue: Rescue[int, _Outcome] = Rescue(lambda slot, reason: _lose(study, slot, reason))
        failed = ended = 0
        outcomes = in_order(workers, range(missing), rescue)
        with contextlib.closing(cast("Generator[Sequence[_Outcome]]", outcomes)):
            for line, error in chain.from_iterable(outcomes):
                ended += 1
                failed += error is not None
                if error is not None and failed > search.failure_rate * ended:
                    raise error
                Console(stderr=True, soft_wrap=True).print(
                    f"{search.name}: {line}", highlight=False, markup=False
                )
    best_trial(study)


def _work(shared: tuple[Search, TrialFunction, Any, Path], slot: int) -> Sequence[_Outcome]:
    """Ask for settings, try them, and tell the study how it went; nothing where there are none left to try."""
    search, function, data, working_folder = shared
    os.chdir(working_folder)
    study = search.open_study()
    for lost in _running(study, slot):
        _repeat(study, lost)
    if _is_exhausted(study):
        return []
    trial = study.ask(dict(search.space))
    trial.set_user_attr(_SLOT, slot)
    folder = search.folder / str(trial.user_attrs.get(_FOLDER, trial.number))
    value, state, note, failure = None, TrialState.FAIL, "", None
    try:
        value = float(function(trial, data, folder))
        if math.isfinite(value):
            state = TrialState.COMPLETE
        else:
            value, note = None, f"its value is {value}"
    except optuna.TrialPruned:
        state, note = TrialState.PRUNED, "pruned"
    except Exception as error:  # noqa: BLE001 - the search decides what is done about it
        if not isinstance(error, TencostError):
            traceback.print_exc()
        note, failure = _last_line(error), error
    trial.set_user_attr(NOTE, note)
    _tell(study, trial.number, state, value)
    return [(f"trial {trial.number}: {note or f'{value:.4f}'}", failure)]


def _is_exhausted(study: optuna.Study) -> bool:
    waiting = study.get_trials(states=(TrialState.WAITING,))
    return _EXHAUSTED in study.user_attrs and not waiting


def _tell(study: optuna.Study, number: int, state: TrialState, value: float | None = None) -> None:
    try:
        study.tell(number, value, state=state)
    except RuntimeError as error:  # how the sampler of a grid says that it has tried all of it
        if "Study.stop" not in str(error):
            raise
        study.set_user_attr(_EXHAUSTED, True)


def _repeat(study: optuna.Study, trial: FrozenTrial) -> None:
    """End an interrupted trial, and have its settings tried before any others."""
    _tell(study, trial.number, TrialState.FAIL)
    folder = trial.user_attrs.get(_FOLDER, trial.number)
    study.enqueue_trial(trial.params, user_attrs={_FOLDER: folder})


def _running(study: optuna.Study, slot: int) -> list[FrozenTrial]:
    """Return the trials that dead workers left of an item."""
    trials = study.get_trials(states=_RUNNING)
    return [trial for trial in trials if trial.user_attrs.get(_SLOT) == slot]


def _lose(study: optuna.Study, slot: int, reason: str) -> list[_Outcome]:
    """Fail the trial of an item whose workers died again and again."""
    error = TrainError(f"{reason} each time a trial was tried, most often for want of memory")
    for trial in _running(study, slot):
        Trial(study, trial._trial_id).set_user_attr(NOTE, str(error))
        _tell(study, trial.number, TrialState.FAIL)
    return [(str(error), error)]


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _open_storage(storage: str | Mapping[str, Any] | Path) -> BaseStorage:
    if isinstance(storage, Path):
        return JournalStorage(JournalFileBackend(str(storage)))
    from hydra.utils import instantiate

    try:
        opened_storage: BaseStorage = (
            optuna.storages.get_storage(storage)
            if isinstance(storage, str)
            else instantiate(dict(storage))
        )
    except Exception as error:
        reason = str(error).partition("\n")[0]
        if "storage upgrade" in str(error):
            reason = f"one of an older version, see `optuna storage upgrade --storage {storage}`"
        raise ConfigError(
            f"hydra.sweeper.storage={storage}: expected a storage of Optuna {optuna.__version__}, found {reason}"
        ) from error
    return opened_storage
