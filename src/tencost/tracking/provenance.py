"""Where a model comes from: commit, versions, host, content hashes of what it was trained on."""

from __future__ import annotations

import hashlib
import platform
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import tencost
from tencost import __version__
from tencost.config.lockfile import git

if TYPE_CHECKING:
    import polars as pl

_PACKAGES = {
    "tvm": ("apache-tvm",),
    "tvm_ffi": ("apache-tvm-ffi",),
    "torch": ("torch",),
    "numpy": ("numpy",),
    "mlflow": ("mlflow", "mlflow-skinny"),
}

DEFAULT_TVM_RANGE = ("0.27.0", "0.28.0")
"""TVM versions whose features ours are, where no TVM is installed to ask."""


DECIDING = ("features", "models", "programs", "splits", "store", "train", "workers/parallel")
"""Rooms, or folders in them, whose code decides what a training learns from given records."""

_PIPELINE_WRITES = (":(exclude,glob)**/dvc.lock", ":(exclude)data", ":(exclude)graphs/data")
"""Paths under git that `dvc repro` itself writes while it runs."""

_STAGES_READ = ("conf", "src", "graphs", "datasets", "params.yaml", "dvc.yaml")
"""Where a file that git does not know changes what a stage does; elsewhere it may be a report or a note."""


@dataclass(frozen=True)
class GitState:
    """The project's commit; None and False outside of git."""

    commit: str | None
    dirty: bool


def git_state(root: Path) -> GitState:
    """Return the commit of a folder and whether what a stage reads differs from it.

    That is any uncommitted change of a file that git knows, other than what the pipeline writes, and any file of
    conf/, the sources and the data sets' archives that git neither knows nor ignores.
    """
    commit = git(root, "rev-parse", "HEAD")
    if commit is None:
        return GitState(None, False)
    status = ("status", "--porcelain")
    changed = git(root, *status, "--untracked-files=no", "--", ".", *_PIPELINE_WRITES)
    new = git(root, *status, "--untracked-files=all", "--", *_STAGES_READ, *_PIPELINE_WRITES)
    return GitState(commit.decode().strip(), bool(changed or new))


def installed_versions() -> dict[str, str]:
    """Return the versions of tencost, Python and what decides scores; those installed.

    Python's without its patch release, which decides nothing: the same bytes are made by 3.11.2 and 3.11.7.

    tencost's own is that of the code that runs, which need not be installed (a source tree on PYTHONPATH).
    """
    versions = {"python": ".".join(platform.python_version_tuple()[:2]), "tencost": __version__}
    for name, packages in _PACKAGES.items():
        for package in reversed(packages):  # the first one that is installed counts
            with suppress(PackageNotFoundError):
                versions[name] = version(package)
    if find_spec("xgboost"):  # two packages install it, the later one over the other's files
        import xgboost

        versions["xgboost"] = xgboost.__version__
    return versions


@cache
def code_digest() -> str:
    """Return the sha256, first 32 hex digits, of the modules that decide what is learnt from given records."""
    digest = hashlib.sha256()
    package = Path(tencost.__file__).parent
    for room in DECIDING:
        for path in sorted((package / room).rglob("*.py")):
            digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:32]


def tvm_range(installed: str | None) -> tuple[str, str]:
    """Return the TVM versions a bundle may serve: the minor release that made its features."""
    if installed is None:
        return DEFAULT_TVM_RANGE
    major, minor = (int(part) for part in installed.split(".")[:2])
    return f"{major}.{minor}.0", f"{major}.{minor + 1}.0"


def content_hash(table: pl.DataFrame) -> str:
    """Return the first 32 hex digits of the sha256 of a table's rows, whatever their order.

    Floats are hashed by their exact value, missing values as such.
    """
    rows = table.select(sorted(table.columns)).rows()
    digest = hashlib.sha256()
    for line in sorted(repr(row) for row in rows):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()[:32]


def dvc_hash(root: Path, path: str) -> str | None:
    """Return DVC's md5 of an output as dvc.lock has it; None where DVC did not make it."""
    lock = root / "dvc.lock"
    if not lock.is_file():
        return None
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # 20 times as fast, where it was built
    locked = yaml.load(lock.read_bytes(), Loader=loader) or {}
    for stage in (locked.get("stages") or {}).values():
        for out in stage.get("outs", []):
            if out.get("path") == path:
                return str(out.get("md5", "")).removesuffix(".dir") or None
    return None
