"""Processes that a program leaves behind, wherever they went: a daemon leaves its process group and its session.

On Linux a process can ask to become the parent of those of its descendants that lose theirs. Both the server and its
child do: what a program starts stays below the child, and falls to the server when the child ends. Elsewhere only
children that did not change their parent are found.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_S = 2.0
"""How long processes that start others may keep us killing them."""


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants; a fork has to ask for itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_strays() -> None:
    """Kill all descendants of this process and collect them; they are gone, or out of reach, when it returns."""
    deadline = time.monotonic() + _PATIENCE_S
    while (children := _children(os.getpid())) and time.monotonic() < deadline:
        _kill(children)
        for pid in children:  # its children are ours now: the next look finds them
            with contextlib.suppress(ChildProcessError):
                while not os.waitpid(pid, os.WNOHANG)[0] and time.monotonic() < deadline:
                    time.sleep(0.0005)


def end_descendants(pid: int) -> None:
    """Kill all descendants of another process that adopts orphans; it is stopped, to be killed after this."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _PATIENCE_S
    while (descendants := _living_below(pid)) and time.monotonic() < deadline:
        _kill(descendants)


def _living_below(pid: int) -> list[int]:
    living = [child for child in _children(pid) if not _has_ended(child)]
    return [*living, *(below for child in living for below in _living_below(child))]


def _children(pid: int) -> list[int]:
    """Return the children of all threads of a process; none if it is gone."""
    tasks = Path(f"/proc/{pid}/task")
    children: list[int] = []
    try:
        for task in os.listdir(tasks):  # noqa: PTH208 - a few microseconds, once a program
            with contextlib.suppress(ProcessLookupError):
                children += map(int, (tasks / task / "children").read_text().split())
    except FileNotFoundError:  # no such process, or a system that does not list them
        with contextlib.suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(pid).children()]
    return children


def _has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
