"""Writes a bundle as an MLflow model folder that `mlflow.pyfunc.load_model` reads (models from code, no pickle)."""

from __future__ import annotations

import warnings
from pathlib import Path

from tencost.train.bundle import read_info


def save_pyfunc(folder: Path, bundle: Path) -> None:
    """Write the model, its signature and its requirements into a new folder; the bundle is copied into it."""
    import mlflow.pyfunc
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema

    info = read_info(bundle)
    inputs = [ColSpec(DataType.long, "program")]
    inputs += [ColSpec(DataType.float, name) for name in info.feature_spec.columns]
    outputs = [ColSpec(DataType.long, "program"), ColSpec(DataType.double, "score")]
    with warnings.catch_warnings():
        # MLflow would rather have an example of the input than the signature it is given.
        warnings.simplefilter("ignore", UserWarning)
        mlflow.pyfunc.save_model(
            str(folder),
            python_model=str(Path(__file__).with_name("pyfunc.py")),
            artifacts={"bundle": str(bundle)},
            signature=ModelSignature(inputs=Schema(inputs), outputs=Schema(outputs)),
            pip_requirements=[f"tencost=={info.versions.get('tencost', '0')}", "pandas"],
        )
    forget_origin(folder)


def forget_origin(folder: Path) -> None:
    """Take out of MLmodel where code and bundle were copied from: paths of this machine, which nothing reads."""
    from mlflow.models import Model

    model = Model.load(str(folder))
    flavor = model.flavors["python_function"]
    flavor["model_code_path"] = Path(flavor["model_code_path"]).name
    for artifact in flavor["artifacts"].values():
        artifact["uri"] = artifact["path"]
    model.save(str(folder / "MLmodel"))
