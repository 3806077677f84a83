"""`tencost records regress`: which networks take longer than before, beyond their noise.

Runs are compared with earlier ones of the same network, engine, hardware, number of cores and host. Something is
*slower* if the whole 95 % bootstrap interval of the ratio of medians (since over before, see network_ratios) lies above
1 + margin, *faster* if it lies below 1 / (1 + margin), the *same* if none of it is above 1 + margin; else it is
*unclear*, and more runs would say. The noise between runs is that of both sides. Where both sides
have one run it is not known, and the margin counts twice: a second run says more. Something *fails* if its latest run
failed and one before did not.

With runs that scatter by 1 % and a margin of 5 %, of 200 simulated pairs without a difference none was called slower;
of those that took 10 % longer, four of five were found by one run against five, nearly all that took 20 % longer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import polars as pl

from tencost.errors import RecordError
from tencost.records.network_times.ratios import Ratio, middle, ratio
from tencost.records.network_times.runs import Run, frame

MARGIN = 0.05
BEFORE = 10
"""Runs before that count, the last ones: what was slower a year ago says nothing about last night."""
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_CAUSES = {"tuning_programs": "programs"}
"""Keys of additional_info that may explain a ratio -> their names in messages."""


class Verdict(StrEnum):
    """How a network's time changed."""

    slower = "slower"
    failed = "fails"
    unclear = "unclear"
    same = "same"
    faster = "faster"


REGRESSED = (Verdict.slower, Verdict.failed)


@dataclass(frozen=True)
class Since:
    """The day or version from which runs count as new.

    Attributes:
        label: as the user said it.
        timestamp: of a day; None: it is a version.
    """

    label: str
    timestamp: float | None

    def divide(self, runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
        """Return (runs before, runs since), each in order of time; those without a time of day are in neither.

        A version divides by when versions were first seen: what was seen before it is before, also where it was timed
        again later. Runs that no run of that version is among are all before.
        """
        dated = sorted(
            (run for run in runs if run.timestamp is not None), key=lambda run: run.timestamp or 0.0
        )
        if self.timestamp is not None:
            new = {id(run) for run in dated if (run.timestamp or 0.0) >= self.timestamp}
        else:
            order = list(dict.fromkeys(_stack(run) for run in dated))
            place = next((at for at, stack in enumerate(order) if self.label in stack), len(order))
            later = set(order[place:])
            new = {id(run) for run in dated if _stack(run) in later}
        return [run for run in dated if id(run) not in new], [
            run for run in dated if id(run) in new
        ]


@dataclass(frozen=True)
class Change:
    """A network with an engine on a host, before and since.

    Attributes:
        runs: all, in order of time.
        before: those that count of before.
        since: those since.
        verdict: what came of it.
        ratio: of the medians; None where a side has no latencies.
        changed: what is not the same on both sides, in words.
    """

    runs: tuple[Run, ...]
    before: tuple[Run, ...]
    since: tuple[Run, ...]
    verdict: Verdict
    ratio: Ratio | None
    changed: str

    @property
    def name(self) -> str:
        """Name in a printed line: network, engine, hardware, cores and host."""
        run = self.since[-1]
        cores = f", {run.cores} cores" if run.cores > 1 else ""
        return f"{run.network} with {run.engine} on {run.hardware}{cores} ({run.host})"


def parse_since(text: str, runs: Sequence[Run]) -> Since:
    """Parse the day or version from which runs count as new.

    Raises:
        RecordError: neither a day nor a version of an engine, of TVM or of tencost that a run has.
    """
    if _DAY.fullmatch(text):
        try:
            return Since(text, datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
        except ValueError as error:
            raise RecordError(f"--since: expected a day of the calendar, found {text}") from error
    versions = sorted({version for run in runs for version in _stack(run)} - {"-"})
    if text not in versions:
        raise RecordError(
            f"--since: expected a day (2026-11-22, UTC) or a version of {', '.join(versions) or 'none'}, found {text!r}"
        )
    return Since(text, None)


def changes(
    runs: Sequence[Run],
    since: Since,
    *,
    margin: float = MARGIN,
    last: int = BEFORE,
    any_host: bool = False,
) -> list[Change]:
    """Return a change for each network that can be compared, slower ones first; the module describes the rule.

    Args:
        runs: what was timed.
        since: where what is new begins.
        margin: by which share something must be slower at least.
        last: runs before that count.
        any_host: hosts count as one.

    Raises:
        RecordError: no runs before, none since, or none on both sides of the same network, engine and place.
    """
    before, after = since.divide(runs)
    if not before or not after:
        days = sorted({run.day for run in runs} - {"-"})
        span = f"from {days[0]} to {days[-1]}" if days else "without a time of day"
        which = "before" if not before else "since"
        raise RecordError(
            f"--since {since.label}: expected runs {which} it, found none: the {len(runs)} runs are {span}"
        )
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        key = (run.network, run.engine, run.hardware, run.cores, "" if any_host else run.host)
        groups.setdefault(key, []).append(run)
    results = [_change(group, since, margin, last) for group in groups.values()]
    compared = [change for change in results if change is not None]
    if not compared:
        raise RecordError(_nothing_in_common(since, before, after))
    order = (Verdict.failed, Verdict.slower, Verdict.unclear, Verdict.same, Verdict.faster)
    return sorted(
        compared,
        key=lambda change: (
            order.index(change.verdict),
            -(change.ratio.value if change.ratio else 0.0),
        ),
    )


def table(compared: Sequence[Change]) -> pl.DataFrame:
    """Return a row for each change.

    Columns network, engine, hardware, cores, host, verdict; ratio, ratio_low, ratio_high; before_s and since_s
    (medians, seconds) with their quartiles; before_runs and since_runs (how many); changed.
    """
    rows = []
    for change in compared:
        run = change.since[-1]
        rows.append(
            {
                "network": run.network,
                "engine": run.engine,
                "hardware": run.hardware,
                "cores": run.cores,
                "host": run.host,
                "verdict": change.verdict.value,
                "ratio": change.ratio and change.ratio.value,
                "ratio_low": change.ratio and change.ratio.low,
                "ratio_high": change.ratio and change.ratio.high,
                **_quartile_columns("before", change.before),
                **_quartile_columns("since", change.since),
                "before_runs": len(change.before),
                "since_runs": len(change.since),
                "changed": change.changed,
            }
        )
    texts = dict.fromkeys(("network", "engine", "hardware"), pl.String)
    times = [f"{side}{end}_s" for side in ("before", "since") for end in ("", "_q1", "_q3")]
    numbers = dict.fromkeys(("ratio", "ratio_low", "ratio_high", *times), pl.Float64)
    return frame(
        rows,
        {
            **texts, "cores": pl.Int64, "host": pl.String, "verdict": pl.String, **numbers,
            "before_runs": pl.Int64, "since_runs": pl.Int64, "changed": pl.String,
        },
    )  # fmt: skip


def _change(group: Sequence[Run], since: Since, margin: float, last: int) -> Change | None:
    """Return the change of one group of runs; None where it has none on one of the sides."""
    old, new = since.divide(group)
    good_old = [run for run in old if not run.failed][-last:]
    good_new = [run for run in new if not run.failed]
    if not new or not good_old:
        return None
    slowdown = None
    if good_new:
        slowdown = ratio([run.seconds for run in good_new], [run.seconds for run in good_old])
    change = Change(
        runs=tuple(old + new),
        before=tuple(good_old),
        since=tuple(new),
        verdict=Verdict.failed if new[-1].failed else Verdict.same,
        ratio=slowdown,
        changed=_changed(good_old[-1], new[-1]),
    )
    if slowdown is None or change.verdict is Verdict.failed:
        return change
    least = 1 + margin * (1 if slowdown.runs_known else 2)
    if slowdown.low > least:
        return replace(change, verdict=Verdict.slower)
    if slowdown.high > least:
        return replace(change, verdict=Verdict.unclear)
    return replace(change, verdict=Verdict.faster) if slowdown.high < 1 / least else change


def _changed(old: Run, new: Run) -> str:
    """Return the differences between the last run before and the last run since, in words."""
    if new.failed:
        return new.error
    pairs = [(f"{new.engine}", old.version, new.version)]
    for name in sorted({*old.versions, *new.versions} - {new.engine}):
        pairs.append((name, old.versions.get(name, "-"), new.versions.get(name, "-")))
    for key, name in _CAUSES.items():
        pairs.append((name, old.info.get(key, "-"), new.info.get(key, "-")))
    pairs.append(("host", old.host, new.host))
    differences = [
        f"{name} {before} -> {after}" for name, before, after in pairs if before != after
    ]
    return ", ".join(differences)


def _nothing_in_common(since: Since, before: Sequence[Run], after: Sequence[Run]) -> str:
    names = {
        "network": "network", "engine": "engine", "hardware": "hardware", "cores": "number of cores", "host": "host",
    }  # fmt: skip
    for name, noun in names.items():
        old, new = ({str(getattr(run, name)) for run in side} for side in (before, after))
        if not old & new:
            hint = " Hosts count as one with --any-host, or get one name: TENCOST_HOST"
            return (
                f"--since {since.label}: expected a {noun} that was timed before it and since, found before "
                f"{', '.join(sorted(old))}, since {', '.join(sorted(new))}.{hint if name == 'host' else ''}"
            )
    return (
        f"--since {since.label}: expected a network that was timed before it and since with the same engine, hardware, "
        "cores and host, found none. What there is: tencost records compare --by engine,version,day"
    )


def _stack(run: Run) -> tuple[str, ...]:
    """Return the versions of a run: of the engine, and of what it depends on."""
    return (run.version, *(run.versions[name] for name in sorted(run.versions)))


def _quartile_columns(side: str, runs: Sequence[Run]) -> dict[str, float | None]:
    good = [run.seconds for run in runs if not run.failed]
    quartiles: dict[str, float] = asdict(middle(good)) if good else {}
    names = {"": "median_s", "_q1": "q1_s", "_q3": "q3_s"}
    return {f"{side}{end}_s": quartiles.get(name) for end, name in names.items()}
