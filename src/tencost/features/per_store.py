"""`per_store`: TVM's PerStoreFeature on candidates, one that cannot be lowered never stopping the others. Needs TVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tencost.features.columns import (
    NUM_BUFFERS,
    NUM_INTENSITIES,
    PER_STORE_COLUMNS,
    WORKLOAD_COLUMNS,
)
from tencost.features.ragged import FloatArray

COLUMNS = (*PER_STORE_COLUMNS, *WORKLOAD_COLUMNS)


def extract(context: Any, candidates: Sequence[Any]) -> list[FloatArray | None]:
    """Extract features on the context's threads.

    Args:
        context: tvm.s_tir.meta_schedule.TuneContext of the workload.
        candidates: MeasureCandidates of that workload.

    Returns:
        For each candidate float32 [stores, 172], in the program's store order, or None where TVM cannot lower it.
    """
    if not candidates:
        return []
    extractor = _extractor()
    try:
        arrays = extractor.extract_from(context, list(candidates))
    except Exception:  # noqa: BLE001 - one candidate fails the whole call in TVM: find out which
        if len(candidates) == 1:
            return [None]
        middle = len(candidates) // 2
        return [*extract(context, candidates[:middle]), *extract(context, candidates[middle:])]
    return [_checked(array.numpy()) for array in arrays]


def _checked(array: Any) -> FloatArray | None:
    """Return float32 rows; TVM marks a program that does not lower by an array of no or only zero rows."""
    if array.ndim != 2 or not len(array):
        return None
    assert array.shape[1] == len(COLUMNS), (
        f"PerStoreFeature gave {array.shape[1]} columns, expected {len(COLUMNS)}"
    )
    if not array[:, : len(PER_STORE_COLUMNS)].any() or not np.isfinite(array).all():
        return None
    return np.ascontiguousarray(array, dtype=np.float32)


def _extractor() -> Any:
    from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature

    return PerStoreFeature(
        buffers_per_store=NUM_BUFFERS,
        arith_intensity_curve_num_samples=NUM_INTENSITIES,
        extract_workload=True,
    )
