"""One model for several hardware: trained, judged and registered, and asked about hardware it has not seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from tencost.compat.curves import leave_out
from tencost.compat.curves.leave_out import (
    FEW,
    KNOWING,
    NATIVE,
    POOLED,
    _few,
    _workloads,
    arms,
    shares,
)
from tencost.config import Config, FeaturesConfig, HardwareConfig
from tencost.errors import ConfigError
from tencost.evaluate.prediction import load_seeds, program_rows
from tencost.evaluate.scoring import score_records
from tencost.evaluate.stage import load_truth
from tencost.evaluate.stage import run as evaluate
from tencost.models.programs.families.xgb import XgbConfig
from tencost.train.data import Data
from tencost.train.programs import run as train
from toy_project import make_toy_project

pytestmark = pytest.mark.usefixtures("undrawn_figures")
MACHINES = {
    "toy-1c": ("one (hidden)", 128),
    "toy-wide-1c": ("one (hidden)", 256),
    "backwards-1c": ("two", 128),
    "gpu": ("three", 1024),
}

"""Hardware -> its machine and vector width; on `backwards-1c` what is fast elsewhere is slow."""
L2_KIB = {"one (hidden)": 1024, "two": 64, "three": 6144}


@pytest.fixture
def project(tmp_path: Path, mlflow_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy project, measured on three CPUs and a GPU."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    root = tmp_path / "project"
    make_toy_project(
        root, mlflow_database, [("toy-wide-1c", 1.0), ("backwards-1c", -1.0), ("gpu", 1.0)]
    )
    folder = root / "conf" / "hardware"
    folder.mkdir(parents=True)
    for name, (machine, bits) in MACHINES.items():
        kind = "cuda" if name == "gpu" else "llvm"
        (folder / f"{name}.yaml").write_text(
            f"name: {name}\nmodel: {machine}\nsimd_bits: {bits}\nl2_kib: {L2_KIB[machine]}\n"
            f"target: {{kind: {kind}}}\n"
        )
    return root


@pytest.fixture
def pooled(toy_config: Config) -> Config:
    """hardware=all with device columns; the toy's kind has constants only."""
    toy_config.hardware = HardwareConfig(name="cpu", target={"kind": "llvm"}, members=["all"])
    toy_config.features = FeaturesConfig(name="toy", kind="trace", device_columns=True)
    toy_config.model = XgbConfig(
        family="xgb",
        reads=["toy"],
        num_rounds=200,
        subsample=1.0,
        colsample=1.0,
        min_child_weight=0.0,
    )
    toy_config.model_name = "xgb"
    toy_config.seeds = [0, 1]
    return toy_config


def test_all_are_those_of_the_target_s_kind(project: Path, pooled: Config) -> None:
    assert Data(pooled, project).hardware() == ("backwards-1c", "toy-1c", "toy-wide-1c")
    pooled.hardware = replace(pooled.hardware, members=["toy-wide-1c", "toy-1c"])
    assert Data(pooled, project).hardware() == ("toy-1c", "toy-wide-1c")
    pooled.hardware = replace(pooled.hardware, members=["toy-1c", "toy-2c"])
    with pytest.raises(
        ConfigError, match=r"dataset toy \(.*toy-wide-1c\) or be \[all\], found toy-2c"
    ):
        Data(pooled, project).hardware()
    pooled.hardware = replace(pooled.hardware, members=["all"], target={"kind": "metal"})
    with pytest.raises(ConfigError, match=r"expected hardware of target kind metal .* among .*gpu"):
        Data(pooled, project).hardware()
    pooled.hardware = HardwareConfig(name="x", target={"kind": "llvm"}, members=["gpu", "toy-1c"])
    with pytest.raises(
        ConfigError, match="expected members of target kind llvm, found others: gpu"
    ):
        train(pooled, project)


def test_one_model_ranks_what_each_hardware_does(project: Path, pooled: Config) -> None:
    pooled.seeds = [0]
    found = train(pooled, project)
    assert found.folder == project / "data/models/toy/cpu/xgb-toy"
    model = load_seeds(found.folder)
    assert (model.info.hardware, model.info.target_kind, model.info.device) == ("cpu", "llvm", {})
    data = Data(pooled, project)
    truth = load_truth(data, "test")
    assert truth.networks == tuple(f"held_out on {name}" for name in sorted(data.hardware()))
    assert len(truth.tasks) == 6
    rows = program_rows(data, model.info, truth)
    raw = model.bundles[0].ranker.predict(rows)
    score = score_records(truth, raw, raw)
    for hardware in data.hardware():  # each is ranked by its own attributes
        assert score.networks[f"held_out on {hardware}"].pairwise > 0.8

    board = evaluate(pooled, project)
    assert [row.model for row in board.models] == ["xgb-toy"]
    assert (project / "data/reports/toy/cpu/leaderboard.md").is_file()
    assert board.losses == () or {loss.task for loss in board.losses} <= {"task0", "task1"}


def test_records_of_several_hardware_are_one_truth(project: Path, pooled: Config) -> None:
    joined = load_truth(Data(pooled, project), "test")
    assert joined.record_id.tolist() == sorted(joined.record_id.tolist())
    for hardware in ("toy-1c", "backwards-1c"):
        single = HardwareConfig(name=hardware, target={"kind": "llvm"})
        alone = load_truth(Data(replace(pooled, hardware=single), project), "test")
        for task in alone.tasks:
            same = next(
                one
                for one in joined.tasks
                if (one.network, one.workload_id)
                == (f"{task.network} on {hardware}", task.workload_id)
            )
            assert joined.record_id[same.rows].tolist() == alone.record_id[task.rows].tolist()
            np.testing.assert_array_equal(joined.latency_s[same.rows], alone.latency_s[task.rows])
            assert same.weight == task.weight
        assert joined.coverage[f"held_out on {hardware}"] == alone.coverage["held_out"]


def test_machines_and_widths_are_left_out_whole() -> None:
    devices = {
        name: HardwareConfig(name=name, model=machine, simd_bits=bits)
        for name, (machine, bits) in MACHINES.items()
    }
    found = {
        (one.hardware, one.name): one.sources
        for one in arms(devices, ["machine", "isa"])
        if one.knows
    }
    assert found["toy-1c", "no one (hidden)"] == ("backwards-1c", "gpu")
    assert found["toy-wide-1c", "no one (hidden)"] == ("backwards-1c", "gpu")
    assert found["toy-1c", "no 128 bits"] == ("gpu", "toy-wide-1c")
    assert found["toy-1c", KNOWING] == tuple(sorted(MACHINES))
    few = [one for one in arms(devices, ["machine"]) if one.name == FEW]
    assert [(one.sources, one.as_many) for one in few if one.hardware == "gpu"] == [
        (("gpu",), ("backwards-1c", "toy-1c", "toy-wide-1c"))
    ]
    chosen = arms(devices, ["machine"], ["toy-1c"])
    assert {one.hardware: one.sources for one in chosen if one.name.startswith("no ")} == {
        "backwards-1c": ("toy-1c",),
        "gpu": ("toy-1c",),
    }
    with pytest.raises(ConfigError, match="two or more hardware"):
        arms({"toy-1c": devices["toy-1c"]}, ["machine"])
    with pytest.raises(ConfigError, match="found v100 among the sources"):
        arms(devices, ["machine"], ["v100"])


def test_the_table(project: Path, pooled: Config, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = leave_out.run(pooled, project, by=["machine"])
    found = {(one.arm.hardware, one.arm.name): one for one in outcomes}
    names = ("toy-1c", "toy-wide-1c", "backwards-1c")
    assert {hardware for hardware, _ in found} == set(names)
    for name in names:
        assert found[name, NATIVE].metrics["pairwise"].mean > 0.8
        assert found[name, KNOWING].metrics["pairwise"].mean > 0.8
        assert shares(found[name, NATIVE], outcomes) == {"pairwise": 1.0, "geo1": 1.0}
    # A model that does not know the hardware cannot rank both ways, one without its records ranks it the wrong way.
    assert found["backwards-1c", POOLED].metrics["pairwise"].mean < 0.5
    assert found["backwards-1c", "no two"].metrics["pairwise"].mean < 0.2
    assert found["backwards-1c", "no two"].records == 2 * found["toy-1c", NATIVE].records
    printed = capsys.readouterr().out
    assert "0 of 3 left-out hardware reach 97 %" in printed
    stem = project / "data/reports/toy/cpu/leave-out-xgb-toy"
    content = orjson.loads(stem.with_suffix(".json").read_bytes())
    assert [one["model"] for one in content[:4]] == [NATIVE, POOLED, KNOWING, "no two"]
    lines = stem.with_suffix(".md").read_text().splitlines()
    assert len(lines) == 2 + len(outcomes)


def test_a_native_model_with_as_few_workloads(project: Path, pooled: Config) -> None:
    data = Data(pooled, project)
    train = data.samples(["toy-1c"], "train")
    assert _workloads(data, ["toy-wide-1c", "backwards-1c"]) == 2
    assert _few(train, 2) is None
    few = _few(train, 1)
    assert few is not None
    assert (len(few), len(train)) == (12, 24)
    assert few.group.tolist() == [0] * 12
    assert len(set(train.group[np.isin(train.record_id, few.record_id)])) == 1


def test_geo1_is_the_geometric_mean_over_tasks(project: Path, pooled: Config) -> None:
    truth = load_truth(Data(pooled, project), "test")
    speed = 1.0 / np.nan_to_num(truth.latency_s, nan=np.inf)
    best = score_records(truth, speed, speed)
    assert best.overall.geo1 == pytest.approx(1.0)
    worst = score_records(truth, -speed, speed)
    expected = [np.nanmin(latency) / np.nanmax(latency) for latency in truth.latencies]
    assert worst.overall.geo1 == pytest.approx(np.exp(np.mean(np.log(expected))))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hardware": HardwareConfig(name="toy-1c")}, "expected hardware=all"),
        ({"features": FeaturesConfig(name="toy", kind="trace")}, "with device columns, found"),
    ],
)
def test_what_cannot_be_left_out(
    project: Path, pooled: Config, change: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        leave_out.run(replace(pooled, **change), project)
