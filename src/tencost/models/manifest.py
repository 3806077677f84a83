"""The bundle: a model's weights, everything needed to use them, and nothing that can run code.

Format, version 1: a flat folder.

    bundle.json      UTF-8 JSON object, the fields of BundleFacts and of its subject's subclass; `files` maps every
                     other file's name to its sha256; `kind` says what the model predicts, tensor programs if missing
    <weights>        .ubj (XGBoost UBJSON), .safetensors, .onnx or .json, whatever the family's `save` writes

When, where and from which commit it was made is not in it but in the MLflow run of its training, which is found by the
digest of its bundles: the same training writes the same bytes.

Do not rely on the names of the weights files or the order of keys. A folder with a file that bundle.json does not list
is refused, so is one that lacks a listed file. Loading and scoring need neither torch, MLflow nor polars.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar

import orjson

from tencost.errors import BundleError, TencostError
from tencost.writing import whole_folder

MANIFEST = "bundle.json"
WEIGHT_SUFFIXES = (".ubj", ".safetensors", ".onnx", ".json")
FORMAT_VERSION = 1
PROGRAMS = "programs"
"""What a model predicts: tensor programs, where bundle.json does not say another `kind`."""
GRAPHS = "graphs"
"""What a model predicts: latencies of whole networks."""
_KINDS = {
    PROGRAMS: ("programs", "A model of whole networks answers `tencost graphs latency`."),
    GRAPHS: ("whole networks", "See `tencost register status` for what there is."),
}
"""Kind -> what its models are of, and what to do where a model of another kind is asked for."""
_PICKLE_SUFFIXES = (".pkl", ".pickle", ".pt", ".pth", ".bin", ".joblib", ".npy", ".npz", ".ckpt")
UNFIT_PARTS = (
    TencostError, OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError,
    AssertionError, MemoryError, RecursionError, RuntimeError,
)  # fmt: skip
"""What loading and trying a model raises whose parts do not fit together."""


@dataclass(frozen=True, kw_only=True)
class BundleFacts(ABC):
    """What bundle.json says of a model of any subject."""

    family: str
    """Model family."""
    model_config: dict[str, Any]
    """The family's configuration as plain JSON values."""
    dataset: str
    """Name of the raw dataset."""
    dataset_hash: str
    """Content hash of what was measured (of records: DVC's where DVC made them)."""
    split: str
    """Name of the split."""
    split_hash: str
    """Content hash of what is on which side of the split."""
    seed: int
    """Seed of the training run."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of tencost, TVM, ffi, torch, xgboost, numpy that made it."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the validation split."""
    files: dict[str, str] = field(default_factory=dict)
    """File name -> sha256 in hex; filled by save_bundle."""
    format_version: int = FORMAT_VERSION
    """FORMAT_VERSION of the code that wrote it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    @abstractmethod
    def deciding(self, files: Mapping[str, str]) -> dict[str, Any]:
        """Return what decides the predictions, as JSON values, given the files that count."""


class Saved(Protocol):
    """A model that writes its weights."""

    def save(self, folder: Path) -> None:
        """Write weights into an existing folder."""
        ...


F = TypeVar("F", bound=BundleFacts)


def plain_config(config: Any) -> dict[str, Any]:
    """Return a family's configuration, a dataclass, as plain JSON values."""
    return {
        name: setting.value if isinstance(setting, Enum) else setting
        for name, setting in asdict(config).items()
    }


def save_bundle(folder: Path, model: Saved, info: F, extra: Mapping[str, bytes] | None = None) -> F:
    """Write a bundle; the folder appears whole or not at all, an older bundle there is replaced.

    Args:
        folder: of the bundle.
        model: trained.
        info: all but `files`.
        extra: further files by name (.json).

    Returns:
        The info as written, with the sha256 of every file.
    """
    with whole_folder(folder) as content:
        model.save(content)
        for name, text in (extra or {}).items():
            (content / name).write_bytes(text)
        written = replace(info, files=hash_weights(content))
        write_manifest(content, written.to_dict())
    return written


def content_digest(info: BundleFacts, *, without: Sequence[str] = ()) -> str:
    """Return the sha256, hex, of what decides a bundle's predictions, and of what it ships beside its weights.

    Args:
        info: the bundle's.
        without: names of files that do not count.
    """
    files = {name: digest for name, digest in info.files.items() if name not in without}
    content = orjson.dumps(info.deciding(files), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(content).hexdigest()


def digest_training(folder: Path, read: Callable[[Path], BundleFacts]) -> str:
    """Return the sha256, hex, of all bundles of a training (`seed<k>/` in a folder): its MLflow run carries it.

    Args:
        folder: of the training.
        read: reads bundle.json in a folder.
    """
    digests = sorted(content_digest(read(path.parent)) for path in folder.glob(f"*/{MANIFEST}"))
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def read_kind(folder: Path, kind: str, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Read bundle.json of a kind of model.

    Args:
        folder: the bundle's.
        kind: PROGRAMS or GRAPHS.
        numbers: versions by name that this code reads, `format_version` among them.

    Raises:
        BundleError: missing, not JSON, of another kind, of another version.
    """
    values = read_manifest(folder)
    stored_kind = values.get("kind", PROGRAMS)
    subject, hint = _KINDS[kind]
    if stored_kind != kind:
        raise BundleError(
            f"bundle {folder}: expected a model of {subject}, found one of {stored_kind}. {hint}"
        )
    for name, expected in numbers.items():
        if values.get(name) != expected:
            raise BundleError(
                f"bundle {folder}: expected {name} {expected}, found {values.get(name)!r}. "
                "Use the tencost release that wrote it, or train the model again."
            )
    return values


def check_types(values: Mapping[str, Any], types: Mapping[str, Any], prefix: str = "") -> None:
    """Compare JSON values with what each must be.

    Args:
        values: by name; those without a type are not looked at.
        types: a type, a list of one type, or an object ({} of anything, {"": type} of one type).
        prefix: what names begin with in a message.

    Raises:
        TypeError: the message says which value.
    """
    for name, expected in types.items():
        if name in values and not is_json(values[name], expected):
            raise TypeError(f"{prefix}{name} is {str(values[name])[:60]!r}")


def is_json(value: Any, expected: Any) -> bool:
    """Say whether a JSON value has a type, see `check_types`; a float may be written as a whole number."""
    if isinstance(expected, list):
        return isinstance(value, list) and all(is_json(item, expected[0]) for item in value)
    if isinstance(expected, dict):
        inside = next(iter(expected.values()), object)
        return isinstance(value, dict) and all(is_json(item, inside) for item in value.values())
    if expected is float:
        return type(value) in (int, float)
    return type(value) is expected or expected is object


def check_settings(schema: type[Any], values: Mapping[str, Any]) -> None:
    """Compare a family's settings with the types of their defaults.

    The dataclass itself does not ask: a width of "128" would be believed until it is multiplied.

    Raises:
        TypeError: the message says which.
    """
    plain = (int, float, str, bool)
    types = {item.name: type(item.default) for item in fields(schema)}
    check_types(values, {name: kind for name, kind in types.items() if kind in plain})


def unfit(folder: Path, error: BaseException) -> BundleError:
    """Return the refusal of a bundle whose parts do not fit together (UNFIT_PARTS)."""
    return BundleError(
        f"bundle {folder}: its parts do not fit together ({type(error).__name__}: {error}). Pull or train it again."
    )


def version_in_range(version: str, bounds: tuple[str, str]) -> bool:
    """Whether a release number lies in [low, high); suffixes such as .post1 or +cpu are ignored."""
    return _release(bounds[0]) <= _release(version) < _release(bounds[1])


def _release(version: str) -> tuple[int, int, int]:
    match = re.match(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?", version)
    if match is None:
        raise BundleError(f"expected a version such as 0.27.0, found {version!r}")
    major, minor, patch = (int(part or 0) for part in match.groups())
    return major, minor, patch


def hash_weights(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file that a model has saved, by name."""
    files = {path.name: _sha256(path) for path in sorted(folder.iterdir())}
    for name in files:
        assert name.endswith(WEIGHT_SUFFIXES), f"{name}: weights must be one of {WEIGHT_SUFFIXES}"
    return files


def write_manifest(folder: Path, values: dict[str, Any]) -> None:
    """Write bundle.json."""
    option = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
    (folder / MANIFEST).write_bytes(orjson.dumps(values, option=option) + b"\n")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read bundle.json as JSON values: those of `kind` "programs", which is also meant where none is said, or another.

    Raises:
        BundleError: missing, not JSON or no object.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise BundleError(
            f"bundle {folder}: expected {MANIFEST}, found none. Is this the folder of a model "
            "bundle?"
        )
    try:
        values = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise BundleError(
            f"bundle {folder}: {MANIFEST} is not JSON ({error}). Pull or train the model again."
        ) from error
    except OSError as error:
        raise BundleError(f"bundle {folder}: cannot read {MANIFEST}: {error}") from error
    return values if isinstance(values, dict) else {}


def check_files(folder: Path, files: Mapping[str, str]) -> None:
    """Check that a folder holds the files of a bundle and no others.

    Args:
        folder: the bundle's.
        files: name -> sha256 in hex, as its manifest says.

    Raises:
        BundleError: a file is missing, changed, not listed, no weights, or may hold a pickle.
    """
    present = {path.name for path in folder.iterdir()} - {MANIFEST}
    for name in sorted(present | set(files)):
        path = folder / name
        if not _is_plain(name, path):
            raise BundleError(
                f"bundle {folder}: {name!r} is not a plain file in the bundle's folder; refused."
            )
        if not path.exists():
            raise BundleError(
                f"bundle {folder}: expected the file {name}, found none. Pull or train it again."
            )
        if _looks_like_pickle(path):
            raise BundleError(
                f"bundle {folder}: {name} is a pickle or may hold one; it could run code, so it is "
                "refused."
            )
        if name not in files:
            raise BundleError(
                f"bundle {folder}: unexpected file {name}, {MANIFEST} does not list it; refused."
            )
        if not name.endswith(WEIGHT_SUFFIXES):
            raise BundleError(
                f"bundle {folder}: {name}: weights must be {', '.join(WEIGHT_SUFFIXES)}; refused."
            )
        digest = _sha256(path)
        if digest != files[name]:
            raise BundleError(
                f"bundle {folder}: {name} was changed after training: expected sha256 "
                f"{files[name]}, "
                f"found {digest}. Pull or train it again."
            )


def _is_plain(name: str, path: Path) -> bool:
    try:
        return (
            Path(name).name == name
            and not path.is_symlink()
            and (path.is_file() or not path.exists())
        )
    except (OSError, ValueError):  # longer than a file system takes, or with a null in it
        return False


def _looks_like_pickle(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(16)
    if path.suffix in _PICKLE_SUFFIXES or head.startswith((b"PK\x03\x04", b"\x93NUMPY")):
        return True
    # Protocols 2 to 5 start with 0x80 and the protocol. A safetensors file starts with a
    # little-endian length that may read the same, then with a JSON object.
    is_safetensors = path.suffix == ".safetensors" and head[8:9] == b"{"
    return len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5 and not is_safetensors


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
