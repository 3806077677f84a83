"""Rules of the house: imports point left, light imports stay light, stages know their dependencies."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tencost.config import parts
from tencost.config.composition import compose
from tencost.config.pipeline import items, read_params
from tencost.tracking import provenance

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tencost"
FLOORS = (
    {"errors", "signals", "writing"},
    {"config"},
    {"store"},
    {"programs", "tracking"},
    {"networks", "workers"},
    {"records", "splits"},
    {"features"},
    {"models"},
    {"train"},
    {"evaluate"},
    {"register"},
    {"measure"},
    {"adapt", "tune"},
    {"compat"},
    {"cli"},
)
"""Rooms from the ground up: a room imports from those below, and rooms of one floor do not import each other."""
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
EXEMPT = {"errors", "config"}
"""No stage depends on them: every value that they carry is in conf/ and tracked there."""


@cache
def tencost_imports(path: Path) -> set[str]:
    """Return the tencost modules that a file imports when it runs, at the top and inside functions, as dotted names."""
    found = set()
    tree = ast.parse(path.read_text())
    types_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in node.body
        for inner in ast.walk(child)
    }
    for node in ast.walk(tree):
        if node in types_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("tencost.")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tencost":
            assert node.module is not None
            for alias in node.names:
                found.add(f"{node.module}.{alias.name}")
    return found


@cache
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


@pytest.mark.parametrize(
    "path",
    sorted(path for path in PACKAGE.rglob("*.py") if room_of(path) in FLOOR),
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_imports_point_down(path: Path) -> None:
    here = room_of(path)
    for dotted in tencost_imports(path):
        room = dotted.split(".")[1]
        if room != here and dotted != "tencost.__version__":
            assert FLOOR[room] < FLOOR[here], f"{path} imports {dotted}, which stands above it"


def test_every_room_has_its_floor() -> None:
    rooms = {room_of(path) for path in PACKAGE.rglob("*.py")}
    assert rooms - {"__init__", "old_names"} == set(FLOOR)


def test_only_the_command_line_imports_compat() -> None:
    """By a statement, by a name in a text (`import_module`), or lazily: old names stand in one table."""
    files = [path for path in PACKAGE.rglob("*.py") if room_of(path) not in ("compat", "cli")]
    users = {
        str(path.relative_to(PACKAGE))
        for path in files
        if any(dotted.split(".")[1] == "compat" for dotted in tencost_imports(path))
        or any(
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.fullmatch(r"tencost\.compat(\.\w+)*", node.value)
            for node in ast.walk(ast.parse(path.read_text()))
        )
    }
    assert users == {"old_names.py"}


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


def closure(starts: set[Path]) -> set[Path]:
    """Return every module that files reach by imports, those inside functions included; config is exempt."""
    reached: set[Path] = set()
    todo = list(starts)
    while todo:
        path = todo.pop()
        if path in reached or room_of(path) in EXEMPT or path == PACKAGE / "__init__.py":
            continue
        reached.add(path)
        todo += [file for name in tencost_imports(path) if (file := module_file(name)) is not None]
    return {path for path in reached if path.stat().st_size}


@cache
def registries_loaded(path: Path) -> set[str]:
    """Return the registries whose parts a file loads by name: `FAMILIES.load(...)` and the like."""
    return {
        node.value.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in ("load", "all")
        and isinstance(node.value, ast.Name)
        and isinstance(getattr(parts, node.value.id, None), parts.Parts)
    }


def modules_of(registry: str, names: set[str]) -> set[Path]:
    """Return the files of parts of a registry; all of them where no names are given."""
    found = getattr(parts, registry).modules()
    chosen = {dotted for name, dotted in found.items() if not names or name in names}
    return {path for dotted in chosen if (path := module_file(dotted)) is not None}


def families(model: str) -> set[str]:
    """Return the families that a file of conf/model/ needs: its own and its members'."""
    config = compose([f"model={model}"])[0].model
    return {config.family, *(member["family"] for member in getattr(config, "members", []))}


def reach(starts: set[Path], families_of: dict[str, set[str]]) -> set[Path]:
    """Return what files reach by imports and by registries; of some registries only the parts that are named."""
    reached = closure(starts)
    todo = {word for path in reached for word in registries_loaded(path)}
    done: set[str] = set()
    while todo - done:
        registry = (todo - done).pop()
        done.add(registry)
        reached |= closure(modules_of(registry, families_of.get(registry, set())))
        todo |= {word for path in reached for word in registries_loaded(path)}
    return reached


def stages() -> dict[str, tuple[dict[str, Any], str]]:
    """Return the stages of dvc.yaml, those of `foreach` resolved: name -> (body, model that it trains)."""
    pipeline = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    params = read_params(ROOT)
    found: dict[str, tuple[dict[str, Any], str]] = {}
    for name, body in pipeline.items():
        if name == "params":  # it reads the configuration alone, whose values are parameters
            continue
        if "foreach" not in body:
            found[name] = (body, "")
            continue
        for key, item in params[body["foreach"][2:-1]].items():
            text = json.dumps(body["do"])
            for field, value in item.items():
                text = text.replace(f"${{item.{field}}}", value)
            found[f"{name}@{key}"] = (json.loads(text), item["model"])
    return found


STAGE_FILES = {
    "tencost fetch": "records/fetch/stage.py",
    "tencost graphs records": "records/network_graphs/stage.py",
    "tencost graphs splits": "splits/network_stage.py",
    "tencost train": "train/programs.py",
    "tencost graphs train": "train/networks/stage.py",
    "tencost graphs evaluate": "evaluate/networks/stage.py",
    "tencost graphs register": "register/networks/stage.py",
    "tencost register": "register/programs.py",
}
"""Of a command -> what it runs; another command `tencost <room>` runs stage.py of its room."""


def stage_file(command: str) -> Path:
    """Return the module that a stage's command runs."""
    words = command.split()
    length = 3 if words[1] == "graphs" else 2
    return PACKAGE / STAGE_FILES.get(" ".join(words[:length]), f"{words[1]}/stage.py")


STAGES = stages()
SHARED_BY_FAMILIES = (
    "src/tencost/models/neural",
    "src/tencost/models/trees",
    "src/tencost/models/programs/",
    "src/tencost/features/rows/summary.py",
)
"""What some families use: every training depends on it, whatever family it is of."""


@pytest.mark.slow
def test_serve_looks_for_its_model_before_it_imports_what_scores(
    tmp_path: Path, mlflow_database: Path
) -> None:
    uri = f"sqlite:///{shutil.copy(mlflow_database, tmp_path)}"
    asked = (
        "import sys\n"
        "from tencost.cli import main\n"
        "try:\n"
        "    main(['serve', sys.argv[1]])\n"
        "finally:\n"
        "    print(*sorted(set(sys.argv[2:]) & set(sys.modules)))\n"
    )
    absent = ["torch", "tvm", "polars", "xgboost", "mlflow", "pandas"]
    for model in ("models:/unknown", "models:/unknown@champion"):
        done = subprocess.run(
            [sys.executable, "-c", asked, model, *absent],
            capture_output=True, text=True, check=False, env={**os.environ, "MLFLOW_TRACKING_URI": uri},
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert done.stdout == "\n"
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_depends_on_what_it_reaches_and_on_nothing_else(name: str) -> None:
    """Literally: each module that it imports or loads by name is covered, and nothing else is listed."""
    body, model = STAGES[name]
    wanted = {"FAMILIES": families(model)} if model else {}
    reached = reach({stage_file(body["cmd"])}, wanted)
    deps = [ROOT / dep for dep in body["deps"] if dep.startswith("src/")]
    uncovered = [
        str(path.relative_to(ROOT))
        for path in sorted(reached)
        if not any(path == dep or dep in path.parents for dep in deps)
    ]
    assert not uncovered, f"stage {name} of dvc.yaml runs code that its deps do not list"
    idle = {
        str(dep.relative_to(ROOT))
        for dep in deps
        if not any(path == dep or dep in path.parents for path in reached)
    }
    if model:  # one template for all families
        idle = {dep for dep in idle if not dep.startswith(SHARED_BY_FAMILIES)}
    # MLflow loads pyfunc.py from its path
    assert idle <= {"src/tencost/models/programs/bundle/pyfunc.py"}, f"stage {name} of dvc.yaml"


GRAPH_STAGES = yaml.safe_load((ROOT / "graphs" / "dvc.yaml").read_text())["stages"]
GRAPH_MODELS = yaml.safe_load((ROOT / "graphs" / "params.yaml").read_text())["models"]


@pytest.mark.parametrize("name", GRAPH_STAGES)
def test_a_stage_of_graphs_depends_on_what_it_reaches(name: str) -> None:
    body = GRAPH_STAGES[name].get("do", GRAPH_STAGES[name])
    start = stage_file(body["cmd"])
    models = GRAPH_MODELS.values() if name == "train" else [{"family": ""}]
    seen: set[Path] = set()
    for model in models:
        wanted = {"GRAPH_FAMILIES": {model["family"]}} if model["family"] else {}
        reached = reach({start}, wanted)
        seen |= reached
        text = json.dumps(body["deps"]).replace("${item.family}", model["family"])
        deps = [ROOT / dep for dep in json.loads(text) if dep.startswith("src/")]
        uncovered = [
            str(path.relative_to(ROOT))
            for path in sorted(reached)
            if not any(path == dep or dep in path.parents for dep in deps)
        ]
        assert not uncovered, f"stage {name} of graphs/dvc.yaml runs code that its deps do not list"
    idle = {
        str(dep.relative_to(ROOT))
        for dep in deps
        if "families/" not in str(dep)
        and not any(path == dep or dep in path.parents for path in seen)
    }
    assert idle <= {"src/tencost/models/networks/bundle/pyfunc.py"}, (
        f"stage {name} of graphs/dvc.yaml"
    )


def test_the_digest_of_training_code_covers_what_a_training_reaches() -> None:
    """A blend takes members that were trained before only where that digest is the same."""
    folders = [PACKAGE / name for name in provenance.DECIDING]
    assert all(any(folder.rglob("*.py")) for folder in folders)
    outside = {
        room_of(path)
        for path in reach({stage_file("tencost train")}, {})
        if not any(folder in path.parents for folder in folders)
    }
    assert outside == {"signals", "tracking", "writing"}, "which log, end and write a training"


def test_the_families_of_graph_models_are_those_of_their_settings() -> None:
    for model, item in GRAPH_MODELS.items():
        settings = yaml.safe_load((ROOT / "conf" / "model" / f"{model}.yaml").read_text())
        assert item == {"family": settings["family"]}


@pytest.mark.parametrize("name", [name for name, (_, model) in STAGES.items() if model])
def test_a_training_depends_on_the_settings_of_its_members(name: str) -> None:
    body, model = STAGES[name]
    listed = {next(iter(entry)) for entry in body["params"] if isinstance(entry, dict)}
    path = ROOT / "conf" / "model" / f"{model}.yaml"
    defaults = yaml.safe_load(path.read_text()).get("defaults", [])
    composed = {word.split("@")[0] for word in defaults if isinstance(word, str) and "@" in word}
    for needed in {model, *composed}:
        assert f"conf/model/{needed}.yaml" in listed


def test_the_items_of_params_are_those_of_its_lists() -> None:
    params = read_params(ROOT)
    wanted = items(params, ROOT / "conf")
    assert {name: params[name] for name in wanted} == wanted, "run `tencost params`"


def test_every_package_is_in_the_wheel() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    own = {
        ".".join(("tencost", *path.parent.relative_to(PACKAGE).parts))
        for path in PACKAGE.rglob("__init__.py")
    }
    conf = {f"tencost.conf.{path.name}" for path in (ROOT / "conf").iterdir() if path.is_dir()}
    assert set(listed) == own | conf | {"tencost.conf", "tencost.project"}


def test_no_database_is_in_git() -> None:
    """One was: what MLflow makes where it is called without a tracking URI."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip(f"no checkout of git: {listed.stderr.strip()}")
    assert not [name for name in listed.stdout.split("\0") if name.endswith((".db", ".sqlite"))]
