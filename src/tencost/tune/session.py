"""One tuning run: a scheduler that knows seconds over a network's tasks, a cost model, a database that goes on."""

from __future__ import annotations

import logging
import math
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm import IRModule
from tvm.ir import save_json
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.logging import get_loggers_from_work_dir
from tvm.s_tir.meta_schedule.utils import fork_seed
from tvm.target import Target
from tvm_ffi import structural_hash

from tencost import signals
from tencost.config import TunerConfig
from tencost.errors import TencostError
from tencost.networks.network import NetworkTask
from tencost.programs.codegen.overlap import arguments_of
from tencost.programs.codegen.refit import Refitter
from tencost.programs.codegen.rules import leave, scheduled
from tencost.programs.codegen.spaces import search_space
from tencost.programs.starting_points import StartBook
from tencost.store.ids import workload_id
from tencost.store.status import Status, Timing
from tencost.tune.cost_model import Round, latencies_s
from tencost.tune.search import ResumableSearch, applicable
from tencost.tune.task_scheduler import SecondsScheduler
from tencost.tune.workfolder import WorkFolder
from tencost.workers.expected import Reference
from tencost.workers.keys import program_key
from tencost.workers.pool import Job, WorkerPool
from tencost.workers.runner import References, WarmBuilder, WarmRunner, arg_json, timing_from_result

MIN_ROUND = 8
"""A round measures at least so many programs: fewer teach too little for the time that a search takes."""


@dataclass(frozen=True)
class MeasuredBatch:
    """What a round measured.

    Attributes:
        task: the task.
        trials: programs in the database, all runs together.
        timings: what came of each program, in order.
        round: how the model had ranked them.
        total_latency_s: weighted sum of the best latencies known.
        task_latency_s: best latency of the task.
        elapsed_s: seconds since the run began to tune.
        num_wrong: programs of this run that computed something else than their workload.
    """

    task: NetworkTask
    trials: int
    timings: tuple[Timing, ...]
    round: Round
    total_latency_s: float
    task_latency_s: float
    elapsed_s: float
    num_wrong: int = 0


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended: seconds it tuned, whether Ctrl-C ended it, the database, whether no task promised enough."""

    seconds: float
    interrupted: bool
    database: Any
    settled: bool = False


class TuningSession:
    """The state of one run; use once."""

    def __init__(
        self,
        tasks: Sequence[NetworkTask],
        target: dict[str, Any],
        tuner: TunerConfig,
        model: Any,
        folder: WorkFolder,
        pool: WorkerPool,
        *,
        threads: int,
        on_batch: Callable[[MeasuredBatch], None],
        book: StartBook | None = None,
    ) -> None:
        self.tasks = tasks
        self.ids = [workload_id(str(save_json(task.mod))) for task in tasks]
        self.best_s: dict[str, float] = {}
        self.trials = 0
        self.num_wrong = 0
        self._target, self._tuner, self._model = target, tuner, model
        self._num_rounds = len(model.history)
        self._folder, self._pool, self._threads = folder, pool, threads
        self._on_batch = on_batch
        self._refitter = Refitter(book) if book is not None and tuner.starts > 0 else None
        self._stop = threading.Event()
        self._measured: list[set[int]] = [set() for _ in tasks]
        self._counts = [0] * len(tasks)
        self._started = 0.0
        # Workers know tasks by their places as given; `tasks` takes another order when tuning begins.
        self._first_tasks, self._first_places = tasks, list(range(len(tasks)))
        modules = [task.mod for task in tasks]
        self._references = (
            References(modules, self._first_place_of) if tuner.check_outputs else None
        )

    @property
    def cache_flush(self) -> bool:
        """Whether programs are timed with flushed caches."""
        return self._folder.cache_flush

    @property
    def latency_s(self) -> dict[str, float]:
        """The best latency of each task, by workload id; untuned where that is faster."""
        return {
            identity: min(seconds, self.best_s.get(identity, math.inf))
            for identity, seconds in self._untuned_s.items()
        }

    @property
    def _untuned_s(self) -> dict[str, float]:
        """Seconds of each task untuned; of one that could not be timed the limit."""
        untuned, limit_s = self._folder.untuned_s, self._tuner.default_timeout_s
        return {
            identity: untuned[identity] if math.isfinite(untuned[identity]) else limit_s
            for identity in self.ids
        }

    @property
    def total_latency_s(self) -> float:
        """Weighted sum of the tasks' best latencies."""
        return self._weighted(self.latency_s)

    @property
    def has_untuned_times(self) -> bool:
        """Whether every task was timed untuned."""
        return set(self.ids) <= set(self._folder.untuned_s)

    @property
    def untuned_latency_s(self) -> float:
        """Weighted sum of the tasks' latencies untuned; at least that where some were stopped."""
        return self._weighted(self._untuned_s)

    @property
    def num_stopped(self) -> int:
        """Tasks that took too long untuned, or failed, and count with the limit."""
        return sum(math.isinf(self._folder.untuned_s[identity]) for identity in self.ids)

    def _weighted(self, seconds: Mapping[str, float]) -> float:
        pairs = zip(self.tasks, self.ids, strict=True)
        return float(sum(task.weight * seconds[identity] for task, identity in pairs))

    def measure_untuned(self, on_task: Callable[[int], None] = lambda _number: None) -> None:
        """Time every task untuned, where an earlier run has not; see `time_untuned`."""
        limit = self._tuner.default_timeout_s
        pairs = list(zip(self.ids, self.tasks, strict=True))
        time_untuned(pairs, self._target, limit, self._folder, self._time, on_task)

    def time_here(self, place: int, mod: Any) -> Timing:
        """Time a program of a task, which is no trial; compared with its workload if it is the fastest one so far.

        Args:
            place: of its task among those that the session was made with.
            mod: the scheduled IRModule.
        """
        return self._time(mod, None if self._references is None else self._references[place])

    @property
    def not_compared(self) -> dict[str, str]:
        """Why the outputs of a task's programs cannot be compared, by the task's name."""
        unchecked = self._pool.unchecked
        return {self._first_tasks[int(file.stem)].name: why for file, why in unchecked.items()}

    def run(
        self,
        on_ready: Callable[[], None] = lambda: None,
        to_gain: Callable[[], Mapping[str, float]] = dict,
    ) -> RunOutcome:
        """Tune until `trials` programs are in the database, the spaces are used up, or Ctrl-C.

        Args:
            on_ready: called when tuning begins.
            to_gain: task's name -> seconds of the network that tuning could save at most; of a task that it does not
                name, all that it takes.
        """
        database = self._folder.database(task.mod for task in self.tasks)
        with _logs_in(self._folder.path, [task.name for task in self.tasks]) as loggers:
            contexts = self._contexts(loggers)
            contexts = self._warm_start(database, contexts, to_gain)
            remaining = self._tuner.trials - self.trials
            self._started = time.monotonic()
            on_ready()
            settled = False
            if remaining > 0:
                with self._stop_on_interrupt():
                    settled = self._tune(database, contexts, remaining)
        seconds = time.monotonic() - self._started
        return RunOutcome(seconds, self._stop.is_set(), database, settled)

    def _tune(self, database: Any, contexts: list[Any], remaining: int) -> bool:
        """Tune; return whether it ended because no task promised enough."""
        runner = WarmRunner(self._pool, self._references)
        weights = [float(task.weight) for task in self.tasks]
        scheduler = SecondsScheduler(
            weights,
            lambda place: self.latency_s[self.ids[place]],
            lambda place: self._counts[place],
            self._tuner.min_gain,
        )
        observer = _Observer(self._observe)
        callbacks = [
            ms.measure_callback.AddToDatabase(),
            ms.measure_callback.UpdateCostModel(),
            observer,
            ms.measure_callback.RemoveBuildArtifact(),
        ]
        scratch = tempfile.TemporaryDirectory(prefix="tencost-programs-")
        try:
            ms.tune_tasks(
                tasks=contexts,
                task_weights=weights,
                work_dir=str(self._folder.path),
                max_trials_global=remaining,
                max_trials_per_task=self._tuner.trials_per_task,
                num_trials_per_iter=round_size(
                    remaining, len(self.tasks), self._tuner.trials_per_round
                ),
                builder=WarmBuilder(Path(scratch.name)),
                runner=runner,
                database=database,
                cost_model=self._model,
                measure_callbacks=callbacks,
                task_scheduler=scheduler,
            )
        except (Exception, KeyboardInterrupt):
            failure = runner.failure or observer.failure
            if failure is not None:  # TVM made a RuntimeError of it on its way through C++
                raise failure from None
            if not self._stop.is_set():  # a second Ctrl-C ends the run from wherever it is
                raise
        finally:
            scratch.cleanup()
        return bool(scheduler.settled)

    def _contexts(self, loggers: Sequence[logging.Logger]) -> list[Any]:
        seeds = fork_seed(self._tuner.seed, n=len(self.tasks))
        return [
            ms.TuneContext(
                mod=task.mod,
                target=Target(self._target),
                space_generator=search_space(self._target)
                if self._tuner.register_tiles
                else "post-order-apply",
                search_strategy=ResumableSearch(
                    self._tuner.population,
                    self._tuner.generations,
                    measured,
                    self._room,
                    self._refitter,
                    self._tuner.starts,
                    self._tuner.learn,
                ),
                task_name=task.name,
                logger=logger,
                rand_state=seed,
                num_threads=self._threads,
            )
            for task, logger, seed, measured in zip(
                self.tasks, loggers, seeds, self._measured, strict=True
            )
        ]

    def _warm_start(
        self,
        database: Any,
        contexts: list[Any],
        to_gain: Callable[[], Mapping[str, float]],
    ) -> list[Any]:
        """Take over what earlier runs measured: counts, best latencies, known programs, the model's lessons.

        Returns:
            The contexts (and with them the tasks) in a new order: the least measured ones first, and of these the ones
            with most to gain over what they take untuned, because the scheduler begins each run with a turn through the
            tasks and a short run may end before it is over.
        """
        places = {structural_hash(context.mod): place for place, context in enumerate(contexts)}
        records: dict[int, list[Any]] = {}
        self.trials = self._folder.num_searched()
        for record in database.get_all_tuning_records():
            place = places.get(structural_hash(record.workload.mod))
            if place is not None and record.run_secs:
                records.setdefault(place, []).append(record)
        for place, earlier in records.items():
            applied, candidates = applicable(earlier, self.tasks[place].name)
            results = [ms.runner.RunnerResult(list(record.run_secs), None) for record in applied]
            self._measured[place].update(program_key(cand.sch.mod) for cand in candidates)
            self._note_best(place, results)
            self._model.warm_start(contexts[place], candidates, results)
        is_timed = self.has_untuned_times
        gains = to_gain() if is_timed else {}
        latency_s = self.latency_s if is_timed else dict.fromkeys(self.ids, 0.0)
        promised = [
            gains.get(task.name, task.weight * latency_s[identity])
            for task, identity in zip(self.tasks, self.ids, strict=True)
        ]
        order = sorted(
            range(len(contexts)), key=lambda place: (len(records.get(place, ())), -promised[place])
        )
        self.tasks = [self.tasks[place] for place in order]
        self.ids = [self.ids[place] for place in order]
        self._measured = [self._measured[place] for place in order]
        self._first_places = order
        return [contexts[place] for place in order]

    def _first_place_of(self, key: int) -> int | None:
        """Return the task that proposed the program with this key, see :func:`program_key`: its place as given."""
        places = zip(self._first_places, self._measured, strict=True)
        return next((place for place, measured in places if key in measured), None)

    def _room(self) -> int:
        """Return how many programs may still be measured; none after Ctrl-C."""
        return 0 if self._stop.is_set() else self._tuner.trials - self.trials

    def _observe(self, place: int, results: Sequence[Any]) -> None:
        self.trials += len(results)
        self._counts[place] += len(results)
        self._note_best(place, results)
        task, identity = self.tasks[place], self.ids[place]
        timings = tuple(timing_from_result(result) for result in results)
        self.num_wrong += sum(timing.status is Status.wrong_answer for timing in timings)
        batch = MeasuredBatch(
            task=task,
            trials=self.trials,
            timings=timings,
            round=self._round(task.name),
            total_latency_s=self.total_latency_s,
            task_latency_s=self.latency_s[identity],
            elapsed_s=time.monotonic() - self._started,
            num_wrong=self.num_wrong,
        )
        self._on_batch(batch)

    def _round(self, task: str) -> Round:
        """Return the model's round of the batch that was just measured; where nothing was built it knows of none."""
        before, self._num_rounds = self._num_rounds, len(self._model.history)
        is_new = self._num_rounds > before
        return self._model.history[-1] if is_new else self._model.not_ranked(task)

    def _note_best(self, place: int, results: Sequence[Any]) -> None:
        latencies = [seconds for seconds in latencies_s(results) if seconds == seconds]
        identity = self.ids[place]
        if latencies:
            self.best_s[identity] = min([*latencies, self.best_s.get(identity, float("inf"))])

    def _time(
        self,
        mod: Any,
        reference: Reference | None = None,
        limit_s: float | None = None,
        target: dict[str, Any] | None = None,
    ) -> Timing:
        args = arguments_of(mod)
        arguments = [arg_json(arg) for arg in args]
        with tempfile.TemporaryDirectory(prefix="tencost-untuned-") as scratch:
            module = Path(scratch) / "module.json"
            module.write_text(str(save_json(mod)), encoding="utf-8")
            job = Job(module, target or self._target, arguments, reference, limit_s)
            return self._pool.measure_one(job)

    @contextmanager
    def _stop_on_interrupt(self) -> Iterator[None]:
        """First Ctrl-C: stop proposing programs, end in order. Second: raise KeyboardInterrupt."""

        def handle() -> None:
            if self._stop.is_set():
                raise KeyboardInterrupt
            self._stop.set()

        # In a thread of somebody else's nothing is handled, and no KeyboardInterrupt is ours.
        is_main = threading.current_thread() is threading.main_thread()
        with signals.handled(handle), suppress(*([KeyboardInterrupt] if is_main else [])):
            yield


def time_untuned(
    tasks: Sequence[tuple[str, NetworkTask]],
    target: dict[str, Any],
    limit_s: float,
    folder: WorkFolder,
    measure: Callable[..., Timing],
    on_task: Callable[[int], None],
) -> None:
    """Time every task as a network runs it that is not tuned, where the folder does not have its time yet.

    On a CPU that is by rule (tencost.programs.codegen); on other hardware, and where the program by rule cannot be
    compiled or run, by TVM's default schedule. What cannot be timed, or takes longer than the limit, gets infinity: any
    program is better. Each time is written at once.

    Args:
        tasks: workload id and task.
        target: the hardware's.
        limit_s: longest time that a program is run for, seconds.
        folder: keeps the times.
        measure: times a module: (module, limit_s=, target=) -> Timing.
        on_task: called before each task with its number, from 0.
    """

    def timing_of(task: NetworkTask) -> Timing:
        if target.get("kind") == "llvm":
            mod = IRModule({"main": scheduled(task.mod["main"], target)})
            timing = measure(mod, limit_s=limit_s, target=leave(mod, target))
            if timing.status in (Status.ok, Status.run_timeout):
                return timing
        return measure(task.mod, limit_s=limit_s, target=target)

    for number, (identity, task) in enumerate(tasks):
        on_task(number)
        if identity not in folder.untuned_s:
            timing = timing_of(task)
            seconds = statistics.median(timing.run_secs or [math.inf])
            # A program may end before it is stopped.
            is_timed = timing.status is Status.ok and seconds <= limit_s
            folder.untuned_s[identity] = seconds if is_timed else math.inf
            folder.save_session()


def round_size(trials: int, num_tasks: int, per_round: int) -> int:
    """Return how many programs a round measures: at most `per_round`, fewer if tasks would go without a turn.

    The scheduler gives every task one round before it follows the gradient; a round is made small enough for two
    turns each, but not smaller than MIN_ROUND.
    """
    return max(1, min(per_round, trials, max(MIN_ROUND, trials // (2 * num_tasks))))


@derived_object
class _Observer(ms.measure_callback.PyMeasureCallback):
    """Tells the session about every measured batch, after the database and the cost model have it.

    Attributes:
        failure: what went wrong while a batch was written, if that ended a run.
    """

    def __init__(self, observe: Callable[[int, Sequence[Any]], None]) -> None:
        super().__init__()
        self._observe = observe
        self.failure: TencostError | None = None

    def apply(
        self,
        task_scheduler: Any,  # noqa: ARG002 - MetaSchedule's interface
        task_id: int,
        measure_candidates: Sequence[Any],  # noqa: ARG002 - MetaSchedule's interface
        builder_results: Sequence[Any],  # noqa: ARG002 - MetaSchedule's interface
        runner_results: Sequence[Any],
    ) -> None:
        if len(runner_results):
            try:
                self._observe(int(task_id), runner_results)
            except TencostError as error:
                self.failure = error
                raise


@contextmanager
def _logs_in(folder: Path, task_names: Sequence[str]) -> Iterator[list[logging.Logger]]:
    """Keep MetaSchedule's log in the work folder and off the terminal, which shows our progress."""
    common = logging.getLogger("tvm.s_tir.meta_schedule")
    # TVM cannot configure a logger that has handlers without a name, and turns propagation off for good.
    before, propagates = list(common.handlers), common.propagate
    common.handlers.clear()
    common.setLevel(
        logging.CRITICAL
    )  # becomes the level of the console handler that is about to be made
    loggers = get_loggers_from_work_dir(str(folder), list(task_names))
    for handler in list(common.handlers):
        if type(handler) is logging.StreamHandler:
            common.removeHandler(handler)
    try:
        yield loggers
    finally:
        for logger in (common, *loggers):
            for handler in list(logger.handlers):
                logger.removeHandler(handler)
                handler.close()
        common.propagate = propagates
        common.handlers.extend(before)
