"""A project `toy` with records, features, a split and an MLflow database, and how its models are trained."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np


def make_mlflow_database(folder: Path) -> Path:
    """Make an empty MLflow database: that takes seconds, copying it does not."""
    from mlflow import MlflowClient

    uri = f"sqlite:///{folder / 'mlflow.db'}"
    MlflowClient(tracking_uri=uri, registry_uri=uri).search_experiments()
    return folder / "mlflow.db"


def make_toy_project(
    root: Path, mlflow_database: Path, others: Sequence[tuple[str, float]] = ()
) -> None:
    """Write the project on hardware `toy-1c` with records, features, a split and an MLflow database.

    Networks `held_out` (tasks w0, w1, and w9 that nobody measured) for testing, `seen` (w2, w3 to
    train on, w4 to validate). 12 programs a task; one row of two columns each: the first says how fast
    the program is, the second is noise. One program of w1 failed.

    Args:
        root: the project's folder.
        mlflow_database: an empty one.
        others: further hardware with the same programs: its name, and the power of toy-1c's speeds that its are.
    """
    import polars as pl

    from tencost.features.rows.ragged import Ragged
    from tencost.features.rows.spec import FeatureSpec
    from tencost.features.table import save_features
    from tencost.splits.table import save_split
    from tencost.store.record_store import RecordStore
    from tencost.store.schema import NetworkWeight, Record, Source
    from tencost.store.status import Status

    generator = np.random.default_rng(0)
    records, programs, rows, parts = [], [], [], {}
    for workload, part in zip(range(5), ("test", "test", "train", "train", "valid"), strict=True):
        network = "held_out" if part == "test" else "seen"
        for index in range(12):
            program = f"p{workload}-{index:02d}"
            speed = generator.uniform(0.05, 1.0)
            failed = (workload, index) == (1, 3)
            records.append(
                Record(
                    record_id=f"r{generator.integers(10**12):012d}",
                    program_id=program,
                    workload_id=f"w{workload}",
                    task_name=f"task{workload}",
                    networks=(NetworkWeight(network, workload + 1),),
                    hardware="toy-1c",
                    target={"kind": "llvm"},
                    program_format="metaschedule_trace",
                    program="[[],[]]",
                    run_secs=() if failed else (1e-3 * (workload + 1) / speed,),
                    status=Status.build_error if failed else Status.ok,
                    error="does not build" if failed else "",
                    source=Source("toy", "toy.json", index + 1),
                )
            )
            programs.append((program, f"w{workload}"))
            rows.append([[speed, generator.uniform()]])
            parts[records[-1].record_id] = part
    measured = list(records)
    for name, power in others:
        for one in measured:
            record = replace(
                one,
                record_id=f"{one.record_id}-{name}",
                hardware=name,
                run_secs=tuple(seconds**power for seconds in one.run_secs),
            )
            records.append(record)
            parts[record.record_id] = parts[one.record_id]
    folder = root / "data" / "records" / "toy"
    folder.mkdir(parents=True)
    store = RecordStore(str(folder / "store"))
    store.write(records)
    tasks = [("held_out", 0, 1), ("held_out", 1, 2), ("held_out", 9, 1)]
    tasks += [("seen", 2, 3), ("seen", 3, 4), ("seen", 4, 5)]
    pl.DataFrame(
        [(name, f"task{w}", f"w{w}", weight, 1e6, w < 9) for name, w, weight in tasks],
        schema=["network", "task_name", "workload_id", "weight", "flop", "measured"],
        orient="row",
    ).write_parquet(folder / "tasks.parquet")
    features = root / "data" / "features" / "toy" / "toy"
    features.parent.mkdir(parents=True)
    save_features(
        features,
        FeatureSpec(name="toy", kind="trace", columns=("speed", "noise")),
        [program for program, _ in programs],
        [workload for _, workload in programs],
        Ragged.from_blocks([np.array(row, np.float32) for row in rows], 2),
        [],
    )
    frame = store.read(None, ["record_id", "program_id", "workload_id", "hardware"])
    column = pl.Series("part", [parts[record] for record in frame["record_id"]])
    save_split(root / "data" / "splits" / "toy" / "by_network", frame.with_columns(column))
    (root / "mlruns" / "artifacts").mkdir(parents=True)
    shutil.copy(mlflow_database, root / "mlruns" / "mlflow.db")


def toy_config() -> Any:
    """The toy project's configuration."""
    from tencost.config import (
        Config,
        DatasetConfig,
        FeaturesConfig,
        HardwareConfig,
        SplitConfig,
        SplitPolicy,
    )
    from tencost.models.programs.families.random import RandomConfig

    return Config(
        dataset=DatasetConfig(name="toy", source="toy"),
        hardware=HardwareConfig(name="toy-1c", target={"kind": "llvm"}),
        features=FeaturesConfig(name="toy", kind="trace"),
        split=SplitConfig(policy=SplitPolicy.by_network, test=["held_out"]),
        model=RandomConfig(family="random", reads=["toy"]),
    )


def train_toy(
    root: Path,
    name: str,
    config: Any,
    seeds: tuple[int, ...] = (0, 1),
    run_id: str = "",
    **changes: Any,
) -> Path:
    """Train a family on the toy project and return its folder."""
    from tencost.models.programs.bundle import (
        BundleInfo,
        plain_config,
        save_bundle,
        training_digest,
    )
    from tencost.models.programs.bundle.calibration import fit_calibration
    from tencost.models.programs.ranker import make_ranker
    from tencost.tracking import runs as tracking
    from tencost.train.data import Data

    data = Data(toy_config(), root)
    spec = data.features("toy").spec
    learn, valid = data.samples(["toy-1c"], "train"), data.samples(["toy-1c"], "valid")
    folder = root / "data" / "models" / "toy" / "toy-1c" / f"{name}-toy"
    for seed in seeds:
        ranker = make_ranker(config, spec)
        ranker.fit(learn, valid, seed=seed, log=lambda name, value, step: None)
        values: dict[str, Any] = {
            "family": config.family,
            "model_config": plain_config(config),
            "feature_spec": spec,
            "hardware": "toy-1c",
            "target_kind": "llvm",
            "label": "fastest / latency",
            "calibration": fit_calibration(ranker.predict(valid.features), valid.label),
            "tvm_range": ("0.27.0", "0.28.0"),
            "dataset": "toy",
            "dataset_hash": "d" * 32,
            "split": "by_network",
            "split_hash": data.split_hash,
            "seed": seed,
        }
        save_bundle(folder / f"seed{seed}", ranker, BundleInfo(**{**values, **changes}))
    if run_id:
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=tracking.setup(root))
        client.set_tag(run_id, tracking.BUNDLES_TAG, training_digest(folder))
    return folder
