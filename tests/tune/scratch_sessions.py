"""Tuning sessions with a model that learns from scratch, of tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tencost.config import FeaturesConfig, TunerConfig
from tencost.features.extractor import spec_for
from tencost.networks.network import NetworkTask
from tencost.tune.session import MeasuredBatch, TuningSession
from tencost.tune.workfolder import WorkFolder


def scratch_model() -> Any:
    from tencost.tune.cost_model import scratch_cost_model

    return scratch_cost_model(spec_for(FeaturesConfig(name="per_store", kind="per_store")))


def scratch_session(
    folder: WorkFolder,
    tasks: Sequence[NetworkTask],
    target: dict[str, Any],
    pool: Any,
    on_batch: Callable[[MeasuredBatch], None] = lambda _: None,
    **changes: Any,
) -> TuningSession:
    """Return a session with small generations; changes are of TunerConfig."""
    tuner = TunerConfig(**{"population": 16, "generations": 1, **changes})
    return TuningSession(
        tasks, target, tuner, scratch_model(), folder, pool, threads=1, on_batch=on_batch
    )
