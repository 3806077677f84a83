"""What is kept out of look-ups when logs are imported: times that nobody should tune by.

A best time decides what is compiled, so that one wrong line in a shared log slows everybody down. Two things are
suspicious, and no more than that; nothing is thrown away, a quarantined record can be released:

- a record whose repeats contradict each other: the fastest and the slowest differ by more than REPEATS;
- a record that would become the best of its workload, on its hardware and for its target, and is more than MARGIN
  times faster than the next best of at least CROWD others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from tencost.store.layout import latency

MARGIN = 10.0
CROWD = 8
REPEATS = 20.0
GROUP = ("workload_id", "target", "hardware")


@dataclass(frozen=True)
class Known:
    """What a store has of a group: its fastest latencies, seconds, and how many there are."""

    fastest_s: float
    count: int


def quarantine(
    records: pl.DataFrame, known: Mapping[tuple[str, str, str], Known] | None = None
) -> pl.Series:
    """Return a reason for each record that is to be quarantined, null for the others.

    Args:
        records: rows with the columns of GROUP, run_secs and status.
        known: what the store has already, by (workload_id, target, hardware).
    """
    reasons = records.select(
        pl.when(
            (pl.col("status") == "ok")
            & (pl.col("run_secs").list.max() > REPEATS * pl.col("run_secs").list.min())
        )
        .then(
            pl.format(
                "its repeats contradict each other: {} s to {} s",
                pl.col("run_secs").list.min(),
                pl.col("run_secs").list.max(),
            )
        )
        .alias("quarantine")
    )["quarantine"].to_list()
    usable = records.with_row_index("row").filter(
        (pl.col("status") == "ok") & pl.Series([reason is None for reason in reasons])
    )
    groups = (
        usable.with_columns(latency_s=latency())
        .sort("latency_s")
        .group_by(GROUP, maintain_order=True)
        .agg("row", "latency_s")
    )
    for workload, target, hardware, rows, latencies in groups.iter_rows():
        have = (known or {}).get((workload, target, hardware))
        for row, reason in _too_fast(rows, np.asarray(latencies), have):
            reasons[row] = reason
    return pl.Series("quarantine", reasons, dtype=pl.String)


def _too_fast(rows: list[int], latencies: np.ndarray, have: Known | None) -> list[tuple[int, str]]:
    """Return the fastest of a group that stand alone, with the reason; latencies ascend."""
    found = []
    for position in range(len(rows)):
        others = latencies[position + 1 :]
        crowd = len(others) + (have.count if have else 0)
        if crowd < CROWD:
            break
        following = min(
            float(others[0]) if len(others) else np.inf, have.fastest_s if have else np.inf
        )
        if latencies[position] * MARGIN >= following:
            break
        found.append(
            (
                rows[position],
                f"would be the best of its workload by a factor of {following / latencies[position]:.1f}: "
                f"{latencies[position]:.3g} s, the next of {crowd} others {following:.3g} s",
            )
        )
    return found
