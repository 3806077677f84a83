"""After tuning: the network's outputs compared, its time with each database, and what is at fault if it is wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tencost.config import HardwareConfig
from tencost.errors import TuneError
from tencost.measure.run import cpus_of
from tencost.networks.network import Network, NetworkTask
from tencost.tune.breakdown import break_down, task_programs
from tencost.tune.deploy import (
    MAX_TIMING_S,
    TOLERANCE,
    Agreement,
    Deployed,
    Timed,
    compare_outputs,
    compile_network,
    meaningless,
    on_cores,
    spread_of,
    times_in_turn,
    worst,
)
from tencost.tune.hosts import Host
from tencost.tune.network_record import TIMES
from tencost.tune.recording import by_workload
from tencost.tune.session import Session
from tencost.tune.workfolder import WorkFolder
from tencost.tune.wrong_programs import mark_failed, wrong_programs
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.pool import CpuPlan, WorkerPool

MAX_DEFAULT_S = 10.0
"""A network whose default schedules take longer, as its tasks' do by themselves, is not timed with them."""
PEER = "onnxruntime"
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
    note: Callable[[str], object] | None = None,
    place: Host | None = None,
) -> Verified:
    """Compile the network with the tuned database and compare its output with PyTorch's.

    Args:
        network: the network.
        hardware: what it is compiled for.
        untuned: its executable with default schedules.
        database: the tuned one.
        tasks: that were tuned.
        folder: of the database.
        options: how programs are timed, where the best ones have to be looked at.
        note: is told which operators have TVM's default schedule, and why.
        place: where it runs; None: on this host.

    Raises:
        TuneError: the outputs differ.
    """
    place = place or Host(hardware)
    built = compile_network(network, hardware.target, database, note=note)
    agreements = compare_outputs(network, place.call(place.deployed(built, network).outputs))
    agreement = worst(agreements)
    if agreement.differs:
        found = place.call(place.deployed(untuned, network).outputs)
        before = worst(compare_outputs(network, found))
        if place.is_remote:
            raise _remote_disagreement(network, agreement, before, folder)
        raise _disagreement(network, agreement, before, hardware, tasks, folder, options)
    values: dict[str, Any] = {
        "computed_by": network.computed_by,
        "outputs_that_say_nothing": meaningless(network),
    }
    telling = {name: one for name, one in agreements.items() if one.accepted}
    if telling:
        values |= {"max_abs_error": worst(telling).max_abs, "max_rel_error": worst(telling).max_rel}
    return Verified(built, values)


def time_network(
    network: Network,
    hardware: HardwareConfig,
    executables: Mapping[str, Any],
    database: Any,
    session: Session,
    peer: Callable[[], Timed | None] = lambda: None,
    place: Host | None = None,
) -> dict[str, Any]:
    """Time the network's executables and its tasks' programs in turn, on the cores that programs are timed on.

    On a device behind a tracker the network alone is timed: its tasks' times while tuning stand.

    Args:
        network: the network.
        hardware: what it is compiled for.
        executables: by name: "tuned", "default", "rules" where there are any, and others that are compared; the default
            one is left out where its tasks alone take more than MAX_DEFAULT_S.
        database: the tuned one.
        session: that tuned it.
        peer: makes the network as ONNX Runtime runs it, on the cores that programs are timed on; None: it does not.
        place: where it runs; None: on this host.

    Returns:
        Rows of the report.

    Raises:
        KeyboardInterrupt: Ctrl-C; the turn under way is over.
    """
    place = place or Host(hardware)
    values: dict[str, Any] = {}
    deployed = {name: place.deployed(built, network) for name, built in executables.items()}
    if session.default_latency_s > MAX_DEFAULT_S:
        del deployed["default"]
        values["network_default_at_least_s"] = session.default_latency_s
    tasks = dict(zip(session.ids, session.tasks, strict=True))
    known = session.latency_s
    short = {
        identity: task
        for identity, task in tasks.items()
        if known[identity] <= MAX_TASK_S and not place.is_remote
    }
    stop = threading.Event()

    def timed() -> dict[str, list[float]]:
        programs = task_programs(short, database, hardware.target)  # TVM draws numbers in threads
        other = peer()
        whole = {**deployed, **({} if other is None else {PEER: other})}
        limit_s = MAX_TIMING_S * (len(whole) + 1)
        return times_in_turn({**whole, **programs}, limit_s, stop)

    times = place.call(timed, stop.set)
    names = [*deployed, *([PEER] if PEER in times else [])]
    spread = {name: spread_of(times[name]) for name in names}
    parts = break_down(times["tuned"], tasks, times, known)
    values |= {
        "network_turns": spread["tuned"].repeats,
        TIMES: {name: times[name] for name in names},
        **parts.report(),
    }
    for name, found in spread.items():
        key = "network_latency" if name == "tuned" else f"network_{name}_latency"
        values |= {
            f"{key}_s": found.median_s,
            f"{key}_q1_s": found.lower_s,
            f"{key}_q3_s": found.upper_s,
        }
        if name != "tuned":
            values[f"network_over_{name}"] = spread["tuned"].median_s / found.median_s
    return values


def _remote_disagreement(
    network: Network, tuned: Agreement, untuned: Agreement, folder: WorkFolder
) -> TuneError:
    """Say which of the two a device computes wrongly; its programs are not compared with their tasks one by one."""
    told = (
        f"network {network.name!r}: on the device its output differs from that of {network.computed_by} by "
        f"{tuned.max_rel:.2e} of its largest value ({TOLERANCE:g} is accepted)."
    )
    if untuned.differs:
        return TuneError(
            f"{told} With TVM's default schedules it differs by {untuned.max_rel:.2e}, too: the import is at fault, or "
            "the device, or hardware.target names another processor than the device's. Look at these first"
        )
    return TuneError(
        f"{told} With TVM's default schedules it agrees: a program in {folder.path} computes something else than its "
        "task. Which one is found by the same command on the device itself: hardware.runner=local"
    )


def _disagreement(
    network: Network,
    tuned: Agreement,
    untuned: Agreement,
    hardware: HardwareConfig,
    tasks: Sequence[NetworkTask],
    folder: WorkFolder,
    options: MeasureOptions,
) -> TuneError:
    """Find out why the tuned network computes something else than it should; wrong programs are marked as failed."""
    told = (
        f"network {network.name!r}: the tuned network's output differs from that of {network.computed_by} by "
        f"{tuned.max_abs:.2e} ({tuned.max_rel:.2e} of its largest value; {TOLERANCE:g} is accepted)."
    )
    cores = cpus_of(hardware)
    pool = WorkerPool(
        options,
        cores,
        CpuPlan.choose(cores, name=hardware.name),
        folder.logs / "worker.log",
        target_kind=str(hardware.target["kind"]),
    )
    try:
        wrong = wrong_programs(folder.path, by_workload(tasks), pool)
    finally:
        pool.close()
    if wrong:
        mark_failed(folder.path, wrong)
        return TuneError(
            f"{told} These programs compute something else than their tasks: "
            f"{'; '.join(map(str, wrong))}. They are marked as failed in {folder.path} now: run the same command "
            "again, which takes the next best ones."
        )
    if untuned.differs:
        return TuneError(
            f"{told} Each task's best program computes what its task does, and the untuned network differs by "
            f"{untuned.max_rel:.2e}, too: the import is at fault, not the tuning. Look at network.output and "
            "network.inputs, and at the operators that TVM imports."
        )
    ruled = Deployed(compile_network(network, hardware.target, None, by_rule=True), network)
    if worst(compare_outputs(network, on_cores(hardware, ruled.outputs))).differs:
        return TuneError(
            f"{told} Each task's best program computes what its task does, and TVM's default schedules agree with "
            f"{network.computed_by}: the functions that are scheduled by rule do not. Please report the network."
        )
    return TuneError(
        f"{told} Each task's best program computes what its task does, and the untuned network agrees with "
        f"{network.computed_by}: the difference arises where TVM puts them together. Compile the network without the "
        f"database (relax.get_pipeline), and report the database in {folder.path} to TVM."
    )
