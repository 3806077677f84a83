"""`tencost profiles pretraining`: what is a pretrained network worth on a workload that it has not seen?

Writes data/reports/profiles/pretraining-<features>/: pretraining.md, pretraining.png, shares.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import orjson
from rich.console import Console

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
from tencost.evaluate.interval import Interval
from tencost.features.device import device_names
from tencost.models.programs.families.mlp import MlpConfig
from tencost.models.programs.ranker import Samples
from tencost.tracking.runs import Point
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
    train, valid, asked = (data.samples(hardware, part) for part in ("train", "valid", "test"))
    table = data.features(cfg.features.name, cfg.features.kind)
    spec = sample_spec(table.spec, device_names(cfg.features))
    console = Console()
    options = {"batch": batch, "top": top, "epochs": epochs}
    groups = ("dataset", "hardware", "features", "split", "model")
    with experiment(cfg, root, "profiles pretraining", groups, options) as (run, folder):
        shares = list(pretraining(cfg.model, spec, train, valid, asked, settings))
        summaries = summarize_shares(shares)
        differences = [
            (
                f"{PRETRAINED} minus {SCRATCH}, all batches",
                gain(shares, PRETRAINED, SCRATCH, later=False),
            ),
            (
                f"{PRETRAINED} minus {SCRATCH}, all but the first",
                gain(shares, PRETRAINED, SCRATCH, later=True),
            ),
            (
                f"{PRETRAINED} minus {FROZEN}, all but the first",
                gain(shares, PRETRAINED, FROZEN, later=True),
            ),
        ]
        grids = [
            report.pretraining_grid(summaries, settings, differences),
            _by_workload(shares, asked, data),
        ]
        note = _note(cfg, asked, settings)
        _write(folder, shares, summaries, differences, settings, grids, note)
        points = [
            Point(metric_name("pretraining", one.arm, "top"), step.mean, index)
            for one in summaries
            for index, step in enumerate(one.steps)
        ]
        run.log_points(points)
        run.log_metrics(
            {metric_name("pretraining", one.arm, "mean"): one.every.mean for one in summaries}
        )
    for grid in grids:
        if len(grid.rows) <= _MOST_ROWS:
            grid.print(console)
    console.print(note, style="dim", soft_wrap=True, markup=False)
    return summaries


def _by_workload(shares: Sequence[Share], asked: Samples, data: Data) -> report.Grid:
    """Return a row a workload: its name, batches, and each arm's mean over seeds and batches."""
    names = dict(data.records.select("record_id", "workload_id").iter_rows())
    tasks = dict(data.tasks.select("workload_id", "task_name").iter_rows())
    grid = report.Grid("The same by workload, mean over seeds", ("workload", "batches", *ARMS))
    for group in sorted({one.group for one in shares}):
        own = [one for one in shares if one.group == group]
        workload = names[str(asked.record_id[np.flatnonzero(asked.group == group)[0]])]
        means = (np.mean([one.top for one in own if one.arm == arm]) for arm in ARMS)
        told = tasks.get(workload) or workload
        batches = max(one.step for one in own) + 1
        grid.add(f"{told} {workload[:6]}", str(batches), *(f"{mean:.3f}" for mean in means))
    return grid


def _note(cfg: Config, asked: Samples, settings: Settings) -> str:
    used = batches_of(asked, settings, settings.seeds[0])
    known = len(np.unique(asked.group))
    count = sum(map(len, used.values()))
    return (
        f"{cfg.dataset.name}, {cfg.hardware.name}, {cfg.features.name}, held out by {cfg.split_name}: {count} batches "
        f"of {len(used)} workloads; {known - len(used)} of {known} have fewer than two batches and are left out"
    )


def _write(
    folder: Path,
    shares: Sequence[Share],
    summaries: Sequence[Summary],
    differences: Sequence[tuple[str, Interval]],
    settings: Settings,
    grids: Sequence[report.Grid],
    note: str,
) -> None:
    text = [grid.markdown() for grid in grids] + [f"- {note}"]
    (folder / "pretraining.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    values = {
        "settings": asdict(settings),
        "summaries": [asdict(one) for one in summaries],
        "differences": {name: asdict(interval) for name, interval in differences},
        "shares": [asdict(one) for one in shares],
        "note": note,
    }
    (folder / "shares.json").write_bytes(orjson.dumps(values, option=orjson.OPT_INDENT_2) + b"\n")
    title = "A workload nothing was learnt of, batch by batch"
    report.plot_pretraining(folder / "pretraining.png", summaries, settings, title)
