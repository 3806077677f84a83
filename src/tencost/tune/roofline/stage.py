"""`tencost evaluate roofline`: the best programs of a tuned network against what its hardware can do."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from tencost.config import Config, HardwareConfig
from tencost.errors import ProfileError
from tencost.records.counters.stored import load_profiles
from tencost.tune.roofline.report import plot, print_table, summary, write_csv
from tencost.tune.roofline.roofline import (
    Placed,
    Roofs,
    Task,
    Work,
    by_gain,
    counted_bytes,
    roofs_of,
    work_of,
)
from tencost.tune.roofline.run_files import run_files

RECORD_FILE, WORKLOAD_FILE = "database_tuning_record.json", "database_workload.json"
SESSION_FILE = "session.json"
FAILED_S = 1e9
"""TVM writes a larger time for a program that failed."""


@dataclass(frozen=True)
class Best:
    """A workload's best program: its latency, where it is from, its id as a record; empty where it has none."""

    latency_s: float
    program: str
    record_id: str = ""


@dataclass(frozen=True)
class Source:
    """Best programs by workload id, and where they were found."""

    best: Mapping[str, Best]
    told: str
    others: Sequence[Task] = ()
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
    from tencost.networks.network import load_network, variant_name
    from tencost.programs.trace.intrinsics import register_cpu_intrinsics
    from tencost.store.ids import workload_id
    from tencost.workers.hardware import resolve_hardware

    console = Console()
    hardware = resolve_hardware(cfg.hardware)
    name = variant_name(cfg.network)
    roofs = _roofs(hardware, memory_gbs) if measured else roofs_of(hardware, memory_gbs)
    counted = {} if profiles is None else counted_bytes(load_profiles(profiles).profiles)
    register_cpu_intrinsics()
    network = load_network(cfg.network, root)

    from tvm.ir import save_json

    own = {
        workload_id(str(save_json(task.mod))): task for task in network.tasks(hardware.target, 0.0)
    }
    found = _source(cfg, root, name, hardware, run, store=store, own=set(own))
    tasks = [
        task_of(
            task.name, task.weight, work_of(task.mod, task.flop), found.best.get(identity), counted
        )
        for identity, task in own.items()
    ]
    tasks += found.others
    placed = by_gain(tasks, roofs)
    if not placed:
        raise ProfileError(
            f"expected programs of {name}'s {len(own)} tasks, found none in {found.told}: it is of another network, or "
            f"of another TVM. Tune it: tencost tune network={name} hardware={hardware.name}"
        )
    folder = to or root / cfg.paths.reports / "roofline" / f"{name}-{hardware.name}"
    title = f"{name} on {hardware.name}"
    left = [task for task in tasks if task.latency_s is None]
    write_csv(folder / "roofline.csv", placed)
    drawn = plot(placed, roofs, folder / "roofline.png", title)
    print_table(placed, left, roofs, title, found.told, console)
    if not drawn:
        console.print("no plot: it needs matplotlib, which is not installed", style="yellow")
    console.print(f"written to {folder}", markup=False, highlight=False, soft_wrap=True)
    if measured:
        hardware = as_measured(hardware, roofs)
    _track(cfg, root, hardware, name, folder, placed, found.told, roofs.told)
    return placed


def as_measured(hardware: HardwareConfig, roofs: Roofs) -> HardwareConfig:
    """Return a hardware of one core with the peak and the nearest cache's bandwidth that were measured on it."""
    return replace(
        hardware,
        peak_gflops=None if roofs.flops is None else round(roofs.flops / 1e9, 1),
        bandwidth_gbs=round(roofs.levels[0].bandwidth / 1e9, 1) if roofs.levels else None,
    )


def task_of(
    name: str, weight: float, work: Work, best: Best | None, counted: Mapping[str, float]
) -> Task:
    """Return a task with its best program, whose bytes are the counted ones where they are among them.

    Args:
        name: of the task.
        weight: how often the network calls it.
        work: what it has to do.
        best: its best program.
        counted: bytes by record id.
    """
    if best is None:
        return Task(name, weight, work, None)
    if best.record_id in counted:
        work = replace(work, traffic=counted[best.record_id], measured=True)
    return Task(name, weight, work, best.latency_s, best.program)


def _roofs(hardware: HardwareConfig, memory_gbs: float | None) -> Roofs:
    from tencost.tune.roofline.host_roofs import measure_roofs
    from tencost.workers.hardware import check_runnable

    if memory_gbs is not None:
        raise ProfileError("expected one of --measured and --memory-gbs, found both")
    check_runnable(hardware)
    return measure_roofs(hardware)


def _source(
    cfg: Config,
    root: Path,
    name: str,
    hardware: HardwareConfig,
    run: str | None,
    *,
    store: bool,
    own: set[str],
) -> Source:
    folder = root / cfg.tuner.workdir / f"{name}-{hardware.name}"
    if run is None and not store and (folder / RECORD_FILE).exists():
        run = str(folder)
    if run is None:
        return of_store(cfg.paths.live_store(root), name, hardware, own)
    with run_files(run, (RECORD_FILE, WORKLOAD_FILE, SESSION_FILE), root) as files:
        return Source(of_folder(files, run, hardware), run)


def of_folder(folder: Path, name: str, hardware: HardwareConfig) -> dict[str, Best]:
    """Return the best programs of a work folder, what is not tuned among them, by workload id.

    Raises:
        ProfileError: there is no database, or it is of other hardware.
    """
    from tencost.records.formats.metaschedule import Reject, read_programs, read_workloads
    from tencost.store.ids import program_id, record_id

    if not (folder / RECORD_FILE).exists() or not (folder / WORKLOAD_FILE).exists():
        raise ProfileError(
            f"run {name}: expected {WORKLOAD_FILE} and {RECORD_FILE}, found no such pair. Name the folder that "
            "`tencost tune` printed as database, or the id of a run that ended."
        )
    best: dict[str, Best] = {}

    for workload, seconds, what in _untuned(folder / SESSION_FILE, name, hardware):
        if workload not in best or seconds < best[workload].latency_s:
            best[workload] = Best(seconds, what)
    workloads, _ = read_workloads(folder / WORKLOAD_FILE)
    for program in read_programs(folder / RECORD_FILE, workloads):
        if not isinstance(program, Reject) and program.run_secs:
            workload, seconds = program.workload.workload_id, statistics.median(program.run_secs)
            known = best[workload].latency_s if workload in best else FAILED_S
            if 0 < seconds < known:
                identity = program_id(workload, program.target["kind"], program.trace)
                own = record_id(identity, program.target, hardware.name)
                best[workload] = Best(seconds, "tuned", own)
    return best


def _untuned(file: Path, name: str, hardware: HardwareConfig) -> Iterator[tuple[str, float, str]]:
    """Yield (workload id, seconds, what) of a session's default schedules and those by rule; none without a session."""
    if not file.exists():
        return
    try:
        session = json.loads(file.read_text(encoding="utf-8"))
        there = str(session["hardware"])
        kinds = {"default schedule": session["baseline_s"], "by rule": session.get("rule_s", {})}
        known = [
            (str(key), float(value), what)
            for what, times in kinds.items()
            for key, value in times.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProfileError(
            f"run {name}: expected {SESSION_FILE} of a tuning run, found something else ({error})."
        ) from error
    if there != hardware.name:
        raise ProfileError(
            f"run {name}: expected programs measured on {hardware.name}, found those of {there}. hardware={there}"
        )
    yield from known


def of_store(uri: str, network: str, hardware: HardwareConfig, own: set[str]) -> Source:
    """Return the best programs that a record store has for the hardware's target.

    Args:
        uri: of the store.
        network: whose tasks are looked for, too, under workloads that it does not have today.
        hardware: what they were measured on.
        own: ids of the workloads that the network has today.

    Raises:
        ProfileError: there is no store, or nothing of this hardware in it.
    """
    from tencost.errors import RecordError
    from tencost.records.query import best
    from tencost.register.start_records import as_recorded
    from tencost.store.record_store import RecordStore

    store = RecordStore(uri)
    target = as_recorded(hardware.target)
    try:
        rows = best(store, hardware=hardware.name, target=target, columns=("networks",)).to_dicts()
    except RecordError as error:
        raise ProfileError(
            f"expected programs of {network} on {hardware.name} in the live store or in a work folder, found none: "
            f"{error}"
        ) from error
    found, others = {}, []
    for row in rows:
        seconds = float(row["latency_s"])
        weights = [item["weight"] for item in row["networks"] or () if item["network"] == network]
        if row["workload_id"] in own:
            found[row["workload_id"]] = Best(seconds, "stored", row["record_id"])
        elif weights:
            others.append((row["workload_id"], row["task_name"], float(weights[0]), seconds))
    works = _works(uri, {workload for workload, *_ in others}) if others else {}
    unknown = Work(None, None)
    return Source(
        found,
        uri,
        [
            Task(name, weight, works.get(workload, unknown), seconds, "stored")
            for workload, name, weight, seconds in others
        ],
    )


def _works(uri: str, wanted: set[str]) -> dict[str, Work]:
    """Return what workloads have to do whose modules stand beside a store, by id; of others nothing is known."""
    from tvm.ir import load_json

    from tencost.errors import UntrustedError
    from tencost.programs.trace.allowed import check_module
    from tencost.store.modules import read_modules

    works = {}
    for row in read_modules(uri).to_dicts():
        if row["workload_id"] in wanted:
            try:
                check_module(row["mod_json"], f"{uri}, workload {row['workload_id']}")
                works[row["workload_id"]] = work_of(load_json(row["mod_json"]))
            except (UntrustedError, ValueError, RuntimeError, KeyError):
                continue  # a module of another TVM
    return works


def _track(
    cfg: Config,
    root: Path,
    hardware: HardwareConfig,
    name: str,
    folder: Path,
    placed: Sequence[Placed],
    source: str,
    roofs: str,
) -> None:
    from tencost.tracking.runs import flatten, start_run

    parameters = {"programs": source, "roofs": roofs}
    flatten("network", asdict(cfg.network), parameters)
    flatten("hardware", asdict(hardware), parameters)
    with start_run(
        replace(cfg, hardware=hardware),
        root,
        stage="evaluate roofline",
        name=f"roofline · {name}-{hardware.name}",
        tags={"network": cfg.network.name, "hardware": hardware.name, "dataset": "none"},
        parameters=parameters,
    ) as tracked:
        tracked.log_metrics(summary(placed))
        for file in (folder / "roofline.csv", folder / "roofline.png"):
            if file.exists():
                tracked.log_artifact(file)
