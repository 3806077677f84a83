"""Writes a graph bundle as an MLflow model folder for `mlflow.pyfunc.load_model` (models from code, no pickle)."""

from __future__ import annotations

from pathlib import Path

from tencost.models.networks.bundle import read_graph_info
from tencost.models.programs.bundle.pyfunc_model import requirement, save_model
from tencost.networks.graph.operators import COLUMNS


def save_graph_pyfunc(folder: Path, bundle: Path) -> None:
    """Write the model, its signature and its requirements into a new folder; the bundle is copied into it."""
    from mlflow.types import ColSpec, DataType

    info = read_graph_info(bundle)
    inputs = [ColSpec(DataType.long, "graph"), ColSpec(DataType.string, "operator")]
    inputs += [ColSpec(DataType.long, name) for name in COLUMNS]
    inputs += [ColSpec(DataType.string, "inputs")]
    outputs = [ColSpec(DataType.long, "graph"), ColSpec(DataType.double, "latency_ms")]
    code = Path(__file__).with_name("pyfunc.py")
    needs = requirement("graphs", info.versions)
    save_model(folder, bundle, code, inputs, outputs, needs)
