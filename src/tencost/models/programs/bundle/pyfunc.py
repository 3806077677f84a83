"""The bundle as an MLflow pyfunc: this file is copied beside the bundle and run when the model is loaded.

Input: a data frame with one row a feature row (buffer store or schedule primitive): the integer column ``program`` says
which program it belongs to, the others are the feature columns of the bundle. Output: one row a program in order of
first appearance, columns ``program`` and ``score``, in (0, 1], higher is faster.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel

from tencost.features.rows.ragged import Ragged
from tencost.models.programs.bundle import Bundle, load_bundle


class BundleModel(PythonModel):
    """Scores feature rows with the bundle."""

    bundle: Bundle

    def load_context(self, context: Any) -> None:
        """Load and verify the bundle."""
        self.bundle = load_bundle(Path(context.artifacts["bundle"]))

    def predict(self, model_input: pd.DataFrame) -> pd.DataFrame:
        """Score programs, see the module's text."""
        codes, programs = pd.factorize(model_input["program"])
        order = np.argsort(codes, kind="stable")
        columns = list(self.bundle.info.feature_spec.columns)
        values = model_input[columns].to_numpy(np.float32)[order]
        lengths = np.bincount(codes, minlength=len(programs))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        score = self.bundle.scores(Ragged(values, offsets))
        return pd.DataFrame({"program": programs, "score": score})


set_model(BundleModel())
