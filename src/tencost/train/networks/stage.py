"""The stage `graphs train`: one bundle a seed, for all devices of the dataset, and an MLflow run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray
from rich.console import Console

from tencost.config import Config
from tencost.config.parts import GRAPH_FAMILIES
from tencost.errors import TrainError
from tencost.models.networks.bundle import (
    SEEN,
    GraphBundleInfo,
    graph_training_digest,
    plain_config,
    save_bundle,
)
from tencost.models.networks.bundle.latency_metrics import average, by_family
from tencost.models.networks.bundle.training_range import (
    log_error_bounds,
    training_range,
)
from tencost.models.networks.family import GraphModel
from tencost.networks.graph.graph_set import LabelledGraphs
from tencost.tracking.provenance import installed_versions
from tencost.tracking.runs import MetricPoint, TrackedRun
from tencost.train import stage
from tencost.train.networks.data import GraphData
from tencost.train.networks.tracked import start_graph_run
from tencost.train.stage import DatasetFacts, Logged
from tencost.writing import shown_path

RUN_FILE = "run.json"
"""Beside the bundles: seeds and validation metrics."""


@dataclass(frozen=True)
class TrainedGraphModel:
    """One seed's model.

    Attributes:
        seed: what it was trained with.
        model: the model.
        points: what it logged while it trained.
        valid_ms: its predictions for the validation part, milliseconds, float64 [graphs, devices].
        valid: device -> validation metrics by name; devices without measurements there have none.
        seconds: training time, wall clock.
    """

    seed: int
    model: GraphModel
    points: list[MetricPoint]
    valid_ms: NDArray[np.float64]
    valid: dict[str, dict[str, float]]
    seconds: float


def run(cfg: Config, root: Path, data: GraphData | None = None) -> float:
    """Train cfg.graph_model once a seed; write the bundles and log the run.

    Returns:
        The mean MAPE over devices, families and seeds on the validation part (lower is better).

    Raises:
        ConfigError: seeds that are not all different.
        TrainError: nothing to learn from.
        OSError: the folder of the bundles cannot be written; it is raised before anything is trained.
    """
    _, trained = stage.run(GraphTraining(cfg, root, data or GraphData(cfg, root)))
    return float(np.mean([scores["mape"] for seed in trained for scores in seed.valid.values()]))


@dataclass
class GraphTraining(stage.TrainingSubject[TrainedGraphModel]):
    """A family of graph models for all devices of a dataset.

    Attributes:
        data: graphs, latencies and split.
        train, valid: parts of the split, after `read`.
    """

    data: GraphData
    train: LabelledGraphs = field(init=False)
    valid: LabelledGraphs = field(init=False)

    @property
    def folder(self) -> Path:
        return self.data.folders.model

    def read(self) -> None:
        self.train, self.valid = self.data.part("train"), self.data.part("valid")
        if not len(self.train) or not len(self.valid):
            raise TrainError(
                f"expected graphs to learn from and to validate on in {self.data.folders.split}, found "
                f"{len(self.train)} and {len(self.valid)}"
            )

    def start_run(self) -> AbstractContextManager[TrackedRun]:
        cfg = self.cfg
        name = f"{cfg.graph_model_name} · {cfg.dataset.name} · {cfg.graph_split_name}"
        return start_graph_run(cfg, self.root, "graphs train", name=name, of_model=True)

    def facts(self) -> DatasetFacts:
        return DatasetFacts(
            digest=self.data.dataset_hash,
            source={
                "path": shown_path(self.data.folders.graphs, self.data.root),
                "source": self.cfg.dataset.source,
            },
            counts={"num_train": len(self.train), "num_valid": len(self.valid)},
            profile={"split": self.cfg.graph_split_name, "split_hash": self.data.split_hash},
        )

    def fit(self, tracked: TrackedRun) -> list[TrainedGraphModel]:
        del tracked
        return [_fit(self.cfg, seed, self.train, self.valid) for seed in self.cfg.seeds]

    def save(self, trained: Sequence[TrainedGraphModel], folder: Path) -> None:
        cfg, valid = self.cfg, self.valid
        seen = training_range(self.train.graphs)
        files = {SEEN: orjson.dumps(seen, option=orjson.OPT_INDENT_2)}
        for seed in trained:
            bounds = log_error_bounds(valid.latency_ms, seed.valid_ms)
            info = GraphBundleInfo(
                family=cfg.graph_model.family,
                model_config=plain_config(cfg.graph_model),
                devices=self.train.hardware,
                dataset=cfg.dataset.name,
                dataset_hash=self.data.dataset_hash,
                split=cfg.graph_split_name,
                split_hash=self.data.split_hash,
                seed=seed.seed,
                log_error={
                    device: [round(float(bound), 6) for bound in pair if np.isfinite(bound)]
                    for device, pair in zip(valid.hardware, bounds, strict=True)
                },
                versions=installed_versions(),
                metrics={
                    f"valid_{device}_{name}": metric
                    for device, scores in seed.valid.items()
                    for name, metric in scores.items()
                    if metric == metric
                },
            )
            save_bundle(folder / f"seed{seed.seed}", seed.model, info, files)
        run_file = {
            "seeds": [seed.seed for seed in trained],
            "valid": {str(seed.seed): seed.valid for seed in trained},
        }
        (folder / RUN_FILE).write_bytes(orjson.dumps(run_file, option=orjson.OPT_INDENT_2))

    def digest(self) -> str:
        return graph_training_digest(self.folder)

    def log(self, tracked: TrackedRun, trained: Sequence[TrainedGraphModel]) -> Logged:
        tracked.log_points([point for seed in trained for point in seed.points])
        with tempfile.TemporaryDirectory(prefix="tencost-") as scratch:
            path = Path(scratch) / "seconds.json"
            path.write_bytes(orjson.dumps({str(seed.seed): seed.seconds for seed in trained}))
            tracked.log_artifact(path)
        return Logged(
            {
                f"valid/{device}/{name}": float(np.mean([s.valid[device][name] for s in trained]))
                for device, scores in trained[0].valid.items()
                for name in scores
            }
        )

    def summary(self, trained: Sequence[TrainedGraphModel]) -> Iterator[str]:
        seconds = sum(seed.seconds for seed in trained)
        yield f"{self.cfg.graph_model_name}: {len(trained)} seed(s) in {seconds:.1f} s"
        for device in trained[0].valid:
            metrics = ", ".join(
                f"{name} {np.mean([seed.valid[device][name] for seed in trained]):.3f}"
                for name in ("acc10", "mape", "tau")
            )
            yield f"  {device}: validation {metrics}"


def _fit(cfg: Config, seed: int, train: LabelledGraphs, valid: LabelledGraphs) -> TrainedGraphModel:
    model = GRAPH_FAMILIES.load(cfg.graph_model.family).make(cfg.graph_model, len(train.hardware))
    points: list[MetricPoint] = []
    start = time.perf_counter()
    with Console(stderr=True).status(f"training {cfg.graph_model_name} · seed {seed}") as status:

        def report(name: str, value: float, step: int) -> None:
            points.append(MetricPoint(f"train/seed{seed}/{name}", value, step))
            status.update(
                f"training {cfg.graph_model_name} · seed {seed}: step {step}, {name} {value:.4g}"
            )

        model.fit(train, valid, seed=seed, report=report)
    seconds = time.perf_counter() - start
    predicted_ms = model.predict(valid.graphs)
    scores = {}
    for column, device in enumerate(valid.hardware):
        families = by_family(
            valid.graphs.family, predicted_ms[:, column], valid.latency_ms[:, column]
        )
        if families:
            scores[device] = average(list(families.values())).metrics()
    return TrainedGraphModel(seed, model, points, predicted_ms, scores, seconds)
