"""What workers do in the tests of the execution room: functions of a module, as processes import it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def trial(settings: Any, data: Any, folder: Path) -> None:
    """A trial of a search: tells its one setting."""
    from tencost.workers.parallel.search import tell

    tell(epoch=1, loss=settings["eta"])


class Unwatched:
    """A search's watch that takes note of nothing."""

    def started(self, trial: str, settings: Any) -> None:
        pass

    def told(self, trial: str, metrics: Any) -> None:
        pass

    def ended(self, trial: str, error: str | None) -> None:
        pass
