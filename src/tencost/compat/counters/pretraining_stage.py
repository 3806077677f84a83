"""`tencost profiles pretraining`: what is a pretrained network worth on a workload that it has not seen?

Writes data/reports/profiles/pretraining-<features>/: pretraining.md, pretraining.png, shares.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tencost.compat.counters import report
from tencost.compat.counters.pretraining import (
    ARMS,
    FROZEN,
    PRETRAINED,
    SCRATCH,
    Settings,
    Share,
    Summary,
    batches_of,
    gain,
    pretraining,
    summarize_shares,
)
from tencost.compat.counters.tracked import experiment, metric_name
from tencost.config import Config
from tencost.errors import ConfigError
from tencost.features.device import device_names
from tencost.models.programs.families.mlp import MlpConfig
from tencost.models.programs.ranker import Samples
from tencost.tracking.runs import MetricPoint
from tencost.train.data import Data
from tencost.train.data.samples import sample_spec

_MOST_ROWS = 30
"""Longer tables stand in pretraining.md only."""


def run(
    cfg: Config, root: Path, *, batch: int = 64, top: int = 32, epochs: int = 20
) -> list[Summary]:
    """Train on the training part of the split, then measure its test part's workloads batch by batch, in replay.

    Args:
        cfg: the configuration: dataset, hardware, features, split, model (of the family mlp), seeds.
        root: the project's root.
        batch: programs at a time.
        top: how many of them count as the fastest.
        epochs: passes over what was measured, after each batch.

    Raises:
        ConfigError: another family than mlp, or `top` is not below `batch`.
        TrainError: no workload of the test part has two batches.
    """
    if not isinstance(cfg.model, MlpConfig):
        raise ConfigError(
            f"expected model=mlp, whose network can go on learning; found {cfg.model_name}"
        )
    if not top < batch:
        raise ConfigError(f"expected --top below --batch, found {top} of {batch}")
    settings = Settings(batch=batch, top=top, epochs=epochs, seeds=tuple(cfg.seeds))
    data = Data(cfg, root)
    hardware = [cfg.hardware.name]
    train, valid, test = (data.samples(hardware, part) for part in ("train", "valid", "test"))
    table = data.features(cfg.features.name, cfg.features.kind)
    spec = sample_spec(table.spec, device_names(cfg.features))
    options = {"batch": batch, "top": top, "epochs": epochs}
    groups = ("dataset", "hardware", "features", "split", "model")
    with experiment(cfg, root, "profiles pretraining", groups, options) as (run, folder):
        shares = list(pretraining(cfg.model, spec, train, valid, test, settings))
        summaries = summarize_shares(shares)
        differences = {
            f"{PRETRAINED} minus {over}, all{which}": gain(shares, PRETRAINED, over, later=later)
            for over, which, later in (
                (SCRATCH, " batches", False), (SCRATCH, " but the first", True), (FROZEN, " but the first", True),
            )
        }  # fmt: skip
        grids = [
            report.pretraining_grid(summaries, settings, [*differences.items()]),
            _by_workload(shares, test, data),
        ]
        note = _note(cfg, test, settings)
        report.write_report(
            folder / "pretraining.md", folder / "shares.json", grids, [note], settings=settings, summaries=summaries,
            differences=differences, shares=shares, note=note,
        )  # fmt: skip
        title = "A workload nothing was learnt of, batch by batch"
        report.plot_pretraining(folder / "pretraining.png", summaries, settings, title)
        points = [
            MetricPoint(metric_name("pretraining", summary.arm, "top"), top.mean, step)
            for summary in summaries
            for step, top in enumerate(summary.steps)
        ]
        run.log_points(points)
        run.log_metrics(
            {metric_name("pretraining", each.arm, "mean"): each.every.mean for each in summaries}
        )
    report.print_report([grid for grid in grids if len(grid.rows) <= _MOST_ROWS], [note])
    return summaries


def _by_workload(shares: Sequence[Share], test: Samples, data: Data) -> report.Grid:
    """Return a row for each workload: its name, batches, and each arm's mean over seeds and batches."""
    workloads = dict(data.records.select("record_id", "workload_id").iter_rows())
    tasks = dict(data.tasks.select("workload_id", "task_name").iter_rows())
    grid = report.Grid("The same by workload, mean over seeds", ("workload", "batches", *ARMS))
    for group in sorted({share.group for share in shares}):
        workload = workloads[str(test.record_id[np.flatnonzero(test.group == group)[0]])]
        name = f"{tasks.get(workload) or workload} {workload[:6]}"
        batches = max(share.step for share in shares if share.group == group) + 1
        tops = (
            [each.top for each in shares if (each.group, each.arm) == (group, arm)] for arm in ARMS
        )
        grid.add(name, str(batches), *(f"{np.mean(top):.3f}" for top in tops))
    return grid


def _note(cfg: Config, test: Samples, settings: Settings) -> str:
    batches = batches_of(test, settings, settings.seeds[0])
    total = len(np.unique(test.group))
    return (
        f"{cfg.dataset.name}, {cfg.hardware.name}, {cfg.features.name}, held out by {cfg.split_name}: "
        f"{sum(map(len, batches.values()))} batches of {len(batches)} workloads; {total - len(batches)} of {total} "
        "have fewer than two batches and are left out"
    )
