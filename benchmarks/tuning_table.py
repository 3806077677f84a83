"""What tuning.py found, as tables and a plot.

A task's goal is the latency that stock ended with. `programs` and `seconds` say how many times fewer an arm needs until
its best program is at the goal, or within 1 % of it: the budget over the number of the program that gets there, stock's
seconds over the second at which that program's batch was measured. A task that never gets there counts with all that
it had, so with 1 for its programs; how many got there is told. `latency` is the arm's final latency over stock's. Means
are geometric, over tasks. No ratio is given for a network and seed of which an arm has a task without a program that
runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

SCHEMA = {
    "trial": pl.Int64,
    "seconds": pl.Float64,
    "latency_s": pl.Float64,
    "trace": pl.String,
    "args": pl.String,
}
STOCK, WARM, OURS, RULE = "stock", "stock-warm", "tencost", "rule"
ORDER = (
    STOCK,
    WARM,
    OURS,
    "no-tiles",
    "no-starts",
    "random",
    "random-no-starts",
    "frozen",
    "frozen-no-starts",
    "no-draft",
    "inverted",
    "knn",
    "rule",
)
COLORS = {
    **{STOCK: "black", WARM: "tab:gray", OURS: "tab:red", "no-starts": "tab:blue"},
    **{
        "random": "tab:purple",
        "frozen": "tab:brown",
        "frozen-no-starts": "tab:green",
        "no-draft": "tab:pink",
        "inverted": "tab:olive",
        "no-tiles": "tab:orange",
        "random-no-starts": "tab:cyan",
        "knn": "gold",
        "rule": "silver",
    },
}
NEAR = 1.01
"""A goal that is missed by 1 % counts as reached in the columns that say so."""
SECONDS = (5.0, 10.0, 20.0, 40.0)
"""Where arms are compared at equal seconds of a task with its program by rule."""
CLOSE = 1.02
"""Where what a model alone is worth counts a task's best as found."""
SHARES = (
    ("register tiles", "programs", OURS, "no-tiles"),
    ("starting points", "programs", OURS, "no-starts"),
    ("model", "programs", "frozen", "random"),
    ("model without starting points", "programs", "no-starts", "random-no-starts"),
    ("frozen model without starting points", "programs", "frozen-no-starts", "random-no-starts"),
    ("learning", "programs", OURS, "frozen"),
    ("draft", "seconds", OURS, "no-draft"),
)
"""What a part is worth: a figure of the arm that has it over that of the arm that has not."""


@dataclass(frozen=True)
class TaskRun:
    """A task in an arm: its best programs in order, and what was spent in all."""

    bests: Sequence[tuple[float, float, float]]
    programs: int
    seconds: float

    @property
    def latency_s(self) -> float:
        return min((latency for _, _, latency in self.bests), default=float("inf"))

    def at(self, goal_s: float) -> tuple[float, float] | None:
        """Return (programs, seconds) until a latency is reached; None if it never is."""
        found = ((trial, second) for trial, second, latency in self.bests if latency <= goal_s)
        return next(found, None)


@dataclass(frozen=True)
class Run:
    """A network and seed: each task in each arm."""

    name: str
    settings: dict[str, Any]
    arms: Mapping[str, Sequence[TaskRun | None]]

    @property
    def lacks(self) -> list[str]:
        """Why there are no ratios of it: arms and the tasks that they have not reached."""
        told = []
        for arm, tasks in self.arms.items():
            missing = [
                self.settings["tasks"][place][0]
                for place, task in enumerate(tasks)
                if task is None or not task.bests
            ]
            if missing:
                told.append(f"{arm} has no program of {', '.join(missing)}")
        return told if STOCK in self.arms and OURS in self.arms else ["stock or tencost not run"]

    def latency_s(self, arm: str) -> float:
        """Return the weighted sum of the tasks' final latencies."""
        weights = [weight for _, weight, _ in self.settings["tasks"]]
        pairs = zip(weights, self.arms[arm], strict=True)
        return float(sum(weight * task.latency_s for weight, task in pairs if task is not None))


def bests(run: pl.DataFrame) -> pl.DataFrame:
    """Return the programs that were the best when they were measured."""
    ok = run.filter(pl.col("latency_s").is_not_nan())
    before = pl.col("latency_s").cum_min().shift(1, fill_value=float("inf"))
    return ok.filter(pl.col("latency_s") < before)


def is_older(folder: Path, runs: Mapping[tuple[int, str], pl.DataFrame]) -> bool:
    """Say whether the programs were timed again before the last run was there."""
    found = json.loads((folder / "again.json").read_text())
    return set(found) != {f"{place}-{arm}" for place, arm in runs}


def read_run(folder: Path) -> Run | None:
    """Read a network and seed; None if its programs have not been timed again."""
    if not (folder / "again.json").exists():
        return None
    settings = json.loads((folder / "settings.json").read_text())
    again = json.loads((folder / "again.json").read_text())
    arms: dict[str, list[TaskRun | None]] = {}
    for arm in ORDER:
        found: list[TaskRun | None] = []
        for place in range(len(settings["tasks"])):
            points = again.get(f"{place}-{arm}")
            if points is None:
                found.append(None)
                continue
            frame = pl.read_parquet(folder / f"{place}-{arm}.parquet", columns=["seconds"])
            spent = float(np.max(frame["seconds"].to_numpy(), initial=0.0))
            found.append(TaskRun([tuple(point) for point in points], frame.height, spent))
        if any(found):
            arms[arm] = found
    return Run(folder.name, settings, arms)


def factors(runs: Iterable[Run], arm: str, peer: str) -> dict[str, Any]:
    """Return how an arm compares with a peer over all tasks of some runs."""
    values: dict[str, list[float]] = {}
    reached = {1.0: 0, NEAR: 0}
    for run in runs:
        for ours, theirs in zip(run.arms[arm], run.arms[peer], strict=True):
            assert ours is not None
            assert theirs is not None
            values.setdefault("latency", []).append(ours.latency_s / theirs.latency_s)
            for slack, word in ((1.0, ""), (NEAR, " 1%")):
                found = ours.at(slack * theirs.latency_s)
                reached[slack] += found is not None
                trial, second = found or (ours.programs, ours.seconds)
                values.setdefault(f"programs{word}", []).append(theirs.programs / trial)
                values.setdefault(f"seconds{word}", []).append(theirs.seconds / second)
    means: dict[str, Any] = {name: mean(found) for name, found in values.items()}
    count = len(values.get("latency", []))
    return means | {"reached": f"{reached[1.0]}, {reached[NEAR]} of {count}"}


def mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def report(folder: Path) -> str:
    """Return the tables, and draw the curves beside the results."""
    found = [read_run(one) for one in sorted(folder.glob("*")) if one.is_dir()]
    runs = [run for run in found if run is not None]
    alone = [*until_best(runs), *over_rule(runs)]
    whole = [run for run in runs if not run.lacks]
    lines = [f"no ratios of {run.name}: {'; '.join(run.lacks)}" for run in runs if run.lacks]
    if not whole:
        return "\n\n".join(["\n".join([*lines, "no whole results yet"]), *alone])
    plot(whole, folder / "tasks.png")
    arms = [arm for arm in ORDER if all(arm in run.arms for run in whole)]
    partly = sorted({arm for run in whole for arm in run.arms} - set(arms))
    lines += [f"left out, as not all of these have it: {arm}" for arm in partly]
    parts = ["\n".join(lines), latencies(whole, arms)]
    peers = [peer for peer in (STOCK, WARM) if peer in arms]
    parts += [compared(whole, arms, peer) for peer in peers]
    parts += [shares(whole, arms, peers[-1]), *alone]
    return "\n\n".join(part for part in parts if part)


def latencies(runs: Sequence[Run], arms: Sequence[str]) -> str:
    """Return each run's latencies and seconds by arm, and tencost's factors over stock."""
    title = (
        "ms: the tasks' final latencies, weighted and summed; s: seconds of all tasks; latency, programs, seconds: "
        "tencost and stock"
    )
    rows = []
    for run in runs:
        row: dict[str, Any] = {
            "run": run.name,
            "tasks": len(run.settings["tasks"]),
            "programs each": run.settings["programs"],
        }
        for arm in [arm for arm in (STOCK, WARM, OURS) if arm in arms]:
            row[f"ms {arm}"] = 1e3 * run.latency_s(arm)
            row[f"s {arm}"] = round(sum(task.seconds for task in run.arms[arm] if task))
        rows.append(row | factors([run], OURS, STOCK))
    rows.append({"run": "geometric mean"} | factors(runs, OURS, STOCK))
    return f"{title}\n{grid(rows)}"


def compared(runs: Sequence[Run], arms: Sequence[str], peer: str) -> str:
    """Return each arm's factors over a peer, over all tasks."""
    rows = [{"arm": arm} | factors(runs, arm, peer) for arm in arms if arm not in (STOCK, peer)]
    return f"over {peer}'s result, all tasks\n{grid(rows)}"


def shares(runs: Sequence[Run], arms: Sequence[str], peer: str) -> str:
    """Return by what factor each part of tencost has its share in that."""
    lines = [f"share of each part (within 1 % of {peer}'s result; factors multiply)"]
    for part, figure, having, lacking in SHARES:
        if having in arms and lacking in arms:
            key = f"{figure} 1%"
            ratio = factors(runs, having, peer)[key] / factors(runs, lacking, peer)[key]
            lines.append(f"{part:>16}  {ratio:.2f} times fewer {figure} ({having} over {lacking})")
    return "\n".join(lines) if len(lines) > 1 else ""


def until_best(runs: Sequence[Run]) -> list[str]:
    """Return what the registered model alone is worth: programs until within 2 % of the best that either arm found.

    Over the tasks of all runs that have both arms. A task that an arm never gets there counts with all its programs.
    """
    asked, blind = "frozen-no-starts", "random-no-starts"
    pairs = [
        (run, place, two)
        for run in runs
        if asked in run.arms and blind in run.arms
        for place, two in enumerate(zip(run.arms[asked], run.arms[blind], strict=True))
        if all(one is not None and one.bests for one in two)
    ]
    rows = []
    for run, place, two in pairs:
        goal = CLOSE * min(one.latency_s for one in two if one)
        spent = [one.at(goal) or (one.programs, one.seconds) for one in two if one]
        rows.append(
            {
                "run": run.name,
                "task": run.settings["tasks"][place][0][:60],
                "us": 1e6 * goal / CLOSE,
            }
            | {asked: int(spent[0][0]), blind: int(spent[1][0])}
            | {"times fewer": spent[1][0] / spent[0][0]}
            | {"ends": " ".join(f"{1e6 * one.latency_s:.1f}" for one in two if one)}
        )
    if not rows:
        return []
    rows.append(
        {"run": "geometric mean", "times fewer": mean([row["times fewer"] for row in rows])}
    )
    title = "programs until within 2 % of the best that either found (us), and where they end; no starting points"
    return [f"{title}\n{grid(rows)}"]


def over_rule(runs: Sequence[Run]) -> list[str]:
    """Return where each arm is after so many programs and seconds, over the program by rule of the same task.

    Over the tasks whose program by rule runs. What is deployed is the faster one of both: the last columns.
    """
    places = [
        (run, place, ruled)
        for run in runs
        for place, ruled in enumerate(run.arms.get(RULE, ()))
        if ruled is not None and ruled.bests
    ]
    if not places:
        return []
    ends = sorted({1.0, 5.0, *(float(run.settings["programs"]) for run, _, _ in places)})
    rows = []
    for arm in [arm for arm in ORDER if arm != RULE]:
        tasks = [(run.arms[arm][place], ruled) for run, place, ruled in places if arm in run.arms]
        both = [(task, ruled) for task, ruled in tasks if task is not None and task.bests]
        if not both:
            continue
        row: dict[str, Any] = {"arm": arm, "tasks": len(both)}
        for column, limits, word in ((0, ends, "programs"), (1, SECONDS, "s")):
            for limit in limits:
                values = [best_until(task, column, limit) / ruled.latency_s for task, ruled in both]
                known = [value for value in values if np.isfinite(value)]
                row[f"{limit:g} {word}"] = mean(known) if len(known) == len(both) else "-"
        last = [task.latency_s / ruled.latency_s for task, ruled in both]
        row["deployed"] = mean([min(value, 1.0) for value in last])
        row["worst"], row["below .95"] = max(last), sum(value < 0.95 for value in last)
        rows.append(row)
    title = f"over the program by rule, geometric mean of {len(places)} tasks; -: a task has no program yet"
    return [f"{title}\n{grid(rows)}"]


def grid(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as columns of text."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    told = [names]
    for row in rows:
        cells = [row.get(name, "") for name in names]
        told.append([f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells])
    widths = [max(len(line[column]) for line in told) for column in range(len(names))]
    return "\n".join(
        "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
        for line in told
    )


def plot(runs: Sequence[Run], file: Path) -> None:
    """Draw the mean over tasks of best latency over stock's final one: by programs and by seconds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4))
    for arm in ORDER:
        pairs = [
            (task, goal)
            for run in runs
            if arm in run.arms
            for task, goal in zip(run.arms[arm], run.arms[STOCK], strict=True)
            if task is not None and goal is not None
        ]
        if not pairs:
            continue
        color = COLORS[arm]
        for axis, column in zip(axes, (0, 1), strict=True):
            ends = [max(task.programs if column == 0 else task.seconds, 1) for task, _ in pairs]
            places = np.geomspace(1, max(ends), 200)
            curves = [
                [best_until(task, column, place) / goal.latency_s for place in places]
                for task, goal in pairs
            ]
            values = np.exp(np.mean(np.log(curves), axis=0))
            axis.plot(places, np.where(np.isfinite(values), values, np.nan), color=color, label=arm)
    for axis, label in zip(axes, ("programs of a task", "seconds of a task"), strict=True):
        axis.set(xscale="log", yscale="log", xlabel=label, ylabel="latency over stock's final one")
        axis.axhline(1.0, color="black", linewidth=0.5)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(file, dpi=100)
    plt.close(figure)


def best_until(task: TaskRun, column: int, place: float) -> float:
    """Return the best latency within so many programs (column 0) or seconds (1); infinite before the first."""
    return min((point[2] for point in task.bests if point[column] <= place), default=float("inf"))
