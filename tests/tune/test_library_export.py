"""`tencost tune --to`: wherever Ctrl-C ends a run, a network that runs is there, or it is said why there is none."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from relax_networks import two_layers
from tencost import cli
from tencost.networks.sources.saved import save_network
from tencost.tune.library_export import LibraryExport

pytestmark = pytest.mark.tvm

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0
PROGRAMS_STAY = """
from tencost.workers.parallel.lean_imports import leave_out_unused
leave_out_unused()
import tencost.tune.deploy
tencost.tune.deploy.better_than_rules = lambda database, *given: database
tencost.tune.deploy.faster_in_network = lambda network, hardware, tasks, database, *given: database
from tencost.cli.main import main
main()
"""
"""The command line, but for what leaves out programs that are slower here than by rule: this has tests of its own."""


def words(folder: Path, *more: str) -> list[str]:
    """Return the words of `tencost tune --to model.so` of the small network in a folder."""
    return [
        "tune", "network=saved", "network.trusted=true", f"network.path={folder / 'small.npz'}",
        "hardware=local", "model_uri=scratch", "tuner.min_mflop=0.001", "tuner.population=8", "tuner.generations=1",
        "tuner.number=1", "tuner.repeat=1", "tuner.min_repeat_ms=0", f"tuner.workdir={folder / 'tuned'}",
        f"paths.store={folder / 'store'}", "jobs=1", "--to", str(folder / "model.so"), *more,
    ]  # fmt: skip


class Run:
    """`tencost tune --to model.so` of a small network, in a process and a folder of its own."""

    def __init__(self, folder: Path, *more: str, ignored: bool = False) -> None:
        """Start it, with SIGINT ignored if so, as nohup and `&` in a script do."""
        self.folder = folder
        self.library = folder / "model.so"
        command = [sys.executable, "-c", PROGRAMS_STAY, *words(folder, *more)]
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        self.process = subprocess.Popen(
            command, cwd=PROJECT, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "MLFLOW_TRACKING_URI": uri, "COLUMNS": "200"},
            preexec_fn=partial(
                signal.signal, signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL
            ),
        )  # fmt: skip
        self.told = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.told += line

    @property
    def records(self) -> int:
        """Programs measured so far."""
        file = self.folder / "tuned" / "small-local" / "database_tuning_record.json"
        return file.read_text().count("\n") if file.exists() else 0

    def interrupt(self, when: Callable[[], bool], number: signal.Signals = signal.SIGINT) -> int:
        """Press Ctrl-C, or send another signal, once something is the case; return the exit code."""
        end = time.monotonic() + PATIENCE_S
        while not when():
            assert self.process.poll() is None, self.told
            assert time.monotonic() < end, self.told
            time.sleep(0.02)
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join()
        return code

    def runs(self) -> dict[str, object]:
        """Run what was written with TVM's runtime; return what is said about it."""
        done = subprocess.run(
            [sys.executable, self.library.with_suffix(".py")],
            cwd=self.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr == "", "TVM's runtime warns of all that it loads"
        for line in done.stdout.splitlines():
            assert float(line.split(", ")[-1].split()[0]) < 1e-4, line
        told: dict[str, object] = json.loads(self.library.with_suffix(".json").read_text())
        return told


@pytest.fixture
def start(tmp_path: Path, mlflow_database: Path) -> Iterator[Callable[..., Run]]:
    shutil.copy(mlflow_database, tmp_path / "mlflow.db")
    save_network(two_layers(), tmp_path / "small.npz")
    with _ended() as started:

        def make(*more: str, ignored: bool = False) -> Run:
            started.append(Run(tmp_path, *more, ignored=ignored))
            return started[-1]

        yield make


@contextmanager
def _ended() -> Iterator[list[Run]]:
    runs: list[Run] = []
    try:
        yield runs
    finally:
        for run in runs:
            if run.process.poll() is None:
                run.process.kill()
                run.wait()


def test_before_the_network_is_compiled_it_says_why_there_is_none(
    start: Callable[..., Run],
) -> None:
    run = start()
    assert run.interrupt(lambda: "importing" in run.told) == 130
    assert "model.so is not written: Ctrl-C came before" in run.told
    assert not run.library.exists()
    assert "Traceback" not in run.told


def test_before_a_program_is_measured_schedules_by_rule_are_left(start: Callable[..., Run]) -> None:
    run = start()
    assert run.interrupt(lambda: "starting points" in run.told) == 130
    assert "Traceback" not in run.told
    assert run.runs()["tuned_tasks"] == 0


def test_while_it_searches_the_best_so_far_is_left(start: Callable[..., Run]) -> None:
    run = start("tuner.trials=4000")
    assert run.interrupt(lambda: run.records >= 8) == 0
    assert "stopped by Ctrl-C" in run.told
    assert 8 <= run.records < 4000
    assert run.runs()["tuned_tasks"] in (1, 2)


def test_sigterm_ends_as_ctrl_c_does_and_nothing_is_said_of_that_where_it_is_ignored(
    start: Callable[..., Run],
) -> None:
    run = start("tuner.trials=4000", ignored=True)
    assert run.interrupt(lambda: run.records >= 8, signal.SIGTERM) == 0
    assert "stopped by SIGTERM; the same command continues" in run.told
    assert "SIGTERM again gives it up" not in run.told
    assert "Ctrl-C" not in run.told
    assert run.runs()["tuned_tasks"] in (1, 2)


def test_while_the_network_is_timed_it_is_there_already(start: Callable[..., Run]) -> None:
    for _ in range(3):  # on a busy host it may be timed before the signal is sent
        run = start("tuner.trials=16")
        run.library.unlink(missing_ok=True)
        assert run.interrupt(run.library.exists) == 0
        if "stopped by Ctrl-C" in run.told:
            break
    assert "stopped by Ctrl-C" in run.told
    report = json.loads((run.folder / "tuned" / "small-local" / "report.json").read_text())
    assert report["trials"] == 16
    assert "network_latency_s" not in report
    assert report["max_rel_error"] < 1e-4
    assert run.runs()["tuned_tasks"] == 2


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_on_two_cores_everything_is_of_two_cores(start: Callable[..., Run]) -> None:
    run = start("hardware.cores=2", "tuner.trials=8")
    assert run.wait() == 0, run.told
    folder = run.folder / "tuned" / "small-local-2c"
    session = json.loads((folder / "session.json").read_text())
    assert session["target"]["num-cores"] == 2
    records = (folder / "database_tuning_record.json").read_text().splitlines()
    assert {json.loads(line)[1][2]["num-cores"] for line in records} == {2}
    told = run.runs()
    assert told["cores"] == 2
    assert told["hardware"] == "local-2c"


def test_more_cores_than_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_network(two_layers(), tmp_path / "small.npz")
    with pytest.raises(SystemExit) as ended:
        cli.main(words(tmp_path, "hardware.cores=512"))
    assert ended.value.code == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "expected 512 cores, found" in told
    assert f"hardware.cores={len(os.sched_getaffinity(0))}" in told
    assert not (tmp_path / "tuned").exists()


def pressed(keeper: LibraryExport, times: int) -> bool:
    """Press Ctrl-C so often while a keeper holds it back; return whether what comes after it was reached."""
    reached = False
    with suppress(KeyboardInterrupt), keeper.holding_interrupts():
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        reached = True
    return reached


def test_one_ctrl_c_waits_for_the_library_and_a_second_one_does_not(tmp_path: Path) -> None:
    out = io.StringIO()
    keeper = LibraryExport(tmp_path / "model.so", Console(file=out, width=300))
    before = signal.getsignal(signal.SIGINT)
    assert pressed(keeper, 1)
    assert not keeper.given_up
    with pytest.raises(KeyboardInterrupt), keeper.holding_interrupts():
        signal.raise_signal(signal.SIGINT)
    assert not pressed(keeper, 2)
    assert keeper.given_up
    assert signal.getsignal(signal.SIGINT) is before
    assert "model.so first; Ctrl-C again gives it up" in out.getvalue()
    assert not pressed(LibraryExport(None, Console(file=out)), 1)


@pytest.mark.parametrize("to", [None, Path("model.so")])
@pytest.mark.parametrize("raised", [None, RuntimeError])
def test_a_ctrl_c_that_tvm_swallows_ends_the_run(
    to: Path | None, raised: type[Exception] | None
) -> None:
    """TVM makes a RuntimeError of KeyboardInterrupt in a function that it calls, or goes on another way."""
    keeper = LibraryExport(to, Console(file=io.StringIO()))

    def swallowed() -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        if raised is not None:
            raise raised

    with pytest.raises(KeyboardInterrupt), keeper.holding_interrupts():
        swallowed()
