"""`tencost init`: a project of one's own, the same parts as the repository's and nothing of its source."""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import tencost
from tencost.cli import main
from tencost.config.project import ARCHIVES
from tencost.fetch.pack import pack_folder
from tencost.fetch.unpack import SUFFIXES

ROOT = Path(__file__).resolve().parents[2]


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_a_project_has_what_the_repository_defines(tmp_path: Path) -> None:
    project = tmp_path / "own"
    main(["init", str(project), "--hardware", "ryzen-1c"])
    groups = {path.name for path in (ROOT / "conf").iterdir() if path.is_dir()} - {"__pycache__"}
    for group in groups - {"dataset"}:
        found = filecmp.dircmp(
            ROOT / "conf" / group, project / "conf" / group, ignore=["__pycache__"]
        )
        assert [*found.left_only, *found.right_only, *found.diff_files] == [], group
    assert [path.name for path in (project / "conf" / "dataset").iterdir()] == ["measured.yaml"]
    pipeline = yaml.safe_load((project / "dvc.yaml").read_text())
    assert set(pipeline["stages"]) == set(yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"])
    assert "src/tencost" not in (project / "dvc.yaml").read_text()
    params = yaml.safe_load((project / "params.yaml").read_text())
    assert params["tencost"] == tencost.__version__
    assert params["hardware"] == ["ryzen-1c"]
    assert "xgb-per_store_tiles-ryzen-1c" in params["train"]
    for stage in pipeline["stages"].values():
        assert "tencost" in stage.get("do", stage)["params"]


@pytest.mark.slow
def test_dvc_reads_it_and_its_commands_run_there(tmp_path: Path) -> None:
    project = tmp_path / "own"
    main(["init", str(project)])
    bin_folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": bin_folder + os.pathsep + os.environ["PATH"]}
    for words, told in (
        (["dvc", "stage", "list"], "train@xgb-per_store_tiles-mine"),
        (["tencost", "params"], "params.yaml: up to date"),
        (["tencost", "records", "--cfg", "job"], "name: measured"),
    ):
        done = subprocess.run(
            words, cwd=project, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert told in done.stdout


def test_what_is_there_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    told = refused(["init", str(tmp_path)], capsys)
    assert "expected a new or an empty folder" in told
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert "expected --hardware of letters" in refused(
        ["init", str(tmp_path / "new"), "--hardware", "../x"], capsys
    )
    assert "found nothing at" in refused(
        ["init", str(tmp_path / "new"), "--logs", str(tmp_path / "none")], capsys
    )
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["all", "local"])
def test_a_name_that_is_no_device_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refused(["init", str(tmp_path / "new"), "--hardware", name], capsys)
    assert "expected --hardware to name one device" in told
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("hardware", "with_logs", "first"),
    [
        ("mine", False, "tencost measure hardware hardware.name=mine"),
        ("mine", True, "tencost measure hardware hardware.name=mine"),
        ("v100", True, "tencost pipeline"),
        (
            "epyc-avx2-1c",
            False,
            "tencost measure networks network=bert_tiny hardware=epyc-avx2-1c",
        ),
    ],
)
def test_the_next_command_is_one_that_works(
    hardware: str, with_logs: bool, first: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.json").write_text("{}")
    logs = ["--logs", str(tmp_path / "logs")] if with_logs else []
    main(["init", str(tmp_path / "own"), "--hardware", hardware, *logs])
    assert capsys.readouterr().out.endswith(f"&& {first}\n")


def test_a_file_that_holds_no_logs_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty" / "folder").mkdir(parents=True)
    alone, named = tmp_path / "ansor.json", tmp_path / "logs.tar.zst"
    for path in (alone, named):
        path.write_text('{"i": []}\n')
    for logs, why in (
        (alone, "found the file {}. If it is a log, put it into a folder and name that."),
        (named, "found {}, which ends in .tar.zst and is none: it begins with b'{{\"i\"'"),
        (tmp_path / "empty", "found no file in the folder {}"),
    ):
        told = refused(["init", str(tmp_path / "new"), "--logs", str(logs)], capsys)
        assert "expected --logs to name a folder of logs or an archive of one (.tar.zst" in told
        assert why.format(logs) in told
        assert told.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_archive_that_fetch_unpacks_is_taken(suffix: str, tmp_path: Path) -> None:
    assert tuple(ARCHIVES) == SUFFIXES
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.json").write_text("{}")
    archive = tmp_path / f"logs{suffix}"
    if suffix == ".tar.zst":
        pack_folder(tmp_path / "logs", archive)
    else:
        kind = "zip" if suffix == ".zip" else "gztar"
        made = shutil.make_archive(str(tmp_path / "made"), kind, tmp_path / "logs")
        Path(made).rename(archive)
    main(["init", str(tmp_path / "own"), "--logs", str(archive)])
    dataset = yaml.safe_load((tmp_path / "own" / "conf" / "dataset" / "measured.yaml").read_text())
    assert dataset["source"] == str(archive)


def test_an_unknown_device_is_told_how_to_describe_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["init", str(tmp_path / "own")])
    monkeypatch.chdir(tmp_path / "own")
    told = refused(["measure", "run", "hardware=mine"], capsys)
    assert "tencost measure hardware hardware.name=mine" in told
