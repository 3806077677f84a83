"""`tencost evaluate roofline` over a network that was tuned: from its folder, its MLflow run, and the live store."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tencost.config import Config, NetworkConfig, NetworkInput
from tencost.config.composition import compose
from tencost.errors import ProfileError
from tencost.records.counters.stored import save_profiles
from tencost.records.counters.table import Profiles
from tencost.tune.roofline.roofline import Placed
from tencost.tune.roofline.stage import run

pytestmark = [pytest.mark.tvm, pytest.mark.slow]

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, mlflow_database: Path) -> Path:
    folder = tmp_path_factory.mktemp("roofline")
    (folder / "mlruns").mkdir()
    shutil.copy(mlflow_database, folder / "mlruns" / "mlflow.db")
    return folder


@pytest.fixture(scope="module")
def make_config(cpu_intrinsics: None) -> Callable[..., Config]:
    def make(**changes: Any) -> Config:
        small = [
            "tuner.population=12", "tuner.generations=1", "tuner.min_mflop=0.003", "tuner.number=1", "tuner.repeat=1",
            "tuner.min_repeat_ms=0", "jobs=1", "tuner.trials=8", "model_uri=scratch",
        ]  # fmt: skip
        words = [f"{key}={value}" for key, value in changes.items()]
        cfg, _ = compose(["network=bert_tiny", "hardware=local", *small, *words])
        cfg.network = NetworkConfig(
            name="tiny",
            architecture="BertModel",
            config_class="BertConfig",
            config={
                "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32,
                "vocab_size": 50, "attn_implementation": "eager",
            },
            inputs={"input_ids": NetworkInput(shape=[1, 8], dtype="int64", high=50)},
        )  # fmt: skip
        return cfg

    return make


@pytest.fixture(scope="module")
def tuned(root: Path, make_config: Callable[..., Config], networks_read_once: None) -> Path:
    """The work folder of a short run."""
    from tencost.tune.stage import run as tune

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(PROJECT)
        return tune(make_config(), root)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(PROJECT)


def figures(placed: list[Placed]) -> dict[str, tuple[float | None, ...]]:
    return {
        one.task.name: (one.task.weight, one.task.work.flop, one.task.work.traffic, one.latency_s)
        for one in placed
    }


def test_a_network_from_its_folder_and_its_mlflow_run(
    root: Path, tuned: Path, make_config: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    placed = run(make_config(), root)
    report = json.loads((tuned / "report.json").read_text())
    assert len(placed) == report["tasks"]
    total = sum(one.task.weight * one.latency_s for one in placed)
    assert total == pytest.approx(report["tasks_tuning_latency_s"])
    above = [one.above_s for one in placed]
    assert above == sorted(above, key=lambda value: -(value or 0.0))
    # Of the first layer's product, 8 rows of 16 numbers times 16 x 32 weights, and a bias: 1 row of 8 x 32.
    product = next(one for one in placed if one.task.work.flop == 2 * 8 * 16 * 32 + 8 * 32)
    assert product.task.work.traffic == 4 * (8 * 16 + 16 * 32 + 32 + 8 * 32)

    folder = root / "data" / "reports" / "roofline" / "tiny-local"
    with (folder / "roofline.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["task"] for row in rows] == [one.task.name for one in placed]
    assert (folder / "roofline.png").read_bytes()[:4] == b"\x89PNG"
    told = " ".join(capsys.readouterr().out.split())
    assert "not measured, so not in the table" in told

    with sqlite3.connect(root / "mlruns" / "mlflow.db") as connection:
        runs = connection.execute("select run_uuid, name from runs where status = 'FINISHED'")
        ids = {name: run_id for run_id, name in runs.fetchall()}
        metrics = {key for (key,) in connection.execute("select distinct key from metrics")}
    connection.close()
    assert "roofline · tiny-local" in ids
    assert {"roofline/share_of_roof", "roofline/tasks_far"} <= metrics
    again = run(make_config(), root, run=ids["tune · tiny-local"], to=root / "again")
    assert figures(again) == figures(placed)
    kept = {path.name for path in (root / "mlruns" / "artifacts").rglob("*") if path.is_file()}
    assert {"roofline.csv", "roofline.png"} <= kept


def test_a_run_with_measured_roofs_has_one_peak(
    root: Path, tuned: Path, make_config: Callable[..., Config]
) -> None:
    run(make_config(), root, measured=True, to=root / "measured")
    with sqlite3.connect(root / "mlruns" / "mlflow.db") as connection:
        [[run_id, uri, roofs]] = connection.execute(
            "select run_uuid, artifact_uri, value from runs join params using (run_uuid) "
            "where key = 'roofs' and value like '%(measured)'"
        ).fetchall()
        peaks = dict(
            connection.execute(
                "select key, value from params where run_uuid = ? and key like 'hardware.%_g%'",
                [run_id],
            )
        )
    connection.close()
    measured = float(roofs.split(" GFLOP/s")[0])
    assert float(peaks["hardware.peak_gflops"]) == pytest.approx(measured, rel=1e-3)
    written = Path(uri.removeprefix("file://")) / "config.yaml"
    hardware = yaml.safe_load(written.read_text())["hardware"]
    assert hardware["peak_gflops"] == float(peaks["hardware.peak_gflops"])
    assert hardware["bandwidth_gbs"] == float(peaks["hardware.bandwidth_gbs"])


def test_the_live_store_has_the_tuned_programs(
    root: Path, tuned: Path, make_config: Callable[..., Config]
) -> None:
    placed = run(make_config(), root, store=True, to=root / "store")
    assert {one.task.program for one in placed} == {"stored"}
    of_folder = figures(run(make_config(), root, run=str(tuned), to=root / "folder"))
    for name, found in figures(placed).items():
        assert found[:3] == of_folder[name][:3]


def test_counted_bytes_count(root: Path, tuned: Path, make_config: Callable[..., Config]) -> None:
    from tencost.store.record_store import RecordStore

    ids = RecordStore(str(root / "data" / "store")).read("local")["record_id"].to_list()
    profiles = Profiles(
        np.array(ids), np.array(["w"] * len(ids)), np.array(["d"] * len(ids)), ("dram__bytes.sum",),
        np.full((len(ids), 1), 12345.0), np.full(len(ids), np.nan),
    )  # fmt: skip
    save_profiles(root / "profiles.parquet", profiles, {"dram__bytes.sum": "byte"})
    placed = run(
        make_config(), root, store=True, profiles=root / "profiles.parquet", memory_gbs=1.0, to=root / "counted"
    )  # fmt: skip
    assert {one.task.work.traffic for one in placed} == {12345.0}
    assert all(one.task.work.measured for one in placed)
    assert {one.level for one in placed} == {"memory"}


def test_what_cannot_be_placed(root: Path, tuned: Path, make_config: Callable[..., Config]) -> None:
    with pytest.raises(ProfileError, match=r"found no such pair"):
        run(make_config(), root, run=str(root / "mlruns"))
    with pytest.raises(
        ProfileError, match=r"expected programs measured on .*, found those of local"
    ):
        run(make_config(hardware="epyc-avx2-1c"), root, run=str(tuned))
    with pytest.raises(ProfileError, match=r"in the live store or in a work folder, found none"):
        run(make_config(hardware="epyc-avx2-1c"), root)
    (root / "empty").mkdir()
    for name in ("database_workload.json", "database_tuning_record.json"):
        (root / "empty" / name).touch()
    with pytest.raises(ProfileError, match=r"expected programs of tiny's .* tasks, found none"):
        run(make_config(), root, run=str(root / "empty"))
