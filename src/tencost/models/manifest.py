"""The files of a bundle, whatever its model predicts: a manifest, weights, and nothing that could run code.

bundle.json is a JSON object; its `files` maps every other file's name to its sha256, its `kind` says what the model
predicts: tensor programs where there is none, see :mod:`tencost.models.programs.bundle`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from tencost.errors import BundleError

MANIFEST = "bundle.json"
WEIGHT_SUFFIXES = (".ubj", ".safetensors", ".onnx", ".json")
PROGRAMS = "programs"
"""What a model predicts: tensor programs, where bundle.json does not say another `kind`."""
_PICKLE_SUFFIXES = (".pkl", ".pickle", ".pt", ".pth", ".bin", ".joblib", ".npy", ".npz", ".ckpt")


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
        found = _sha256(path)
        if found != files[name]:
            raise BundleError(
                f"bundle {folder}: {name} was changed after training: expected sha256 "
                f"{files[name]}, "
                f"found {found}. Pull or train it again."
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
