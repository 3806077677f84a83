"""`tencost evaluate roofline`: the best programs of a tuned network against what its hardware can do."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from tvm.ir import load_json

from tencost.config import Config, HardwareConfig
from tencost.errors import ProfileError, RecordError, UntrustedError
from tencost.measure.collection import logged_programs
from tencost.networks.network import load_network, variant_name
from tencost.programs.trace.allowed import check_module
from tencost.programs.trace.intrinsics import register_cpu_intrinsics
from tencost.records.counters.stored import load_profiles
from tencost.records.formats.metaschedule import RECORD_FILE, WORKLOAD_FILE
from tencost.store.ids import program_id, record_id
from tencost.tune.recording import by_workload
from tencost.tune.reporting import print_note, say
from tencost.tune.roofline.host_roofs import measure_roofs
from tencost.tune.roofline.report import (
    plot_roofline,
    print_table,
    roofline_summary,
    write_roofline_csv,
)
from tencost.tune.roofline.roofline import (
    Placed,
    RooflineTask,
    Roofs,
    Work,
    by_gain,
    counted_bytes,
    roofs_of,
    work_of,
)
from tencost.tune.roofline.run_files import run_files
from tencost.tune.workfolder import SESSION_FILE, untuned_times
from tencost.workers.hardware import check_runnable, resolve_hardware

FAILED_S = 1e9
"""TVM writes a larger time for a program that failed."""


@dataclass(frozen=True)
class BestProgram:
    """A workload's best program: its latency, where it is from, its id as a record; empty where it has none."""

    latency_s: float
    program: str
    record_id: str = ""


@dataclass(frozen=True)
class ProgramSource:
    """Best programs by workload id, and where they are from."""

    best: Mapping[str, BestProgram]
    place: str
    others: Sequence[RooflineTask] = ()
    """Tasks that a store has for the network under workloads that it does not have today."""


def run(
    cfg: Config,
    root: Path,
    *,
    run: str | None = None,
    store: bool = False,
    measured: bool = False,
    memory_gbs: float | None = None,
    profiles: Path | None = None,
    to: Path | None = None,
) -> list[Placed]:
    """Place the best program of each task of cfg.network against the roofs of cfg.hardware.

    Args:
        cfg: the configuration.
        root: the project's root.
        run: work folder of a tuning run, or the id of its MLflow run; None: the network's own work folder where it has
            been tuned, else the live store.
        store: look into the live store although the network has a work folder.
        measured: measure this host's roofs instead of reading the hardware's description.
        memory_gbs: bandwidth of the device's memory, see :func:`tencost.tune.roofline.roofline.roofs_of`.
        profiles: counters of the programs, as `tencost profiles import` writes them: what went through the device's
            memory counts instead of compulsory traffic.
        to: the folder that gets roofline.csv and roofline.png.

    Raises:
        ProfileError: no program of the network was measured on the hardware, or no roof is known.
        HardwareError: roofs of other hardware cannot be measured here.
    """
    console = Console()
    hardware = resolve_hardware(cfg.hardware)
    name = variant_name(cfg.network)
    roofs = _measured_roofs(hardware, memory_gbs) if measured else roofs_of(hardware, memory_gbs)
    counted = {} if profiles is None else counted_bytes(load_profiles(profiles).profiles)
    register_cpu_intrinsics()
    network = load_network(cfg.network, root, target=hardware.target)
    workloads = by_workload(network.tasks(hardware.target, 0.0))
    folder = root / cfg.tuner.workdir / f"{name}-{hardware.name}"
    if run is None and not store and (folder / RECORD_FILE).exists():
        run = str(folder)
    if run is None:
        source = _of_store(cfg.paths.live_store(root), name, hardware, set(workloads))
    else:
        with run_files(run, (RECORD_FILE, WORKLOAD_FILE, SESSION_FILE), root) as files:
            source = ProgramSource(_of_folder(files, run, hardware), run)
    tasks = []
    for identity, task in workloads.items():
        work, best = work_of(task.mod, task.flop), source.best.get(identity)
        if best is None:
            tasks.append(RooflineTask(task.name, task.weight, work, None))
            continue
        if best.record_id in counted:
            work = replace(work, traffic=counted[best.record_id], measured=True)
        tasks.append(RooflineTask(task.name, task.weight, work, best.latency_s, best.program))
    tasks += source.others
    placed = by_gain(tasks, roofs)
    if not placed:
        raise ProfileError(
            f"expected programs of {name}'s {len(workloads)} tasks, found none in {source.place}: it is of another "
            f"network, or of another TVM. Tune it: tencost tune network={name} hardware={hardware.name}"
        )
    folder = to or root / cfg.paths.reports / "roofline" / f"{name}-{hardware.name}"
    title = f"{name} on {hardware.name}"
    unmeasured = [task for task in tasks if task.latency_s is None]
    write_roofline_csv(folder / "roofline.csv", placed)
    drawn = plot_roofline(placed, roofs, folder / "roofline.png", title)
    print_table(placed, unmeasured, roofs, title, source.place, console)
    if not drawn:
        print_note(console, "no plot: it needs matplotlib, which is not installed")
    say(console, f"written to {folder}")
    if measured:  # one core's, with the bandwidth of its nearest cache
        peak_gflops = None if roofs.flops is None else round(roofs.flops / 1e9, 1)
        bandwidth_gbs = round(roofs.levels[0].bandwidth / 1e9, 1) if roofs.levels else None
        hardware = replace(hardware, peak_gflops=peak_gflops, bandwidth_gbs=bandwidth_gbs)
    _track(replace(cfg, hardware=hardware), root, name, folder, placed, source.place, roofs.source)
    return placed


def _measured_roofs(hardware: HardwareConfig, memory_gbs: float | None) -> Roofs:
    if memory_gbs is not None:
        raise ProfileError("expected one of --measured and --memory-gbs, found both")
    check_runnable(hardware)
    return measure_roofs(hardware)


def _of_folder(folder: Path, name: str, hardware: HardwareConfig) -> dict[str, BestProgram]:
    """Return the best programs of a work folder, those that are not tuned among them, by workload id.

    Raises:
        ProfileError: there is no database, or it is of other hardware.
    """
    if not (folder / RECORD_FILE).exists() or not (folder / WORKLOAD_FILE).exists():
        raise ProfileError(
            f"run {name}: expected {WORKLOAD_FILE} and {RECORD_FILE}, found no such pair. Name the folder that "
            "`tencost tune` printed as database, or the id of a run that ended."
        )
    best = _untuned(folder / SESSION_FILE, name, hardware)
    for program in logged_programs(folder):
        if not program.run_secs:
            continue
        workload, seconds = program.workload.workload_id, statistics.median(program.run_secs)
        if 0 < seconds < (best[workload].latency_s if workload in best else FAILED_S):
            identity = program_id(workload, program.target["kind"], program.trace)
            record = record_id(identity, program.target, hardware.name)
            best[workload] = BestProgram(seconds, "tuned", record)
    return best


def _untuned(file: Path, name: str, hardware: HardwareConfig) -> dict[str, BestProgram]:
    """Return what a session's workloads take untuned, by workload id; none without a session."""
    best: dict[str, BestProgram] = {}
    if not file.exists():
        return best
    try:
        session = json.loads(file.read_text(encoding="utf-8"))
        measured_on = str(session["hardware"])
        for workload, seconds in untuned_times(session).items():
            if seconds < FAILED_S:
                best[workload] = BestProgram(seconds, "untuned")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ProfileError(
            f"run {name}: expected {SESSION_FILE} of a tuning run, found something else ({error})."
        ) from error
    if measured_on != hardware.name:
        raise ProfileError(
            f"run {name}: expected programs measured on {hardware.name}, found those of {measured_on}. "
            f"hardware={measured_on}"
        )
    return best


def _of_store(
    uri: str, network: str, hardware: HardwareConfig, workloads: set[str]
) -> ProgramSource:
    """Return the best programs that a record store has for the hardware's target.

    Args:
        uri: of the store.
        network: whose tasks are looked for, too, under workloads that it does not have today.
        hardware: what they were measured on.
        workloads: ids of the workloads that the network has today.

    Raises:
        ProfileError: there is no store, or nothing of this hardware in it.
    """
    from tencost.records.query import best as best_rows
    from tencost.register.start_records import as_recorded
    from tencost.store.record_store import RecordStore

    target = as_recorded(hardware.target)
    try:
        rows = best_rows(
            RecordStore(uri), hardware=hardware.name, target=target, columns=("networks",)
        ).to_dicts()
    except RecordError as error:
        raise ProfileError(
            f"expected programs of {network} on {hardware.name} in the live store or in a work folder, found none: "
            f"{error}"
        ) from error
    best = {
        row["workload_id"]: BestProgram(float(row["latency_s"]), "stored", row["record_id"])
        for row in rows
        if row["workload_id"] in workloads
    }
    weights = {
        row["workload_id"]: float(use["weight"])
        for row in rows
        for use in reversed(row["networks"] or ())
        if use["network"] == network and row["workload_id"] not in workloads
    }
    works = _works(uri, set(weights)) if weights else {}
    others = [
        RooflineTask(
            row["task_name"],
            weights[row["workload_id"]],
            works.get(row["workload_id"], Work(None, None)),
            float(row["latency_s"]),
            "stored",
        )
        for row in rows
        if row["workload_id"] in weights
    ]
    return ProgramSource(best, uri, others)


def _works(uri: str, workloads: set[str]) -> dict[str, Work]:
    """Return what workloads have to do whose modules stand beside a store, by id; of others nothing is known."""
    from tencost.store.modules import stored_modules

    works = {}
    for row in stored_modules(uri).to_dicts():
        if row["workload_id"] in workloads:
            try:
                check_module(row["mod_json"], f"{uri}, workload {row['workload_id']}")
                works[row["workload_id"]] = work_of(load_json(row["mod_json"]))
            except (UntrustedError, ValueError, RuntimeError, KeyError):
                continue  # a module of another TVM
    return works


def _track(
    cfg: Config,
    root: Path,
    name: str,
    folder: Path,
    placed: Sequence[Placed],
    source: str,
    roofs: str,
) -> None:
    from tencost.tracking.runs import flatten, start_run

    hardware = cfg.hardware
    parameters = {"programs": source, "roofs": roofs}
    flatten("network", asdict(cfg.network), parameters)
    flatten("hardware", asdict(hardware), parameters)
    with start_run(
        cfg,
        root,
        stage="evaluate roofline",
        name=f"roofline · {name}-{hardware.name}",
        tags={"network": cfg.network.name, "hardware": hardware.name, "dataset": "none"},
        parameters=parameters,
    ) as tracked:
        tracked.log_metrics(roofline_summary(placed))
        for file in (folder / "roofline.csv", folder / "roofline.png"):
            if file.exists():
                tracked.log_artifact(file)
