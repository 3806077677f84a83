"""Writes a bundle as an MLflow model folder that `mlflow.pyfunc.load_model` reads (models from code, no pickle)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from tencost.features.rows.ragged import Ragged
from tencost.models.programs.bundle import BundleInfo, read_info

EXAMPLE_PROGRAMS = 2
"""So many programs with all their rows are the example of a question."""


def save_pyfunc(folder: Path, bundle: Path, programs: Ragged | None = None) -> None:
    """Write the model, its signature and its requirements into a new folder; the bundle is copied into it.

    Args:
        folder: new.
        bundle: the model.
        programs: programs as the bundle reads them, [N, rows, C], of which the first with rows become the example of a
            question; None, or none with rows: there is no example.
    """
    from mlflow.types import ColSpec, DataType

    info = read_info(bundle)
    inputs = [ColSpec(DataType.long, "program")]
    inputs += [ColSpec(DataType.float, name) for name in info.feature_spec.columns]
    outputs = [ColSpec(DataType.long, "program"), ColSpec(DataType.double, "score")]
    code = Path(__file__).with_name("pyfunc.py")
    needs = requirement("tuner", info.versions)
    save_model(folder, bundle, code, inputs, outputs, needs, _example(info, programs))


def requirement(extra: str, versions: Mapping[str, str]) -> str:
    """Return what pip has to install for a bundle; no version is asked for where the bundle does not say its own.

    Args:
        extra: of tencost.
        versions: as the bundle has them.
    """
    version = versions.get("tencost")
    return f"tencost[{extra}]" + (f"=={version}" if version else "")


def _example(info: BundleInfo, programs: Ragged | None) -> dict[str, Any] | None:
    """Return what the model may be asked, as columns: the number of a program for each row, then the features."""
    columns = info.feature_spec.columns
    if programs is None:
        return None
    used = np.flatnonzero(programs.lengths)[:EXAMPLE_PROGRAMS]
    if not len(used):
        return None
    rows = programs.take(used)
    values = {name: rows.values[:, at] for at, name in enumerate(columns)}
    return {"program": rows.segment_ids, **values}


def save_model(
    folder: Path,
    bundle: Path,
    code: Path,
    inputs: list[Any],
    outputs: list[Any],
    needs: str,
    example: dict[str, Any] | None = None,
) -> None:
    """Write an MLflow model around a bundle.

    Args:
        folder: new.
        bundle: copied into it.
        code: the module that MLflow runs to have the model.
        inputs: MLflow's ColSpecs of the columns that it is asked with.
        outputs: those of what it answers.
        needs: what pip has to install, beside pandas.
        example: a question, by column; kept beside the model, for who serves it.
    """
    import mlflow.pyfunc
    import mlflow.utils.environment
    import pandas as pd
    from mlflow.models import ModelSignature
    from mlflow.types import Schema

    # MLflow would compare the requirements with this environment, whose versions they are, and read the file list of
    # every installed package for it, which takes 0.7 s.
    unchecked = patch.object(mlflow.utils.environment, "warn_dependency_requirement_mismatches")
    with warnings.catch_warnings(), unchecked:
        # MLflow would rather have an example of the input than the signature it is given, and writes the example
        # in a way that pandas does not like.
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        mlflow.pyfunc.save_model(
            str(folder),
            python_model=str(code),
            artifacts={"bundle": str(bundle)},
            signature=ModelSignature(inputs=Schema(inputs), outputs=Schema(outputs)),
            pip_requirements=[needs, "pandas"],
            input_example=None if example is None else pd.DataFrame(example),
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
