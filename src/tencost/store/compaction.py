"""Rewriting a store's files into few sorted ones, with memory for a part of them.

What is rewritten, for each hardware: files that are small or not sorted; and all of them where a
workload would lie in more than :data:`OVERLAP` files afterwards, because a look-up visits those. It
is an external merge sort: small and unsorted files are read into runs (sorted files in a temporary
folder), then runs and sorted files are read together, range by range of workload ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryDirectory

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from tencost.store.layout import (
    FILE_BYTES,
    FILE_GROUPS,
    DataFile,
    Folder,
    Group,
    RecordFile,
    data_files,
)
from tencost.store.schema import SCHEMA

OVERLAP = 4
"""Files that a workload may lie in before the whole hardware is rewritten."""
RUN_BYTES = 4 * FILE_BYTES
"""Rows sorted in memory at once; a workload with more of them is sorted whole all the same."""


@dataclass(frozen=True)
class Compaction:
    """What a compaction did: files it replaced, files it wrote, rows in them."""

    replaced: int
    written: int
    rows: int

    def __str__(self) -> str:
        return f"{self.rows:,} rows in {self.replaced:,} files rewritten into {self.written:,}"


def choose(folder: Folder, files: Sequence[DataFile], full: bool = False) -> list[DataFile]:
    """Return the files of one hardware to rewrite; with `full` all that are not one sorted file."""
    loose, settled, unsorted = [], [], False
    for file in files:
        with folder.open(file.path) as opened:
            if opened.is_sorted and opened.num_groups >= FILE_GROUPS // 2:
                settled.append(file)
            else:
                loose.append(file)
                unsorted |= not opened.is_sorted
    worth_it = len(loose) > 1 or unsorted
    if (full and (worth_it or len(files) > 1)) or _depth(settled) + worth_it > OVERLAP:
        return list(files)
    return loose if worth_it else []


def rewrite(folder: Folder, files: Sequence[DataFile]) -> list[AddAction]:
    """Write the rows of files of one hardware anew, sorted; return what the log is to add."""
    hardware = files[0].hardware
    with ExitStack() as stack:
        opened = [stack.enter_context(folder.open(file.path)) for file in files]
        small = [
            file for file in opened if not file.is_sorted or file.num_groups < FILE_GROUPS // 2
        ]
        sources = [file for file in opened if file not in small]
        spill = Folder(stack.enter_context(TemporaryDirectory(prefix="tencost-")))
        slabs = _slabs(small, hardware)
        first = next(slabs, None)
        second = next(slabs, None)
        if first is not None and second is None and not sources:
            return folder.write(first, data_change=False)
        for slab in (first, second):
            if slab is not None:
                sources.extend(_spilled(spill, slab, stack))
        for slab in slabs:
            sources.extend(_spilled(spill, slab, stack))
        return [
            action
            for part in _ranges(sources, hardware)
            for action in folder.write(part, data_change=False)
        ]


def still_there(table: DeltaTable, files: Sequence[DataFile]) -> bool:
    """Say whether a version of the store still has all these files."""
    return {file.path for file in files} <= {file.path for file in data_files(table)}


def _depth(files: Sequence[DataFile]) -> int:
    """Return in how many of the files one workload id lies at most."""
    # Sorted files always have bounds. At equal ids a file that begins counts before one that ends.
    ends = [(file.lowest or "", 0, 1) for file in files]
    ends += [(file.highest or "", 1, -1) for file in files]
    depth = most = 0
    for _, _, step in sorted(ends):
        depth += step
        most = max(most, depth)
    return most


def _spilled(spill: Folder, slab: pa.Table, stack: ExitStack) -> list[RecordFile]:
    return [
        stack.enter_context(spill.open(action.path))
        for action in spill.write(slab, data_change=False)
    ]


def _slabs(files: Sequence[RecordFile], hardware: str) -> Iterator[pa.Table]:
    """Yield all rows of files in tables of about RUN_BYTES."""
    held: list[pa.Table] = []
    size = 0
    for file in files:
        for group in file.groups():
            part = file.read(hardware, SCHEMA.names, [group.number])
            held.append(part)
            size += part.nbytes
            if size >= RUN_BYTES:
                yield pa.concat_tables(held)
                held, size = [], 0
    if held:
        yield pa.concat_tables(held)


def _ranges(sources: Sequence[RecordFile], hardware: str) -> Iterator[pa.Table]:
    """Yield the rows of sorted files in ranges of workload ids, ascending, about RUN_BYTES each."""
    groups = [(file, group) for file in sources for group in file.groups()]
    if not groups:
        return
    sample = groups[0][0].read(hardware, SCHEMA.names, [groups[0][1].number])
    most = max(1, RUN_BYTES * sample.num_rows // max(1, sample.nbytes))
    cuts = _cuts([group for _, group in groups], most)
    for low, high in zip(cuts, [*cuts[1:], None], strict=True):
        parts = []
        for file in sources:
            inside = [
                group.number
                for group in file.groups()
                if (group.highest or low) >= low and (high is None or (group.lowest or low) < high)
            ]
            if inside:
                parts.append(_within(file.read(hardware, SCHEMA.names, inside), low, high))
        yield pa.concat_tables(parts)


def _cuts(groups: Sequence[Group], most: int) -> list[str]:
    """Return the ids at which ranges of about `most` rows begin, the first one included."""
    cuts = [""]
    rows = 0
    for group in sorted(groups, key=lambda group: group.lowest or ""):
        lowest = group.lowest or ""
        if rows + group.rows > most and rows and lowest > cuts[-1]:
            cuts.append(lowest)
            rows = 0
        rows += group.rows
    return cuts


def _within(rows: pa.Table, low: str, high: str | None) -> pa.Table:
    ids = rows.column("workload_id")
    mask = pa.compute.greater_equal(ids, low)
    if high is not None:
        mask = pa.compute.and_(mask, pa.compute.less(ids, high))
    return rows.filter(mask)
