"""What was measured: the tasks that a part of a split lets us evaluate, and what they stand for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tencost.errors import SplitError
from tencost.evaluate import metrics
from tencost.evaluate import replayed_search as search
from tencost.evaluate.metrics import Coverage, Floats, Ints
from tencost.store.status import Status

if TYPE_CHECKING:
    import polars as pl

_ON = " on "
"""Stands between network and hardware where several hardware are judged together."""
MOST_TIMED_OUT = 0.25
"""Share of a task's programs beyond the time limit from which on it is listed and not summed."""


@dataclass(frozen=True)
class Task:
    """A workload of a network.

    Attributes:
        network: name of the network.
        workload_id: what is computed.
        weight: how often the network computes it.
        rows: int64 [n], its programs' rows in the truth's record arrays, ascending.
    """

    network: str
    workload_id: str
    weight: float
    rows: Ints


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A task that is listed and not summed: its programs say nothing about an order, or too much.

    Attributes:
        network: name of the network.
        task: name of the task; the beginning of the workload's id where it has none.
        workload_id: what is computed.
        why: in a few words.
        weight: how often the network computes it.
        best_ms: its fastest recorded program, milliseconds a call.
    """

    network: str
    task: str
    workload_id: str
    why: str
    weight: float
    best_ms: float


@dataclass(frozen=True)
class Truth:
    """What was measured on one hardware, for the part of a split that is evaluated.

    Attributes:
        record_id: the N records, ascending: ties in scores are broken by content hash.
        program_id: their programs, for looking features up.
        latency_s: float64 [N], median of the measured times, seconds; NaN for a failed program.
        tasks: tasks with at least one working program, by network; a workload of two networks is in
            both.
        coverage: per network, what its scored tasks stand for.
        left_out: tasks with a working program that are listed and not summed, see `why_left_out`.
    """

    record_id: npt.NDArray[np.str_]
    program_id: npt.NDArray[np.str_]
    latency_s: Floats
    tasks: tuple[Task, ...]
    coverage: dict[str, Coverage]
    left_out: tuple[LeftOut, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.record_id) == len(self.program_id) == len(self.latency_s)
        assert self.tasks, "a truth needs at least one task with a working program"
        names = [task.network for task in self.tasks]
        assert names == sorted(names), "tasks must be ordered by network"

    @cached_property
    def networks(self) -> tuple[str, ...]:
        """Networks with at least one task, in order."""
        return tuple(dict.fromkeys(task.network for task in self.tasks))

    @cached_property
    def stratum(self) -> Ints:
        """Index of the network of each task, int64 [T]."""
        index = {name: position for position, name in enumerate(self.networks)}
        return np.array([index[task.network] for task in self.tasks], dtype=np.int64)

    @cached_property
    def network(self) -> Ints:
        """Index of the network of each task whatever hardware it was measured on, int64 [T], see `joined`."""
        names = [task.network.split(_ON)[0] for task in self.tasks]
        index = {name: position for position, name in enumerate(dict.fromkeys(names))}
        return np.array([index[name] for name in names], dtype=np.int64)

    @cached_property
    def weight(self) -> Floats:
        """Occurrences of each task in its network, float64 [T]."""
        return np.array([task.weight for task in self.tasks], dtype=np.float64)

    @cached_property
    def latencies(self) -> tuple[Floats, ...]:
        """Latency of each task's programs, seconds."""
        return tuple(self.latency_s[task.rows] for task in self.tasks)

    @cached_property
    def num_programs(self) -> Ints:
        """Programs of each task, int64 [T]."""
        return np.array([len(task.rows) for task in self.tasks], dtype=np.int64)

    @cached_property
    def optimum_s(self) -> Floats:
        """Fastest recorded program of each task, float64 [T], seconds."""
        return np.array([np.nanmin(latency) for latency in self.latencies])

    @cached_property
    def median_s(self) -> Floats:
        """Median working program of each task, float64 [T], seconds."""
        return np.array([np.nanmedian(latency) for latency in self.latencies])

    @cached_property
    def random_best(self) -> Floats:
        """Expected best program by step under random order, exact, float64 [T, K], seconds."""
        return self.stack([metrics.expected_best_so_far(latency) for latency in self.latencies])

    @cached_property
    def cutoffs(self) -> Ints:
        """The step at which replayed search stops counting, int64 [M], one per network."""
        steps = []
        for index in range(len(self.networks)):
            of = self.stratum == index
            weight = self.weight[of]
            curve = weight @ self.random_best[of]
            optimum, median = float(weight @ self.optimum_s[of]), float(weight @ self.median_s[of])
            steps.append(search.cutoff_step(curve, optimum, median))
        return np.array(steps, dtype=np.int64)

    def stack(self, curves: Sequence[Floats]) -> Floats:
        """Lay curves of [n_t] under each other: float64 [T, K], each padded with its last value."""
        steps = int(self.num_programs.max())
        return np.stack([np.pad(curve, (0, steps - len(curve)), mode="edge") for curve in curves])


def build_truth(
    records: pl.DataFrame,
    split: pl.DataFrame,
    tasks: pl.DataFrame,
    hardware: str,
    part: str,
    networks: Sequence[str] = (),
) -> Truth:
    """Join records, split and tasks into what is evaluated.

    Args:
        records: record_id, program_id, workload_id, hardware, latency_s (null for a failed
            program); where known, spread (of the logarithm of the record's own repeats) and status.
        split: record_id, part.
        tasks: network, workload_id, weight, flop: all tasks of every network, measured or not.
        hardware: name of the hardware.
        part: valid or test.
        networks: networks to evaluate; none named means every network with a task in the part.

    Raises:
        SplitError: no task of these networks has a working program in the part.
    """
    import polars as pl

    chosen = (
        records.filter(pl.col("hardware") == hardware)
        .join(split.filter(pl.col("part") == part).select("record_id"), on="record_id", how="semi")
        .sort("record_id")
    )
    latency = chosen["latency_s"].cast(pl.Float64).fill_null(math.nan).to_numpy()
    rows: dict[str, list[int]] = {}
    for row, workload in enumerate(chosen["workload_id"].to_list()):
        rows.setdefault(workload, []).append(row)
    known = {key: np.array(value, dtype=np.int64) for key, value in rows.items()}
    works = {key for key, value in known.items() if not np.isnan(latency[value]).all()}
    why = _left_out(chosen, {key: known[key] for key in works}, latency)
    every = (
        tasks.group_by("network", "workload_id")
        .agg(pl.col("weight").sum(), pl.col("flop").max())
        .sort("network", "workload_id")
    )
    if networks:
        every = every.filter(pl.col("network").is_in(list(networks)))
    named = set(every["workload_id"].to_list()) & works
    why = why if named - why.keys() else {}  # where nothing else is left, it is what there is
    scored = [
        Task(row["network"], row["workload_id"], float(row["weight"]), known[row["workload_id"]])
        for row in every.iter_rows(named=True)
        if row["workload_id"] in works - why.keys()
    ]
    if not scored:
        of = f" for {', '.join(networks)}" if networks else ""
        raise SplitError(
            f"expected tasks measured on {hardware} in the {part} part of the split, found none"
            f"{of}. See report.json beside the split, or choose another split or hardware."
        )
    coverage = {
        name: _coverage(of_network, known, works - why.keys(), latency)
        for (name,), of_network in every.group_by("network", maintain_order=True)
    }
    used = {task.network for task in scored}
    names: dict[tuple[str, str], str] = {}
    if "task_name" in tasks.columns:
        for network, workload, name in tasks.select(
            "network", "workload_id", "task_name"
        ).iter_rows():
            names[network, workload] = name
    return Truth(
        np.asarray(chosen["record_id"].to_list(), dtype=np.str_),
        np.asarray(chosen["program_id"].to_list(), dtype=np.str_),
        latency,
        tuple(scored),
        {str(name): value for name, value in coverage.items() if networks or name in used},
        tuple(
            LeftOut(
                network=row["network"],
                task=names.get((row["network"], row["workload_id"]), row["workload_id"][:12]),
                workload_id=row["workload_id"],
                why=why[row["workload_id"]],
                weight=float(row["weight"]),
                best_ms=1e3 * float(np.nanmin(latency[known[row["workload_id"]]])),
            )
            for row in every.iter_rows(named=True)
            if row["workload_id"] in why
        ),
    )


def why_left_out(latency_s: Floats, spread: Floats, timed_out: int) -> str:
    """Return why a task is listed and not summed; empty if it is summed.

    Alike: the standard deviation of its programs' log latencies is not above the median one of a program's own
    repeats, so that the fastest is fastest by luck; or there is one program alone. Ends in time-outs: at least
    MOST_TIMED_OUT of its programs ran into the time limit, so that first choices count as the slowest program that did
    not, and one of them costs more than a network.

    Args:
        latency_s: float64 [n], seconds, NaN for a failed program; one task.
        spread: float64 [n], standard deviation of the logarithm of each program's repeats; NaN where it is not known.
        timed_out: programs that ran longer than the time limit.
    """
    working = latency_s[~np.isnan(latency_s)]
    if timed_out >= MOST_TIMED_OUT * len(latency_s):
        return f"{timed_out} of {len(latency_s)} programs ran into the time limit"
    if len(latency_s) == 1:
        return "one program"
    own = spread[~np.isnan(spread)]
    if len(own) == 0 or len(working) == 1:
        return ""
    between, noise = float(np.log(working).std(ddof=1)), float(np.median(own))
    if between <= noise:
        return f"{len(working)} programs alike: they differ by {between:.1%}, a program's repeats by {noise:.1%}"
    return ""


def _left_out(records: pl.DataFrame, known: dict[str, Ints], latency_s: Floats) -> dict[str, str]:
    """Return workload -> why, of those that are listed and not summed."""
    count = len(records)
    spread = np.full(count, math.nan)
    if "spread" in records.columns:
        spread = records["spread"].fill_null(math.nan).to_numpy()
    late = np.zeros(count, dtype=np.bool_)
    if "status" in records.columns:
        late = (records["status"] == Status.run_timeout.value).fill_null(False).to_numpy()
    found = {
        key: why_left_out(latency_s[rows], spread[rows], int(late[rows].sum()))
        for key, rows in known.items()
    }
    return {key: why for key, why in found.items() if why}


def _coverage(
    tasks: pl.DataFrame, known: dict[str, Ints], works: set[str], latency_s: Floats
) -> Coverage:
    workloads = tasks["workload_id"].to_list()
    amount = dict(zip(workloads, (tasks["weight"] * tasks["flop"]).to_list(), strict=True))
    total = sum(amount.values())
    scored = [key for key in workloads if key in works]
    rows = [known[key] for key in workloads if key in known]
    failed = sum(int(np.isnan(latency_s[value]).sum()) for value in rows)
    return Coverage(
        tasks_scored=len(scored),
        tasks=len(workloads),
        flop_share=sum(amount[key] for key in scored) / total if total else math.nan,
        programs=sum(len(value) for value in rows),
        failed=failed,
    )


def joined(truths: Mapping[str, Truth]) -> Truth:
    """Return what was measured on several hardware as one truth: its networks are "<network> on <hardware>".

    A task is then a workload of a network on one hardware: programs of two hardware are never compared.

    Args:
        truths: hardware -> its truth.
    """
    record_id = np.concatenate([one.record_id for one in truths.values()])
    order = np.argsort(record_id, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    tasks: list[Task] = []
    coverage: dict[str, Coverage] = {}
    start = 0
    for hardware, one in truths.items():
        for task in one.tasks:
            rows = np.sort(place[start + task.rows])
            tasks.append(replace(task, network=on_hardware(task.network, hardware), rows=rows))
        coverage |= {on_hardware(name, hardware): of for name, of in one.coverage.items()}
        start += len(one.record_id)
    return replace(
        next(iter(truths.values())),
        record_id=record_id[order],
        program_id=np.concatenate([one.program_id for one in truths.values()])[order],
        latency_s=np.concatenate([one.latency_s for one in truths.values()])[order],
        tasks=tuple(sorted(tasks, key=lambda task: (task.network, task.workload_id))),
        coverage=dict(sorted(coverage.items())),
        left_out=tuple(
            replace(task, network=on_hardware(task.network, hardware))
            for hardware, one in truths.items()
            for task in one.left_out
        ),
    )


def on_hardware(network: str, hardware: str) -> str:
    """Return what a network is called where several hardware are judged together."""
    return f"{network}{_ON}{hardware}"
