"""The three commands, real processes, killed with SIGKILL at random moments and run again."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from tencost.config.composition import compose
from tencost.measure import stage
from tencost.measure.collection import Collection
from tencost.records.databases import import_dataset

pytestmark = pytest.mark.tvm

CONF = Path(__file__).resolve().parents[2] / "conf"
QUICK = (
    "measure.name=small",
    "measure.min_mflop=0.02",
    "measure.programs=12",
    "measure.evolved_share=0",
    "measure.min_repeat_ms=0",
    "measure.repeat=1",
    "measure.pack=false",
    "hardware=local",
)
NETWORK = ("network=bert_tiny", "network.size=16", "network.config.num_hidden_layers=1")


def command(root: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tencost.cli", "measure", words[0], *QUICK, *words[1:]],
        cwd=root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(root: Path, *words: str) -> str:
    process = command(root, *words)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 0, told
    return told


def measured(root: Path, wanted: int) -> bool:
    return num_lines(root) >= wanted


def kill_when(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not reached() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def num_lines(root: Path) -> int:
    files = (root / "measured" / "small" / "measure_records").glob("*/*/measurements.jsonl")
    return sum(path.read_bytes().count(b"\n") for path in files)


def workers_of(root: Path) -> list[int]:
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        if "tencost.workers.worker" in words and process.info["cwd"] == str(root):
            found.append(process.info["pid"])
    return found


def no_worker_stays(root: Path) -> bool:
    """Wait until the workers are gone; one that was killed takes a moment to give its memory back."""
    deadline = time.monotonic() + 30
    while workers_of(root) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not workers_of(root)


def test_all_three_commands_continue_after_kill_9(tmp_path: Path) -> None:
    chance = random.Random(11)
    shutil.copytree(CONF, tmp_path / "conf")
    collection = Collection(tmp_path / "measured" / "small")

    process = command(tmp_path, "networks", *NETWORK)
    moment = time.monotonic() + chance.uniform(3.0, 8.0)
    kill_when(process, lambda: time.monotonic() > moment)
    finish(tmp_path, "networks", *NETWORK)
    assert collection.networks() == ["bert_tiny-s16"]
    tasks = collection.tasks(0.02)
    assert len(tasks) >= 4

    process = command(tmp_path, "programs")
    top = collection.path / "to_measure_programs"
    kill_when(process, lambda: len(list(top.glob("*/origin.json"))) >= 2)
    kept = {task.folder: collection.programs(task) for task in tasks}
    finish(tmp_path, "programs")
    programs = {task.folder: collection.programs(task) for task in tasks}
    for folder, before in kept.items():
        traces = [program.trace for program in programs[folder]]
        assert traces[: len(before)] == [program.trace for program in before]
    total = sum(len(found) for found in programs.values())
    assert total >= 3 * 12

    wanted = chance.randint(2, 10)
    kill_when(command(tmp_path, "run"), partial(measured, tmp_path, wanted))
    assert 0 < num_lines(tmp_path) < total
    finish(tmp_path, "run")
    imported = import_dataset(collection.path, "small")
    assert not imported.rejects
    ids = Counter(record.record_id for record in imported.records)
    assert len(ids) == total
    assert set(ids.values()) == {1}

    assert no_worker_stays(tmp_path), "a killed command leaves no worker behind"


@pytest.fixture(scope="module")
def many_programs(
    small_collection_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The small collection with 40 programs a task."""
    root = tmp_path_factory.mktemp("many") / "root"
    shutil.copytree(small_collection_template, root)
    shutil.copytree(CONF, root / "conf")
    stage.programs(compose([*QUICK, "measure.programs=40", "measure.min_mflop=0"])[0], root)
    return root


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_ends_it_says_how_to_continue(
    many_programs: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    root = Path(shutil.copytree(many_programs, tmp_path / "root"))
    process = command(root, "run", "measure.min_mflop=0", "measure.overlap=false")
    deadline = time.monotonic() + 120
    while num_lines(root) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == code, told
    assert "run the command again to continue" in told
    assert "records in the store" in told
    assert no_worker_stays(root)
