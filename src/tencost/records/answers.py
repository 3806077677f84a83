"""Answers on the command line: a table for people, JSON or CSV for programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tencost.errors import printable
from tencost.records.reading.timestamps import moment_of

if TYPE_CHECKING:
    import polars as pl

TABLE_ROWS = 20
"""Rows of a table, unless a limit says otherwise."""
ID_SHOWN = 12
"""Characters of an id in a table; they are enough to name a workload."""
_TEXT_SHOWN = 60
_PIPE_WIDTH = 160
_LARGEST_INTEGER = 2**63


@dataclass(frozen=True)
class Form:
    """The form of a printed answer.

    Attributes:
        name: table, json (a list of objects) or csv (nested values as JSON).
        limit: rows at most, 0 for all; None: TABLE_ROWS of a table, all of the others.
    """

    name: Literal["table", "json", "csv"] = "table"
    limit: int | None = None


def show(frame: pl.DataFrame, form: Form, hidden: Sequence[str] = ()) -> None:
    """Print a frame to standard output.

    Args:
        frame: the answer; columns whose name ends in _s hold seconds.
        form: how.
        hidden: columns that a table leaves out.
    """
    if form.name == "table":
        _show_table(frame, TABLE_ROWS if form.limit is None else form.limit or len(frame), hidden)
        return
    rows = frame if not form.limit else frame.head(form.limit)
    sys.stdout.write(_json(rows) if form.name == "json" else _csv(rows))


def _show_table(frame: pl.DataFrame, limit: int, hidden: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    visible = frame.head(limit).select([name for name in frame.columns if name not in hidden])
    table = Table()
    for name, kind in visible.schema.items():
        label = name.removesuffix("_s") if kind.is_float() else name
        number = kind.is_numeric()
        table.add_column(Text(label), justify="right" if number else "left", no_wrap=number)
    for row in visible.iter_rows():
        cells = zip(visible.columns, row, strict=True)
        table.add_row(*(Text(_cell(name, value)) for name, value in cells))
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(table)
    if len(frame) > len(visible):
        console.print(
            f"{len(visible)} of {len(frame)} rows. All: --limit 0, --json or --csv", markup=False
        )


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    stamp = name == "timestamp" and isinstance(value, float)
    if stamp and (moment := moment_of(value)):
        return moment.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, float):
        return _seconds(value) if name.endswith("_s") else f"{value:.6g}"
    text = printable(str(value))
    if name.endswith("_id"):
        return text[:ID_SHOWN]
    return text if len(text) <= _TEXT_SHOWN else f"{text[: _TEXT_SHOWN - 3]}..."


def _seconds(value: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value / 1e-9:.4g} ns" if value else "0 s"


def _json(frame: pl.DataFrame) -> str:
    import orjson

    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(frame.to_dicts(), default=_plain, option=option).decode()


def _plain(value: Any) -> Any:
    """Return a value that JSON has no type for as a number or text: decimals, bytes, durations, very large integers."""
    from decimal import Decimal

    if isinstance(value, Decimal):
        whole = value == value.to_integral_value()
        return int(value) if whole and abs(value) < _LARGEST_INTEGER else float(value)
    return value.hex() if isinstance(value, bytes) else str(value)


def _csv(frame: pl.DataFrame) -> str:
    import orjson
    import polars as pl

    nested = [name for name, kind in frame.schema.items() if kind.is_nested()]
    texts = {
        name: [
            None if value is None else orjson.dumps(value, default=_plain).decode()
            for value in frame[name].to_list()
        ]
        for name in nested
    }
    columns = [pl.Series(name, values, dtype=pl.String) for name, values in texts.items()]
    return frame.with_columns(columns).write_csv()
