"""`tencost compile`: the library and its runners, tried where there is nothing of tencost."""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relax_networks import two_layers
from tencost import cli
from tencost.config.composition import compose
from tencost.errors import TuneError, UntrustedError
from tencost.networks.network import Network
from tencost.networks.sources.saved import save_network
from tencost.records.network_times.runs import read_runs
from tencost.records.network_times.timing import networks_uri
from tencost.store.record_store import RecordStore

pytestmark = pytest.mark.tvm

SETTINGS = ["network=saved", "network.trusted=true", "hardware=local"]


@pytest.fixture(scope="module", autouse=True)
def programs_stay() -> Iterator[None]:
    """Whichever is faster here: which programs are used has tests of its own, test_in_network and test_untuned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tencost.tune.compiled.faster_in_network", lambda *given: given[-1])
        yield


@pytest.fixture(scope="module")
def network() -> Network:
    return replace(two_layers(), packed=True)  # as it is when it is read from its file


@pytest.fixture(scope="module")
def saved(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "small.npz"
    save_network(network, path)
    return path


@pytest.fixture(scope="module")
def database(
    network: Network, cpu_intrinsics: None, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A database with a random program for each task that has a loop to schedule."""
    return with_programs(network, tmp_path_factory.mktemp("database"))


def with_programs(network: Network, folder: Path) -> Path:
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    from tencost.workers.hardware import resolve_hardware

    hardware = resolve_hardware(compose(SETTINGS)[0].hardware)
    target = Target(hardware.target)
    files = [str(folder / f"database_{name}.json") for name in ("workload", "tuning_record")]
    made = ms.database.JSONDatabase(*files)
    for task in network.tasks(hardware.target):
        context = ms.TuneContext(
            mod=task.mod, target=target, space_generator="post-order-apply", rand_state=1
        )
        schedule = context.generate_design_space()[0]
        workload = made.commit_workload(task.mod)
        made.commit_tuning_record(
            ms.database.TuningRecord(
                schedule.trace,
                workload,
                [1e-3],
                target,
                ms.arg_info.ArgInfo.from_entry_func(task.mod, remove_preproc=True),
            )
        )
    return folder


def compiled(saved: Path, to: Path, *words: str) -> None:
    store = f"paths.store={to.parent}-store"
    cli.main(["compile", *SETTINGS, store, f"network.path={saved}", "--to", str(to), *words])


@pytest.fixture(scope="module")
def tuned(saved: Path, database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("compiled") / "small.so"
    compiled(saved, library, "--database", str(database))
    return library


def test_its_time_is_a_record(tuned: Path, network: Network) -> None:
    store = RecordStore(networks_uri(f"{tuned.parent}-store"))
    # Where others use the CPU, one of its microseconds may be twenty times another, and the gate keeps the run apart.
    store.release(store.read(quarantined=True)["record_id"].to_list())
    (run,) = read_runs(f"{tuned.parent}-store")
    assert (run.network, run.engine, run.hardware, run.cores) == ("small", "tencost", "local", 1)
    assert 3 <= len(run.seconds) <= 30
    assert (run.seconds > 0).all()
    assert run.info["code_size"] == tuned.stat().st_size
    assert run.info["compile_time"] > 0
    assert 0 <= run.info["max_rel_error"] < 1e-4
    assert set(run.versions) == {"tencost", "tvm"}


def test_what_it_is_stands_beside_it(tuned: Path, network: Network) -> None:
    told = json.loads(tuned.with_suffix(".json").read_text())
    assert told["inputs"] == [
        {"name": "x", "shape": [8, 16], "dtype": "float32"},
        {"name": "index", "shape": [], "dtype": "int64"},
    ]
    assert [one["name"] for one in told["outputs"]] == ["first", "second"]
    assert told["tasks"] == told["tuned_tasks"] > 0
    assert {path.suffix for path in tuned.parent.iterdir()} == {
        ".so",
        ".json",
        ".npz",
        ".py",
        ".cc",
    }
    assert b"tencost" not in tuned.with_suffix(".py").read_bytes()


def run(*words: Any, folder: Path) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_python_runs_it_with_tvm_alone(tuned: Path, network: Network, tmp_path: Path) -> None:
    for path in tuned.parent.glob("small.*"):
        shutil.copy(path, tmp_path)  # copied elsewhere
    (tmp_path / "tencost.py").write_text("raise SystemExit('tencost was imported')\n")
    (tmp_path / "torch.py").write_text("raise ImportError('there is none')\n")
    told = run(sys.executable, tmp_path / "small.py", folder=tmp_path)
    lines = told.splitlines()
    assert len(lines) == 2
    assert all(float(line.split(", ")[-1].split()[0]) < 1e-4 for line in lines), told
    x = np.ones((8, 16), np.float32)
    np.savez(tmp_path / "mine.npz", input_0=x, input_1=np.array(3))
    run(sys.executable, tmp_path / "small.py", "mine.npz", "found.npz", folder=tmp_path)
    with np.load(tmp_path / "found.npz") as found:
        assert found["output_0"] == pytest.approx(1 + np.tile(np.arange(16), (8, 1)))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, a C++ compiler")
def test_cpp_runs_it(tuned: Path, network: Network, tmp_path: Path) -> None:
    for path in tuned.parent.glob("small.*"):
        shutil.copy(path, tmp_path)
    head = (tmp_path / "small.cc").read_text().split("/*\n")[1].split("\n\n")[0]
    script = f"export PATH={Path(sys.executable).parent}:$PATH\n{head}\n"  # as it stands there
    run("bash", "-ec", script, folder=tmp_path)
    for number, expected in enumerate(network.expected):
        found = np.fromfile(tmp_path / f"output_{number}.bin", np.float32).reshape(expected.shape)
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)
    whole = (tmp_path / "input_0.bin").read_bytes()
    for content in (whole[:-1], whole + b"\0"):
        (tmp_path / "input_0.bin").write_bytes(content)
        done = subprocess.run(
            ["./small", "input_0.bin", "input_1.bin"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert "input_0.bin: expected 512 bytes" in done.stderr


def test_without_a_database_schedules_are_by_rule(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled(saved, tmp_path / "plain.so")
    assert json.loads((tmp_path / "plain.json").read_text())["tuned_tasks"] == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "small-local: schedules by rule; `tencost tune` looks for faster ones" in told
    assert "Tune it first" not in told, "by rule is the usual way"
    assert [run.engine for run in read_runs(f"{tmp_path}-store")] == ["tencost"]


def test_after_a_tuning_run_that_ended_early_schedules_are_by_rule(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tuned" / "small-local" / "logs").mkdir(parents=True)
    workdir = f"tuner.workdir={tmp_path / 'tuned'}"
    compiled(saved, tmp_path / "plain.so", workdir)
    told = " ".join(capsys.readouterr().err.split())
    assert "a tuning run ended there before it had any): schedules by rule. Tune it first" in told


def test_a_store_that_cannot_be_written_does_not_undo_what_was_compiled(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = tmp_path / "in" / "plain.so"
    Path(f"{library.parent}-store-networks").write_text("no folder")
    compiled(saved, library)
    assert library.is_file()
    assert "the network's time is in no record" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--to", "model"], "expected the name of a shared library, model.so, found model"),
        (["--to", "model.so", "--database", "nothing"], "expected the folder of a MetaSchedule database"),
    ],
)  # fmt: skip
def test_wrong_words_are_refused(
    saved: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["compile", *SETTINGS, f"network.path={saved}", *words])
    assert end.value.code == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_a_library_that_computes_something_else_is_not_written(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tencost.networks.network import load_network
    from tencost.tune.compiled import run as compile_it

    def other(*arguments: Any, **named: Any) -> Network:
        network = load_network(*arguments, **named)
        network.expected[1][:] += 1
        return network

    monkeypatch.setattr("tencost.tune.inputs.load_network", other)
    config, root = compose([*SETTINGS, f"network.path={saved}"])
    with pytest.raises(TuneError, match="nothing was written"):
        compile_it(config, root, to=tmp_path / "small.so")
    assert not list(tmp_path.iterdir())


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        cli.main(["compile", *words])
    assert end.value.code == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("place", ["folder.so", "file/model.so", "file/deeper/model.so"])
def test_a_place_that_cannot_be_written_is_refused_at_once(
    saved: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    (tmp_path / "folder.so").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setattr("tencost.tune.inputs.load_network", None)  # nothing is compiled
    told = refused(capsys, *SETTINGS, f"network.path={saved}", "--to", str(tmp_path / place))
    assert "--to: expected" in told
    assert {path.name for path in tmp_path.iterdir()} == {"folder.so", "file"}


@pytest.mark.parametrize("hardware", ["v100", "cortex-a76"])
def test_hardware_that_the_runners_cannot_run_on_is_refused(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], hardware: str
) -> None:
    words = ["network=saved", f"network.path={saved}", f"hardware={hardware}"]
    told = refused(capsys, *words, "--to", str(tmp_path / "model.so"))
    assert "expected a CPU (target kind llvm)" in told
    assert not (tmp_path / "model.so").exists()


def test_without_a_compiler_it_says_what_to_install(
    saved: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = (*SETTINGS, f"network.path={saved}", "--to", str(tmp_path / "model.so"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Install g++ or clang" in refused(capsys, *words)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "found no-such-compiler" in refused(capsys, *words)


def test_what_was_there_stays_where_linking_fails(
    saved: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "false")  # a compiler that fails
    before = {f"model.{end}": end for end in ("so", "json", "npz", "py", "cc")}
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    words = (*SETTINGS, f"network.path={saved}", "--to", str(tmp_path / "model.so"))
    assert "What was there is kept" in refused(capsys, *words)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_without_room_for_temporary_files_it_says_so(saved: Path, tmp_path: Path) -> None:
    """LLVM ends the process where it cannot write, without a word; the largest file stands for a full disk here."""
    words = ["compile", *SETTINGS, f"network.path={saved}", "--to", str(tmp_path / "model.so")]
    limits = (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    done = subprocess.run(
        [sys.executable, "-c", "from tencost.cli.main import main; main()", *words],
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_FSIZE, limits),
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "found [Errno 27] File too large. Make room there" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_database_of_another_network_is_told(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("database_workload.json", "database_tuning_record.json"):
        (tmp_path / name).touch()
    compiled(saved, tmp_path / "model.so", "--database", str(tmp_path))
    assert "Is it of another network or hardware?" in " ".join(capsys.readouterr().err.split())


def test_faster_programs_of_another_target_are_left_out(
    saved: Path, network: Network, database: Path, tmp_path: Path
) -> None:
    """TVM looks up the fastest record of a workload, and a program of a GPU does not compile for a CPU."""
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    from tencost.tune.deploy import open_database
    from tencost.workers.hardware import resolve_hardware

    both = shutil.copytree(database, tmp_path / "both")
    files = [str(both / f"database_{name}.json") for name in ("workload", "tuning_record")]
    opened, here = ms.database.JSONDatabase(*files), resolve_hardware(compose(SETTINGS)[0].hardware)
    gpu = {"kind": "cuda", "arch": "sm_80"}
    num_tasks = len(opened)
    for task in network.tasks(here.target):
        schedule = Schedule(task.mod)
        for block in schedule.get_child_blocks(schedule.get_sblock("root")):
            schedule.bind(schedule.get_loops(block)[0], "blockIdx.x")
        record = ms.database.TuningRecord(
            schedule.trace,
            opened.commit_workload(task.mod),
            [1e-9],
            Target(gpu),
            ms.arg_info.ArgInfo.from_entry_func(task.mod, remove_preproc=True),
        )
        opened.commit_tuning_record(record)
    assert len(opened) == 2 * num_tasks
    for target in (here.target, gpu):
        assert len(open_database(both, target)) == num_tasks
    library = tmp_path / "model.so"
    compiled(saved, library, "--database", str(both))
    assert json.loads(library.with_suffix(".json").read_text())["tuned_tasks"] == num_tasks


def test_programs_from_before_weights_were_packed_are_told(
    saved: Path, network: Network, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workloads without the mark on weights are others: said so, compiled by rule, and the setting named serves."""
    (tmp_path / "old").mkdir()
    old = with_programs(replace(network, packed=False), tmp_path / "old")
    library = tmp_path / "model.so"
    compiled(saved, library, "--database", str(old))
    told = " ".join(capsys.readouterr().err.split())
    found = json.loads(library.with_suffix(".json").read_text())
    assert f"{old} has programs for 3 tasks with their weights in the source's order" in told
    assert (found["tuned_tasks"], found["tasks"]) == (0, 3)
    assert f"{old} has no program of small-local: schedules by rule" in told
    compiled(saved, library, "--database", str(old), "network.pack_weights=false")
    assert "source's order" not in capsys.readouterr().err
    found = json.loads(library.with_suffix(".json").read_text())
    assert (found["network"], found["tuned_tasks"]) == ("small-unpacked", 3)


def test_a_database_cut_or_changed_anywhere_is_one_sentence(
    saved: Path, database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tencost.tune.deploy import open_database

    records = (database / "database_tuning_record.json").read_text()
    shutil.copy(database / "database_workload.json", tmp_path)
    for damaged in (
        records[: len(records) // 2],
        records.replace('"llvm"', '"nothing"'),
        re.sub(r"\],\[0?\.?[0-9e.-]+\],\{", '],["fast"],{', records),
        "\xff",
    ):
        assert damaged != records
        (tmp_path / "database_tuning_record.json").write_text(damaged, encoding="latin-1")
        with pytest.raises((TuneError, UntrustedError)):
            open_database(tmp_path, {"kind": "llvm"}, "--database")


def test_programs_that_tvm_refuses_are_one_sentence(
    saved: Path, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tencost.tune.compiled import run as compile_it

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("there is no such block\nmore of it")

    monkeypatch.setattr("tencost.tune.compiled.compile_together", refuse)
    config, root = compose([*SETTINGS, f"network.path={saved}"])
    with pytest.raises(TuneError, match=r"found there is no such block.*--database"):
        compile_it(config, root, to=tmp_path / "small.so", database=database)
    assert not (tmp_path / "small.so").exists()
