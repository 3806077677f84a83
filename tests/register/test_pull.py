"""Pulling bundles: every form of URI, what is not there, the cache, and a registry that is down."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tencost.errors import BundleError, RegistryError
from tencost.models.programs.bundle import load_bundle
from tencost.register import registry
from tencost.register.pull import StaleBundleWarning, pull, registry_uri
from tencost.tracking.runs import logged_model

MakeBundle = Callable[..., Path]
Register = Callable[..., registry.Version]
NAME = "tencost-toy-1c"


@pytest.fixture
def get(project: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda uri: pull(uri, tmp_path / "cache", root=project)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_version_leads_to_a_model_and_that_to_its_run(
    client: Any, registered: Path, run_id: str
) -> None:
    version = client.get_model_version(NAME, "1")
    model = client.get_logged_model(version.tags["logged_model"])
    assert model.source_run_id == version.run_id == run_id
    assert json.loads(model.tags["mlflow.modelVersions"]) == [{"name": NAME, "version": "1"}]
    assert model.tags["registered"] == "true"
    assert logged_model(client, run_id) == model.model_id


@pytest.mark.parametrize("address", [f"models:/{NAME}@champion", f"models:/{NAME}/1"])
def test_pull_a_version(registered: Path, get: Callable[[str], Path], address: str) -> None:
    folder = get(address)
    assert content(folder) == content(registered)
    assert load_bundle(folder).info.family == "random"
    assert get(address) == folder


def test_pull_from_a_run(
    client: Any, registered: Path, run_id: str, get: Callable[[str], Path]
) -> None:
    client.log_artifacts(run_id, str(registered), "bundles/seed0")
    assert content(get(f"runs:/{run_id}/bundles/seed0")) == content(registered)
    assert content(get(f"runs:/{run_id}")) == content(registered)


def test_a_folder_is_its_own_bundle(make_bundle: MakeBundle) -> None:
    bundle = make_bundle()
    assert pull(str(bundle)) == bundle
    assert pull(bundle.as_uri()) == bundle


def test_uris_that_mean_nothing(tmp_path: Path) -> None:
    for uri in ("models:/name", "models:/name@", "model.pkl", "runs:/xyz", "s3://bucket/model"):
        with pytest.raises(RegistryError, match="expected models:/<name>@<alias>"):
            pull(uri)
    with pytest.raises(BundleError, match=r"bundle\.json"):
        pull(str(tmp_path))


def test_unknown_names_are_answered_with_known_ones(
    registered: Path, get: Callable[[str], Path]
) -> None:
    with pytest.raises(RegistryError, match=f"no model 'tencost-toi'; it has: {NAME}"):
        get("models:/tencost-toi@champion")
    with pytest.raises(RegistryError, match="no version 9; versions: 1; aliases: challenger = 1"):
        get(f"models:/{NAME}/9")
    with pytest.raises(RegistryError, match="no alias 'best'; versions: 1"):
        get(f"models:/{NAME}@best")


def test_an_alias_of_a_deleted_version_names_what_moves_it(
    register: Register,
    make_bundle: MakeBundle,
    get: Callable[[str], Path],
    client: Any,
    project: Path,
) -> None:
    """Not every registry deletes a version's aliases with it: here they are put back."""
    for number in (1, 2):
        version = register(make_bundle(f"bundle{number}", float(number)), champion=True)
        client.set_registered_model_alias(NAME, "staging", str(version.number))
    with closing(sqlite3.connect(project / "mlruns" / "mlflow.db")) as database:
        rows = database.execute("SELECT * FROM registered_model_aliases").fetchall()
        client.delete_model_version(NAME, "2")
        marks = ", ".join("?" * len(rows[0]))
        database.executemany(
            f"INSERT OR REPLACE INTO registered_model_aliases VALUES ({marks})", rows
        )
        database.commit()
    for alias, command in (
        ("champion", f"tencost register rollback {NAME} 1"),
        ("staging", f"tencost register promote {NAME} 1 --to staging"),
        ("challenger", "tencost register"),
    ):
        with pytest.raises(
            RegistryError,
            match=f"version 2, to which the alias '{alias}' points, was deleted; versions: 1. "
            f"Point it to another: {command}$",
        ):
            get(f"models:/{NAME}@{alias}")
    with pytest.raises(RegistryError, match="no alias 'best'; versions: 1; aliases: none"):
        get(f"models:/{NAME}@best")
    registry.rollback(client, NAME, 1)
    assert get(f"models:/{NAME}@champion").name == "1"


def test_a_model_without_versions_names_what_registers_one(
    registered: Path, get: Callable[[str], Path], client: Any
) -> None:
    client.delete_model_version(NAME, "1")
    message = (
        f"model '{NAME}' has no version: all were deleted. Register one with `tencost register`"
    )
    for address in (f"models:/{NAME}@champion", f"models:/{NAME}/1"):
        with pytest.raises(RegistryError, match=message):
            get(address)
    with pytest.raises(RegistryError, match=message):
        registry.rollback(client, NAME)


@pytest.mark.parametrize(
    ("name", "command"),
    [("tencost-nobody", "tencost register"), ("tencost-graph-nobody", "tencost graphs register")],
)
@pytest.mark.usefixtures("registered")
def test_an_unknown_model_is_answered_with_what_registers_it(
    get: Callable[[str], Path], name: str, command: str
) -> None:
    with pytest.raises(RegistryError, match=f"Register one with `{command}`"):
        get(f"models:/{name}@champion")


def test_alias_follows_the_registry(
    registered: Path,
    get: Callable[[str], Path],
    client: Any,
    register: Callable[..., registry.Version],
    make_bundle: MakeBundle,
) -> None:
    first = get(f"models:/{NAME}@champion")
    register(make_bundle("other", center=2.0), champion=True)
    second = get(f"models:/{NAME}@champion")
    assert second != first
    assert load_bundle(second).info.calibration.center == 2.0
    assert registry.rollback(client, NAME).number == 1
    assert get(f"models:/{NAME}@champion") == first


def test_registry_down_uses_the_last_pull_with_a_warning(
    registered: Path, get: Callable[[str], Path], project: Path
) -> None:
    folder = get(f"models:/{NAME}@champion")
    shutil.rmtree(project / "mlruns")
    with pytest.warns(StaleBundleWarning, match="Using the bundle pulled last, version 1"):
        assert get(f"models:/{NAME}@champion") == folder
    with pytest.warns(StaleBundleWarning, match="version 1"):
        assert get(f"models:/{NAME}/1") == folder
    with pytest.raises(RegistryError, match="no earlier pull of it"):
        get(f"models:/{NAME}/2")
    assert not (project / "mlruns").exists()  # asking did not create an empty registry


def test_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(RegistryError, match=r"http://127\.0\.0\.1:9 does not answer"):
        pull(f"models:/{NAME}@champion", tmp_path / "cache")


def test_artifacts_gone_or_moved(
    registered: Path, get: Callable[[str], Path], project: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    project.rename(moved)  # the database still holds the old absolute paths
    folder = pull(f"models:/{NAME}@champion", tmp_path / "cache", root=moved)
    assert content(folder) == content(registered)
    shutil.rmtree(moved / "mlruns" / "artifacts")
    with warnings.catch_warnings():  # whole in the cache: nothing to download
        assert pull(f"models:/{NAME}@champion", tmp_path / "cache", root=moved) == folder
    with pytest.raises(RegistryError, match="no earlier pull"):
        pull(f"models:/{NAME}@champion", tmp_path / "empty", root=moved)


def test_damaged_cache_is_pulled_again_or_refused(
    registered: Path, get: Callable[[str], Path], project: Path
) -> None:
    folder = get(f"models:/{NAME}@champion")
    (folder / "bundle.json").write_text("{}")
    assert content(get(f"models:/{NAME}@champion")) == content(registered)
    weights = next(path for path in folder.iterdir() if path.name != "bundle.json")
    weights.write_bytes(b"tampered")
    (project / "mlruns" / "mlflow.db").unlink()
    with pytest.raises(RegistryError, match="no earlier pull"):
        get(f"models:/{NAME}@champion")


def test_a_cached_copy_that_is_whole_but_not_what_was_registered_is_not_used(
    registered: Path, get: Callable[[str], Path], project: Path
) -> None:
    def change(folder: Path) -> None:
        text = (folder / "bundle.json").read_bytes()
        (folder / "bundle.json").write_bytes(text.replace(b'"center": 0.0', b'"center": 5.0'))
        assert load_bundle(folder).info.calibration.center == 5.0

    uri = f"models:/{NAME}@champion"
    folder = get(uri)
    change(folder)
    assert content(get(uri)) == content(registered)
    change(folder)
    (project / "mlruns" / "mlflow.db").unlink()
    with pytest.raises(RegistryError, match="no earlier pull"):
        get(uri)


def test_tampered_registry_is_refused(
    registered: Path, get: Callable[[str], Path], project: Path
) -> None:
    (manifest,) = (project / "mlruns" / "artifacts").rglob("bundle.json")
    manifest.write_bytes(manifest.read_bytes().replace(b'"seed": 0', b'"seed": 1'))
    with pytest.raises(BundleError, match="does not have the registered sha256"):
        get(f"models:/{NAME}@champion")


def test_registry_uri(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert registry_uri(tmp_path) == f"sqlite:///{tmp_path.resolve() / 'mlruns' / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    assert registry_uri(tmp_path) == "http://host:5000"


@pytest.mark.slow
def test_pull_needs_only_the_tuners_dependencies(
    registered: Path, project: Path, tmp_path: Path
) -> None:
    """Pull and score in a process that cannot import what tencost[tuner] does not install."""
    script = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {
            "torch", "pytorch_lightning", "dvc", "polars", "pyarrow", "pandas", "deltalake",
            "duckdb", "matplotlib", "sklearn", "flask", "onnx",
        }:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from pathlib import Path
import numpy as np
from tencost.features.rows.ragged import Ragged
from tencost.register.pull import pull
from tencost.models.programs.bundle import load_bundle
bundle = load_bundle(pull(sys.argv[1], Path(sys.argv[2]), root=Path(sys.argv[3])))
score = bundle.scores(Ragged(np.ones((1, 2), np.float32), np.array([0, 1])))
assert 0 < score[0] <= 1
"""
    arguments = [f"models:/{NAME}@champion", str(tmp_path / "cache"), str(project)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
