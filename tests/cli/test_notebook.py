"""The notebook among the tutorials runs from its first cell to its last, on a small project."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tencost.evaluate import stage as evaluation
from tencost.register import registry
from tencost.train import stage as training
from tencost.train import tracking
from tencost.train.families.xgb import XgbConfig

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorial" / "records-to-scores.ipynb"


@pytest.fixture
def registered(toy_project: Path, toy_config: Any) -> Path:
    """The toy project with a reference and trees trained and evaluated; the trees are champion."""
    reference = replace(toy_config.model, reference=True)
    training.run(replace(toy_config, model_name="random", model=reference), toy_project)
    trees = XgbConfig(family="xgb", reads=["toy"], num_rounds=30, num_threads=1)
    result = training.run(replace(toy_config, model=trees), toy_project)
    evaluation.run(toy_config, toy_project)
    client = registry.connect(tracking.setup(toy_project))
    version, _ = registry.register_bundle(
        client,
        result.folder / "seed0",
        run_id=result.run_id,
        hardware_text="a toy",
        description="a test",
    )
    registry.promote(client, version)
    return toy_project


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
    kernel.execute()
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
