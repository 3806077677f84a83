"""What is learnt while tuning: a small correction on top of the registered model's score.

    score = squash(base + w * residual),   w = n / (n + 256),   n = programs measured that ran

The residual is a boosted-tree regression (XGBoost, one thread, well under a second) from aggregated feature rows and
the base score to ``label - base``, both centred within their group, where label = fastest latency of the group so
far / latency, 0 for a failed program. TenSet calls this transfer mode ``plus_mix_task``. A group whose programs all
failed has no fastest program and teaches nothing (stock MetaSchedule labels such programs perfect).

Stored state, one .npz file read without pickle: version (int), features [N, F] float32, base [N] float64,
latency_s [N] float64 (NaN = failed), group [N] int64, groups (JSON list of names, UTF-8 bytes), booster (XGBoost
UBJSON bytes, empty before the first fit), guard (JSON bytes of :meth:`tencost.tune.guard.Guard.state`; absent where
tencost 0.2.0 wrote the file: then the guard begins anew).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import orjson
import xgboost as xgb

from tencost.errors import TuneError
from tencost.features.rows.ragged import FloatArray, Ragged
from tencost.models.trees.booster import parse_booster
from tencost.tune.guard import Guard

Doubles = npt.NDArray[np.float64]

STATE_VERSION = 1
HALF_TRUST = 256
"""So many measured programs give the residual half of its weight."""
MIN_PROGRAMS = 8
"""Fewer measured programs than this teach nothing."""
MAX_PROGRAMS = 2048
"""The most recent programs that are learnt from, which bounds the time of a fit."""
_KNEE = 0.02
_MEAN_LABEL = 0.4
"""Where scores without a base are centred: about the mean label of a group."""
_UNREADABLE = (
    OSError, EOFError, KeyError, ValueError, TypeError, BadZipFile, xgb.core.XGBoostError,
)  # fmt: skip
_PARAMETERS = {
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "max_bin": 32,
    "max_depth": 4,
    "eta": 0.2,
    "min_child_weight": 1.0,
    "reg_lambda": 5.0,
    "colsample_bytree": 0.4,
    "subsample": 1.0,
    "nthread": 1,
    "seed": 0,
    "base_score": 0.0,
    "verbosity": 0,
}


class Residual:
    """Measured programs and the correction learnt from them."""

    def __init__(self) -> None:
        self._features = np.zeros((0, 0), np.float32)
        self._base = np.zeros(0)
        self._latency = np.zeros(0)
        self._group = np.zeros(0, np.int64)
        self._groups: dict[str, int] = {}
        self._booster: xgb.Booster | None = None
        self._num_ran = 0

    def __len__(self) -> int:
        return len(self._base)

    @property
    def trained(self) -> bool:
        """Whether a correction has been learnt."""
        return self._booster is not None

    @property
    def weight(self) -> float:
        """The w above: 0 before anything is learnt, towards 1 with many measurements."""
        return self._num_ran / (self._num_ran + HALF_TRUST) if self.trained else 0.0

    def add(self, group: str, features: FloatArray, base: Doubles, latency_s: Doubles) -> None:
        """Keep measured programs of one workload.

        Args:
            group: the workload (and target) that the programs belong to.
            features: float32 [N, F], from :func:`aggregate`.
            base: scores of the registered model, float64 [N].
            latency_s: median seconds, float64 [N]; NaN for a program that failed.
        """
        index = self._groups.setdefault(group, len(self._groups))
        before = self._features if len(self) else features[:0]
        self._features = np.concatenate([before, features])
        self._base = np.concatenate([self._base, base])
        self._latency = np.concatenate([self._latency, latency_s])
        self._group = np.concatenate([self._group, np.full(len(base), index, np.int64)])

    def fit(self) -> bool:
        """Learn from the latest programs; returns False where they are too few."""
        features, base = self._features[-MAX_PROGRAMS:], self._base[-MAX_PROGRAMS:]
        latency, group = self._latency[-MAX_PROGRAMS:], self._group[-MAX_PROGRAMS:]
        target, usable = np.zeros(len(base)), np.zeros(len(base), bool)
        for index in np.unique(group):
            members = group == index
            ran = members & np.isfinite(latency)
            if not ran.any():
                continue
            times = latency[members]
            label = np.nan_to_num(np.where(np.isfinite(times), latency[ran].min() / times, 0.0))
            target[members] = (label - label.mean()) - (base[members] - base[members].mean())
            usable |= members
        if usable.sum() < MIN_PROGRAMS:
            return False
        matrix = xgb.DMatrix(_with_base(features, base)[usable], label=target[usable], nthread=1)
        self._booster = xgb.train(_PARAMETERS, matrix, num_boost_round=60)
        self._num_ran = int(np.isfinite(latency).sum())
        return True

    def apply(self, features: FloatArray, base: Doubles) -> Doubles:
        """Return corrected scores in (0, 1], float64 [N]; the base scores themselves before the first fit."""
        if self._booster is None or len(base) == 0:
            return base
        return squash(base + self.weight * np.clip(self._predict(features, base), -1.0, 1.0))

    def alone(self, features: FloatArray) -> Doubles:
        """Return the scores of what was learnt, without a base, in (0, 1), float64 [N].

        For programs kept with a base of zeros, so that the fit is to the labels themselves: boosted trees that know
        only this run, as stock MetaSchedule's.

        Raises:
            AssertionError: nothing was learnt yet.
        """
        return squash(_MEAN_LABEL + self._predict(features, np.zeros(len(features))))

    def _predict(self, features: FloatArray, base: Doubles) -> Doubles:
        assert self._booster is not None
        matrix = xgb.DMatrix(_with_base(features, base), nthread=1)
        correction: Doubles = self._booster.predict(matrix).astype(np.float64)
        return correction

    def without_base(self) -> Residual:
        """Return the same programs with a base of zeros, and what is learnt from them then."""
        other = Residual()
        other._groups = dict(self._groups)
        other._features, other._latency = self._features, self._latency
        other._group, other._base = self._group, np.zeros(len(self))
        other.fit()
        return other

    def save(self, path: Path, guard: Guard | None = None) -> None:
        """Write the state to one file; that of the guard beside it."""
        booster = bytes(self._booster.save_raw("ubj")) if self._booster else b""
        beside: dict[str, Any] = {} if guard is None else {"guard": _json_bytes(guard.state())}
        with path.open("wb") as file:
            np.savez(
                file,
                version=np.int64(STATE_VERSION),
                features=self._features,
                base=self._base,
                latency_s=self._latency,
                group=self._group,
                groups=_json_bytes(list(self._groups)),
                booster=np.frombuffer(booster, np.uint8),
                **beside,
            )

    @classmethod
    def load(cls, path: Path) -> tuple[Residual, Guard | None]:
        """Read what `save` wrote, and the guard's state; None where the file has none.

        Raises:
            TuneError: missing, damaged, or written by another version.
            BundleError: the installed XGBoost does not fit the trees.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as state:
                version = int(state["version"])
                if version != STATE_VERSION:
                    raise TuneError(
                        f"{path}: expected cost model state of version {STATE_VERSION}, found {version}. "
                        "Delete the file; it is learnt again from the tuning database."
                    )
                loaded = cls()
                names = orjson.loads(state["groups"].tobytes())
                loaded._groups = {name: index for index, name in enumerate(names)}
                loaded._features, loaded._base = state["features"], state["base"]
                loaded._latency, loaded._group = state["latency_s"], state["group"]
                if state["booster"].size:
                    loaded._booster = parse_booster(state["booster"].tobytes())
                    recent = loaded._latency[-MAX_PROGRAMS:]
                    loaded._num_ran = int(np.isfinite(recent).sum())
                guard = None
                if "guard" in state:
                    guard = Guard.of(orjson.loads(state["guard"].tobytes()))
                return loaded, guard
        except _UNREADABLE as error:
            raise TuneError(
                f"{path}: expected the state of a tencost cost model (.npz), found something else: {error}. "
                "Delete the file; it is learnt again from the tuning database."
            ) from error


def aggregate(features: Ragged) -> FloatArray:
    """Sum and maximum of each program's rows and their number: float32 [N, 2C + 1]."""
    largest = np.zeros((len(features), features.num_columns), np.float32)
    nonempty = features.lengths > 0
    if nonempty.any():
        starts = features.offsets[:-1][nonempty]
        largest[nonempty] = np.maximum.reduceat(features.values, starts, axis=0)
    count = features.lengths.astype(np.float32)[:, None]
    return np.concatenate([features.segment_sum(), largest, count], axis=1)


def squash(values: Doubles) -> Doubles:
    """Map any number into (0, 1), order kept; the identity between 0.02 and 0.98."""
    low = _KNEE * np.exp(np.minimum(values - _KNEE, 0.0) / _KNEE)
    high = 1.0 - _KNEE * np.exp(np.minimum(1.0 - _KNEE - values, 0.0) / _KNEE)
    return np.where(values < _KNEE, low, np.where(values > 1.0 - _KNEE, high, values))


def _with_base(features: FloatArray, base: Doubles) -> FloatArray:
    return np.concatenate([features, base.astype(np.float32)[:, None]], axis=1)


def _json_bytes(value: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(orjson.dumps(value), np.uint8)
