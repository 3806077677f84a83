"""`tencost init`: a project of one's own, the same parts as the repository's and nothing of its source."""

from __future__ import annotations

import base64
import filecmp
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import tencost
from tencost.cli import main
from tencost.config import HardwareConfig
from tencost.config.project import ARCHIVES
from tencost.evaluate.program_board import REFERENCES
from tencost.records.fetch.pack import pack_folder
from tencost.records.fetch.unpack import SUFFIXES
from tencost.register.promotion import PromotionRule

ROOT = Path(__file__).resolve().parents[2]


def ansor_line(layer: str, threads: int, target: str, ok: bool = True) -> str:
    """Return a line of an Ansor log: a program of a layer, faster with more threads."""
    task = [json.dumps([layer, 64, 64]), target, [8, 16, 64, 49152, 0, 1024, 8, 32], "", 0, []]
    steps = [["SP", 2, 0, 1024, [threads, 2], 1], ["AN", 2, 1, 6]]
    result = [[1e-4 / threads], 0, 1.0, 1637575039] if ok else [[1e10], 4, 1.0, 1637575039]
    return json.dumps({"i": [task, [[], steps]], "r": result, "v": "v0.6"}) + "\n"


def ansor_log(path: Path, layers: str = "abcdefghijkl", target: str = "cuda -arch=sm_80") -> Path:
    """Write an Ansor log of some layers with programs of 1 to 20 threads, and return its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [ansor_line(f"op_{layer}", count, target) for layer in layers for count in range(1, 21)]
    path.write_text("".join(lines))
    return path.parent


def metaschedule_log(folder: Path, module: str) -> Path:
    """Write a MetaSchedule database of one workload, whose module is some text, with 60 programs."""
    folder.mkdir(parents=True, exist_ok=True)
    text = len(module).to_bytes(8, "little") + module.encode()
    (folder / "database_workload.json").write_text(
        json.dumps(["7", base64.b64encode(text).decode()]) + "\n"
    )
    target = {"kind": "cuda", "arch": "sm_80", "keys": ["cuda", "gpu"], "thread_warp_size": 32}
    lines = []
    for number in range(1, 61):
        block = ["GetSBlock", [], ["C", "main"], ["b0"]]
        loops = ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]]
        tile = ["SamplePerfectTile", ["l1"], [4, 64], ["v4", "v5", "v6", "v7"]]
        split = ["Split", ["l1", "v4", "v5", "v6", "v7"], [1], ["l8", "l9", "l10", "l11"]]
        trace = [[block, loops, tile, split], [[2, [1, number, 2, 4]]]]
        arguments = [["TENSOR", "float32", [64, 64]]]
        lines.append(json.dumps([0, [trace, [1e-4 * number], target, arguments]]) + "\n")
    (folder / "database_tuning_record.json").write_text("".join(lines))
    return folder


def params_of(project: Path) -> Any:
    return yaml.safe_load((project / "params.yaml").read_text())


def output(project: Path, *words: str) -> str:
    """Run a command in a project; return what it prints, its white space made single blanks."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    environment.pop("MLFLOW_TRACKING_URI", None)
    done = subprocess.run(
        words, cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())


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
        compared = filecmp.dircmp(
            ROOT / "conf" / group, project / "conf" / group, ignore=["__pycache__"]
        )
        assert [*compared.left_only, *compared.right_only, *compared.diff_files] == [], group
    assert [path.name for path in (project / "conf" / "dataset").iterdir()] == ["measured.yaml"]
    pipeline = yaml.safe_load((project / "dvc.yaml").read_text())
    assert set(pipeline["stages"]) == set(yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"])
    assert "src/tencost" not in (project / "dvc.yaml").read_text()
    assert "seconds:" not in (project / "dvc.yaml").read_text(), "those of the repository's stages"
    params = yaml.safe_load((project / "params.yaml").read_text())
    assert params["tencost"] == tencost.__version__
    assert params["hardware"] == ["ryzen-1c"]
    assert "xgb-per_store_tiles-ryzen-1c" in params["train"]
    for stage in pipeline["stages"].values():
        assert "tencost" in stage.get("do", stage)["params"]
    for folder in (ROOT, project):  # what `dvc plots diff` leaves
        assert "dvc_plots/" in (folder / ".gitignore").read_text().splitlines()


@pytest.mark.slow
def test_dvc_reads_it_and_its_commands_run_there(tmp_path: Path) -> None:
    project = tmp_path / "own"
    main(["init", str(project)])
    assert "train@xgb-per_store_tiles-mine" in output(project, "dvc", "stage", "list")
    assert "params.yaml: up to date" in output(project, "tencost", "params")
    assert "name: measured" in output(project, "tencost", "records", "--cfg", "job")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected a new or an empty folder"),
        (["--hardware", "../x"], "expected --hardware of letters"),
        (["--hardware", "all"], "expected --hardware to name one device"),
        (["--hardware", "local"], "expected --hardware to name one device"),
        (["--logs", "none"], "found nothing at"),
    ],
)
def test_what_no_project_is_made_of_is_refused_and_left_alone(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert message in refused(
        ["init", str(tmp_path / "new" if words else tmp_path), *words], capsys
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("hardware", "with_logs", "first"),
    [
        ("mine", False, "tencost measure hardware hardware.name=mine"),
        ("mine", True, "tencost pipeline"),
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
    ansor_log(tmp_path / "logs" / "a.json", target="cuda")
    logs = ["--logs", str(tmp_path / "logs")] if with_logs else []
    main(["init", str(tmp_path / "own"), "--hardware", hardware, *logs])
    assert capsys.readouterr().out.endswith(f"&& {first}\n")


@pytest.mark.parametrize(
    ("hardware", "with_logs"), [("a100", True), ("ryzen-1c", False), ("epyc-avx2-1c", False)]
)
def test_the_steps_of_its_readme_begin_with_the_next_command(
    hardware: str, with_logs: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is measured where logs of another device are read: that would describe this host under its name."""
    ansor_log(tmp_path / "logs" / "a.json")
    logs = ["--logs", str(tmp_path / "logs")] if with_logs else []
    main(["init", str(tmp_path / "own"), "--hardware", hardware, *logs])
    readme = (tmp_path / "own" / "README.md").read_text()
    steps = [line.strip() for line in readme.splitlines() if line.startswith("    ")]
    first = capsys.readouterr().out.strip().partition(" && ")[2]
    assert steps[0].partition("#")[0].strip() == first
    assert ("tencost measure" in readme) == (not with_logs)
    assert ("tencost tune" in readme) == (not with_logs), "no program of Ansor's is drawn there"


def test_a_gpus_description_is_not_to_be_replaced_by_the_cpu_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = ansor_log(tmp_path / "logs" / "a.json")
    main(["init", str(tmp_path / "own"), "--hardware", "a100", "--logs", str(logs)])
    monkeypatch.chdir(tmp_path / "own")
    message = refused(["measure", "hardware", "hardware.name=a100"], capsys)
    assert "Choose another name (hardware.name=...)" in message
    assert "overwrite" not in message


@pytest.mark.parametrize("exists", [False, True])
def test_without_room_nothing_is_left(tmp_path: Path, exists: bool) -> None:
    """No file of the project may be larger than 300 bytes, as on a disk that is full."""
    project = tmp_path / "above" / "own"
    if exists:
        project.mkdir(parents=True)
    limited = (
        "import resource, sys; from tencost.cli import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300)); main(['init', sys.argv[1]])"
    )
    words = [sys.executable, "-B", "-c", limited, str(project)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    reason = "File too large; nothing was left there. Make room or name another folder"
    assert done.stderr == f"tencost: cannot write {project}: {reason}\n"
    assert list(tmp_path.rglob("*")) == ([project.parent, project] if exists else [])
    main(["init", str(project)])
    assert (project / "dvc.yaml").is_file()


def test_what_a_killed_init_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / ".project.999999999-ab.partial" / "conf").mkdir(parents=True)
    main(["init", str(tmp_path)])
    assert not list(tmp_path.glob("*.partial"))


def test_without_git_it_says_what_makes_a_repository(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    main(["init", str(tmp_path / "own")])
    command = f"cd {tmp_path / 'own'} && git init && dvc config --unset core.no_scm"
    told = capsys.readouterr().err
    assert "the project is no git repository" in told
    assert told.endswith(f"With git: {command}\n")


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
        message = refused(["init", str(tmp_path / "new"), "--logs", str(logs)], capsys)
        assert "expected --logs to name a folder of logs or an archive of one (.tar.zst" in message
        assert why.format(logs) in message
        assert message.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_archive_that_fetch_unpacks_is_taken(suffix: str, tmp_path: Path) -> None:
    assert tuple(ARCHIVES) == SUFFIXES
    ansor_log(tmp_path / "logs" / "a.json")
    archive = tmp_path / f"logs{suffix}"
    if suffix == ".tar.zst":
        pack_folder(tmp_path / "logs", archive)
    else:
        kind = "zip" if suffix == ".zip" else "gztar"
        archive_path = shutil.make_archive(str(tmp_path / "made"), kind, tmp_path / "logs")
        Path(archive_path).rename(archive)
    main(["init", str(tmp_path / "own"), "--logs", str(archive)])
    dataset = yaml.safe_load((tmp_path / "own" / "conf" / "dataset" / "measured.yaml").read_text())
    assert dataset["source"] == str(archive)


def test_an_unknown_device_is_told_how_to_describe_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["init", str(tmp_path / "own")])
    monkeypatch.chdir(tmp_path / "own")
    message = refused(["measure", "run", "hardware=mine"], capsys)
    assert "tencost measure hardware hardware.name=mine" in message


def test_a_new_project_can_be_promoted(tmp_path: Path) -> None:
    main(["init", str(tmp_path / "own")])
    params = params_of(tmp_path / "own")
    assert len(params["seeds"].split(",")) == PromotionRule().min_seeds
    seeds = {item["family"]: item["seeds"] for item in params["train"].values()}
    assert set(REFERENCES) < seeds.keys()
    assert {family: len(text.split(",")) for family, text in seeds.items()} == {
        family: 1 if family in REFERENCES else PromotionRule().min_seeds for family in seeds
    }


def test_ansor_logs_get_what_reads_their_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = ansor_log(tmp_path / "logs" / "a.json")
    project = tmp_path / "own"
    main(["init", str(project), "--hardware", "a100", "--logs", str(logs)])
    message = capsys.readouterr().err
    assert "features: ansor_tiles, which reads 24 of 24 programs tried" in message
    params = params_of(project)
    assert params["features"] == ["ansor_tiles"]
    assert params["models"] == {"ansor_tiles": ["random", "xgb"]}
    assert params["split"] == "by_task"
    pipeline = yaml.safe_load((project / "dvc.yaml").read_text())
    assert "features_joined" not in pipeline["stages"]


def test_modules_that_this_tvm_cannot_load_get_what_reads_traces_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = metaschedule_log(tmp_path / "logs", '{"root": 1, "nodes": [{"type_key": ""}]}')
    main(["init", str(tmp_path / "own"), "--hardware", "a100", "--logs", str(logs)])
    message = capsys.readouterr().err
    assert "features: tiles, which reads 2 of 2 programs tried; not per_store" in message
    assert "split: within_task (figures flatter" in message
    params = params_of(tmp_path / "own")
    assert params["models"] == {"tiles": ["knn", "random", "xgb"]}
    assert params["split"] == "within_task"


def test_a_device_is_what_its_logs_say_and_not_this_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = ansor_log(tmp_path / "logs" / "a.json", target="cuda -arch=sm_80 -thread_warp_size=32")
    project = tmp_path / "own"
    main(["init", str(project), "--hardware", "a100", "--logs", str(logs)])
    assert "not known, and in no column: cores, l1d_kib, l2_kib, l3_kib" in capsys.readouterr().err
    described = yaml.safe_load((project / "conf" / "hardware" / "a100.yaml").read_text())
    assert described["target"] == {"kind": "cuda", "arch": "sm_80", "thread_warp_size": 32}
    assert described["model"] == "unknown"
    hardware = HardwareConfig(**described)
    assert hardware.device_columns() == {"device_log2_simd_bits": math.log2(1025)}


def test_logs_of_several_devices_are_told_apart(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    ansor_log(logs / "one" / "a.json", target="cuda -arch=sm_80")
    ansor_log(logs / "two" / "b.json", target="llvm -mcpu=core-avx2")
    project = tmp_path / "own"
    main(["init", str(project), "--logs", str(logs)])
    assert sorted(params_of(project)["hardware"]) == ["mine-core-avx2", "mine-sm_80"]
    dataset = yaml.safe_load((project / "conf" / "dataset" / "measured.yaml").read_text())
    assert dataset["devices"] == {"one/a.json": "mine-sm_80", "two/b.json": "mine-core-avx2"}


def t4_results(path: Path, factor: float) -> Path:
    """Write T4 results of one kernel, 60 configurations, and return their folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    results = [
        {
            "configuration": {"threads": number, "layout": "NCHW" if number % 2 else "NHWC"},
            "times": {"runtimes": [factor * number]},
            "invalidity": "correct",
            "correctness": 1,
        }
        for number in range(1, 61)
    ]
    path.write_text(json.dumps({"metadata": {"timeunit": "ms"}, "results": results}))
    return path.parent


def test_files_of_several_devices_are_given_theirs_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = t4_results(tmp_path / "logs" / "one" / "blur_T4.json", 1.0).parent
    t4_results(logs / "two" / "blur_T4.json", 2.0)
    main(["init", str(tmp_path / "mixed"), "--hardware", "a100", "--logs", str(logs)])
    message = capsys.readouterr().err
    assert (
        "60 programs of a100 stand in several logs (one/blur_T4.json, two/blur_T4.json)" in message
    )
    project = tmp_path / "own"
    names = ["--hardware", "a100", "--hardware", "two=a4000"]
    main(["init", str(project), *names, "--logs", str(logs)])
    message = capsys.readouterr().err
    assert "several logs" not in message
    assert "features: configuration, which reads 2 of 2 programs tried" in message
    assert sorted(params_of(project)["hardware"]) == ["a100", "a4000"]
    dataset = yaml.safe_load((project / "conf" / "dataset" / "measured.yaml").read_text())
    assert (dataset["hardware"], dataset["devices"]) == ("a100", {"two": "a4000"})
    for words in (["--hardware", "a", "--hardware", "b"], ["--hardware", "two=a4000"]):
        assert "expected one --hardware NAME" in refused(
            ["init", str(tmp_path / "x"), *words], capsys
        )


def test_logs_that_nothing_can_be_built_of_are_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed = ansor_log(tmp_path / "mixed" / "a.json")
    with (mixed / "a.json").open("a") as file:
        file.write(ansor_line("op_z", 3, "llvm"))
    failed = tmp_path / "failed"
    failed.mkdir()
    (failed / "a.json").write_text(ansor_line("op_a", 3, "cuda", ok=False) * 3)
    best = tmp_path / "best"
    best.mkdir()
    lines = [ansor_line(f"op_{layer}", 3, "cuda") for layer in "abcdefgh"]
    (best / "a.json").write_text("".join(lines))
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "a.txt").write_text("hello\n")
    gpu = ansor_log(tmp_path / "gpu" / "a.json", target="rocm -mcpu=gfx906")
    for logs, hardware, why in (
        (mixed, "mine", "expected logs of one device, or each log of one, found llvm, sm_80"),
        (failed, "mine", "expected a record with a time"),
        (best, "mine", "expected several programs of a workload"),
        (empty, "mine", "found none"),
        (gpu, "v100", "expected logs of v100 (kind cuda"),
    ):
        words = ["init", str(tmp_path / "new"), "--hardware", hardware, "--logs", str(logs)]
        message = refused(words, capsys)
        assert why in message
        assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_ansor_logs_run_to_a_champion(tmp_path: Path, mlflow_database: Path) -> None:
    logs = ansor_log(tmp_path / "logs" / "a.json")
    project = tmp_path / "own"
    main(["init", str(project), "--hardware", "a100", "--logs", str(logs)])
    (project / "mlruns").mkdir()
    shutil.copy(mlflow_database, project / "mlruns")
    printed = output(project, "tencost", "pipeline")
    assert "tvm_xgb is not asked for, since its features per_store cannot be computed" in printed
    assert "champion: version 1 (2.0)" in printed
