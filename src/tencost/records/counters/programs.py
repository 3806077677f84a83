"""From launches of kernels to programs: one row of metrics each, as every metric asks.

A program is a sequence of kernels, and profilers run it several times. Launches of one kernel (name, grid, block) are
averaged, the first ones left out if they are to warm up. Kernels become a program by :func:`.metrics.rollup`: counts,
bytes and times are added, each kernel as often as a run launches it; %, rates and quotients are weighted by the
kernels' time; of what was launched counts the kernel that takes longest; the tightest limit of occupancy holds.

How often a program ran is said by the user, or by the file, or found: the shortest sequence of kernels that
repeats from beginning to end is a run, the last one may be cut off. Where nothing repeats, all launches are one run.

Memory grows with the programs, not with the launches: two numbers a kernel and metric, four bytes a launch.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tencost.records.counters.launches import Columns, Launch
from tencost.records.counters.metrics import TIME, rollup, same_kind
from tencost.records.counters.table import Profiles
from tencost.records.reading.protocol import first_names

_SIZES = ("launch__grid_size", "launch__block_size")


@dataclass(eq=False, slots=True)
class _Kernel:
    """Launches of one kernel: `total` [m] of their metrics, `measured` [m] how many launches have each."""

    number: int
    launches: int = 0
    total: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    measured: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    time: float = 0.0
    timed: int = 0

    def add(self, places: NDArray[np.int64], launch: Launch, warm_up: int, width: int) -> None:
        self.launches += 1
        if self.launches <= warm_up + 1:
            self.time, self.timed = 0.0, 0
            self.total, self.measured = np.zeros(width), np.zeros(width, dtype=np.int32)
        elif len(self.total) < width:
            self.total = np.pad(self.total, (0, width - len(self.total)))
            self.measured = np.pad(self.measured, (0, width - len(self.measured)))
        measured = ~np.isnan(launch.values)
        self.total[places[measured]] += launch.values[measured]
        self.measured[places[measured]] += 1
        if not np.isnan(launch.time_ns):
            self.time += launch.time_ns
            self.timed += 1

    def mean(self, width: int) -> NDArray[np.float64]:
        """Return the metrics of a launch, float64 [width]."""
        mean = np.full(width, np.nan)
        np.divide(self.total, self.measured, out=mean[: len(self.total)], where=self.measured > 0)
        return mean


@dataclass(eq=False, slots=True)
class _Program:
    workload: str
    kernels: dict[tuple[str, str], _Kernel] = field(default_factory=dict)
    sequence: array[int] = field(default_factory=lambda: array("I"))
    runs: int = 0
    last_run: int = 0


@dataclass(frozen=True, eq=False)
class Gathered:
    """Programs with their metrics.

    Attributes:
        profiles: the programs in the order in which they were first seen.
        units: metric -> canonical unit.
        launches: how many launches they come from.
        kernels: how many kernels those are of, by name.
        notes: oddities, a sentence each.
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
        self._places: dict[Columns, NDArray[np.int64]] = {}
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
                first_unit = self._units.get(name) or unit
                if same_kind(first_unit, unit):
                    self._units[name] = first_unit
                else:
                    self._mixed[f"{name} ({first_unit}, {unit or 'no unit'})"] += 1
                    name = f"{name} [{unit}]"
                    self._units[name] = unit
                places.append(self._metrics.setdefault(name, len(self._metrics)))
            self._places[columns] = np.array(places, dtype=np.int64)
        return self._places[columns]

    def finish(self) -> Gathered:
        """Return the programs; nothing can be added afterwards."""
        metrics = tuple(self._metrics)
        kinds = np.array([rollup(name) for name in metrics], dtype=np.str_)
        ids, devices = (np.array(part, dtype=np.str_) for part in zip(*self._programs, strict=True))
        workloads = [program.workload for program in self._programs.values()]
        values = np.full((len(ids), len(metrics)), np.nan)
        time_ns = np.full(len(ids), np.nan)
        partial: Counter[str] = Counter()
        unsteady: list[str] = []
        cold: list[str] = []
        untimed = 0
        for row, key in enumerate(list(self._programs)):
            program = self._programs.pop(key)  # memory is freed as the table grows
            kernels = list(program.kernels.values())
            means = np.stack([kernel.mean(len(metrics)) for kernel in kernels])
            calls, steady = self._calls(program)
            unsteady += [] if steady else [key[0]]
            cold += [key[0]] if any(each.launches <= self._warm_up for each in kernels) else []
            times = self._times(kernels, means)
            time_ns[row] = float((times * calls).sum())
            if len(kernels) == 1:
                values[row] = np.where(kinds == "sum", means[0] * calls[0], means[0])
                continue
            untimed += bool(np.isnan(times).any())
            sizes = [means[:, self._metrics[name]] for name in _SIZES if name in self._metrics]
            values[row] = _merged(means, calls, times, kinds, np.prod(sizes, axis=0))
            lost = np.isnan(values[row]) & ~np.isnan(means).all(axis=0)
            partial.update(metrics[at] for at in np.flatnonzero(lost).tolist())
        profiles = Profiles(ids, np.array(workloads, np.str_), devices, metrics, values, time_ns)
        notes = self._notes(list(partial), unsteady, cold, untimed)
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
        """Return how long each kernel takes, ns; NaN where it was not measured."""
        times = np.full(len(kernels), np.nan)
        if TIME in self._metrics:
            times = means[:, self._metrics[TIME]].copy()
        for at, kernel in enumerate(kernels):
            if kernel.timed:
                times[at] = kernel.time / kernel.timed
        return times

    def _notes(
        self, partial: list[str], unsteady: list[str], cold: list[str], untimed: int
    ) -> tuple[str, ...]:
        uneven = "no order that repeats, so that all launches count as one run"
        advice = "Say how often they ran with --runs"
        if self._runs is not None:
            uneven = f"numbers that {self._runs} runs do not divide, so that they are rounded"
            advice = "Correct --runs, or leave it out"
        notes = [
            f"{name} comes in units that are not one another's: {count} files differ, kept apart"
            for name, count in self._mixed.items()
        ]
        if partial:
            notes.append(
                f"{len(partial)} metrics were told for some kernels of a program and not for others, and have no value "
                f"there: {first_names(partial)}"
            )
        if unsteady:
            notes.append(
                f"{len(unsteady)} programs launch kernels in {uneven}: {first_names(unsteady)}. {advice}"
            )
        if cold:
            notes.append(
                f"{len(cold)} programs launch a kernel no more than {self._warm_up} times, so that its last launch "
                f"stays though it may be warming up: {first_names(cold)}"
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
    kinds: NDArray[np.str_],
    threads: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return one row, float64 [M], of kernels' rows [K, M]; calls, times, threads [K]; kinds [M], see `rollup`."""
    weight = calls * times
    largest = weight
    if np.isnan(weight).any() or not weight.sum() > 0:
        weight = calls
        largest = np.broadcast_to(np.nan_to_num(threads), calls.shape)
    shares = np.where(np.isnan(means), 0.0, weight[:, None])
    total = shares.sum(axis=0)
    weighted = (np.nan_to_num(means) * shares).sum(axis=0)
    rows = {
        "sum": (means * calls[:, None]).sum(axis=0),
        "time": np.divide(weighted, total, out=np.full(len(total), np.nan), where=total > 0),
        "largest": means[int(largest.argmax())],
        "min": np.fmin.reduce(means, axis=0),  # fmin and fmax leave NaN out
        "max": np.fmax.reduce(means, axis=0),
    }
    return np.select([kinds == kind for kind in rows], list(rows.values()))


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
