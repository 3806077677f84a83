"""Rules of the house: imports point left, light imports stay light, stages know their dependencies."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tencost"
FLOW = [
    "store",
    "fetch",
    "records",
    "lorien",
    "features",
    "splits",
    "train",
    "evaluate",
    "register",
    "networks",
    "workers",
    "measure",
    "tune",
    "cli",
]
FOUNDATION = {"errors", "config", "writing"}
"""May be imported from everywhere; every value they carry is in conf/ and tracked there."""


def tencost_imports(path: Path) -> set[str]:
    """Return the tencost modules that a file imports, at the top and inside functions, as dotted names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("tencost.")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tencost":
            assert node.module is not None
            for alias in node.names:
                found.add(f"{node.module}.{alias.name}")
    return found


def module_file(dotted: str) -> Path | None:
    """Return the file of a dotted name, or of the longest prefix that is a module."""
    parts = dotted.split(".")[1:]
    while parts:
        for candidate in (
            PACKAGE.joinpath(*parts).with_suffix(".py"),
            PACKAGE.joinpath(*parts, "__init__.py"),
        ):
            if candidate.is_file():
                return candidate
        parts = parts[:-1]
    return None


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def room_files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if room_of(path) in FLOW)


@pytest.mark.parametrize("path", room_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_left(path: Path) -> None:
    here = FLOW.index(room_of(path))
    for dotted in tencost_imports(path):
        room = dotted.split(".")[1]
        if room in FLOW:
            assert FLOW.index(room) <= here, f"{path} imports {dotted}, which stands to its right"
        else:
            assert room in FOUNDATION or dotted == "tencost.__version__", f"{path} imports {dotted}"


def test_no_room_without_meaning() -> None:
    names = {
        part
        for path in PACKAGE.rglob("*")
        for part in path.relative_to(PACKAGE).with_suffix("").parts
    }
    assert not names & {"utils", "util", "common", "helpers", "misc"}


def test_import_tencost_is_light() -> None:
    code = (
        "import sys, tencost, tencost.cli, tencost.errors; "
        "heavy = {'torch', 'tvm', 'mlflow', 'polars', 'xgboost', 'pandas'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "stage", ["fetch", "records", "features", "splits", "train", "evaluate", "register"]
)
def test_stage_deps_cover_imports(stage: str) -> None:
    pipeline = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    entries = {name: body for name, body in pipeline.items() if name.split("_")[0] == stage}
    assert entries, f"no stage {stage} in dvc.yaml"
    reached, todo = set(), [PACKAGE / stage / "stage.py"]
    while todo:
        path = todo.pop()
        if path in reached or room_of(path) in FOUNDATION or path == PACKAGE / "__init__.py":
            continue
        reached.add(path)
        todo += [file for name in tencost_imports(path) if (file := module_file(name)) is not None]
    for name, body in entries.items():
        deps = [ROOT / dep for dep in body["deps"] if dep.startswith("src/")]
        uncovered = [
            str(path.relative_to(ROOT))
            for path in sorted(reached)
            if path.stat().st_size and not any(path == dep or dep in path.parents for dep in deps)
        ]
        assert not uncovered, (
            f"stage {name} of dvc.yaml runs code that its deps do not list: {uncovered}"
        )
