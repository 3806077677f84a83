"""How well a registered model ranks in production, tuning run by tuning run, and whether it is time to train again.

All of it comes from a record store: `tencost tune` writes the model's own score of a program beside what was measured
(tune/recording.py). Within a round, a batch of programs of one task measured together, the scores are compared with
speed, 1 / latency and 0 for a failure: Spearman's correlation, in [-1, 1], higher is better, 0 for a random order.

The correlations are lower than those on a test split: a round holds only programs that the search took for the best, so
they differ less than programs at large. They are comparable among tuning runs, not with a leaderboard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import polars as pl

from tencost.evaluate.interval import Difference, bootstrap, interval_text
from tencost.evaluate.metrics import Floats
from tencost.records.query_tables import Tables, quoted
from tencost.store.reading import StoredRecords

SCRATCH = "scratch"
"""What records of a run without a registered model are chosen by."""
_MIN_PROGRAMS = 3
"""Programs of a round that is compared, at least."""


@dataclass(frozen=True)
class Ranking:
    """How well one round was ranked: Spearman's correlation, and the number of programs in the round."""

    spearman: float
    programs: int


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
    def estimate(self) -> Difference | None:
        """Mean over the rounds; None without any."""
        return mean_over(self.rankings)


@dataclass(frozen=True, kw_only=True)
class VersionHistory:
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
class DriftRule:
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
    """What to do about a model version; of several checks the first in this order decides."""

    retrain = "retrain"
    too_little = "too little to say"
    watch = "watch"
    keep = "keep"


@dataclass(frozen=True)
class Drift:
    """A verdict and why, one sentence a check; `recent` is the mean over the latest runs, None without rounds."""

    action: Action
    reasons: tuple[str, ...]
    recent: Difference | None


def histories(store: StoredRecords, model: str | None = None) -> list[VersionHistory]:
    """Return what a store holds of every model version's tuning runs, sorted by version and hardware.

    Args:
        store: where tuning runs wrote to.
        model: name of a registered model, or a version (models:/<name>/<version>); None: of all.

    Raises:
        RecordError: no store.
    """
    rounds = Tables(store).ask(_ROUNDS.format(only=of_model("version", model)))
    groups = rounds.group_by("hardware", "version", maintain_order=True)
    by_version = [_history(frame) for _, frame in groups]
    return sorted(by_version, key=lambda history: (_version_key(history.version), history.hardware))


def of_model(column: str, model: str | None) -> str:
    """Return SQL's condition that a column names a registered model (all its versions) or one version; None: any."""
    if model is None:
        return "true"
    return f"({column} = {quoted(model)} OR starts_with({column}, {quoted(f'models:/{model}/')}))"


def mean_over(rankings: Sequence[Ranking]) -> Difference | None:
    """Return the mean correlation of some rounds, each weighing as much as it has programs; None without any.

    Its 95 % interval is a bootstrap over rounds; NaN for fewer than two.
    """
    if not rankings:
        return None
    if len(rankings) == 1:
        return Difference(rankings[0].spearman, math.nan, math.nan, 0)
    return bootstrap(lambda counts: _mean(rankings, counts), np.zeros(len(rankings), np.int64))


def verdict(history: VersionHistory, rule: DriftRule | None = None) -> Drift:
    """Say what to do about a version.

    - `retrain` where the latest runs are surely below the floor (the upper end of the interval is), where they are
      lower than the first ones on the same networks by more than the margin and surely so, or where TVM is of another
      minor version than the one that the model was trained with: its lowering, and with it the features, may differ.
    - `watch` where one of these may be so: the mean is below the floor, the drop is not sure or is between different
      networks, the model cannot be told from a random order, or TVM has another patch.
    - `too little to say` with fewer than DriftRule.min_rounds rounds.
    - `keep` otherwise.
    """
    rule = rule or DriftRule()
    ranked = [run for run in history.runs if run.rankings]
    last = ranked[-rule.last_runs :]
    rounds = len(_rankings(last))
    recent = mean_over(_rankings(last))
    checks = _tvm_checks(history)
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
    action = min((action for action, _ in checks), key=list(Action).index, default=Action.keep)
    return Drift(action, tuple(f"{action.value}: {text}" for action, text in checks), recent)


def _level_checks(recent: Difference, runs: int, rule: DriftRule) -> list[tuple[Action, str]]:
    mean = f"mean {interval_text(recent, '+.2f')} over the last {_runs(runs)}"
    if recent.high < rule.floor:
        checks = [(Action.retrain, f"{mean}, surely below the floor of {rule.floor:g}")]
    elif recent.mean < rule.floor:
        checks = [(Action.watch, f"{mean}, below the floor of {rule.floor:g}, but not surely")]
    else:
        checks = [(Action.keep, f"{mean}, floor {rule.floor:g}")]
    if recent.high < 0:
        checks.append((Action.retrain, "worse than a random order (0)"))
    elif recent.low <= 0:
        checks.append((Action.watch, "cannot be told from a random order (0)"))
    else:
        checks.append((Action.keep, "better than a random order (0)"))
    return checks


def _drop_check(
    first: Sequence[TuningRun], last: Sequence[TuningRun], rule: DriftRule
) -> tuple[Action, str]:
    """Compare the first runs with the latest, on the networks that both have, or else on all."""
    shared = {run.network for run in first} & {run.network for run in last}
    if shared:
        first = [run for run in first if run.network in shared]
        last = [run for run in last if run.network in shared]
    before, now = _rankings(first), _rankings(last)

    def difference(counts: Floats) -> Floats:
        return _mean(now, counts[:, len(before) :]) - _mean(before, counts[:, : len(before)])

    change = bootstrap(difference, np.repeat([0, 1], [len(before), len(now)]), seed=1)
    text = f"{interval_text(change, '+z.2f')} against the first {_runs(len(first))}"
    text += f" on {', '.join(sorted(shared))}" if shared else ", which were of other networks"
    text += f", tolerated -{rule.margin:g}"
    if change.mean >= -rule.margin:
        return Action.keep, text
    if change.high >= 0 or min(len(before), len(now)) < rule.min_rounds:
        return Action.watch, f"{text}, but not surely"
    return (Action.retrain if shared else Action.watch), text


def _tvm_checks(history: VersionHistory) -> list[tuple[Action, str]]:
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


def _mean(rankings: Sequence[Ranking], counts: Floats) -> Floats:
    """Return weighted means, float64 [B], of rounds drawn `counts` times, float64 [B, R]."""
    weights = counts * np.array([ranking.programs for ranking in rankings], np.float64)
    correlations = np.array([ranking.spearman for ranking in rankings], np.float64)
    return np.asarray(weights @ correlations / weights.sum(axis=1))


def _history(rounds: pl.DataFrame) -> VersionHistory:
    """Make a history of the rows of one version and hardware, one a round, in order of runs and rounds."""
    scored = rounds.filter("scored").group_by("run", maintain_order=True)
    runs = sorted(
        (_tuning_run(frame) for _, frame in scored), key=lambda run: (run.started or 0.0, run.run)
    )
    trained = next((text for text in rounds["model_tvm"].to_list() if text), None)
    return VersionHistory(
        version=rounds["version"][0],
        hardware=rounds["hardware"][0],
        trained_on=trained or next((run.tvm for run in runs if run.tvm), None),
        runs=tuple(runs),
        unscored=int(rounds.filter(~pl.col("scored"))["programs"].sum()),
    )


def _tuning_run(rounds: pl.DataFrame) -> TuningRun:
    ranked = rounds.drop_nulls("spearman").select("spearman", "programs")
    return TuningRun(
        run=rounds["run"][0],
        started=rounds.select(pl.col("started").cast(pl.Float64).min()).item(),
        network=rounds["network"][0] or "?",
        tvm=next(iter(rounds["tvm"].drop_nulls().reverse()), None),
        rankings=tuple(Ranking(*row) for row in ranked.iter_rows()),
        programs=int(rounds["programs"].sum()),
        measured=int(rounds.select(pl.max_horizontal("programs", "batch").sum()).item()),
    )


def _version_key(version: str) -> tuple[str, int, str]:
    name, _, number = version.rpartition("/")
    return (name, int(number), "") if number.isdigit() else (version, 0, version)


# Ranks are those of scipy.stats.spearmanr: equal values share the mean of theirs.
_ROUNDS = f"""
WITH fields AS (
    SELECT hardware, timestamp, engine_version, latency_s, networks[1].network AS network,
        json_extract_string(additional_info, [
            '$.chosen_by', '$.run', '$.round', '$.score', '$.batch', '$.model_tvm']) AS about
    FROM records WHERE contains(additional_info, '"chosen_by":')
), programs AS (
    SELECT hardware, timestamp, engine_version, network, about[1] AS version, about[2] AS run,
        TRY_CAST(about[3] AS BIGINT) AS number, TRY_CAST(about[4] AS DOUBLE) AS score,
        TRY_CAST(about[5] AS BIGINT) AS batch, about[6] AS model_tvm, coalesce(1 / latency_s, 0) AS speed
    FROM fields
), chosen AS (
    SELECT *, (run IS NOT NULL AND number IS NOT NULL AND score IS NOT NULL) AS scored
    FROM programs WHERE version <> {quoted(SCRATCH)} AND {{only}}
), ranked AS (
    SELECT *,
        rank() OVER (by_score) + (count(*) OVER (PARTITION BY hardware, version, run, number, scored, score) - 1) / 2
            AS score_rank,
        rank() OVER (by_speed) + (count(*) OVER (PARTITION BY hardware, version, run, number, scored, speed) - 1) / 2
            AS speed_rank
    FROM chosen
    WINDOW by_score AS (PARTITION BY hardware, version, run, number, scored ORDER BY score),
        by_speed AS (PARTITION BY hardware, version, run, number, scored ORDER BY speed)
)
SELECT hardware, version, run, number, scored, count(*) AS programs, max(batch) AS batch,
    CASE WHEN scored AND count(*) >= {_MIN_PROGRAMS} AND min(score) < max(score) AND min(speed) < max(speed)
        THEN corr(score_rank, speed_rank) END AS spearman,
    min(timestamp) AS started, min(network) AS network, max(engine_version) AS tvm, max(model_tvm) AS model_tvm
FROM ranked
GROUP BY hardware, version, run, number, scored
ORDER BY hardware, version, run, number, scored
"""
