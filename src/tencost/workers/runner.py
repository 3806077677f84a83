"""Building and timing programs quickly, as `builder=` and `runner=` of MetaSchedule.

The stock LocalBuilder starts processes anew for every batch and pays for TVM's imports each time; here warm workers
(:mod:`tencost.workers.pool`) build and time one program after another. The builder only writes the module down;
what fails while building is reported by the runner, with its status.
"""

from __future__ import annotations

import atexit
import json
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

from tvm.ir import save_json
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tencost.errors import MeasureError, TencostError
from tencost.programs.codegen.build import prepare_compilation
from tencost.store.status import Status, Timing, timing_from_log
from tencost.workers.evaluator import MeasureOptions as MeasureOptions
from tencost.workers.expected import Reference
from tencost.workers.keys import program_key
from tencost.workers.pool import Job, WorkerPool

_RUNNERS: weakref.WeakSet[WarmRunner] = weakref.WeakSet()
"""Those of this process that are in use."""
_UNREAD: set[Path] = set()
"""The modules of the builders' last batches that no WarmRunner has read."""


@derived_object
class WarmBuilder(ms.builder.PyBuilder):
    """Writes modules down for :class:`WarmRunner`, which builds them where it runs them.

    TVM's LocalRunner and RPCRunner cannot read these modules and would record 1e10 s for every program. A MeasureError
    therefore ends a tuning before its first batch is measured unless its runner declares `reads_warm_builder`, as
    WarmRunner does; a runner of your own that passes its programs to a WarmRunner sets this attribute to True.

    A loop without TVM's task scheduler calls `build` itself, and the builder does not see its runner. There a
    MeasureError is raised if no WarmRunner is alive in the process, or if another runner took the batch before.

    For CPUs the workers' vector mathematics is registered in this process, so that ``tvm.compile`` makes of the tuned
    programs the code that was measured, see :func:`tencost.build`.

    TVM's RemoveBuildArtifact removes the files of a batch that was measured, and leaves those of one that was not.

    Args:
        folder: where they are written, which the caller removes; None: the system's temporary folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        self._folder = folder
        self._batch: set[Path] = set()

    def build(self, build_inputs: list[Any]) -> list[Any]:
        runner = _tuning_runner()
        unread = self._batch & _UNREAD
        if runner is not None:
            is_foreign = not getattr(runner, "reads_warm_builder", False)
        else:
            # RemoveBuildArtifact removes measured modules: one that is gone and unread went to another runner.
            is_foreign = not _RUNNERS or any(not module.exists() for module in unread)
        if build_inputs and is_foreign:
            name = "another runner" if runner is None else type(runner).__name__
            raise MeasureError(
                f"expected WarmBuilder together with WarmRunner, found {name}: only WarmRunner can read what "
                "WarmBuilder writes. Pass runner=WarmRunner(), or TVM's LocalBuilder as builder=. A runner of your own "
                "that passes its programs to a WarmRunner sets reads_warm_builder = True"
            )
        _UNREAD.difference_update(unread)
        built = [self._write(build_input) for build_input in build_inputs]
        self._batch = {Path(str(build.artifact_path)) for build in built if build.artifact_path}
        _UNREAD.update(self._batch)
        return built

    def _write(self, build_input: Any) -> Any:
        """Write a program down, or return why it cannot be, as TVM's builders do."""
        names = [name.name_hint for name in build_input.mod.get_global_vars()]
        if "main" not in names:
            return ms.builder.BuilderResult(
                None, f"WarmBuilder: expected a module with a function main, found {names}"
            )
        try:
            about = {
                "target": target_mapping(build_input.target),
                "key": program_key(build_input.mod),
            }
            text = str(save_json(build_input.mod))
            prepare_compilation(str(build_input.target.kind.name))
        except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side says, under many types
            return ms.builder.BuilderResult(None, f"WarmBuilder: {error}")
        folder = Path(tempfile.mkdtemp(prefix="tencost-program-", dir=self._folder))
        (folder / "about.json").write_text(json.dumps(about))
        module = folder / "module.json"
        module.write_text(text, encoding="utf-8")
        return ms.builder.BuilderResult(str(module), None)


def _tuning_runner() -> Any | None:
    """Return the runner of the TVM tuning that this thread is in; None outside TVM's task scheduler.

    TVM does not tell a builder which runner gets its artifacts, and a stock runner turns whatever it cannot read into
    a recorded failure. The caller's frame of `TaskScheduler.tune` is the one place that names both.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is ms.TaskScheduler.tune.__code__:
            return frame.f_locals["runner"]
        frame = frame.f_back
    return None


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
        candidates = self._by_args.get(json.dumps(list(args)), [])
        return candidates[0] if len(candidates) == 1 else None


def _finished(timing: Timing) -> Any:
    """Return a measurement that is already there, as MetaSchedule asks for it."""
    if timing.status is Status.ok:
        return ms.runner.LocalRunnerFuture(list(timing.run_secs), None)
    return ms.runner.LocalRunnerFuture(None, f"{timing.status}: {timing.error}")


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
        reads_warm_builder: True; WarmBuilder refuses a runner without it.
    """

    reads_warm_builder: ClassVar[bool] = True

    def __init__(
        self, pool: WorkerPool | None = None, check: References | Sequence[Any] | None = None
    ) -> None:
        super().__init__()
        self._references = (
            check if isinstance(check, References) or check is None else References(check)
        )
        self.failure: TencostError | None = None
        _RUNNERS.add(self)
        self.pool = pool if pool is not None else WorkerPool(MeasureOptions())
        if pool is None:
            atexit.register(self.pool.close)

    def run(self, runner_inputs: list[Any]) -> list[Any]:
        jobs = []
        for runner_input in runner_inputs:
            module = Path(str(runner_input.artifact_path))
            try:
                about = json.loads((module.parent / "about.json").read_text())
            except FileNotFoundError:
                self.failure = MeasureError(
                    f"expected WarmRunner together with WarmBuilder, found {module.name} of another builder. Pass "
                    "builder=WarmBuilder(), or TVM's LocalRunner or RPCRunner as runner="
                )
                raise self.failure from None
            _UNREAD.discard(module)
            args = [arg_json(arg) for arg in runner_input.args_info]
            references = self._references
            reference = references.of(about["key"], args) if references is not None else None
            jobs.append(Job(module, about["target"], args, reference))
        try:
            timings = dict(self.pool.measure(jobs))
        except TencostError as error:
            self.failure = error
            raise
        return [_finished(timings[position]) for position in range(len(jobs))]


def arg_json(arg: Any) -> list[Any]:
    """Return an ArgInfo as plain JSON: ["TENSOR", dtype, [shape]]."""
    kind, *rest = arg.as_json()
    if kind != "TENSOR":
        return [str(kind), *map(str, rest)]
    dtype, shape = rest
    return ["TENSOR", str(dtype), [int(extent) for extent in shape]]


def target_mapping(target: Any) -> dict[str, Any]:
    """Return a TVM Target, or its text, as the mapping that makes it again: kind, mcpu, mattr, num-cores, ..."""
    attributes: dict[str, Any] = json.loads(str(target))
    return {key: attributes[key] for key in attributes if attributes[key] != "" and key != "keys"}


def timing_from_result(result: Any) -> Timing:
    """Return what a MetaSchedule RunnerResult says, with the status that WarmRunner put in its message."""
    if result.run_secs:
        return timing_from_log([float(seconds) for seconds in result.run_secs])
    word, _, rest = str(result.error_msg or "").partition(": ")
    if word in Status.__members__ and word != Status.ok:
        return Timing(Status(word), (), rest)
    return Timing(Status.run_error, (), str(result.error_msg or ""))
