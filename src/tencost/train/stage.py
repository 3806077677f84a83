"""The stage `train`: samples -> one bundle a seed, and an MLflow run."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import orjson
import polars as pl
from rich.console import Console

from tencost.config import Config, Pool
from tencost.errors import ConfigError, TrainError
from tencost.features.spec import FeatureSpec
from tencost.features.table import FeatureTable, load_features
from tencost.splits.table import load_split
from tencost.store.tables import load_records
from tencost.train.bundle import BundleInfo, plain_config, save_bundle
from tencost.train.calibration import fit_calibration
from tencost.train.labels import LABEL_TEXT
from tencost.train.provenance import (
    content_hash,
    dvc_hash,
    git_state,
    installed_versions,
    tvm_range,
)
from tencost.train.pyfunc_model import save_pyfunc
from tencost.train.ranker import Samples
from tencost.train.samples import device_columns, load_samples, sample_spec
from tencost.train.seeds import Job, Trained, train_seeds
from tencost.train.tracking import Point, TrackedRun, start_run
from tencost.writing import whole_folder

RUN_FILE = "run.json"
"""Beside the bundles: the MLflow run, seeds, seconds and validation metrics."""

CHOICE = "choice"
"""The validation metric that seeds and epochs are chosen by."""


@dataclass(frozen=True)
class TrainResult:
    """What a training run left behind.

    Attributes:
        folder: data/models/<dataset>/<hardware>/<model>-<features>, one bundle a seed and run.json.
        run_id: the MLflow run.
        seeds: seeds in the order trained.
        valid_score: mean over seeds of the validation metric `choice`, higher is better.
        valid: validation metrics by name, mean over seeds.
        best_seed: the seed that did best on the validation split.
        fit_seconds: training time of all seeds.
    """

    folder: Path
    run_id: str
    seeds: tuple[int, ...]
    valid_score: float
    valid: dict[str, float]
    best_seed: int
    fit_seconds: float


@dataclass(frozen=True)
class _Data:
    train: Samples
    valid: Samples
    spec: FeatureSpec
    device: dict[str, float]
    dataset_hash: str
    split_hash: str
    hardware: tuple[str, ...]


def run(cfg: Config, root: Path) -> TrainResult:
    """Train cfg.model for cfg.hardware, once a seed; write the bundles and log the run.

    Raises:
        ConfigError: the family does not read the feature set, or no seed is given.
        TrainError: the split has nothing to learn from for this hardware.
    """
    _check(cfg)
    console = Console(stderr=True)
    folder = (
        root / cfg.paths.models / cfg.dataset.name / cfg.hardware.name
        / f"{cfg.model_name}-{cfg.features.name}"
    )  # fmt: skip
    with start_run(cfg, root, stage="train") as tracked:
        data = _load(cfg, root)
        _log_data(tracked, cfg, root, data)
        trained = _train(cfg, data)
        best = max(trained, key=lambda one: one.valid.get(CHOICE, 0.0))
        names = best.valid
        valid = {name: float(np.mean([one.valid[name] for one in trained])) for name in names}
        result = TrainResult(
            folder=folder,
            run_id=tracked.run_id,
            seeds=tuple(cfg.seeds),
            valid_score=valid.get(CHOICE, float("nan")),
            valid=valid,
            best_seed=best.seed,
            fit_seconds=sum(one.seconds for one in trained),
        )
        _write(cfg, root, data, trained, result)
        _log_result(tracked, trained, result)
    _say(console, cfg, result)
    return result


def _check(cfg: Config) -> None:
    if cfg.features.name not in cfg.model.reads:
        raise ConfigError(
            f"model={cfg.model_name} cannot be trained on features={cfg.features.name}: the family "
            f"{cfg.model.family} reads {', '.join(cfg.model.reads)}. Choose one of them, or add the "
            f"feature set to `reads` in conf/model/{cfg.model_name}.yaml."
        )
    if not cfg.seeds or len(set(cfg.seeds)) != len(cfg.seeds):
        raise ConfigError(f"seeds must be different whole numbers, at least one; found {cfg.seeds}")


def _load(cfg: Config, root: Path) -> _Data:
    columns = ["record_id", "program_id", "workload_id", "hardware", "status"]
    records = load_records(root / cfg.paths.records / cfg.dataset.name, columns=columns)
    split = load_split(root / cfg.paths.splits / cfg.dataset.name / cfg.split_name)
    features = load_features(root / cfg.paths.features / cfg.dataset.name / cfg.features.name)
    own = (cfg.hardware.name,)
    hardware = own
    if cfg.model.pool is Pool.all:
        hardware = tuple(sorted(records["hardware"].unique().to_list()))
    train = load_samples(root, cfg, hardware, "train", features, records=records, split=split)
    valid = _valid(cfg, root, own, hardware, features, records, split)
    device = device_columns(root, cfg, cfg.hardware.name) if cfg.features.device_columns else {}
    used = records.filter(pl.col("hardware").is_in(hardware))
    return _Data(
        train=train,
        valid=valid,
        spec=sample_spec(features.spec, device),
        device=device,
        dataset_hash=content_hash(used.select("record_id", "status", "latency_s")),
        split_hash=content_hash(split.select("record_id", "part")),
        hardware=hardware,
    )


def _valid(
    cfg: Config,
    root: Path,
    own: tuple[str, ...],
    hardware: tuple[str, ...],
    features: FeatureTable,
    records: pl.DataFrame,
    split: pl.DataFrame,
) -> Samples:
    """Load the validation part of the hardware that the model is for; of all, where that has none."""
    wanted = split.filter((pl.col("part") == "valid") & pl.col("hardware").is_in(own))
    chosen = own if len(wanted) else hardware
    return load_samples(root, cfg, chosen, "valid", features=features, records=records, split=split)


def _train(cfg: Config, data: _Data) -> list[Trained]:
    label = f"{cfg.model_name} · {cfg.features.name} · {cfg.hardware.name}"
    job = Job(cfg.model, data.spec, data.train, data.valid)
    trained = train_seeds(job, cfg.seeds, cfg.jobs, label)
    if not all(one.valid for one in trained):
        raise TrainError(
            f"expected a validation group with at least two programs of {', '.join(data.hardware)}, "
            f"found none in split {cfg.split_name}. Raise split.valid_fraction."
        )
    return trained


def _write(
    cfg: Config, root: Path, data: _Data, trained: list[Trained], result: TrainResult
) -> None:
    """Write all bundles and run.json; the folder appears whole or not at all."""
    with whole_folder(result.folder) as folder:
        for one in trained:
            info = _info(cfg, root, data, one)
            save_bundle(folder / f"seed{one.seed}", one.ranker, info)
        values = {
            "run_id": result.run_id,
            "seeds": list(result.seeds),
            "best_seed": result.best_seed,
            "fit_seconds": {str(one.seed): round(one.seconds, 3) for one in trained},
            "valid": {str(one.seed): one.valid for one in trained},
        }
        (folder / RUN_FILE).write_bytes(orjson.dumps(values, option=orjson.OPT_INDENT_2))


def _info(cfg: Config, root: Path, data: _Data, one: Trained) -> BundleInfo:
    git, versions = git_state(root), installed_versions()
    raw = one.ranker.predict(data.valid.features)
    return BundleInfo(
        family=cfg.model.family,
        model_config=plain_config(cfg.model),
        feature_spec=data.spec,
        hardware=cfg.hardware.name,
        target_kind=str(cfg.hardware.target.get("kind", "llvm")),
        label=LABEL_TEXT,
        calibration=fit_calibration(raw, data.valid.label),
        tvm_range=tvm_range(versions.get("tvm")),
        dataset=cfg.dataset.name,
        dataset_hash=data.dataset_hash,
        split=cfg.split_name,
        split_hash=data.split_hash,
        seed=one.seed,
        device=data.device,
        versions=versions,
        git_commit=git.commit,
        git_dirty=git.dirty,
        metrics={f"valid_{name}": value for name, value in one.valid.items()},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _log_data(tracked: TrackedRun, cfg: Config, root: Path, data: _Data) -> None:
    path = f"{cfg.paths.records}/{cfg.dataset.name}"
    dvc = dvc_hash(root, path)
    counts = {
        "num_train": len(data.train),
        "num_valid": len(data.valid),
        "num_train_groups": int(data.train.group.max()) + 1,
        "num_valid_groups": int(data.valid.group.max()) + 1,
    }
    tracked.log_dataset(
        cfg.dataset.name,
        dvc or data.dataset_hash,
        {"path": path, "source": cfg.dataset.source},
        {
            **counts,
            "dvc_md5": dvc,
            "content_hash": data.dataset_hash,
            "split": cfg.split_name,
            "split_hash": data.split_hash,
            "hardware": list(data.hardware),
        },
    )
    tracked.log_metrics({f"train/{name}": float(count) for name, count in counts.items()})


def _log_result(tracked: TrackedRun, trained: list[Trained], result: TrainResult) -> None:
    """Log curves (mean over seeds), final validation metrics, importances, bundles and the pyfunc."""
    tracked.log_points(mean_curves([one.points for one in trained]))
    final = {f"train/final_valid_{name}": value for name, value in result.valid.items()}
    tracked.log_metrics({**final, "train/fit_seconds": result.fit_seconds})
    tracked.log_artifacts(result.folder, "bundles")
    best = next(one for one in trained if one.seed == result.best_seed)
    with tempfile.TemporaryDirectory(prefix="tencost-") as scratch:
        importance = best.ranker.importance()
        if importance:
            path = Path(scratch) / "importance.json"
            path.write_bytes(orjson.dumps(importance, option=orjson.OPT_INDENT_2))
            tracked.log_artifact(path)
        model = Path(scratch) / "model"
        save_pyfunc(model, result.folder / f"seed{result.best_seed}")
        tracked.log_artifacts(model, "model")


def mean_curves(seeds: list[list[Point]]) -> list[Point]:
    """Average the curves of several seeds, step by step, over the seeds that reached the step."""
    values: Mapping[tuple[str, int], list[float]] = defaultdict(list)
    for points in seeds:
        for point in points:
            values[point.name, point.step].append(point.value)
    return [Point(name, float(np.mean(found)), step) for (name, step), found in values.items()]


def _say(console: Console, cfg: Config, result: TrainResult) -> None:
    shown = ", ".join(
        f"{name} {result.valid[name]:.3f}"
        for name in ("pairwise", "top1", "top5")
        if name in result.valid
    )
    console.print(
        f"{cfg.model_name} · {cfg.features.name} · {cfg.hardware.name}: {len(result.seeds)} seed(s) in "
        f"{result.fit_seconds:.1f} s; validation: {shown}"
    )
