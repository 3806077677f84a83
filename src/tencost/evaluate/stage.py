"""The stage `evaluate`: every trained model of a hardware on the held-out part of the split.

Reads data/models/<dataset>/<hardware>/*/seed*/, records, features and split; writes
data/reports/<dataset>/<hardware>/: metrics.json (the winner's headline figures, what `dvc exp show` shows), models.json
(all figures of all models), leaderboard.json, leaderboard.md,
predictions.parquet (record_id, model, seed, raw, score, latency_s), plots/.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
from rich.console import Console

from tencost.config import Config, ExecutionKind, SplitPolicy
from tencost.errors import SplitError, TrainError
from tencost.evaluate import plots
from tencost.evaluate import run_metrics as tracking
from tencost.evaluate.choosing import Choice, choices
from tencost.evaluate.fold_scores import Folds
from tencost.evaluate.interval import Difference, bootstrap
from tencost.evaluate.leaderboard import TEST
from tencost.evaluate.lost_time import task_losses
from tencost.evaluate.prediction import (
    Prediction,
    TrainedFamily,
    find_models,
    load_seeds,
    predict,
    predict_ms,
    program_rows,
)
from tencost.evaluate.program_board import (
    FLOOR,
    ORACLE,
    RULE,
    Gain,
    ProgramBoard,
    ProgramRow,
    headline,
    program_row_fields,
)
from tencost.evaluate.report import print_program_board, program_board_markdown
from tencost.evaluate.scoring import (
    HEADINGS,
    HEADLINE,
    SeedScore,
    oracle,
    random_floor,
    rules_score,
    score_records,
    statistic,
)
from tencost.evaluate.truth import Truth, build_truth, join_truths, on_hardware
from tencost.train.data import Data
from tencost.workers.parallel.mapping import Rescue, in_order
from tencost.workers.parallel.workers import open_workers
from tencost.writing import shown_path, whole_folder


@dataclass(frozen=True)
class ScoredModel:
    """A model with its scores, one entry a seed."""

    model: TrainedFamily
    predictions: tuple[Prediction, ...]
    test: tuple[SeedScore, ...]
    valid: tuple[SeedScore, ...]
    predict_ms: float
    choice: Choice | None = None

    def row(self, root: Path, truth: Truth) -> ProgramRow:
        """Return its row of the leaderboard."""
        info = self.model.info
        return ProgramRow(
            model=self.model.name,
            family=info.family,
            features=info.feature_spec.name,
            reference=bool(info.model_config.get("reference", False)),
            seeds=tuple(bundle.info.seed for bundle in self.model.bundles),
            valid_pairwise=tuple(seed.overall.pairwise for seed in self.valid),
            choice=self.choice,
            folder=shown_path(self.model.folder, root),
            **program_row_fields(truth, self.test),
        )


def run(cfg: Config, root: Path, data: Data | None = None) -> ProgramBoard:
    """Compare all trained models of cfg.hardware; write the report, log it to MLflow, print the leaderboard.

    Raises:
        TrainError: no trained model.
        SplitError: the split has no test part for the hardware, or a model was trained on another
            split.
    """
    root = root.resolve()
    console = Console(stderr=True)
    data = data or Data(cfg, root)
    truth, valid = load_truth(data, "test"), load_valid(data)
    folders = find_models(root / cfg.paths.models / cfg.dataset.name / cfg.hardware.name)
    with console.status("evaluate") as status:
        models = [load_seeds(folder) for folder in folders]
        stale = [model for model in models if model.info.split_hash != data.split_hash]
        for model in stale:
            console.print(f"left out: {_stale(model, cfg)}", style="yellow")
        if len(stale) == len(models):
            raise SplitError(_stale(stale[-1], cfg))
        scored = []
        current = [model for model in models if model not in stale]
        for evaluated in _scored(cfg, data, truth, valid, current):
            status.update(f"evaluate: {evaluated.model.name} is done")
            scored.append(evaluated)
        scored = _with_choices(data, scored)
        board = _board(data, root, truth, scored)
        status.update("evaluate: plots")
        report = root / cfg.paths.reports / cfg.dataset.name / cfg.hardware.name
        _write_report(report, board, truth, scored)
    tracking.log_comparison(root, cfg, board, report)
    rows = {row.model: row for row in board.rows}
    plot_files = sorted((report / "plots").iterdir())
    for evaluated in scored:
        name = evaluated.model.name
        files = [path for path in plot_files if path.stem.endswith(f"-{name}")]
        tracking.log_model_scores(root, cfg, rows[name], evaluated.predict_ms, files)
    print_program_board(board)
    return board


def score_run(data: Data, model_folder: Path) -> ProgramRow:
    """Score one freshly trained model on the test part and log its figures and plots into its own MLflow run.

    Args:
        data: what it was trained on.
        model_folder: its bundles, one a seed.
    """
    cfg, root = data.cfg, data.root.resolve()
    truth, valid = load_truth(data, "test"), load_valid(data)
    model = load_seeds(model_folder.resolve())
    if model.info.split_hash != data.split_hash:
        raise SplitError(_stale(model, cfg))
    scored = _score(model, data, truth, valid)
    row = scored.row(root, truth)
    with tempfile.TemporaryDirectory(prefix="tencost-") as scratch:
        _plot_model(truth, scored, Path(scratch), cfg.hardware.name)
        files = sorted(Path(scratch).iterdir())
        tracking.log_model_scores(root, cfg, row, scored.predict_ms, files)
    figures = ", ".join(f"{name} {row.mean(metric):.3f}" for metric, name in HEADINGS.items())
    Console(stderr=True).print(f"{row.model} on the test part: {figures}")
    return row


def load_truth(data: Data, part: str) -> Truth:
    """Return what was measured on cfg.hardware in a part of the split.

    Of the test part that are the networks that a by_network split holds out, else all.

    Args:
        data: the dataset; its configuration names hardware and split.
        part: valid or test.

    Raises:
        SplitError: nothing to evaluate.
    """
    cfg = data.cfg
    held_out = part == "test" and cfg.split.policy is SplitPolicy.by_network
    networks = cfg.split.test if held_out else []
    truths = {
        name: build_truth(
            data.judged_records, data.split, data.tasks, name, part, networks, data.rule_times
        )
        for name in data.hardware()
    }
    return join_truths(truths) if cfg.hardware.members else next(iter(truths.values()))


def load_valid(data: Data) -> Truth | None:
    """Return the validation part, which chooses among families and seeds; None if the split has none."""
    try:
        return load_truth(data, "valid")
    except SplitError:
        return None


def differences(
    truth: Truth, a: Sequence[SeedScore], b: Sequence[SeedScore]
) -> dict[str, Difference]:
    """Compare two models on the same tasks: the HEADLINE figures with paired bootstrap intervals."""

    def difference(metric: str) -> Difference:
        of_a, of_b = statistic(metric, truth, a), statistic(metric, truth, b)
        return bootstrap(
            lambda counts: of_a(counts) - of_b(counts), truth.stratum, clusters=truth.network
        )

    return {metric: difference(metric) for metric in HEADLINE}


def _scored(
    cfg: Config, data: Data, truth: Truth, valid: Truth | None, models: Sequence[TrainedFamily]
) -> Iterator[ScoredModel]:
    """Score models, in their order: here one after another, or side by side on a cluster that reads this folder."""
    if cfg.execution.kind is ExecutionKind.local:
        yield from (_score(model, data, truth, valid) for model in models)
        return

    def died(model: Path, reason: str) -> Sequence[Any]:
        raise TrainError(
            f"{model}: {reason} each time it was scored, most often for want of memory"
        )

    shared = (cfg, data.root, truth, valid)
    folders = [model.folder for model in models]
    workers = open_workers(_score_folder, shared, cfg.execution, cfg.jobs)
    results = in_order(workers, folders, Rescue(died))
    for model, (figures,) in zip(models, results, strict=True):
        yield ScoredModel(model, *figures)


def _score_folder(shared: Any, folder: Path) -> list[Any]:
    cfg, root, truth, valid = shared
    evaluated = _score(load_seeds(folder), Data(cfg, root), truth, valid)
    return [(evaluated.predictions, evaluated.test, evaluated.valid, evaluated.predict_ms)]


def _score(model: TrainedFamily, data: Data, truth: Truth, valid: Truth | None) -> ScoredModel:
    rows = program_rows(data, model.info, truth)
    predictions = tuple(predict(bundle, rows) for bundle in model.bundles)
    test = _seed_scores(truth, predictions)
    of_valid: tuple[SeedScore, ...] = ()
    if valid is not None:
        valid_rows = program_rows(data, model.info, valid)
        of_valid = _seed_scores(valid, [predict(bundle, valid_rows) for bundle in model.bundles])
    return ScoredModel(model, predictions, test, of_valid, predict_ms(model.bundles[0], rows))


def _seed_scores(truth: Truth, predictions: Sequence[Prediction]) -> tuple[SeedScore, ...]:
    return tuple(
        score_records(truth, prediction.raw, prediction.score) for prediction in predictions
    )


def _with_choices(data: Data, scored: Sequence[ScoredModel]) -> list[ScoredModel]:
    """Add how each candidate did on the networks left out of its training."""
    folds = Folds(data)
    by_model = choices(
        {
            evaluated.model.name: folds.figures(evaluated.model.folder)
            for evaluated in scored
            if not evaluated.model.info.model_config.get("reference", False)
        }
    )
    return [replace(evaluated, choice=by_model.get(evaluated.model.name)) for evaluated in scored]


def _board(data: Data, root: Path, truth: Truth, scored: Sequence[ScoredModel]) -> ProgramBoard:
    cfg = data.cfg
    rows = sorted(
        (evaluated.row(root, truth) for evaluated in scored), key=lambda row: -row.mean("geo1")
    )
    ends = [
        ProgramRow(model=name, **program_row_fields(truth, [score(truth)]))
        for name, score in ((FLOOR, random_floor), (RULE, rules_score), (ORACLE, oracle))
        if name != RULE or not np.isnan(truth.rule_s).any()
    ]
    board = ProgramBoard(
        dataset=cfg.dataset.name,
        hardware=cfg.hardware.name,
        split=cfg.split_name,
        split_hash=scored[0].model.info.split_hash,
        part="test",
        networks=truth.networks,
        coverage=truth.coverage,
        rows=(*rows, *ends),
        left_out=truth.left_out,
    )
    best = board.winner()
    if best is None:
        return board
    seeds = {evaluated.model.name: evaluated.test for evaluated in scored}
    gains = tuple(
        Gain(
            model=best.model,
            opponent=row.model,
            differences=differences(truth, seeds[best.model], seeds[row.model]),
        )
        for row in sorted(board.models, key=lambda row: row.reference)
        if row.model != best.model
    )
    tasks = data.tasks.select("network", "workload_id", "task_name").rows()
    hardware = data.hardware() if cfg.hardware.members else []
    names = {
        (place, workload): task
        for network, workload, task in tasks
        for place in ([on_hardware(network, name) for name in hardware] or [network])
    }
    losses = task_losses(truth, seeds[best.model], names)
    return replace(board, gains=gains, losses=losses)


def _stale(model: TrainedFamily, cfg: Config) -> str:
    return (
        f"{model.name} was trained on another state of the records or on another split "
        f"({model.info.split}), so what is tested here may have been learnt from. "
        f"Train it again: tencost train split={cfg.split_name}, or remove {model.folder}"
    )


def _write_report(
    folder: Path, board: ProgramBoard, truth: Truth, scored: Sequence[ScoredModel]
) -> None:
    """Write the report's folder; it appears whole or not at all."""
    with whole_folder(folder) as partial:
        (partial / "plots").mkdir()
        models = {model: parts[TEST] for model, parts in board.metrics().items()}
        for name, content, order in (
            ("metrics.json", headline(board), 0),
            ("models.json", models, orjson.OPT_SORT_KEYS),
        ):
            (partial / name).write_bytes(
                orjson.dumps(content, option=orjson.OPT_INDENT_2 | order) + b"\n"
            )
        board.save(partial / board.FILE)
        (partial / "leaderboard.md").write_text(program_board_markdown(board), encoding="utf-8")
        _predictions(truth, scored).write_parquet(partial / "predictions.parquet")
        _plot(board, truth, scored, partial / "plots")


def _predictions(truth: Truth, scored: Sequence[ScoredModel]) -> pl.DataFrame:
    frames = [
        pl.DataFrame(
            {
                "record_id": truth.record_id,
                "model": evaluated.model.name,
                "seed": bundle.info.seed,
                "raw": prediction.raw,
                "score": prediction.score,
                "latency_s": truth.latency_s,
            }
        ).with_columns(pl.col("raw", "latency_s").fill_nan(None))
        for evaluated in scored
        for bundle, prediction in zip(evaluated.model.bundles, evaluated.predictions, strict=True)
    ]
    return pl.concat(frames)


def _plot(board: ProgramBoard, truth: Truth, scored: Sequence[ScoredModel], folder: Path) -> None:
    seeds = {evaluated.model.name: evaluated.test for evaluated in scored}
    curves = {row.model: seeds[row.model] for row in board.models}
    plots.plot_leaderboard(board, folder)
    plots.plot_top_k(curves, random_floor(truth), folder, board.hardware)
    plots.plot_search(truth, curves, folder, board.hardware)
    plots.plot_losses(board, folder)
    for evaluated in scored:
        _plot_model(truth, evaluated, folder, board.hardware)


def _plot_model(truth: Truth, evaluated: ScoredModel, folder: Path, hardware: str) -> None:
    """Plot the seed that did best on the validation part."""
    seed, name = best_seed(evaluated.valid or evaluated.test), evaluated.model.name
    plots.plot_predicted(truth, evaluated.predictions[seed].score, name, folder, hardware)
    shares = evaluated.model.bundles[seed].ranker.importance()
    if shares:
        plots.plot_importance(shares, name, folder)


def best_seed(scores: Sequence[SeedScore]) -> int:
    """Return the position of the seed with the highest pairwise accuracy, the first one on ties."""
    pairwise = [score.overall.pairwise for score in scores]
    return int(np.argmax(np.nan_to_num(pairwise, nan=-np.inf)))
