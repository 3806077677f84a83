"""Records that were read from T4 results, as T4 results again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import polars as pl

from tencost.errors import RecordError
from tencost.records.formats.t4 import UNITS
from tencost.records.reading.jsonfloats import from_floats
from tencost.records.reading.protocol import shorten
from tencost.writing import whole_file


def write_file(records: pl.DataFrame, path: Path) -> None:
    """Write a T4 document, whole or not at all; see :func:`document_of`."""
    document = document_of(records)
    with whole_file(path) as scratch:
        scratch.write_text(json.dumps(document, indent=1), encoding="utf-8")


def document_of(records: pl.DataFrame) -> dict[str, Any]:
    """Return a T4 document; read again, its times are those of the records to the bit.

    Args:
        records: the columns hardware, program, run_secs and foreign, at least.

    Raises:
        RecordError: they are of several devices or units of time, which one document cannot say, or not from T4.
    """
    texts = [json.loads(text or "{}") for text in records["foreign"]]
    for column, values in (
        ("hardware", sorted(set(records["hardware"]))),
        ("format", sorted({str(foreign.get("format")) for foreign in texts})),
        ("unit of time", sorted({foreign.get("timeunit", "") for foreign in texts})),
    ):
        if len(values) != 1 or (column == "format" and values != ["t4"]):
            raise RecordError(
                f"expected records of T4 results of one {column}, found {', '.join(map(shorten, values))}. Choose with "
                "--hardware and --dataset"
            )
    unit = texts[0]["timeunit"]
    results = []
    for foreign, program, run_secs in zip(
        texts, records["program"], records["run_secs"].to_list(), strict=True
    ):
        result = from_floats(foreign["result"])
        measured = {
            measurement["name"]: measurement for measurement in result.get("measurements") or []
        }
        if run_secs and not _is_measurement(run_secs, measured, unit):
            own_unit = unit or measured["time"]["unit"]
            runtimes = [_time(seconds, UNITS[own_unit.casefold()]) for seconds in run_secs]
            result["times"]["runtimes"] = runtimes
        results.append({"configuration": json.loads(program), **result})
    metadata = {"metadata": {"timeunit": unit}} if unit else {}
    return {"schema_version": "1.0.0", **metadata, "results": results}


def _is_measurement(run_secs: list[float], measured: dict[str, Any], unit: str) -> bool:
    """Say whether the only time is the measurement `time`, which is in the result already."""
    time = measured.get("time", {})
    value, own_unit = time.get("value"), time.get("unit") or unit
    is_number = isinstance(value, int | float) and own_unit.casefold() in UNITS
    return is_number and run_secs == [value / UNITS[own_unit.casefold()]]


def _time(seconds: float, per_second: float) -> float:
    """Return a time in a unit that is these seconds again when it is read."""
    time = seconds * per_second
    around = (time, math.nextafter(time, 0), math.nextafter(time, math.inf))
    return next((near for near in around if near / per_second == seconds), time)
