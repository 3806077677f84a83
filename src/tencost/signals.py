"""How a command is asked to end early: by Ctrl-C (SIGINT), or by SIGTERM, as `docker stop` and batch schedulers do.

Both are one wish with one way out, KeyboardInterrupt: runs end as KILLED, what was finished is kept, and the same
command goes on. A process that was started with SIGINT ignored, as nohup, `&` in a script and some CI runners do, goes
on ignoring it: its messages speak of SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

_PR_SET_PDEATHSIG = 1
_arrived: set[int] = set()
"""Signals that have asked this command to end."""


@contextmanager
def listening() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt in the main thread, as Ctrl-C does, where nobody else has taken it.

    In another thread nothing changes: Python handles signals in the main thread only.
    """
    _arrived.clear()
    if not _in_main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def interrupt(number: int, _frame: FrameType | None) -> None:
        _arrived.add(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def handled(handle: Callable[[], None]) -> Iterator[None]:
    """Call a function instead of raising KeyboardInterrupt, where Ctrl-C or SIGTERM asks to end.

    SIGINT that is ignored stays so, and SIGTERM is taken only inside :func:`listening` or another such block.

    Args:
        handle: called in the main thread, between two of its instructions; what it raises is raised there.
    """
    if not _in_main_thread():
        yield
        return

    def call(number: int, _frame: FrameType | None) -> None:
        _arrived.add(number)
        handle()

    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM)
        if callable(signal.getsignal(number))
    }
    for number in before:
        signal.signal(number, call)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def not_swallowed() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of the block where Ctrl-C or SIGTERM came in it.

    TVM makes a RuntimeError of one that is raised in a Python function that it calls, which looks like a refusal.
    """
    asked: list[bool] = []

    def handle() -> None:
        asked.append(True)
        raise KeyboardInterrupt

    with handled(handle):
        try:
            yield
        except Exception:
            if asked:
                raise KeyboardInterrupt from None
            raise
    if asked:
        raise KeyboardInterrupt


@contextmanager
def hold_signals() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C and SIGTERM back until the function that this gives is called, or until the block ends.

    For two steps of which the second takes care of the first, as a run that is started and then ended.

    Raises:
        KeyboardInterrupt: from the function, or at the end of the block, where one has come meanwhile.
    """
    requests: list[bool] = []
    with ExitStack() as stack:
        stack.enter_context(handled(lambda: requests.append(True)))

        def release() -> None:
            stack.close()
            if requests:
                requests.clear()
                raise KeyboardInterrupt

        yield release
        release()


def end_with_parent(parent: int) -> None:
    """Have the kernel send this process SIGTERM when its parent ends, also when that is killed; on Linux only.

    Args:
        parent: the number of the process that started this one, which may have ended already.
    """
    import ctypes

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            raise SystemExit(128 + signal.SIGTERM)


def terminated() -> bool:
    """Say whether SIGTERM has asked this command to end."""
    return signal.SIGTERM in _arrived


def name() -> str:
    """Return what ends this command early, or has done so: Ctrl-C; SIGTERM where that came or SIGINT is ignored."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return "SIGTERM" if ignored or terminated() else "Ctrl-C"


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
