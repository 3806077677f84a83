"""The pipeline itself on a slice of the sample: real DVC, real MLflow, real TVM, in a project of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

from tencost import cli

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "datasets" / "tencost-xeon.tar.zst"
HARDWARE = "xeon-avx2-1c"
TVM_XGB = f"train@tvm_xgb-per_store-{HARDWARE}"
TASKS_A_NETWORK = 2
PROGRAMS_A_TASK = 10

pytestmark = [pytest.mark.slow, pytest.mark.tvm]


def slice_sample(folder: Path) -> None:
    """Keep a few programs of a few tasks of every network, on one hardware."""
    from tencost.records.fetch.unpack import unpack

    whole = folder.with_name("whole")
    whole.mkdir()
    unpack(SAMPLE, whole)
    index = json.loads((whole / "tasks.json").read_text())
    kept: dict[str, list[str]] = {}
    for task in index:
        records = (
            whole
            / "measure_records"
            / HARDWARE
            / str(task["folder"])
            / "database_tuning_record.json"
        )
        chosen = kept.setdefault(task["network"], [])
        enough = task["measured"] and len(records.read_text().splitlines()) >= PROGRAMS_A_TASK
        if enough and len(chosen) < TASKS_A_NETWORK:
            chosen.append(task["folder"])
            lines = records.read_text().splitlines(keepends=True)[:PROGRAMS_A_TASK]
            target = folder / "measure_records" / HARDWARE / task["folder"]
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(records.with_name("database_workload.json"), target)
            (target / records.name).write_text("".join(lines))
        else:
            task["measured"], task["folder"] = False, None
    (folder / "tasks.json").write_text(json.dumps(index))
    shutil.copytree(whole / "network_info", folder / "network_info")
    shutil.rmtree(whole)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, mlflow_database: Path) -> Path:
    """The project, before anything of it is built; two kinds of trees, as a process that trains a network takes twice
    the time."""
    from tencost.records.fetch.pack import pack_folder

    root = tmp_path_factory.mktemp("pipeline") / "project"
    (root / "datasets").mkdir(parents=True)
    raw = root.with_name("raw")
    raw.mkdir()
    slice_sample(raw)
    digest = pack_folder(raw, root / "datasets" / "slice.tar.zst")
    shutil.copytree(ROOT / "conf", root / "conf")
    shutil.copy(ROOT / "dvc.yaml", root)
    shutil.copytree(
        ROOT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    dataset = {
        "name": "slice",
        "source": "datasets/slice.tar.zst",
        "sha256": digest,
        "description": "a slice",
    }
    (root / "conf" / "dataset" / "slice.yaml").write_text(yaml.safe_dump(dataset))
    edit(root / "conf" / "split" / "by_network.yaml", "valid_fraction", 0.3)
    edit(root / "conf" / "model" / "xgb.yaml", "num_rounds", 20)
    edit(root / "conf" / "model" / "tvm_xgb.yaml", "num_rounds", 20)
    params = {
        "dataset": "slice",
        "split": "by_network",
        "hardware": [HARDWARE],
        "features": ["per_store", "tiles"],
        "models": {
            "per_store": ["random", "tvm_xgb"],
            "per_store_tiles": ["xgb"],
        },
        "seeds": "0,1",
    }  # fmt: skip
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    (root / "mlruns").mkdir()
    shutil.copy(mlflow_database, root / "mlruns")
    assert tencost(root, "params") == "params.yaml: written anew\n"
    dvc(root, "init", "--no-scm")
    return root


def edit(path: Path, key: str, value: float) -> None:
    lines = path.read_text().splitlines()
    changed = [f"{key}: {value}" if line.startswith(f"{key}:") else line for line in lines]
    assert changed != lines, f"{path} has no {key}"
    path.write_text("\n".join(changed) + "\n")


def environment(root: Path) -> dict[str, str]:
    here = Path(sys.executable).parent
    quiet = {
        "DVC_NO_ANALYTICS": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "XDG_CACHE_HOME": str(root.parent / "cache"),
    }
    return {**os.environ, **quiet, "PATH": f"{here}{os.pathsep}{os.environ['PATH']}"}


def dvc(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments],
        cwd=root, env=environment(root), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"dvc {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def tencost(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tencost.cli", *arguments],
        cwd=root, env=environment(root), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"tencost {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def changed_stages(root: Path) -> set[str]:
    with contextlib.chdir(root), Repo() as repo:
        return set(repo.status())


def test_killed_in_the_middle_it_completes(project: Path) -> None:
    """Kill -9 of everything while the features are made; the next run completes, and a third one does nothing."""
    running = subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro"],
        cwd=project, env=environment(project), start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert running.stdout is not None
    for line in running.stdout:
        if "Running stage 'features@per_store'" in line:
            break
    time.sleep(2)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    running.stdout.close()
    assert not (project / "data" / "features" / "slice" / "per_store").exists()
    dvc(project, "repro")
    assert "Data and pipelines are up to date" in dvc(project, "repro")


def test_it_leaves_metrics_plots_and_a_verdict(project: Path) -> None:
    report = project / "data" / "reports" / "slice" / HARDWARE
    metrics = json.loads((report / "models.json").read_text())
    assert {"xgb-per_store_tiles", "tvm_xgb-per_store", "random-per_store"} <= set(metrics)
    for model in ("xgb-per_store_tiles", "tvm_xgb-per_store"):
        assert 0 < metrics[model]["top1"]["mean"] <= metrics[model]["top5"]["mean"] <= 1
    assert (report / "plots" / "search.png").stat().st_size > 10_000
    mark = json.loads(
        (project / "mlruns" / "registered" / "slice" / f"{HARDWARE}.json").read_text()
    )
    assert mark["model"] == f"tencost-{HARDWARE}"


def test_mlflow_has_a_run_a_model_and_a_registered_version(project: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{project / 'mlruns' / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    experiment = client.get_experiment_by_name("tencost")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], "tags.`tencost.stage` = 'train'")
    finished = [run for run in runs if run.info.status == "FINISHED"]
    assert len(finished) == 3
    run = next(run for run in finished if run.data.tags["family"] == "xgb")
    assert run.data.metrics["evaluate/top1"] > 0
    assert run.inputs.dataset_inputs
    versions = client.search_model_versions(f"name = 'tencost-{HARDWARE}'")
    assert len(versions) == 1
    assert (
        "challenger" in client.get_model_version(f"tencost-{HARDWARE}", versions[0].version).aliases
    )


def test_a_model_file_re_runs_that_model_and_what_follows(project: Path) -> None:
    edit(project / "conf" / "model" / "tvm_xgb.yaml", "num_rounds", 30)
    assert changed_stages(project) == {TVM_XGB, "params"}, "which compares items and models"
    edit(project / "conf" / "model" / "tvm_xgb.yaml", "num_rounds", 20)
    assert changed_stages(project) == set()


def test_a_split_re_runs_training_but_not_the_features(project: Path) -> None:
    edit(project / "conf" / "split" / "by_network.yaml", "valid_fraction", 0.35)
    assert changed_stages(project) == {"splits", f"evaluate@{HARDWARE}", f"register@{HARDWARE}"}
    edit(project / "conf" / "split" / "by_network.yaml", "valid_fraction", 0.3)


@pytest.mark.parametrize(
    ("modules", "stages"),
    [
        (["records/formats/ansor/rows.py"], {"records"}),
        (["compat/lorien/dialects.py", "cli/main.py", "config/schema.py", "tune/stage.py"], set()),
        (
            ["models/programs/families/tvm_xgb.py"],  # evaluation and registration load any family
            {TVM_XGB, f"evaluate@{HARDWARE}", f"register@{HARDWARE}"},
        ),
    ],
)
def test_a_comment_re_runs_what_reaches_the_module(
    project: Path, modules: list[str], stages: set[str]
) -> None:
    paths = [project / "src" / "tencost" / module for module in modules]
    originals = [path.read_bytes() for path in paths]
    for path, original in zip(paths, originals, strict=True):
        path.write_bytes(original + b"# a comment\n")
    try:
        changed = changed_stages(project)
    finally:
        for path, original in zip(paths, originals, strict=True):
            path.write_bytes(original)
    assert changed == stages


def test_going_back_trains_nothing(project: Path) -> None:
    model = project / "conf" / "model" / "tvm_xgb.yaml"
    edit(model, "num_rounds", 30)
    assert f"Running stage '{TVM_XGB}'" in dvc(project, "repro", TVM_XGB)
    edit(model, "num_rounds", 20)
    assert "Running stage 'train" not in dvc(project, "repro")
    assert changed_stages(project) == set()


def test_a_lock_that_a_kill_cut_off_is_restored(project: Path) -> None:
    lock = project / "dvc.lock"
    whole = lock.read_bytes()
    lock.write_bytes(whole[: len(whole) // 2])
    told = tencost(project, "pipeline")
    assert "Running stage" not in told.replace("Running stage 'register", "")
    assert json.loads(json.dumps(yaml.safe_load(lock.read_text()))) == yaml.safe_load(whole)


def test_a_lost_registry_is_filled_again_without_training(project: Path) -> None:
    from mlflow import MlflowClient

    kept = project.with_name("mlruns-kept")
    (project / "mlruns").rename(kept)
    try:
        told = dvc(project, "repro")
        assert "Running stage 'register" in told
        assert "Running stage 'train" not in told
        # Another path: this process may hold the lost database open.
        (project / "mlruns").rename(project.with_name("mlruns-again"))
        uri = f"sqlite:///{project.with_name('mlruns-again') / 'mlflow.db'}"
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        assert len(client.search_model_versions(f"name = 'tencost-{HARDWARE}'")) == 1
    finally:
        shutil.rmtree(project / "mlruns", ignore_errors=True)
        kept.rename(project / "mlruns")


def test_a_sweep_is_nested_and_skips_impossible_pairs(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(project)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    sweep = ["train", "-m", "dataset=slice", f"hardware={HARDWARE}", "features=tiles,per_store"]
    with pytest.raises(SystemExit) as ended:
        cli.main([*sweep, "model=random,xgb", "++model.num_threads=1"])
    assert ended.value.code == 2, "random has no num_threads"
    cli.main([*sweep, "model=xgb,tvm_xgb"])
    assert "skipped model=tvm_xgb features=tiles" in capsys.readouterr().err
    uri = f"sqlite:///{project / 'mlruns' / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    experiment = client.get_experiment_by_name("tencost")
    assert experiment is not None
    parents = client.search_runs([experiment.experiment_id], "attributes.run_name LIKE 'sweep%'")
    latest = max(parents, key=lambda run: run.info.start_time)
    children = client.search_runs(
        [experiment.experiment_id], f"tags.`mlflow.parentRunId` = '{latest.info.run_id}'"
    )
    assert len(children) == 3
    assert {run.info.status for run in children} == {"FINISHED"}
