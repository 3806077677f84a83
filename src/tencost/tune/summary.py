"""What a tuning run found, as the table at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tencost import signals

if TYPE_CHECKING:
    from tencost.tune.cost_model import Round

WEAK = 0.2
"""Rank correlation of the registered model below which it is said that it does not rank a task's programs."""
ENOUGH = 16
"""Programs of a task from which on that is said: the rank correlation of fewer is mostly noise."""
_NAMED = 3


@dataclass(frozen=True)
class WeakTask:
    """A task whose programs the registered model does not rank: its rank correlation over so many programs."""

    task: str
    spearman: float
    programs: int

    def __str__(self) -> str:
        return f"{self.task} ({self.spearman:+.2f} over {self.programs} programs)"


def weak_tasks(history: Sequence[Round]) -> list[WeakTask]:
    """Return the tasks whose programs the registered model does not rank, the worst first.

    Args:
        history: the run's rounds; a round counts with its programs.
    """
    found: dict[str, list[tuple[float, int]]] = {}
    for one in history:
        if one.base_spearman is not None:
            found.setdefault(one.task, []).append((one.base_spearman, one.num_measured))
    tasks = []
    for task, rounds in found.items():
        programs = sum(number for _, number in rounds)
        mean = sum(value * number for value, number in rounds) / programs
        if programs >= ENOUGH and mean < WEAK:
            tasks.append(WeakTask(task, round(mean, 3), programs))
    return sorted(tasks, key=lambda one: one.spearman)


def weak_report(history: Sequence[Round]) -> dict[str, Any]:
    """Return rows of the report."""
    return {"not_ranked": [asdict(one) for one in weak_tasks(history)]}


def print_summary(report: dict[str, Any], folder: Path, console: Console) -> None:
    """Print the table, and what has to be said about it."""
    table = Table(title=f"{report['network']} on {report['hardware']}", show_header=False)
    stopped = f"stopped by {signals.name()}; the same command continues"
    ended = stopped if report["interrupted"] else "done"
    rows = [
        ("model", report["model"]),
        ("programs measured", f"{report['trials']} in {report['tasks']} tasks ({ended})"),
        ("time", f"{report['seconds']:.0f} s"),
        ("tasks, unscheduled", _default(report)),
        ("tasks, best programs", _best(report)),
    ]
    if "mean_spearman" in report:
        rows.append(
            ("rank correlation, mean", f"{report['mean_spearman']:.2f} (Spearman, before learning)")
        )
    if report["outputs_compared"]:
        rows.append(("outputs compared", _compared(report)))
    if "network_latency_s" in report:
        rows += _network_rows(report)
    if report.get("above_the_roof"):
        rows.append(("most time above the roof", "\n".join(report["above_the_roof"])))
    if report["host_told"]:
        rows.append(("host", f"{report['host_told']}: times scatter"))
    rows.append(("database", str(folder)))
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)
    weak = [WeakTask(**one) for one in report["not_ranked"]]
    if weak:
        more = f", and {len(weak) - _NAMED} more tasks" if len(weak) > _NAMED else ""
        told = f"the model does not rank this task's programs: {', '.join(map(str, weak[:_NAMED]))}{more}."
        told += " Whether that lasts: tencost register drift"
        console.print(told, style="yellow", markup=False, highlight=False, soft_wrap=True)


def _default(report: dict[str, Any]) -> str:
    """Return the tasks' row unscheduled, and which of them count with the limit."""
    told = f"{report['tasks_default_latency_s'] * 1e3:.3f} ms"
    if not report.get("tasks_default_stopped"):
        return told
    of, limit = (
        f"{report['tasks_default_stopped']} of {report['tasks']}",
        report["tasks_default_limit_s"],
    )
    return f"{told} ({of} were stopped after {limit:g} s, and count as that)"


def _best(report: dict[str, Any]) -> str:
    """Return the tasks' row: median, in brackets the quartiles where they were timed again at the end."""
    told = f"{report['tasks_total_latency_s'] * 1e3:.3f} ms"
    if "tasks_total_latency_q1_s" not in report:
        return told
    low, high = (report[f"tasks_total_latency_{end}_s"] * 1e3 for end in ("q1", "q3"))
    return f"{told} [{low:.3f}, {high:.3f}]"


def _beyond(report: dict[str, Any]) -> str:
    """Return what the network takes beyond its tasks; in words where that cannot be."""
    beyond, low, high = (report[f"network_unexplained{end}_s"] * 1e3 for end in ("", "_q1", "_q3"))
    if beyond > 0:
        return f"{beyond:.3f} ms [{low:.3f}, {high:.3f}] (untuned operators, memory, calls)"
    if high >= 0:
        return "nothing that can be told from noise"
    return (
        "nothing: timed in turn with it, its tasks one by one take longer than the network that holds them. Inside it "
        "their inputs are still in the caches, or the host was disturbed"
    )


def _compared(report: dict[str, Any]) -> str:
    wrong = f", {report['wrong_answers']} wrong" if report["wrong_answers"] else ", none wrong"
    left = report["tasks_not_compared"]
    left_out = f", {left} tasks could not be" if left else ""
    return f"{report['outputs_compared']} programs in {report['outputs_compared_seconds']:.1f} s{wrong}{left_out}"


def _difference(report: dict[str, Any]) -> str:
    told = []
    if "max_abs_error" in report:
        told = [f"{report['max_abs_error']:.1e} absolute, {report['max_rel_error']:.1e} relative"]
    for name, why in report.get("outputs_that_say_nothing", {}).items():
        told.append(f"none can be told of {name}, which is {why}")
    return "; ".join(told)


def _ratios(report: dict[str, Any]) -> str:
    """Return the tuned network's time over those of what else a user could run, below 1 where tuning won.

    Code that nothing scheduled is what nobody would run: it counts only where there are no rules, as on GPUs.
    """
    others = [("rules", "by rule"), ("onnxruntime", "ONNX Runtime"), ("compared", "the compared")]
    if "network_over_rules" not in report:
        others.insert(0, ("default", "unscheduled"))
    known = [(f"network_over_{key}", name) for key, name in others]
    return "".join(f", {report[key]:.2f} of {name}" for key, name in known if key in report)


def _network_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the whole network's rows: medians, in brackets the quartiles."""

    def told(key: str, more: str = "") -> str:
        low, high = (report[f"{key}_{end}_s"] * 1e3 for end in ("q1", "q3"))
        return f"{report[f'{key}_s'] * 1e3:.3f} ms [{low:.3f}, {high:.3f}]{more}"

    rows = []
    if "network_default_latency_s" in report:
        rows.append(("network, unscheduled", told("network_default_latency")))
    else:
        least = (
            f"not timed: its tasks alone take {report['network_default_at_least_s']:.1f} s or more"
        )
        rows.append(("network, unscheduled", least))
    if "compared_tasks" in report:
        of = f", {report['compared_tasks']} of {report['tasks']} tasks in it"
        rows.append(("network, compared database", told("network_compared_latency", of)))
    if "network_rules_latency_s" in report:
        rows.append(("network, by rule", told("network_rules_latency")))
    if "network_onnxruntime_latency_s" in report:
        rows.append(("network, ONNX Runtime", told("network_onnxruntime_latency")))
    return [
        *rows,
        ("network, tuned", told("network_latency", _ratios(report))),
        ("network, beyond its tasks", _beyond(report)),
        (f"difference from {report.get('computed_by', 'PyTorch')}", _difference(report)),
    ]
