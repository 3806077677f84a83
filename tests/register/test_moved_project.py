"""A project that was copied or moved keeps its runs and models to itself, with real MLflow."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tencost.config import Config
from tencost.models.programs.bundle import load_bundle
from tencost.register import registry
from tencost.register.pull import artifact_location, pull
from tencost.tracking import runs as tracking
from tencost.train import programs as training

NAME = "tencost-toy-1c"
PLACES = {
    "experiments": ["artifact_location"],
    "runs": ["artifact_uri"],
    "logged_models": ["artifact_location"],
    "model_versions": ["source", "storage_location"],
}


@pytest.fixture
def original(toy_project: Path, toy_config: Config) -> Path:
    """The toy project with a training run, a logged model and a champion; a space in its path."""
    root = toy_project.rename(toy_project.with_name("the project"))
    result = training.run(toy_config, root)
    client = registry.connect(tracking.setup(root))
    registry.register_offer(
        client,
        registry.bundle_offer(result.folder / "seed0", "a toy"),
        run_id=result.run_id,
        description="a test",
    )
    client.set_registered_model_alias(NAME, registry.CHAMPION, "1")
    experiment = client.get_experiment_by_name(tracking.EXPERIMENT).experiment_id
    client.create_logged_model(experiment, source_run_id=result.run_id)
    return root


def contents(root: Path) -> dict[Path, tuple[int, int]]:
    """Every file below a folder: size and time of its last change."""
    return {
        path: (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def locations(root: Path) -> Iterator[str]:
    """Where the database says that things lie."""
    with sqlite3.connect(root / "mlruns" / "mlflow.db") as database:
        for table, columns in PLACES.items():
            for column in columns:
                rows = database.execute(f"SELECT {column} FROM {table}").fetchall()
                assert rows, table
                yield from (str(row[0]) for row in rows)
    database.close()


@pytest.mark.parametrize("into", ["copy", "a copy with ä % and spaces"])
def test_a_copy_leaves_the_original_alone(
    original: Path, toy_config: Config, tmp_path: Path, into: str
) -> None:
    copy = tmp_path / into
    subprocess.run(["cp", "-a", str(original), str(copy)], check=True)
    before = contents(original)
    shutil.rmtree(copy / "data" / "models")
    trained = training.run(toy_config, copy)
    assert contents(original) == before

    client = registry.connect(tracking.setup(copy))
    for run in client.search_runs([client.get_experiment_by_name("tencost").experiment_id]):
        assert run.info.artifact_uri.startswith(copy.as_uri() + "/")
        assert client.list_artifacts(run.info.run_id)
    assert (
        client.get_run(trained.run_id).info.artifact_uri
        == f"{(copy / 'mlruns' / 'artifacts').as_uri()}/{trained.run_id}/artifacts"
    )
    assert not [one for one in locations(copy) if "the%20project" in one or "the project" in one]
    version = client.get_model_version_by_alias(NAME, "champion")
    assert artifact_location(client, version).startswith(copy.as_uri() + "/")
    folder = pull(f"models:/{NAME}@champion", tmp_path / "cache", root=copy)
    assert load_bundle(folder).info.hardware == "toy-1c"
    assert contents(original) == before
    assert [one for one in locations(original) if one.startswith(original.as_uri() + "/")]


def test_a_moved_project_opens_where_it_is(
    original: Path, toy_config: Config, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere" / "moved"
    moved.parent.mkdir()
    subprocess.run(["mv", str(original), str(moved)], check=True)
    training.run(toy_config, moved)
    assert not original.exists()
    client = registry.connect(tracking.setup(moved))
    version = client.get_model_version_by_alias(NAME, "champion")
    files = client.list_artifacts(version.run_id)
    assert "bundles" in {Path(one.path).name for one in files}
    assert artifact_location(client, version).startswith(moved.as_uri() + "/")
    folder = pull(f"models:/{NAME}@champion", tmp_path / "cache", root=moved)
    assert load_bundle(folder).info.hardware == "toy-1c"


def test_a_copy_s_champion_is_read_from_the_copy_before_anything_is_written(
    original: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", str(original), str(copy)], check=True)
    for manifest in (original / "mlruns").rglob("bundle.json"):
        manifest.unlink()
    folder = pull(f"models:/{NAME}@champion", tmp_path / "cache", root=copy)
    assert load_bundle(folder).info.hardware == "toy-1c"


def test_places_that_are_not_the_project_s_stay(
    original: Path, toy_config: Config, tmp_path: Path
) -> None:
    client = registry.connect(tracking.setup(original))
    elsewhere = (tmp_path / "elsewhere").as_uri()
    beside = original.with_name("the project 2") / "mlruns" / "artifacts" / "run"
    client.create_experiment("theirs", artifact_location=elsewhere)
    experiment = client.get_experiment_by_name(tracking.EXPERIMENT).experiment_id
    foreign = client.create_run(experiment).info.run_id
    with sqlite3.connect(original / "mlruns" / "mlflow.db") as database:
        database.execute(
            "UPDATE runs SET artifact_uri = ? WHERE run_uuid = ?", (beside.as_uri(), foreign)
        )
    database.close()
    moved = original.rename(tmp_path / "moved")
    client = registry.connect(tracking.setup(moved))
    assert client.get_experiment_by_name("theirs").artifact_location == elsewhere
    assert client.get_run(foreign).info.artifact_uri == beside.as_uri()


def test_a_server_s_store_is_never_changed(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", str(original), str(copy)], check=True)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{original / 'mlruns' / 'mlflow.db'}")
    before = sorted(locations(original))
    tracking.setup(copy)
    assert sorted(locations(original)) == before
    assert sorted(locations(copy)) == before


def test_nothing_is_written_where_nothing_moved(original: Path) -> None:
    database = original / "mlruns" / "mlflow.db"
    tracking.setup(original)
    before = database.stat().st_mtime_ns
    tracking.setup(original)
    assert database.stat().st_mtime_ns == before
