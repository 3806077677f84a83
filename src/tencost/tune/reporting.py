"""How the tuner prints sentences, writes tables and draws charts."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tencost.programs.native_messages import native_messages_to as native_messages_to
from tencost.writing import whole_file


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a sentence as it is: no markup, no highlighting, no line breaks of rich's."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def print_note(console: Console, text: str) -> None:
    """Print what a user should know, in yellow."""
    say(console, text, style="yellow")


def csv_lines(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as lines of CSV; None is an empty cell."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def write_table_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table as CSV, whole or not at all; None is an empty cell."""
    with whole_file(path) as temporary:
        temporary.write_text(csv_lines([header, *rows]), encoding="utf-8")


def draw_chart(
    path: Path, size: tuple[float, float], draw: Callable[[Any], None], dpi: int = 120
) -> bool:
    """Draw a chart as PNG; returns False where matplotlib is not installed (tencost[tuner] has none).

    Args:
        path: of the file.
        size: width and height, inches.
        draw: draws into the matplotlib Figure that it is called with.
        dpi: dots an inch.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    with whole_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=dpi)
    return True
