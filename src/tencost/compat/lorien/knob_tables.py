"""Tables of knobs from JSON lines: standardised numbers, categories as indices, and what they were made with.

A column is numeric if all its cells are finite numbers, or texts of such: its cells are (value - mean) / std, with the
population's deviation, 1 where it is 0. Any other is a category: a cell is the index of its text among the sorted
texts; a feature that a row lacks, or null, has the text None, a boolean true or false. Kind, mean, deviation and
texts come from the statistics rows only; a cell that they did not foresee is null (numeric) or -1 (category).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from tencost.writing import whole_file

THROUGHPUT = "thrpt"
MISSING = "None"
"""The text of a cell without a value."""
PLACE = ("file", "line")
"""The columns that name a row's place in the logs."""
SUFFIXES = (".csv", ".parquet", ".meta.json")
_KINDS = ("in", "attr", "sp", "an", "re", "ot")


@dataclass(frozen=True)
class KnobTable:
    """The table of one template on one target: its files, and rows in all, in the statistics, of unknown arithmetic."""

    target: str
    task_name: str
    csv: Path
    parquet: Path
    meta: Path
    rows: int
    statistics_rows: int
    unknown_flop_rows: int


@dataclass(frozen=True)
class Rows:
    """JSON lines of one template on one target: where, which features they have, how many, how many without FLOP."""

    target: str
    task_name: str
    source: Path
    columns: frozenset[str]
    rows: int
    unknown_flop_rows: int


def feature_order(names: Iterable[str]) -> list[str]:
    """Return names of features in the order of columns; the throughput is none of them."""

    def key(name: str) -> tuple[int, list[tuple[bool, int, str]]]:
        kind = name.partition("_")[0]
        parts = re.split(r"(\d+)", name)
        # A number comes before a text; equal numbers, 1 and 01, by their texts.
        order = [
            (not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts
        ]
        return _KINDS.index(kind), order

    return sorted(names, key=key)


def places(rows: Iterable[tuple[str, int]]) -> pl.DataFrame:
    """Return (file, line) as a frame, each once."""
    schema = {"file": pl.String, "line": pl.Int64}
    return pl.DataFrame(list(rows), schema=schema, orient="row").unique()


def make_table(made: Rows, final: Mapping[str, Path], chosen: pl.DataFrame | None) -> KnobTable:
    """Write a template's table.

    Args:
        made: its rows.
        final: the table's files by suffix; written in one go each.
        chosen: file and line of the rows that statistics are taken from; None: all rows.
    """
    names = feature_order(made.columns)
    cells = dict.fromkeys(names, pl.String)
    schema = {"file": pl.String, "line": pl.Int64, **cells, THROUGHPUT: pl.Float64}
    frame = pl.scan_ndjson(made.source, schema=schema).with_columns(
        pl.col(names).fill_null(MISSING)
    )
    rows = frame if chosen is None else frame.join(chosen.lazy(), on=list(PLACE), how="semi")
    count, columns = _statistics(rows, names)
    cooked = [_cooked(column) for column in columns]
    meta = {
        "target": made.target,
        "task_name": made.task_name,
        "rows": made.rows,
        "statistics_rows": count,
        "unknown_flop_rows": made.unknown_flop_rows,
        "columns": columns,
    }
    with ExitStack() as stack:
        parts = {suffix: stack.enter_context(whole_file(final[suffix])) for suffix in SUFFIXES}
        frame.select(*cooked, THROUGHPUT).sink_csv(parts[".csv"])
        frame.select(*PLACE, *cooked, THROUGHPUT).sink_parquet(parts[".parquet"])
        parts[".meta.json"].write_bytes(orjson.dumps(meta, option=orjson.OPT_INDENT_2))
    return KnobTable(
        target=made.target,
        task_name=made.task_name,
        csv=final[".csv"],
        parquet=final[".parquet"],
        meta=final[".meta.json"],
        rows=made.rows,
        statistics_rows=count,
        unknown_flop_rows=made.unknown_flop_rows,
    )


def _statistics(rows: pl.LazyFrame, names: list[str]) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of rows and each column's entry in the metadata."""
    asked = [pl.len().alias("rows")]
    for name in names:
        number = _number(name)
        asked += [
            number.is_finite().fill_null(value=False).all().alias(f"numeric {name}"),
            number.mean().alias(f"mean {name}"),
            number.std(ddof=0).alias(f"std {name}"),
            (number.max() > number.min()).alias(f"varies {name}"),
        ]
    (told,) = rows.select(asked).collect(engine="streaming").to_dicts()
    texts = {name: _texts(rows, name) for name in names if not told[f"numeric {name}"]}
    entries: list[dict[str, Any]] = []
    for name in names:
        if name in texts:
            entries.append({"name": name, "kind": "category", "values": texts[name]})
        else:
            mean, std = told[f"mean {name}"] or 0.0, told[f"std {name}"]
            std = std if told[f"varies {name}"] and std else 1.0
            entries.append({"name": name, "kind": "numeric", "mean": mean, "std": std})
    return told["rows"], entries


def _texts(rows: pl.LazyFrame, name: str) -> list[str]:
    found = rows.select(pl.col(name).unique()).collect(engine="streaming")
    return sorted(found[name].to_list())


def _cooked(column: Mapping[str, Any]) -> pl.Expr:
    name = column["name"]
    if column["kind"] == "numeric":
        number = _number(name)
        finite = pl.when(number.is_finite()).then(number)
        return ((finite - column["mean"]) / column["std"]).alias(name)
    values = column["values"]
    indices = list(range(len(values)))
    return pl.col(name).replace_strict(values, indices, default=-1, return_dtype=pl.Int32)


def _number(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Float64, strict=False)
