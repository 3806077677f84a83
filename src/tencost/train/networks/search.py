"""The command `graphs tune`: settings of a graph neural network that predict the validation part best.

Writes <paths.searches>/<dataset>/<split>/<model>/: `task.json`, what is searched for; `best.json`, the best trial's
settings and validation MAPE; and what an interrupted search needs to go on. Each trial is a run in MLflow, nested in
one of the search.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from rich.console import Console
from rich.status import Status

from tencost.config import Config, composition
from tencost.config.graphs import graph_model_config
from tencost.errors import ConfigError, TrainError
from tencost.networks.graph.graph_set import LabelledGraphs
from tencost.tracking import runs as tracking
from tencost.tracking.runs import Point, TrackedRun
from tencost.train.networks.data import GraphData
from tencost.train.networks.tracked import start_graph_run
from tencost.workers.parallel import search
from tencost.workers.parallel.search import Found, Plan, Settings
from tencost.writing import whole_file

if TYPE_CHECKING:
    from tencost.models.networks.families.gnn import GnnConfig

METRIC = "mape"
"""Mean of |predicted - measured| / measured over all labels of the validation part, of the best epoch so far."""

_TASK, _BEST = "task.json", "best.json"


@dataclass(frozen=True, kw_only=True)
class Space:
    """What is searched, that of the CG benchmark. Of (low, high) high is not among the whole numbers.

    Attributes:
        batch_size: choices; those beyond the number of training graphs are left out.
        hidden: width of the layers in multiples of 34, or of 68 where attention heads divide it.
        layers: convolutions.
        learning_rate: of Adam.
        dropout: choices.
        mlp_layers: layers behind the sum over a graph.
    """

    batch_size: tuple[int, ...] = (64, 128, 256, 512, 1024)
    hidden: tuple[int, int] = (2, 10)
    layers: tuple[int, int] = (2, 7)
    learning_rate: tuple[float, float] = (1e-4, 1e-2)
    dropout: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3)
    mlp_layers: tuple[int, int] = (2, 5)

    def domains(self, heads: int, graphs: int) -> Settings:
        """Return Ray Tune's domains, names those of the settings of the family `gnn`.

        Args:
            heads: that must divide `hidden`.
            graphs: in the training part.
        """
        sizes = [size for size in self.batch_size if size <= graphs]
        step = math.lcm(34, heads)
        low, high = (34 * bound / step for bound in self.hidden)
        widths = [step * times for times in range(max(1, math.ceil(low)), math.ceil(high))]
        return {
            "batch_size": search.choice(sizes or [min(self.batch_size)]),
            "hidden": search.choice(widths or [step]),
            "layers": search.randint(*self.layers),
            "learning_rate": search.uniform(*self.learning_rate),
            "dropout": search.choice(list(self.dropout)),
            "mlp_layers": search.randint(*self.mlp_layers),
        }


@dataclass(frozen=True)
class Best:
    """What a search found: the settings, their validation MAPE, and the words that train them."""

    settings: Settings
    mape: float
    overrides: tuple[str, ...]


def run(
    cfg: Config,
    root: Path,
    *,
    trials: int = 50,
    cpus: int | None = None,
    resume: bool = False,
    space: Space | None = None,
) -> Best:
    """Search settings of cfg.graph_model, log each trial, and print the best as words of `tencost graphs train`.

    Args:
        cfg: the configuration; model.epochs and max_minutes bound a trial, the first of the seeds is every
            trial's.
        root: the project's root.
        trials: how many.
        cpus: that all trials together use; None: all that this process may use. A trial uses model.num_threads.
        resume: go on with the search that was interrupted.
        space: what is searched.

    Raises:
        ConfigError: another family than gnn, no search to go on with, or one of something else.
        TrainError: nothing to learn from, or every trial failed.
    """
    model = cfg.graph_model
    if model.family != "gnn":
        raise ConfigError(
            f"expected a model of the family gnn, found {cfg.graph_model_name} of {model.family}: its settings "
            "are searched with tencost graphs train -m"
        )
    if not cfg.seeds:
        raise ConfigError("seeds must be whole numbers, at least one; found none")
    data = GraphData(cfg, root)
    train, valid = data.part("train"), data.part("valid")
    cpus = cpus or len(os.sched_getaffinity(0))
    model = replace(model, num_threads=min(model.num_threads, cpus))
    space = space or Space()
    folder = data.folders.search
    task = {
        "dataset": data.dataset_hash,
        "split": data.split_hash,
        "graph_model": asdict(replace(model, num_threads=1)),
        "space": asdict(space),
        "trials": trials,
        "seed": cfg.seeds[0],
    }
    if resume:
        _check(folder, task)
    plan = Plan(
        folder=folder / "search",
        metric=METRIC,
        trials=trials,
        epochs=model.epochs,
        cpus=cpus,
        cpus_a_trial=model.num_threads,
        seed=cfg.seeds[0],
        data_bytes=_bytes(train) + _bytes(valid),
    )
    if not resume:
        (folder / _BEST).unlink(missing_ok=True)
        with whole_file(folder / _TASK) as path:
            path.write_bytes(orjson.dumps(task, option=orjson.OPT_INDENT_2))
    name = f"tune {cfg.graph_model_name} · {cfg.dataset.name} · {cfg.graph_split_name}"
    domains = space.domains(_heads(model), len(train))
    with tracking.parent_run(root, name, cfg.experiment_name) as parent, ExitStack() as stack:
        status = stack.enter_context(Console(stderr=True).status(f"{name}: 0 of {trials}"))
        watch = stack.enter_context(_Runs(cfg, root, name, trials, status))
        found = search.search(
            _trial, domains, (model, cfg.seeds[0], train, valid), plan, watch, resume=resume
        )
        best = _best(cfg, model, found)
        _log(root, cfg, parent, best, found)
    with whole_file(folder / _BEST) as path:
        content = {"settings": best.settings, "valid_mape": best.mape, "train": best.overrides}
        path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    console = Console(stderr=True)
    failed = f", {found.failed} failed" if found.failed else ""
    console.print(
        f"{name}: validation MAPE {best.mape:.4f}, the best of {found.trials} trials{failed}. Train it:",
        highlight=False,
        soft_wrap=True,
    )
    sys.stdout.write(f"tencost graphs train {shlex.join(best.overrides)}\n")
    return best


def _trial(settings: Settings, data: Any, folder: Path) -> None:
    """Train a network with some settings; it goes on where `folder` says that it was interrupted."""
    from tencost.models.networks.families.gnn import GnnModel

    model, seed, train, valid = data
    config = replace(model, **settings)
    network = GnnModel(config, len(train.hardware), folder)
    best = math.inf

    def report(name: str, value: float, step: int) -> None:
        nonlocal best
        if name.endswith("valid_mape"):
            best = min(best, value)
            search.tell(mape=best, epoch=step)

    network.fit(train, valid, seed=seed, report=report)
    # What is kept is the best epoch, which may lie before an interruption.
    error = np.abs(network.predict(valid.graphs) / valid.latency_ms - 1.0)
    search.tell(mape=float(np.nanmean(error)), epoch=config.epochs)


class _Runs:
    """A run in MLflow for each trial."""

    def __init__(self, cfg: Config, root: Path, name: str, trials: int, status: Status) -> None:
        self._cfg, self._root = cfg, root
        self._name, self._trials, self._status = name, trials, status
        self._open: dict[str, tuple[ExitStack, TrackedRun, list[Point]]] = {}
        self._over = 0
        self._best = math.inf

    def __enter__(self) -> _Runs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for stack, tracked, points in self._open.values():
            tracked.log_points(points)
            stack.__exit__(kind, error, trace)

    def started(self, trial: str, settings: Settings) -> None:
        tried = replace(self._cfg, graph_model=replace(self._cfg.graph_model, **settings))
        stack = ExitStack()
        run = start_graph_run(
            tried, self._root, "graphs tune", name=f"{self._name} · {trial}", of_model=True
        )
        self._open[trial] = stack, stack.enter_context(run), []

    def told(self, trial: str, metrics: Mapping[str, Any]) -> None:
        mape, epoch = float(metrics[METRIC]), int(metrics[search.EPOCH])
        self._open[trial][2].append(Point("valid/mape", mape, epoch))
        self._best = min(self._best, mape)
        self._show()

    def ended(self, trial: str, error: str | None) -> None:
        stack, tracked, points = self._open.pop(trial)
        tracked.log_points(points)
        failure = TrainError(error) if error else None
        stack.__exit__(type(failure) if failure else None, failure, None)
        self._over += 1
        self._show()

    def _show(self) -> None:
        best = f", best validation MAPE {self._best:.4f}" if self._best < math.inf else ""
        self._status.update(f"{self._name}: {self._over} of {self._trials} trials over{best}")


def _heads(model: GnnConfig) -> int:
    from tencost.models.networks.families.gnn import WITH_HEADS

    return model.heads if model.convolution in WITH_HEADS else 1


def _bytes(part: LabelledGraphs) -> int:
    graphs = part.graphs
    return sum(
        array.nbytes for array in (graphs.operator, graphs.columns, graphs.edges, part.latency_ms)
    )


def _check(folder: Path, task: dict[str, Any]) -> None:
    """Refuse to go on with what is no search, or another one."""
    path = folder / _TASK
    if not path.is_file() or not search.resumable(folder / "search"):
        raise ConfigError(
            f"expected an interrupted search in {folder}, found none. Begin one: leave out --resume"
        )
    kept = orjson.loads(path.read_bytes())
    asked = orjson.loads(orjson.dumps(task))
    changed = [name for name in asked if kept.get(name) != asked[name]]
    if changed:
        raise ConfigError(
            f"{path}: expected the search that was interrupted, found another one ({', '.join(changed)} changed). "
            "Leave out --resume to begin anew."
        )


def _best(cfg: Config, model: GnnConfig, found: Found) -> Best:
    """Return the best trial with the words that differ from the file of the chosen model."""
    config = replace(model, **found.settings)
    values = composition.choice_values("graph_model", cfg.graph_model_name)
    before, now = asdict(graph_model_config(values)), asdict(config)
    words = [
        f"dataset={cfg.dataset.name}",
        f"split={cfg.graph_split_name}",
        f"model={cfg.graph_model_name}",
        *(f"model.{name}={_word(now[name])}" for name in now if now[name] != before[name]),
    ]
    settings = {name: now[name] for name in found.settings}
    return Best(settings, found.metrics[METRIC], tuple(words))


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _log(root: Path, cfg: Config, parent: str, best: Best, found: Found) -> None:
    from mlflow import MlflowClient

    run = TrackedRun(MlflowClient(tracking_uri=tracking.setup(root, cfg.experiment_name)), parent)
    counts = {"trials": float(found.trials), "failed": float(found.failed)}
    run.log_metrics({"valid/mape": best.mape, **counts})
    run.set_tag("best", shlex.join(best.overrides))
