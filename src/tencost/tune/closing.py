"""What a tuning run found, as the table at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def print_summary(report: dict[str, Any], folder: Path, console: Console) -> None:
    table = Table(title=f"{report['network']} on {report['hardware']}", show_header=False)
    ended = "stopped by Ctrl-C; the same command continues" if report["interrupted"] else "done"
    rows = [
        ("model", report["model"]),
        ("programs measured", f"{report['trials']} in {report['tasks']} tasks ({ended})"),
        ("time", f"{report['seconds']:.0f} s"),
        ("tasks, default schedules", f"{report['tasks_default_latency_s'] * 1e3:.3f} ms"),
        ("tasks, best programs", f"{report['tasks_total_latency_s'] * 1e3:.3f} ms"),
    ]
    if "mean_spearman" in report:
        rows.append(
            ("rank correlation, mean", f"{report['mean_spearman']:.2f} (Spearman, before learning)")
        )
    if report["outputs_compared"]:
        rows.append(("outputs compared", _compared(report)))
    if "network_latency_s" in report:
        rows += _network_rows(report)
    rows.append(("database", str(folder)))
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)


def _compared(report: dict[str, Any]) -> str:
    wrong = f", {report['wrong_answers']} wrong" if report["wrong_answers"] else ", none wrong"
    left = report["tasks_not_compared"]
    left_out = f", {left} tasks could not be" if left else ""
    return f"{report['outputs_compared']} programs in {report['outputs_compared_seconds']:.1f} s{wrong}{left_out}"


def _difference(report: dict[str, Any]) -> str:
    told = []
    if "max_abs_error" in report:
        told = [f"{report['max_abs_error']:.1e} absolute, {report['max_rel_error']:.1e} relative"]
    for name, why in report["outputs_that_say_nothing"].items():
        told.append(f"none can be told of {name}, which is {why}")
    return "; ".join(told)


def _network_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the whole network's rows: medians, in brackets the quartiles."""

    def told(key: str, more: str = "") -> str:
        low, high = (report[f"{key}_{end}_s"] * 1e3 for end in ("q1", "q3"))
        return f"{report[f'{key}_s'] * 1e3:.3f} ms [{low:.3f}, {high:.3f}]{more}"

    rows = [("network, default schedules", told("network_default_latency"))]
    if "compared_tasks" in report:
        of = f", {report['compared_tasks']} of {report['tasks']} tasks in it"
        rows.append(("network, compared database", told("network_compared_latency", of)))
    speedup = f", {report['network_speedup']:.1f}x"
    if "compared_tasks" in report:
        speedup += f", {report['network_compared_ratio']:.2f}x the compared one's speed"
    return [
        *rows,
        ("network, tuned", told("network_latency", speedup)),
        (
            "network, beyond its tasks",
            f"{report['network_unexplained_s'] * 1e3:.3f} ms (untuned operators, memory, calls)",
        ),
        ("difference from PyTorch", _difference(report)),
    ]
