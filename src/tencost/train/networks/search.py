"""The command `graphs tune`: settings of a graph neural network that predict the validation part best.

Writes <paths.searches>/<dataset>/<split>/<model>/: `task.json`, what is searched for; `best.json`, the best trial's
settings and validation MAPE; and what an interrupted search needs to go on. Each trial is a run in MLflow, nested in
one of the search.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import orjson
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from tencost.config import Config, composition
from tencost.config.graphs import graph_model_config
from tencost.errors import ConfigError
from tencost.networks.graph.graph_set import LabelledGraphs
from tencost.tracking import runs as tracking
from tencost.train.networks.data import GraphData
from tencost.train.networks.tracked import start_graph_run
from tencost.train.search_report import log_search
from tencost.workers.parallel import search as searching
from tencost.workers.parallel.search import Search
from tencost.writing import whole_file

METRIC = "valid/mape"
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

    def distributions(self, heads: int, graphs: int) -> dict[str, BaseDistribution]:
        """Return Optuna's distributions, names those of the settings of the family `gnn`.

        Args:
            heads: that must divide `hidden`.
            graphs: in the training part.
        """
        sizes = [size for size in self.batch_size if size <= graphs]
        step = math.lcm(34, heads)
        low, high = (34 * bound / step for bound in self.hidden)
        widths = [step * times for times in range(max(1, math.ceil(low)), math.ceil(high))]
        return {
            "batch_size": CategoricalDistribution(sizes or [min(self.batch_size)]),
            "hidden": CategoricalDistribution(widths or [step]),
            "layers": IntDistribution(self.layers[0], self.layers[1] - 1),
            "learning_rate": FloatDistribution(*self.learning_rate),
            "dropout": CategoricalDistribution(self.dropout),
            "mlp_layers": IntDistribution(self.mlp_layers[0], self.mlp_layers[1] - 1),
        }


@dataclass(frozen=True)
class BestTrial:
    """The best trial: its settings, their validation MAPE, and the words that train them."""

    settings: dict[str, Any]
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
) -> BestTrial:
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
    from tencost.models.networks.families.gnn import WITH_HEADS, GnnConfig

    model = cfg.graph_model
    if not isinstance(model, GnnConfig):
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
    cfg = replace(cfg, graph_model=model)
    space = space or Space()
    seed, folder = cfg.seeds[0], data.folders.search
    search = Search(
        name=f"tune {cfg.graph_model_name} · {cfg.dataset.name} · {cfg.graph_split_name}",
        folder=folder / "search",
        space=space.distributions(
            model.heads if model.convolution in WITH_HEADS else 1, len(train)
        ),
        trials=trials,
        sampler=partial(searching.tpe, seed),
        pruner=searching.halving(model.epochs),
        jobs=max(1, cpus // model.num_threads),
        execution=cfg.execution,
    )
    task = {
        "dataset": data.dataset_hash,
        "split": data.split_hash,
        "graph_model": asdict(replace(model, num_threads=1)),
        "space": asdict(space),
        "trials": trials,
        "seed": seed,
    }
    if resume:
        _check(search, folder / _TASK, task)
    else:
        (folder / _BEST).unlink(missing_ok=True)
        with whole_file(folder / _TASK) as path:
            path.write_bytes(orjson.dumps(task, option=orjson.OPT_INDENT_2))
    with (
        tracking.parent_run(root, search.name, cfg.experiment_name) as parent,
        searching.opened(search, anew=not resume) as study,
    ):
        material = (cfg, root, parent, search.name, train, valid)
        try:
            searching.run(search, study, _train_trial, material)
        finally:
            log_search(root, parent, search, study, METRIC, partial(_words, cfg))
    trial = searching.best_trial(study)
    best = BestTrial(trial.params, trial.value or 0.0, _words(cfg, trial.params))
    with whole_file(folder / _BEST) as path:
        content = {"settings": best.settings, "valid_mape": best.mape, "train": best.overrides}
        path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    sys.stdout.write(f"tencost graphs train {shlex.join(best.overrides)}\n")
    return best


def _train_trial(
    trial: optuna.Trial,
    material: tuple[Config, Path, str, str, LabelledGraphs, LabelledGraphs],
    folder: Path,
) -> float:
    """Train a network in a run of its own; it goes on where `folder` says that it was interrupted."""
    from tencost.models.networks.families.gnn import GnnModel

    cfg, root, parent, name, train, valid = material
    os.environ[tracking.PARENT_VARIABLE] = parent  # a machine of a cluster does not inherit it
    config = replace(cfg.graph_model, **trial.params)
    cfg = replace(cfg, graph_model=config)
    best = math.inf

    def watch(metric: str, value: float, step: int) -> None:
        nonlocal best
        if metric.endswith("valid_mape"):
            best = min(best, value)
            tracked.log_metrics({METRIC: best}, step)
            searching.report_value(trial, best, step)

    label = f"{name} · {folder.name}"
    with start_graph_run(cfg, root, "graphs tune", name=label, of_model=True) as tracked:
        with contextlib.suppress(optuna.TrialPruned), contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            network = GnnModel(config, len(train.hardware), folder)
            network.fit(train, valid, seed=cfg.seeds[0], report=watch)
            # The network has the weights of the best epoch, which may lie before an interruption.
            errors = np.abs(network.predict(valid.graphs) / valid.latency_ms - 1.0)
            best = float(np.nanmean(errors))
            tracked.log_metrics({METRIC: best}, config.epochs)
            return best
        tracked.set_tag("pruned", "true")
    raise optuna.TrialPruned


def _check(search: Search, path: Path, task: dict[str, Any]) -> None:
    """Refuse to go on with what is no search, or another one."""
    if not path.is_file() or not search.journal.is_file():
        raise ConfigError(
            f"expected an interrupted search in {path.parent}, found none. Begin one: leave out --resume"
        )
    before, now = orjson.loads(path.read_bytes()), orjson.loads(orjson.dumps(task))
    changed = [name for name in now if before.get(name) != now[name]]
    if changed:
        raise ConfigError(
            f"{path}: expected the search that was interrupted, found another one ({', '.join(changed)} changed). "
            "Leave out --resume to begin anew."
        )


def _words(cfg: Config, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words of `tencost graphs train` for some settings: those that the file of the model has otherwise."""
    values = composition.choice_values("graph_model", cfg.graph_model_name)
    before = asdict(graph_model_config(values))
    now = {**asdict(cfg.graph_model), **settings}
    return (
        f"dataset={cfg.dataset.name}",
        f"split={cfg.graph_split_name}",
        f"model={cfg.graph_model_name}",
        *(
            f"model.{name}={str(now[name]).lower() if isinstance(now[name], bool) else now[name]}"
            for name in now
            if now[name] != before[name]
        ),
    )
