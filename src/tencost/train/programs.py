"""Training on programs: samples -> one bundle a seed, and what the family scores on the networks left out."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
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
from tencost.tracking.provenance import dvc_hash, installed_versions, tvm_range
from tencost.tracking.runs import (
    CODE_TAG,
    TrackedRun,
    log_model,
    run_name,
    start_run,
    training_run,
)  # fmt: skip
from tencost.train import stage
from tencost.train.data import Data
from tencost.train.data.folds import FILE as FOLDS_FILE
from tencost.train.data.folds import Fold, FoldSamples, divide_networks, samples_without_folds
from tencost.train.data.run_file import RunFile
from tencost.train.data.samples import sample_spec
from tencost.train.fit.curves import mean_curves, plot_curves
from tencost.train.fit.members import Earlier, num_programs, train_members
from tencost.train.fit.seeds import SeedJob, TrainedSeed, Tried, train_seeds
from tencost.train.stage import DatasetFacts, Logged

CHOICE = "choice"
"""The validation metric that seeds and epochs are chosen by."""


@dataclass(frozen=True)
class TrainResult:
    """A finished training.

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
        record_ids: of the records of cfg.hardware.
    """

    train: Samples
    valid: Samples
    spec: FeatureSpec
    device: dict[str, float]
    hardware: tuple[str, ...]
    dataset_hash: str
    split_hash: str
    folds: tuple[Fold, ...]
    left_out: tuple[FoldSamples, ...]
    record_ids: frozenset[str]


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
    subject = ProgramTraining(cfg, root, data or Data(cfg, root))
    run_id, trained = stage.run(subject)
    valid = subject.valid(trained)
    return TrainResult(
        folder=subject.folder,
        run_id=run_id,
        seeds=tuple(cfg.seeds),
        valid_score=valid.get(CHOICE, float("nan")),
        valid=valid,
        best_seed=best_of(trained).seed,
        fit_seconds=sum(training.seconds for training in trained),
    )


def best_of(trained: Sequence[TrainedSeed]) -> TrainedSeed:
    """Return the seed that did best on the validation part."""
    return max(trained, key=lambda seed: seed.valid.get(CHOICE, 0.0))


@dataclass
class ProgramTraining(stage.TrainingSubject[TrainedSeed]):
    """A family on a feature set for a hardware.

    Attributes:
        data: the dataset.
        material: what is learnt from, after `read`.
        tried: the folds of networks as models scored them that were trained without them, after `fit`.
    """

    data: Data
    material: Material = field(init=False)
    tried: list[Tried] = field(init=False, default_factory=list)

    @property
    def folder(self) -> Path:
        cfg = self.cfg
        models = self.root / cfg.paths.models / cfg.dataset.name / cfg.hardware.name
        return models / f"{cfg.model_name}-{cfg.features.name}"

    @property
    def label(self) -> str:
        """What progress and summary call it."""
        return f"{self.cfg.model_name} · {self.cfg.features.name} · {self.cfg.hardware.name}"

    def read(self) -> None:
        _check_features(self.cfg)
        self.material = read_material(self.cfg, self.data)
        _check_watched(self.cfg, self.material)
        _check_tested(self.data)

    def start_run(self) -> AbstractContextManager[TrackedRun]:
        return start_run(self.cfg, self.root, stage="train")

    def facts(self) -> DatasetFacts:
        cfg, material = self.cfg, self.material
        path = f"{cfg.paths.records}/{cfg.dataset.name}"
        dvc = dvc_hash(self.root, path)
        return DatasetFacts(
            digest=dvc or material.dataset_hash,
            source={"path": path, "source": cfg.dataset.source},
            counts={
                "num_train": len(material.train),
                "num_valid": len(material.valid),
                "num_train_groups": int(material.train.group.max()) + 1,
                "num_valid_groups": int(material.valid.group.max()) + 1,
            },
            profile={
                "dvc_md5": dvc,
                "content_hash": material.dataset_hash,
                "split": cfg.split_name,
                "split_hash": material.split_hash,
                "hardware": list(material.hardware),
            },
        )

    def fit(self, tracked: TrackedRun) -> list[TrainedSeed]:
        cfg, material = self.cfg, self.material
        job = SeedJob(cfg.model, material.spec, material.train, material.valid, material.left_out)
        if not isinstance(make_ranker(job.config, job.spec), Composed):
            trained, self.tried = train_seeds(job, cfg.seeds, cfg.jobs, self.label, cfg.execution)
            return trained
        earlier = Earlier(
            folder=self.folder.parent,
            hardware=cfg.hardware.name,
            dataset_hash=material.dataset_hash,
            split_hash=material.split_hash,
            folds=tuple(fold.networks for fold in material.folds),
            code=partial(_code_of, tracked, cfg.experiment_name),
        )
        trained, self.tried, reused = train_members(
            job, cfg.seeds, cfg.jobs, self.label, cfg.execution, earlier
        )
        if reused:
            Console(stderr=True).print(f"{self.label}: {', '.join(reused)} as trained before")
        return trained

    def save(self, trained: Sequence[TrainedSeed], folder: Path) -> None:
        for seed in trained:
            save_bundle(folder / f"seed{seed.seed}", seed.ranker, self._info(seed))
        if self.tried:
            _fold_scores(self.material, self.tried).write_parquet(folder / FOLDS_FILE)
        RunFile(
            seeds=tuple(seed.seed for seed in trained),
            best_seed=best_of(trained).seed,
            valid={str(seed.seed): seed.valid for seed in trained},
            spread={str(seed.seed): seed.spread for seed in trained if seed.spread is not None},
            folds=tuple(fold.networks for fold in self.material.folds),
            fold_spread=tuple(fold.spread for fold in self.tried if fold.spread is not None),
            programs=num_programs(self.material.train, self.material.valid),
        ).write(folder)

    def digest(self) -> str:
        return training_digest(self.folder)

    def log(self, tracked: TrackedRun, trained: Sequence[TrainedSeed]) -> Logged:
        """Log curves (mean over seeds), final validation metrics, times, importances and the model of MLflow."""
        cfg, best = self.cfg, best_of(trained)
        tracked.log_points(mean_curves(seed.points for seed in trained))
        tracked.log_metrics({"train/fold_seconds": sum(fold.seconds for fold in self.tried)})
        with tempfile.TemporaryDirectory(prefix="tencost-") as scratch:
            importance = best.ranker.importance()
            if importance:
                path = Path(scratch) / "importance.json"
                path.write_bytes(orjson.dumps(importance, option=orjson.OPT_INDENT_2))
                tracked.log_artifact(path)
            plot = plot_curves([seed.points for seed in trained], run_name(cfg), Path(scratch))
            if plot is not None:
                tracked.log_artifact(plot, "plots")
            model = Path(scratch) / "model"
            save_pyfunc(model, self.folder / f"seed{best.seed}", self.material.valid.features)
            model_id = log_model(
                tracked.client,
                tracked.run_id,
                model,
                name=f"{self.folder.name}-{cfg.hardware.name}",
                model_type=cfg.model.family,
                parameters={"seed": str(best.seed), "dataset": cfg.dataset.name},
                tags={"hardware": cfg.hardware.name, "features": cfg.features.name},
            )
        final = {f"train/final_valid_{name}": x for name, x in self.valid(trained).items()}
        return Logged(final, model_id)

    def summary(self, trained: Sequence[TrainedSeed]) -> Iterator[str]:
        valid, seconds = self.valid(trained), sum(seed.seconds for seed in trained)
        metrics = ", ".join(
            f"{m} {valid[m]:.3f}" for m in ("pairwise", "top1", "top5") if m in valid
        )
        yield f"{self.label}: {len(trained)} seed(s) in {seconds:.1f} s; validation: {metrics}"

    @staticmethod
    def valid(trained: Sequence[TrainedSeed]) -> dict[str, float]:
        """Return the validation metrics by name, means over the seeds."""
        names = best_of(trained).valid
        return {name: float(np.mean([seed.valid[name] for seed in trained])) for name in names}

    def _info(self, seed: TrainedSeed) -> BundleInfo:
        cfg, material = self.cfg, self.material
        versions = installed_versions()
        raw = seed.ranker.predict(material.valid.features)
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
            seed=seed.seed,
            device=material.device,
            versions=versions,
            metrics={f"valid_{name}": metric for name, metric in seed.valid.items()},
        )


def _check_features(cfg: Config) -> None:
    device = device_names(cfg.features)
    rows_of = {cfg.features.name, *([cfg.features.kind] if device else [])}
    if not rows_of & set(cfg.model.reads):
        raise ConfigError(
            f"model={cfg.model_name} cannot be trained on features={cfg.features.name}: the family "
            f"{cfg.model.family} reads {', '.join(cfg.model.reads)}. Choose one of them, or add the "
            f"feature set to `reads` in conf/model/{cfg.model_name}.yaml."
        )


def _check_tested(data: Data) -> None:
    """Refuse to train a model that cannot be judged: the test part has no program of its hardware with a time.

    A split by hardware holds other hardware out, so its models may be judged nowhere and are trained nonetheless.

    Raises:
        SplitError: the test part has no such program.
    """
    cfg, hardware = data.cfg, data.hardware()
    if cfg.split.policy is SplitPolicy.by_hardware:
        return
    mine = data.records.filter(pl.col("hardware").is_in(hardware))
    tested = mine.join(data.split.filter(part="test"), on="record_id", how="semi")
    if not (tested["status"] == "ok").any():
        raise SplitError(
            f"expected programs of {', '.join(hardware)} with a time in the test part of split {cfg.split_name}, to "
            f"judge the model on; found none among {len(tested)} records there. Choose another split=..., or measure "
            "more tasks; report.json beside the split counts them"
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
    """Join the training data; validation programs are of the model's hardware, or of all where it has none."""
    model_hardware = data.hardware()
    _check_kinds(data, model_hardware)
    hardware = model_hardware
    if cfg.model.pool is Pool.all and not cfg.hardware.members:
        hardware = tuple(sorted(data.records["hardware"].unique().to_list()))
    valid = set(data.split.filter(part="valid")["hardware"].unique())
    names = device_names(cfg.features)
    device = {} if cfg.hardware.members or not names else _device(data, names)
    train = data.samples(hardware, "train")
    watched = data.samples(model_hardware if valid & set(model_hardware) else hardware, "valid")
    folds, parts = _folds(cfg, data, model_hardware, train, watched)
    mine = data.records.filter(pl.col("hardware").is_in(model_hardware))
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
        record_ids=frozenset(mine["record_id"].to_list()),
    )


def _folds(
    cfg: Config, data: Data, hardware: Sequence[str], train: Samples, valid: Samples
) -> tuple[tuple[Fold, ...], tuple[FoldSamples, ...]]:
    """Return the folds that the family is tried on, and the samples that each leaves out."""
    if cfg.model.reference:
        return (), ()
    measured = data.split.filter(
        pl.col("hardware").is_in(hardware), pl.col("part").is_in(["train", "valid"])
    )
    family: Family = FAMILIES.load(cfg.model.family)
    folds = divide_networks(data.tasks, measured["workload_id"].unique().to_list(), cfg.folds)[
        : family.folds
    ]
    parts = samples_without_folds(folds, data.records, train, valid)
    used = [at for at, part in enumerate(parts) if part.train.any() or part.valid.any()]
    return tuple(folds[at] for at in used), tuple(parts[at] for at in used)


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
    device = attributes(data.cfg.hardware)
    constant = all(name in device for name in names)
    return {name: device[name] for name in names} if constant else device


def _code_of(tracked: TrackedRun, experiment: str, folder: Path) -> str | None:
    """Return the digest of the code that trained a folder of bundles, as the run of that training has it."""
    run_id = training_run(tracked.client, experiment, training_digest(folder))
    return None if run_id is None else tracked.client.get_run(run_id).data.tags.get(CODE_TAG)


def _fold_scores(material: Material, tried: list[Tried]) -> pl.DataFrame:
    """Return the raw scores of the folds' programs on the model's own hardware, see `tencost.train.data.folds`."""
    frames = []
    for attempt in tried:
        fold = material.left_out[attempt.fold]
        ids = [*material.train.record_id[fold.train], *material.valid.record_id[fold.valid]]
        frame = pl.DataFrame(
            {"record_id": ids, "raw": np.concatenate([attempt.train, attempt.valid])}
        )
        frames.append(
            frame.select(pl.lit(attempt.fold, pl.Int32).alias("fold"), "record_id", "raw")
        )
    scores = pl.concat(frames).with_columns(pl.col("raw").fill_nan(None))
    return scores.filter(pl.col("record_id").is_in(list(material.record_ids))).sort(
        "fold", "record_id"
    )
