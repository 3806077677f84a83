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

if TYPE_CHECKING:
    import polars as pl


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
    """

    record_id: npt.NDArray[np.str_]
    program_id: npt.NDArray[np.str_]
    latency_s: Floats
    tasks: tuple[Task, ...]
    coverage: dict[str, Coverage]

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
            curve = search.network_curve(self.random_best[of], weight)
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
            program).
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
    every = (
        tasks.group_by("network", "workload_id")
        .agg(pl.col("weight").sum(), pl.col("flop").max())
        .sort("network", "workload_id")
    )
    if networks:
        every = every.filter(pl.col("network").is_in(list(networks)))
    scored = [
        Task(row["network"], row["workload_id"], float(row["weight"]), known[row["workload_id"]])
        for row in every.iter_rows(named=True)
        if row["workload_id"] in works
    ]
    if not scored:
        of = f" for {', '.join(networks)}" if networks else ""
        raise SplitError(
            f"expected tasks measured on {hardware} in the {part} part of the split, found none"
            f"{of}. See report.json beside the split, or choose another split or hardware."
        )
    coverage = {
        name: _coverage(of_network, known, works, latency)
        for (name,), of_network in every.group_by("network", maintain_order=True)
    }
    used = {task.network for task in scored}
    return Truth(
        np.asarray(chosen["record_id"].to_list(), dtype=np.str_),
        np.asarray(chosen["program_id"].to_list(), dtype=np.str_),
        latency,
        tuple(scored),
        {str(name): value for name, value in coverage.items() if networks or name in used},
    )


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
    )


def on_hardware(network: str, hardware: str) -> str:
    """Return what a network is called where several hardware are judged together."""
    return f"{network} on {hardware}"
