"""Graph neural networks: those of the CG benchmark (DGRL-Hardware), on torch-geometric and Lightning.

A bundle is two files: `gnn.safetensors` with the network's weights, the means and spreads of the labels among them, and
`gnn.json` with the settings that shape it and the epoch that it is of.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from tencost.config.checking import one_of, within
from tencost.config.graphs import GraphModelConfig
from tencost.errors import BundleError, ConfigError
from tencost.models.networks.family import GraphFamily, Report
from tencost.models.neural.settings import ACCELERATORS
from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs

if TYPE_CHECKING:
    from tencost.models.networks.gnn.training import TrainedGnn

CONVOLUTIONS = ("gcn", "gin", "gat", "gps", "performer", "magnet", "digcn", "dgcn")
DIRECTIONS = ("undirected", "directed", "bidirectional")
"""How convolutions read the edges: both ways at once, forwards only, or by two convolutions whose mean counts."""
WITH_EDGES = ("gin", "gat", "gps", "performer")
"""Convolutions that read encodings of edges."""
WITH_HEADS = ("gat", "gps", "performer")


@dataclass(kw_only=True)
class GnnConfig(GraphModelConfig):
    """A graph neural network, all devices learnt together."""

    convolution: str = "gin"
    """gcn, gin, gat, gps (attention), performer (linear attention), magnet, digcn or dgcn."""
    direction: str = "undirected"
    """undirected, directed (forwards) or bidirectional (mean of both ways); no matter to magnet, digcn and dgcn."""
    encoding: str = "none"
    """Where a node stands: none, random_walk, laplacian or magnetic."""
    edge_encoding: str = "none"
    """Where an edge stands (gin, gat, gps, performer): none, laplacian or magnetic; stable (SPE)."""
    encoding_size: int = 10
    """Eigenvectors, or steps of the random walk."""
    q: float = 0.1
    """Charge of the magnetic Laplacian, of magnet's too."""
    shapes: str = "embedding"
    """How a node's numbers are read: embedding (each value a word) or numbers (logarithms)."""
    hidden: int = 64
    """Width of every hidden layer."""
    layers: int = 4
    """Convolutions one after the other."""
    pool: str = "log_sum"
    """How nodes become a graph: sum (as CG), or log_sum, the logarithm of a sum of exponentials."""
    mlp_layers: int = 3
    """Layers behind the sum over a graph, the last one included."""
    heads: int = 4
    """gat, gps, performer: heads of the attention; they divide `hidden`."""
    dropout: float = 0.0
    """Share of hidden units dropped while training."""
    label: str = "log"
    """What is learnt: log (absolute error of the logarithm) or raw (squared error of milliseconds, as CG)."""
    epochs: int = 60
    """Passes over the training graphs at most."""
    batch_size: int = 64
    """Graphs in a batch."""
    learning_rate: float = 0.004
    """Largest step size of Adam."""
    schedule: str = "cosine"
    """How the step size falls: cosine (to 0 at the last epoch, or when max_minutes are over) or step (by .95 every 100
    epochs, as CG)."""
    gradient_clip: float = 1.0
    """Largest norm of the gradient."""
    patience: int = 0
    """Epochs without a better validation error before training stops; 0 never stops."""
    max_minutes: float = 0.0
    """Training stops after the epoch in which so many minutes are over; 0 never. Then weights depend on the clock."""
    num_threads: int = 2
    """Threads while training and predicting."""
    accelerator: str = "cpu"
    """Lightning's accelerator while training: cpu, gpu, cuda, mps or auto. Predictions always run on the CPU."""

    def __post_init__(self) -> None:
        one_of("model.accelerator", self.accelerator, ACCELERATORS)
        one_of("model.convolution", self.convolution, CONVOLUTIONS)
        one_of("model.direction", self.direction, DIRECTIONS)
        one_of("model.encoding", self.encoding, ("none", "random_walk", "laplacian", "magnetic"))
        one_of("model.edge_encoding", self.edge_encoding, ("none", "laplacian", "magnetic"))
        one_of("model.shapes", self.shapes, ("embedding", "numbers"))
        one_of("model.pool", self.pool, ("sum", "log_sum"))
        one_of("model.label", self.label, ("log", "raw"))
        one_of("model.schedule", self.schedule, ("cosine", "step"))
        within("model", self, encoding_size="[1, inf)", q="[0, 0.25]", hidden="[1, inf)")
        within("model", self, layers="[1, inf)", mlp_layers="[1, inf)", heads="[1, inf)")
        within("model", self, dropout="[0, 1)", epochs="[1, inf)", batch_size="[1, inf)")
        within("model", self, learning_rate="(0, 1]", gradient_clip="(0, inf)")
        within("model", self, patience="[0, inf)", max_minutes="[0, inf)")
        within("model", self, num_threads="[1, inf)")
        if self.edge_encoding != "none" and self.convolution not in WITH_EDGES:
            raise ConfigError(
                f"model.edge_encoding={self.edge_encoding} needs a convolution that reads edges, one of "
                f"{', '.join(WITH_EDGES)}; found {self.convolution}"
            )
        if self.convolution in WITH_HEADS and self.hidden % self.heads:
            raise ConfigError(
                f"model.hidden must be a multiple of model.heads, found {self.hidden} and {self.heads}"
            )

    @property
    def shape(self) -> dict[str, Any]:
        """The settings that weights depend on in number and meaning."""
        names = (
            "convolution", "direction", "encoding", "edge_encoding", "encoding_size", "q", "shapes", "hidden",
            "layers", "pool", "mlp_layers", "heads", "label",
        )  # fmt: skip
        values = asdict(self)
        return {name: values[name] for name in names}


class GnnModel:
    """A graph neural network.

    Args:
        config: its settings.
        num_devices: outputs.
        resume: a folder for what an interrupted training needs to continue; None keeps nothing.
    """

    def __init__(self, config: GnnConfig, num_devices: int, resume: Path | None = None) -> None:
        self._config, self._num_devices, self._resume = config, num_devices, resume
        self._trained: TrainedGnn | None = None

    @property
    def epoch(self) -> int:
        """The epoch that the weights are of, counted from 1; 0 before training."""
        return 0 if self._trained is None else self._trained.epoch

    def fit(
        self, train: LabelledGraphs, valid: LabelledGraphs, *, seed: int, report: Report
    ) -> None:
        from tencost.models.networks.gnn.training import fit_gnn

        self._trained = fit_gnn(
            self._config, train, valid, seed=seed, report=report, resume=self._resume
        )

    def predict(self, graphs: GraphSet) -> NDArray[np.float64]:
        assert self._trained is not None, "fit or load comes first"
        return self._trained.predict(graphs)

    def save(self, folder: Path) -> None:
        from tencost.models.neural.weights import write_weights

        assert self._trained is not None, "fit or load comes first"
        write_weights(folder / "gnn.safetensors", self._trained.weights())
        header = {"settings": self._config.shape, "epoch": self._trained.epoch}
        (folder / "gnn.json").write_bytes(
            orjson.dumps(header, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        )

    def load(self, folder: Path) -> None:
        from tencost.models.networks.gnn.training import TrainedGnn
        from tencost.models.neural.weights import check_weights, read_weights

        path = folder / "gnn.json"
        try:
            header = orjson.loads(path.read_bytes())
            settings, epoch = header["settings"], int(header["epoch"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BundleError(
                f'{path}: expected {{"settings": {{...}}, "epoch": n}}, found {error}. '
                "Pull or train the model again."
            ) from error
        if settings != self._config.shape:
            raise BundleError(
                f"{path}: expected the settings {self._config.shape} as configured, found {settings}. "
                "Pull or train the model again."
            )
        weights = read_weights(folder / "gnn.safetensors")
        empty = TrainedGnn.empty(self._config, self._num_devices, epoch)
        shapes = {name: value.shape for name, value in empty.weights().items()}
        check_weights(folder / "gnn.safetensors", weights, shapes)
        empty.fill(weights)
        self._trained = empty


FAMILY = GraphFamily(
    config=GnnConfig,
    make=GnnModel,
    for_tests=GnnConfig(
        family="gnn",
        convolution="gin",
        shapes="numbers",
        hidden=16,
        layers=1,
        epochs=2,
        batch_size=16,
        num_threads=1,
    ),
)
