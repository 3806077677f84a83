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
from tencost.config import ExecutionConfig, ExecutionKind
from tencost.errors import ConfigError, MissingDependencyError
from tencost.execution.mapping import WINDOW, Rescue, in_order
from tencost.execution.workers import open_workers


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
    results.close()  # type: ignore[attr-defined]
    time.sleep(0.5)
    assert len(list(tmp_path.iterdir())) <= 4 + WINDOW * 2
    left = set(psutil.Process().children(recursive=True)) - others
    assert all("tracker" in " ".join(one.cmdline()) for one in left)


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


def test_a_missing_ray_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("tencost.execution.ray")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"tencost\[scale\]"):
        open_workers(works.double, 3, ExecutionConfig(kind=ExecutionKind.ray))


@pytest.mark.parametrize("address", ["", "head", "head:port", "head:123456", "a b:1", "http://a:1"])
def test_an_address_is_host_and_port(address: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        ExecutionConfig(kind=ExecutionKind.ray, address=address)
