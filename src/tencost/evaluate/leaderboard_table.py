"""Leaderboards as tables, in the terminal and as Markdown; the columns are the subject's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tencost.evaluate.interval import Interval
from tencost.evaluate.leaderboard import TEST, Board, Row

WIDE = 150
"""Columns of text where the output is not a terminal."""


def wide(console: Console | None = None) -> Console:
    """Return the console, or one of WIDE columns where the output is a file or a pipe."""
    console = console or Console()
    return console if console.is_terminal else Console(file=console.file, width=WIDE)


def markdown_table(board: Board[Any], columns: Mapping[str, str], part: str = TEST) -> str:
    """Return the rows of a leaderboard as a Markdown table, the best of each column in bold.

    Args:
        board: the leaderboard.
        columns: metric -> heading.
        part: of the split.
    """
    headings = [*board.LABELS, "seeds", *columns.values()]
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    for row in board.rows:
        cells = [*row.labels, _seeds(row)]
        for metric in columns:
            text = figure_text(metric, row.interval(metric, part))
            text = f"**{text}**" if text and _is_best(board, row, metric, part) else text
            cells.append(f"{text} {row.over_tasks(metric)}".rstrip())
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def terminal_table(
    board: Board[Any],
    title: str,
    columns: Mapping[str, str],
    part: str = TEST,
    *,
    stacked: bool = False,
) -> Table:
    """Return the rows of a leaderboard as a table for the terminal, as `markdown_table`.

    Args:
        board: the leaderboard.
        title: above the table.
        columns: metric -> heading.
        part: of the split.
        stacked: write the intervals of a figure under it.
    """
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    for heading in board.LABELS:
        table.add_column(heading, no_wrap=True)
    table.add_column("seeds", justify="right")
    for heading in columns.values():
        table.add_column(heading, justify="right", min_width=7)
    separator = "\n" if stacked else " "
    first_end = next((row.model for row in board.rows if not row.is_model), None)
    for row in board.rows:
        if row.model == first_end:
            table.add_section()
        style = "dim" if not row.is_model else ("cyan" if row.reference else "")
        cells = [Text(text, style) for text in (*row.labels, _seeds(row))]
        for metric in columns:
            text = figure_text(metric, row.interval(metric, part)).replace(" ± ", f"{separator}± ")
            text = f"{text}{separator}{row.over_tasks(metric)}".rstrip()
            best = _is_best(board, row, metric, part)
            cells.append(Text(text, "bold green" if best else style))
        table.add_row(*cells)
    return table


def print_tables(console: Console, tables: Iterable[Table], notes: Iterable[str]) -> None:
    """Print the tables of a leaderboard, and notes below them."""
    for table in tables:
        console.print(table)
    for line in notes:
        console.print(Text(line, style="dim"), soft_wrap=True)
    console.print()


def figure_text(metric: str, interval: Interval | None) -> str:
    """Return a figure with its interval over seeds, `0.812 ± 0.004`; empty where it is not defined."""
    if interval is None:
        return ""
    return interval.text(".1f" if metric.startswith("trials") else ".3f")


def _seeds(row: Row) -> str:
    return str(len(row.seeds) or "")


def _is_best(board: Board[Any], row: Row, metric: str, part: str) -> bool:
    return row.is_model and row.mean(metric, part) == board.best(metric, part)
