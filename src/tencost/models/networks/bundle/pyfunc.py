"""A graph bundle as an MLflow pyfunc: this file is copied beside the bundle and run when the model is loaded.

Input: a data frame with one row a node: the integer column ``graph`` says which network it belongs to, ``operator`` is
its name, the others are the numbers of tencost.networks.graph.operators.COLUMNS; ``inputs`` lists the nodes that it
reads, counted within the network, as text ("3 5"). Output: one row a network in order of first appearance, columns
``graph`` and ``latency_ms``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel

from tencost.models.networks.bundle import GraphBundle, load_graph_bundle
from tencost.networks.graph.graph_set import GraphSet
from tencost.networks.graph.operators import COLUMNS, OPERATOR_CODES


class GraphBundleModel(PythonModel):
    """Predicts latencies with the bundle."""

    bundle: GraphBundle

    def load_context(self, context: Any) -> None:
        """Load and verify the bundle."""
        self.bundle = load_graph_bundle(Path(context.artifacts["bundle"]))

    def predict(self, model_input: pd.DataFrame) -> pd.DataFrame:
        """Predict latencies, see the module's text."""
        codes, names = pd.factorize(model_input["graph"])
        rows = model_input.iloc[np.argsort(codes, kind="stable")]
        lengths = np.bincount(codes, minlength=len(names))
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        inputs = [[int(word) for word in str(text).split()] for text in rows["inputs"]]
        within = np.arange(len(rows)) - np.repeat(starts[:-1], lengths)
        targets = np.repeat(within, [len(sources) for sources in inputs])
        edges = np.array(
            [[source for sources in inputs for source in sources], targets], dtype=np.int32
        )
        of_graph = np.repeat(np.sort(codes), [len(sources) for sources in inputs])
        edge_starts = np.concatenate(
            [np.zeros(1, np.int64), np.cumsum(np.bincount(of_graph, minlength=len(names)))]
        )
        blank = np.array([str(name) for name in names])
        graphs = GraphSet(
            graph_id=blank,
            family=blank,
            name=blank,
            position=np.zeros(len(names), np.int32),
            operator=np.array([OPERATOR_CODES[name] for name in rows["operator"]], np.uint8),
            columns=rows[list(COLUMNS)].to_numpy(np.int32),
            node_start=starts,
            edges=edges,
            edge_start=edge_starts,
        )
        return pd.DataFrame({"graph": names, "latency_ms": self.bundle.predict_ms(graphs)})


set_model(GraphBundleModel())
