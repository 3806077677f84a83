"""Reading one workload's rows of a store, by what the log and the footers say about the files.

A look-up visits the files of the hardware whose bounds hold the workload, and in them the row groups
whose bounds do. The search for the best visits row groups in the order of the lowest time in them,
and ends when that is above the latency of what it has; whole rows are read of what it returns.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from tencost.store.ids import canonical_target
from tencost.store.layout import DataFile, Folder, RecordFile, latency
from tencost.store.schema import SCHEMA

_KEYS = ("workload_id", "target", "quarantine", "run_secs", "record_id")
_LATENCY = "_latency"


@dataclass(frozen=True, order=True)
class _Hit:
    """A row found: latency in seconds, id, and where it lies (file, row group, row)."""

    latency_s: float
    record_id: str
    file: int
    group: int
    row: int


def best_rows(
    folder: Folder,
    files: Sequence[DataFile],
    workload_id: str,
    target: str,
    n: int,
    columns: Sequence[str],
    quarantined: bool,
) -> pl.DataFrame:
    """Return a workload's `n` rows of lowest latency for a target, fastest first, ties by record_id.

    `files` are those of one hardware; rows without times are never among the result.
    """
    candidates = [file for file in files if file.may_have(workload_id)]
    with ExitStack() as stack:
        opened = [stack.enter_context(folder.open(file.path)) for file in candidates]
        visits = sorted(
            (group.fastest, index, group.number)
            for index, file in enumerate(opened)
            for group in file.groups()
            if group.fastest is not None and group.may_have(workload_id)
        )
        hits: list[_Hit] = []
        for fastest, index, number in visits:
            if len(hits) >= n and fastest > hits[n - 1].latency_s:
                break
            keys = opened[index].read(candidates[index].hardware, _KEYS, [number])
            rows = _matching(keys, workload_id, target, quarantined).drop_nulls(_LATENCY)
            best = rows.sort(_LATENCY, "record_id").head(n)
            found = best.select(_LATENCY, "record_id", "index").iter_rows()
            hits = sorted([*hits, *(_Hit(time, key, index, number, at) for time, key, at in found)])
            del hits[n:]
        return _whole_rows(hits, candidates, opened, columns)


def workload_rows(
    folder: Folder,
    files: Sequence[DataFile],
    workload_id: str,
    target: str,
    columns: Sequence[str],
    quarantined: bool,
) -> pl.DataFrame:
    """Return all of a workload's rows for a target, fastest first, those without times last."""
    needed = list(dict.fromkeys([*columns, *_KEYS]))
    parts = [_matching(_empty(needed), workload_id, target, quarantined)]
    for file in files:
        if not file.may_have(workload_id):
            continue
        with folder.open(file.path) as opened:
            groups = [group.number for group in opened.groups() if group.may_have(workload_id)]
            rows = opened.read(file.hardware, needed, groups)
        parts.append(_matching(rows, workload_id, target, quarantined))
    frame = pl.concat(parts)
    return frame.sort([_LATENCY, "record_id"], nulls_last=True).select(columns)


def known_ids(
    folder: Folder,
    files: Iterable[DataFile],
    hardware: str,
    ids: pa.ChunkedArray,
    workloads: Sequence[str],
) -> pa.Array:
    """Return which of `ids`, records of `workloads` on a hardware, are in the files.

    A record's id names its workload, so files and row groups without those workloads are not read.
    """
    ordered = sorted(workloads)

    def any_within(lowest: str | None, highest: str | None) -> bool:
        first = 0 if lowest is None else bisect_left(ordered, lowest)
        return first < len(ordered) and (highest is None or ordered[first] <= highest)

    wanted = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    found = []
    for file in files:
        if file.hardware != hardware or not any_within(file.lowest, file.highest):
            continue
        with folder.open(file.path) as opened:
            groups = [
                group.number for group in opened.groups() if any_within(group.lowest, group.highest)
            ]
            if groups:
                stored = opened.read(hardware, ["record_id"], groups).column("record_id")
                found.append(stored.filter(pa.compute.is_in(stored, value_set=wanted)))
    chunks = [chunk for column in found for chunk in column.chunks]
    return pa.chunked_array(chunks, SCHEMA.field("record_id").type)


def _matching(rows: pa.Table, workload_id: str, target: str, quarantined: bool) -> pl.DataFrame:
    """Return the rows of a workload and a target, with `index`, their position in the row group."""
    mask = pa.compute.equal(rows.column("workload_id"), workload_id)
    if not quarantined:
        mask = pa.compute.and_(mask, rows.column("quarantine").is_null())
    # One array: pyarrow crashes on a chunked one without chunks.
    index = pa.compute.indices_nonzero(mask.combine_chunks())
    found = rows.take(index).append_column("index", index)
    texts = found.column("target").unique().to_pylist()
    same = [text for text in texts if canonical_target(json.loads(text)) == target]
    if len(same) < len(texts):
        wanted = pa.array(same, pa.string())
        found = found.filter(pa.compute.is_in(found.column("target"), value_set=wanted))
    frame = pl.from_arrow(found)
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(_latency=latency())


def _whole_rows(
    hits: Sequence[_Hit],
    files: Sequence[DataFile],
    opened: Sequence[RecordFile],
    columns: Sequence[str],
) -> pl.DataFrame:
    if not hits:
        nothing = pl.from_arrow(_empty(columns))
        assert isinstance(nothing, pl.DataFrame)
        return nothing
    parts = []
    places: list[_Hit] = []
    for index, number in dict.fromkeys((hit.file, hit.group) for hit in hits):
        mine = [hit for hit in hits if (hit.file, hit.group) == (index, number)]
        rows = opened[index].read(files[index].hardware, columns, [number])
        parts.append(rows.take([hit.row for hit in mine]))
        places.extend(mine)
    frame = pl.from_arrow(pa.concat_tables(parts))
    assert isinstance(frame, pl.DataFrame)
    rank = {hit: position for position, hit in enumerate(places)}
    return frame[[rank[hit] for hit in hits]]


def _empty(columns: Sequence[str]) -> pa.Table:
    return pa.schema([SCHEMA.field(name) for name in columns]).empty_table()
