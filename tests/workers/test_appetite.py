"""A program that needs more memory than its worker allows fails by itself, before it has taken it."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tencost.store.status import Status
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.warm_worker import WarmWorker
from tencost.workers.worker import MemoryAllowance

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits what is mapped"),
]

OPTIONS = MeasureOptions(number=1, repeat=1, max_repeat=1, min_repeat_ms=0, run_timeout_s=60)
GIB = 2**30


@pytest.fixture(scope="module")
def worker() -> Iterator[WarmWorker]:
    one = WarmWorker(OPTIONS, cores=1, max_rss_mib=2048)
    yield one
    one.close()


def touching(floats: int, path: Path) -> Path:
    """Write a program down that has one argument and writes one value into it."""
    from tvm.ir import save_json
    from tvm.script import ir as I
    from tvm.script import tirx as T

    @I.ir_module
    class Module:
        @T.prim_func
        def main(A: T.Buffer((floats,), "float32")) -> None:  # type: ignore[valid-type]
            T.func_attr({"global_symbol": "main"})
            A[0] = T.float32(1)

    path.write_text(str(save_json(Module)), encoding="utf-8")
    return path


def test_arguments_beyond_the_limit_are_the_program_s_failure(
    worker: WarmWorker, target: dict[str, Any], tmp_path: Path
) -> None:
    def run(floats: int) -> Any:
        program = touching(floats, tmp_path / f"{floats}.json")
        return worker.measure(program, target, [["TENSOR", "float32", [floats]]])

    assert run(64).status is Status.ok
    process = worker.process.pid
    for _ in range(2):
        timing = run(GIB)  # 4 GiB
        assert timing.status is Status.run_error
        assert "memory" in timing.error
        assert "2048 MiB" in timing.error
        assert worker.process.pid == process
        after = run(GIB // 16)
        assert after.status is Status.ok, after.error
        assert worker.process.pid == process


def in_a_fork(check: Any) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            check()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_every_program_of_a_process_gets_the_same_allowance() -> None:
    def check() -> None:
        allowance = MemoryAllowance(2 * GIB)
        for kept in (0, GIB // 2, GIB):  # what programs before left mapped takes nothing away
            held = bytearray(kept)
            allowance.begin({"target": {"kind": "llvm"}})
            fits = bytearray(3 * GIB // 2)
            try:
                bytearray(5 * GIB // 2)
            except MemoryError:
                pass
            else:
                raise AssertionError(kept)
            del held, fits

    assert in_a_fork(check) == 0


def test_programs_of_an_accelerator_are_not_limited() -> None:
    def check() -> None:
        before = resource.getrlimit(resource.RLIMIT_DATA)
        allowance = MemoryAllowance(2 * GIB)
        allowance.begin({"target": {"kind": "llvm"}})
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] < before[1] % (1 << 64)
        allowance.begin({"target": {"kind": "cuda"}})
        assert resource.getrlimit(resource.RLIMIT_DATA) == (before[1], before[1])

    assert in_a_fork(check) == 0
