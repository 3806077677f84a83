"""A table of programs and their counters on disk, one Parquet file.

A row a program: program_id, workload, device string; time_ns float64, null where it was not told; then a column a
metric by its name, float64, null where it was not measured. The file's metadata ``tencost.profiles`` is a JSON object:
version, the metrics in their order, and their canonical units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tencost.errors import ProfileError
from tencost.records.counters.table import Profiles
from tencost.writing import whole_file

VERSION = 1
TABLE, PARAMETERS, REJECTS = "profiles.parquet", "parameters.parquet", "rejects.jsonl"
"""Files of a folder of profiles."""
_KEY = b"tencost.profiles"
_TEXTS = ("program_id", "workload", "device")


@dataclass(frozen=True, eq=False)
class StoredProfiles:
    """Programs as they were stored, and their metrics' canonical units."""

    profiles: Profiles
    units: Mapping[str, str]


def save_profiles(path: Path, profiles: Profiles, units: Mapping[str, str]) -> None:
    """Write programs to a file, whole or not at all."""
    about = {
        "version": VERSION,
        "metrics": profiles.metrics,
        "units": {metric: units.get(metric, "") for metric in profiles.metrics},
    }
    columns: dict[str, pa.Array] = {
        name: pa.array(getattr(profiles, name).tolist(), pa.string()) for name in _TEXTS
    }
    columns["time_ns"] = pa.array(profiles.time_ns, pa.float64(), from_pandas=True)
    for place, metric in enumerate(profiles.metrics):
        columns[metric] = pa.array(profiles.values[:, place], pa.float64(), from_pandas=True)
    table = pa.table(columns).replace_schema_metadata({_KEY: orjson.dumps(about)})
    with whole_file(path) as new:
        pq.write_table(table, new, compression="zstd")


def load_profiles(place: Path) -> StoredProfiles:
    """Return the programs of a file, or of a folder that `tencost profiles import` wrote.

    Raises:
        ProfileError: nothing there, or no table of programs.
    """
    path = place / TABLE if place.is_dir() else place
    if not path.is_file():
        raise ProfileError(
            f"expected a table of programs at {path}, found nothing. Make one: tencost profiles import FILES"
        )
    try:
        return _parse(pq.read_table(path), path)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise ProfileError(
            f"expected a table of programs at {path}, found another or a damaged file ({type(error).__name__}: "
            f"{str(error)[:200]}). Make it again: tencost profiles import FILES"
        ) from error


def _parse(table: pa.Table, path: Path) -> StoredProfiles:
    about = orjson.loads((table.schema.metadata or {})[_KEY])
    if about["version"] != VERSION:
        raise ProfileError(
            f"expected version {VERSION} of {path}, found {about['version']}. Import it again"
        )
    metrics = tuple(about["metrics"])
    units = {metric: about["units"][metric] for metric in metrics}
    texts = [table[name].to_pylist() for name in _TEXTS]
    if len(units) < len(metrics):
        raise ValueError("a metric is listed twice")
    if not all(isinstance(text, str) for text in chain(units.values(), *texts)):
        raise ValueError(f"expected text as units and in every row of {', '.join(_TEXTS)}")
    values = np.full((table.num_rows, len(metrics)), np.nan)
    for place, metric in enumerate(metrics):
        values[:, place] = _numbers(table, metric)
    program_id, workload, device = (np.array(cells, dtype=np.str_) for cells in texts)
    time_ns = _numbers(table, "time_ns")
    return StoredProfiles(Profiles(program_id, workload, device, metrics, values, time_ns), units)


def load_parameters(folder: Path) -> pl.DataFrame | None:
    """Return the tuning parameters of a folder that `tencost profiles import` wrote; None where it has none.

    Raises:
        ProfileError: a damaged file, or one without programs.
    """
    path = folder / PARAMETERS
    if not path.is_file():
        return None
    try:
        parameters = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ProfileError(
            f"expected tuning parameters of programs at {path}, found a damaged file ({str(error)[:200]}). Make it "
            "again: tencost profiles import FILES"
        ) from error
    if parameters.schema.get("program_id") != pl.String:
        raise ProfileError(
            f"expected program_id, a text, in {path}, found {', '.join(parameters.columns[:5])}. Make it again: "
            "tencost profiles import FILES"
        )
    return parameters


def _numbers(table: pa.Table, name: str) -> NDArray[np.float64]:
    return np.array(table[name].to_numpy(zero_copy_only=False), dtype=np.float64)
