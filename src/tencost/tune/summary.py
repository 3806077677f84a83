"""The end of a tuning run: its figures, the conditions it was timed under, the table and the bars of its latencies."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tencost import signals
from tencost.tune.reporting import draw_chart, print_note
from tencost.workers.noise import NOISY, host_load, is_busy

if TYPE_CHECKING:
    from tencost.tune.cost_model import Round
    from tencost.workers.pool import WorkerPool

WEAK = 0.2
"""Rank correlation of the registered model below which the summary says that it does not rank a task's programs."""
ENOUGH = 16
"""Programs of a task from which on that is said: the rank correlation of fewer is mostly noise."""
_LISTED = 3
VARIANTS = {
    "network_default_latency": "unscheduled",
    "network_compared_latency": "compared database",
    "network_rules_latency": "by rule",
    "network_onnxruntime_latency": "ONNX Runtime",
    "network_latency": "tuned",
    "tasks_total_latency": "sum of its tasks",
}
"""Latencies of a report, keys without their unit, and their labels, in the order of the table."""
BARS = (
    "network_default_latency", "network_compared_latency", "network_onnxruntime_latency", "network_rules_latency",
    "network_latency", "tasks_total_latency",
)  # fmt: skip
"""The same in the order of the bars, from the slowest to the fastest as a rule."""


@dataclass(frozen=True)
class Conditions:
    """Whether others used the host while a run timed its programs, and whether it became slower.

    Attributes:
        busy: why times would not be trusted when the run began; empty on a quiet host.
        probe_s: seconds of the noise probe's kernel at the start and at the end; fewer where it could not run.
    """

    busy: str = ""
    probe_s: tuple[float, ...] = ()

    @classmethod
    def at_start(cls, pool: WorkerPool) -> Conditions:
        """Look at the CPUs that a pool's programs run on."""
        load = host_load(set(pool.cpus.run)) if pool.cpus.run else {}
        return cls(is_busy(load) or "").probed(pool)

    def probed(self, pool: WorkerPool) -> Conditions:
        """Time the kernel once more."""
        seconds = pool.probe()
        return self if seconds is None else Conditions(self.busy, (*self.probe_s, seconds))

    @property
    def noise(self) -> float | None:
        """How many times as long as its best the kernel took at its worst, 1 on a quiet host."""
        return max(self.probe_s) / min(self.probe_s) if len(self.probe_s) > 1 else None

    @property
    def message(self) -> str:
        """What speaks against the run's times, in words; empty if nothing does."""
        reasons = [f"busy at the start: {self.busy}"] if self.busy else []
        if self.noise is not None and self.noise >= NOISY:
            when = "end" if self.probe_s[-1] > self.probe_s[0] else "start"
            reasons.append(
                f"the reference kernel took {self.noise:.2f} times its best at the {when}"
            )
        return "; ".join(reasons)

    def report(self) -> dict[str, Any]:
        """Return rows of the report."""
        return {"host_busy": self.busy, "host_noise": self.noise, "host_told": self.message}


def mean_correlations(history: Sequence[Round]) -> dict[str, float]:
    """Return rows of the report: the mean rank correlations over a run's rounds."""
    means = {}
    for name in ("spearman", "kendall", "base_spearman", "residual_spearman", "scratch_spearman"):
        values = [value for past in history if (value := getattr(past, name)) is not None]
        if values:
            means[f"mean_{name}"] = statistics.fmean(values)
    return means


def weak_tasks(history: Sequence[Round]) -> list[dict[str, Any]]:
    """Return the tasks whose programs the registered model does not rank, the worst first.

    Args:
        history: the run's rounds; a round counts with its programs.

    Returns:
        Of each task: its name (task), the rank correlation (spearman), over so many programs (programs).
    """
    rounds: dict[str, list[tuple[float, int]]] = {}
    for past in history:
        if past.base_spearman is not None:
            rounds.setdefault(past.task, []).append((past.base_spearman, past.num_measured))
    tasks = []
    for task, pairs in rounds.items():
        programs = sum(number for _, number in pairs)
        mean = sum(value * number for value, number in pairs) / programs
        if programs >= ENOUGH and mean < WEAK:
            tasks.append({"task": task, "spearman": round(mean, 3), "programs": programs})
    return sorted(tasks, key=lambda task: task["spearman"])


def plot_bars(report: Mapping[str, Any], path: Path, title: str) -> bool:
    """Draw the latencies that the report has as PNG, quartiles as whiskers; False where matplotlib is not installed."""
    keys = [key for key in BARS if f"{key}_s" in report]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for place, key in enumerate(keys):
            value = report[f"{key}_s"] * 1e3
            low, high = (report.get(f"{key}_{end}_s", value / 1e3) * 1e3 for end in ("q1", "q3"))
            error = [[max(0.0, value - low)], [max(0.0, high - value)]]
            color = "tab:blue" if key == "network_latency" else "tab:gray"
            axes.barh(place, value, xerr=error, color=color, capsize=3)
            axes.annotate(
                f"{value:.3f}", (high, place), (6, 0), textcoords="offset points", va="center"
            )
        axes.set_yticks(range(len(keys)), [VARIANTS[key] for key in keys])
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel("latency, ms (lower is better)")
        axes.set_title(title)

    return draw_chart(path, (7, 2.6), draw)


def print_summary(report: dict[str, Any], folder: Path, console: Console) -> None:
    """Print the table, and what has to be said about it."""
    stopped = f"stopped by {signals.name()}; the same command continues"
    ended = stopped if report["interrupted"] else "done"
    rows = [
        ("model", report["model"]),
        ("programs measured", f"{report['trials']} in {report['tasks']} tasks ({ended})"),
        ("time", f"{report['seconds']:.0f} s"),
        ("tasks, untuned", _untuned(report)),
        ("tasks, best programs", _latency(report, "tasks_total_latency")),
    ]
    if "mean_spearman" in report:
        mean = f"{report['mean_spearman']:.2f} (Spearman, before learning)"
        rows.append(("rank correlation, mean", mean))
    if report["outputs_compared"]:
        rows.append(("outputs compared", _compared(report)))
    if "network_latency_s" in report:
        rows += _network_rows(report)
    if report.get("above_the_roof"):
        rows.append(("most time above the roof", "\n".join(report["above_the_roof"])))
    if report["host_told"]:
        rows.append(("host", f"{report['host_told']}: times scatter"))
    table = Table(title=f"{report['network']} on {report['hardware']}", show_header=False)
    for name, value in [*rows, ("database", str(folder))]:
        table.add_row(name, value)
    console.print(table)
    weak = [
        f"{task['task']} ({task['spearman']:+.2f} over {task['programs']} programs)"
        for task in report["not_ranked"]
    ]
    if weak:
        more = f", and {len(weak) - _LISTED} more tasks" if len(weak) > _LISTED else ""
        print_note(
            console,
            f"the model does not rank this task's programs: {', '.join(weak[:_LISTED])}{more}. Whether that lasts: "
            "tencost register drift",
        )


def _latency(report: dict[str, Any], key: str) -> str:
    """Return a latency: the median, in brackets the quartiles where there are any."""
    text = f"{report[f'{key}_s'] * 1e3:.3f} ms"
    if f"{key}_q1_s" not in report:
        return text
    low, high = (report[f"{key}_{end}_s"] * 1e3 for end in ("q1", "q3"))
    return f"{text} [{low:.3f}, {high:.3f}]"


def _untuned(report: dict[str, Any]) -> str:
    """Return the tasks' latency untuned, and how many of them count with the limit."""
    text = _latency(report, "tasks_untuned_latency")
    if not report.get("tasks_untuned_stopped"):
        return text
    stopped = f"{report['tasks_untuned_stopped']} of {report['tasks']}"
    limit_s = report["tasks_untuned_limit_s"]
    return f"{text} ({stopped} failed or were stopped after {limit_s:g} s, and count as that)"


def _compared(report: dict[str, Any]) -> str:
    wrong = f", {report['wrong_answers']} wrong" if report["wrong_answers"] else ", none wrong"
    skipped = report["tasks_not_compared"]
    more = f", {skipped} tasks could not be" if skipped else ""
    return f"{report['outputs_compared']} programs in {report['outputs_compared_seconds']:.1f} s{wrong}{more}"


def _network_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the whole network's rows."""
    rows = [
        (label, _latency(report, key) + _remark(report, key))
        for key, label in VARIANTS.items()
        if key.startswith("network") and f"{key}_s" in report
    ]
    if least_s := report.get("network_default_at_least_s"):
        rows.insert(0, ("unscheduled", f"not timed: its tasks alone take {least_s:.1f} s or more"))
    return [
        *((f"network, {label}", text) for label, text in rows),
        ("network, beyond its tasks", _beyond(report)),
        (f"difference from {report.get('computed_by', 'PyTorch')}", _difference(report)),
    ]


def _remark(report: dict[str, Any], key: str) -> str:
    """Return what follows a network's latency: of the tuned one, its ratio to each other one that a user could run."""
    if key == "network_compared_latency":
        return f", {report['compared_tasks']} of {report['tasks']} tasks in it"
    if key != "network_latency":
        return ""
    others = {
        "default": "unscheduled", "rules": "by rule", "onnxruntime": "ONNX Runtime", "compared": "the compared",
    }  # fmt: skip
    ratios = {name: report.get(f"network_over_{other}") for other, name in others.items()}
    return "".join(f", {ratio:.2f} of {name}" for name, ratio in ratios.items() if ratio)


def _beyond(report: dict[str, Any]) -> str:
    """Return what the network takes beyond its tasks; in words where that cannot be."""
    if report["network_unexplained_s"] > 0:
        return f"{_latency(report, 'network_unexplained')} (untuned operators, memory, calls)"
    if report["network_unexplained_q3_s"] >= 0:
        return "nothing that can be told from noise"
    return (
        "nothing: timed in turn with it, its tasks one by one take longer than the network that holds them. Inside it "
        "their inputs are still in the caches, or the host was disturbed"
    )


def _difference(report: dict[str, Any]) -> str:
    parts = []
    if "max_abs_error" in report:
        parts = [f"{report['max_abs_error']:.1e} absolute, {report['max_rel_error']:.1e} relative"]
    for name, why in report.get("outputs_that_say_nothing", {}).items():
        parts.append(f"none can be told of {name}, which is {why}")
    return "; ".join(parts)
