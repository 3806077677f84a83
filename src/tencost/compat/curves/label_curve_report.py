"""The curve as a table in Markdown, a CSV and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from tencost.compat.curves.label_curve import FIGURES, NATIVE, Summary
from tencost.evaluate.plots import MARKERS, PALETTE, new_figure, save_figure
from tencost.evaluate.scoring import HEADINGS


def markdown(summaries: Sequence[Summary]) -> str:
    """Return the table: of the native model the figures, of all others per cent of them, mean ± 95 % over seeds."""
    head = ["mode", "labels", *(HEADINGS[name] for name in FIGURES)]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for summary in summaries:
        if summary.mode == NATIVE:
            cells = [summary.value[name].text(".3f") for name in FIGURES]
        else:
            cells = [summary.share[name].text(".0f") + " %" for name in FIGURES]
        lines.append("| " + " | ".join([summary.mode, str(summary.labels), *cells]) + " |")
    return "\n".join(lines) + "\n"


def write_csv(summaries: Sequence[Summary], path: Path) -> None:
    """Write mode, labels, and for each figure its mean, half width, and share of native in per cent with half width."""
    rows = [
        {"mode": summary.mode, "labels": summary.labels}
        | {
            f"{name}{unit}{part}": number
            for name in FIGURES
            for unit, interval in (("", summary.value[name]), ("_percent", summary.share[name]))
            for part, number in (("", interval.mean), ("_ci95", interval.half_width))
        }
        for summary in summaries
    ]
    pl.DataFrame(rows).fill_nan(None).write_csv(path, float_precision=4)


def plot(summaries: Sequence[Summary], path: Path, title: str) -> None:
    """Draw each figure as per cent of the native model's against labels, a line a mode."""
    figure, axes = new_figure(1, len(FIGURES), 3.1, 3.1)
    modes = list(dict.fromkeys(summary.mode for summary in summaries if summary.mode != NATIVE))
    for axis, name in zip(axes, FIGURES, strict=True):
        for index, mode in enumerate(modes):
            of_mode = (summary for summary in summaries if summary.mode == mode)
            curve = sorted(of_mode, key=lambda summary: summary.labels)
            shares = [summary.share[name] for summary in curve]
            axis.errorbar(
                [summary.labels for summary in curve],
                [share.mean for share in shares],
                yerr=np.nan_to_num([share.half_width for share in shares]),
                color=PALETTE[index],
                marker=MARKERS[index],
                markersize=4,
                capsize=2.5,
                label=mode,
            )
        axis.axhline(100.0, color="black", linestyle=":", linewidth=1.2, label="native")
        axis.set_xscale("symlog", linthresh=50)
        axis.set_xlim(left=-5)
        axis.set_title(HEADINGS[name], fontsize=10)
        axis.set_xlabel("labels")
    axes[0].set_ylabel("% of the native model")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize=8)
    save_figure(figure, title, path)
