"""Items to results by processes of this host: order, back-pressure, workers that die."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import works
from process_words import words_of
from tencost.config import ExecutionConfig, ExecutionKind
from tencost.errors import ConfigError, MissingDependencyError
from tencost.workers.parallel.mapping import WINDOW, OverdueWatch, Rescue, in_order
from tencost.workers.parallel.workers import open_workers


def test_results_come_in_the_order_of_the_items() -> None:
    found = list(in_order(open_workers(works.double, 3, jobs=2), range(40), works.NOTHING_LOST))
    assert found == [[3 * item] for item in range(40)]


def test_a_slow_reader_holds_the_workers_back(tmp_path: Path) -> None:
    others = set(psutil.Process().children(recursive=True))  # of tests before, in this process
    results = in_order(
        open_workers(works.begun, str(tmp_path), jobs=2), range(100), works.NOTHING_LOST
    )
    for taken in range(1, 4):
        next(results)
        time.sleep(0.5)
        assert len(list(tmp_path.iterdir())) <= taken + WINDOW * 2
    results.close()
    time.sleep(0.5)
    assert len(list(tmp_path.iterdir())) <= 4 + WINDOW * 2
    left = set(psutil.Process().children(recursive=True)) - others
    assert all("tracker" in words_of(one) for one in left)


def test_an_item_that_kills_its_workers_is_divided_down_to_its_part() -> None:
    items = [tuple(range(start, start + 5)) for start in range(0, 40, 5)]
    workers = open_workers(works.parts, 100, jobs=2)
    found = list(in_order(workers, items, Rescue(works.gone, works.halves)))
    assert found == [[-13 if one == 13 else 100 + one for one in item] for item in items]


def test_an_error_of_the_work_ends_it_as_it_is() -> None:
    with pytest.raises(KeyError):
        list(in_order(open_workers(works.refuse, None, jobs=2), range(4), works.NOTHING_LOST))


def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    def kill() -> None:
        while not (begun := list(tmp_path.iterdir())):
            time.sleep(0.05)
        os.kill(int(begun[0].name.partition("-")[2]), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    found = list(
        in_order(open_workers(works.slow, str(tmp_path), jobs=2), range(6), works.NOTHING_LOST)
    )
    killer.join()
    assert found == [[item] for item in range(6)]
    again = [path.name.partition("-")[0] for path in tmp_path.iterdir()]
    assert len(again) > 6, "nothing was killed"


def test_what_a_hanging_worker_had_is_given_to_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workers = open_workers(works.slow, str(tmp_path), jobs=2, limit_s=3)
    stopper, stopped = stopping(tmp_path, 2)
    found = list(in_order(workers, range(6), works.NOTHING_LOST))
    stopper.join()
    assert found == [[item] for item in range(6)]
    assert not any(psutil.pid_exists(pid) for pid in stopped)
    lines = "".join(record.getMessage() for record in caplog.records)
    # The first that is late takes the whole pool with it; one that began a look later is not named any more.
    assert any(f"worker process {pid} did not answer in 3 s" in lines for pid in stopped)


def test_a_command_that_ends_leaves_no_stopped_worker(tmp_path: Path) -> None:
    results = in_order(
        open_workers(works.slow, str(tmp_path), jobs=2), range(9), works.NOTHING_LOST
    )
    next(results)
    stopper, stopped = stopping(tmp_path, 2)
    stopper.join()
    results.close()
    assert not any(psutil.pid_exists(pid) for pid in stopped)


def stopping(folder: Path, count: int) -> tuple[threading.Thread, list[int]]:
    """Return a thread that stops workers as soon as so many have begun an item, and what it has stopped by then."""
    stopped: list[int] = []

    def stop() -> None:
        while len(pids := {path.name.partition("-")[2] for path in folder.iterdir()}) < count:
            time.sleep(0.05)
        for pid in pids:
            os.kill(int(pid), signal.SIGSTOP)
            stopped.append(int(pid))

    thread = threading.Thread(target=stop)
    thread.start()
    return thread, stopped


def test_an_item_without_end_is_divided_down_to_its_part() -> None:
    items = [(1, 2), (12, 13), (20, 21)]
    settings = ExecutionConfig(limit_s=3)
    workers = open_workers(works.wait, 100, settings, jobs=2)
    found = list(in_order(workers, items, Rescue(works.unanswered, works.halves)))
    assert found == [[101, 102], [112, -13], [120, 121]]


def test_the_time_of_a_stopped_command_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    overdue = OverdueWatch[str](60.0)
    overdue.begun("item", "worker")
    now[0] = 3600.0  # Ctrl-Z for an hour
    overdue.tick()
    assert overdue.newly_late() == []
    for _ in range(61):
        now[0] += 1.0
        overdue.tick()
    assert overdue.newly_late() == [("item", "worker")]
    assert overdue.newly_late() == [], "it is told once"
    assert overdue.is_late("item")


def test_a_missing_ray_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("tencost.workers.parallel.ray")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"tencost\[scale\]"):
        open_workers(works.double, 3, ExecutionConfig(kind=ExecutionKind.ray))


@pytest.mark.parametrize("address", ["", "head", "head:port", "head:123456", "a b:1", "http://a:1"])
def test_an_address_is_host_and_port(address: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        ExecutionConfig(kind=ExecutionKind.ray, address=address)
