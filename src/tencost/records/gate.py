"""Quarantine of times that nobody should tune by, out of look-ups and of training. One gate for imports and builds.

A best time decides what is compiled, so that one wrong line in a shared log slows everybody down. Three things are
suspicious, and no more than that; nothing is thrown away, a quarantined record can be released:

- a measurement whose repeats contradict each other: the fastest and the slowest differ by more than REPEATS;
- a time that the device cannot reach: below FLOOR_S, which a call takes on any device, or more than FASTER times below
  what the workload's FLOP take at `peak_gflops` (of types narrower than 32 bits: as many times more), or the bytes
  that it writes at `bandwidth_gbs` (conf/hardware/<name>.yaml, all cores together). What is not known limits nothing.
  Where most records of a group are such, all of it is suspicious: the others are in the same wrong unit;
- a record that would become the best of its workload, on its hardware, for its target and of its code generator, and
  is more than MARGIN times faster than the next best of at least CROWD others.

Bytes are those of the last argument alone, for inputs may be read in part. FLOP are counted, not measured: a count
above one multiply-add for each pair of an input's and an output's element takes in padding that a program may leave
out (a pooling window larger than its input), and is not used.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import pyarrow as pa

from tencost.config import HardwareConfig
from tencost.config.checking import instantiate
from tencost.config.composition import choice_names, choice_values
from tencost.store.layout import known_generator, latency
from tencost.store.schema import SCHEMA

MARGIN = 10.0
CROWD = 8
REPEATS = 20.0
FLOOR_S = 50e-9
FASTER = 2.0
"""A reported clock may be the nominal one; turbo and a counted multiply-add too many stay within twice of it."""
GROUP = ("workload_id", "target", "hardware", "generator")
"""Columns of a group: times of two hardware, targets or code generators are never compared."""
GroupKey = tuple[str, str, str, str]
"""Values of GROUP."""
JUDGED = (*GROUP, "workload_args", "run_secs", "status", "measurements", "quarantine")
"""Columns that `judged` looks at."""


@dataclass(frozen=True)
class Limits:
    """Limits of workloads and devices: FLOP by workload_id (0: not known), hardware by name."""

    flop: Mapping[str, float] = field(default_factory=dict)
    devices: Mapping[str, HardwareConfig] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredTimes:
    """Latencies of a group in a store: the fastest, in seconds, and how many there are."""

    fastest_s: float
    count: int


def devices(names: Iterable[str]) -> dict[str, HardwareConfig]:
    """Return the hardware of these names that conf/hardware describes.

    Raises:
        ConfigError: a description is not one.
    """
    described = set(names) & set(choice_names("hardware"))
    return {
        name: instantiate(HardwareConfig, choice_values("hardware", name), "hardware")
        for name in sorted(described)
    }


def judged(
    table: pa.Table,
    flop: Mapping[str, float],
    stored: Mapping[GroupKey, StoredTimes] | None = None,
) -> pa.Table:
    """Return a table of the schema with a reason in `quarantine` for each row that is to be kept out."""
    frame = pl.DataFrame(table.select(JUDGED)).with_columns(known_generator())
    limits = Limits(flop, devices(frame["hardware"].unique()))
    reasons = frame["quarantine"].zip_with(
        frame["quarantine"].is_not_null(), quarantine(frame, stored, limits)
    )
    if reasons.null_count() == len(reasons):
        return table
    position = SCHEMA.get_field_index("quarantine")
    column = reasons.to_arrow().cast(pa.string())
    return table.set_column(position, SCHEMA.field("quarantine"), column)


def quarantine(
    records: pl.DataFrame,
    stored: Mapping[GroupKey, StoredTimes] | None = None,
    limits: Limits | None = None,
) -> pl.Series:
    """Return a reason for each record that is to be quarantined, null for the others.

    Args:
        records: rows with the columns of GROUP, run_secs and status; workload_args and measurements if they have any.
        stored: latencies that the store has already, by the values of GROUP.
        limits: what devices can do.
    """
    reasons = _contradictory(records)
    for row, reason in _impossible(records, limits or Limits()):
        reasons[row] = reasons[row] or reason
    usable = records.with_row_index("row").filter(
        (pl.col("status") == "ok") & pl.Series([reason is None for reason in reasons])
    )
    groups = (
        usable.with_columns(latency_s=latency())
        .sort("latency_s")
        .group_by(GROUP, maintain_order=True)
        .agg("row", "latency_s")
    )
    for workload, target, hardware, generator, rows, latencies in groups.iter_rows():
        stored_times = (stored or {}).get((workload, target, hardware, generator))
        for row, reason in _too_fast(rows, np.asarray(latencies), stored_times):
            reasons[row] = reason
    return pl.Series("quarantine", reasons, dtype=pl.String)


def _contradictory(records: pl.DataFrame) -> list[str | None]:
    """Return a reason for each record that has a measurement whose repeats contradict each other."""
    times = pl.col("run_secs")
    contradictory = times.list.max() > REPEATS * times.list.min()
    if "measurements" in records.columns:
        inner = pl.element().struct.field("run_secs")
        each = inner.list.max() > REPEATS * inner.list.min()
        many = pl.col("measurements").list.eval(each).list.any()
        contradictory = (
            pl.when(pl.col("measurements").is_null()).then(contradictory).otherwise(many)
        )
    message = pl.format(
        "its repeats contradict each other: {} s to {} s", times.list.min(), times.list.max()
    )
    reason = pl.when((pl.col("status") == "ok") & contradictory).then(message).alias("quarantine")
    return records.select(reason)["quarantine"].to_list()


def _impossible(records: pl.DataFrame, limits: Limits) -> list[tuple[int, str]]:
    """Return the rows with a time that their device cannot reach, with the reason."""
    has_args = "workload_args" in records.columns
    fastest = (
        records.with_row_index("row")
        .filter(pl.col("status") == "ok")
        .with_columns(fastest_s=pl.col("run_secs").list.min())
    )
    reasons = []
    for (workload, _, hardware, _), rows in fastest.group_by(GROUP, maintain_order=True):
        text = rows["workload_args"][0] if has_args else None
        device = limits.devices.get(str(hardware))
        flop = limits.flop.get(str(workload), 0.0)
        least = max(_least(device, flop, text), FLOOR_S)
        why = "a call takes" if least == FLOOR_S else f"{hardware} needs"
        below = rows.filter(pl.col("fastest_s") < least)
        reasons += [
            (row, f"{seconds:.3g} s is less than {why} for it at least, {least:.3g} s")
            for row, seconds in below.select("row", "fastest_s").iter_rows()
        ]
        if below.height > max(1, rows.height // 2):
            reason = (
                f"{below.height} of the {rows.height} records of its workload take less than {why} for it at least, "
                f"{least:.3g} s"
            )
            others = rows.filter(pl.col("fastest_s") >= least)
            reasons += [(row, reason) for row in others["row"].to_list()]
    return reasons


def _least(device: HardwareConfig | None, flop: float, args: str | None) -> float:
    """Return the seconds that FLOP and written bytes take at least, FASTER allowed for; 0 where nothing is known."""
    if device is None:
        return 0.0
    shapes = tensors(args)
    sizes = [size for size, _ in shapes]
    if sizes and flop > 2.0 * sizes[-1] * sum(sizes[:-1]):
        flop = 0.0
    written = sizes[-1] * shapes[-1][1] / 8 if shapes else 0.0
    lanes = 32 / min([32, *(bits for _, bits in shapes)]) if shapes else 4.0
    allowed = FASTER * device.cores * 1e9
    return max(
        flop / (allowed * lanes * (device.peak_gflops or math.inf)),
        written / (allowed * (device.bandwidth_gbs or math.inf)),
    )


def tensors(args: str | None) -> list[tuple[float, int]]:
    """Return elements and bits of each argument, ["TENSOR", dtype, shape]; none where an argument is no tensor."""
    value = json.loads(args) if args else []
    tensors = []
    for argument in value if isinstance(value, list) else ():
        if not (isinstance(argument, list) and len(argument) == 3 and argument[0] == "TENSOR"):
            return []
        bits = re.fullmatch(r"(?:u?int|b?float)(\d+)\w*", str(argument[1]))
        shape = argument[2] if isinstance(argument[2], list) else [None]
        if bits is None or not all(type(size) is int and 0 < size < 2**40 for size in shape):
            return []
        tensors.append((float(math.prod(shape)), int(bits.group(1))))
    return tensors


def _too_fast(
    rows: list[int], latencies: np.ndarray, stored_times: StoredTimes | None
) -> list[tuple[int, str]]:
    """Return the fastest of a group that stand alone, with the reason; latencies ascend."""
    outliers = []
    for position in range(len(rows)):
        others = latencies[position + 1 :]
        crowd = len(others) + (stored_times.count if stored_times else 0)
        if crowd < CROWD:
            break
        following = min(
            float(others[0]) if len(others) else np.inf,
            stored_times.fastest_s if stored_times else np.inf,
        )
        if latencies[position] * MARGIN >= following:
            break
        outliers.append(
            (
                rows[position],
                f"would be the best of its workload by a factor of {following / latencies[position]:.1f}: "
                f"{latencies[position]:.3g} s, the next of {crowd} others {following:.3g} s",
            )
        )
    return outliers
