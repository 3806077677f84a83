"""Feature sets behind one call: their specs, and what the tuner uses to turn candidates into rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tencost.config import FeaturesConfig
from tencost.config.parts import FEATURE_KINDS
from tencost.errors import FeatureError
from tencost.features.device import with_device
from tencost.features.rows.kind import FeatureKind, Live, kind_of
from tencost.features.rows.ragged import FloatArray, Ragged
from tencost.features.rows.spec import FeatureSpec


def spec_for(config: FeaturesConfig) -> FeatureSpec:
    """Return the spec of a feature set as it is stored: without device columns."""
    kind: FeatureKind = FEATURE_KINDS.load(config.kind, "features.kind")
    options = {name: getattr(config, name) for name in kind.options}
    return FeatureSpec(
        name=config.name, kind=config.kind, columns=kind.columns(options), options=options
    )


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
        device: what `spec.device_columns` are made of, see :func:`tencost.features.device.attributes`.

    Raises:
        FeatureError: this code makes other columns for that spec, or a device column has no value, or candidates of
            MetaSchedule have no such features.
    """
    kind = kind_of(spec)
    if kind.live is None:
        raise FeatureError(
            f"expected a feature set of MetaSchedule's candidates, found {spec.name} of kind {spec.kind}, which reads "
            f"stored programs of format {' or '.join(kind.program_formats)} only"
        )
    expected = (*kind.columns(spec.options), *spec.device_columns)
    if expected != spec.columns:
        raise FeatureError(
            f"feature set {spec.name} has {len(spec.columns)} columns, this tencost makes {len(expected)} others. "
            "Make the features again: dvc repro"
        )
    extractor = _Extractor(spec, kind.live(spec), device or {})
    extractor.appended([])  # refuses a device that lacks an attribute now, not in a search
    return extractor


class _Extractor:
    """The rows of a kind, with the columns that depend on the device appended."""

    def __init__(self, spec: FeatureSpec, live: Live, device: Mapping[str, float]) -> None:
        self.spec = spec
        self._live = live
        self._device = device

    def extract(self, context: Any, candidates: Sequence[Any]) -> Ragged:
        return self.appended(self._live(context, candidates))

    def appended(self, blocks: Sequence[FloatArray | None]) -> Ragged:
        """Return the rows of each candidate, float32 [rows, the kind's columns] or None, with the device's columns."""
        columns = len(self.spec.columns) - len(self.spec.device_columns)
        empty = np.zeros((0, columns), np.float32)
        rows = Ragged.from_blocks([empty if block is None else block for block in blocks], columns)
        return with_device(rows, self.spec, self._device)
