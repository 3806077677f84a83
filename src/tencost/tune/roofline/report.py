"""A network's programs against the roofs: as a table, as CSV, as a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tencost.tune.roofline.roofline import Bound, Placed, Roofs, Task
from tencost.writing import whole_file

NEAR, FAR = 0.9, 0.05
"""Shares of the roof that are called near it and far from it."""
UNKNOWN = "unknown"
COLUMNS = (
    "task", "weight", "program", "flop", "bytes", "flop_per_byte", "latency_s", "gflops", "gbs", "bound", "memory",
    "roof_s", "share_of_roof", "above_roof_s",
)  # fmt: skip
_BARS = 20
_WIDE = 38
"""Characters of a task's name in the table; roofline.csv has it whole."""
_COLORS = {
    Bound.compute: "C0",
    Bound.memory: "C1",
    Bound.overhead: "C2",
    Bound.unknown: "C7",
}


def write_csv(path: Path, placed: Sequence[Placed]) -> None:
    """Write a row a measured task, in order; what is not known is an empty cell."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in placed:
        task, work = one.task, one.task.work
        row = (
            task.name, task.weight, task.program, work.flop, work.traffic, work.intensity, one.latency_s, one.gflops,
            one.gbs, one.bound.value, one.level, one.roof_s, one.share, one.above_s,
        )  # fmt: skip
        writer.writerow(["" if value is None else value for value in row])
    with whole_file(path) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8")


def summary(placed: Sequence[Placed]) -> dict[str, float]:
    """Return figures of the whole network: its time at the roofs, its share of it, tasks near and far from theirs."""
    known = [one for one in placed if one.roof_s is not None and one.above_s is not None]
    total = sum(one.task.weight * one.latency_s for one in known)
    at_roof = sum(one.task.weight * min(one.roof_s or 0.0, one.latency_s) for one in known)
    shares = [one.share or 0.0 for one in known]
    return {
        "roofline/tasks": float(len(placed)),
        "roofline/tasks_latency_s": float(total),
        "roofline/tasks_roof_s": float(at_roof),
        "roofline/share_of_roof": at_roof / total if total else float("nan"),
        "roofline/tasks_near": float(sum(share >= NEAR for share in shares)),
        "roofline/tasks_far": float(sum(share <= FAR for share in shares)),
    }


def print_table(
    placed: Sequence[Placed],
    left: Sequence[Task],
    roofs: Roofs,
    title: str,
    source: str,
    console: Console,
) -> None:
    """Print a row a task, those first in which most time is lost above the roof, and what was not measured."""
    table = Table(title=f"{title}: best programs against {roofs.told}")
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("task", no_wrap=True, overflow="ellipsis", max_width=_WIDE)
    table.add_column("bound by", no_wrap=True)
    for name in (
        "calls", "MFLOP", "KiB", "FLOP/byte", "µs", "GFLOP/s", "GB/s", "of roof", "µs above",
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    for number, one in enumerate(placed, start=1):
        table.add_row(*_cells(number, one))
    console.print(table)
    plain: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
    found = {name.partition("/")[2]: value for name, value in summary(placed).items()}
    console.print(
        f"{found['tasks_latency_s'] * 1e6:.1f} µs in tasks with a roof, {found['tasks_roof_s'] * 1e6:.1f} µs at their "
        f"roofs ({_percent(found['share_of_roof'])}); {found['tasks_near']:.0f} tasks at {NEAR:.0%} or more, "
        f"{found['tasks_far']:.0f} at {FAR:.0%} or less",
        **plain,
    )
    console.print(f"programs from {source}", **plain)
    if left:
        calls = sum(task.weight for task in left)
        with_flop = sum(bool(task.work.flop) for task in left)
        console.print(
            f"not measured, so not in the table: {len(left)} tasks ({calls:g} calls), {with_flop} of them with FLOP",
            **plain,
        )


def lines_of(placed: Sequence[Placed], most: int) -> list[str]:
    """Return the tasks in which most time is lost, a line each, for a report that has other things to say."""
    lost = [one for one in placed if one.share is not None and one.above_s]
    return [
        f"{one.task.name}: {_percent(one.share)} of the {one.bound} roof, {(one.above_s or 0) * 1e6:.1f} µs above it"
        for one in lost[:most]
    ]


def plot(placed: Sequence[Placed], roofs: Roofs, path: Path, title: str) -> bool:
    """Draw the roofline, and what each task loses, as PNG; returns False where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_roofs(left, placed, roofs)
    _draw_bars(right, placed[:_BARS])
    figure.suptitle(f"{title}; roofs: {roofs.told}", fontsize="medium")
    with whole_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
    return True


def _draw_roofs(axes: Any, placed: Sequence[Placed], roofs: Roofs) -> None:
    shown = [
        (number, one, one.task.work.intensity, one.gflops)
        for number, one in enumerate(placed, start=1)
        if one.task.work.intensity and one.gflops
    ]
    total = sum(one.task.weight * one.latency_s for one in placed)
    intensities = [intensity for _, _, intensity, _ in shown if intensity] or [1.0]
    peak = roofs.flops / 1e9 if roofs.flops else None
    ridges = [roofs.flops / level.bandwidth for level in roofs.levels if roofs.flops]
    low, high = min([*intensities, *ridges]) / 3, max([*intensities, *ridges]) * 3
    at = np.geomspace(low, high, 200)
    for place, level in enumerate(roofs.levels):
        slope = at * level.bandwidth / 1e9
        roof = slope if peak is None else np.minimum(slope, peak)
        style = ("-", "--", "-.", ":")[place % 4]
        axes.plot(at, roof, color="black", linewidth=1, linestyle=style,
                  label=f"{level.name}, {level.bandwidth / 1e9:.4g} GB/s")  # fmt: skip
    if peak is not None:
        axes.axhline(peak, color="black", linewidth=1.5, label=f"peak, {peak:.4g} GFLOP/s")
    for bound, color in _COLORS.items():
        mine = [(i, g, one) for _, one, i, g in shown if one.bound is bound]
        if mine:
            size = [20 + 600 * one.task.weight * one.latency_s / total for _, _, one in mine]
            axes.scatter(
                [i for i, _, _ in mine], [g for _, g, _ in mine], s=size, color=color, alpha=0.6,
                label=f"bound by {bound}",
            )  # fmt: skip
    for number, _, intensity, gflops in shown[:12]:
        axes.annotate(
            str(number), (intensity, gflops), ha="center", va="center", fontsize="x-small"
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("FLOP a byte of compulsory traffic")
    axes.set_ylabel("GFLOP/s")
    axes.grid(visible=True, which="both", alpha=0.2)
    legend = axes.legend(fontsize="x-small", loc="lower right")
    for handle in legend.legend_handles:
        if hasattr(handle, "set_sizes"):
            handle.set_sizes([30])
    axes.set_title("area: share of the network's time")


def _draw_bars(axes: Any, placed: Sequence[Placed]) -> None:
    for place, one in enumerate(placed):
        weight = one.task.weight * 1e6
        roof = min(one.roof_s or 0.0, one.latency_s)
        color = _COLORS[one.bound]
        axes.barh(place, roof * weight, color=color)
        axes.barh(
            place, (one.latency_s - roof) * weight, left=roof * weight, color=color, alpha=0.3
        )
        told = "" if one.share is None else f" {_percent(one.share)}"
        axes.annotate(told, (one.latency_s * weight, place), va="center", fontsize="x-small")
    names = [f"{n} {one.task.name[:34]}" for n, one in enumerate(placed, start=1)]
    axes.set_yticks(range(len(placed)), names, fontsize="x-small")
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("µs in the network: at the roof (dark), above it (pale)")


def _cells(number: int, one: Placed) -> list[str]:
    work = one.task.work
    above = UNKNOWN if one.above_s is None else f"{one.above_s * 1e6:.1f}"
    bound = f"{one.bound} ({one.level})" if one.bound is Bound.memory else str(one.bound)
    program = "" if one.task.program in ("tuned", "stored") else f"({one.task.program}) "
    return [
        str(number),
        f"{program}{one.task.name}",
        bound,
        f"{one.task.weight:g}",
        _number(None if work.flop is None else work.flop / 1e6),
        _number(None if work.traffic is None else work.traffic / 1024),
        _number(work.intensity),
        f"{one.latency_s * 1e6:.2f}",
        _number(one.gflops),
        _number(one.gbs),
        UNKNOWN if one.share is None else _percent(one.share),
        above,
    ]


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.3g} %"
