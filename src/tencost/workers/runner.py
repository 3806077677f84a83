"""Building and timing programs quickly, as `builder=` and `runner=` of MetaSchedule.

The stock LocalBuilder starts processes anew for every batch and pays for TVM's imports each time; here warm workers
(:mod:`tencost.workers.pool`) build and time one program after another. The builder only writes the module down;
what fails while building is reported by the runner, with its status.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tvm.ir import save_json
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tencost.errors import TencostError
from tencost.store.status import Status, Timing, timing_from_log
from tencost.workers.evaluator import MeasureOptions as MeasureOptions
from tencost.workers.expected import Reference
from tencost.workers.keys import program_key
from tencost.workers.pool import Job, WorkerPool


@derived_object
class WarmBuilder(ms.builder.PyBuilder):
    """Writes modules down for :class:`WarmRunner`, which builds them where it runs them.

    TVM's RemoveBuildArtifact removes a batch's files once it was measured, and leaves those of one that was not.

    Args:
        folder: where they are written, which the caller removes; None: the system's temporary folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        self._folder = folder

    def build(self, build_inputs: list[Any]) -> list[Any]:
        results = []
        for item in build_inputs:
            folder = Path(tempfile.mkdtemp(prefix="tencost-program-", dir=self._folder))
            about = {"target": target_mapping(item.target), "key": program_key(item.mod)}
            (folder / "about.json").write_text(json.dumps(about))
            module = folder / "module.json"
            module.write_text(str(save_json(item.mod)), encoding="utf-8")
            results.append(ms.builder.BuilderResult(str(module), None))
        return results


class References:
    """The unscheduled workloads that programs are checked against, in files that go when this object does.

    Args:
        workloads: IRModules as they were before scheduling.
        place_of: which of them the program with a structural hash was made from; None where that is not known. Such
            a program is told by its arguments, if no other workload has the same ones, and else not checked.
    """

    def __init__(
        self,
        workloads: Sequence[Any],
        place_of: Callable[[int], int | None] = lambda _key: None,
    ) -> None:
        folder = Path(tempfile.mkdtemp(prefix="tencost-expected-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._place_of = place_of
        self._all: list[Reference] = []
        self._by_args: dict[str, list[Reference]] = {}
        for place, module in enumerate(workloads):
            workload = folder / f"{place}.json"
            workload.write_text(str(save_json(module)), encoding="utf-8")
            self._all.append(Reference(workload, workload.with_suffix(".npz")))
            args = [arg_json(arg) for arg in ms.arg_info.ArgInfo.from_entry_func(module, False)]
            self._by_args.setdefault(json.dumps(args), []).append(self._all[-1])

    def __getitem__(self, place: int) -> Reference:
        return self._all[place]

    def of(self, key: int, args: Sequence[Any]) -> Reference | None:
        """Return what the program with this structural hash and these arguments has to compute, if that is known."""
        place = self._place_of(key)
        if place is not None:
            return self._all[place]
        same = self._by_args.get(json.dumps(list(args)), [])
        return same[0] if len(same) == 1 else None


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
        check: the IRModules that are tuned, or References to them. A program that is faster than all others of its
            workload counts only if it computes what that workload does: else its result is a failure whose message
            begins with "wrong_answer", and the database never offers it. None: outputs are not looked at.

    Attributes:
        failure: why nothing could be measured, if that ended a run: TVM makes a RuntimeError of it.
    """

    def __init__(
        self, pool: WorkerPool | None = None, check: References | Sequence[Any] | None = None
    ) -> None:
        super().__init__()
        self._references = (
            check if isinstance(check, References) or check is None else References(check)
        )
        self.failure: TencostError | None = None
        self.pool = pool if pool is not None else WorkerPool(MeasureOptions())
        if pool is None:
            atexit.register(self.pool.close)

    def run(self, runner_inputs: list[Any]) -> list[Any]:
        jobs = []
        for item in runner_inputs:
            module = Path(str(item.artifact_path))
            about = json.loads((module.parent / "about.json").read_text())
            args = [arg_json(arg) for arg in item.args_info]
            checked = self._references
            reference = checked.of(about["key"], args) if checked is not None else None
            jobs.append(Job(module, about["target"], args, reference))
        try:
            found = dict(self.pool.measure(jobs))
        except TencostError as error:
            self.failure = error
            raise
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
