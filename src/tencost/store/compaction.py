"""Rewriting a store's files into few sorted ones, with memory for a part of them.

Delta Lake's own z-order sorts as well, and its look-ups are as fast. But two of it at once (deltalake
1.6) both commit, and every row is there twice; where it is told to give up when another commits, one
append makes its minute's work void. So files are made here, and their commit checks that the files
that they replace are still there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl
from deltalake.transaction import AddAction

from tencost.store.layout import FILE_GROUPS, GROUP_BYTES, DataFile, Folder
from tencost.store.schema import SCHEMA

OVERLAP = 4
"""Files that a workload may lie in before the whole hardware is rewritten."""
SMALL_FILES = 32
"""Small files of a hardware before a writer merges them."""
SMALL_ROWS = 4096
"""A file with fewer rows is small."""
RANGE_BYTES = 4 * FILE_GROUPS * GROUP_BYTES
"""Rows sorted in memory at once; a workload with more of them is sorted whole all the same."""


@dataclass(frozen=True)
class Compaction:
    """What a compaction did: files it replaced, files it wrote, rows in them."""

    replaced: int
    written: int
    rows: int

    def __str__(self) -> str:
        return f"{self.rows:,} rows in {self.replaced:,} files rewritten into {self.written:,}"


def small(files: Sequence[DataFile]) -> list[DataFile]:
    """Return the files that have few rows."""
    return [file for file in files if (file.rows or 0) < SMALL_ROWS]


def files_to_rewrite(files: Sequence[DataFile], full: bool = False) -> list[DataFile]:
    """Return which files of one hardware to rewrite: small ones, or all where too many overlap; `full`: all."""
    if full or _depth(files) > OVERLAP:
        return list(files)
    loose = small(files)
    return loose if len(loose) > 1 else []


def rewrite(folder: Folder, files: Sequence[DataFile]) -> list[AddAction]:
    """Write the rows of files of one hardware anew, sorted by workload; return what the log is to add."""
    rows = folder.scan(files)
    sample = rows.head(1000).collect()
    most = max(1, RANGE_BYTES * len(sample) // max(1, int(sample.estimated_size())))
    counts = rows.group_by("workload_id").len().sort("workload_id").collect()
    added = []
    for low, high in _ranges(counts, most):
        near = [
            file
            for file in files
            if (file.lowest or "") <= high and (file.highest is None or file.highest >= low)
        ]
        part = (
            folder.scan(near)
            .filter(pl.col("workload_id").is_between(pl.lit(low), pl.lit(high)))
            .collect()
        )
        added += folder.write(part.to_arrow().cast(SCHEMA), data_change=False)
    return added


def _ranges(counts: pl.DataFrame, most: int) -> Iterator[tuple[str, str]]:
    """Yield the first and last workload id of ranges of about `most` rows; `counts`: rows of each, sorted."""
    low, rows, last = "", 0, ""
    for workload, count in counts.iter_rows():
        if rows and rows + count > most:
            yield low, last
            rows = 0
        low = workload if rows == 0 else low
        rows += count
        last = workload
    if rows:
        yield low, last


def _depth(files: Sequence[DataFile]) -> int:
    """Return in how many of the files' inner ranges one workload id lies at most."""
    # At equal ids a file that ends counts before one that begins: a workload may fill many files.
    ends = [(file.lowest or "", 1, 1) for file in files]
    ends += [(file.highest or "\U0010ffff", 0, -1) for file in files]
    depth = most = 0
    for _, _, step in sorted(ends):
        depth += step
        most = max(most, depth)
    return most
