"""The stage `graphs train`: one bundle a seed, for all devices of the dataset, and an MLflow run."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray
from rich.console import Console

from tencost.config import Config
from tencost.config.parts import GRAPH_FAMILIES
from tencost.errors import ConfigError, TrainError
from tencost.models.networks.bundle import (
    SEEN,
    GraphBundleInfo,
    plain_settings,
    save_graph_bundle,
    training_digest,
)
from tencost.models.networks.bundle.latency_metrics import average, by_family
from tencost.models.networks.bundle.training_range import (
    log_error_bounds,
    range_to_json,
    training_range,
)
from tencost.models.networks.family import GraphModel
from tencost.networks.graph.graph_set import LabelledGraphs
from tencost.tracking.provenance import installed_versions
from tencost.tracking.runs import BUNDLES_TAG, Point, TrackedRun
from tencost.train.networks.data import GraphData
from tencost.train.networks.tracked import start_graph_run
from tencost.writing import scratch_beside, whole_folder

RUN_FILE = "run.json"
"""Beside the bundles: seeds and validation metrics."""


@dataclass(frozen=True)
class _Trained:
    seed: int
    model: GraphModel
    points: list[Point]
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
    if not cfg.seeds or len(set(cfg.seeds)) != len(cfg.seeds):
        raise ConfigError(f"seeds must be different whole numbers, at least one; found {cfg.seeds}")
    data = data or GraphData(cfg, root)
    with scratch_beside(data.folders.model):
        pass  # hours of training are not to end at a folder that cannot be written
    name = f"{cfg.graph_model_name} · {cfg.dataset.name} · {cfg.graph_split_name}"
    with start_graph_run(cfg, root, "graphs train", name=name, of_model=True) as tracked:
        train, valid = data.part("train"), data.part("valid")
        if not len(train) or not len(valid):
            raise TrainError(
                f"expected graphs to learn from and to validate on in {data.folders.split}, found "
                f"{len(train)} and {len(valid)}"
            )
        _log_data(tracked, cfg, data, train, valid)
        trained = [_train(cfg, seed, train, valid) for seed in cfg.seeds]
        _write(cfg, data, train, valid, trained)
        _log(tracked, data, trained)
    overall = float(np.mean([one.valid[device]["mape"] for one in trained for device in one.valid]))
    _say(cfg, trained)
    return overall


def _train(cfg: Config, seed: int, train: LabelledGraphs, valid: LabelledGraphs) -> _Trained:
    model = GRAPH_FAMILIES.load(cfg.graph_model.family).make(cfg.graph_model, len(train.hardware))
    points: list[Point] = []
    start = time.perf_counter()
    with Console(stderr=True).status(f"training {cfg.graph_model_name} · seed {seed}") as status:

        def report(name: str, value: float, step: int) -> None:
            points.append(Point(f"train/seed{seed}/{name}", value, step))
            status.update(
                f"training {cfg.graph_model_name} · seed {seed}: step {step}, {name} {value:.4g}"
            )

        model.fit(train, valid, seed=seed, report=report)
    seconds = time.perf_counter() - start
    found = model.predict(valid.graphs)
    scores = {}
    for column, device in enumerate(valid.hardware):
        families = by_family(valid.graphs.family, found[:, column], valid.latency_ms[:, column])
        if families:
            scores[device] = average(list(families.values())).metrics()
    return _Trained(seed, model, points, found, scores, seconds)


def _write(
    cfg: Config,
    data: GraphData,
    train: LabelledGraphs,
    valid: LabelledGraphs,
    trained: list[_Trained],
) -> None:
    """Write all bundles and run.json; the folder appears whole or not at all."""
    seen = orjson.dumps(range_to_json(training_range(train.graphs)), option=orjson.OPT_INDENT_2)
    with whole_folder(data.folders.model) as folder:
        for one in trained:
            bounds = log_error_bounds(valid.latency_ms, one.valid_ms)
            info = GraphBundleInfo(
                family=cfg.graph_model.family,
                model_config=plain_settings(cfg.graph_model),
                devices=train.hardware,
                dataset=cfg.dataset.name,
                dataset_hash=data.dataset_hash,
                split=cfg.graph_split_name,
                split_hash=data.split_hash,
                seed=one.seed,
                log_error={
                    device: [round(float(bound), 6) for bound in pair if np.isfinite(bound)]
                    for device, pair in zip(valid.hardware, bounds, strict=True)
                },
                versions=installed_versions(),
                metrics={
                    f"valid_{device}_{name}": value
                    for device, figures in one.valid.items()
                    for name, value in figures.items()
                    if value == value
                },
            )
            save_graph_bundle(folder / f"seed{one.seed}", one.model, info, {SEEN: seen})
        values = {
            "seeds": [one.seed for one in trained],
            "valid": {str(one.seed): one.valid for one in trained},
        }
        (folder / RUN_FILE).write_bytes(orjson.dumps(values, option=orjson.OPT_INDENT_2))


def _log_data(
    tracked: TrackedRun, cfg: Config, data: GraphData, train: LabelledGraphs, valid: LabelledGraphs
) -> None:
    counts = {"num_train": len(train), "num_valid": len(valid)}
    tracked.log_dataset(
        cfg.dataset.name,
        data.dataset_hash,
        {"path": str(data.folders.graphs.relative_to(data.root)), "source": cfg.dataset.source},
        {**counts, "split": cfg.graph_split_name, "split_hash": data.split_hash},
    )
    tracked.log_metrics({f"train/{name}": float(count) for name, count in counts.items()})


def _log(tracked: TrackedRun, data: GraphData, trained: list[_Trained]) -> None:
    tracked.set_tag(BUNDLES_TAG, training_digest(data.folders.model))
    tracked.log_points([point for one in trained for point in one.points])
    figures = {
        f"valid/{device}/{name}": float(np.mean([one.valid[device][name] for one in trained]))
        for device, names in trained[0].valid.items()
        for name in names
    }
    seconds = sum(one.seconds for one in trained)
    tracked.log_metrics({**figures, "train/fit_seconds": seconds})
    tracked.log_artifacts(data.folders.model, "bundles")
    with tempfile.TemporaryDirectory(prefix="tencost-") as scratch:
        path = Path(scratch) / "seconds.json"
        path.write_bytes(orjson.dumps({str(one.seed): one.seconds for one in trained}))
        tracked.log_artifact(path)


def _say(cfg: Config, trained: list[_Trained]) -> None:
    console = Console(stderr=True)
    seconds = sum(one.seconds for one in trained)
    console.print(f"{cfg.graph_model_name}: {len(trained)} seed(s) in {seconds:.1f} s")
    for device in trained[0].valid:
        shown = ", ".join(
            f"{name} {np.mean([one.valid[device][name] for one in trained]):.3f}"
            for name in ("acc10", "mape", "tau")
        )
        console.print(f"  {device}: validation {shown}", highlight=False)
