"""How well a registered model ranks in production, tuning run by tuning run, and whether it is time to train again.

All of it comes from a record store: `tencost tune` writes the model's own score of a program beside what was measured
(tune/recording.py). Within a round, a batch of programs of one task measured together, the scores are compared with
speed, 1 / latency and 0 for a failure: Spearman's correlation, in [-1, 1], higher is better, 0 for a random order.

The correlations are lower than those on a test split: a round holds only programs that the search took for the best, so
they differ less than programs at large. They are comparable among tuning runs, not with a leaderboard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

import numpy as np
import polars as pl

from tencost.evaluate.interval import LEVEL
from tencost.records.query_tables import Tables, quoted
from tencost.store.reading import Records

SCRATCH = "scratch"
"""What records of a run without a registered model are chosen by."""
_RESAMPLES = 2000
_AT_LEAST = 3
"""Programs of a round that are compared."""


@dataclass(frozen=True)
class Ranking:
    """How well one round was ranked: Spearman's correlation, and the programs that it is of."""

    spearman: float
    programs: int


@dataclass(frozen=True)
class Estimate:
    """A mean over rounds, weighted by programs, with its 95 % bootstrap interval; None for fewer than two rounds."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class TuningRun:
    """What a store holds of one tuning run.

    Attributes:
        run: its id.
        started: time of its first record, seconds since 1970; None where no record says.
        network: what was tuned.
        tvm: version of TVM that it ran on; None where no record says.
        rankings: of the rounds that could be compared, in order.
        programs: in the store with a score.
        measured: programs that the run measured in those rounds; the store lacks those that it had before.
    """

    run: str
    started: float | None
    network: str
    tvm: str | None
    rankings: tuple[Ranking, ...]
    programs: int
    measured: int

    @property
    def estimate(self) -> Estimate | None:
        """Mean over the rounds; None without any."""
        return mean_over(self.rankings)


@dataclass(frozen=True, kw_only=True)
class History:
    """The tuning runs of a model version on a hardware.

    Attributes:
        version: models:/<name>/<version>, or the folder of a bundle.
        hardware: what was tuned on.
        trained_on: TVM that the model was trained with; where no record says, that of the first run; None: neither.
        runs: in order of time.
        unscored: records without a score: written before scores were, or of programs that did not build.
    """

    version: str
    hardware: str
    trained_on: str | None
    runs: tuple[TuningRun, ...]
    unscored: int


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What the verdict tolerates."""

    last_runs: int = 3
    """The latest tuning runs, which are judged together."""
    first_runs: int = 3
    """The version's first ones, which they are compared with; fewer where there are not that many before them."""
    floor: float = 0.1
    """The mean correlation that a model must not be surely below."""
    margin: float = 0.15
    """How much the mean may drop."""
    min_rounds: int = 8
    """Rounds of the latest runs without which correlations say nothing."""


class Action(StrEnum):
    """What to do about a model version."""

    keep = "keep"
    watch = "watch"
    retrain = "retrain"
    too_little = "too little to say"


@dataclass(frozen=True)
class Drift:
    """A verdict and why, one sentence a check; `recent` is the mean over the latest runs, None without rounds."""

    action: Action
    reasons: tuple[str, ...]
    recent: Estimate | None


def histories(store: Records, model: str | None = None) -> list[History]:
    """Return what a store holds of every model version's tuning runs, sorted by version and hardware.

    Args:
        store: where tuning runs wrote to.
        model: name of a registered model, or a version (models:/<name>/<version>); None: of all.

    Raises:
        RecordError: no store.
    """
    rounds = Tables(store).ask(_ROUNDS.format(only=_only(model)))
    found = []
    for _, frame in rounds.group_by("hardware", "version", maintain_order=True):
        found.append(_history(frame))
    return sorted(found, key=lambda item: (_version_key(item.version), item.hardware))


def mean_over(rankings: Sequence[Ranking]) -> Estimate | None:
    """Return the mean correlation of some rounds, each weighing as much as it has programs; None without any."""
    if not rankings:
        return None
    mean = _mean(rankings)
    if len(rankings) < 2:
        return Estimate(mean, None, None)
    return Estimate(mean, *_interval(_resampled(rankings, seed=0)))


def verdict(history: History, rule: Rule | None = None) -> Drift:
    """Say what to do about a version.

    - `retrain` where the latest runs are surely below the floor (the upper end of the interval is), where they are
      lower than the first ones on the same networks by more than the margin and surely so, or where TVM is of another
      minor version than the one that the model was trained with: its lowering, and with it the features, may differ.
    - `watch` where one of these may be so: the mean is below the floor, the drop is not sure or is between different
      networks, the model cannot be told from a random order, or TVM has another patch.
    - `too little to say` with fewer than Rule.min_rounds rounds.
    - `keep` otherwise.
    """
    rule = rule or Rule()
    ranked = [run for run in history.runs if run.rankings]
    last = ranked[-rule.last_runs :]
    recent = mean_over(_rankings(last))
    checks = _tvm_checks(history)
    rounds = len(_rankings(last))
    if rounds < rule.min_rounds or recent is None:
        text = f"{rounds} round{'' if rounds == 1 else 's'} with scores in the latest runs"
        text += f", {rule.min_rounds} are needed"
        if history.unscored:
            text += f"; {history.unscored} records have no scores"
        checks.append((Action.too_little, text))
    else:
        checks += _level_checks(recent, len(last), rule)
        first = ranked[: min(rule.first_runs, len(ranked) - len(last))]
        if first:
            checks.append(_drop_check(first, last, rule))
    severity = (Action.retrain, Action.too_little, Action.watch, Action.keep)
    action = min((item for item, _ in checks), key=severity.index, default=Action.keep)
    return Drift(action, tuple(f"{item.value}: {text}" for item, text in checks), recent)


def _level_checks(recent: Estimate, runs: int, rule: Rule) -> list[tuple[Action, str]]:
    assert recent.low is not None
    assert recent.high is not None
    of = f"mean {recent.mean:+.2f} [{recent.low:+.2f}, {recent.high:+.2f}] over the last {_runs(runs)}"
    if recent.high < rule.floor:
        checks = [(Action.retrain, f"{of}, surely below the floor of {rule.floor:g}")]
    elif recent.mean < rule.floor:
        checks = [(Action.watch, f"{of}, below the floor of {rule.floor:g}, but not surely")]
    else:
        checks = [(Action.keep, f"{of}, floor {rule.floor:g}")]
    if recent.high < 0:
        checks.append((Action.retrain, "worse than a random order (0)"))
    elif recent.low <= 0:
        checks.append((Action.watch, "cannot be told from a random order (0)"))
    else:
        checks.append((Action.keep, "better than a random order (0)"))
    return checks


def _drop_check(
    first: Sequence[TuningRun], last: Sequence[TuningRun], rule: Rule
) -> tuple[Action, str]:
    """Compare the first runs with the latest, on the networks that both have, or else on all."""
    shared = {run.network for run in first} & {run.network for run in last}
    if shared:
        first = [run for run in first if run.network in shared]
        last = [run for run in last if run.network in shared]
    before, now = _rankings(first), _rankings(last)
    change = _mean(now) - _mean(before)
    low, high = _interval(_resampled(now, seed=2) - _resampled(before, seed=1))
    text = f"{change:+.2f} [{low:+.2f}, {high:+.2f}] against the first {_runs(len(first))}"
    text += f" on {', '.join(sorted(shared))}" if shared else ", which were of other networks"
    text += f", tolerated -{rule.margin:g}"
    if change >= -rule.margin:
        return Action.keep, text
    if high >= 0 or min(len(before), len(now)) < rule.min_rounds:
        return Action.watch, f"{text}, but not surely"
    return (Action.retrain if shared else Action.watch), text


def _tvm_checks(history: History) -> list[tuple[Action, str]]:
    now = next((run.tvm for run in reversed(history.runs) if run.tvm), None)
    if now is None or history.trained_on is None or now == history.trained_on:
        return []
    text = f"tuned with TVM {now}, trained with {history.trained_on}"
    same_minor = now.split(".")[:2] == history.trained_on.split(".")[:2]
    return [(Action.watch if same_minor else Action.retrain, text)]


def _rankings(runs: Sequence[TuningRun]) -> list[Ranking]:
    return [ranking for run in runs for ranking in run.rankings]


def _runs(count: int) -> str:
    return "run" if count == 1 else f"{count} runs"


def _mean(rankings: Sequence[Ranking]) -> float:
    return float(_means(rankings, np.ones((1, len(rankings))))[0])


def _means(rankings: Sequence[Ranking], counts: np.ndarray) -> np.ndarray:
    """Return weighted means, float64 [B], of rounds drawn `counts` times, float64 [B, R]."""
    weights = counts * np.array([item.programs for item in rankings], np.float64)
    values = np.array([item.spearman for item in rankings], np.float64)
    means: np.ndarray = weights @ values / weights.sum(axis=1)
    return means


def _resampled(rankings: Sequence[Ranking], seed: int) -> np.ndarray:
    number = len(rankings)
    generator = np.random.default_rng(seed)
    draws = generator.multinomial(number, np.full(number, 1.0 / number), size=_RESAMPLES)
    return _means(rankings, draws.astype(np.float64))


def _interval(values: np.ndarray) -> tuple[float, float]:
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


def _history(rounds: pl.DataFrame) -> History:
    """Make a history of the rows of one version and hardware, one a round, in order of runs and rounds."""
    scored = rounds.filter("scored")
    runs = [_run(list(rows)) for _, rows in groupby(scored.iter_rows(named=True), _run_of)]
    runs.sort(key=lambda run: (run.started or 0.0, run.run))
    trained = next((text for text in rounds["model_tvm"].to_list() if text), None)
    return History(
        version=rounds["version"][0],
        hardware=rounds["hardware"][0],
        trained_on=trained or next((run.tvm for run in runs if run.tvm), None),
        runs=tuple(runs),
        unscored=int(rounds.filter(~pl.col("scored"))["programs"].sum()),
    )


def _run_of(row: dict[str, object]) -> object:
    return row["run"]


def _run(rounds: Sequence[dict[str, object]]) -> TuningRun:
    frame = pl.DataFrame(rounds, infer_schema_length=None)
    known = frame.drop_nulls("spearman")
    tvm = frame["tvm"].drop_nulls()
    started = frame["started"].cast(pl.Float64).min()
    return TuningRun(
        run=frame["run"][0],
        started=started if isinstance(started, float) else None,
        network=frame["network"][0] or "?",
        tvm=tvm[-1] if len(tvm) else None,
        rankings=tuple(
            Ranking(float(value), int(programs))
            for value, programs in known.select("spearman", "programs").iter_rows()
        ),
        programs=int(frame["programs"].sum()),
        measured=int(frame.select(pl.max_horizontal("programs", "batch").sum()).item()),
    )


def _only(model: str | None) -> str:
    if model is None:
        return "true"
    return f"(version = {quoted(model)} OR starts_with(version, {quoted(f'models:/{model}/')}))"


def _version_key(version: str) -> tuple[str, int, str]:
    name, _, number = version.rpartition("/")
    return (name, int(number), "") if number.isdigit() else (version, 0, version)


# Ranks are those of scipy.stats.spearmanr: equal values share the mean of theirs.
_ROUNDS = f"""
WITH told AS (
    SELECT hardware, timestamp, engine_version, latency_s, networks[1].network AS network,
        json_extract_string(additional_info, [
            '$.chosen_by', '$.run', '$.round', '$.score', '$.batch', '$.model_tvm']) AS about
    FROM records WHERE contains(additional_info, '"chosen_by":')
), programs AS (
    SELECT hardware, timestamp, engine_version, network, about[1] AS version, about[2] AS run,
        TRY_CAST(about[3] AS BIGINT) AS number, TRY_CAST(about[4] AS DOUBLE) AS score,
        TRY_CAST(about[5] AS BIGINT) AS batch, about[6] AS model_tvm, coalesce(1 / latency_s, 0) AS speed
    FROM told
), named AS (
    SELECT *, (run IS NOT NULL AND number IS NOT NULL AND score IS NOT NULL) AS scored
    FROM programs WHERE version <> {quoted(SCRATCH)} AND {{only}}
), ranked AS (
    SELECT *,
        rank() OVER (by_score) + (count(*) OVER (PARTITION BY hardware, version, run, number, scored, score) - 1) / 2
            AS score_rank,
        rank() OVER (by_speed) + (count(*) OVER (PARTITION BY hardware, version, run, number, scored, speed) - 1) / 2
            AS speed_rank
    FROM named
    WINDOW by_score AS (PARTITION BY hardware, version, run, number, scored ORDER BY score),
        by_speed AS (PARTITION BY hardware, version, run, number, scored ORDER BY speed)
)
SELECT hardware, version, run, number, scored, count(*) AS programs, max(batch) AS batch,
    CASE WHEN scored AND count(*) >= {_AT_LEAST} AND min(score) < max(score) AND min(speed) < max(speed)
        THEN corr(score_rank, speed_rank) END AS spearman,
    min(timestamp) AS started, min(network) AS network, max(engine_version) AS tvm, max(model_tvm) AS model_tvm
FROM ranked
GROUP BY hardware, version, run, number, scored
ORDER BY hardware, version, run, number, scored
"""
