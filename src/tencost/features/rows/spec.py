"""What a feature array's columns mean: name, order and ABI version, kept with the data and inside every bundle."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tencost.config.parts import FEATURE_KINDS
from tencost.errors import FeatureError
from tencost.features.rows.ragged import IntArray

FEATURE_ABI = 2
"""Version of the meaning of feature columns; raised whenever a column changes its meaning, order or scale.

It is the MAJOR part of a registered model's version: a model never reads features of another ABI.
"""


@dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """An ordered list of named columns and the settings they were made with."""

    name: str
    """Name of the feature set, as in conf/features/."""
    kind: str
    """The kind of its rows, a name of FEATURE_KINDS."""
    columns: tuple[str, ...]
    """Column names in order; all float32."""
    options: dict[str, Any] = field(default_factory=dict)
    """Settings of the extractor that change its output (vocabulary, limits)."""
    device_columns: tuple[str, ...] = ()
    """The trailing columns that depend on the hardware, see :mod:`tencost.features.device`; none of what is stored."""
    abi: int = FEATURE_ABI
    """FEATURE_ABI of the code that made the features."""

    def __post_init__(self) -> None:
        if self.kind not in FEATURE_KINDS.names():
            raise FeatureError(
                f"feature set {self.name}: expected a kind of {', '.join(FEATURE_KINDS.names())}, found {self.kind!r}. "
                "If another package adds that kind, install it"
            )

    def positions(self, names: Sequence[str]) -> IntArray | None:
        """Return where the columns of these names stand, int64; None unless the set has them all."""
        places = {name: position for position, name in enumerate(self.columns)}
        if not all(name in places for name in names):
            return None
        return np.asarray([places[name] for name in names], np.int64)

    @property
    def digest(self) -> str:
        """sha256 of everything above, hex: equal digests mean interchangeable arrays."""
        return hashlib.sha256(orjson.dumps(self.to_dict(), option=orjson.OPT_SORT_KEYS)).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            **asdict(self),
            "columns": list(self.columns),
            "device_columns": list(self.device_columns),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> FeatureSpec:
        """Read the JSON form.

        Raises:
            FeatureError: made by code with another feature ABI.
        """
        if values.get("abi") != FEATURE_ABI:
            raise FeatureError(
                f"feature set {values.get('name')!r} has feature ABI {values.get('abi')}, this tencost has "
                f"{FEATURE_ABI}. Make the features again (`dvc repro`), or use the tencost release that made it."
            )
        return cls(
            name=values["name"],
            kind=values["kind"],
            columns=tuple(values["columns"]),
            options=dict(values.get("options", {})),
            device_columns=tuple(values.get("device_columns", ())),
            abi=values["abi"],
        )

    def save(self, path: Path) -> None:
        """Write the JSON form."""
        path.write_bytes(orjson.dumps(self.to_dict(), option=orjson.OPT_INDENT_2))

    @classmethod
    def load(cls, path: Path) -> FeatureSpec:
        """Read what `save` wrote; raises FeatureError on another ABI."""
        return cls.from_dict(orjson.loads(path.read_bytes()))
