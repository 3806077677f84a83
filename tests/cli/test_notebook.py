"""The notebook among the tutorials runs from its first cell to its last, on a small project."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tencost.evaluate import stage as evaluation
from tencost.models.programs.families.xgb import XgbConfig
from tencost.register import registry
from tencost.tracking import runs as tracking
from tencost.train import programs as training

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "tutorial" / "records-to-scores.ipynb"


@pytest.fixture
def registered(toy_project: Path, toy_config: Any) -> Path:
    """The toy project with a reference and trees trained and evaluated; the trees are champion."""
    reference = replace(toy_config.model, reference=True)
    training.run(replace(toy_config, model_name="random", model=reference), toy_project)
    trees = XgbConfig(family="xgb", reads=["toy"], num_rounds=30, num_threads=1)
    result = training.run(replace(toy_config, model=trees), toy_project)
    evaluation.run(toy_config, toy_project)
    client = registry.connect(tracking.setup(toy_project))
    version, _ = registry.register_offer(
        client,
        registry.bundle_offer(result.folder / "seed0", "a toy"),
        run_id=result.run_id,
        description="a test",
    )
    registry.promote(client, version)
    return toy_project


def content(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file; databases by what they hold, as opening one may touch its file."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path.suffix == ".db":
            with closing(sqlite3.connect(path)) as connection:
                held = "\n".join(connection.iterdump()).encode()
        else:
            held = path.read_bytes()
        found[str(path.relative_to(folder))] = hashlib.sha256(held).hexdigest()
    return found


@pytest.mark.slow
def test_the_notebook_runs(
    registered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "nbclient and ipykernel, of the dev extra, are not installed"
    nbclient: Any = pytest.importorskip("nbclient", reason=reason)
    pytest.importorskip("ipykernel", reason=reason)
    nbformat: Any = pytest.importorskip("nbformat", reason=reason)
    for variable in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, 4)
    (parameters,) = [
        cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])
    ]
    parameters.source = (
        f"from pathlib import Path\nPROJECT, CACHE = Path({str(registered)!r}), Path({str(tmp_path)!r}) / 'cache'\n"
        "DATASET, HARDWARE, FEATURES, KIND = 'toy', 'toy-1c', 'toy', 'trace'"
    )
    kernel = nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    )
    before = content(registered)
    kernel.execute()
    assert content(registered) == before, "it writes nothing but the cache"
    assert list((tmp_path / "cache").iterdir())
    assert kernel.km is None or not kernel.km.has_kernel
    shown = "\n".join(
        output.get("text") or output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )
    assert "xgb on toy, 2 columns, of toy" in shown
    accuracy = float(shown.split("pairwise accuracy ")[1].split()[0])
    # 0.5 is chance; trees of 24 programs whose first column is the speed
    assert accuracy > 0.65, shown


def test_the_committed_notebook_shows_what_it_printed_and_nobodys_folders() -> None:
    nbformat: Any = pytest.importorskip("nbformat", reason="nbformat, of the dev extra")
    notebook = nbformat.read(NOTEBOOK, 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in code[1:])
    shown = [
        str(output.get("text", output.get("data", ""))) for cell in code for output in cell.outputs
    ]
    assert not [one for one in shown if re.search(r"(?<![\w.:/])/\w+/\w", one)], "an absolute path"


def test_tutorials_that_follow_the_pipeline_read_the_features_that_it_makes() -> None:
    made = yaml.safe_load((ROOT / "params.yaml").read_text())["models"].keys()
    notebook = json.loads(NOTEBOOK.read_text())
    code = "".join(line for cell in notebook["cells"] for line in cell["source"])
    tutorial = (NOTEBOOK.parent / "first-model.md").read_text()
    named = re.findall(r'^FEATURES = KIND = "(\w+)"', code, re.MULTILINE)
    named += re.findall(r"\bfeatures=(\w+)", tutorial)
    assert len(named) >= 3
    assert set(named) <= made


def test_the_site_shows_the_notebook_as_a_page(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs, of the docs extra, is not installed")
    spec = importlib.util.spec_from_file_location("tencost_site", ROOT / "docs" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    assert set(site.NOTEBOOKS) == {
        path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.ipynb")
    }
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "\n", "Text."]},
        {
            "cell_type": "code",
            "source": ["print(1)\n", "2"],
            "outputs": [
                {"output_type": "stream", "text": ["1\n"]},
                {"output_type": "execute_result", "data": {"text/plain": ["2"]}},
            ],
        },
    ]
    path = tmp_path / "one.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    assert site.notebook_page(path) == (
        "# Title\n\nText.\n\nThe notebook itself: [one.ipynb](one.ipynb).\n\n"
        "```python\nprint(1)\n2\n```\n\n```text\n1\n```\n\n```text\n2\n```"
    )
    assert "pairwise accuracy 0." in site.notebook_page(NOTEBOOK)
