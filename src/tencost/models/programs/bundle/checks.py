"""What a bundle must be beyond its hashes: fields and settings of the right types, and a model that ranks something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tencost.errors import BundleError
from tencost.features.rows.kind import kind_of
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.models.manifest import check_types
from tencost.models.programs.bundle.calibration import Calibration
from tencost.models.programs.ranker import Ranker

_FIELD_TYPES: dict[str, Any] = {
    "family": str,
    "model_config": {},
    "feature_spec": {},
    "hardware": str,
    "target_kind": str,
    "label": str,
    "calibration": {},
    "tvm_range": [str],
    "dataset": str,
    "dataset_hash": str,
    "split": str,
    "split_hash": str,
    "seed": int,
    "device": {"": float},
    "versions": {},
    "metrics": {},
    "refit": {},
    "files": {"": str},
}
_SPEC_TYPES = {"name": str, "kind": str, "columns": [str], "options": {}, "device_columns": [str]}
"""What JSON values the fields have, see :func:`tencost.models.manifest.check_types`."""
_TRIED = 64
"""Made-up programs that a bundle scores when it is loaded."""
_TRIED_VALUES = np.array([0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0])
"""Feature columns are logarithms, shares and flags: none is far from these."""


def check_fields(values: dict[str, Any]) -> None:
    """Compare the fields of bundle.json with what each must be.

    Raises:
        KeyError, TypeError, ValueError: the message says which field.
    """
    check_types(values, _FIELD_TYPES)
    spec = values["feature_spec"]
    check_types(spec, _SPEC_TYPES, "feature_spec.")
    if len(set(spec["columns"])) != len(spec["columns"]):
        raise ValueError("feature_spec.columns names one twice")
    if len(values["tvm_range"]) != 2:
        raise ValueError(f"tvm_range is {values['tvm_range']}")
    check_types(values["calibration"], {"center": float, "scale": float}, "calibration.")


def try_out(folder: Path, spec: FeatureSpec, calibration: Calibration, ranker: Ranker) -> None:
    """Score made-up programs: weights that are whole may still say nothing, or nothing that is a number.

    Raises:
        BundleError: a score that is not finite, or one score for all.
    """
    rng = np.random.default_rng(0)
    columns = len(spec.columns)
    one_row = kind_of(spec).one_row
    sizes = [1 if one_row else 1 + index % 3 for index in range(_TRIED)]
    blocks = [
        (rng.choice(_TRIED_VALUES, (size, columns)) + rng.uniform(0, 1, (size, columns))).astype(
            np.float32
        )
        for size in sizes
    ]
    with np.errstate(all="ignore"):
        raw = ranker.predict(Ragged.from_blocks(blocks, columns))
        scores = calibration(raw)
    if raw.shape != (_TRIED,) or not np.isfinite(raw).all():
        raise BundleError(
            f"bundle {folder}: expected finite scores of made-up programs, found "
            f"{np.asarray(raw)[~np.isfinite(raw)][:4].tolist()}: the weights are damaged. Pull or train it again."
        )
    # Made-up programs are far from all that were learnt from, and may have the same nearest neighbours.
    if len(np.unique(scores)) == 1 and ranker.family != "knn":
        raise BundleError(
            f"bundle {folder}: it scores {_TRIED} made-up programs alike ({scores[0]:.6g}), so that it cannot rank "
            "any. Train it again, on more programs."
        )
