"""Writes a graph bundle as an MLflow model folder for `mlflow.pyfunc.load_model` (models from code, no pickle)."""

from __future__ import annotations

import warnings
from pathlib import Path

from tencost.graphs.bundle import read_graph_info
from tencost.graphs.operators import COLUMNS
from tencost.train.pyfunc_model import forget_origin


def save_graph_pyfunc(folder: Path, bundle: Path) -> None:
    """Write the model, its signature and its requirements into a new folder; the bundle is copied into it."""
    import mlflow.pyfunc
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema

    info = read_graph_info(bundle)
    inputs = [ColSpec(DataType.long, "graph"), ColSpec(DataType.string, "operator")]
    inputs += [ColSpec(DataType.long, name) for name in COLUMNS]
    inputs += [ColSpec(DataType.string, "inputs")]
    outputs = [ColSpec(DataType.long, "graph"), ColSpec(DataType.double, "latency_ms")]
    with warnings.catch_warnings():
        # MLflow would rather have an example of the input than the signature it is given.
        warnings.simplefilter("ignore", UserWarning)
        mlflow.pyfunc.save_model(
            str(folder),
            python_model=str(Path(__file__).with_name("pyfunc.py")),
            artifacts={"bundle": str(bundle)},
            signature=ModelSignature(inputs=Schema(inputs), outputs=Schema(outputs)),
            pip_requirements=[f"tencost[graphs]=={info.versions.get('tencost', '0')}", "pandas"],
        )
    forget_origin(folder)
