"""The stage `train`: samples -> one bundle a seed, and an MLflow run."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import orjson
import polars as pl
from rich.console import Console

from tencost.config import Config, Pool, SplitPolicy
from tencost.config.parts import FAMILIES
from tencost.errors import ConfigError, SplitError, TrainError
from tencost.features.device import attributes, device_names
from tencost.features.rows.spec import FeatureSpec
from tencost.models.programs.bundle import BundleInfo, plain_config, save_bundle, training_digest
from tencost.models.programs.bundle.calibration import fit_calibration
from tencost.models.programs.bundle.pyfunc_model import save_pyfunc
from tencost.models.programs.ranker import Composed, Family, Samples, make_ranker
from tencost.models.programs.ranker.labels import LABEL_TEXT
from tencost.tracking.provenance import code_digest, dvc_hash, installed_versions, tvm_range
from tencost.tracking.runs import (
    BUNDLES_TAG,
    CODE_TAG,
    TrackedRun,
    log_model,
    run_name,
    start_run,
    training_run,
)  # fmt: skip
from tencost.train.fit.curves import mean_curves, plot_curves
from tencost.train.fit.members import Earlier, num_programs, train_members
from tencost.train.fit.seeds import Job, Trained, Tried, train_seeds
from tencost.train.programs.data import Data
from tencost.train.programs.folds import FILE as FOLDS_FILE
from tencost.train.programs.folds import Fold, LeftOut, divide, left_out
from tencost.train.programs.run_file import RunFile
from tencost.train.programs.samples import sample_spec
from tencost.writing import scratch_beside, whole_folder

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
class Material:
    """What one training learns from.

    Attributes:
        train, valid: parts of the split.
        spec: what the columns mean, device columns included.
        device: what the device columns are made of on cfg.hardware; empty for a model of several hardware.
        hardware: whose records `train` has.
        dataset_hash, split_hash: of the records used and of the split.
        folds: the networks that are left out in turn; empty for a reference, which is never chosen.
        left_out: what each of them has of `train` and `valid`.
        own: ids of the records of cfg.hardware.
    """

    train: Samples
    valid: Samples
    spec: FeatureSpec
    device: dict[str, float]
    hardware: tuple[str, ...]
    dataset_hash: str
    split_hash: str
    folds: tuple[Fold, ...]
    left_out: tuple[LeftOut, ...]
    own: frozenset[str]


def run(cfg: Config, root: Path, data: Data | None = None) -> TrainResult:
    """Train cfg.model for cfg.hardware, once a seed; write the bundles and log the run.

    Args:
        cfg: the configuration.
        root: the project's root.
        data: the dataset, where it is at hand.

    Raises:
        ConfigError: the family does not read the feature set, or no seed is given.
        SplitError: the split has nothing to judge the model on.
        TrainError: the split has nothing to learn from for this hardware.
        OSError: the folder of the bundles cannot be written; it is raised before anything is trained.
    """
    _check(cfg)
    data = data or Data(cfg, root)
    material = read_material(cfg, data)
    _check_watched(cfg, material)
    _check_tested(data)
    with scratch_beside(_folder(cfg, root)):
        pass  # hours of training are not to end at a folder that cannot be written
    with start_run(cfg, root, stage="train") as tracked:
        _log_material(tracked, cfg, root, material)
        trained, tried = _train(cfg, root, material, tracked)
        result = _result(cfg, root, tracked, trained)
        _write(cfg, material, trained, tried, result)
        _log_result(tracked, cfg, material, trained, tried, result)
    _say(cfg, result)
    return result


def _check(cfg: Config) -> None:
    device = device_names(cfg.features)
    rows_of = {cfg.features.name, *([cfg.features.kind] if device else [])}
    if not rows_of & set(cfg.model.reads):
        raise ConfigError(
            f"model={cfg.model_name} cannot be trained on features={cfg.features.name}: the family "
            f"{cfg.model.family} reads {', '.join(cfg.model.reads)}. Choose one of them, or add the "
            f"feature set to `reads` in conf/model/{cfg.model_name}.yaml."
        )
    if not cfg.seeds or len(set(cfg.seeds)) != len(cfg.seeds):
        raise ConfigError(f"seeds must be different whole numbers, at least one; found {cfg.seeds}")


def _check_tested(data: Data) -> None:
    """Refuse to train what cannot be judged afterwards: no program of the hardware in the test part has a time.

    A split by hardware holds other hardware out: there a model may be trained that is judged nowhere.

    Raises:
        SplitError: there is none.
    """
    cfg, own = data.cfg, data.hardware()
    if cfg.split.policy is SplitPolicy.by_hardware:
        return
    mine = data.records.filter(pl.col("hardware").is_in(own))
    tested = mine.join(data.split.filter(part="test"), on="record_id", how="semi")
    if not (tested["status"] == "ok").any():
        raise SplitError(
            f"expected programs of {', '.join(own)} with a time in the test part of split {cfg.split_name}, to judge "
            f"the model on; found none among {len(tested)} records there. Choose another split=..., or measure more "
            "tasks; report.json beside the split counts them"
        )


def _check_watched(cfg: Config, material: Material) -> None:
    """Refuse a validation part that ranks nothing: seeds and epochs are chosen by it.

    Raises:
        TrainError: no workload of it has two programs with features.
    """
    used = np.flatnonzero(material.valid.features.lengths)
    if not (np.bincount(material.valid.group[used]) > 1).any():
        raise TrainError(
            f"expected a validation group with at least two programs of {', '.join(material.hardware)}, "
            f"found none in split {cfg.split_name}. Raise split.valid_fraction."
        )


def read_material(cfg: Config, data: Data) -> Material:
    """Join what is trained on; validation is of the model's own hardware, of all where that has none."""
    own = data.hardware()
    _check_kinds(data, own)
    hardware = own
    if cfg.model.pool is Pool.all and not cfg.hardware.members:
        hardware = tuple(sorted(data.records["hardware"].unique().to_list()))
    valid = set(data.split.filter(part="valid")["hardware"].unique())
    names = device_names(cfg.features)
    device = {} if cfg.hardware.members or not names else _device(data, names)
    train = data.samples(hardware, "train")
    watched = data.samples(own if valid & set(own) else hardware, "valid")
    folds, parts = _folds(cfg, data, own, train, watched)
    mine = data.records.filter(pl.col("hardware").is_in(own))
    return Material(
        train=train,
        valid=watched,
        spec=sample_spec(data.features(cfg.features.name, cfg.features.kind).spec, names),
        device=device,
        hardware=hardware,
        dataset_hash=data.dataset_hash(hardware),
        split_hash=data.split_hash,
        folds=folds,
        left_out=parts,
        own=frozenset(mine["record_id"].to_list()),
    )


def _folds(
    cfg: Config, data: Data, own: Sequence[str], train: Samples, valid: Samples
) -> tuple[tuple[Fold, ...], tuple[LeftOut, ...]]:
    """Return the folds that the family is tried on, and what each has of the samples."""
    if cfg.model.reference:
        return (), ()
    measured = data.split.filter(
        pl.col("hardware").is_in(own), pl.col("part").is_in(["train", "valid"])
    )
    family: Family = FAMILIES.load(cfg.model.family)
    made = divide(data.tasks, measured["workload_id"].unique().to_list(), cfg.folds)[: family.folds]
    parts = left_out(made, data.records, train, valid)
    used = [at for at, part in enumerate(parts) if part.train.any() or part.valid.any()]
    return tuple(made[at] for at in used), tuple(parts[at] for at in used)


def _check_kinds(data: Data, hardware: Sequence[str]) -> None:
    """Refuse to make one model for targets of several kinds: a tuner asks for one kind."""
    if not data.cfg.hardware.members:
        return
    kind = data.cfg.hardware.target.get("kind")
    others = [name for name in hardware if data.described(name).target.get("kind") != kind]
    if others:
        raise ConfigError(
            f"hardware={data.cfg.hardware.name}: expected members of target kind {kind}, found others: "
            f"{', '.join(others)}. Leave them out of hardware.members"
        )


def _device(data: Data, names: Sequence[str]) -> dict[str, float]:
    """Return the attributes that the columns of these names are made of, on cfg.hardware."""
    found = attributes(data.cfg.hardware)
    constant = all(name in found for name in names)
    return {name: found[name] for name in names} if constant else found


def _train(
    cfg: Config, root: Path, material: Material, tracked: TrackedRun
) -> tuple[list[Trained], list[Tried]]:
    label = f"{cfg.model_name} · {cfg.features.name} · {cfg.hardware.name}"
    job = Job(cfg.model, material.spec, material.train, material.valid, material.left_out)
    if isinstance(make_ranker(job.config, job.spec), Composed):
        earlier = Earlier(
            folder=_folder(cfg, root).parent,
            hardware=cfg.hardware.name,
            dataset_hash=material.dataset_hash,
            split_hash=material.split_hash,
            folds=tuple(fold.networks for fold in material.folds),
            code=partial(_code_of, tracked, cfg.experiment_name),
        )
        trained, tried, taken = train_members(
            job, cfg.seeds, cfg.jobs, label, cfg.execution, earlier
        )
        if taken:
            Console(stderr=True).print(f"{label}: {', '.join(taken)} as trained before")
    else:
        trained, tried = train_seeds(job, cfg.seeds, cfg.jobs, label, cfg.execution)
    return trained, tried


def _code_of(tracked: TrackedRun, experiment: str, folder: Path) -> str | None:
    """Return the digest of the code that trained a folder of bundles, as the run of that training has it."""
    run_id = training_run(tracked.client, experiment, training_digest(folder))
    return None if run_id is None else tracked.client.get_run(run_id).data.tags.get(CODE_TAG)


def _result(cfg: Config, root: Path, tracked: TrackedRun, trained: list[Trained]) -> TrainResult:
    best = max(trained, key=lambda one: one.valid.get(CHOICE, 0.0))
    valid = {name: float(np.mean([one.valid[name] for one in trained])) for name in best.valid}
    return TrainResult(
        folder=_folder(cfg, root),
        run_id=tracked.run_id,
        seeds=tuple(cfg.seeds),
        valid_score=valid.get(CHOICE, float("nan")),
        valid=valid,
        best_seed=best.seed,
        fit_seconds=sum(one.seconds for one in trained),
    )


def _folder(cfg: Config, root: Path) -> Path:
    models = root / cfg.paths.models / cfg.dataset.name / cfg.hardware.name
    return models / f"{cfg.model_name}-{cfg.features.name}"


def _write(
    cfg: Config,
    material: Material,
    trained: list[Trained],
    tried: list[Tried],
    result: TrainResult,
) -> None:
    """Write all bundles, run.json and the folds' scores; the folder appears whole or not at all."""
    with whole_folder(result.folder) as folder:
        for one in trained:
            save_bundle(folder / f"seed{one.seed}", one.ranker, _info(cfg, material, one))
        if tried:
            _fold_scores(material, tried).write_parquet(folder / FOLDS_FILE)
        written = RunFile(
            seeds=result.seeds,
            best_seed=result.best_seed,
            valid={str(one.seed): one.valid for one in trained},
            spread={str(one.seed): one.spread for one in trained if one.spread is not None},
            folds=tuple(fold.networks for fold in material.folds),
            fold_spread=tuple(one.spread for one in tried if one.spread is not None),
            programs=num_programs(material.train, material.valid),
        )
        written.write(folder)


def _fold_scores(material: Material, tried: list[Tried]) -> pl.DataFrame:
    """Return the raw scores of the folds' programs on the model's own hardware, see `tencost.train.programs.folds`."""
    frames = []
    for one in tried:
        fold = material.left_out[one.fold]
        ids = [*material.train.record_id[fold.train], *material.valid.record_id[fold.valid]]
        frame = pl.DataFrame({"record_id": ids, "raw": np.concatenate([one.train, one.valid])})
        frames.append(frame.select(pl.lit(one.fold, pl.Int32).alias("fold"), "record_id", "raw"))
    scores = pl.concat(frames).with_columns(pl.col("raw").fill_nan(None))
    return scores.filter(pl.col("record_id").is_in(list(material.own))).sort("fold", "record_id")


def _info(cfg: Config, material: Material, one: Trained) -> BundleInfo:
    versions = installed_versions()
    raw = one.ranker.predict(material.valid.features)
    return BundleInfo(
        family=cfg.model.family,
        model_config=plain_config(cfg.model),
        feature_spec=material.spec,
        hardware=cfg.hardware.name,
        target_kind=str(cfg.hardware.target.get("kind", "llvm")),
        label=LABEL_TEXT,
        calibration=fit_calibration(raw, material.valid.label),
        tvm_range=tvm_range(versions.get("tvm")),
        dataset=cfg.dataset.name,
        dataset_hash=material.dataset_hash,
        split=cfg.split_name,
        split_hash=material.split_hash,
        seed=one.seed,
        device=material.device,
        versions=versions,
        metrics={f"valid_{name}": value for name, value in one.valid.items()},
    )


def _log_material(tracked: TrackedRun, cfg: Config, root: Path, material: Material) -> None:
    path = f"{cfg.paths.records}/{cfg.dataset.name}"
    dvc = dvc_hash(root, path)
    counts = {
        "num_train": len(material.train),
        "num_valid": len(material.valid),
        "num_train_groups": int(material.train.group.max()) + 1,
        "num_valid_groups": int(material.valid.group.max()) + 1,
    }
    tracked.log_dataset(
        cfg.dataset.name,
        dvc or material.dataset_hash,
        {"path": path, "source": cfg.dataset.source},
        {
            **counts,
            "dvc_md5": dvc,
            "content_hash": material.dataset_hash,
            "split": cfg.split_name,
            "split_hash": material.split_hash,
            "hardware": list(material.hardware),
        },
    )
    tracked.log_metrics({f"train/{name}": float(count) for name, count in counts.items()})


def _log_result(
    tracked: TrackedRun,
    cfg: Config,
    material: Material,
    trained: list[Trained],
    tried: list[Tried],
    result: TrainResult,
) -> None:
    """Log curves (mean over seeds), final validation metrics, times, importances, bundles and the model of MLflow."""
    tracked.set_tag(CODE_TAG, code_digest())
    tracked.set_tag(BUNDLES_TAG, training_digest(result.folder))
    tracked.log_points(mean_curves(one.points for one in trained))
    tracked.log_metrics({"train/fold_seconds": sum(one.seconds for one in tried)})
    tracked.log_artifacts(result.folder, "bundles")
    best = next(one for one in trained if one.seed == result.best_seed)
    with tempfile.TemporaryDirectory(prefix="tencost-") as scratch:
        importance = best.ranker.importance()
        if importance:
            path = Path(scratch) / "importance.json"
            path.write_bytes(orjson.dumps(importance, option=orjson.OPT_INDENT_2))
            tracked.log_artifact(path)
        drawn = plot_curves([one.points for one in trained], run_name(cfg), Path(scratch))
        if drawn is not None:
            tracked.log_artifact(drawn, "plots")
        model = Path(scratch) / "model"
        save_pyfunc(model, result.folder / f"seed{result.best_seed}", material.valid.features)
        model_id = log_model(
            tracked.client,
            tracked.run_id,
            model,
            name=f"{result.folder.name}-{cfg.hardware.name}",
            model_type=cfg.model.family,
            parameters={"seed": str(result.best_seed), "dataset": cfg.dataset.name},
            tags={"hardware": cfg.hardware.name, "features": cfg.features.name},
        )
    final = {f"train/final_valid_{name}": value for name, value in result.valid.items()}
    final["train/fit_seconds"] = result.fit_seconds
    tracked.log_metrics(final, model_id=model_id)


def _say(cfg: Config, result: TrainResult) -> None:
    shown = ", ".join(
        f"{name} {result.valid[name]:.3f}"
        for name in ("pairwise", "top1", "top5")
        if name in result.valid
    )
    Console(stderr=True).print(
        f"{cfg.model_name} · {cfg.features.name} · {cfg.hardware.name}: {len(result.seeds)} seed(s) in "
        f"{result.fit_seconds:.1f} s; validation: {shown}"
    )
