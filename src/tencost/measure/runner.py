"""Building and timing programs quickly, as `builder=` and `runner=` of MetaSchedule.

The stock LocalBuilder starts processes anew for every batch and pays for TVM's imports each time; here warm workers
(:mod:`tencost.measure.pool`) build and time one program after another. The builder only writes the module down;
what fails while building is reported by the runner, with its status.
"""

from __future__ import annotations

import atexit
import json
import tempfile
from pathlib import Path
from typing import Any

from tvm.ir import save_json
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tencost.measure.evaluator import MeasureOptions as MeasureOptions
from tencost.measure.pool import Job, WorkerPool
from tencost.records.status import Status, Timing, timing_from_log


@derived_object
class WarmBuilder(ms.builder.PyBuilder):
    """Writes modules down for :class:`WarmRunner`, which builds them where it runs them."""

    def build(self, build_inputs: list[Any]) -> list[Any]:
        results = []
        for item in build_inputs:
            folder = Path(tempfile.mkdtemp(prefix="tencost-program-"))
            (folder / "target.json").write_text(json.dumps(target_mapping(item.target)))
            module = folder / "module.json"
            module.write_text(str(save_json(item.mod)), encoding="utf-8")
            results.append(ms.builder.BuilderResult(str(module), None))
        return results


@derived_object
class _Finished(ms.runner.PyRunnerFuture):
    """A measurement that is already there."""

    def __init__(self, timing: Timing) -> None:
        super().__init__()
        self._timing = timing

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        timing = self._timing
        if timing.status is Status.ok:
            return ms.runner.RunnerResult(list(timing.run_secs), None)
        return ms.runner.RunnerResult(None, f"{timing.status}: {timing.error}")


@derived_object
class WarmRunner(ms.runner.PyRunner):
    """Builds and times what :class:`WarmBuilder` wrote, in warm workers; one program runs at a time.

    ``ms.tune_tir(..., builder=WarmBuilder(), runner=WarmRunner())`` is all that it takes.

    Args:
        pool: the workers; the caller closes them. None makes a pool for programs that use one core, closed at exit.
    """

    def __init__(self, pool: WorkerPool | None = None) -> None:
        super().__init__()
        self.pool = pool if pool is not None else WorkerPool(MeasureOptions())
        if pool is None:
            atexit.register(self.pool.close)

    def run(self, runner_inputs: list[Any]) -> list[Any]:
        jobs = []
        for item in runner_inputs:
            module = Path(str(item.artifact_path))
            target = json.loads((module.parent / "target.json").read_text())
            jobs.append(Job(module, target, [arg_json(arg) for arg in item.args_info]))
        found = dict(self.pool.measure(jobs))
        return [_Finished(found[position]) for position in range(len(jobs))]


def arg_json(arg: Any) -> list[Any]:
    """Return an ArgInfo as plain JSON: ["TENSOR", dtype, [shape]]."""
    kind, *rest = arg.as_json()
    if kind != "TENSOR":
        return [str(kind), *map(str, rest)]
    dtype, shape = rest
    return ["TENSOR", str(dtype), [int(extent) for extent in shape]]


def target_mapping(target: Any) -> dict[str, Any]:
    """Return a TVM Target as the mapping that makes it again: kind, mcpu, mattr, num-cores, ..."""
    plain: dict[str, Any] = json.loads(str(target))
    return {key: value for key, value in plain.items() if value != "" and key != "keys"}


def timing_from_result(result: Any) -> Timing:
    """Return what a MetaSchedule RunnerResult says, with the status that WarmRunner put in its message."""
    if result.run_secs:
        return timing_from_log([float(seconds) for seconds in result.run_secs])
    word, _, rest = str(result.error_msg or "").partition(": ")
    if word in Status.__members__ and word != Status.ok:
        return Timing(Status(word), (), rest)
    return Timing(Status.run_error, (), str(result.error_msg or ""))
