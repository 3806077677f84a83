"""Features on disk, one row a program.

``features.parquet``: program_id string, workload_id string, num_rows int32, values list<float32> of num_rows x columns
numbers, row by row. ``spec.json``: the FeatureSpec, without device columns. ``failures.jsonl``: one object
``{program_id, workload_id, reason}`` a line for programs that could not be featurized; they are not in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tencost.errors import FeatureError
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.writing import whole_folder

FILE, SPEC, FAILURES = "features.parquet", "spec.json", "failures.jsonl"


@dataclass(frozen=True)
class FeatureTable:
    """All featurized programs of a dataset."""

    spec: FeatureSpec
    program_id: pl.Series
    """The N programs, strings, unique."""
    features: Ragged
    """Their rows."""

    def select(self, program_ids: Sequence[str]) -> Ragged:
        """Return the rows of the programs named, in that order; a program without features has no rows."""
        positions = pl.DataFrame({"program_id": self.program_id}).with_row_index("position")
        chosen = pl.DataFrame({"program_id": pl.Series(program_ids, dtype=pl.String)})
        rows = chosen.join(positions, on="program_id", how="left", maintain_order="left")
        # Programs without features point at one more, empty block at the end.
        indices = rows["position"].cast(pl.Int64).fill_null(len(self.features)).to_numpy()
        offsets = np.append(self.features.offsets, self.features.offsets[-1])
        return Ragged(self.features.values, offsets).take(indices)


def save_features(
    folder: Path,
    spec: FeatureSpec,
    program_ids: Sequence[str],
    workload_ids: Sequence[str],
    features: Ragged,
    failures: Sequence[dict[str, Any]],
) -> None:
    """Write a table; the folder appears complete or not at all."""
    numbers = pa.array(features.values.reshape(-1))
    lists = pa.ListArray.from_arrays(
        pa.array((features.offsets * features.num_columns).astype(np.int32)), numbers
    )
    table = pa.table(
        {
            "program_id": pa.array(program_ids, pa.string()),
            "workload_id": pa.array(workload_ids, pa.string()),
            "num_rows": pa.array(features.lengths.astype(np.int32)),
            "values": lists,
        }
    )
    with whole_folder(folder) as partial:
        pq.write_table(table, partial / FILE, compression="zstd")
        spec.save(partial / SPEC)
        (partial / FAILURES).write_bytes(
            b"".join(orjson.dumps(failure) + b"\n" for failure in failures)
        )


def load_features(folder: Path) -> FeatureTable:
    """Read what `save_features` wrote.

    Raises:
        FeatureError: nothing there, another feature ABI, or a file that does not match its spec.
    """
    path = folder / FILE
    if not path.is_file() or not (folder / SPEC).is_file():
        raise FeatureError(
            f"expected {FILE} and {SPEC} in {folder}, found none. Build them: tencost features"
        )
    spec = FeatureSpec.load(folder / SPEC)
    table = pq.read_table(path)
    lengths = table["num_rows"].to_numpy().astype(np.int64)
    values = pc.list_flatten(table["values"]).to_numpy(zero_copy_only=False)
    if len(values) != int(lengths.sum()) * len(spec.columns):
        raise FeatureError(
            f"{path} holds {len(values)} values, expected {int(lengths.sum())} rows of {len(spec.columns)} columns. "
            "Build it again: tencost features"
        )
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    rows = np.asarray(values, np.float32).reshape(-1, len(spec.columns))
    return FeatureTable(
        spec, pl.Series(table["program_id"].to_pylist(), dtype=pl.String), Ragged(rows, offsets)
    )
