"""The floor: scores that know nothing.

A hash of the program's rows, so that they are the same alone or in a batch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import orjson

from tencost.config import ModelConfig
from tencost.errors import BundleError
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.models.programs.ranker import Family, LogMetric, RowRanker, Samples, Scores


@dataclass(kw_only=True)
class RandomConfig(ModelConfig):
    """Scores that know nothing: a hash of the program's features. The floor."""


class RandomRanker(RowRanker):
    """Uniform in [0, 1) per program and seed."""

    family: ClassVar[str] = "random"

    def __init__(self, config: RandomConfig, spec: FeatureSpec) -> None:
        del config, spec
        self._seed = 0

    def fit(self, train: Samples, valid: Samples, *, seed: int, log: LogMetric) -> None:
        del train, valid, log
        self._seed = seed

    def _score(self, features: Ragged) -> Scores:
        scores = np.zeros(len(features))
        key = self._seed.to_bytes(8, "little", signed=True)
        for index in range(len(features)):
            rows = np.ascontiguousarray(features[index])
            digest = hashlib.blake2b(rows.tobytes(), digest_size=8, key=key).digest()
            scores[index] = int.from_bytes(digest, "little") / 2.0**64
        return scores

    def save(self, folder: Path) -> None:
        (folder / "random.json").write_bytes(orjson.dumps({"seed": self._seed}))

    def load(self, folder: Path) -> None:
        path = folder / "random.json"
        try:
            seed = orjson.loads(path.read_bytes())["seed"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BundleError(f'{path}: expected {{"seed": number}}, found {error}') from error
        if not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
            raise BundleError(f"{path}: expected a seed of 64 bits, found {seed!r}")
        self._seed = int(seed)


FAMILY = Family(
    config=RandomConfig,
    ranker=RandomRanker,
    for_tests=RandomConfig(family="random"),
    learns=False,
)
