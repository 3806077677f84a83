"""The network's latencies side by side: unscheduled, by rule, tuned, in ONNX Runtime, and the sum of its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tencost.writing import whole_file

BARS = (
    ("unscheduled", "network_default_latency"),
    ("compared database", "network_compared_latency"),
    ("ONNX Runtime", "network_onnxruntime_latency"),
    ("by rule", "network_rules_latency"),
    ("tuned", "network_latency"),
    ("sum of its tasks", "tasks_total_latency"),
)
"""What is drawn, from the slowest to the fastest as a rule, and the report's key without its unit."""


def plot_bars(report: Mapping[str, Any], path: Path, title: str) -> bool:
    """Draw what the report has as PNG, quartiles as whiskers; False where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7, 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    known = [(name, key) for name, key in BARS if f"{key}_s" in report]
    # Unscheduled code takes so much longer than by rule that the other bars could not be told apart.
    if any(key == "network_rules_latency" for _, key in known):
        known = [one for one in known if one[1] != "network_default_latency"]
    for place, (_name, key) in enumerate(known):
        value = report[f"{key}_s"] * 1e3
        low, high = (report.get(f"{key}_{end}_s", value / 1e3) * 1e3 for end in ("q1", "q3"))
        error = [[max(0.0, value - low)], [max(0.0, high - value)]]
        color = "tab:blue" if key == "network_latency" else "tab:gray"
        axes.barh(place, value, xerr=error, color=color, capsize=3)
        axes.annotate(
            f"{value:.3f}", (high, place), (6, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(known)), [name for name, _ in known])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("latency, ms (lower is better)")
    axes.set_title(title)
    with whole_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    return True
