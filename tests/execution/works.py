"""What workers do in the tests: functions of a module, as processes import it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


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


def refuse(shared: Any, item: int) -> list[int]:
    raise KeyError(item)
