"""Labels: what a ranker learns. Pure functions over arrays.

Legend: N records, G groups. A group is one workload on one hardware, compiled by one code generator.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tencost.errors import TrainError
from tencost.features.rows.ragged import IntArray
from tencost.models.programs.ranker import Samples

LABEL_TEXT = (
    "fastest median latency of the (workload, hardware, generator) group within the split part / "
    "median latency; failed = 0"
)
"""The definition that every bundle carries."""


def dense_groups(*keys: npt.NDArray[np.str_]) -> IntArray:
    """Number the distinct combinations of the keys in order of first appearance: int64 [N]."""
    seen: dict[tuple[str, ...], int] = {}
    ids = [seen.setdefault(tuple(map(str, key)), len(seen)) for key in zip(*keys, strict=True)]
    return np.asarray(ids, dtype=np.int64)


def speed_labels(
    latency_s: npt.NDArray[np.float64], group: IntArray
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Fastest latency of the group / latency, per record; higher is faster.

    A group whose records all failed has no label: upstream TVM divides its failure sentinel by
    itself there and calls every one of them perfect (1.0).

    Args:
        latency_s: float64 [N], seconds, NaN for a failed record.
        group: int64 [N], dense group ids.

    Returns:
        label: float32 [N] in [0, 1]; 0 for a failed record.
        keep: bool [N]; False for the records of groups without a single success.
    """
    num_groups = int(group.max()) + 1 if len(group) else 0
    fastest = np.full(num_groups, np.inf)
    ok = np.isfinite(latency_s)
    np.minimum.at(fastest, group[ok], latency_s[ok])
    label = np.zeros(len(group), np.float32)
    label[ok] = (fastest[group[ok]] / latency_s[ok]).astype(np.float32)
    keep = np.isfinite(fastest)[group] if num_groups else np.zeros(0, bool)
    return label, keep


def featurized(samples: Samples) -> Samples:
    """Return the samples that have rows.

    Raises:
        TrainError: none has.
    """
    used = np.flatnonzero(samples.features.lengths)
    if not len(used):
        raise TrainError(
            f"expected programs with features, found {len(samples)} programs and none with rows. "
            "See failures.jsonl beside the features, and the split's report."
        )
    return samples if len(used) == len(samples) else samples.take(used)
