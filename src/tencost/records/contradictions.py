"""Workloads and programs whose times contradict their neighbours': reported at imports and builds, as groups.

gate.py judges one record at a time against fixed limits, so records that are too fast by less, or a whole task in
another unit, pass it. Two comparisons find those; both are of one hardware, target and code generator:

    programs    the fastest programs of a workload are FACTOR times faster than the next of at least CROWD others
    workloads   a workload's best time is FACTOR times less, for its size, than that of the next of at least NEIGHBOURS
                other workloads of the same operator, or where there are fewer, of all operators

A tenth of a crowd or of the neighbours may stand out together. The size of a workload is the elements of its
arguments; where all are tensors, a workload stands out by the elements of the last one, its output, as well: a
reduction reads more than it writes, and a gather reads part of its table. Nothing is quarantined here, as a better
tuner may be the reason.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from tencost.records.gate import CROWD, GROUP, tensors
from tencost.records.reading.report import SHOWN
from tencost.store.layout import known_generator, latency

FACTOR = 4.0
"""In 701 workloads of public logs with nine programs or more, the best is 1.7 times faster than the next; one: 4.5.

Of 18 operators with six workloads or more, the fastest for its size is 1.5 times faster than the next.
"""
NEIGHBOURS = 5
COLUMNS = (*GROUP, "task_name", "workload_args", "run_secs", "status", "source")
"""Columns that `contradictions` looks at."""
_SHARE = 0.1
_NUMBER = re.compile(r"(?<=[a-z])\d+(?=_|$)")
"""The number at the end of a name's part that tells tasks of one operator apart: conv2d1_add3."""


class _Workload(NamedTuple):
    """The programs of a workload: rows and latencies (seconds), the fastest first; sizes of its arguments."""

    identity: str
    name: str
    setting: tuple[str, ...]
    rows: list[int]
    latencies: np.ndarray
    sizes: tuple[float, ...]
    comparable: bool
    """Whether its sizes are elements of tensors, which other operators' workloads have, too."""


def contradictions(records: pl.DataFrame, reported: Collection[str] | None = None) -> list[str]:
    """Return a sentence for each group of programs or workloads that contradicts its neighbours.

    Args:
        records: rows with COLUMNS; quarantined ones are not among them.
        reported: ids of the workloads to report; None: all. The others are neighbours.
    """
    workloads = list(_workloads(records))

    def places(rows: list[int]) -> str:
        return _in_words(records["source"].gather(rows).to_list())

    sentences = []
    bests = []
    for workload in workloads:
        count = _standing_out(1 / workload.latencies, CROWD)
        bests.append(float(workload.latencies[count]))
        if count and (reported is None or workload.identity in reported):
            factor = workload.latencies[count] / workload.latencies[count - 1]
            crowd = len(workload.latencies) - count
            sentences.append(
                f"{_programs(count)} of {workload.name} on {workload.setting[1]}: "
                f"{workload.latencies[count - 1]:.3g} s or less, {factor:.1f} times less than the next of {crowd} "
                f"others: {places(workload.rows[:count])}"
            )
    operators = [(*each.setting, _NUMBER.sub("", each.name)) for each in workloads]
    for place, factor, others, which in _outliers(workloads, bests, operators):
        workload = workloads[place]
        if reported is not None and workload.identity not in reported:
            continue
        count = len(workload.latencies)
        sentences.append(
            f"{_programs(count)} of {workload.name} on {workload.setting[1]}: the fastest takes {bests[place]:.3g} s, "
            f"for its size {factor:.1f} times less than the next of {others} other workloads {which}: "
            f"{places(workload.rows)}"
        )
    return sentences


def contradiction_notes(sentences: Sequence[str]) -> list[str]:
    """Return the first sentences as a report prints them, with the next command behind the last."""
    notes = list(sentences[:SHOWN])
    if len(sentences) > SHOWN:
        notes.append(f"{len(sentences) - SHOWN} more groups contradict their neighbours")
    if notes:
        notes[-1] += (
            ". The records are in the store; compare them with their source, and where they are wrong: tencost records "
            "delete"
        )
    return notes


def _workloads(records: pl.DataFrame) -> Iterator[_Workload]:
    groups = (
        records.with_row_index("row")
        .filter(pl.col("status") == "ok")
        .with_columns(known_generator(), latency_s=latency())
        .filter(pl.col("latency_s") > 0)
        .sort("latency_s")
        .group_by(GROUP, maintain_order=True)
        .agg(pl.col("task_name", "workload_args").first(), "row", "latency_s")
    )
    for identity, target, hardware, generator, name, args, rows, latencies in groups.iter_rows():
        sizes, comparable = _sizes(args)
        setting = (target, hardware, generator)
        yield _Workload(identity, name, setting, rows, np.asarray(latencies), sizes, comparable)


def _standing_out(rates: np.ndarray, crowd: int) -> int:
    """Return how many of the first of descending rates are FACTOR times above the next of a crowd; 0 for none."""
    most = min(max(1, int(_SHARE * len(rates))), len(rates) - crowd)
    counts = [count for count in range(1, most + 1) if rates[count - 1] > FACTOR * rates[count]]
    return max(counts, default=0)


def _outliers(
    workloads: Sequence[_Workload], bests: Sequence[float], operators: Sequence[tuple[str, ...]]
) -> Iterator[tuple[int, float, int, str]]:
    """Yield (place, factor above the next, how many others, which they are) of workloads that are too fast."""
    by_operator: dict[tuple[str, ...], list[int]] = {}
    by_setting: dict[tuple[str, ...], list[int]] = {}
    for place, workload in enumerate(workloads):
        if not workload.sizes:
            continue
        by_operator.setdefault(operators[place], []).append(place)
        if workload.comparable:
            by_setting.setdefault(workload.setting, []).append(place)
    few = {key for key, places in by_operator.items() if len(places) <= NEIGHBOURS}
    for key, places in by_operator.items():
        if key not in few:
            for place, factor in _fastest_for_size(workloads, bests, places):
                yield place, factor, len(places) - 1, "of its operator"
    for places in by_setting.values():
        for place, factor in _fastest_for_size(workloads, bests, places):
            if operators[place] in few:
                yield place, factor, len(places) - 1, "on this hardware"


def _fastest_for_size(
    workloads: Sequence[_Workload], bests: Sequence[float], places: Sequence[int]
) -> Iterator[tuple[int, float]]:
    """Yield the places of workloads that stand out by each of their sizes, and the least factor above the next."""
    factors: dict[int, list[float]] = {}
    for size in range(min((len(workloads[place].sizes) for place in places), default=0)):
        rates = {place: workloads[place].sizes[size] / bests[place] for place in places}
        order = sorted(rates, key=lambda place: -rates[place])
        count = _standing_out(np.array([rates[place] for place in order]), NEIGHBOURS)
        for place in order[:count]:
            factors.setdefault(place, []).append(rates[place] / rates[order[count]])
    for place, each in factors.items():
        if len(each) == len(workloads[place].sizes):
            yield place, min(each)


def _sizes(args: str | None) -> tuple[tuple[float, ...], bool]:
    """Return the elements of all arguments, and of the last where all are tensors; and whether all are tensors."""
    shapes = tensors(args)
    if shapes:
        return (sum(size for size, _ in shapes), shapes[-1][0]), True
    value = json.loads(args) if args else None
    total = _elements(value)
    return ((total,) if total else ()), False


def _elements(value: Any) -> float:
    """Return the elements of the shapes in a value; without shapes, the product of its numbers."""
    parts = value if isinstance(value, list) else []
    inner = [part for part in parts if isinstance(part, list)]
    if inner:
        return sum(map(_elements, inner))
    numbers = [part for part in parts if type(part) is int and part > 0]
    return float(math.prod(numbers)) if numbers else 0.0


def _programs(count: int) -> str:
    return f"{count} program" + "s" * (count > 1)


def _in_words(places: Sequence[dict[str, Any] | None]) -> str:
    """Return the files and lines of some records."""
    lines: dict[str, list[int]] = {}
    for place in places:
        if place:
            lines.setdefault(place["file"], []).append(place["line"])
    words = []
    for file, numbers in [*lines.items()][:3]:
        first = sorted(numbers)
        shown = ", ".join(map(str, first[:3])) + (f" to {first[-1]}" if len(first) > 3 else "")
        words.append(f"{file}, line{'s' * (len(first) > 1)} {shown}")
    return "; ".join(words) + (f" and {len(lines) - 3} more files" if len(lines) > 3 else "")
