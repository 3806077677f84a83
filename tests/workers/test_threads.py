"""Programs run on the cores that were asked for: their number and their CPUs, in workers and in this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tencost.store.status import Status
from tencost.workers import threads
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.pool import CpuPlan, Job, WorkerPool

FREE = sorted(os.sched_getaffinity(0))

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.skipif(len(FREE) < 2, reason="needs two CPUs"),
]


def parallel_module() -> Any:
    """Return a program with a parallel loop."""
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    x = te.placeholder((64, 64), name="x")
    schedule = Schedule(
        tvm.IRModule({"main": te.create_prim_func([x, te.compute((64, 64), lambda i, j: x[i, j] + 1, "y")])})
    )  # fmt: skip
    schedule.parallel(schedule.get_loops(schedule.get_sblock("y"))[0])
    return schedule.mod


def run_it() -> int:
    """Run the program in this thread; return how many threads it had."""
    import numpy as np
    import tvm

    function = tvm.compile(parallel_module(), target="llvm").jit()
    function["main"](*(tvm.runtime.tensor(np.zeros((64, 64), np.float32)) for _ in range(2)))
    return int(tvm.get_global_func("runtime.NumThreads")())


def cpus_of_threads(process: int) -> dict[int, set[int]]:
    """Return the CPUs that each thread of a process may use, by its id."""
    found = {}
    for path in Path(f"/proc/{process}/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended
            found[int(path.name)] = set(os.sched_getaffinity(int(path.name)))
    return found


@pytest.mark.parametrize("cores", [1, 2])
def test_a_worker_s_program_has_the_threads_and_cpus_of_the_plan(
    cores: int, tmp_path: Path
) -> None:
    from tvm.ir import save_json

    path = tmp_path / "program.json"
    path.write_text(str(save_json(parallel_module())))
    plan = CpuPlan.choose(cores)
    assert plan.run is not None
    assert len(plan.run) == cores
    pool = WorkerPool(MeasureOptions(number=1, repeat=1, min_repeat_ms=0), cores, plan, workers=1)
    try:
        args = [["TENSOR", "float32", [64, 64]]] * 2
        timing = pool.measure_one(Job(path, {"kind": "llvm", "num-cores": cores}, args))
        assert timing.status is Status.ok, timing
        child = pool.workers[0].process.pid
        assert child is not None
        started = {task: cpus for task, cpus in cpus_of_threads(child).items() if task != child}
        # The program's, and TVM's, which fill its arguments with random numbers and sleep.
        assert len(started) == 2 * (cores - 1)
        assert all(cpus <= set(plan.run) for cpus in started.values())  # woken off the caller's
    finally:
        pool.close()


@pytest.mark.parametrize("cores", [1, 2])
def test_a_network_in_this_process_has_them_too(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the environment says, whatever pool this thread has, and as often as it is asked."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    here = run_it()  # TVM binds this thread when it makes its pool
    before = os.sched_getaffinity(0)
    cpus = FREE[-cores:]

    def look() -> tuple[int, set[int], list[set[int]]]:
        count, mine = run_it(), threading.get_native_id()
        found = cpus_of_threads(os.getpid())
        made = [found[task] for task in found if task not in others and task != mine]
        return count, found[mine], made

    for _ in range(2):
        others = set(cpus_of_threads(os.getpid()))
        count, mine, made = threads.run_on(cpus, cores, look)
        assert (count, mine) == (cores, set(cpus))
        assert len(made) == cores - 1
        assert all(one == set(cpus) for one in made)
    assert os.sched_getaffinity(0) == before
    assert run_it() == here


@pytest.mark.parametrize("elsewhere", [False, True])
def test_ctrl_c_is_told_and_the_function_s_end_waited_for(*, elsewhere: bool) -> None:
    """The system may give the signal to another thread than the one that waits, which it does not wake then."""
    begun, told, ended = threading.Event(), threading.Event(), []

    def wait() -> None:
        begun.set()
        assert told.wait(30)
        ended.append(True)

    def press() -> None:
        assert begun.wait(60)
        if elsewhere:
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        else:
            os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        threads.run_on(None, 1, wait, told.set)
    presser.join()
    assert ended == [True]


def test_how_long_threads_stay_awake_may_be_said_from_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(threads.SPIN, raising=False)
    assert threads.environment(3)[threads.SPIN] == str(threads.SPIN_COUNT)
    assert threads.environment(3)[threads.NUM_THREADS] == "3"
    monkeypatch.setenv(threads.SPIN, "7")
    assert threads.environment(3)[threads.SPIN] == "7"
    assert threads.variables(3)[threads.SPIN] == str(threads.SPIN_COUNT)


def test_what_is_compiled_in_memory_has_threads_of_its_own() -> None:
    """TVM's are not there after a fork, and would be waited for."""
    script = (
        "import os, signal, sys, numpy, tvm\n"
        "from test_threads import parallel_module\n"
        "from tencost.workers.threads import choose_threads\n"
        "choose_threads(2)\n"
        "main = tvm.compile(parallel_module(), target='llvm').jit()['main']\n"
        "arrays = [tvm.runtime.tensor(numpy.zeros((64, 64), 'float32')) for _ in range(2)]\n"
        "threads = lambda: len(os.listdir('/proc/self/task'))\n"
        "before = threads(); main(*arrays); assert threads() == before + 1\n"
        "if (child := os.fork()) == 0: signal.alarm(60); main(*arrays); os._exit(0)\n"
        "sys.exit(os.waitpid(child, 0)[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parent, check=False, timeout=300
    )
    assert done.returncode == 0


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.parametrize("cores", [1, 2, 5])
def test_each_share_is_computed_once(cores: int, sanitizer: str, tmp_path: Path) -> None:
    """Asleep and awake, in loops within loops, by several callers, after one that failed, and after a fork."""
    source = Path(threads.__file__).with_name("loop_threads.c")
    program = tmp_path / "program"
    built = subprocess.run(
        [
            "gcc", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-fsanitize={sanitizer}",
            f"-DTENCOST_CORES={cores}", "-DTENCOST_LAUNCH=tencost_launch", "-DSPIN_NS=20000",
            "-include", source, Path(__file__).with_name("loop_threads.c"), "-o", program,
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    for asked in ([], [str(cores)]):
        environment = {
            **os.environ,
            "TVM_NUM_THREADS": str(cores),
            "TSAN_OPTIONS": "die_after_fork=0",
        }
        expected = min(cores, len(FREE))
        done = subprocess.run(
            [program, str(expected)],
            env=environment if asked else {**environment, "TVM_NUM_THREADS": ""},
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done.stderr[:2000]
