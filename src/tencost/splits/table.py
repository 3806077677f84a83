"""A split on disk: ``split.parquet`` with the string columns record_id, program_id, workload_id, hardware, part.

`part` is train, valid or test; every record of the dataset is in the file once, failed ones too.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from tencost.errors import SplitError
from tencost.writing import whole_file

FILE = "split.parquet"
COLUMNS = ("record_id", "program_id", "workload_id", "hardware", "part")


def load_split(folder: Path) -> pl.DataFrame:
    """Return the split that the stage wrote into a folder.

    Raises:
        SplitError: nothing there, or another layout.
    """
    path = folder / FILE
    if not path.is_file():
        raise SplitError(
            f"expected {path}, found nothing. Build it: tencost splits split={folder.name}"
        )
    split = pl.read_parquet(path)
    if tuple(split.columns) != COLUMNS:
        raise SplitError(
            f"expected the columns {', '.join(COLUMNS)} in {path}, found {', '.join(split.columns)}. "
            f"Build it again: tencost splits split={folder.name}"
        )
    return split


def save_split(folder: Path, split: pl.DataFrame) -> None:
    """Write a split; complete or not at all."""
    with whole_file(folder / FILE) as partial:
        split.select(COLUMNS).write_parquet(partial)
