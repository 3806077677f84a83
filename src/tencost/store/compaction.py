"""Rewriting a store's files into few sorted ones, with memory for a part of them.

Delta Lake's z-order sorts as well, and its look-ups are as fast. But of two at once (deltalake 1.6.6) both commit, and
every row is there twice: `optimize` ignores `max_commit_retries` and `app_transactions`, and its check of conflicts
misses what another `optimize` removed. So files are made here, and their commit checks that the files that they replace
are still there.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tencost.errors import RecordError
from tencost.store.delta import TableLocation, commit_version, explain_damage, require_table, retry
from tencost.store.layout import FILE_GROUPS, GROUP_BYTES, DataFile, Folder, data_files
from tencost.store.rewriting import Rewriting
from tencost.store.schema import SCHEMA

OVERLAP = 4
"""Files that a workload may lie in before the whole hardware is rewritten."""
SMALL_FILES = 32
"""Small files of a hardware before a writer merges them."""
SMALL_ROWS = 4096
"""A file with fewer rows is small."""
RANGE_BYTES = 4 * FILE_GROUPS * GROUP_BYTES
"""Rows sorted in memory at once; a workload with more of them is sorted whole all the same."""


def small(files: Sequence[DataFile]) -> list[DataFile]:
    """Return the files that have few rows."""
    return [file for file in files if (file.rows or 0) < SMALL_ROWS]


def files_to_rewrite(files: Sequence[DataFile], full: bool = False) -> list[DataFile]:
    """Return which files of one hardware to rewrite: small ones, or all where too many overlap; `full`: all."""
    bounds = [(file.lowest or "", file.highest or "\U0010ffff") for file in files]
    # A workload may fill many files, which do not overlap: only one that ends after it counts.
    depth = (sum(low <= first < high for low, high in bounds) for first, _ in bounds)
    if full or max(depth, default=0) > OVERLAP:
        return list(files)
    loose = small(files)
    return loose if len(loose) > 1 else []


def merge_files(place: TableLocation, files: Sequence[DataFile]) -> Rewriting:
    """Replace files of one hardware by sorted ones with the same rows.

    Raises:
        RecordError: another process replaced some of them meanwhile, or one is damaged.
    """
    with explain_damage(place.uri):
        done = rewrite(Folder(place.uri, place.storage_options), files)

    def replace() -> None:
        table = require_table(place)
        if not {file.path for file in files} <= {file.path for file in data_files(table)}:
            raise RecordError(
                f"expected the files that were compacted still in {place.uri}; another process "
                "rewrote them. Nothing is lost; compact again if the store has many small files."
            )
        commit_version(table, done.added, files)

    retry(place.uri, replace)
    return done


def rewrite(folder: Folder, files: Sequence[DataFile]) -> Rewriting:
    """Write the rows of files of one hardware anew, sorted by workload; no version has them yet."""
    rows = folder.scan(files)
    sample = rows.head(1000).collect()
    most = max(1, RANGE_BYTES * len(sample) // max(1, int(sample.estimated_size())))
    counts = rows.group_by("workload_id").len().sort("workload_id").collect()
    ranges = counts.group_by(pl.col("len").cum_sum() // most, maintain_order=True).agg(
        pl.col("workload_id").first().alias("low"), pl.col("workload_id").last().alias("high")
    )
    done = Rewriting(list(files))
    for low, high in ranges.select("low", "high").iter_rows():
        part = rows.filter(pl.col("workload_id").is_between(pl.lit(low), pl.lit(high))).collect()
        done.added += folder.write(part.to_arrow().cast(SCHEMA))
        done.after += part.height
    return done
