"""Do counters tell fast programs of another workload from slow ones? Learn on one workload, ask about the others.

tvm_oraa's third experiment: top-32 of 128, all ordered pairs of workloads. There, each batch of 128 programs trains a
booster of its own, labels are relative to the best of the batch, and columns are normalised over the file that is
tested. Here, one model learns from the whole training part of a workload, its labels are the fastest latency of that
part / latency, and no row that is tested moves a column (:mod:`tencost.features.counters`).

For each seed every workload is divided into a training part and a test part, at random. A model learns from one
workload's training part and is asked about programs drawn from each test part: of the others, and of its own as a
control.

Legend: P programs, C columns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from tencost.compat.counters.top_share import top_share
from tencost.config.profiles import CounterKind, FittedOn, ProfileFeaturesConfig
from tencost.errors import ProfileError
from tencost.evaluate.interval import Interval, seed_interval
from tencost.evaluate.metrics import Floats, Ints, kendall_tau
from tencost.features.counters import columns_of, fit_counters
from tencost.records.counters.counter_groups import tells_time
from tencost.records.counters.table import Profiles

if TYPE_CHECKING:
    import polars as pl

SETTINGS: dict[str, Any] = {
    "objective": "reg:squarederror",
    "max_depth": 6,
    "eta": 0.15,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    "tree_method": "hist",
    "nthread": 1,
}
"""Of the boosted trees; the same for every arm."""
ROUNDS = 100
_BEFORE_RUN = ("launch__", "device__")
"""Metrics that are known without a profiler."""


@dataclass(frozen=True)
class PairRows:
    """Which rows of a table a model learns from and is asked about.

    Attributes:
        learn: int64, the training part of the workload that is learnt from.
        training: int64, the training parts of all workloads: of the others no time is read.
        test: int64, the test part of the workload that is asked about.
    """

    learn: Ints
    training: Ints
    test: Ints


Inputs = tuple[Floats, Floats]
"""What the model reads of the rows to learn from and of those asked about: float64 [P, C] each."""


@dataclass(frozen=True)
class Arm:
    """What a model may know of a program.

    Attributes:
        name: in tables and plots.
        inputs: makes the inputs; a text says why this pair of workloads has none.
    """

    name: str
    inputs: Callable[[PairRows], Inputs | str]


@dataclass(frozen=True)
class Settings:
    """How the experiment is done.

    Attributes:
        programs: drawn at a time.
        top: how many of them count as the fastest.
        draws: of each seed.
        seeds: of the division into parts, the draws and the models.
        test_fraction: share of a workload's programs that is kept for asking.
    """

    programs: int = 128
    top: int = 32
    draws: int = 20
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    test_fraction: float = 0.25

    @property
    def chance(self) -> float:
        """What guessing gets."""
        return self.top / self.programs


@dataclass(frozen=True)
class Outcome:
    """How well one arm did on one ordered pair.

    Attributes:
        source: the workload that was learnt from.
        target: the workload that was asked about; the source itself as a control.
        arm: what the model knew.
        top: share of the fastest that were found, a seed each (mean over its draws), with its interval over seeds.
        tau: Kendall's rank correlation over the whole test part, the same way.
        columns: what the model read.
        reason: why there is no figure; empty where there is one.
    """

    source: str
    target: str
    arm: str
    top: Interval
    tau: Interval
    columns: int
    reason: str = ""


def usable_profiles(profiles: Profiles, settings: Settings) -> tuple[Profiles, list[str]]:
    """Return the programs that can take part, and sentences about those that cannot.

    Programs of several devices count as workloads of their own: "<workload> on <device>".

    Raises:
        ProfileError: no workload is large enough.
    """
    notes = []
    timed = np.isfinite(profiles.time_ns) & (profiles.time_ns > 0)
    run_time = [not name.startswith(_BEFORE_RUN) for name in profiles.metrics]
    counted = np.isfinite(profiles.values[:, run_time]).any(axis=1)
    for complete, what in ((timed, "a time"), (counted, "any counter")):
        if not complete.all():
            notes.append(f"{int((~complete).sum())} programs without {what} are left out")
    usable_rows = profiles.take(np.flatnonzero(timed & counted))
    if len(np.unique(usable_rows.device)) > 1:
        pairs = zip(usable_rows.workload, usable_rows.device, strict=True)
        labels = np.array([f"{workload} on {device}" for workload, device in pairs], np.str_)
        usable_rows = replace(usable_rows, workload=labels)
    names, counts = np.unique(usable_rows.workload, return_counts=True)
    large = np.array(
        [_test_size(count, settings) >= settings.programs for count in counts.tolist()], bool
    )
    enough, small = names[large], names[~large].tolist()
    if small:
        notes.append(
            f"left out, as their test parts have fewer than {settings.programs} programs: {', '.join(small)}"
        )
    if not len(enough):
        raise ProfileError(
            f"expected a workload with {math.ceil(settings.programs / settings.test_fraction)} profiled programs, "
            f"found {len(names)} workloads of at most {max(counts, default=0)}. Profile more, or draw fewer: --programs"
        )
    return usable_rows.take(np.flatnonzero(np.isin(usable_rows.workload, enough))), notes


def transfer(profiles: Profiles, arms: Sequence[Arm], settings: Settings) -> list[Outcome]:
    """Do the experiment for all ordered pairs of workloads and for each with itself.

    Args:
        profiles: as `usable_profiles` returns them; arms go by their rows.
        arms: what models may know.
        settings: how it is done.
    """
    names = np.unique(profiles.workload).tolist()
    figures: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    inputs_of: dict[tuple[str, str, str], tuple[int, str]] = {}
    for seed in settings.seeds:
        parts = {name: _parts(profiles, name, settings, seed) for name in names}
        training = np.sort(np.concatenate([learn for learn, _ in parts.values()]))
        draws = {name: _draws(test, settings, seed) for name, (_, test) in parts.items()}
        for source in names:
            learn = parts[source][0]
            label = profiles.time_ns[learn].min() / profiles.time_ns[learn]
            models: dict[bytes, Any] = {}
            for arm, target in itertools.product(arms, names):
                key = (source, target, arm.name)
                test = parts[target][1]
                inputs = arm.inputs(PairRows(learn, training, test))
                if isinstance(inputs, str):
                    inputs_of[key] = (0, inputs)
                    continue
                inputs_of[key] = (inputs[0].shape[1], "")
                # Many arms and targets have models learn from the same inputs.
                digest = sha256(inputs[0].tobytes()).digest()
                if digest not in models:
                    models[digest] = _fit(inputs[0], label, seed)
                score, speed = _predict(models[digest], inputs[1]), 1.0 / profiles.time_ns[test]
                tops = [
                    top_share(score[drawn], speed[drawn], settings.top) for drawn in draws[target]
                ]
                pair = (float(np.mean(tops)), kendall_tau(score, speed))
                figures.setdefault(key, []).append(pair)
    return [
        Outcome(
            *key,
            top=seed_interval([top for top, _ in figures.get(key, [])]),
            tau=seed_interval([tau for _, tau in figures.get(key, [])]),
            columns=columns,
            reason=reason,
        )
        for key, (columns, reason) in inputs_of.items()
    ]


def counter_arm(name: str, profiles: Profiles, config: ProfileFeaturesConfig) -> Arm:
    """Make an arm that knows counters: fitted on the rows that are learnt from, or on each workload's training part."""

    def inputs(rows: PairRows) -> Inputs:
        whole = config.fitted_on is FittedOn.workload
        counters = fit_counters(config, profiles.take(rows.training if whole else rows.learn))
        learn, test = (counters.transform(profiles.take(part)) for part in (rows.learn, rows.test))
        return learn, test

    return Arm(name, inputs)


def parameter_arm(name: str, profiles: Profiles, parameters: pl.DataFrame) -> Arm:
    """Make an arm that knows a tuner's parameters, those that the two workloads have in common.

    Args:
        name: of the arm.
        profiles: the programs.
        parameters: program_id, and a column a parameter, null where a workload has none of it.
    """
    import polars as pl

    ids = pl.DataFrame({"program_id": profiles.program_id.tolist()})
    distinct = parameters.unique("program_id", keep="first", maintain_order=True)
    rows = ids.join(distinct, on="program_id", how="left", maintain_order="left")
    numeric = [
        column.name for column in rows if column.name != "program_id" and column.dtype.is_numeric()
    ]
    values = np.full((len(rows), len(numeric)), np.nan)
    for place, parameter in enumerate(numeric):
        values[:, place] = rows[parameter].cast(pl.Float64).fill_null(math.nan).to_numpy()

    def inputs(pair: PairRows) -> Inputs | str:
        learn, test = values[pair.learn], values[pair.test]
        shared = np.isfinite(learn).all(axis=0) & np.isfinite(test).all(axis=0)
        varies = np.array([len(np.unique(column)) > 1 for column in learn.T], bool)
        if not (shared & varies).any():
            return "not applicable: no parameter in common"
        return learn[:, shared & varies], test[:, shared & varies]

    return Arm(name, inputs)


def matrix_arm(name: str, values: Mapping[str, Floats], profiles: Profiles) -> Arm:
    """Make an arm that knows one row a program, made before: per-store features of records, summed up.

    Args:
        name: of the arm.
        values: float64 [C] by program id.
        profiles: the programs, each with a row.
    """
    rows = np.stack([values[program] for program in profiles.program_id.tolist()])
    return Arm(name, lambda pair: (rows[pair.learn], rows[pair.test]))


def beside(name: str, first: Arm, second: Arm) -> Arm:
    """Make an arm that knows what two others know."""

    def inputs(rows: PairRows) -> Inputs | str:
        inputs, more = first.inputs(rows), second.inputs(rows)
        if isinstance(inputs, str):
            return inputs
        if isinstance(more, str):
            return more
        return np.hstack([inputs[0], more[0]]), np.hstack([inputs[1], more[1]])

    return Arm(name, inputs)


def leaky_twin(config: ProfileFeaturesConfig) -> ProfileFeaturesConfig | None:
    """Return the set with the columns that tell run time; None where there is none beside it."""
    if config.kind is CounterKind.device or (config.columns and not config.leaky):
        return None
    if config.kind is CounterKind.ncu_raw:
        return replace(config, leaky=True)
    return replace(config, name="ncu_upstream", kind=CounterKind.ncu_upstream, leaky=True)


def honest_twin(config: ProfileFeaturesConfig) -> ProfileFeaturesConfig:
    """Return the set without the columns that tell run time.

    Raises:
        ProfileError: all that it lists tell it.
    """
    if not config.leaky:
        return config
    if config.kind is CounterKind.ncu_upstream:
        groups = replace(config.groups, runtime=False)
        return replace(config, name="ncu", kind=CounterKind.ncu, groups=groups, leaky=False)
    columns = [
        column
        for column in config.columns
        if not any(map(tells_time, (column.metric, *column.others, column.by)))
    ]
    if config.columns and not columns:
        raise ProfileError(
            f"expected a column of {config.name} that does not tell the run time, found {len(config.columns)} that do: "
            "there is nothing to compare with"
        )
    return replace(config, columns=columns, leaky=False)


@dataclass(frozen=True)
class Leak:
    """What a column that tells run time does to a score.

    Attributes:
        column: its metric; empty for the honest set alone, "all of them" for all at once.
        columns: how many the model read.
        within: share of the fastest found within workloads, mean over workloads and seeds.
        across: the same over all ordered pairs of different workloads; NaN where there is one workload.
        gain_within: `within` minus that of the honest set.
        gain_across: `across` minus that of the honest set.
    """

    column: str
    columns: int
    within: float
    across: float
    gain_within: float
    gain_across: float


ALL_LEAKS = "all of them"


def leakage(profiles: Profiles, config: ProfileFeaturesConfig, settings: Settings) -> list[Leak]:
    """Say what each column that tells run time does to a score: the same model, the same parts and draws.

    Returns:
        The honest set first, then it with each leaky column alone that was measured and varies, then with all of them;
        only the first where there is none.
    """
    honest, leaky = honest_twin(config), leaky_twin(config)
    columns = list(columns_of(honest, profiles.metrics))
    metrics = {column.metric for column in columns}
    leaks = [
        column
        for column in ([] if leaky is None else columns_of(leaky, profiles.metrics))
        if column.metric not in metrics and _varies(profiles, column.metric)
    ]
    chosen = {"": columns} | {column.metric: [*columns, column] for column in leaks}
    if len(leaks) > 1:
        chosen[ALL_LEAKS] = [*columns, *leaks]
    raw = replace(honest, kind=CounterKind.ncu_raw, name="with-a-leak", leaky=True)
    arms = [
        counter_arm(name, profiles, replace(raw, columns=read)) for name, read in chosen.items()
    ]
    tops: dict[tuple[str, bool], list[float]] = {}
    for outcome in transfer(profiles, arms, settings):
        key = (outcome.arm, outcome.source == outcome.target)
        tops.setdefault(key, []).append(outcome.top.mean)
    honest_within, honest_across = _mean(tops["", True]), _mean(tops.get(("", False), []))
    report = []
    for name, read in chosen.items():
        within, across = _mean(tops[name, True]), _mean(tops.get((name, False), []))
        gains = (within - honest_within, across - honest_across)
        report.append(Leak(name, len(read), within, across, *(gains if name else (0.0, 0.0))))
    return report


def _varies(profiles: Profiles, metric: str) -> bool:
    if metric not in profiles.metrics:
        return False
    values = profiles.column(metric)
    return len(np.unique(values[np.isfinite(values)])) > 1


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _test_size(count: int, settings: Settings) -> int:
    return round(count * settings.test_fraction)


def _parts(profiles: Profiles, name: str, settings: Settings, seed: int) -> tuple[Ints, Ints]:
    """Divide a workload's rows into training and test part, at random by the seed, whatever their order in the file."""
    rows = np.flatnonzero(profiles.workload == name)
    rows = rows[np.argsort(profiles.program_id[rows], kind="stable")]
    order = np.random.default_rng([seed, *name.encode()]).permutation(rows)
    size = _test_size(len(rows), settings)
    return np.sort(order[size:]), np.sort(order[:size])


def _draws(test: Ints, settings: Settings, seed: int) -> list[Ints]:
    generator = np.random.default_rng([seed, 1])
    return [
        generator.choice(len(test), settings.programs, replace=False) for _ in range(settings.draws)
    ]


def _fit(inputs: Floats, label: Floats, seed: int) -> Any:
    import xgboost

    matrix = xgboost.DMatrix(inputs, label=label, nthread=1)
    return xgboost.train({**SETTINGS, "seed": seed}, matrix, ROUNDS)


def _predict(model: Any, inputs: Floats) -> Floats:
    import xgboost

    return np.asarray(model.predict(xgboost.DMatrix(inputs, nthread=1)), np.float64)
