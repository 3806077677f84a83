"""Processes that find what some extras of tencost install, and no other package, whatever else is installed here."""

from __future__ import annotations

import os
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).resolve().parents[1]
HIDE = """
import importlib.machinery, sys
class Installed(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        absent = name.partition(".")[0] in {absent!r}
        return None if absent else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Installed
"""


def distributions(*extras: str) -> set[str]:
    """Names of what `pip install tencost[extras]` installs, by the metadata of what is installed here."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    todo = list(project["dependencies"])
    for extra in extras:
        todo += project["optional-dependencies"][extra]
    found = {"tencost", "pip", "setuptools"}
    seen = set()
    while todo:
        text = todo.pop()
        if text in seen:
            continue
        seen.add(text)
        wanted = Requirement(text)
        name = canonicalize_name(wanted.name)
        if name == "tencost":
            for extra in wanted.extras:
                todo += project["optional-dependencies"][extra]
            continue
        found.add(name)
        for needed in distribution(name).requires or ():
            marker = Requirement(needed).marker
            asked = {"", *wanted.extras}
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in asked):
                todo.append(needed)
    return found


def environment_of(
    folder: Path, *extras: str, also_absent: frozenset[str] | set[str] = frozenset()
) -> dict[str, str]:
    """Return an environment for processes that find only what these extras install.

    Args:
        folder: gets what hides the others.
        extras: of tencost.
        also_absent: modules that are hidden, whoever brings them.
    """
    kept = distributions(*extras)
    absent = also_absent | {
        module
        for module, owners in packages_distributions().items()
        if not kept & {canonicalize_name(owner) for owner in owners}
    }
    assert not absent & {"tencost", "hydra", "numpy", "click"}
    (folder / "sitecustomize.py").write_text(HIDE.replace("{absent!r}", repr(sorted(absent))))
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop("MLFLOW_TRACKING_URI", None)
    return environment
