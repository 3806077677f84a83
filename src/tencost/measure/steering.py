"""What is known of good programs: the model that steers the evolved share, and fast programs to make others near them.

The model is a registered one, or one fitted quickly to what was measured.
The quick one is the `xgb` family on the `tiles` features of the collection's own records, a few seconds for thousands
of records; it needs no lowering, so that scoring a candidate costs well under a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tencost.config import Config, FeaturesConfig, HardwareConfig
from tencost.features.device import attributes
from tencost.features.extractor import Extractor, make_extractor, spec_for
from tencost.features.kinds.tiles import tile_row
from tencost.features.rows.ragged import FloatArray, Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.measure.collection import CollectedTask, Collection
from tencost.models.programs.bundle import load_bundle
from tencost.models.programs.bundle.calibration import fit_calibration
from tencost.models.programs.families.xgb import XgbConfig
from tencost.models.programs.ranker import Samples, Scores, make_ranker
from tencost.models.programs.ranker.labels import speed_labels
from tencost.programs.codegen.refit import Refitter
from tencost.store.status import timing_from_log

MIN_RECORDS = 200
"""Fewer measured programs than this teach too little to steer a search."""


@dataclass(frozen=True)
class Steering:
    """A cost model for ProgramSpace, or None, and its name for origin.json."""

    model: Any
    name: str


@derived_object
class ScoringModel(ms.cost_model.PyCostModel):
    """Scores candidates with a fixed model; learns nothing."""

    def __init__(self, extractor: Extractor, score: Any) -> None:
        super().__init__()
        self._extractor = extractor
        self._score = score

    def predict(self, context: Any, candidates: Sequence[Any]) -> Scores:
        """Return scores, float64 [N] in (0, 1], higher is faster."""
        scores: Scores = self._score(self._extractor.extract(context, candidates))
        return scores

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None: ...

    def load(self, path: str) -> None: ...

    def save(self, path: str) -> None: ...


def steering(
    uri: str | None,
    hardware: HardwareConfig,
    collection: Collection,
    tasks: Sequence[CollectedTask],
    root: Path,
    console: Console,
) -> Steering:
    """Choose the model: the registered one that is asked for, else one fitted to the collection, else none.

    Raises:
        RegistryError: the registered model cannot be found.
        BundleError: it does not fit.
    """
    if uri is not None:
        from tencost.register.pull import pull

        bundle = load_bundle(pull(uri, root=root), target_kind=hardware.target["kind"])
        spec = bundle.info.feature_spec
        device = attributes(hardware) if spec.device_columns else {}
        name = uri if ":/" in uri else Path(uri).name  # a folder's place says nothing elsewhere
        return Steering(ScoringModel(make_extractor(spec, device), bundle.scores), name)
    fitted = _quick_fit(hardware.name, collection, tasks)
    if fitted is None:
        console.print(
            f"No model steers the search yet: fewer than {MIN_RECORDS} records in {collection.path}. The evolved share "
            "is mutated blindly; measure, and ask for more programs, or name a model: model_uri=...",
            style="yellow",
        )
        return Steering(None, "mutation alone")
    model, count = fitted
    console.print(f"steered by a model fitted to {count} records of this collection")
    return Steering(model, f"xgb on tiles of {count} records")


def known_starts(
    cfg: Config, hardware: HardwareConfig, root: Path, console: Console
) -> Refitter | None:
    """Return the fast programs that the live store, and the registered model that is asked for, know; None: neither.

    Raises:
        RegistryError: the registered model cannot be found.
        BundleError: its programs are for another kind of target, or cannot be read.
    """
    from tencost.programs.starting_points import shipped_starts
    from tencost.register.pull import pull
    from tencost.register.start_records import live_starts

    book = live_starts(replace(cfg, hardware=hardware), cfg.paths.live_store(root))
    if cfg.model_uri is not None:
        shipped = shipped_starts(pull(cfg.model_uri, root=root))
        if shipped is not None:
            book = book.joined(shipped)
    if len(book):
        console.print(f"starting points: {len(book)} programs of {book.num_workloads} workloads")
    return Refitter(book) if len(book) else None


def _quick_fit(
    hardware: str, collection: Collection, tasks: Sequence[CollectedTask]
) -> tuple[Any, int] | None:
    """Fit to the records of the hardware, or of the one with the most records if it has none."""
    spec = spec_for(FeaturesConfig(name="tiles", kind="tiles"))
    for name in sorted(collection.hardware(), key=lambda name: (name != hardware, name)):
        samples = _samples(name, collection, tasks, len(spec.columns))
        if samples is not None and len(samples) >= MIN_RECORDS:
            return _fit(samples, spec), len(samples)
    return None


def _fit(samples: Samples, spec: FeatureSpec) -> ScoringModel:
    config = XgbConfig(family="xgb", reads=["tiles"], num_rounds=150, max_depth=6)
    ranker = make_ranker(config, spec)
    ranker.fit(samples, samples, seed=0, log=lambda *_: None)
    calibration = fit_calibration(ranker.predict(samples.features), samples.label)
    return ScoringModel(make_extractor(spec), lambda rows: calibration(ranker.predict(rows)))


def _samples(
    hardware: str, collection: Collection, tasks: Sequence[CollectedTask], columns: int
) -> Samples | None:
    blocks: list[FloatArray] = []
    latency: list[float] = []
    group: list[int] = []
    for number, task in enumerate(tasks):
        for program in collection.measured(hardware, task):
            row = tile_row(program.trace)
            if row is None:
                continue
            times = timing_from_log(program.run_secs).run_secs
            blocks.append(row)
            latency.append(float(np.median(times)) if times else float("nan"))
            group.append(number)
    if not blocks:
        return None
    seconds, ids = np.asarray(latency), np.asarray(group, np.int64)
    label, keep = speed_labels(seconds, ids)
    kept = np.flatnonzero(keep)
    _, dense = np.unique(ids[kept], return_inverse=True)
    rows = Ragged.from_blocks(blocks, columns).take(kept)
    names = np.asarray([str(index) for index in kept], dtype=np.str_)
    return Samples(rows, label[kept], dense.astype(np.int64), seconds[kept], names)
