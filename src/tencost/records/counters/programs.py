"""From launches of kernels to programs: one row of metrics each, as every metric asks.

A program is a sequence of kernels, and profilers run it several times. Launches of one kernel (name, grid, block) are
averaged, the first ones left out if they are to warm up. Kernels become a program by :func:`.metrics.rollup`: counts,
bytes and times are added, each kernel as often as a run launches it; %, rates and quotients are weighted by the
kernels' time; of what was launched counts the kernel that takes longest; the tightest limit of occupancy holds.

How often a program ran is told by who profiled it, or by the file, or found: the shortest sequence of kernels that
repeats from beginning to end is a run, the last one may be cut off. Where nothing repeats, all launches are one run.

Memory grows with the programs, not with the launches: two numbers a kernel and metric, four bytes a launch.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tencost.records.counters.launches import Columns, Launch
from tencost.records.counters.metrics import TIME, rollup, same_kind
from tencost.records.counters.table import Profiles

_TOLD = 5
"""Names that a note gives at most."""
_SIZES = ("launch__grid_size", "launch__block_size")
_TEMPLATE = re.compile(r"[<(].*")


@dataclass(eq=False, slots=True)
class _Kernel:
    """Launches of one kernel, summed: `total` [m], NaN where a metric was never told; `seen` [m] launches that told it.

    `seen` is None while there is one launch, so that a file with a launch a program costs one number a metric.
    """

    number: int
    launches: int = 0
    kept: int = 0
    total: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    seen: NDArray[np.int32] | None = None
    time: float = 0.0
    timed: int = 0

    def add(self, places: NDArray[np.int64], launch: Launch, warm_up: int, width: int) -> None:
        self.launches += 1
        if self.launches <= warm_up + 1:
            self.kept, self.time, self.timed, self.seen = 0, 0.0, 0, None
            self.total = np.full(width, np.nan)
        if len(self.total) < width:
            more = width - len(self.total)
            self.total = np.concatenate([self.total, np.full(more, np.nan)])
            if self.seen is not None:
                self.seen = np.concatenate([self.seen, np.zeros(more, dtype=np.int32)])
        if self.kept == 0:
            self.total[places] = launch.values
        else:
            if self.seen is None:
                self.seen = (~np.isnan(self.total)).astype(np.int32)
            told = ~np.isnan(launch.values)
            there = places[told]
            self.total[there] = (
                np.where(self.seen[there] > 0, self.total[there], 0.0) + launch.values[told]
            )
            self.seen[there] += 1
        self.kept += 1
        if not np.isnan(launch.time_ns):
            self.time += launch.time_ns
            self.timed += 1

    def mean(self, width: int) -> NDArray[np.float64]:
        """Return the metrics of a launch, float64 [width]."""
        found = np.full(width, np.nan)
        mean = self.total if self.seen is None else self.total / np.maximum(self.seen, 1)
        found[: len(mean)] = mean
        return found


@dataclass(eq=False, slots=True)
class _Program:
    workload: str
    kernels: dict[tuple[str, str], _Kernel] = field(default_factory=dict)
    sequence: array[int] = field(default_factory=lambda: array("I"))
    runs: int = 0
    last_run: int = 0


@dataclass(frozen=True, eq=False)
class Gathered:
    """Programs, and what is told of them.

    Attributes:
        profiles: the programs in the order in which they were first seen.
        units: metric -> canonical unit.
        launches: how many launches they come from.
        kernels: how many kernels those are of, by name.
        notes: a sentence each.
    """

    profiles: Profiles
    units: Mapping[str, str]
    launches: int
    kernels: int
    notes: tuple[str, ...]


class Programs:
    """Programs that grow by launches.

    Args:
        warm_up: launches of each kernel of a program that are left out; the last one stays in any case.
        runs: how often every program ran; None: as the files tell, or found.
    """

    def __init__(self, *, warm_up: int = 0, runs: int | None = None) -> None:
        self._warm_up = warm_up
        self._runs = runs
        self._programs: dict[tuple[str, str], _Program] = {}
        self._metrics: dict[str, int] = {}
        self._units: dict[str, str] = {}
        self._places: dict[Columns, tuple[NDArray[np.int64], list[str]]] = {}
        self._launches = 0
        self._names: set[str] = set()
        self._mixed: Counter[str] = Counter()

    def add(self, program_id: str, workload: str, device: str, launch: Launch) -> bool:
        """Add a launch to its program, and say whether it is the first one of it on its device."""
        places = self._places_of(launch.columns)
        count = len(self._programs)
        program = self._programs.setdefault((program_id, device), _Program(workload))
        key = (launch.kernel, launch.shape)
        if key not in program.kernels:
            self._names.add(launch.kernel)
            program.kernels[key] = _Kernel(len(program.kernels))
        kernel = program.kernels[key]
        kernel.add(places, launch, self._warm_up, len(self._metrics))
        program.sequence.append(kernel.number)
        if launch.run and launch.run != program.last_run:
            program.last_run = launch.run
            program.runs += 1
        self._launches += 1
        return len(self._programs) > count

    def _places_of(self, columns: Columns) -> NDArray[np.int64]:
        if columns not in self._places:
            places = []
            for name, unit in zip(columns.names, columns.units, strict=True):
                known = self._units.setdefault(name, unit)
                if not known and unit:
                    self._units[name] = unit
                elif not same_kind(known, unit):
                    self._mixed[f"{name} ({known}, {unit or 'no unit'})"] += 1
                    name = f"{name} [{unit}]"
                    self._units[name] = unit
                places.append(self._metrics.setdefault(name, len(self._metrics)))
            self._places[columns] = np.array(places, dtype=np.int64), list(columns.names)
        return self._places[columns][0]

    def finish(self) -> Gathered:
        """Return the programs; nothing can be added afterwards."""
        metrics = tuple(self._metrics)
        kinds = np.array([rollup(name) for name in metrics], dtype=np.str_)
        how = {
            kind: np.flatnonzero(kinds == kind) for kind in ("sum", "time", "largest", "min", "max")
        }
        values = np.full((len(self._programs), len(metrics)), np.nan)
        time_ns = np.full(len(self._programs), np.nan)
        ids = np.array([key[0] for key in self._programs], dtype=np.str_)
        device = np.array([key[1] for key in self._programs], dtype=np.str_)
        workload = np.array([each.workload for each in self._programs.values()], dtype=np.str_)
        partly: Counter[str] = Counter()
        unsteady: list[str] = []
        uneven: list[str] = []
        cold: list[str] = []
        untimed = 0
        for row, key in enumerate(list(self._programs)):
            program = self._programs.pop(key)  # memory goes as the table grows
            kernels = list(program.kernels.values())
            means = np.stack([kernel.mean(len(metrics)) for kernel in kernels])
            calls, steady = self._calls(program)
            if not steady:
                (unsteady if self._runs is None else uneven).append(key[0])
            if any(kernel.launches <= self._warm_up for kernel in kernels):
                cold.append(key[0])
            times = self._times(kernels, means)
            time_ns[row] = float((times * calls).sum())
            if len(kernels) == 1:
                values[row] = means[0]
                values[row, how["sum"]] *= calls[0]
                continue
            untimed += bool(np.isnan(times).any())
            sizes = [means[:, self._metrics[name]] for name in _SIZES if name in self._metrics]
            values[row] = _merged(means, calls, times, how, np.prod(sizes, axis=0))
            lost = np.isnan(values[row]) & ~np.isnan(means).all(axis=0)
            partly.update(metrics[at] for at in np.flatnonzero(lost).tolist())
        profiles = Profiles(ids, workload, device, metrics, values, time_ns)
        notes = self._notes(partly, unsteady, uneven, cold, untimed)
        return Gathered(profiles, dict(self._units), self._launches, len(self._names), notes)

    def _calls(self, program: _Program) -> tuple[NDArray[np.float64], bool]:
        """Return how often a run launches each kernel, and whether the launches are whole runs."""
        sequence = np.frombuffer(program.sequence, dtype=np.uint32)
        counts = np.bincount(sequence, minlength=len(program.kernels)).astype(np.float64)
        runs = program.runs or self._runs
        if runs is not None and runs > 0:
            whole = bool(program.runs) or not (counts % runs).any()
            return np.maximum(1.0, np.round(counts / runs)), whole
        length = _period(program.sequence)
        in_a_run = np.bincount(sequence[:length], minlength=len(program.kernels))
        repeats = length < len(sequence) or bool((counts == 1).all())
        return in_a_run.astype(np.float64), repeats

    def _times(self, kernels: Sequence[_Kernel], means: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what each kernel takes, ns; NaN where nobody told."""
        times = np.full(len(kernels), np.nan)
        if TIME in self._metrics:
            times = means[:, self._metrics[TIME]].copy()
        for at, kernel in enumerate(kernels):
            if kernel.timed:
                times[at] = kernel.time / kernel.timed
        return times

    def _notes(
        self,
        partly: Counter[str],
        unsteady: list[str],
        uneven: list[str],
        cold: list[str],
        untimed: int,
    ) -> tuple[str, ...]:
        notes = []
        for name, count in self._mixed.items():
            notes.append(
                f"{name} comes in units that are not one another's: {count} files differ, kept apart"
            )
        if partly:
            notes.append(
                f"{len(partly)} metrics were told for some kernels of a program and not for others, and have no value "
                f"there: {_some(list(partly))}"
            )
        if unsteady:
            notes.append(
                f"{len(unsteady)} programs launch kernels in no order that repeats, so that all launches count as one "
                f"run: {_some(unsteady)}. Say how often they ran with --runs"
            )
        if uneven:
            notes.append(
                f"{len(uneven)} programs launch kernels in numbers that {self._runs} runs do not divide, so that "
                f"they are rounded: {_some(uneven)}. Correct --runs, or leave it out"
            )
        if cold:
            notes.append(
                f"{len(cold)} programs launch a kernel no more than {self._warm_up} times, so that its last launch "
                f"stays though it may be warming up: {_some(cold)}"
            )
        if untimed:
            notes.append(
                f"{untimed} programs have kernels without a time ({TIME}): their kernels weigh as often as they ran"
            )
        return tuple(notes)


def _merged(
    means: NDArray[np.float64],
    calls: NDArray[np.float64],
    times: NDArray[np.float64],
    how: Mapping[str, NDArray[np.int64]],
    threads: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return one row, float64 [M], of kernels' rows [K, M]; calls, times, threads [K]."""
    found = np.full(means.shape[1], np.nan)
    found[how["sum"]] = (means[:, how["sum"]] * calls[:, None]).sum(axis=0)
    weight = calls * times
    largest = weight
    if np.isnan(weight).any() or not weight.sum() > 0:
        weight = calls
        largest = np.broadcast_to(np.nan_to_num(threads), calls.shape)
    shares = np.where(np.isnan(means[:, how["time"]]), 0.0, weight[:, None])
    total = shares.sum(axis=0)
    weighted = (np.nan_to_num(means[:, how["time"]]) * shares).sum(axis=0)
    found[how["time"]] = np.divide(
        weighted, total, out=np.full(len(total), np.nan), where=total > 0
    )
    found[how["largest"]] = means[int(largest.argmax())][how["largest"]]
    # fmin and fmax leave NaN out.
    found[how["min"]] = np.fmin.reduce(means[:, how["min"]], axis=0)
    found[how["max"]] = np.fmax.reduce(means[:, how["max"]], axis=0)
    return found


def _period(sequence: Sequence[int]) -> int:
    """Return the length of the shortest beginning whose repetition is the whole; the last may be cut off.

    Knuth, Morris and Pratt's failure function.
    """
    fail = array("I", [0]) * len(sequence)
    matched = 0
    for at in range(1, len(sequence)):
        while matched and sequence[at] != sequence[matched]:
            matched = fail[matched - 1]
        if sequence[at] == sequence[matched]:
            matched += 1
        fail[at] = matched
    length = len(sequence) - (fail[-1] if len(sequence) else 0)
    return length if 2 * length <= len(sequence) else len(sequence)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_TOLD]) + (
        f" and {len(names) - _TOLD} more" if len(names) > _TOLD else ""
    )
