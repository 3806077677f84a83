"""The stage `graphs evaluate`: all trained models of a split on its test parts, device by device.

Writes data/reports/<dataset>-<split>/devices/<hardware>/ for each device: graph_leaderboard.json, leaderboard.md,
predictions.parquet (graph_id, family, name, part, measured_ms, and a column a model and seed) and
predicted-<model>.png; and metrics.json beside `devices`, the metrics of all of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import polars as pl
from numpy.typing import NDArray

from tencost.config import Config
from tencost.errors import ConfigError
from tencost.evaluate.leaderboard import TEST
from tencost.evaluate.networks import report
from tencost.evaluate.networks.board import OTHER, GraphBoard, GraphRow, graph_row_fields
from tencost.models.networks.bundle import GraphBundle, load_graph_bundle
from tencost.models.networks.bundle.latency_metrics import GraphScore, by_family
from tencost.networks.graph.graph_set import LabelledGraphs
from tencost.train.networks.data import GraphData
from tencost.train.networks.stage import RUN_FILE
from tencost.train.networks.tracked import start_graph_run
from tencost.writing import shown_path, whole_file, whole_folder


@dataclass(frozen=True)
class JudgedGraphModel:
    """A trained model: its bundles and what they predict for the graphs of the test parts.

    Attributes:
        name: of its configuration.
        bundles: one a seed, in order of the seeds.
        valid: seed -> device -> validation metrics.
        predicted_ms: part -> float64 [S, G, D].
    """

    name: str
    bundles: tuple[GraphBundle, ...]
    valid: dict[str, dict[str, dict[str, float]]]
    predicted_ms: dict[str, NDArray[np.float64]]

    @property
    def reference(self) -> bool:
        """Whether it is a baseline."""
        return bool(self.bundles[0].info.model_config.get("reference"))


def run(cfg: Config, root: Path) -> list[GraphBoard]:
    """Compare all trained models of the split.

    Raises:
        ConfigError: no model was trained on it.
    """
    data = GraphData(cfg, root)
    parts = test_parts(data)
    models = load_models(data, parts)
    boards = []
    name = f"evaluate {cfg.dataset.name} · {cfg.graph_split_name}"
    with start_graph_run(cfg, root, "graphs evaluate", name=name, of_model=False) as tracked:
        for column, hardware in enumerate(data.labelled.hardware):
            board = _board(data, hardware, column, parts, models)
            if not board.parts:
                continue
            folder = data.folders.report(hardware)
            _write(folder, board, column, parts, models)
            tracked.log_artifacts(folder, f"reports/{hardware}")
            best = board.winner()
            if best is not None:
                figures = {
                    f"test/{hardware}/{part}/{metric}": interval.mean
                    for part, intervals in best.parts.items()
                    for metric, interval in intervals.items()
                }
                tracked.log_metrics(figures)
            report.print_graph_board(board)
            boards.append(board)
    metrics = {board.hardware: board.metrics() for board in boards}
    with whole_file(data.folders.metrics) as path:
        path.write_bytes(orjson.dumps(metrics, option=orjson.OPT_INDENT_2) + b"\n")
    return boards


def test_parts(data: GraphData) -> dict[str, LabelledGraphs]:
    """Return the parts that models are tested on, those that are empty left out."""
    parts = {name: data.part(name) for name in (TEST, OTHER)}
    return {name: part for name, part in parts.items() if len(part)}


def load_models(data: GraphData, parts: dict[str, LabelledGraphs]) -> list[JudgedGraphModel]:
    """Load every model that was trained on the split as it is, and let it predict.

    Raises:
        ConfigError: there is none, or one was trained on other data.
    """
    folders = sorted(path.parent for path in data.folders.models.glob(f"*/{RUN_FILE}"))
    if not folders:
        raise ConfigError(
            f"expected trained models below {data.folders.models}, found none. Train one: tencost graphs train "
            f"dataset={data.cfg.dataset.name} split={data.cfg.graph_split_name}"
        )
    return [_load(data, folder, parts) for folder in folders]


def predict_all(bundles: tuple[GraphBundle, ...], part: LabelledGraphs) -> NDArray[np.float64]:
    """Return the predictions of each seed: float64 [S, G, D], milliseconds."""
    return np.stack([bundle.model.predict(part.graphs) for bundle in bundles])


def _load(data: GraphData, folder: Path, parts: dict[str, LabelledGraphs]) -> JudgedGraphModel:
    run_file = orjson.loads((folder / RUN_FILE).read_bytes())
    bundles = tuple(load_graph_bundle(folder / f"seed{seed}") for seed in run_file["seeds"])
    info = bundles[0].info
    if (info.dataset_hash, info.split_hash) != (data.dataset_hash, data.split_hash):
        raise ConfigError(
            f"{folder} was trained on another state of the dataset or the split. Train it again: tencost graphs train "
            f"dataset={data.cfg.dataset.name} split={data.cfg.graph_split_name} model={folder.name}"
        )
    predicted = {name: predict_all(bundles, part) for name, part in parts.items()}
    return JudgedGraphModel(folder.name, bundles, run_file["valid"], predicted)


def _board(
    data: GraphData,
    hardware: str,
    column: int,
    parts: dict[str, LabelledGraphs],
    models: list[JudgedGraphModel],
) -> GraphBoard:
    counts = {}
    for name, part in parts.items():
        measured = part.graphs.family[np.isfinite(part.latency_ms[:, column])]
        if len(measured):
            counts[name] = dict(sorted(Counter(measured.tolist()).items()))
    rows = [_row(data, hardware, column, parts, model) for model in models]
    rows.sort(key=lambda row: (np.nan_to_num(row.mean("mape"), nan=np.inf), row.model))
    return GraphBoard(
        dataset=data.cfg.dataset.name,
        hardware=hardware,
        split=data.cfg.graph_split_name,
        split_hash=data.split_hash,
        counts=counts,
        rows=tuple(rows),
    )


def _row(
    data: GraphData,
    hardware: str,
    column: int,
    parts: dict[str, LabelledGraphs],
    model: JudgedGraphModel,
) -> GraphRow:
    seeds: list[dict[str, dict[str, GraphScore]]] = [
        {
            name: by_family(
                part.graphs.family,
                model.predicted_ms[name][index, :, column],
                part.latency_ms[:, column],
            )
            for name, part in parts.items()
        }
        for index in range(len(model.bundles))
    ]
    infos = [bundle.info for bundle in model.bundles]
    return GraphRow(
        model=model.name,
        family=infos[0].family,
        reference=model.reference,
        seeds=tuple(info.seed for info in infos),
        valid_mape=tuple(
            model.valid[str(info.seed)][hardware]["mape"]
            for info in infos
            if hardware in model.valid[str(info.seed)]
        ),
        folder=shown_path(data.folders.models / model.name, data.root),
        **graph_row_fields(seeds),
    )


def _write(
    folder: Path,
    board: GraphBoard,
    column: int,
    parts: dict[str, LabelledGraphs],
    models: list[JudgedGraphModel],
) -> None:
    with whole_folder(folder) as content:
        board.save(content / board.FILE)
        (content / "leaderboard.md").write_text(report.graph_board_markdown(board))
        frames = []
        for name, part in parts.items():
            predicted = {
                f"{model.name}-seed{bundle.info.seed}": model.predicted_ms[name][index, :, column]
                for model in models
                for index, bundle in enumerate(model.bundles)
            }
            columns = {
                "graph_id": part.graphs.graph_id,
                "family": part.graphs.family,
                "name": part.graphs.name,
                "part": [name] * len(part),
                "measured_ms": part.latency_ms[:, column],
            }
            frames.append(pl.DataFrame({**columns, **predicted}))
        table = pl.concat(frames)
        table.write_parquet(content / "predictions.parquet")
        for model in models:
            means = [model.predicted_ms[name].mean(axis=0)[:, column] for name in parts]
            report.scatter(
                content / f"predicted-{model.name}.png",
                f"{board.hardware}: {model.name}",
                table["family"].to_numpy(),
                np.concatenate(means),
                table["measured_ms"].to_numpy(),
            )
