"""The bundle: a model's weights, everything needed to use them, and nothing that can run code.

Format, version 1: a flat folder.

    bundle.json      UTF-8 JSON object, the fields of BundleInfo; `files` maps every other file's
                     name to its sha256
    <weights>        .ubj (XGBoost UBJSON), .safetensors, .onnx or .json, whatever the family's
                     `save` writes

When, where and from which commit it was made is not in it but in the MLflow run of its training, which is found by the
digest of its bundles: the same training writes the same bytes.

What may not be relied on: the names of the weights files, the order of keys. A folder with a file
that bundle.json does not list is refused, so is one that lacks a listed file. Loading and scoring
need neither torch, MLflow nor polars.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import orjson

from tencost.config import ModelConfig, Pool
from tencost.config.parts import FAMILIES
from tencost.errors import BundleError, ConfigError, FeatureError, TencostError
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FEATURE_ABI, FeatureSpec
from tencost.models.manifest import (
    MANIFEST,
    PROGRAMS,
    check_files,
    hash_weights,
    read_manifest,
    write_manifest,
)
from tencost.models.programs.bundle.calibration import Calibration
from tencost.models.programs.bundle.checks import check_settings, check_types, try_out
from tencost.models.programs.ranker import Ranker, Scores, make_ranker
from tencost.writing import whole_folder

FORMAT_VERSION = 1
_LEFT_OUT = ("created", "git_commit", "git_dirty")
"""Fields of bundles made before their run knew them."""


@dataclass(frozen=True, kw_only=True)
class BundleInfo:
    """What bundle.json says."""

    family: str
    """Model family, a name of FAMILIES."""
    model_config: dict[str, Any]
    """The family's configuration as plain JSON values."""
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
    dataset: str
    """Name of the raw dataset."""
    dataset_hash: str
    """Content hash of the records (DVC's where DVC made them)."""
    split: str
    """Name of the split."""
    split_hash: str
    """Content hash of the split's record ids."""
    seed: int
    """Seed of the training run."""
    device: dict[str, float] = field(default_factory=dict)
    """Values of the spec's device columns on that hardware; empty where it has none."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of tencost, TVM, ffi, torch, xgboost, numpy that made it."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the validation split."""
    refit: dict[str, Any] = field(default_factory=dict)
    """Of a model that was fitted on all parts of the split (:mod:`tencost.train.fit.refit`): `twin`, the content digest
    of the bundle that was judged; `parts`, `records` and `networks`, learnt from. No other bundle.json has it."""
    files: dict[str, str] = field(default_factory=dict)
    """File name -> sha256 in hex; filled by save_bundle."""
    format_version: int = FORMAT_VERSION
    """FORMAT_VERSION of the code that wrote it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["feature_spec"] = self.feature_spec.to_dict()
        values["calibration"] = asdict(self.calibration)
        values["tvm_range"] = list(self.tvm_range)
        if not self.refit:
            del values["refit"]
        return values


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


def plain_config(config: ModelConfig) -> dict[str, Any]:
    """Return a model configuration as plain JSON values."""
    assert is_dataclass(config)
    return {
        name: value.value if isinstance(value, Enum) else value
        for name, value in asdict(config).items()
    }


def save_bundle(folder: Path, ranker: Ranker, info: BundleInfo) -> BundleInfo:
    """Write a bundle; the folder appears whole or not at all, an older bundle there is replaced.

    Returns:
        The info as written, with the sha256 of every file.
    """
    with whole_folder(folder) as content:
        ranker.save(content)
        written = replace(info, files=hash_weights(content))
        write_manifest(content, written.to_dict())
    return written


def content_digest(info: BundleInfo, *, without: Sequence[str] = ()) -> str:
    """Return the sha256, hex, of what decides a bundle's scores, and of what it ships beside its weights.

    Args:
        info: the bundle's.
        without: names of files that do not count.
    """
    files = {name: digest for name, digest in info.files.items() if name not in without}
    content = {
        "calibration": [info.calibration.center, info.calibration.scale],
        "dataset_hash": info.dataset_hash,
        "device": info.device,
        "family": info.family,
        "feature_spec": info.feature_spec.digest,
        "files": files,
        "hardware": info.hardware,
        "model_config": info.model_config,
        "split_hash": info.split_hash,
        "target_kind": info.target_kind,
        "tvm_range": list(info.tvm_range),
    }
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def training_digest(folder: Path) -> str:
    """Return the sha256, hex, of all bundles of a training (`seed<k>/` in a folder): its MLflow run carries it."""
    digests = sorted(
        content_digest(read_info(path.parent)) for path in folder.glob(f"*/{MANIFEST}")
    )
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def read_info(folder: Path) -> BundleInfo:
    """Read and check bundle.json alone.

    Raises:
        BundleError: missing, not JSON, unknown format version, other feature ABI, fields missing.
    """
    values = read_manifest(folder)
    if values.get("kind", PROGRAMS) != PROGRAMS:
        raise BundleError(
            f"bundle {folder}: expected a model of programs, found one of {values['kind']}. "
            "A model of whole networks answers `tencost graphs latency`."
        )
    version = values.get("format_version")
    if version != FORMAT_VERSION:
        raise BundleError(
            f"bundle {folder}: expected format_version {FORMAT_VERSION}, found {version!r}. "
            "Use the tencost release that wrote it, or train the model again."
        )
    known = {name: value for name, value in values.items() if name not in _LEFT_OUT}
    try:
        check_types(known)
        spec = FeatureSpec.from_dict(values["feature_spec"])
        return BundleInfo(
            **{
                **known,
                "feature_spec": spec,
                "calibration": Calibration(**values["calibration"]),
                "tvm_range": tuple(values["tvm_range"]),
            }
        )
    except FeatureError as error:
        found = values["feature_spec"].get("abi")
        if found == FEATURE_ABI:
            raise BundleError(f"bundle {folder}: {error}") from error
        raise BundleError(
            f"bundle {folder}: feature ABI {found} does not fit, this tencost has feature ABI "
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
    except (
        TencostError, OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError,
        AssertionError, MemoryError, RecursionError,
    ) as error:  # fmt: skip
        raise BundleError(
            f"bundle {folder}: its parts do not fit together ({type(error).__name__}: {error}). Pull or train it again."
        ) from error
    return Bundle(folder, info, ranker)


def version_in_range(version: str, bounds: tuple[str, str]) -> bool:
    """Whether a release number lies in [low, high); suffixes such as .post1 or +cpu are ignored."""
    return _release(bounds[0]) <= _release(version) < _release(bounds[1])


def _release(version: str) -> tuple[int, int, int]:
    match = re.match(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?", version)
    if match is None:
        raise BundleError(f"expected a version such as 0.27.0, found {version!r}")
    major, minor, patch = (int(part or 0) for part in match.groups())
    return major, minor, patch


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
