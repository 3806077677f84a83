"""What a program starts ends with it: daemons too, which leave its process group, its session and their parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tencost.store.status import Status
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.warm_worker import WarmWorker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux finds orphans again")

OPTIONS = MeasureOptions(build_timeout_s=60, run_timeout_s=60)
SCRIPT = Path(__file__).with_name("faulty_worker.py")
DAEMONS = {
    "in the background": "{sleep} &",
    "in a session of its own": "setsid {sleep} &",
    "twice removed": "(setsid sh -c '{sleep} & {sleep} & wait' &)",
}


@pytest.fixture
def seconds() -> Iterator[str]:
    """How long the daemons of one test sleep, by which they are known."""
    chosen = f"{600 + os.getpid() / 1e7:.7f}{time.monotonic_ns() % 1000:03d}"
    yield chosen
    for pid in sleeping(chosen):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WarmWorker]:
    command = (sys.executable, str(SCRIPT), str(tmp_path / "flag"))
    one = WarmWorker(OPTIONS, 1, tmp_path / "log", command=command)
    yield one
    one.close()


def sleeping(seconds: str) -> list[int]:
    found = psutil.process_iter(["cmdline"])
    return [one.pid for one in found if (one.info["cmdline"] or [])[:2] == ["sleep", seconds]]


def wait_for(seconds: str) -> None:
    deadline = time.monotonic() + 60
    while not sleeping(seconds):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def program(command: str, then: str = "") -> dict[str, object]:
    do = f"start {command}" + (f"\n{then}" if then else "")
    return {"seconds": 1e-6, "at": "running", "do": do, "once": ""}


@pytest.mark.parametrize("daemon", DAEMONS.values(), ids=DAEMONS)
def test_a_daemon_ends_with_its_program(worker: WarmWorker, seconds: str, daemon: str) -> None:
    assert worker.measure(Path("one"), program("true"), []).status is Status.ok
    first = worker.process.pid
    command = daemon.format(sleep=f"sleep {seconds}")
    timing = worker.measure(Path("two"), program(command, f"await {seconds}"), [])
    assert timing.status is Status.ok, timing.error
    assert not sleeping(seconds)
    assert worker.process.pid == first


@pytest.mark.parametrize("daemon", DAEMONS.values(), ids=DAEMONS)
def test_a_daemon_ends_with_a_program_that_ends_its_process(
    worker: WarmWorker, seconds: str, daemon: str
) -> None:
    command = daemon.format(sleep=f"sleep {seconds}")
    timing = worker.measure(Path("one"), program(command, f"await {seconds}\nexit 3"), [])
    assert timing.error == "its process ended with exit code 3"
    assert not sleeping(seconds)
    assert worker.measure(Path("two"), program("true"), []).status is Status.ok


@pytest.mark.parametrize("daemon", DAEMONS.values(), ids=DAEMONS)
def test_a_daemon_ends_with_its_pool(worker: WarmWorker, seconds: str, daemon: str) -> None:
    command = daemon.format(sleep=f"sleep {seconds}")
    target = program(command, "hang")
    thread = threading.Thread(target=worker.measure, args=(Path("one"), target, []))
    thread.start()
    wait_for(seconds)
    worker.close()
    assert not sleeping(seconds)
    thread.join()


MEASURING = """
import json, sys
from pathlib import Path
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.warm_worker import WarmWorker
worker = WarmWorker(MeasureOptions(run_timeout_s=600), 1, command=(sys.executable, *sys.argv[1:3]))
worker.measure(Path("one"), json.loads(sys.argv[3]), [])
"""


def test_a_daemon_ends_when_whoever_measures_is_killed(tmp_path: Path, seconds: str) -> None:
    target = json.dumps(program(f"setsid sleep {seconds} &", "hang"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", MEASURING, str(SCRIPT), str(tmp_path / "flag"), target],
        env=environment,
    ) as process:
        wait_for(seconds)
        process.kill()
    deadline = time.monotonic() + 60
    while sleeping(seconds):
        assert time.monotonic() < deadline
        time.sleep(0.01)
