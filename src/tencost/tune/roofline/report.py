"""A network's programs against the roofs: as a table, as CSV, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tencost.tune.reporting import draw_chart, say
from tencost.tune.reporting import write_table_csv as write_table
from tencost.tune.roofline.roofline import Bound, Placed, RooflineTask, Roofs

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


def write_roofline_csv(path: Path, placed: Sequence[Placed]) -> None:
    """Write a row a measured task, in order; what is not known is an empty cell."""
    rows = [
        (
            program.task.name, program.task.weight, program.task.program, program.task.work.flop,
            program.task.work.traffic, program.task.work.intensity, program.latency_s, program.gflops, program.gbs,
            program.bound.value, program.level, program.roof_s, program.share, program.above_s,
        )
        for program in placed
    ]  # fmt: skip
    write_table(path, COLUMNS, rows)


def roofline_summary(placed: Sequence[Placed]) -> dict[str, float]:
    """Return figures of the whole network: its time at the roofs, its share of it, tasks near and far from theirs."""
    roofed = [program for program in placed if program.roof_s is not None]
    total = sum(program.task.weight * program.latency_s for program in roofed)
    at_roof = sum(
        program.task.weight * min(program.roof_s or 0.0, program.latency_s) for program in roofed
    )
    shares = [program.share or 0.0 for program in roofed]
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
    unmeasured: Sequence[RooflineTask],
    roofs: Roofs,
    title: str,
    source: str,
    console: Console,
) -> None:
    """Print a row a task, those first in which most time is lost above the roof, and what was not measured."""
    table = Table(title=f"{title}: best programs against {roofs.source}")
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("task", no_wrap=True, overflow="ellipsis", max_width=_WIDE)
    table.add_column("bound by", no_wrap=True)
    for name in (
        "calls", "MFLOP", "KiB", "FLOP/byte", "µs", "GFLOP/s", "GB/s", "of roof", "µs above",
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    for number, program in enumerate(placed, start=1):
        table.add_row(*_cells(number, program))
    console.print(table)
    totals = {name.partition("/")[2]: value for name, value in roofline_summary(placed).items()}
    say(
        console,
        f"{totals['tasks_latency_s'] * 1e6:.1f} µs in tasks with a roof, {totals['tasks_roof_s'] * 1e6:.1f} µs at "
        f"their roofs ({_percent(totals['share_of_roof'])}); {totals['tasks_near']:.0f} tasks at {NEAR:.0%} or more, "
        f"{totals['tasks_far']:.0f} at {FAR:.0%} or less",
    )
    say(console, f"programs from {source}")
    if unmeasured:
        calls = sum(task.weight for task in unmeasured)
        with_flop = sum(bool(task.work.flop) for task in unmeasured)
        say(
            console,
            f"not measured, so not in the table: {len(unmeasured)} tasks ({calls:g} calls), {with_flop} of them with "
            "FLOP",
        )


def lines_of(placed: Sequence[Placed], most: int) -> list[str]:
    """Return the tasks in which most time is lost, a line each, for a report that has other things to say."""
    slow = [program for program in placed if program.share is not None and program.above_s]
    return [
        f"{program.task.name}: {_percent(program.share)} of the {program.bound} roof, "
        f"{(program.above_s or 0) * 1e6:.1f} µs above it"
        for program in slow[:most]
    ]


def plot_roofline(placed: Sequence[Placed], roofs: Roofs, path: Path, title: str) -> bool:
    """Draw the roofline, and what each task loses, as PNG; returns False where matplotlib is not installed."""

    def draw(figure: Any) -> None:
        roofline, bars = figure.subplots(1, 2, width_ratios=(3, 2))
        _draw_roofs(roofline, placed, roofs)
        _draw_bars(bars, placed[:_BARS])
        figure.suptitle(f"{title}; roofs: {roofs.source}", fontsize="medium")

    return draw_chart(path, (12, 5.2), draw, dpi=110)


def _draw_roofs(axes: Any, placed: Sequence[Placed], roofs: Roofs) -> None:
    points = [
        (number, program, program.task.work.intensity, program.gflops)
        for number, program in enumerate(placed, start=1)
        if program.task.work.intensity and program.gflops
    ]
    total = sum(program.task.weight * program.latency_s for program in placed)
    intensities = [intensity for _, _, intensity, _ in points if intensity] or [1.0]
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
        group = [point for point in points if point[1].bound is bound]
        if group:
            size = [20 + 600 * p.task.weight * p.latency_s / total for _, p, _, _ in group]
            axes.scatter(
                [point[2] for point in group], [point[3] for point in group], s=size, color=color, alpha=0.6,
                label=f"bound by {bound}",
            )  # fmt: skip
    for number, _, intensity, gflops in points[:12]:
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
    for place, program in enumerate(placed):
        weight = program.task.weight * 1e6
        roof = min(program.roof_s or 0.0, program.latency_s)
        color = _COLORS[program.bound]
        axes.barh(place, roof * weight, color=color)
        axes.barh(
            place, (program.latency_s - roof) * weight, left=roof * weight, color=color, alpha=0.3
        )
        share = "" if program.share is None else f" {_percent(program.share)}"
        axes.annotate(share, (program.latency_s * weight, place), va="center", fontsize="x-small")
    names = [f"{n} {program.task.name[:34]}" for n, program in enumerate(placed, start=1)]
    axes.set_yticks(range(len(placed)), names, fontsize="x-small")
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("µs in the network: at the roof (dark), above it (pale)")


def _cells(number: int, program: Placed) -> list[str]:
    work = program.task.work
    above = UNKNOWN if program.above_s is None else f"{program.above_s * 1e6:.1f}"
    bound = (
        f"{program.bound} ({program.level})"
        if program.bound is Bound.memory
        else str(program.bound)
    )
    origin = "" if program.task.program in ("tuned", "stored") else f"({program.task.program}) "
    return [
        str(number),
        f"{origin}{program.task.name}",
        bound,
        f"{program.task.weight:g}",
        _number(None if work.flop is None else work.flop / 1e6),
        _number(None if work.traffic is None else work.traffic / 1024),
        _number(work.intensity),
        f"{program.latency_s * 1e6:.2f}",
        _number(program.gflops),
        _number(program.gbs),
        UNKNOWN if program.share is None else _percent(program.share),
        above,
    ]


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.3g} %"
