"""`tencost evaluate leave-out`: what a model is worth on hardware that it has not seen, beside its native model.

For each hardware of the dataset, on the same test tasks:

    native              trained on the records of this hardware alone, without device columns
    pooled              trained on every hardware, without device columns
    pooled with device  trained on every hardware, with them
    no <machine>        trained with them on the hardware of all other machines: every instruction set and number of
                        cores of this one is left out, so that it has no label
    native, few         trained on records of this hardware alone, of as many workloads as the model before has seen:
                        what is lost for want of records, not of labels of this hardware; left out where it has no more
    no <width>          trained with them on hardware of other vector widths, of this machine, too

The tasks are those of the split's test part: a left-out hardware is asked about networks that no hardware has shown.
geo1 is the geometric mean over tasks of the fastest program's latency / that of the program ranked first, a failed one
counting as the slowest that works. Figures are means over seeds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import orjson
import polars as pl
from rich.console import Console
from rich.table import Table

from tencost.adapt.fitting import some_samples
from tencost.config import Config, HardwareConfig
from tencost.errors import ConfigError
from tencost.evaluate.interval import Interval, seed_interval
from tencost.evaluate.leaderboard_table import wide
from tencost.evaluate.scoring import HEADINGS, score_records
from tencost.evaluate.stage import load_truth
from tencost.features.device import attributes, device_names
from tencost.models.programs.bundle.calibration import fit_calibration
from tencost.models.programs.ranker import Samples
from tencost.tracking.runs import start_run
from tencost.train.data import Data
from tencost.train.data.samples import sample_spec
from tencost.train.fit.seeds import SeedJob, train_seeds
from tencost.writing import whole_file

METRICS = ("pairwise", "geo1", "top1", "top5", "search_score")
"""Higher is better, all but the search score in [0, 1]."""
NATIVE, POOLED, KNOWING = "native", "pooled", "pooled with device"
FEW = "native, few"
GOAL = 0.97
"""Share of the native model's pairwise accuracy and geo1 that a model without a label of the hardware should have."""

_REFUSED = re.compile(r"[^\w\-. :/]")
"""Characters that MLflow refuses in a metric's name; names of machines may have them."""

By = Callable[[HardwareConfig], str]
LEFT_OUT: dict[str, By] = {
    "machine": lambda hardware: hardware.model,
    "isa": lambda hardware: f"{hardware.simd_bits} bits",
}
"""Groupings: the hardware that share the group's name are left out together."""


@dataclass(frozen=True)
class Arm:
    """One way to make a model for a hardware.

    Attributes:
        name: of the arm.
        hardware: whose test tasks are asked about.
        sources: the hardware whose records are learnt from.
        knows: whether the model has the device's columns.
        as_many: hardware of which the sources may have no more workloads; none for no limit.
    """

    name: str
    hardware: str
    sources: tuple[str, ...]
    knows: bool
    as_many: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How well an arm did.

    Attributes:
        arm: what was tried.
        records: it learnt from.
        metrics: name -> mean and interval over seeds.
    """

    arm: Arm
    records: int
    metrics: Mapping[str, Interval]


def run(
    cfg: Config,
    root: Path,
    *,
    by: Sequence[str] = tuple(LEFT_OUT),
    sources: Sequence[str] = (),
) -> list[Outcome]:
    """Train every arm, print the table, write it to data/reports/ and log it as one MLflow run.

    Args:
        cfg: the dataset, cfg.hardware with members, a model, a feature set with device columns, a split, seeds.
        root: the project's root.
        by: what is left out together, of LEFT_OUT.
        sources: hardware that left-out ones are learnt from; none named means all others.

    Raises:
        ConfigError: one hardware, or a feature set without device columns.
        SplitError, TrainError: the split has nothing for a hardware.
    """
    if not cfg.hardware.members:
        raise ConfigError(
            f"expected hardware=all (or some: hardware.members=[...]), found hardware={cfg.hardware.name}"
        )
    if not device_names(cfg.features):
        raise ConfigError(
            f"expected a feature set with device columns, found features={cfg.features.name}. "
            "Take features=per_store_tiles"
        )
    data = Data(cfg, root)
    planned = arms({name: data.described(name) for name in data.hardware()}, by, sources)
    with start_run(cfg, root, stage="evaluate", name=f"leave out · {cfg.model_name}") as tracked:
        outcomes = list(_try_all(data, planned))
        folder = root / cfg.paths.reports / cfg.dataset.name / cfg.hardware.name
        stem = folder / f"leave-out-{cfg.model_name}-{cfg.features.name}"
        _write(stem, outcomes)
        for suffix in (".md", ".json"):
            tracked.log_artifact(stem.with_suffix(suffix))
        tracked.log_metrics(
            {
                _REFUSED.sub(
                    "-", f"leave_out/{metric}/{outcome.arm.name}/{outcome.arm.hardware}"
                ): interval.mean
                for outcome in outcomes
                for metric, interval in outcome.metrics.items()
            }
        )
    _print(outcomes, wide(None))
    return outcomes


def arms(
    devices: Mapping[str, HardwareConfig], by: Sequence[str], sources: Sequence[str] = ()
) -> list[Arm]:
    """Return what is tried, hardware by hardware; where nothing is left to learn from, there is no such arm.

    Raises:
        ConfigError: fewer than two hardware, or a source that is none of them.
    """
    names = sorted(devices)
    unknown = sorted(set(sources) - set(names))
    if len(names) < 2 or unknown:
        listing = f"{', '.join(unknown)} among the sources" if unknown else ", ".join(names)
        raise ConfigError(
            f"expected two or more hardware with records, and sources among them ({', '.join(names)}); found {listing}"
        )
    chosen = []
    for name in names:
        chosen.append(Arm(NATIVE, name, (name,), False))
        chosen.append(Arm(POOLED, name, tuple(names), False))
        chosen.append(Arm(KNOWING, name, tuple(names), True))
        for way in by:
            group = LEFT_OUT[way]
            out = group(devices[name])
            remaining = tuple(
                other
                for other in (sources or names)
                if other != name and group(devices[other]) != out
            )
            if remaining:
                chosen.append(Arm(f"no {out}", name, remaining, True))
            if remaining and way == "machine":
                chosen.append(Arm(FEW, name, (name,), False, remaining))
    return chosen


def _try_all(data: Data, planned: Sequence[Arm]) -> Sequence[Outcome]:
    """Train each different model once, and ask it about every hardware that wants it."""
    cfg = data.cfg
    plain = replace(cfg.features, relations=False, device_columns=False)
    data_by_columns = {True: data, False: Data(replace(cfg, features=plain), data.root)}
    outcomes: dict[Arm, Outcome] = {}
    models: dict[tuple[tuple[str, ...], bool, tuple[str, ...]], list[Arm]] = {}
    for arm in planned:
        models.setdefault((arm.sources, arm.knows, arm.as_many), []).append(arm)
    for number, served in enumerate(models.values(), start=1):
        arm = served[0]
        label = f"{number} of {len(models)}: {', '.join(arm.sources)}"
        outcomes |= _try(
            data_by_columns[arm.knows], served, label + " with device columns" * arm.knows
        )
    return [outcomes[arm] for arm in planned if arm in outcomes]


def _try(data: Data, served: Sequence[Arm], label: str) -> dict[Arm, Outcome]:
    """Train what some arms have in common, and ask it about the hardware of each."""
    cfg, sources = data.cfg, served[0].sources
    spec = sample_spec(
        data.features(cfg.features.name, cfg.features.kind).spec, device_names(cfg.features)
    )
    train, valid = data.samples(sources, "train"), data.samples(sources, "valid")
    if served[0].as_many:
        few = _few(train, _workloads(data, served[0].as_many))
        if few is None:
            return {}
        train = few
    trained, _ = train_seeds(
        SeedJob(cfg.model, spec, train, valid), cfg.seeds, cfg.jobs, label, cfg.execution
    )
    outcomes = {}
    for arm in served:
        described = data.described(arm.hardware)
        truth = load_truth(Data(replace(cfg, hardware=described), data.root), "test")
        rows = data.rows(spec, truth.program_id.tolist(), attributes(described))
        scores = []
        for seed_model in trained:
            calibrate = fit_calibration(seed_model.ranker.predict(valid.features), valid.label)
            raw = seed_model.ranker.predict(rows).astype(np.float64)
            scores.append(score_records(truth, raw, calibrate(raw)))
        values = {
            name: seed_interval([getattr(score.overall, name) for score in scores])
            for name in METRICS
        }
        outcomes[arm] = Outcome(arm, len(train), values)
    return outcomes


def _workloads(data: Data, hardware: Sequence[str]) -> int:
    """Count the workloads that some hardware have in the training part."""
    train = data.split.filter(pl.col("part") == "train", pl.col("hardware").is_in(list(hardware)))
    return int(train["workload_id"].n_unique())


def _few(samples: Samples, workloads: int) -> Samples | None:
    """Return the samples of so many workloads of one hardware, drawn at random; None where it has no more."""
    groups = np.unique(samples.group)
    if len(groups) <= workloads:
        return None
    drawn = np.random.default_rng(0).choice(groups, workloads, replace=False)
    return some_samples(samples, np.isin(samples.group, drawn))


def shares(outcome: Outcome, outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the shares of the native model's pairwise accuracy and geo1 on the same hardware."""
    native = next(
        candidate
        for candidate in outcomes
        if candidate.arm.name == NATIVE and candidate.arm.hardware == outcome.arm.hardware
    )
    return {
        name: outcome.metrics[name].mean / native.metrics[name].mean
        for name in ("pairwise", "geo1")
    }


def _cells(outcomes: Sequence[Outcome]) -> list[list[str]]:
    headings = [HEADINGS[name] for name in METRICS]
    head = ["hardware", "model", "records", *headings, "pairwise of native", "geo1 of native"]
    lines = [head]
    for outcome in outcomes:
        of_native = [f"{100 * share:.1f} %" for share in shares(outcome, outcomes).values()]
        figures = [f"{outcome.metrics[name].mean:.3f}" for name in METRICS]
        lines.append(
            [outcome.arm.hardware, outcome.arm.name, str(outcome.records), *figures, *of_native]
        )
    return lines


def _write(stem: Path, outcomes: Sequence[Outcome]) -> None:
    head, *lines = _cells(outcomes)
    rows = [head, ["---", "---", *["---:"] * (len(head) - 2)], *lines]
    text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    content = [
        {
            "hardware": outcome.arm.hardware,
            "model": outcome.arm.name,
            "sources": list(outcome.arm.sources),
            "records": outcome.records,
            "metrics": {
                name: {"mean": value.mean, "half_width": value.half_width}
                for name, value in outcome.metrics.items()
            },
            "of_native": shares(outcome, outcomes),
        }
        for outcome in outcomes
    ]
    stem.parent.mkdir(parents=True, exist_ok=True)
    for suffix, data in (
        (".md", text.encode()),
        (".json", orjson.dumps(content, option=orjson.OPT_INDENT_2)),
    ):
        with whole_file(stem.with_suffix(suffix)) as path:
            path.write_bytes(data)


def _print(outcomes: Sequence[Outcome], console: Console) -> None:
    head, *lines = _cells(outcomes)
    table = Table()
    for name in head:
        table.add_column(name, justify="left" if name in ("hardware", "model") else "right")
    hardware = [outcome.arm.hardware for outcome in outcomes]
    for line, this, following in zip(lines, hardware, [*hardware[1:], ""], strict=True):
        table.add_row(*line, end_section=following != this)
    console.print(table)
    left_out = [outcome for outcome in outcomes if outcome.arm.name.startswith("no ")]
    reached = [outcome for outcome in left_out if min(shares(outcome, outcomes).values()) >= GOAL]
    console.print(
        f"{len(reached)} of {len(left_out)} left-out hardware reach {100 * GOAL:.0f} % of the native model's pairwise "
        "accuracy and geo1",
        highlight=False,
    )
