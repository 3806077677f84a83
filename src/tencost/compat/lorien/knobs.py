"""Lorien's features of AutoTVM logs: a task's arguments and a configuration's knobs by name, one table a template.

    in_<k>        shape and dtype of the tensors, k counts over all of them
    attr_<k>      the other arguments, nested lists laid flat
    sp_<knob>_<i>, an_<knob>, re_<knob>, ot_<knob>    split sizes (-1 as it is), annotations and order joined by ";",
                  and the value of any other knob
    thrpt         GFLOP/s by the mean of the costs, two decimals; 0 for a failure, null where the template's
                  arithmetic is not known (topi_flop.py)

`extract_feature_from_file` writes JSON lines ``{"file", "line", features..., "thrpt"}`` to
``<out>/<target>/<template>.json``. `gen_features` writes for each target and template, to ``<out>/<target>/``:

    <template>.csv           the features in order (in, attr, sp, an, re, ot; numbers and names ascending), thrpt last
    <template>.parquet       the same after the columns file and line, which name the row's place in the logs
    <template>.meta.json     {"target", "task_name", "rows", "statistics_rows", "unknown_flop_rows",
                             "columns": [{"name", "kind": "numeric", "mean", "std"} |
                                         {"name", "kind": "category", "values": [text, ...]}]}

A column is numeric if all its cells are finite numbers, or texts of such: its cells are (value - mean) / std, with the
population's deviation, 1 where it is 0. Any other is a category: a cell is the index of its text among the sorted
texts; a feature that a row lacks, or null, has the text None, a boolean true or false. Kind, mean, deviation and
texts come from the statistics rows only; a cell that they did not foresee is null (numeric) or -1 (category).

A target's folder is its text without spaces, "=" as "-", and a hash, since two texts may be alike. Memory is bounded:
logs are read a line at a time, tables are made by Polars' streaming engine.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from tencost.compat.lorien.topi_flop import flop
from tencost.errors import FeatureError
from tencost.records.formats.autotvm import FORMAT
from tencost.records.formats.autotvm.lines import (
    Annotate,
    Line,
    Reorder,
    Split,
    as_tensor,
    parse_line,
)
from tencost.records.reading.opening import TruncatedError, lines, read_head
from tencost.records.reading.protocol import Reject
from tencost.store.ids import text_id
from tencost.store.status import Status, timing_from_log
from tencost.writing import whole_file

THROUGHPUT = "thrpt"
_PLACE = {"file": pl.String, "line": pl.Int64}
"""The columns that name a row's place in the logs."""
_KINDS = ("in", "attr", "sp", "an", "re", "ot")
_MISSING = "None"
"""The text of a cell without a value."""
_IN_META = ("target", "task_name", "rows", "statistics_rows", "unknown_flop_rows")
_BUFFERED_ROWS = 20_000
_LONGEST_NAME = 120

_Key = tuple[str, str]


@dataclass
class Extracted:
    """Features of a log's records, written by `extract_feature_from_file`.

    Attributes:
        files: JSON lines by (target, template).
        rows: number of rows by (target, template).
        unknown_flop: rows that are ok and have no throughput, by (target, template).
        columns: names of the features, by (target, template).
        rejects: lines that are no AutoTVM lines.
    """

    files: dict[_Key, Path] = field(default_factory=dict)
    rows: Counter[_Key] = field(default_factory=Counter)
    unknown_flop: Counter[_Key] = field(default_factory=Counter)
    columns: dict[_Key, set[str]] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=list)


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
class Generated:
    """Tables of `gen_features` by target and template, rejected lines, files that are no AutoTVM logs."""

    tables: tuple[KnobTable, ...]
    rejects: tuple[Reject, ...]
    skipped: tuple[Path, ...]


def extract_feature(record: Line | bytes | str) -> dict[str, Any]:
    """Return the features of a record, names to values, without the throughput.

    Args:
        record: a line of a log, or the typed line of `parse_line`.

    Raises:
        ValueError: no AutoTVM line.
    """
    line = _parsed(record)
    tensors: list[Any] = []
    others: list[Any] = []
    for arg in line.task.args:
        (others if as_tensor(arg) is None else tensors).append(arg)
    inputs = [part for tensor in tensors for part in _flat(tensor[1:])]
    features: dict[str, Any] = {f"in_{index}": part for index, part in enumerate(inputs)}
    features |= {f"attr_{index}": part for index, part in enumerate(_flat(others))}
    for entity in line.config.entities:
        match entity:
            case Split(name, sizes):
                features |= {f"sp_{name}_{index}": size for index, size in enumerate(sizes)}
            case Annotate(name, annotations):
                features[f"an_{name}"] = ";".join(annotations)
            case Reorder(name, order):
                features[f"re_{name}"] = ";".join(map(str, order))
            case _:
                features[f"ot_{entity.name}"] = entity.value
    return features


def throughput(record: Line | bytes | str) -> float | None:
    """Return GFLOP/s by the mean of the costs, two decimals; 0.0 for a failure, None for unknown arithmetic.

    Raises:
        ValueError: no AutoTVM line.
    """
    line = _parsed(record)
    if line.error_no != 0 or timing_from_log(line.costs).status is not Status.ok:
        return 0.0
    operations = flop(line.task)
    return operations and round(operations / 1e9 / statistics.fmean(line.costs), 2)


def extract_feature_from_file(
    log: Path | str, out: Path | str, name: str | None = None
) -> Extracted:
    """Write the features of a log's records as JSON lines, one file a target and template.

    Rows of other logs in these files stay; rows of this one are replaced, so that a rerun changes nothing.

    Args:
        log: the log, plain or compressed.
        out: the folder, made where it is not.
        name: what rows call the log; None: its path as given.

    Raises:
        RecordError: the log cannot be opened.
    """
    log, out = Path(log), Path(out)
    name = log.as_posix() if name is None else name
    with _scratch(out) as scratch:
        extracted = Extracted()
        _extract(log, name, scratch, extracted)
        for old in out.glob("*/*.json"):
            if old.parent != scratch and not old.name.endswith(".meta.json"):
                _drop_rows(old, name)
        for key, new in extracted.files.items():
            final = extracted.files[key] = _path(out, key, ".json")
            with whole_file(final) as whole, whole.open("wb") as file:
                for part in filter(Path.exists, (final, new)):
                    with part.open("rb") as source:
                        shutil.copyfileobj(source, file)
    return extracted


def gen_features(
    logs: Path | str,
    out: Path | str,
    statistics_rows: Iterable[tuple[str, int]] | None = None,
) -> Generated:
    """Write the tables of a log, or of all logs in a folder and below; see the module's text.

    Tables that are there already are replaced, so that a rerun changes nothing.

    Args:
        logs: a log or a folder.
        out: the folder of the tables, made where it is not.
        statistics_rows: (file relative to `logs`, or a single log's name; line from 1) of the rows that statistics
            are taken from, such as the training split's; None: all rows.

    Raises:
        FeatureError: no AutoTVM log there.
        RecordError: a log cannot be opened.
    """
    logs, out = Path(logs), Path(out)
    files = sorted(path for path in logs.rglob("*") if path.is_file()) if logs.is_dir() else [logs]
    skipped = tuple(path for path in files if not FORMAT.recognizes(path, read_head(path)))
    if len(skipped) == len(files):
        raise FeatureError(
            f"expected AutoTVM logs at {logs}, found none among {len(files)} files. The knobs are AutoTVM's; of other "
            "logs, take another feature set: see conf/features/"
        )
    extracted = Extracted()
    chosen = None
    if statistics_rows is not None:
        chosen = pl.LazyFrame([*statistics_rows], schema=_PLACE, orient="row").unique()
    with _scratch(out) as scratch:
        for path in files:
            if path not in skipped:
                name = path.name if path == logs else path.relative_to(logs).as_posix()
                _extract(path, name, scratch, extracted)
        tables = [_write_table(extracted, key, out, chosen) for key in sorted(extracted.files)]
    return Generated(tuple(tables), tuple(extracted.rejects), skipped)


def feature_order(names: Iterable[str]) -> list[str]:
    """Return names of features in the order of columns; the throughput is none of them."""

    def key(name: str) -> tuple[int, list[tuple[bool, int, str]]]:
        # A number comes before a text; equal numbers, 1 and 01, by their texts.
        parts = [
            (not part.isdecimal(), int(part) if part.isdecimal() else 0, part)
            for part in re.split(r"(\d+)", name)
        ]
        return _KINDS.index(name.partition("_")[0]), parts

    return sorted(names, key=key)


def _parsed(record: Line | bytes | str) -> Line:
    if isinstance(record, Line):
        return record
    return parse_line(record.encode() if isinstance(record, str) else record)


def _flat(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in _flat(part)] if isinstance(value, list) else [value]


def _extract(log: Path, name: str, out: Path, extracted: Extracted) -> None:
    """Append the rows of a log to ``out/<target>/<template>.json``."""
    buffers: dict[_Key, list[bytes]] = {}

    def flush() -> None:
        for key, rows in buffers.items():
            path = extracted.files[key] = _path(out, key, ".json")
            path.parent.mkdir(exist_ok=True)
            with path.open("ab") as file:
                file.writelines(rows)
        buffers.clear()

    number = 0
    try:
        for number, text in lines(log):
            if not text.strip():
                continue
            try:
                line = parse_line(text)
            except ValueError as error:
                extracted.rejects.append(Reject(name, number, str(error)))
                continue
            key = (line.task.target, line.task.name)
            features, speed = extract_feature(line), throughput(line)
            row = {"file": name, "line": number, **features, THROUGHPUT: speed}
            buffers.setdefault(key, []).append(_json_line(row))
            extracted.columns.setdefault(key, set()).update(features)
            extracted.rows[key] += 1
            extracted.unknown_flop[key] += speed is None
            if number % _BUFFERED_ROWS == 0:
                flush()
    except TruncatedError as error:
        extracted.rejects.append(Reject(name, 0, str(error)))
    flush()


def _json_line(row: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # integers of more than 64 bits
        return json.dumps(row).encode() + b"\n"


def _drop_rows(path: Path, name: str) -> None:
    """Take the rows of a log out of a file of JSON lines; a file without rows goes."""
    with path.open("rb") as old, whole_file(path) as whole, whole.open("wb") as new:
        new.writelines(row for row in old if orjson.loads(row)["file"] != name)
    if not path.stat().st_size:
        path.unlink()


def _write_table(
    extracted: Extracted, key: _Key, out: Path, chosen: pl.LazyFrame | None
) -> KnobTable:
    """Write a template's table; `chosen`: file and line of the rows that statistics are taken from, None: all."""
    names = feature_order(extracted.columns[key])
    schema = {**_PLACE, **dict.fromkeys(names, pl.String), THROUGHPUT: pl.Float64}
    frame = pl.scan_ndjson(extracted.files[key], schema=schema)
    frame = frame.with_columns(pl.col(names).fill_null(_MISSING))
    rows = frame if chosen is None else frame.join(chosen, on=[*_PLACE], how="semi")
    count, columns = _statistics(rows, names)
    cells = [*map(_standardised, columns), pl.col(THROUGHPUT)]
    csv, parquet, text = (_path(out, key, end) for end in (".csv", ".parquet", ".meta.json"))
    total, unknown = extracted.rows[key], extracted.unknown_flop[key]
    table = KnobTable(*key, csv, parquet, text, total, count, unknown)
    meta = {name: getattr(table, name) for name in _IN_META} | {"columns": columns}
    with whole_file(csv) as new_csv, whole_file(parquet) as new_parquet, whole_file(text) as new:
        frame.select(*cells).sink_csv(new_csv)
        frame.select(*_PLACE, *cells).sink_parquet(new_parquet)
        new.write_bytes(orjson.dumps(meta, option=orjson.OPT_INDENT_2))
    return table


def _statistics(rows: pl.LazyFrame, names: list[str]) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of rows and each column's entry in the metadata."""
    queries = [pl.len().alias("rows")]
    for name in names:
        number = _number(name)
        queries += [
            number.is_finite().fill_null(value=False).all().alias(f"numeric {name}"),
            number.mean().alias(f"mean {name}"),
            number.std(ddof=0).alias(f"std {name}"),
            (number.max() > number.min()).alias(f"varies {name}"),
        ]
    (answers,) = rows.select(queries).collect(engine="streaming").to_dicts()
    columns: list[dict[str, Any]] = []
    for name in names:
        if answers[f"numeric {name}"]:
            std = answers[f"std {name}"] if answers[f"varies {name}"] else None
            mean = answers[f"mean {name}"] or 0.0
            columns.append({"name": name, "kind": "numeric", "mean": mean, "std": std or 1.0})
        else:
            texts = rows.select(pl.col(name).unique()).collect(engine="streaming")
            values = sorted(texts[name].to_list())
            columns.append({"name": name, "kind": "category", "values": values})
    return answers["rows"], columns


def _standardised(column: dict[str, Any]) -> pl.Expr:
    """Return the numbers of a column that has this entry in the metadata."""
    name = column["name"]
    if column["kind"] == "numeric":
        finite = pl.when(_number(name).is_finite()).then(_number(name))
        return ((finite - column["mean"]) / column["std"]).alias(name)
    values = column["values"]
    indices = list(range(len(values)))
    return pl.col(name).replace_strict(values, indices, default=-1, return_dtype=pl.Int32)


def _number(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Float64, strict=False)


def _path(out: Path, key: _Key, suffix: str) -> Path:
    target, template = key
    folder = f"{_safe(target.replace(' ', '').replace('=', '-'))}-{text_id(target)[:8]}"
    file = template if _safe(template) == template else f"{_safe(template)}-{text_id(template)[:8]}"
    return out / folder / f"{file}{suffix}"


def _safe(name: str) -> str:
    """Return a name that any file system takes."""
    return re.sub(r"[^A-Za-z0-9_.,+-]|^\.", "_", name)[:_LONGEST_NAME]


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """Make `out`, and a folder in it that goes when the work is done or fails."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".features-", dir=out) as folder:
        yield Path(folder)
