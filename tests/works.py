"""What workers do in the tests of the execution room: functions of a module, as processes import it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optuna import Trial, TrialPruned

from tencost.workers.parallel.mapping import Rescue


def double(shared: int, item: int) -> list[int]:
    return [shared * item]


def begun(folder: str, item: int) -> list[int]:
    """Leave a file for every time that an item is begun."""
    (Path(folder) / f"{item}-{time.time_ns()}").touch()
    return [item]


def parts(shared: Any, item: tuple[int, ...]) -> list[int]:
    """Die over the number 13."""
    if 13 in item:
        os._exit(1)
    return [shared + part for part in item]


def slow(folder: str, item: int) -> list[int]:
    """Say who works on what, then take half a second."""
    (Path(folder) / f"{item}-{os.getpid()}").touch()
    time.sleep(0.5)
    return [item]


def wait(shared: Any, item: tuple[int, ...]) -> list[int]:
    """Take without end over the number 13."""
    while 13 in item:
        time.sleep(1)
    return [shared + part for part in item]


def nothing(pid: int) -> None:
    """In place of a kill that comes to nothing."""


def refuse(shared: Any, item: int) -> list[int]:
    raise KeyError(item)


def halves(item: tuple[int, ...]) -> list[tuple[int, ...]]:
    middle = len(item) // 2
    return [item[:middle], item[middle:]] if len(item) > 1 else []


def gone(item: tuple[int, ...], reason: str) -> list[int]:
    assert "died" in reason
    return [-one for one in item]


def unanswered(item: tuple[int, ...], reason: str) -> list[int]:
    assert reason == "the worker did not answer in 3 s (execution.limit_s)"
    return [-one for one in item]


def nobody(item: Any, reason: str) -> Sequence[Any]:
    raise AssertionError(f"{item} was lost: {reason}")


NOTHING_LOST: Rescue[Any, Any] = Rescue(nobody)


def trial(trial: Trial, material: Any, folder: Path) -> float:
    """A trial of a search: its value is its one setting."""
    del material, folder
    return float(trial.params["x"])


def deadly(trial: Trial, material: Any, folder: Path) -> float:
    """A trial that ends its worker where x is 1, while the one beside it runs."""
    del material, folder
    time.sleep(0.3)
    if trial.params["x"] == 1:
        os._exit(1)
    time.sleep(0.3)
    return float(trial.params["x"])


def failing(trial: Trial, material: Any, folder: Path) -> float:
    """A trial that fails where x is 1, has no value where it is 2, and is pruned where it is 3."""
    del folder
    x = trial.params["x"]
    if x == 1:
        raise material
    if x == 3:
        trial.report(3.0, 1)
        raise TrialPruned
    return math.nan if x == 2 else float(x)
