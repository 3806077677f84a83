"""Scores of trained bundles for the records of a truth, and how long they take."""

from __future__ import annotations

import timeit
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tencost.errors import TrainError
from tencost.evaluate.metrics import Floats
from tencost.evaluate.truth import Truth
from tencost.features.rows.ragged import Ragged
from tencost.models.manifest import MANIFEST
from tencost.models.programs.bundle import Bundle, BundleInfo, load_bundle
from tencost.train.data import Data

_TIMED_PROGRAMS = 1000
_TIMED_REPEATS = 3


@dataclass(frozen=True)
class TrainedFamily:
    """A family trained on a feature set with several seeds.

    Attributes:
        name: its folder's name, <model>-<features>.
        folder: where its bundles lie, one a seed.
        bundles: loaded and verified, by seed.
    """

    name: str
    folder: Path
    bundles: tuple[Bundle, ...]

    @property
    def info(self) -> BundleInfo:
        """What its first bundle says; the seeds differ in nothing that is asked for here."""
        return self.bundles[0].info


@dataclass(frozen=True)
class Prediction:
    """What one bundle says about the records of a truth.

    Attributes:
        raw: float64 [N], higher is predicted faster, no unit; NaN for a program without rows.
        score: float64 [N], calibrated, in (0, 1].
    """

    raw: Floats
    score: Floats


def program_rows(data: Data, info: BundleInfo, truth: Truth) -> Ragged:
    """Return the truth's programs as a bundle reads them, device columns included.

    Raises:
        FeatureError: the features at hand are not those that the bundle was trained on.
    """
    spec, programs = info.feature_spec, truth.program_id.tolist()
    model = f"{info.family} model"
    if spec.device_columns and not info.device:  # a model of several hardware
        return data.rows(spec, programs, data.devices(truth.record_id.tolist()), model)
    return data.rows(spec, programs, info.device, model)


def find_models(folder: Path) -> list[Path]:
    """Return the folders of trained models below data/models/<dataset>/<hardware>, sorted.

    Raises:
        TrainError: there is none.
    """
    folders = sorted({path.parents[1] for path in folder.glob(f"*/seed*/{MANIFEST}")})
    if not folders:
        raise TrainError(
            f"expected trained models in {folder}, found none. Train one: tencost train"
        )
    return folders


def load_seeds(folder: Path) -> TrainedFamily:
    """Load all seeds of a model.

    Raises:
        TrainError: no bundle there.
        BundleError: one is damaged.
    """
    bundles = [load_bundle(path.parent) for path in folder.glob(f"seed*/{MANIFEST}")]
    if not bundles:
        raise TrainError(f"expected bundles in {folder}/seed*, found none. Train: tencost train")
    bundles.sort(key=lambda bundle: bundle.info.seed)
    return TrainedFamily(folder.name, folder, tuple(bundles))


def predict(bundle: Bundle, rows: Ragged) -> Prediction:
    """Score programs."""
    raw = bundle.ranker.predict(rows).astype(np.float64)
    return Prediction(raw, bundle.info.calibration(raw))


def predict_ms(bundle: Bundle, rows: Ragged) -> float:
    """Return the milliseconds that 1,000 programs take whose features are at hand: the best of three runs."""
    sample = rows.take(np.resize(np.arange(len(rows)), _TIMED_PROGRAMS))
    seconds = min(timeit.repeat(lambda: bundle.scores(sample), number=1, repeat=_TIMED_REPEATS))
    return 1e3 * seconds * 1000 / _TIMED_PROGRAMS
