"""A registered model as a folder: whole, checked, usable when the registry is gone, and never over something else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tencost import cli
from tencost.errors import BundleError, RegistryError
from tencost.models.programs.bundle import load_bundle
from tencost.programs.starting_points import FILE, StartBook, shipped_starts
from tencost.register import registry
from tencost.register.export import export_bundle
from tencost.register.pull import manifest_digest
from tencost.register.start_records import ship

MakeBundle = Callable[..., Path]
NAME = "tencost-toy-1c"
TRACE = [[["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v0"]]], [[0, 1]]]


@pytest.fixture
def registered(
    register: Callable[..., registry.Version], make_bundle: MakeBundle, tmp_path: Path
) -> Path:
    """A bundle with starting points that is version 1 and champion."""
    book = StartBook.of("toy-1c", {"kind": "llvm"}, [("w", 1e-3, TRACE), ("v", 2e-3, TRACE)])
    bundle = ship(make_bundle(), book, tmp_path / "shipped")
    register(bundle, champion=True)
    return bundle


@pytest.fixture
def export(project: Path, tmp_path: Path) -> Callable[..., Any]:
    def run(folder: Path, address: str = f"models:/{NAME}@champion") -> Any:
        return export_bundle(address, folder, root=project, cache_dir=tmp_path / "cache")

    return run


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("address", [f"models:/{NAME}@champion", f"models:/{NAME}/1"])
def test_the_folder_is_the_registered_bundle(
    registered: Path, export: Callable[..., Any], project: Path, tmp_path: Path, address: str
) -> None:
    folder = tmp_path / "there" / "model"
    done = export(folder, address)
    assert done.is_new
    assert content(folder) == content(registered)
    assert done.digest == manifest_digest(registered)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    assert not export(folder, address).is_new
    shutil.rmtree(project)
    shutil.rmtree(tmp_path / "cache")
    assert load_bundle(folder).info.hardware == "toy-1c"
    assert shipped_starts(folder) == shipped_starts(registered)


def test_an_empty_folder_is_taken(
    registered: Path, export: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    assert export(folder).is_new
    assert content(folder) == content(registered)


def test_something_else_is_never_written_over(
    registered: Path, export: Callable[..., Any], make_bundle: MakeBundle, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "notes.txt").write_text("mine")
    other = make_bundle("other", center=2.0)
    damaged, fuller = tmp_path / "damaged", tmp_path / "fuller"
    export(damaged)
    (damaged / FILE).write_text("{}")
    export(fuller)
    (fuller / "more.json").write_text("{}")
    a_file = tmp_path / "file"
    a_file.write_text("mine")
    for folder in (notes, other, damaged, fuller):
        before = content(folder)
        with pytest.raises(BundleError, match="expected a new or empty folder at"):
            export(folder)
        assert content(folder) == before
    with pytest.raises(BundleError, match="expected a new or empty folder at"):
        export(a_file)
    assert a_file.read_text() == "mine"
    with pytest.raises(BundleError, match="cannot write"):
        export(a_file / "model")


def test_a_tampered_version_is_not_exported(
    registered: Path, export: Callable[..., Any], project: Path, tmp_path: Path
) -> None:
    (shipped,) = (project / "mlruns" / "artifacts").rglob(FILE)
    shipped.write_bytes(shipped.read_bytes() + b" ")
    with pytest.raises(BundleError, match=rf"{FILE}: expected sha256"):
        export(tmp_path / "there" / "model")
    assert not (tmp_path / "there").exists()


def test_a_model_that_is_not_there(
    registered: Path, export: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(RegistryError, match="no version 9; versions: 1"):
        export(tmp_path / "model", f"models:/{NAME}/9")
    assert not (tmp_path / "model").exists()


def test_the_command_says_how_the_folder_is_used(
    registered: Path,
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ["register", "export", f"models:/{NAME}@champion", "there/model"]
    cli.main(words)
    shown = capsys.readouterr().out
    assert "random for toy-1c, 3 files, 2 starting points" in shown
    assert manifest_digest(registered) in shown
    assert "  tencost tune model.onnx model_uri=there/model\n" in shown
    assert '  tencost.load_cost_model("there/model")\n' in shown
    assert content(project / "there" / "model") == content(registered)
    cli.main(words)
    assert "already in there/model" in capsys.readouterr().out
    for wrong in (words[:2], words[:3], [*words, "more"], [*words[:3], "--force"]):
        with pytest.raises(SystemExit) as stop:
            cli.main(wrong)
        assert stop.value.code == 2
        assert "Usage: tencost register export" in capsys.readouterr().err
