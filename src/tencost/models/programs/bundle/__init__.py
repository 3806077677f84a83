"""Bundles of models that score programs; the format is that of :mod:`tencost.models.manifest`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tencost.config import ModelConfig, Pool
from tencost.config.parts import FAMILIES
from tencost.errors import BundleError, ConfigError, FeatureError
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FEATURE_ABI, FeatureSpec
from tencost.models import manifest
from tencost.models.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    PROGRAMS,
    UNFIT_PARTS,
    BundleFacts,
    check_files,
    check_settings,
    content_digest,
    plain_config,
    read_kind,
    save_bundle,
    unfit,
    version_in_range,
)
from tencost.models.programs.bundle.calibration import Calibration
from tencost.models.programs.bundle.checks import check_fields, try_out
from tencost.models.programs.ranker import Ranker, Scores, make_ranker

__all__ = [
    "FORMAT_VERSION", "MANIFEST", "Bundle", "BundleInfo", "content_digest", "load_bundle", "model_settings",
    "plain_config", "read_info", "save_bundle", "training_digest", "version_in_range",
]  # fmt: skip
_LEFT_OUT = ("created", "git_commit", "git_dirty")
"""Fields of bundles made before their run knew them."""


@dataclass(frozen=True, kw_only=True)
class BundleInfo(BundleFacts):
    """What bundle.json says of a model that scores programs; its family is a name of FAMILIES."""

    feature_spec: FeatureSpec
    """What the columns mean that the model reads, device columns included."""
    hardware: str
    """Name of the hardware that the model is for."""
    target_kind: str
    """Kind of TVM target (llvm, cuda) that its programs are compiled for."""
    label: str
    """Definition of the label that it was trained on."""
    calibration: Calibration
    """Raw score -> score in (0, 1]."""
    tvm_range: tuple[str, str]
    """TVM versions that it may be used with: from the first, up to but without the second."""
    device: dict[str, float] = field(default_factory=dict)
    """Values of the spec's device columns on that hardware; empty where it has none."""
    refit: dict[str, Any] = field(default_factory=dict)
    """Of a model that was fitted on all parts of the split (:mod:`tencost.train.fit.refit`): `twin`, the content digest
    of the bundle that was judged; `parts`, `records` and `networks`, learnt from. No other bundle.json has it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        values = {**asdict(self), "feature_spec": self.feature_spec.to_dict()}
        if not self.refit:
            del values["refit"]
        return values

    def deciding(self, files: Mapping[str, str]) -> dict[str, Any]:
        names = (
            "dataset_hash", "device", "family", "hardware", "model_config", "split_hash", "target_kind", "tvm_range",
        )  # fmt: skip
        return {
            "calibration": [self.calibration.center, self.calibration.scale],
            "feature_spec": self.feature_spec.digest,
            "files": files,
            **{name: getattr(self, name) for name in names},
        }


@dataclass(frozen=True)
class Bundle:
    """A loaded model that scores programs."""

    folder: Path
    """Where it was loaded from."""
    info: BundleInfo
    """What its bundle.json says."""
    ranker: Ranker
    """The model itself; its raw scores have no unit."""

    def scores(self, features: Ragged) -> Scores:
        """Score programs: float64 [N] in (0, 1], higher is faster; without rows, LOWEST_SCORE.

        Args:
            features: the columns of `info.feature_spec`, device columns included.

        Raises:
            BundleError: another number of columns.
        """
        expected = len(self.info.feature_spec.columns)
        if features.num_columns != expected:
            raise BundleError(
                f"bundle {self.folder}: expected {expected} feature columns "
                f"({self.info.feature_spec.name}), "
                f"found {features.num_columns}. Featurize with the bundle's own feature_spec."
            )
        return self.info.calibration(self.ranker.predict(features))


def training_digest(folder: Path) -> str:
    """Return the digest of all bundles of a training, see :func:`tencost.models.manifest.digest_training`."""
    return manifest.digest_training(folder, read_info)


def read_info(folder: Path) -> BundleInfo:
    """Read and check bundle.json alone.

    Raises:
        BundleError: missing, not JSON, unknown format version, other feature ABI, fields missing.
    """
    values = read_kind(folder, PROGRAMS, {"format_version": FORMAT_VERSION})
    info_fields = {name: value for name, value in values.items() if name not in _LEFT_OUT}
    try:
        check_fields(info_fields)
        spec = FeatureSpec.from_dict(values["feature_spec"])
        return BundleInfo(
            **{
                **info_fields,
                "feature_spec": spec,
                "calibration": Calibration(**values["calibration"]),
                "tvm_range": tuple(values["tvm_range"]),
            }
        )
    except FeatureError as error:
        abi = values["feature_spec"].get("abi")
        if abi == FEATURE_ABI:
            raise BundleError(f"bundle {folder}: {error}") from error
        raise BundleError(
            f"bundle {folder}: feature ABI {abi} does not fit, this tencost has feature ABI "
            f"{FEATURE_ABI}. "
            "Use a model version with that MAJOR number, or train again."
        ) from error
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise BundleError(
            f"bundle {folder}: {MANIFEST} lacks or misspells a field: {error}"
        ) from error


def load_bundle(
    folder: Path, *, target_kind: str | None = None, tvm_version: str | None = None
) -> Bundle:
    """Check a bundle completely, load it and let it score a few made-up programs. Nothing in it can execute code.

    The hashes tell damage, not malice: whoever changes weights can write their hash again. So every part is also
    checked for itself, by what its family expects of it.

    Args:
        folder: the bundle's folder.
        target_kind: kind of TVM target that is to be tuned; None does not ask.
        tvm_version: version of the TVM that it is to serve; None does not ask.

    Raises:
        BundleError: one of its refusals, naming what does not fit.
    """
    folder = Path(folder)
    info = read_info(folder)
    check_files(folder, info.files)
    if target_kind is not None and target_kind != info.target_kind:
        raise BundleError(
            f"bundle {folder}: it scores programs for target kind {info.target_kind!r}, found "
            "target kind "
            f"{target_kind!r}. Choose a model that was trained for that kind."
        )
    if tvm_version is not None and not version_in_range(tvm_version, info.tvm_range):
        low, high = info.tvm_range
        raise BundleError(
            f"bundle {folder}: expected TVM >= {low} and < {high}, found {tvm_version}: features "
            "may differ. "
            "Install a TVM in that range, or train again with this one."
        )
    try:
        ranker = make_ranker(model_settings(folder, info), info.feature_spec)
        ranker.load(folder)
        try_out(folder, info.feature_spec, info.calibration, ranker)
    except BundleError:
        raise
    except UNFIT_PARTS as error:
        raise unfit(folder, error) from error
    return Bundle(folder, info, ranker)


def model_settings(folder: Path, info: BundleInfo) -> ModelConfig:
    """Return the settings of a bundle's family, checked.

    Raises:
        BundleError: no such family, or settings that this tencost does not have.
    """
    if info.family not in FAMILIES.names():
        raise BundleError(
            f"bundle {folder}: expected a family of {', '.join(FAMILIES.names())}, found "
            f"{info.family!r}"
        )
    values = dict(info.model_config)
    try:
        schema = FAMILIES.load(info.family).config
        values["pool"] = Pool(values.get("pool", Pool.own.value))
        check_settings(schema, values)
        config: ModelConfig = schema(**values)
    except (TypeError, ValueError, ConfigError) as error:
        raise BundleError(
            f"bundle {folder}: model_config does not fit this tencost: {error}. Use the release "
            "that wrote it."
        ) from error
    return config
