"""Threads of parallel loops: how many a program has, on which CPUs, and how they wait for work.

Libraries and processes of tencost have those of loop_threads.c, which says how they differ from TVM's. Where no C
compiler is there, a process has TVM's: a pool for each thread that launches a parallel loop, left alone with half as
many threads as the host has CPUs (`TVM_NUM_THREADS`, else `OMP_NUM_THREADS`, say otherwise), bound to the host's first
CPUs, whatever this process may use (`TVM_BIND_THREADS`), of which one that waits calls sched_yield 300,000 times before
it sleeps (`TVM_THREAD_POOL_SPIN_COUNT`). Beside a busy process each such call may cost milliseconds, at the end of the
process, too, which waits for its threads. docs/how-to/serving.md has what was measured.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

SPIN_COUNT = 0
"""How often a waiting thread asks for work before it sleeps."""
_LOOK_S = 0.2
"""Seconds after which a Ctrl-C is seen at the latest."""
_SHARED = -3
"""TVM's mode in which threads share the CPUs."""
_SOURCE = Path(__file__).with_name("loop_threads.c")
_LAUNCH = "tencost_launch"
NUM_THREADS, SPIN, BIND = "TVM_NUM_THREADS", "TVM_THREAD_POOL_SPIN_COUNT", "TVM_BIND_THREADS"


def variables(cores: int) -> dict[str, str]:
    """Return what a process has to find in its environment whose programs use so many of the CPUs that it may use."""
    return {NUM_THREADS: str(cores), SPIN: str(SPIN_COUNT), BIND: "0"}


def threads_of_library(cores: int) -> list[str]:
    """Return the options of a C compiler that link threads of its own into a library; none for a single core."""
    if cores == 1 or sys.platform != "linux":
        return []
    return ["-O2", "-pthread", f"-DTENCOST_CORES={cores}", str(_SOURCE)]


_chosen = 1
"""Cores of the threads that code gets which this process loads or compiles now; of one it gets none."""


def choose_threads(cores: int) -> None:
    """Have parallel loops of what this process loads or compiles from now on run on threads of loop_threads.c.

    They start with the first loop, on the CPUs of the thread that runs it. Libraries with threads of their own keep
    those. Where no C compiler is there, TVM's threads stay.

    Args:
        cores: that a program uses.
    """
    global _chosen
    if cores == 1 or cores == _chosen:
        return
    launch = _launch_of(cores)
    if launch is None:
        return
    from tvm_ffi import libinfo

    # Of several registered by one name, the last counts.
    ffi = ctypes.CDLL(libinfo.find_libtvm_ffi())
    ffi.TVMFFIEnvModRegisterContextSymbol(b"__TVMBackendParallelLaunch", ctypes.c_void_p(launch))
    _chosen = cores


@cache
def _launch_of(cores: int) -> int | None:
    """Return the address of a function that launches loops, on threads of its own; None without a compiler."""
    from tvm.support import cc

    if not (options := threads_of_library(cores)):
        return None
    with tempfile.TemporaryDirectory(prefix="tencost-threads-") as folder:
        library = f"{folder}/threads.so"
        try:
            cc.create_shared(library, [], options=[*options, f"-DTENCOST_LAUNCH={_LAUNCH}"])
            function = getattr(ctypes.CDLL(library), _LAUNCH)
        except (OSError, RuntimeError, ValueError):
            return None
    return ctypes.cast(function, ctypes.c_void_p).value


def environment(cores: int) -> dict[str, str]:
    """Return the same for a process of ours: how long threads stay awake may be said by whoever starts tencost."""
    spin = {SPIN: os.environ[SPIN]} if SPIN in os.environ else {}
    return {**variables(cores), "OMP_NUM_THREADS": str(cores), **spin}


def run_on(
    cpus: Sequence[int] | None,
    cores: int,
    function: Callable[[], T],
    on_interrupt: Callable[[], object] = lambda: None,
) -> T:
    """Call a function in a thread of its own, whose TVM programs run on these CPUs, and return what it returns.

    This thread's affinity and its pool stay as they are: a pool that is there can neither grow nor move.

    Args:
        cpus: as many as `cores`; None leaves them to the system, where it has no affinity.
        cores: threads that a program has.
        function: what is called.
        on_interrupt: called on Ctrl-C, to have the function end soon; its end is waited for.
    """
    os.environ.setdefault(SPIN, str(SPIN_COUNT))  # read when the process starts its first pool
    os.environ[BIND] = "0"

    def call() -> T:
        import tvm

        if cpus is not None:
            os.sched_setaffinity(0, cpus)  # of this thread, and so of the pool's
        # Of TVM's own threads, where those are used, only the number of names counts where nothing is bound.
        names = [str(number) for number in range(cores)]
        tvm.get_global_func("runtime.config_threadpool")(_SHARED, cores, names)
        return function()

    outcome: Future[T] = Future()
    running = threading.Event()

    def body() -> None:
        running.set()
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001, raised where it is waited for
            outcome.set_exception(error)

    thread = threading.Thread(target=body, name="network")
    try:
        thread.start()
        # Looked at again and again: a Ctrl-C that another thread was given is seen by this one when it wakes.
        while not wait([outcome], timeout=_LOOK_S).done:
            pass
        return outcome.result()
    except KeyboardInterrupt:
        on_interrupt()
        # Ctrl-C may come while the thread is being started: it runs all the same.
        if running.wait(1.0):
            wait([outcome])
        raise
