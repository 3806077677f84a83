"""Feature sets behind one call: what the pipeline and the tuner use to turn candidates into rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tencost.config import FeatureKind, FeaturesConfig
from tencost.errors import FeatureError
from tencost.features import ansor, per_store
from tencost.features.ansor import AnsorStepEncoder
from tencost.features.knob_rows import KNOB_COLUMNS
from tencost.features.ragged import FloatArray, Ragged
from tencost.features.spec import FeatureSpec
from tencost.features.tile_reader import TileReader
from tencost.features.tiles import TILE_COLUMNS
from tencost.features.trace import TraceEncoder, trace_values


def spec_for(config: FeaturesConfig) -> FeatureSpec:
    """Return the spec of a feature set as it is stored: without device columns."""
    kind = config.kind.value
    if config.kind in (FeatureKind.ansor_tiles, FeatureKind.autotvm_knobs):
        return FeatureSpec(name=config.name, kind=kind, columns=LOG_COLUMNS[kind])
    if config.kind not in (FeatureKind.trace, FeatureKind.ansor_steps):
        return FeatureSpec(name=config.name, kind=kind, columns=_KINDS[kind].columns)
    options = {
        "max_steps": config.max_steps,
        "vocabulary_buckets": config.vocabulary_buckets,
        "max_numbers": config.max_numbers,
    }
    encoder = TraceEncoder if config.kind is FeatureKind.trace else AnsorStepEncoder
    return FeatureSpec(
        name=config.name, kind=kind, columns=encoder(**options).columns, options=options
    )


LOG_COLUMNS: dict[str, tuple[str, ...]] = {
    "ansor_tiles": ansor.TILE_COLUMNS,
    "autotvm_knobs": KNOB_COLUMNS,
}
"""Columns of the sets that read programs of other tuners; nothing is extracted from a live MetaSchedule candidate."""


class Extractor(Protocol):
    """Turns candidates of one workload into rows."""

    spec: FeatureSpec

    def extract(self, context: Any, candidates: Sequence[Any]) -> Ragged:
        """Return the rows of the candidates; one that cannot be featurized has none and stops nothing.

        Args:
            context: tvm.s_tir.meta_schedule.TuneContext of the workload.
            candidates: MeasureCandidates of that workload.
        """
        ...


def make_extractor(spec: FeatureSpec, device: Mapping[str, float] | None = None) -> Extractor:
    """Make the extractor of a spec.

    Args:
        spec: what the rows must look like.
        device: values of `spec.device_columns`, appended to every row.

    Raises:
        FeatureError: this code makes other columns for that spec, or a device column has no value.
    """
    device = device or {}
    missing = [name for name in spec.device_columns if name not in device]
    if missing:
        raise FeatureError(
            f"feature set {spec.name} needs the device's {', '.join(missing)}, found none"
        )
    appended = np.asarray([device[name] for name in spec.device_columns], np.float32)
    if spec.kind not in _KINDS:
        raise FeatureError(
            f"expected a feature set of kind {', '.join(_KINDS)}, found {spec.kind!r}"
        )
    made = _KINDS[spec.kind](spec, appended)
    expected = (*made.columns, *spec.device_columns)
    if expected != spec.columns:
        raise FeatureError(
            f"feature set {spec.name} has {len(spec.columns)} columns, this tencost makes {len(expected)} others. "
            "Make the features again: dvc repro"
        )
    return made


class _Extractor(ABC):
    columns: tuple[str, ...]

    def __init__(self, spec: FeatureSpec, device: FloatArray) -> None:
        self.spec = spec
        self._device = device

    @abstractmethod
    def blocks(self, context: Any, candidates: Sequence[Any]) -> list[FloatArray | None]:
        """Return the rows of each candidate, None for one that cannot be featurized."""

    def extract(self, context: Any, candidates: Sequence[Any]) -> Ragged:
        empty = np.zeros((0, len(self.columns)), np.float32)
        found = [empty if block is None else block for block in self.blocks(context, candidates)]
        rows = Ragged.from_blocks(found, len(self.columns))
        if not len(self._device):
            return rows
        return rows.with_columns(np.tile(self._device, (len(rows), 1)))


class _PerStore(_Extractor):
    columns = per_store.COLUMNS

    def blocks(self, context: Any, candidates: Sequence[Any]) -> list[FloatArray | None]:
        return per_store.extract(context, candidates)


class _Trace(_Extractor):
    def __init__(self, spec: FeatureSpec, device: FloatArray) -> None:
        super().__init__(spec, device)
        self._encoder = TraceEncoder(**spec.options)
        self.columns = self._encoder.columns

    def blocks(self, context: Any, candidates: Sequence[Any]) -> list[FloatArray | None]:  # noqa: ARG002
        traces = (
            trace_values(candidate.sch.trace, remove_postproc=True) for candidate in candidates
        )
        return [self._encoder.encode(trace) for trace in traces]


class _Tiles(_Extractor):
    columns = TILE_COLUMNS

    def __init__(self, spec: FeatureSpec, device: FloatArray) -> None:
        super().__init__(spec, device)
        self.tiles = TileReader()

    def blocks(self, context: Any, candidates: Sequence[Any]) -> list[FloatArray | None]:  # noqa: ARG002
        return [self.tiles.row(candidate) for candidate in candidates]


class _PerStoreTiles(_Tiles):
    columns = (*per_store.COLUMNS, *TILE_COLUMNS)

    def blocks(self, context: Any, candidates: Sequence[Any]) -> list[FloatArray | None]:
        stores = per_store.extract(context, candidates)
        tiles = super().blocks(context, candidates)
        return [joined(one, other) for one, other in zip(stores, tiles, strict=True)]


_KINDS: dict[str, type[_Extractor]] = {
    "per_store": _PerStore,
    "trace": _Trace,
    "tiles": _Tiles,
    "per_store_tiles": _PerStoreTiles,
}


def joined(stores: FloatArray | None, tiles: FloatArray | None) -> FloatArray | None:
    """Append a program's tile row, [1, T], to each of its store rows, [stores, C]; None where either is missing."""
    if stores is None or tiles is None:
        return None
    return np.concatenate([stores, np.repeat(tiles, len(stores), axis=0)], axis=1)
