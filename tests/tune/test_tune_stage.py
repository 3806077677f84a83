from __future__ import annotations

import json
import math
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tencost.config import Config, NetworkConfig, NetworkInput
from tencost.config.composition import compose
from tencost.errors import HardwareError, RegistryError, TuneError
from tencost.networks.lowering import fuse
from tencost.networks.network import Network
from tencost.networks.sources.saved import save_network
from tencost.records.network_times.runs import read_runs
from tencost.tune.batches import read_batch_lines
from tencost.tune.curve import read_points
from tencost.tune.roofline.roofline import roofs_of
from tencost.tune.stage import run
from tencost.workers.hardware import resolve_hardware

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.usefixtures("undrawn_figures", "networks_read_once"),
]

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path: Path, mlflow_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "mlruns").mkdir()
    shutil.copy(mlflow_database, tmp_path / "mlruns" / "mlflow.db")
    return tmp_path


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, cpu_intrinsics: None) -> Callable[..., Config]:
    monkeypatch.chdir(PROJECT)

    def make(**changes: Any) -> Config:
        small = [
            "tuner.population=12", "tuner.generations=1", "tuner.min_mflop=0.003", "tuner.number=1",
            "tuner.repeat=1", "tuner.min_repeat_ms=0", "jobs=1",
        ]  # fmt: skip
        overrides = [f"{key}={value}" for key, value in changes.items()]
        cfg, _ = compose(["network=bert_tiny", "hardware=local", *small, *overrides])
        cfg.network = NetworkConfig(
            name="tiny",
            architecture="BertModel",
            config_class="BertConfig",
            config={
                "num_hidden_layers": 1,
                "hidden_size": 16,
                "num_attention_heads": 2,
                "intermediate_size": 32,
                "vocab_size": 50,
                "attn_implementation": "eager",
            },
            inputs={"input_ids": NetworkInput(shape=[1, 8], dtype="int64", high=50)},
        )
        return cfg

    return make


def rows(root: Path, query: str) -> list[Any]:
    with sqlite3.connect(root / "mlruns" / "mlflow.db") as connection:
        found = connection.execute(query).fetchall()
    connection.close()
    return found


def test_another_machine_measures_for_no_store_and_stops_what_is_slow_untuned(
    root: Path,
    config: Callable[..., Config],
    make_bundle: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick = {"tuner.trials": 4, "tuner.default_timeout_s": 1e-8}
    cfg = config(**quick, model_uri=make_bundle("xgb"))
    other = replace(resolve_hardware(cfg.hardware), name="elsewhere", model="Another 9999 CPU")
    folder = run(replace(cfg, hardware=other), root)
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "not the machine of hardware 'elsewhere'" in told
    assert "instead of Another 9999 CPU" in told
    assert read_points(folder / "tuning_curve.csv")[-1].trials == 4
    assert not (root / "data" / "store").exists()

    report = json.loads((folder / "report.json").read_text())
    seconds = json.loads((folder / "session.json").read_text())["untuned_s"]
    assert set(seconds.values()) == {math.inf}
    assert f"{report['tasks']} of {report['tasks']} failed or were stopped after 1e-08 s" in told
    assert report["network_rules_latency_s"] > 0
    assert report["network_latency_s"] > 0


def test_a_network_is_tuned_with_a_bundle_and_tuning_goes_on(
    root: Path,
    config: Callable[..., Config],
    make_bundle: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tvm
    from tvm import relax

    from tencost.store.record_store import RecordStore

    # The network takes microseconds: on a busy host one turn may take 20 times the other, and its times be put aside.
    monkeypatch.setattr("tencost.records.gate.REPEATS", 1e9)
    # And its tasks may take less than what any call takes, so that none is above its roof.
    lower = "tencost.tune.progress.roofs_of"
    monkeypatch.setattr(lower, lambda hardware: replace(roofs_of(hardware), floor_s=0.0))
    bundle = make_bundle("xgb")
    folder = run(config(**{"tuner.trials": 16, "model_uri": bundle}), root)
    assert folder == root / "tuned" / "tiny-local"
    points = read_points(folder / "tuning_curve.csv")
    assert [points[0].trials, points[-1].trials] == [0, 16]
    assert points[-1].total_latency_s <= points[0].total_latency_s
    assert points[-1].model == str(bundle)
    lines = read_batch_lines(folder / "batches.jsonl")
    assert [line.trials for line in lines] == [point.trials for point in points[1:]]
    assert [line.spearman for line in lines] == [point.spearman for point in points[1:]]
    assert {line.model for line in lines} == {str(bundle)}
    assert all(line.k == line.programs // 2 for line in lines)
    assert (folder / "tuning_curve.png").is_file()
    report = json.loads((folder / "report.json").read_text())
    assert report["trials"] == 16
    assert report["max_rel_error"] < 1e-4
    assert 0 < report["network_latency_q1_s"] <= report["network_latency_s"]
    assert report["network_latency_s"] <= report["network_latency_q3_s"]
    beyond = report["network_latency_s"] - report["tasks_total_latency_s"]
    assert report["network_unexplained_s"] == pytest.approx(beyond)
    assert report["network_unexplained_q1_s"] <= report["network_unexplained_q3_s"]
    assert 0 < report["tasks_total_latency_q1_s"] <= report["tasks_total_latency_s"]
    assert report["tasks_tuning_latency_s"] == pytest.approx(points[-1].total_latency_s)
    assert report["host_noise"] >= 1
    assert report["outputs_compared"] >= report["tasks"]
    assert report["wrong_answers"] == report["tasks_not_compared"] == 0
    assert 0 < len(report["above_the_roof"]) <= 5
    assert (folder / "network.png").is_file()

    copy = shutil.copytree(folder, root / "stock")
    compared = {"tuner.compare_with": copy.name}
    again = run(config(**{"tuner.trials": 24, "model_uri": bundle, **compared}), root)
    assert again == folder
    assert read_points(folder / "tuning_curve.csv")[: len(points)] == points
    assert read_batch_lines(folder / "batches.jsonl")[: len(lines)] == lines
    report = json.loads((folder / "report.json").read_text())
    assert report["trials"] == 24
    records = (copy / "database_tuning_record.json").read_text().splitlines()
    assert report["compared_tasks"] == len({json.loads(line)[0] for line in records}) > 0
    for other in ("compared", "rules"):
        ratio = report["network_latency_s"] / report[f"network_{other}_latency_s"]
        assert report[f"network_over_{other}"] == pytest.approx(ratio)

    database = tvm.s_tir.meta_schedule.database.JSONDatabase(work_dir=str(folder))
    assert len(database) == 24
    stored = RecordStore(str(root / "data" / "store")).read("local")
    assert len(stored) == 24
    assert set(stored["status"]) == {"ok"}
    assert all(str(bundle) in text for text in stored["additional_info"])

    timed = read_runs(str(root / "data" / "store"))
    assert [run.engine for run in timed] == ["tencost"] * 2
    assert {(run.network, run.hardware, run.cores) for run in timed} == {("tiny", "local", 1)}
    assert [run.info["tuning_programs"] for run in timed] == [16, 24]
    assert list(timed[1].seconds) == report["network_times_s"]["tuned"]
    assert np.median(timed[1].seconds) == pytest.approx(report["network_latency_s"])

    runs = rows(root, "select run_uuid, name, status from runs")
    assert [(name, status) for _, name, status in runs] == [("tune · tiny-local", "FINISHED")] * 2
    metrics = {key for (key,) in rows(root, "select distinct key from metrics")}
    assert {"tune/total_latency_ms", "tune/network_over_rules", "tune/failed"} <= metrics
    assert {"tune/network_unexplained_s", "tune/wrong_answers"} <= metrics
    assert {"tune/p_rmse", "tune/top_k", "tune/model_p_rmse", "tune/residual_top_k"} <= metrics
    steps = rows(root, "select step from metrics where key = 'tune/p_rmse' order by step")
    assert [step for (step,) in steps] == [
        line.trials for line in read_batch_lines(folder / "batches.jsonl")
    ]
    kept = {path.name for path in (root / "mlruns" / "artifacts").rglob("*") if path.is_file()}
    assert {"database_workload.json", "database_tuning_record.json", "tuning_curve.png"} <= kept
    assert {"network.png", "batches.jsonl"} <= kept

    # Anyone's TVM applies the database.
    from tencost.networks.network import load_network

    network = load_network(config().network)
    with tvm.target.Target(json.loads((folder / "session.json").read_text())["target"]):
        mod = network.deployable({"kind": "llvm"})
        applied = relax.transform.MetaScheduleApplyDatabase(str(folder))(mod)
    scheduled = [
        function
        for function in applied.functions.values()
        if isinstance(function, tvm.tirx.PrimFunc) and "tirx.is_scheduled" in (function.attrs or {})
    ]
    assert len(scheduled) == report["tasks"]


def test_a_folder_from_before_weights_were_packed_goes_on(
    root: Path,
    config: Callable[..., Config],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its programs are of other workloads: they stay, count as nothing measured, and can be compared with.

    Without a champion it learns from scratch.
    """
    with monkeypatch.context() as patch:
        # A packaged champion stands for no other alias.
        patch.setenv("TENCOST_ALIAS", "staging")
        before = config(**{"tuner.trials": 16})
        before.network.pack_weights = False
        made = run(before, root)
    assert json.loads((made / "report.json").read_text())["model"] == "scratch"
    told = " ".join(capsys.readouterr().err.split())
    assert "No registered model for hardware local" in told
    assert "tencost-local" in told
    folder = root / "tuned" / "tiny-local"
    assert made == folder.with_name("tiny-unpacked-local")
    made.rename(folder)  # as it was called then
    session = json.loads((folder / "session.json").read_text())
    (folder / "session.json").write_text(json.dumps({**session, "network": "tiny"}))
    curve = (folder / "tuning_curve.csv").read_text()
    shutil.copytree(folder, root / "stock")
    capsys.readouterr()

    compared = {"tuner.compare_with": "stock"}
    run(config(**{"tuner.trials": 16, "model_uri": "scratch", **compared}), root)
    told = " ".join(capsys.readouterr().err.split())
    assert "programs that are not of tiny as its graph is written now" in told
    assert "network.pack_weights=false and --database" in told
    report = json.loads((folder / "report.json").read_text())
    assert report["trials"] == 16
    assert report["max_rel_error"] < 1e-4
    assert report["compared_tasks"] > 0
    assert report["network_compared_latency_s"] > 0
    records = (folder / "database_tuning_record.json").read_text().splitlines()
    assert 16 < len(records) <= 32
    assert (folder / "before_tuning_curve.csv").read_text() == curve
    trials = [point.trials for point in read_points(folder / "tuning_curve.csv")]
    assert (trials[0], trials[-1]) == (0, 16)
    assert trials == sorted(trials)


def test_a_model_that_is_asked_for_must_be_there(root: Path, config: Callable[..., Config]) -> None:
    with pytest.raises(RegistryError, match="no-such-model"):
        run(config(model_uri="models:/no-such-model/1"), root)


def test_hardware_that_the_host_is_not_is_refused_before_anything_starts(
    root: Path, config: Callable[..., Config]
) -> None:
    cfg = config()
    cfg.hardware.detect = False
    cfg.hardware.target = {"kind": "llvm", "mcpu": "core2"}
    cfg.hardware.requires = ["an_instruction_set_of_2050"]
    with pytest.raises(HardwareError, match="an_instruction_set_of_2050"):
        run(cfg, root)
    assert not (root / "tuned").exists()


def test_a_network_without_tasks_to_tune_is_said_so(
    root: Path, config: Callable[..., Config]
) -> None:
    with pytest.raises(TuneError, match=r"no task of at least 1000\.0 MFLOP"):
        run(config(**{"tuner.min_mflop": 1000.0}), root)


def test_a_database_to_compare_with_must_be_there(
    root: Path, config: Callable[..., Config]
) -> None:
    with pytest.raises(TuneError, match=r"compare_with=.*no database_workload\.json"):
        run(config(**{"tuner.compare_with": "nowhere"}), root)


def test_a_database_of_another_network_is_refused_before_anything_is_measured(
    root: Path, config: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "other").mkdir()
    for name in ("database_workload.json", "database_tuning_record.json"):
        (root / "other" / name).touch()
    with pytest.raises(
        TuneError, match=r"compare_with=other: expected programs of tiny .* found none"
    ):
        run(config(**{"tuner.compare_with": "other"}), root)
    assert "compiling" not in capsys.readouterr().err


def test_an_unknown_cpu_is_refused_before_anything_starts(
    root: Path, config: Callable[..., Config]
) -> None:
    cfg = config()
    cfg.hardware.detect = False
    cfg.hardware.target = {"kind": "llvm", "mcpu": "znver55", "num-cores": 1}
    with pytest.raises(HardwareError, match=r"does not know the CPU 'znver55'"):
        run(cfg, root)
    assert not (root / "tuned").exists()


@pytest.mark.parametrize("is_open", [False, True])
def test_sizes_that_are_known_only_when_it_runs_are_refused(is_open: bool) -> None:
    import tvm
    from tvm import relax, tirx

    from tencost.tune.deploy import check_shapes

    rows = tirx.Var("rows", "int64") if is_open else 16
    taken = [
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in (("x", (rows, 16)), ("w", (16, 16)))
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", taken):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(*taken))
            output = builder.emit_output(relax.Tuple([product]))
        builder.emit_func_output(output)
    ones = np.ones((16, 16), np.float32)
    network = Network(
        "mine", fuse(builder.get()), [tvm.runtime.tensor(ones)], {"x": ones}, [ones @ ones], 0, ["y"]
    )  # fmt: skip
    tasks = network.tasks({"kind": "llvm"})
    if not is_open:
        check_shapes(network, tasks)
        return
    with pytest.raises(TuneError, match=r"expected fixed shapes, found those of matmul with rows"):
        check_shapes(network, tasks)


def test_a_network_that_tvm_cannot_compile_is_refused_before_anything_is_measured(
    root: Path, config: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    """Truth values are subtracted, which TVM's code generator does not know; PyTorch refuses it, too."""
    save_network(with_operator("subtract", "bool"), root / "mine.npz")
    cfg = config()
    cfg.network = NetworkConfig(name="", source="saved", path="mine.npz", output="")
    with pytest.raises(
        TuneError,
        match=r"network 'mine': TVM .* cannot compile its operator \w*subtract\w* for llvm",
    ):
        run(cfg, root)
    assert not list(root.rglob("database_tuning_record.json"))
    assert "unscheduled" not in capsys.readouterr().err


def test_an_output_that_says_nothing_is_said_so(
    root: Path, config: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    network = with_operator("subtract", "float32", scale=0.0)
    save_network(network, root / "mine.npz")
    cfg = config(**{"tuner.trials": 4})
    cfg.network = NetworkConfig(name="", source="saved", path="mine.npz", output="")
    folder = run(cfg, root)
    report = json.loads((folder / "report.json").read_text())
    assert report["outputs_that_say_nothing"] == {"y": "all zeros"}
    assert "max_abs_error" not in report
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "output y of mine is all zeros, as PyTorch computes it" in told
    assert "none can be told of y, which is all zeros" in told


def with_operator(name: str, dtype: str, scale: float = 1.0) -> Network:
    """Return a matmul and an operator of two inputs of a type; y is what both come to."""
    import tvm
    from tvm import relax

    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((16, 16), np.float32)}
    inputs |= {key: np.ones((16, 16), dtype) for key in ("a", "b")}
    weight = scale * rng.standard_normal((16, 16), np.float32)
    taken = {
        key: relax.Var(key, relax.TensorType(array.shape, array.dtype.name))
        for key, array in {**inputs, "w": weight}.items()
    }
    builder = relax.BlockBuilder()
    with builder.function("main", list(taken.values())):
        with builder.dataflow():
            odd = builder.emit(getattr(relax.op, name)(taken["a"], taken["b"]))
            product = builder.emit(relax.op.matmul(taken["x"], taken["w"]))
            y = builder.emit(relax.op.add(product, relax.op.astype(odd, "float32")))
            outputs = builder.emit_output(relax.Tuple([y]))
        builder.emit_func_output(outputs)
    expected = inputs["x"] @ weight
    return Network(
        "mine", fuse(builder.get()), [tvm.runtime.tensor(weight)], inputs, [expected], 0, ["y"]
    )
