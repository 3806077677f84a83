"""After tuning: the network's outputs compared, its time with each database, and what is at fault if it is wrong.

While tuning, programs were timed over minutes or hours; a host that was slower then makes their sum larger than the
network that holds them. So the programs that the network runs are timed again, in the same process, on the same cores,
one after the other with the network itself, and compared turn by turn: what the tasks do not explain of its time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import tvm

from tencost.config import HardwareConfig, RunnerKind
from tencost.errors import TuneError
from tencost.measure.run import cpus_of
from tencost.networks.network import Network, NetworkTask
from tencost.programs.codegen.build import build
from tencost.programs.codegen.overlap import arguments_of, without_layout_blocks
from tencost.programs.codegen.rules import leave, scheduled
from tencost.tune.deploy import (
    OutputAgreement,
    compare_outputs,
    compile_default,
    compile_network,
    meaningless,
    worst,
)
from tencost.tune.hosts import MAX_TIMING_S, Deployed, Host, Timed, spread_of, times_in_turn
from tencost.tune.recording import TIMES, by_workload
from tencost.tune.session import TuningSession
from tencost.tune.workfolder import WorkFolder
from tencost.tune.wrong_programs import mark_failed, wrong_programs
from tencost.workers.evaluator import MAX_FLUSHED, MeasureOptions, local_timer
from tencost.workers.expected import draw_arguments, read_facts
from tencost.workers.pool import CpuPlan, WorkerPool
from tencost.workers.runner import arg_json

MAX_DEFAULT_S = 10.0
"""A network whose default schedules take longer, as its tasks' do by themselves, is not timed with them."""
_CALLS = 5
"""Calls of an untuned network of which the quickest tells what it takes beyond its tasks."""
_ATTENTION = "attention"
"""What the name of a function begins with that takes the place of three tasks."""
ONNX_RUNTIME = "onnxruntime"
"""Name of ONNX Runtime's times."""
MAX_TASK_S = 1.0
"""A task whose best program takes longer is not timed again: its time while tuning stands."""


@dataclass(frozen=True)
class Verified:
    """The tuned network, compiled, whose outputs agree with the expected ones.

    Attributes:
        built: its executable.
        values: rows of the report.
    """

    built: Any
    values: dict[str, Any]


def compile_and_compare(
    network: Network,
    hardware: HardwareConfig,
    untuned: Any,
    database: Any,
    tasks: Sequence[NetworkTask],
    folder: WorkFolder,
    options: MeasureOptions,
    host: Host,
    note: Callable[[str], object] = lambda _message: None,
) -> Verified:
    """Compile the network with the tuned database and compare its output with PyTorch's.

    Args:
        network: the network.
        hardware: what it is compiled for.
        untuned: its executable without programs, which is the tuned one where the database is empty.
        database: the tuned one.
        tasks: that were tuned.
        folder: of the database.
        options: how programs are timed, where the best ones have to be looked at.
        host: where it runs.
        note: called for operators that have TVM's default schedule, with the reason, if it is compiled here.

    Raises:
        TuneError: the outputs differ.
    """
    built = untuned
    if len(database):
        built = compile_network(network, hardware.target, database, note=note)
    agreements = compare_outputs(network, host.outputs(built, network))
    _, tuned = worst(agreements)
    if tuned.differs:
        by_default = compile_default(network, hardware.target)
        _, default = worst(compare_outputs(network, host.outputs(by_default, network)))
        if host.is_remote:
            raise _remote_disagreement(network, tuned, default, folder)
        raise _disagreement(network, tuned, default, hardware, tasks, folder, options)
    values: dict[str, Any] = {
        "computed_by": network.computed_by,
        "outputs_that_say_nothing": meaningless(network),
    }
    telling = {name: agreement for name, agreement in agreements.items() if agreement.accepted}
    if telling:
        _, agreement = worst(telling)
        values |= {"max_abs_error": agreement.max_abs, "max_rel_error": agreement.max_rel}
    return Verified(built, values)


def time_network(
    network: Network,
    hardware: HardwareConfig,
    executables: Mapping[str, Any],
    database: Any,
    session: TuningSession,
    peer: Callable[[], Timed | None],
    host: Host,
) -> dict[str, Any]:
    """Time the network's executables and its tasks' programs in turn, on the cores that programs are timed on.

    On a device behind a tracker the network alone is timed: its tasks' times while tuning stand.

    Args:
        network: the network.
        hardware: what it is compiled for.
        executables: by name: "tuned", the untuned one ("rules" or, where there are none, "default"), and others that
            are compared; "default" is left out where its tasks alone take more than MAX_DEFAULT_S.
        database: the tuned one.
        session: that tuned it.
        peer: makes the network as ONNX Runtime runs it, on the cores that programs are timed on; None: it does not.
        host: where it runs.

    Returns:
        Rows of the report.

    Raises:
        KeyboardInterrupt: Ctrl-C; the turn under way is over.
    """
    values: dict[str, Any] = {}
    networks = {name: host.deployed(built, network) for name, built in executables.items()}
    if "default" in networks and session.untuned_latency_s > MAX_DEFAULT_S:
        del networks["default"]
        values["network_default_at_least_s"] = session.untuned_latency_s
    tasks = dict(zip(session.ids, session.tasks, strict=True))
    latency_s = session.latency_s
    short = {
        identity: task
        for identity, task in tasks.items()
        if latency_s[identity] <= MAX_TASK_S and not host.is_remote
    }
    stop = threading.Event()

    def timed() -> dict[str, list[float]]:
        programs = task_programs(  # TVM draws numbers in threads
            short, database, hardware.target, flush=session.cache_flush
        )
        other = peer()
        whole = {**networks, **({} if other is None else {ONNX_RUNTIME: other})}
        limit_s = MAX_TIMING_S * (len(whole) + 1)
        return times_in_turn({**whole, **programs}, limit_s, stop)

    times = host.call(timed, stop.set)
    names = [name for name in (*networks, ONNX_RUNTIME) if name in times]
    spread = {name: spread_of(times[name]) for name in names}
    values |= {
        "network_turns": spread["tuned"].repeats,
        TIMES: {name: times[name] for name in names},
        **break_down(times["tuned"], tasks, times, latency_s),
    }
    for name in names:
        values |= spread[name].report(
            "network_latency" if name == "tuned" else f"network_{name}_latency"
        )
        if name != "tuned":
            values[f"network_over_{name}"] = spread["tuned"].median_s / spread[name].median_s
    return values


class TaskProgram:
    """A task's program as the network runs it: the database's best one, or the rules' where it has none.

    Args:
        task: the task.
        database: MetaSchedule's.
        target: for which hardware.
        flush: time it with flushed caches, as those that tuning compared it with.

    Raises:
        ValueError: arguments that cannot be drawn.
    """

    def __init__(
        self, task: NetworkTask, database: Any, target: dict[str, Any], *, flush: bool
    ) -> None:
        self._flush = flush
        schedule = database.query_schedule(task.mod, tvm.target.Target(target), "main")
        if schedule is not None:
            mod = schedule.mod
        elif target.get("kind") == "llvm":
            mod = tvm.IRModule({"main": scheduled(task.mod["main"], target)})
        else:
            mod = task.mod
        self._function = build(without_layout_blocks(mod), leave(mod, target)).jit()
        facts = read_facts(task.mod)
        drawn = draw_arguments(facts)
        fill = tvm.get_global_func("tvm.contrib.random.random_fill_for_measure")
        self._tensors = []
        for place, arg in enumerate(arguments_of(mod)):
            _, dtype, shape = arg_json(arg)
            tensor = tvm.runtime.empty(shape=tuple(shape), dtype=dtype)
            if place in facts.indices:  # random integers would be an index out of range
                tensor.copyfrom(drawn[place])
            else:
                fill(tensor)
            self._tensors.append(tensor)

    def seconds(self, number: int = 1) -> float:
        """Return the mean seconds of so many calls."""
        runs = min(number, MAX_FLUSHED) if self._flush else number
        timer = local_timer(self._function, self._tensors, tvm.cpu(), flush=self._flush)
        return timer(runs, 1, 0.0)[0]


def task_programs(
    tasks: Mapping[str, NetworkTask], database: Any, target: dict[str, Any], *, flush: bool
) -> dict[str, TaskProgram]:
    """Return the tasks' programs in a network with a database, by workload id; without those that cannot run alone."""
    programs = {}
    for identity, task in tasks.items():
        try:
            programs[identity] = TaskProgram(task, database, target, flush=flush)
        except ValueError:  # its time while tuning stands
            continue
    return programs


def beyond_tasks(
    network: Network, untuned: Any, session: TuningSession, hardware: HardwareConfig
) -> float | None:
    """Return the seconds that a network takes beyond its tasks, measured untuned, in the quickest of some calls.

    None where it runs on a device, or takes more than MAX_DEFAULT_S.
    """
    if session.untuned_latency_s > MAX_DEFAULT_S or hardware.runner is not RunnerKind.local:
        return None
    deployed = Deployed(untuned, network, hardware.cores)
    calls = Host(hardware).call(lambda: [deployed.seconds_by_function() for _ in range(_CALLS)])
    names = {task.name for task in session.tasks}
    return min(
        sum(
            time_s
            for name, time_s in seconds.items()
            if name not in names and not name.startswith(_ATTENTION)
        )
        for seconds in calls
    )


def break_down(
    network: Sequence[float],
    tasks: Mapping[str, NetworkTask],
    times: Mapping[str, Sequence[float]],
    latency_s: Mapping[str, float],
) -> dict[str, float]:
    """Compare a network's times with the weighted sums of its tasks' in the same turns.

    Args:
        network: seconds in each turn.
        tasks: by workload id.
        times: seconds of each task's program in each turn, by workload id.
        latency_s: seconds of tasks that are not among `times`, as timed before.

    Returns:
        Rows of the report; the quartiles of what is beyond the tasks are those of the differences turn by turn.
    """
    sums = [
        sum(
            task.weight * (times[identity][turn] if identity in times else latency_s[identity])
            for identity, task in tasks.items()
        )
        for turn in range(len(network))
    ]
    total = spread_of(sums)
    differences = spread_of([whole - part for whole, part in zip(network, sums, strict=True)])
    beyond = replace(differences, median_s=spread_of(network).median_s - total.median_s)
    return total.report("tasks_total_latency") | beyond.report("network_unexplained")


def _remote_disagreement(
    network: Network, tuned: OutputAgreement, default: OutputAgreement, folder: WorkFolder
) -> TuneError:
    """Say which of the two a device computes wrongly; its programs are not compared with their tasks one by one."""
    message = (
        f"network {network.name!r}: on the device its output differs from that of {network.computed_by} by "
        f"{tuned.max_rel:.2e} of its largest value ({tuned.tolerance:g} is accepted)."
    )
    if default.differs:
        return TuneError(
            f"{message} With TVM's default schedules it differs by {default.max_rel:.2e}, too: the import is at fault, "
            "or the device, or hardware.target names another processor than the device's. Look at these first"
        )
    return TuneError(
        f"{message} With TVM's default schedules it agrees: a program in {folder.path} computes something else than "
        "its task. Which one is found by the same command on the device itself: hardware.runner=local"
    )


def _disagreement(
    network: Network,
    tuned: OutputAgreement,
    default: OutputAgreement,
    hardware: HardwareConfig,
    tasks: Sequence[NetworkTask],
    folder: WorkFolder,
    options: MeasureOptions,
) -> TuneError:
    """Find out why the tuned network computes something else than it should; wrong programs are marked as failed."""
    message = (
        f"network {network.name!r}: the tuned network's output differs from that of {network.computed_by} by "
        f"{tuned.max_abs:.2e} ({tuned.max_rel:.2e} of its largest value; {tuned.tolerance:g} is accepted)."
    )
    cores = cpus_of(hardware)
    plan = CpuPlan.choose(cores, name=hardware.name)
    log, kind = folder.logs / "worker.log", str(hardware.target["kind"])
    with closing(WorkerPool(options, cores, plan, log, target_kind=kind)) as pool:
        wrong = wrong_programs(folder.path, by_workload(tasks), pool)
    if wrong:
        mark_failed(folder.path, wrong)
        return TuneError(
            f"{message} These programs compute something else than their tasks: "
            f"{'; '.join(map(str, wrong))}. They are marked as failed in {folder.path} now: run the same command "
            "again, which takes the next best ones."
        )
    message += " Each task's best program computes what its task does, and"
    if default.differs:
        return TuneError(
            f"{message} the untuned network differs by {default.max_rel:.2e}, too: the import is at fault, not the "
            "tuning. Look at network.output and network.inputs, and at the operators that TVM imports."
        )
    by_rule = compile_network(network, hardware.target, None, by_rule=True)
    _, ruled = worst(compare_outputs(network, Host(hardware).outputs(by_rule, network)))
    if ruled.differs:
        return TuneError(
            f"{message} TVM's default schedules agree with {network.computed_by}: the functions that are scheduled by "
            "rule do not. Please report the network."
        )
    return TuneError(
        f"{message} the untuned network agrees with {network.computed_by}: the difference arises where TVM puts them "
        "together. Compile the network without the database (relax.get_pipeline), and report the database in "
        f"{folder.path} to TVM."
    )
