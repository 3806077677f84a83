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
class TruthTask:
    """A workload of a network.

    Attributes:
        network: name of the network.
        workload_id: what is computed.
        weight: how often the network computes it.
        rows: int64 [n], its programs' rows in the truth's record arrays, ascending.
        rule_s: seconds that it takes as the rules schedule it; NaN where that was not timed.
    """

    network: str
    workload_id: str
    weight: float
    rows: Ints
    rule_s: float = math.nan


@dataclass(frozen=True, kw_only=True)
class UnscoredTask:
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
    tasks: tuple[TruthTask, ...]
    coverage: dict[str, Coverage]
    left_out: tuple[UnscoredTask, ...] = ()

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
        return np.array([self.networks.index(task.network) for task in self.tasks], np.int64)

    @cached_property
    def network(self) -> Ints:
        """Index of the network of each task whatever hardware it was measured on, int64 [T], see `join_truths`."""
        names = [task.network.split(_ON)[0] for task in self.tasks]
        distinct = list(dict.fromkeys(names))
        return np.array([distinct.index(name) for name in names], np.int64)

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
    def rule_s(self) -> Floats:
        """Each task as the rules schedule it, float64 [T], seconds; NaN where that was not timed."""
        return np.array([task.rule_s for task in self.tasks])

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
    rule_times: pl.DataFrame | None = None,
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
        rule_times: hardware, workload_id, latency_s: tasks as the rules schedule them; None: not timed.

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
    positions = chosen.with_row_index("row").group_by("workload_id").agg(pl.col("row"))
    rows = {workload: np.array(of, np.int64) for workload, of in positions.iter_rows()}
    works = {workload for workload, of in rows.items() if not np.isnan(latency[of]).all()}
    why = _why_left_out(chosen, {workload: rows[workload] for workload in works}, latency)
    name = pl.col("task_name").last() if "task_name" in tasks.columns else pl.lit(None)
    every = (
        tasks.group_by("network", "workload_id", maintain_order=True)
        .agg(pl.col("weight").sum(), pl.col("flop").max(), name.alias("task_name"))
        .filter(pl.col("network").is_in(list(networks)) if networks else pl.lit(True))
        .sort("network", "workload_id")
    )
    if not set(every["workload_id"]) & works - why.keys():
        why = {}  # where nothing else is there to judge, these are judged
    judged = works - why.keys()
    rule_s: dict[str, float] = {}
    if rule_times is not None:
        of_hardware = rule_times.filter(pl.col("hardware") == hardware)
        rule_s = dict(of_hardware.select("workload_id", "latency_s").iter_rows())
    scored, left_out = [], []
    for row in every.iter_rows(named=True):
        network, workload, weight = row["network"], row["workload_id"], float(row["weight"])
        if workload in judged:
            by_rule = rule_s.get(workload, math.nan)
            scored.append(TruthTask(network, workload, weight, rows[workload], by_rule))
        elif workload in why:
            left_out.append(
                UnscoredTask(
                    network=network,
                    task=row["task_name"] or workload[:12],
                    workload_id=workload,
                    why=why[workload],
                    weight=weight,
                    best_ms=1e3 * float(np.nanmin(latency[rows[workload]])),
                )
            )
    if not scored:
        of = f" for {', '.join(networks)}" if networks else ""
        raise SplitError(
            f"expected tasks measured on {hardware} in the {part} part of the split, found none"
            f"{of}. See report.json beside the split, or choose another split or hardware."
        )
    judged_networks = {task.network for task in scored}
    return Truth(
        np.asarray(chosen["record_id"].to_list(), dtype=np.str_),
        np.asarray(chosen["program_id"].to_list(), dtype=np.str_),
        latency,
        tuple(scored),
        {
            str(network): _coverage(of_network, rows, judged, latency)
            for (network,), of_network in every.group_by("network", maintain_order=True)
            if networks or network in judged_networks
        },
        tuple(left_out),
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
    if np.isnan(spread).all() or len(working) == 1:
        return ""
    between, noise = float(np.log(working).std(ddof=1)), float(np.nanmedian(spread))
    if between <= noise:
        return f"{len(working)} programs alike: they differ by {between:.1%}, a program's repeats by {noise:.1%}"
    return ""


def _why_left_out(
    records: pl.DataFrame, rows: dict[str, Ints], latency_s: Floats
) -> dict[str, str]:
    """Return workload -> why, of those that are listed and not summed."""
    spread = np.full(len(records), math.nan)
    if "spread" in records.columns:
        spread = records["spread"].fill_null(math.nan).to_numpy()
    timed_out = np.zeros(len(records), dtype=np.bool_)
    if "status" in records.columns:
        timed_out = (records["status"] == Status.run_timeout.value).fill_null(False).to_numpy()
    reasons = {
        workload: why_left_out(latency_s[of], spread[of], int(timed_out[of].sum()))
        for workload, of in rows.items()
    }
    return {workload: why for workload, why in reasons.items() if why}


def _coverage(
    tasks: pl.DataFrame, rows: dict[str, Ints], judged: set[str], latency_s: Floats
) -> Coverage:
    """Return the coverage of one network's tasks."""
    flop = dict(zip(tasks["workload_id"], tasks["weight"] * tasks["flop"], strict=True))
    scored = [workload for workload in flop if workload in judged]
    total = sum(flop.values())
    measured = [latency_s[rows[workload]] for workload in flop if workload in rows]
    return Coverage(
        tasks_scored=len(scored),
        tasks=len(flop),
        flop_share=sum(flop[workload] for workload in scored) / total if total else math.nan,
        programs=sum(len(latency) for latency in measured),
        failed=sum(int(np.isnan(latency).sum()) for latency in measured),
    )


def join_truths(truths: Mapping[str, Truth]) -> Truth:
    """Return what was measured on several hardware as one truth: its networks are "<network> on <hardware>".

    A task is then a workload of a network on one hardware: programs of two hardware are never compared.

    Args:
        truths: hardware -> its truth.
    """
    record_id = np.concatenate([truth.record_id for truth in truths.values()])
    order = np.argsort(record_id, kind="stable")
    position = np.argsort(order)
    tasks: list[TruthTask] = []
    coverage: dict[str, Coverage] = {}
    start = 0
    for hardware, truth in truths.items():
        for task in truth.tasks:
            rows = np.sort(position[start + task.rows])
            tasks.append(replace(task, network=on_hardware(task.network, hardware), rows=rows))
        coverage |= {on_hardware(name, hardware): of for name, of in truth.coverage.items()}
        start += len(truth.record_id)
    return replace(
        next(iter(truths.values())),
        record_id=record_id[order],
        program_id=np.concatenate([truth.program_id for truth in truths.values()])[order],
        latency_s=np.concatenate([truth.latency_s for truth in truths.values()])[order],
        tasks=tuple(sorted(tasks, key=lambda task: (task.network, task.workload_id))),
        coverage=dict(sorted(coverage.items())),
        left_out=tuple(
            replace(task, network=on_hardware(task.network, hardware))
            for hardware, truth in truths.items()
            for task in truth.left_out
        ),
    )


def on_hardware(network: str, hardware: str) -> str:
    """Return what a network is called where several hardware are judged together."""
    return f"{network}{_ON}{hardware}"
