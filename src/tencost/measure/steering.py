"""What guides the drawing of programs: a cost model for the evolved share, fast programs to make others near them.

The model is a registered one, or one fitted quickly to what was measured: the `xgb` family on the `tiles` features of
the collection's own records, a few seconds for thousands of records. It needs no lowering, so that scoring a candidate
costs well under a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from rich.console import Console
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tencost.config import Config, FeaturesConfig, HardwareConfig
from tencost.features.device import attributes
from tencost.features.extractor import Extractor, make_extractor, spec_for
from tencost.features.kinds.tiles import tile_row
from tencost.features.rows.ragged import Ragged
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
_BLIND = "mutation alone"


@dataclass(frozen=True)
class Steering:
    """What guides the drawing.

    Attributes:
        model: cost model for ProgramSpace; None: the search is blind.
        name: of the model, for origin.json.
        refitter: fast programs of this and other workloads; None: there are none.
    """

    model: Any = None
    name: str = _BLIND
    refitter: Refitter | None = None


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
    cfg: Config, hardware: HardwareConfig, collection: Collection, root: Path, console: Console
) -> Steering:
    """Choose the model (the registered one that cfg names, else one fitted to the collection) and the fast programs.

    Either is None where its share of the programs is 0, and where there is none.

    Raises:
        RegistryError: the registered model cannot be found.
        BundleError: it, or its programs, are for another kind of target, or cannot be read.
    """
    settings, guide = cfg.measure, Steering()
    if settings.evolved_share > 0:
        guide = (
            _fitted(hardware.name, collection, collection.tasks(settings.min_mflop), console)
            if cfg.model_uri is None
            else _registered(cfg.model_uri, hardware, root)
        )
    if settings.near_share > 0:
        guide = replace(guide, refitter=_fast_programs(cfg, hardware, root, console))
    return guide


def _registered(uri: str, hardware: HardwareConfig, root: Path) -> Steering:
    from tencost.register.pull import pull

    bundle = load_bundle(
        pull(uri, root=root),
        target_kind=hardware.target["kind"],
        tvm_version=str(tvm.__version__),
    )
    spec = bundle.info.feature_spec
    device = attributes(hardware) if spec.device_columns else {}
    name = uri if ":/" in uri else Path(uri).name  # a folder's place says nothing elsewhere
    return Steering(ScoringModel(make_extractor(spec, device), bundle.scores), name)


def _fast_programs(
    cfg: Config, hardware: HardwareConfig, root: Path, console: Console
) -> Refitter | None:
    """Return the fast programs of the live store and of the registered model that cfg names."""
    from tencost.programs.starting_points import shipped_starts
    from tencost.register.pull import pull
    from tencost.register.start_records import live_starts

    book = live_starts(replace(cfg, hardware=hardware), cfg.paths.live_store(root))
    if cfg.model_uri is not None:
        shipped = shipped_starts(pull(cfg.model_uri, root=root))
        if shipped is not None:
            book = book.joined(shipped)
    if not len(book):
        return None
    console.print(f"starting points: {len(book)} programs of {book.num_workloads} workloads")
    return Refitter(book)


def _fitted(
    hardware: str, collection: Collection, tasks: Sequence[CollectedTask], console: Console
) -> Steering:
    """Fit to the records of the hardware, or of the one with the most records if it has none."""
    spec = spec_for(FeaturesConfig(name="tiles", kind="tiles"))
    for name in sorted(collection.hardware(), key=lambda name: (name != hardware, name)):
        samples = _samples(name, collection, tasks, len(spec.columns))
        if samples is None or len(samples) < MIN_RECORDS:
            continue
        console.print(f"steered by a model fitted to {len(samples)} records of this collection")
        return Steering(_fit(samples, spec), f"xgb on tiles of {len(samples)} records")
    console.print(
        f"No model steers the search yet: fewer than {MIN_RECORDS} records in {collection.path}. The evolved share "
        "is mutated blindly; measure, and ask for more programs, or name a model: model_uri=...",
        style="yellow",
    )
    return Steering()


def _fit(samples: Samples, spec: FeatureSpec) -> ScoringModel:
    config = XgbConfig(family="xgb", reads=["tiles"], num_rounds=150, max_depth=6)
    ranker = make_ranker(config, spec)
    ranker.fit(samples, samples, seed=0, log=lambda *_: None)
    calibration = fit_calibration(ranker.predict(samples.features), samples.label)
    return ScoringModel(make_extractor(spec), lambda rows: calibration(ranker.predict(rows)))


def _samples(
    hardware: str, collection: Collection, tasks: Sequence[CollectedTask], columns: int
) -> Samples | None:
    measured = [
        (row, timing_from_log(program.run_secs).run_secs, number)
        for number, task in enumerate(tasks)
        for program in collection.measured(hardware, task)
        if (row := tile_row(program.trace)) is not None
    ]
    if not measured:
        return None
    blocks, times, groups = zip(*measured, strict=True)
    seconds = np.array([float(np.median(runs)) if runs else np.nan for runs in times])
    label, usable = speed_labels(seconds, np.array(groups, np.int64))
    (indices,) = np.nonzero(usable)
    _, group = np.unique(np.array(groups)[indices], return_inverse=True)
    rows = Ragged.from_blocks(list(blocks), columns).take(indices)
    names = indices.astype(np.str_)
    return Samples(rows, label[indices], group.astype(np.int64), seconds[indices], names)
