"""What a bundle must be beyond its hashes: fields and settings of the right types, and a model that ranks something."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from tencost.errors import BundleError
from tencost.features.rows.kind import kind_of
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
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
"""What JSON values the fields of bundle.json have: a type, a list of it, or an object of it."""
_TRIED = 64
"""Made-up programs that a bundle scores when it is loaded."""
_TRIED_VALUES = np.array([0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0])
"""Feature columns are logarithms, shares and flags: none is far from these."""


def check_types(values: dict[str, Any]) -> None:
    """Compare the fields of bundle.json with what each must be.

    Raises:
        KeyError, TypeError, ValueError: the message says which field.
    """
    for name, found in values.items():
        expected = _FIELD_TYPES.get(name)
        if expected is not None and not _is(found, expected):
            raise TypeError(f"{name} is {str(found)[:60]!r}")
    spec = values["feature_spec"]
    for name, kind in (
        ("name", str),
        ("kind", str),
        ("columns", [str]),
        ("options", {}),
        ("device_columns", [str]),
    ):
        if name in spec and not _is(spec[name], kind):
            raise TypeError(f"feature_spec.{name} is {str(spec[name])[:60]!r}")
    if len(set(spec["columns"])) != len(spec["columns"]):
        raise ValueError("feature_spec.columns names one twice")
    if len(values["tvm_range"]) != 2:
        raise ValueError(f"tvm_range is {values['tvm_range']}")
    for name in ("center", "scale"):
        if not _is(values["calibration"].get(name, 1.0), float):
            raise TypeError(f"calibration.{name} is {values['calibration'][name]!r}")


def check_settings(schema: type[Any], values: dict[str, Any]) -> None:
    """Compare a family's settings with the types of their defaults.

    The dataclass itself does not ask: a width of "128" would be believed until it is multiplied.

    Raises:
        TypeError: the message says which.
    """
    for item in fields(schema):
        plain = item.name in values and type(item.default) in (int, float, str, bool)
        if plain and not _is(values[item.name], type(item.default)):
            raise TypeError(f"{item.name} is {values[item.name]!r}")


def _is(value: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return isinstance(value, list) and all(_is(item, expected[0]) for item in value)
    if isinstance(expected, dict):
        inside = next(iter(expected.values()), object)
        return isinstance(value, dict) and all(_is(item, inside) for item in value.values())
    if expected is float:
        return type(value) in (int, float)
    return type(value) is expected or expected is object


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
