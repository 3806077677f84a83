"""A blend: families that err differently, averaged on one scale.

Trees and a network on the same rows disagree about different programs; on networks held out their average ranks better
than the best of them, and varies less between seeds. Each member's raw scores are divided by their standard deviation
over the training programs, a constant kept in the bundle, and averaged.

Files: `blend.json` (the divisors) and, for member k, every file of its family with the prefix ``m<k>-``.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import orjson

from tencost.config import ModelConfig, model_config
from tencost.errors import ConfigError
from tencost.features.rows.kind import kind_of
from tencost.features.rows.ragged import IntArray, Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.models.programs.ranker import (
    Family,
    LogMetric,
    Ranker,
    Samples,
    Scores,
    Tunable,
    load_part,
    make_ranker,
    read_divisors,
    save_part,
)


@dataclass(kw_only=True)
class BlendConfig(ModelConfig):
    """Several families, averaged on one scale."""

    members: Any = field(default_factory=dict)
    """Name -> settings of a family, composed from its file in conf/model/; one that reads nothing but `tiles`, or
    another one-row part of a joined feature set, sees that part alone. A bundle has them as a list."""

    def __post_init__(self) -> None:
        if not isinstance(self.members, dict | list) or len(self.members) < 2:
            raise ConfigError(
                f"model.members must name at least 2 families, found {self.members!r}"
            )
        members = self.members if isinstance(self.members, dict) else dict(enumerate(self.members))
        for name, member in members.items():
            model_config(member, f"model.members.{name}.")
        self.members = list(members.values())

    def member_configs(self) -> list[ModelConfig]:
        """Return the members' settings, checked."""
        return [model_config(member) for member in self.members]


class BlendRanker:
    """Members that are averaged; see the module's text."""

    family: ClassVar[str] = "blend"

    def __init__(self, config: BlendConfig, spec: FeatureSpec) -> None:
        self.members = [BlendMember(member, spec) for member in config.member_configs()]

    def fit(self, train: Samples, valid: Samples, *, seed: int, log: LogMetric) -> None:
        for index, member in enumerate(self.members):

            def log_member(name: str, value: float, step: int, index: int = index) -> None:
                log(f"{name}_member{index}", value, step)

            member.fit(train, valid, seed, log_member)

    def predict(self, features: Ragged) -> Scores:
        parts = [member.predict(features) / member.divisor for member in self.members]
        total: Scores = np.sum(parts, axis=0)
        return total / len(parts)

    def tuned(self, labels: Samples, *, rounds: int, seed: int) -> BlendRanker:
        """Return a copy whose trees went on learning from other samples; members that are no trees stay."""
        copied = copy.copy(self)
        copied.members = [member.tuned(labels, rounds=rounds, seed=seed) for member in self.members]
        return copied

    def revalued(
        self, labels: Samples, scores: Scores | None = None, scale: float = 1.0
    ) -> BlendRanker:
        scores = self.predict(labels.features) if scores is None else scores
        copied = copy.copy(self)
        copied.members = list(self.members)
        for index, member in enumerate(self.members):
            if isinstance(member.ranker, Tunable):
                own = copy.copy(member)
                own_scale = scale * member.divisor * len(self.members)
                own.ranker = member.ranker.revalued(member.seen(labels), scores, own_scale)
                copied.members[index] = own
                break
        return copied

    def save(self, folder: Path) -> None:
        for index, member in enumerate(self.members):
            save_part(member.ranker, folder, f"m{index}-")
        divisors = [member.divisor for member in self.members]
        (folder / "blend.json").write_bytes(orjson.dumps({"divisors": divisors}))

    def load(self, folder: Path) -> None:
        divisors = read_divisors(folder / "blend.json", len(self.members))
        for index, (member, divisor) in enumerate(zip(self.members, divisors, strict=True)):
            load_part(member.ranker, folder, f"m{index}-")
            member.divisor = divisor

    def importance(self) -> dict[str, float]:
        shares: dict[str, float] = {}
        shares_by_member = [member.ranker.importance() for member in self.members]
        importances = [importance for importance in shares_by_member if importance]
        for importance in importances:
            for name, share in importance.items():
                shares[name] = shares.get(name, 0.0) + share / len(importances)
        return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))


class BlendMember:
    """A family with its view of the features and its scale."""

    def __init__(self, config: ModelConfig, spec: FeatureSpec) -> None:
        part = part_spec(spec, config.reads)
        self._columns = None if part is None else spec.positions(part.columns)
        self.config = config
        self.spec = spec if part is None else part
        self.ranker: Ranker = make_ranker(config, self.spec)
        self.divisor = 1.0

    def fit(self, train: Samples, valid: Samples, seed: int, log: LogMetric) -> None:
        train, valid = self.seen(train), self.seen(valid)
        self.ranker.fit(train, valid, seed=seed, log=log)
        scores = self.ranker.predict(train.features)
        self.divisor = max(float(np.nanstd(scores)), 1e-12)

    def predict(self, features: Ragged) -> Scores:
        return self.ranker.predict(self._columns_of(features))

    def tuned(self, labels: Samples, *, rounds: int, seed: int) -> BlendMember:
        copied = copy.copy(self)
        if isinstance(self.ranker, Tunable):
            copied.ranker = self.ranker.tuned(self.seen(labels), rounds=rounds, seed=seed)
        return copied

    def seen(self, samples: Samples) -> Samples:
        return replace(samples, features=self._columns_of(samples.features))

    def _columns_of(self, features: Ragged) -> Ragged:
        return features if self._columns is None else part_rows(features, self._columns)


def part_spec(spec: FeatureSpec, reads: list[str]) -> FeatureSpec | None:
    """Return the spec of the one-row part of a joined kind that is all a member reads (with the device's columns).

    None where the member sees all columns: it reads other sets, too, or the set's kind has no such part.
    """
    part = kind_of(spec).parts.get(reads[0]) if len(reads) == 1 else None
    if part is None or not part.one_row:
        return None
    columns = (*part.columns(spec.options), *spec.device_columns)
    return replace(spec, kind=reads[0], columns=columns)


def part_rows(features: Ragged, columns: IntArray) -> Ragged:
    """Keep one row a program, of columns that all its rows share; a program without rows has none."""
    used = features.lengths > 0
    rows = features.values[features.offsets[:-1][used]][:, columns]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(used)])
    return Ragged(np.ascontiguousarray(rows), offsets)


FAMILY = Family(
    config=BlendConfig,
    ranker=BlendRanker,
    for_tests=BlendConfig(
        family="blend",
        members=[
            {"family": "xgb", "num_rounds": 40},
            {"family": "mlp", "hidden": 16, "epochs": 15, "beside": "summary"},
        ],
    ),
)
