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

How cells become numbers is in knob_tables.py. A target's folder is its text without spaces, "=" as "-", and a hash,
since two texts may be alike. Memory is bounded: logs are read a line at a time, tables are made by Polars' streaming
engine.
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

from tencost.compat.lorien.knob_tables import (
    SUFFIXES,
    THROUGHPUT,
    KnobTable,
    Rows,
    feature_order,
    make_table,
    places,
)
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

__all__ = [
    "Extracted",
    "Generated",
    "KnobTable",
    "extract_feature",
    "extract_feature_from_file",
    "feature_order",
    "gen_features",
    "throughput",
]

_BUFFERED_ROWS = 20_000
_LONGEST_NAME = 120


@dataclass
class Extracted:
    """What `extract_feature_from_file` found.

    Attributes:
        files: JSON lines by (target, template).
        rows: number of rows by (target, template).
        unknown_flop: rows that are ok and have no throughput, by (target, template).
        columns: names of the features, by (target, template).
        rejects: lines that are no AutoTVM lines.
    """

    files: dict[tuple[str, str], Path] = field(default_factory=dict)
    rows: Counter[tuple[str, str]] = field(default_factory=Counter)
    unknown_flop: Counter[tuple[str, str]] = field(default_factory=Counter)
    columns: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=list)

    def of(self, key: tuple[str, str]) -> Rows:
        """Return what there is of a (target, template)."""
        return Rows(
            target=key[0],
            task_name=key[1],
            source=self.files[key],
            columns=frozenset(self.columns[key]),
            rows=self.rows[key],
            unknown_flop_rows=self.unknown_flop[key],
        )


@dataclass(frozen=True)
class Generated:
    """What `gen_features` made: tables by target and template, rejected lines, files that are no AutoTVM logs."""

    tables: tuple[KnobTable, ...]
    rejects: tuple[Reject, ...]
    skipped: tuple[Path, ...]


def extract_feature(record: Line | bytes | str) -> dict[str, Any]:
    """Return the features of a record, names to values, without the throughput.

    Args:
        record: a line of a log, or what `parse_line` made of it.

    Raises:
        ValueError: no AutoTVM line.
    """
    line = _parsed(record)
    tensors: list[Any] = []
    others: list[Any] = []
    for arg in line.task.args:
        (others if as_tensor(arg) is None else tensors).append(arg)
    inputs = [item for tensor in tensors for item in _flat(tensor[1:])]
    features: dict[str, Any] = {f"in_{index}": item for index, item in enumerate(inputs)}
    features |= {f"attr_{index}": item for index, item in enumerate(_flat(others))}
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
    return _throughput(line, flop(line.task))


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
        for old in sorted(out.glob("*/*.json")):
            if old.parent != scratch and not old.name.endswith(".meta.json"):
                _drop_rows(old, name)
        for key, made in extracted.files.items():
            final = _path(out, key, ".json")
            with whole_file(final) as joined, joined.open("wb") as file:
                for part in (final, made):
                    if part.exists():
                        with part.open("rb") as source:
                            shutil.copyfileobj(source, file)
            extracted.files[key] = final
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
    found, skipped = _find(logs)
    extracted = Extracted()
    chosen = None if statistics_rows is None else places(statistics_rows)
    with _scratch(out) as scratch:
        for path in found:
            name = path.name if path == logs else path.relative_to(logs).as_posix()
            _extract(path, name, scratch, extracted)
        tables = [
            make_table(extracted.of(key), {end: _path(out, key, end) for end in SUFFIXES}, chosen)
            for key in sorted(extracted.files)
        ]
    return Generated(tuple(tables), tuple(extracted.rejects), tuple(skipped))


def _parsed(record: Line | bytes | str) -> Line:
    if isinstance(record, Line):
        return record
    return parse_line(record.encode() if isinstance(record, str) else record)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [item for part in value for item in _flat(part)]
    return [value]


def _throughput(line: Line, operations: int | None) -> float | None:
    if line.error_no != 0 or timing_from_log(line.costs).status is not Status.ok:
        return 0.0
    if operations is None:
        return None
    return round(operations / 1e9 / statistics.fmean(line.costs), 2)


def _find(logs: Path) -> tuple[list[Path], list[Path]]:
    """Return the AutoTVM logs, sorted, and other files."""
    files = sorted(path for path in logs.rglob("*") if path.is_file()) if logs.is_dir() else [logs]
    known = FORMAT
    good = [path for path in files if known.recognizes(path, read_head(path))]
    if not good:
        raise FeatureError(
            f"expected AutoTVM logs at {logs}, found none among {len(files)} files. The knobs are AutoTVM's; of other "
            "logs, take another feature set: see conf/features/"
        )
    return good, [path for path in files if path not in set(good)]


def _extract(log: Path, name: str, out: Path, extracted: Extracted) -> None:
    """Append the rows of a log to ``out/<target>/<template>.json``."""
    buffers: dict[tuple[str, str], list[bytes]] = {}
    operations: dict[bytes, int | None] = {}
    buffered = 0
    for number, line in _read(log, name, extracted.rejects):
        key = (line.task.target, line.task.name)
        task = _json([line.task.name, line.task.args])
        if task not in operations:
            operations[task] = flop(line.task)
        features = extract_feature(line)
        speed = _throughput(line, operations[task])
        row = {"file": name, "line": number, **features, THROUGHPUT: speed}
        buffers.setdefault(key, []).append(_json(row))
        extracted.columns.setdefault(key, set()).update(features)
        extracted.rows[key] += 1
        extracted.unknown_flop[key] += speed is None
        buffered += 1
        if buffered == _BUFFERED_ROWS:
            _append(buffers, out, extracted)
            operations.clear()
            buffered = 0
    _append(buffers, out, extracted)


def _read(log: Path, name: str, rejects: list[Reject]) -> Iterator[tuple[int, Line]]:
    try:
        for number, text in lines(log):
            if not text.strip():
                continue
            try:
                yield number, parse_line(text)
            except ValueError as error:
                rejects.append(Reject(name, number, str(error)))
    except TruncatedError as error:
        rejects.append(Reject(name, 0, str(error)))


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # integers of more than 64 bits
        return json.dumps(value).encode()


def _append(buffers: dict[tuple[str, str], list[bytes]], out: Path, extracted: Extracted) -> None:
    for key, rows in buffers.items():
        path = extracted.files[key] = _path(out, key, ".json")
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.writelines(row + b"\n" for row in rows)
    buffers.clear()


def _drop_rows(path: Path, name: str) -> None:
    """Take the rows of a log out of a file of JSON lines; a file without rows goes."""
    rows = 0
    with path.open("rb") as old, whole_file(path) as kept, kept.open("wb") as new:
        for row in old:
            if orjson.loads(row)["file"] != name:
                new.write(row)
                rows += 1
    if not rows:
        path.unlink()


def _path(out: Path, key: tuple[str, str], suffix: str) -> Path:
    target, template = key
    folder = target.replace(" ", "").replace("=", "-")
    file = template if _safe(template) == template else f"{_safe(template)}-{text_id(template)[:8]}"
    return out / f"{_safe(folder)}-{text_id(target)[:8]}" / f"{file}{suffix}"


def _safe(name: str) -> str:
    """Return a name that any file system takes."""
    return re.sub(r"[^A-Za-z0-9_.,+-]|^\.", "_", name)[:_LONGEST_NAME]


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """Make `out`, and a folder in it that goes when the work is done or fails."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".features-", dir=out) as folder:
        yield Path(folder)
