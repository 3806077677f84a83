"""Timings of networks that tests make up: runs whose medians and noise are known."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from tencost.records.network_times.timing import NetworkTiming

FIRST_DAY = datetime(2026, 11, 10, 3, tzinfo=UTC).timestamp()
DAY_S = 86400.0


def latencies(
    middle_s: float, seed: int, *, between: float = 0.01, within: float = 0.02, n: int = 20
) -> tuple[float, ...]:
    """Return a run's latencies, seconds: log-normal around a middle that itself scatters from run to run."""
    generator = np.random.default_rng(seed)
    offset = generator.normal(0.0, between)
    return tuple(float(one) for one in middle_s * np.exp(offset + generator.normal(0.0, within, n)))


def timing(day: int, middle_s: float = 1e-3, **fields: Any) -> NetworkTiming:
    """Return a run of so many days after FIRST_DAY; its noise is drawn with its day, engine and network."""
    known: dict[str, Any] = {
        "network": "bert_tiny", "engine": "tencost", "engine_version": "0.2.0", "hardware": "epyc", "host": "ci",
        "size": 128, "timestamp": FIRST_DAY + day * DAY_S,
    }  # fmt: skip
    known |= fields
    if not known.get("error"):
        seed = sum(map(ord, f"{known['network']}{known['engine']}{known['host']}")) + 100 * day
        known.setdefault("seconds", latencies(middle_s, seed))
    return NetworkTiming(**known)
