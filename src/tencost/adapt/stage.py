"""Stage adapt: a registered model and a hundred labels to a registered model of new hardware.

What was adapted is registered where labelled tasks that it did not see show it to be better than the model as it was,
by half of their 95 % interval, and its first choices no slower. Otherwise the model as it was stands in for the
hardware, so that tuning finds it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from rich.console import Console

from tencost.adapt.choice import diverse, uncertain
from tencost.adapt.fitting import (
    DECIDES,
    FIRST_CHOICE,
    LEAST_TASKS,
    Adapted,
    HeldOutMetric,
    SourceModel,
    adapt,
    committee,
    gains,
    judge_held_out,
)
from tencost.adapt.measuring import Labeller
from tencost.adapt.pool import LabelPool, device_values, read_pool
from tencost.config import AdaptMode, Config, HardwareConfig, RunnerKind
from tencost.errors import ConfigError, TrainError
from tencost.evaluate.interval import interval_text
from tencost.features.rows.ragged import IntArray
from tencost.features.rows.summary import summarize_programs
from tencost.models.programs.bundle import (
    Bundle,
    BundleInfo,
    content_digest,
    load_bundle,
    plain_config,
    save_bundle,
    training_digest,
)
from tencost.models.programs.bundle.calibration import fit_calibration
from tencost.models.programs.ranker import Samples
from tencost.programs.starting_points import StartBook, shipped_starts
from tencost.register import registry
from tencost.register.pull import pull
from tencost.register.registry import Version
from tencost.register.start_records import ship
from tencost.tracking import runs as tracking
from tencost.tracking.provenance import content_hash, installed_versions
from tencost.train.data import Data
from tencost.workers.hardware import check_device, check_target, resolve_hardware
from tencost.writing import shown_path

_SOURCE_TAG = "source_digest"
"""Of a version: the content digest of the model that it was adapted from."""

_Ask = Callable[[IntArray], npt.NDArray[np.float64]]


@dataclass(frozen=True)
class LabelledPrograms:
    """What was labelled: positions in the pool, seconds (NaN for a failure), float64 [n], and where they come from."""

    positions: IntArray
    latency_s: npt.NDArray[np.float64]
    how: str

    @property
    def failed(self) -> float:
        """Programs that failed."""
        return float(np.isnan(self.latency_s).sum())


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """What became of an adaptation, as the version and the terminal say it.

    Attributes:
        mode: that was asked for.
        chosen: what was labelled.
        figures: of labelled tasks left out.
        champion: of the hardware before; None where it had none.
    """

    mode: AdaptMode
    chosen: LabelledPrograms
    figures: dict[str, HeldOutMetric]
    champion: Version | None

    @property
    def refused(self) -> bool:
        """Whether the adapted model is not better on tasks left out: the model as it was stands in for it."""
        return self.mode is not AdaptMode.zero_shot and not gains(self.figures)

    @property
    def used(self) -> AdaptMode:
        """The mode of the model that is registered."""
        return AdaptMode.zero_shot if self.refused else self.mode

    @property
    def count(self) -> int:
        """Labels that the registered model has learnt from."""
        return 0 if self.refused else len(self.chosen.positions)

    def report(self) -> list[str]:
        """Return the figures, a line each, and why the adapted model is refused where it is."""
        lines = [
            f"{metric} of labelled tasks left out: {figure.before:.3f} as it was, {figure.after:.3f} "
            f"{self.mode.value}, difference {interval_text(figure.gain)}"
            for metric, figure in self.figures.items()
        ]
        if not self.refused:
            return lines
        if DECIDES in self.figures:
            reason = (
                f"{self.mode.value} is not better than the model as it was by half of the 95 % interval "
                f"({DECIDES} of tasks left out), or is worse in {FIRST_CHOICE}, so it is not registered."
            )
        else:
            reason = (
                f"These labels cannot show whether {self.mode.value} is better than the model as it was (expected at "
                f"least {LEAST_TASKS} tasks with programs to compare), so it is not registered. Ask for more: "
                "labels=100."
            )
        return [*lines, reason]

    def result(self, version: Version) -> str:
        """Return what became of the version."""
        if self.champion is None:
            as_it_was = " as it was" if self.refused else ""
            return f"registered{as_it_was}, champion: the hardware had none"
        if self.refused:
            return "stays champion, nothing is registered"
        if version.number == self.champion.number:
            return "is champion already, nothing is registered"
        if version.number != self.champion.number and registry.CHAMPION in version.aliases:
            return f"registered, champion: better than version {self.champion.number}, the model as it was"
        return "registered, challenger; the champion stays"


def run(cfg: Config, root: Path) -> Version:
    """Adapt cfg.model_uri to cfg.hardware with cfg.labels labels, register it under the hardware's name; return it.

    Labels are the dataset's records of the hardware, or are measured here. Where they do not show that the adapted
    model is better (:func:`tencost.adapt.fitting.gains`), it is not registered: the model as it was is, as champion,
    where the hardware has none; else its champion is returned.

    Raises:
        ConfigError: no model is named, or one that cannot be adapted to this hardware.
        RegistryError: the model cannot be found.
        FeatureError: the dataset lacks the features that it reads.
        HardwareError: the programs would crash on this host, or the devices cannot be reached.
        TrainError: fewer programs than labels.
        MeasureError: they cannot be measured.
    """
    hardware = resolve_hardware(cfg.hardware)
    cfg = replace(cfg, hardware=hardware)
    bundle = _source(cfg, root)
    data = Data(cfg, root)
    mode, count = cfg.adapt.mode, cfg.labels
    if mode is AdaptMode.zero_shot or (count == 0 and mode is not AdaptMode.scratch):
        mode, count = AdaptMode.zero_shot, 0
    if count == 0 and mode is AdaptMode.scratch:
        raise ConfigError(
            "adapt=scratch learns from the labels alone: expected labels of at least 2, found 0"
        )
    there = bool((data.records["hardware"] == hardware.name).any())
    recorded = there and not cfg.adapt.measure
    if count and not recorded:
        (check_device if hardware.runner is RunnerKind.local else check_target)(hardware)
    pool = read_pool(data, bundle, hardware, recorded=recorded)
    source = SourceModel(bundle.ranker, bundle.info, pool.spread)
    parameters = run_parameters(cfg) | {"labels": str(cfg.labels)}
    with tracking.start_run(
        cfg, root, stage="adapt", name=f"adapt {hardware.name}", parameters=parameters
    ) as tracked:
        chosen = _label(cfg, root, pool, source, count, recorded=recorded)
        labels = pool.labelled(chosen.positions, chosen.latency_s)
        if len(chosen.positions) and not len(labels):
            raise TrainError(
                f"expected programs that run on {hardware.name}, found {len(chosen.positions)} that all failed "
                f"({chosen.how}). Look at their errors: tencost records query stats"
            )
        adapted = adapt(source, mode, labels, cfg.seeds[0])
        _check_ranks(adapted, pool, labels)
        figures = judge_held_out(source, mode, labels, cfg.seeds[0])
        tracked.log_metrics(_metrics(chosen, figures))
        client = registry.connect(tracking.setup(root, cfg.experiment_name))
        champion = registry.find_champion(client, registry.model_name(hardware.name))
        outcome = _Outcome(mode=mode, chosen=chosen, figures=figures, champion=champion)
        if outcome.refused and champion is not None:
            version = champion
        else:
            if outcome.refused:
                figures, labels = {}, pool.labelled(np.zeros(0, np.int64))
                adapted = adapt(source, AdaptMode.zero_shot, labels, cfg.seeds[0])
            info = _info(cfg, data, bundle, adapted, pool, labels, figures)
            with tempfile.TemporaryDirectory(prefix="tencost-") as scratch:
                folder = Path(scratch) / "bundles" / f"seed{cfg.seeds[0]}"
                save_bundle(folder, adapted.ranker, info)
                tracked.set_tag(tracking.BUNDLES_TAG, training_digest(folder.parent))
                tracked.log_artifacts(folder.parent, registry.BUNDLES)
                folder = ship(folder, _starts(bundle, hardware), Path(scratch) / folder.name)
                offer = registry.bundle_offer(
                    folder, hardware.description or hardware.name, pool.features
                )
                version, _ = registry.register_offer(
                    client,
                    offer,
                    run_id=tracked.run_id,
                    description=_description(cfg, outcome),
                )
            version = _settle(client, version, cfg, outcome, content_digest(bundle.info))
    _print(version, pool, outcome)
    return version


def choose_and_label(
    pool: LabelPool, source: SourceModel, count: int, cfg: Config, seed: int, ask: _Ask
) -> LabelledPrograms:
    """Choose and label: diverse programs first, then those that corrections of these labels disagree about.

    Args:
        pool: what may be labelled.
        source: the model.
        count: how many; at most len(pool).
        cfg: adapt.programs_per_task and adapt.uncertain_share.
        seed: of the choice.
        ask: positions -> seconds.
    """
    columns, per_task = summarize_programs(pool.features, source.spec), cfg.adapt.programs_per_task
    first = count - int(cfg.adapt.uncertain_share * count) // per_task * per_task
    positions = diverse(pool, columns, first, per_task, seed)
    seconds = ask(positions)
    if first < count:
        labels = pool.labelled(positions, seconds)
        opinions = committee(source, labels, pool.features, seed)
        further = uncertain(pool, opinions, positions, count - first, per_task, seed)
        seconds = np.concatenate([seconds, ask(further)])
        positions = np.concatenate([positions, further])
    return LabelledPrograms(positions, seconds, "")


def _starts(bundle: Bundle, hardware: HardwareConfig) -> StartBook:
    """Return the model's starting points for the new hardware, whose target tuning takes from there."""
    shipped = shipped_starts(bundle.folder)
    return StartBook(hardware.name, hardware.target, () if shipped is None else shipped.starts)


def _source(cfg: Config, root: Path) -> Bundle:
    if cfg.model_uri is None:
        raise ConfigError(
            "expected the model to start from, found none. Name one: tencost adapt "
            "model=models:/tencost-epyc-avx512-1c@champion hardware=... (`tencost register status` lists them)"
        )
    bundle = load_bundle(pull(cfg.model_uri, root=root))
    ours, theirs = cfg.hardware.target.get("kind", "llvm"), bundle.info.target_kind
    if (ours == "llvm") != (theirs == "llvm"):
        raise ConfigError(
            f"hardware={cfg.hardware.name}: expected hardware of a kind with the model's, whose programs are for "
            f"{theirs}, found {ours}: their programs have nothing in common. Name another model=..."
        )
    if bundle.info.hardware == cfg.hardware.name:
        raise ConfigError(
            f"expected a model of other hardware, found {cfg.model_uri}, which is of {cfg.hardware.name} itself. Train "
            f"on its records instead: tencost train hardware={cfg.hardware.name}"
        )
    return bundle


def _label(
    cfg: Config, root: Path, pool: LabelPool, source: SourceModel, count: int, *, recorded: bool
) -> LabelledPrograms:
    if count == 0:
        return LabelledPrograms(np.zeros(0, np.int64), np.zeros(0), "none")
    if len(pool) < count:
        raise TrainError(
            f"expected at least {count} programs to label outside the test part of split {cfg.split_name}, found "
            f"{len(pool)} in {cfg.dataset.name}. Ask for fewer: labels={len(pool)}"
        )
    if recorded:
        chosen = choose_and_label(
            pool, source, count, cfg, cfg.seeds[0], lambda positions: pool.latency_s[positions]
        )
        return replace(chosen, how=f"records of {cfg.dataset.name}")
    labeller = Labeller(cfg, root)

    def measure(positions: IntArray) -> npt.NDArray[np.float64]:
        return labeller.measure(pool.program_id[positions].tolist())

    chosen = choose_and_label(pool, source, count, cfg, cfg.seeds[0], measure)
    folder = shown_path(labeller.collection.path, root)
    return replace(chosen, how=f"measured here, kept in {folder}")


def _check_ranks(adapted: Adapted, pool: LabelPool, labels: Samples) -> None:
    """Refuse a model that scores all programs alike, as one from a handful of labels may: it could not be loaded."""
    if len(np.unique(adapted.ranker.predict(pool.features))) == 1:
        raise TrainError(
            f"expected a model that tells programs apart, found one that learnt nothing from {len(labels)} labels and "
            f"scores all {len(pool)} alike. Ask for more labels=..., or keep the model: adapt=residual"
        )


def _info(
    cfg: Config,
    data: Data,
    bundle: Bundle,
    adapted: Adapted,
    pool: LabelPool,
    labels: Samples,
    figures: dict[str, HeldOutMetric],
) -> BundleInfo:
    """Say what the adapted model is; its scores have the spread that the first model's have on the same programs."""
    calibration = bundle.info.calibration
    if adapted.ranker is not bundle.ranker:
        raw = adapted.ranker.predict(pool.features)
        calibration = fit_calibration(raw, calibration(pool.score).astype(np.float32))
    learnt = pl.DataFrame(
        {"program_id": labels.record_id.tolist(), "latency_s": labels.latency_s.tolist()},
        schema={"program_id": pl.String, "latency_s": pl.Float64},
    )
    return replace(
        bundle.info,
        family=adapted.config.family,
        model_config=plain_config(adapted.config),
        hardware=cfg.hardware.name,
        target_kind=str(cfg.hardware.target.get("kind", "llvm")),
        calibration=calibration,
        dataset=cfg.dataset.name,
        dataset_hash=content_hash(learnt),
        split=cfg.split_name,
        split_hash=data.split_hash,
        seed=cfg.seeds[0],
        device=device_values(bundle.info.feature_spec, cfg.hardware),
        versions=installed_versions(),
        metrics={f"left_out_{name}": figure.after for name, figure in figures.items()},
        files={},
        refit={},
    )


def _description(cfg: Config, outcome: _Outcome) -> str:
    count = len(outcome.chosen.positions)
    lines = [
        f"Adapted ({outcome.used.value}) from `{cfg.model_uri}` with {outcome.count} labels.",
        *([f"Labels: {count}, {outcome.chosen.how}."] if count else []),
        *(f"- {line}" for line in outcome.report()),
    ]
    return "\n".join(lines)


def _settle(client: Any, version: Version, cfg: Config, outcome: _Outcome, source: str) -> Version:
    """Tag a version, and promote it where the rule, which judges by held-out records, is not asked; return it anew.

    It is promoted where the hardware has no champion, or the champion is the very model, as it was, that it is better
    than.

    Args:
        client: of the registry.
        version: new.
        cfg: names the model that was adapted.
        outcome: of the adaptation.
        source: content digest of the model that was adapted.
    """
    tags = {
        "adapted_from": str(cfg.model_uri),
        "adapt_mode": outcome.used.value,
        "labels": str(outcome.count),
        _SOURCE_TAG: source,
    }
    for tag, text in tags.items():
        client.set_model_version_tag(version.name, str(version.number), tag, text)
    before = outcome.champion
    as_it_was = {_SOURCE_TAG: source, "adapt_mode": AdaptMode.zero_shot.value}
    if before is None or (
        outcome.used is not AdaptMode.zero_shot and as_it_was.items() <= before.tags.items()
    ):
        registry.promote(client, version)
    return registry.numbered(registry.list_versions(client, version.name), version.number)


def _metrics(chosen: LabelledPrograms, figures: dict[str, HeldOutMetric]) -> dict[str, float]:
    metrics = {"adapt/labels": float(len(chosen.positions)), "adapt/failed": chosen.failed}
    for name, figure in figures.items():
        metrics[f"adapt/as_it_was_{name}"] = figure.before
        metrics[f"adapt/left_out_{name}"] = figure.after
        metrics[f"adapt/gain_low_{name}"] = figure.gain.low
    return metrics


def run_parameters(cfg: Config) -> dict[str, str]:
    """Return what a run about an adaptation logs as its parameters."""
    parameters = {
        "model_uri": str(cfg.model_uri),
        "split.name": cfg.split_name,
        "dataset.name": cfg.dataset.name,
        "hardware.name": cfg.hardware.name,
    }
    tracking.flatten("adapt", vars(cfg.adapt), parameters)
    return parameters


def _print(version: Version, pool: LabelPool, outcome: _Outcome) -> None:
    console, chosen = Console(stderr=True), outcome.chosen
    count = len(chosen.positions)
    if count:
        tasks = len(np.unique(pool.group[chosen.positions]))
        console.print(
            f"{count} labels of {tasks} of {pool.num_tasks} tasks ({chosen.how}), {chosen.failed:.0f} failed"
        )
    for line in outcome.report():
        console.print(line, soft_wrap=True, markup=False)
    console.print(
        f"{version.name} version {version.number} ({version.semver}): {outcome.result(version)}",
        style="bold",
        soft_wrap=True,
    )
