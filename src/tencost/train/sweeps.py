"""Sweeps of a training: over every combination of some choices, or a search for the best settings.

A command line asks for a search by ``hydra/sweeper: optuna`` (conf/experiment/search_xgb.yaml; the words are in
:mod:`tencost.config.search_words`). Its trials are whole trainings, each a run in MLflow. With a pruner, which
`execution=ray` always has, a trial trains one seed, of which nothing is kept, and reports its validation metric at each
step; the best settings are trained in full at the end.

The name of a search is the experiment's and a digest of everything that it asks for; its study and its models lie under
that name in ``mlruns/sweeps/``: the same command again goes on with the trials that are missing. ``n_trials`` counts
those of earlier commands, too.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.trial import Trial

from tencost.config import Config, ExecutionKind, composition
from tencost.config.search_words import CHOICES, WORDS
from tencost.errors import ConfigError
from tencost.tracking import runs as tracking
from tencost.train.search_report import log_search
from tencost.workers.parallel import search as searching
from tencost.workers.parallel.search import Search, TrialFunction

Training = Callable[[Config, Path, Path], float]
"""Trains what a configuration says, given the project's root and a folder for the models; returns the metric."""

METRIC = "train/valid_choice"
"""The metric that rankers log while they train; higher is better."""
_METHOD_WORDS = ("execution", "jobs", "hydra.sweep")
"""Beginnings of words that change how settings are searched, and not what is searched for."""


def run(
    command: str, overrides: list[str], train: Training, watched: TrialFunction | None = None
) -> Any:
    """Run ``tencost <command> -m``.

    Args:
        command: the stage.
        overrides: words of its command line.
        train: trains one combination or trial, a function of a module, as workers import it.
        watched: a trial that reports its steps; None: the stage has none.

    Raises:
        ConfigError: the words of a search are wrong, or another command runs it.
        TrainError: no trial has a value.
    """
    from hydra.core.hydra_config import HydraConfig

    def train_combination(config: Config, root: Path) -> float:
        return train(config, root, Path(HydraConfig.get().runtime.output_dir))

    root, _ = composition.config_folder()
    search, words = planned(overrides)
    if search is not None and search.pruner is not None and watched is None:
        raise ConfigError(
            f"tencost {command} -m: expected a search without a pruner, found one with it (hydra/sweeper/pruner, "
            "execution=ray)"
        )
    with tracking.parent_run(root, "sweep " + " ".join(overrides)) as run_id:
        if search is None:
            return composition.run_sweep(train_combination, command, overrides)
        trial = _train_whole if search.pruner is None or watched is None else watched
        with searching.opened(search) as study:
            try:
                searching.run(search, study, trial, (words, train))
            finally:
                log_search(root, run_id, search, study, "valid/choice", partial(_with, words))
        if search.pruner is not None:
            settings = searching.best_trial(study).params
            config, _ = composition.compose(_with(words, settings))
            return train(config, root, search.folder / "best")


def _train_whole(trial: Trial, material: tuple[Sequence[str], Training], folder: Path) -> float:
    words, train = material
    config, root = composition.compose(_with(words, trial.params))
    return train(config, root, folder)


def train_watched(trial: Trial, command: tuple[Sequence[str], Training], folder: Path) -> float:
    """Train one seed of a ranker, and report the best validation metric so far at each step; nothing is kept of it."""
    from tencost.models.programs.ranker import make_ranker
    from tencost.models.programs.ranker.losses import RankingMetrics
    from tencost.train.data import Data
    from tencost.train.fit.seeds import ranked
    from tencost.train.programs import read_material

    del folder
    config, root = composition.compose([*_with(command[0], trial.params), "folds=0"])
    material = read_material(config, Data(config, root))
    ranker = make_ranker(config.model, material.spec)
    best, last = -math.inf, 0

    def log(name: str, value: float, step: int) -> None:
        nonlocal best, last
        if name == METRIC and step > last:
            best, last = max(best, value), step
            searching.report_value(trial, best, step)

    ranker.fit(material.train, material.valid, seed=config.seeds[0], log=log)
    metrics = RankingMetrics(material.valid.label, material.valid.group)
    return metrics(ranked(ranker, material.valid)).get("choice", math.nan)


def _with(words: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    return [*words, *(f"{name}={value}" for name, value in settings.items())]


def planned(overrides: Sequence[str]) -> tuple[Search | None, list[str]]:
    """Return the search that a command line asks for, and its words without the settings that are searched.

    There is no search where it is a sweep over every combination.

    Raises:
        ConfigError: the command line cannot be composed, or words of the search are wrong.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    params, words = {}, []
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    for override, word in zip(parsed, overrides, strict=True):
        if override.is_sweep_override():
            params[override.get_key_element().lstrip("+")] = word.partition("=")[2]
        else:
            words.append(word)
    sweeper = composition.sweeper(words)
    if "optuna" not in str(sweeper.get("_target_", "")):
        return None, words
    if unknown := sorted(set(sweeper) - set(WORDS)):
        raise ConfigError(f"hydra.sweeper: expected {', '.join(WORDS)}; found {', '.join(unknown)}")
    if sweeper["direction"] not in ("minimize", "maximize"):
        raise ConfigError(
            f"hydra.sweeper.direction must be minimize or maximize, found {sweeper['direction']}"
        )
    assigned = {word.partition("=")[0].lstrip("+") for word in words} | set(params)
    for name, text in (sweeper["params"] or {}).items():
        if name not in assigned:
            params[name] = str(text)
    target = sorted(word for word in words if not word.lstrip("+").startswith(_METHOD_WORDS))
    question = orjson.dumps([target, sorted(params.items()), sweeper["direction"]])
    distributions = {name: distribution(name, text) for name, text in params.items()}
    words += [f"{name}={params[name]}" for name, space in distributions.items() if space is None]
    return _search(sweeper, distributions, hashlib.sha256(question).hexdigest()[:8], words), words


def _search(
    sweeper: Mapping[str, Any],
    distributions: Mapping[str, BaseDistribution | None],
    digest: str,
    words: list[str],
) -> Search:
    config, root = composition.compose(words)
    on_ray = config.execution.kind is ExecutionKind.ray
    pruner = sweeper["pruner"] or (CHOICES["pruner"]["halving"] if on_ray else None)
    if pruner is not None and pruner["_target_"] == CHOICES["pruner"]["halving"]["_target_"]:
        steps = getattr(config.model, "num_rounds", 0) or getattr(config.model, "epochs", 0)
        pruner = {"min_resource": max(1, steps // 5), **pruner}
    name = f"{sweeper['study_name'] or 'search'}-{digest}{'-pruned' if pruner else ''}"
    rate = sweeper["max_failure_rate"]
    search = Search(
        name=str(sweeper["study_name"] or name) if sweeper["storage"] else name,
        folder=root / "mlruns" / "sweeps" / name,
        space={name: space for name, space in distributions.items() if space is not None},
        trials=int(sweeper["n_trials"]),
        sampler=partial(_sampler, sweeper["sampler"]),
        pruner=None if pruner is None else _instantiate("pruner", pruner),
        maximize=sweeper["direction"] == "maximize",
        storage=sweeper["storage"],
        failure_rate=float(pruner is not None) if rate is None else float(rate),
        jobs=config.jobs if on_ray else int(sweeper["n_jobs"]),
        execution=config.execution,
    )
    search.sampler(0)  # raises what is wrong with its words
    return search


def distribution(name: str, text: str) -> BaseDistribution | None:
    """Return Optuna's distribution of a setting in Hydra's words; None of a single value. Ranges include their end.

    Raises:
        ConfigError: something that cannot be searched.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import IntervalSweep, RangeSweep, Transformer
    from hydra.errors import HydraException

    try:
        [override] = OverridesParser.create().parse_overrides([f"{name}={text}"])
        if not override.is_sweep_override():
            return None
        sweep: Any = override.value()
        if isinstance(sweep, IntervalSweep):
            return _numbers(sweep.start, sweep.end, log="log" in sweep.tags)
        if isinstance(sweep, RangeSweep) and not sweep.shuffle:
            return _numbers(sweep.start, sweep.stop, step=sweep.step)
        sweep.shuffle = False  # a search that goes on must have the same order of choices
        return CategoricalDistribution([*override.sweep_iterator(Transformer.encode)])  # type: ignore[list-item]
    except (HydraException, TypeError, ValueError) as error:
        raise ConfigError(
            f"hydra.sweeper.params.{name}: expected choices, a range or an interval, found {text!r} ({error})"
        ) from error


def _numbers(low: Any, high: Any, **options: Any) -> BaseDistribution:
    whole = all(isinstance(bound, int) for bound in (low, high, options.get("step", 1)))
    return (IntDistribution if whole else FloatDistribution)(low, high, **options)


def _sampler(words: Mapping[str, Any], trials: int) -> BaseSampler:
    """Make the sampler of a trial, which draws with another seed than the trials before it."""
    if words.get("seed") is not None:
        words = {**words, "seed": words["seed"] + trials}
    sampler: BaseSampler = _instantiate("sampler", words)
    return sampler


def _instantiate(kind: str, words: Mapping[str, Any]) -> Any:
    from hydra.errors import HydraException
    from hydra.utils import instantiate

    try:
        with warnings.catch_warnings(category=ExperimentalWarning, action="ignore"):
            return instantiate(dict(words))
    except HydraException as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"hydra.sweeper.{kind}: {reason}") from error
