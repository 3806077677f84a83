"""After tuning: the network compared with PyTorch, timed with each database, and what is at fault if it is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tencost.config import HardwareConfig
from tencost.errors import TuneError
from tencost.measure.run import cpus_of
from tencost.networks.network import Network
from tencost.tune.breakdown import break_down, task_programs
from tencost.tune.deploy import (
    MAX_TIMING_S,
    TOLERANCE,
    Agreement,
    Deployed,
    compare_outputs,
    compile_network,
    meaningless,
    on_cores,
    spread_of,
    times_in_turn,
    worst,
)
from tencost.tune.network_record import TIMES
from tencost.tune.session import Session
from tencost.tune.suspects import mark_failed, wrong_programs
from tencost.tune.workfolder import WorkFolder
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.pool import CpuPlan, WorkerPool


def verify(
    network: Network,
    hardware: HardwareConfig,
    untuned: Any,
    databases: Mapping[str, Any],
    session: Session,
    folder: WorkFolder,
    options: MeasureOptions,
) -> dict[str, Any]:
    """Compile the network with each database, compare the tuned output with PyTorch's, time all and the tasks in turn.

    Args:
        network: the network.
        hardware: what it is compiled for.
        untuned: its executable with default schedules.
        databases: by name: "tuned" and any others that are compared.
        session: that tuned it.
        folder: of the tuned database.
        options: how programs are timed, where the best ones have to be looked at.

    Returns:
        Rows of the report.

    Raises:
        TuneError: the outputs differ.
    """
    with on_cores(hardware.cores):
        executables = {
            name: compile_network(network, hardware.target, database)
            for name, database in databases.items()
        }
        executables["default"] = untuned
        deployed = {name: Deployed(built, network) for name, built in executables.items()}
        agreements = compare_outputs(network, deployed["tuned"].outputs())
        agreement = worst(agreements)
        if agreement.differs:
            before = worst(compare_outputs(network, deployed["default"].outputs()))
        else:
            tasks = dict(zip(session.ids, session.tasks, strict=True))
            programs = task_programs(tasks, databases["tuned"], hardware.target)
            times = times_in_turn({**deployed, **programs}, MAX_TIMING_S * (len(deployed) + 1))
    if agreement.differs:
        raise _disagreement(network, agreement, before, hardware, session, folder, options)
    spread = {name: spread_of(times[name]) for name in deployed}
    parts = break_down(times["tuned"], tasks, times, session.latency_s)
    values: dict[str, Any] = {
        "outputs_that_say_nothing": meaningless(network),
        "network_turns": spread["tuned"].repeats,
        TIMES: {name: times[name] for name in deployed},
        **parts.report(),
    }
    telling = {name: one for name, one in agreements.items() if one.accepted}
    if telling:
        values |= {"max_abs_error": worst(telling).max_abs, "max_rel_error": worst(telling).max_rel}
    for name, found in spread.items():
        key = "network_latency" if name == "tuned" else f"network_{name}_latency"
        values |= {
            f"{key}_s": found.median_s,
            f"{key}_q1_s": found.lower_s,
            f"{key}_q3_s": found.upper_s,
        }
        if name != "tuned":
            ratio = "network_speedup" if name == "default" else f"network_{name}_ratio"
            values[ratio] = found.median_s / spread["tuned"].median_s
    return values


def _disagreement(
    network: Network,
    tuned: Agreement,
    untuned: Agreement,
    hardware: HardwareConfig,
    session: Session,
    folder: WorkFolder,
    options: MeasureOptions,
) -> TuneError:
    """Find out why the tuned network computes something else than PyTorch; wrong programs are marked as failed."""
    told = (
        f"network {network.name!r}: the tuned network's output differs from PyTorch's by {tuned.max_abs:.2e} "
        f"({tuned.max_rel:.2e} of its largest value; {TOLERANCE:g} is accepted)."
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
        tasks = dict(zip(session.ids, session.tasks, strict=True))
        wrong = wrong_programs(folder.path, tasks, pool)
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
    return TuneError(
        f"{told} Each task's best program computes what its task does, and the untuned network agrees with PyTorch: "
        "the difference arises where TVM puts them together. Compile the network without the database "
        f"(relax.get_pipeline), and report the database in {folder.path} to TVM."
    )
