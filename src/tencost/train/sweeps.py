"""Searches for settings of a family: Optuna's, or Ray Tune's with ASHA, from one search space, that of Hydra's sweeper.

An experiment of conf/ that chooses Hydra's Optuna sweeper (conf/experiment/search_xgb.yaml) names the space in
``hydra.sweeper.params``. With `execution=local` Optuna proposes and every trial is a training of its own; with
`execution=ray` HyperOpt proposes, trials run side by side on the cluster and tell their validation metric as they go,
ASHA ends the worse half early (:mod:`tencost.workers.parallel.search`), and the best settings are trained in full at
the end.

A search has a name, made of the experiment's and of a digest of everything that it asks for; what it found lies under
that name in ``mlruns/sweeps/``: the same command again goes on with what is missing. ``n_trials`` is how many there are
in all. The parent run in MLflow has the best trial, its settings, a table of all trials and a picture of the search.
"""

from __future__ import annotations

import csv
import hashlib
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console

from tencost.config import Config, composition
from tencost.errors import ConfigError, TrainError

if TYPE_CHECKING:
    from tencost.workers.parallel.search import Settings

VALUE = "train/valid_choice"
"""What rankers log while they train, and what is searched for: higher is better."""
_NOT_ASKED = ("execution", "jobs", "hydra.sweeper.n_trials", "hydra.sweeper.n_jobs", "hydra.sweep")
"""Words that change how is searched, not for what."""


@dataclass(frozen=True)
class Tried:
    """A trial: its settings, and its value where it has one."""

    number: int
    settings: Mapping[str, Any]
    value: float | None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A search that a command line asks for.

    Attributes:
        name: of the search.
        folder: where searches are kept.
        words: the command line's, without those that are searched.
        space: setting -> what it may be, in Hydra's words.
        trials: in all.
        minimize: whether small values are good.
        seed: of the proposals.
    """

    name: str
    folder: Path
    words: tuple[str, ...]
    space: dict[str, str]
    trials: int
    minimize: bool = False
    seed: int | None = None

    @property
    def journal(self) -> Path:
        """Return the file with Optuna's trials."""
        return self.folder / f"{self.name}.jsonl"

    def left(self) -> int:
        """Return how many of Optuna's trials are missing."""
        return max(0, self.trials - sum(one.value is not None for one in self.found()))

    def sweeper_words(self) -> list[str]:
        """Return what tells Hydra's sweeper to keep the study, and to go on with it."""
        storage = f"{{_target_: tencost.train.studies.Journal, path: '{self.journal}'}}"
        words = [f"hydra.sweeper.storage={storage}", f"hydra.sweeper.n_trials={self.left()}"]
        words.append(f"hydra.sweeper.study_name='{self.name}'")
        if self.seed is not None:  # else what is drawn at the beginning is drawn again
            words.append(f"hydra.sweeper.sampler.seed={self.seed + len(self.found())}")
        return words

    def found(self) -> list[Tried]:
        """Return Optuna's trials so far."""
        from tencost.train.studies import read_trials

        return [
            Tried(
                one.number, one.params, one.value, "" if one.value is not None else one.state.name
            )
            for one in read_trials(self.journal)
        ]


def planned(overrides: Sequence[str]) -> Plan | None:
    """Return the search that a command line asks for; None where it is a sweep over every combination.

    Raises:
        ConfigError: the command line cannot be composed.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    searched = {
        one.get_key_element().lstrip("+"): word.partition("=")[2]
        for one, word in zip(parsed, overrides, strict=True)
        if one.is_sweep_override()
    }
    words = [
        word for one, word in zip(parsed, overrides, strict=True) if not one.is_sweep_override()
    ]
    sweeper = composition.sweeper(words)
    if "optuna" not in str(sweeper.get("_target_", "")) or sweeper.get("storage"):
        return None
    fixed = {word.partition("=")[0].lstrip("+") for word in words}
    params = sweeper.get("params") or {}
    space = {name: str(value) for name, value in params.items() if name not in fixed} | searched
    direction = str(sweeper.get("direction", "minimize")).lower()
    asked = sorted(word for word in words if not word.lstrip("+").startswith(_NOT_ASKED))
    digest = hashlib.sha256(orjson.dumps([asked, sorted(space.items()), direction])).hexdigest()
    return Plan(
        name=f"{sweeper.get('study_name') or 'search'}-{digest[:8]}",
        folder=composition.config_folder()[0] / "mlruns" / "sweeps",
        words=tuple(words),
        space=space,
        trials=int(sweeper.get("n_trials", 20)),
        minimize=direction.endswith("minimize"),
        seed=(sweeper.get("sampler") or {}).get("seed"),
    )


def domains(space: Mapping[str, str]) -> Settings:
    """Return Ray Tune's domains of a space in Hydra's words; ranges include their end, as Optuna's sweeper has it.

    Raises:
        ConfigError: neither choices, nor a range or an interval.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import IntervalSweep, RangeSweep, Transformer

    from tencost.workers.parallel import search

    found: Settings = {}
    for name, text in space.items():
        [override] = OverridesParser.create().parse_overrides([f"{name}={text}"])
        value = override.value()
        if isinstance(value, IntervalSweep):
            low, high = value.start or 0, value.end or 0
            drawn = search.loguniform if "log" in value.tags else search.uniform
            found[name] = drawn(low, high)
        elif isinstance(value, RangeSweep):
            start, stop, step = value.start or 0, value.stop or 0, value.step or 1
            count = math.floor((stop - start) / step) + 1
            found[name] = search.choice([start + at * step for at in range(count)])
        elif override.is_sweep_override():
            encoded = override.sweep_iterator(transformer=Transformer.encode)
            found[name] = search.choice([str(one) for one in encoded])
        else:
            raise ConfigError(
                f"hydra.sweeper.params.{name}: expected choices, a range or an interval, found {text!r}"
            )
    return found


def on_ray(plan: Plan, cfg: Config, root: Path) -> tuple[list[Tried], list[str]]:
    """Search on a cluster.

    Args:
        plan: the search.
        cfg: of the command line, without what is searched.
        root: the project's root; on a cluster of several machines, the same folder on each.

    Returns:
        The trials, and the command line's words with the best settings.

    Raises:
        TrainError: every trial failed.
    """
    from tencost.workers.parallel import search

    folder = plan.folder / plan.name
    cpus = cfg.jobs or len(os.sched_getaffinity(0))
    console = Console(stderr=True)
    with console.status(f"{plan.name}: 0 of {plan.trials} trials") as status:
        found = search.search(
            _trial,
            domains(plan.space),
            {"words": list(plan.words), "root": str(root)},
            search.Plan(
                folder=folder,
                metric="loss",
                trials=plan.trials,
                epochs=_steps(cfg),
                cpus=cpus,
                cpus_a_trial=1,
                seed=plan.seed or 0,
                execution=cfg.execution,
            ),
            _Watch(plan, status),
            resume=search.resumable(folder),
        )
    tried = [
        Tried(at, settings, metrics.get("choice"), error or f"{metrics.get('epoch', 0):g} steps")
        for at, (settings, metrics, error) in enumerate(found.tried)
    ]
    return tried, [*plan.words, *(f"{name}={value}" for name, value in found.settings.items())]


def _trial(settings: Settings, data: Mapping[str, Any], folder: Path) -> None:
    """Train one seed with some settings, and tell the search how it stands; nothing is kept of it."""
    from tencost.models.programs.ranker import make_ranker
    from tencost.models.programs.ranker.losses import RankingMetrics
    from tencost.train.data import Data
    from tencost.train.programs import read_material
    from tencost.workers.parallel import search

    del folder
    root = Path(data["root"])
    os.chdir(root)
    words = [*data["words"], *(f"{name}={value}" for name, value in settings.items()), "folds=0"]
    cfg, _ = composition.compose(words)
    material = read_material(cfg, Data(cfg, root))
    ranker = make_ranker(cfg.model, material.spec)
    best = -math.inf
    last = 0

    def log(name: str, value: float, step: int) -> None:
        nonlocal best, last
        if name == VALUE and step > last:
            best, last = max(best, value), step
            search.tell(loss=-best, choice=best, epoch=step)

    ranker.fit(material.train, material.valid, seed=cfg.seeds[0], log=log)
    from tencost.train.fit.seeds import ranked

    metrics = RankingMetrics(material.valid.label, material.valid.group)
    value = metrics(ranked(ranker, material.valid)).get("choice", math.nan)
    search.tell(loss=-value, choice=value, epoch=max(last, _steps(cfg)))


def _steps(cfg: Config) -> int:
    """Return how many steps a training of this family logs at most."""
    return int(getattr(cfg.model, "num_rounds", 0) or getattr(cfg.model, "epochs", 0) or 1)


@dataclass
class _Watch:
    plan: Plan
    status: Any
    over: set[str] = field(default_factory=set)

    def started(self, trial: str, settings: Settings) -> None:
        del trial, settings

    def told(self, trial: str, metrics: Mapping[str, Any]) -> None:
        del trial, metrics

    def ended(self, trial: str, error: str | None) -> None:
        self.over.add(trial)
        told = f" (one failed: {error[:60]})" if error else ""
        self.status.update(f"{self.plan.name}: {len(self.over)} of {self.plan.trials} trials{told}")


def best_of(tried: Iterable[Tried], *, minimize: bool) -> Tried:
    """Return the best trial, the first one on ties.

    Raises:
        TrainError: none has a value.
    """
    valued = [one for one in tried if one.value is not None and math.isfinite(one.value)]
    if not valued:
        raise TrainError("expected a trial that trains, found none: their messages are above")
    return (min if minimize else max)(valued, key=lambda one: one.value or 0.0)


def log_search(root: Path, run_id: str, plan: Plan, tried: Sequence[Tried]) -> Tried:
    """Log a search to its parent run, its best trial, a table and a picture of all; return the best."""
    from mlflow import MlflowClient

    from tencost.tracking import runs as tracking
    from tencost.tracking.runs import Point, TrackedRun

    best = best_of(tried, minimize=plan.minimize)
    run = TrackedRun(MlflowClient(tracking_uri=tracking.setup(root)), run_id)
    points, so_far = [], None
    for one in tried:
        if one.value is None or not math.isfinite(one.value):
            continue
        better = so_far is None or (one.value < so_far if plan.minimize else one.value > so_far)
        so_far = one.value if better else so_far
        assert so_far is not None
        points += [
            Point("search/value", one.value, one.number),
            Point("search/best", so_far, one.number),
        ]
    run.log_points(points)
    for name, value in best.settings.items():
        run.client.log_param(run_id, f"best.{name}", str(value))
    run.client.log_param(run_id, "best.trial", str(best.number))
    run.set_tag("search", plan.name)
    with tempfile.TemporaryDirectory(prefix="tencost-") as scratch:
        path = Path(scratch) / "trials.csv"
        _table(path, tried)
        run.log_artifact(path)
        _picture(Path(scratch) / "search.png", plan, tried, best)
        run.log_artifact(Path(scratch) / "search.png")
    settings = " ".join(f"{name}={_short(value)}" for name, value in best.settings.items())
    Console(stderr=True).print(
        f"{plan.name}: {len(tried)} trials, the best is {best.number} with {best.value:.4f}: {settings}",
        soft_wrap=True,
        highlight=False,
    )
    return best


def _table(path: Path, tried: Sequence[Tried]) -> None:
    names = sorted({name for one in tried for name in one.settings})
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["trial", "value", *names, "note"])
        for one in tried:
            writer.writerow(
                [one.number, one.value, *(one.settings.get(name) for name in names), one.note]
            )


def _picture(path: Path, plan: Plan, tried: Sequence[Tried], best: Tried) -> None:
    """Draw the values in the order of the trials, and against each setting."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    names = list(best.settings)
    valued = [one for one in tried if one.value is not None and math.isfinite(one.value)]
    values = [one.value for one in valued]
    with mpl.rc_context({"font.size": 8.0, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(2.6 * (1 + len(names)), 2.6), layout="constrained")
        axes = figure.subplots(1, 1 + len(names), sharey=True, squeeze=False)[0]
        columns: list[tuple[str, list[Any], Any]] = [
            ("trial", [one.number for one in valued], best.number)
        ]
        columns += [
            (name, [one.settings.get(name) for one in valued], best.settings[name])
            for name in names
        ]
        for axis, (name, found, chosen) in zip(axes, columns, strict=True):
            numbers = all(isinstance(value, int | float) for value in found)
            shown = found if numbers else [str(value) for value in found]
            axis.plot(shown, values, "o", color="#0072B2", markersize=4)
            axis.plot(
                [chosen if numbers else str(chosen)],
                [best.value],
                "o",
                color="#D55E00",
                markersize=7,
            )
            text = plan.space.get(name, "")
            if "log" in text:
                axis.set_xscale("log")
            axis.set_xlabel(name)
        axes[0].set_ylabel("validation metric choice")
        figure.savefig(path, dpi=120)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
