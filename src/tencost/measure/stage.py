"""Stage measure: networks -> tasks -> programs -> measurements, a raw dataset that the pipeline takes.

`tencost measure networks | programs | run | pack`; each continues where it was stopped.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tencost.config import Config, HardwareConfig, NetworkConfig, RunnerKind
from tencost.errors import MeasureError, TencostError
from tencost.measure.collection import CollectedTask, Collection, disk_error
from tencost.programs.native_messages import native_messages_to
from tencost.workers.hardware import check_described, check_device, check_target, resolve_hardware
from tencost.writing import shown_path

if TYPE_CHECKING:
    from tencost.measure.run import Block, MeasuringProgress
    from tencost.workers.pool import CpuPlan

SAY_EVERY_S = 60.0
"""How often progress is printed where there is no terminal to show a bar."""


def collect_networks(
    cfg: Config, root: Path, *, listed: bool = False, dry_run: bool = False
) -> Path:
    """Import cfg.network and write its module and tasks into the collection; return the collection's folder.

    Args:
        cfg: `network`, or `measure.networks`; `measure` names the collection.
        root: the project's root.
        listed: import all networks of cfg.measure.networks instead, but for those that the collection has.
        dry_run: only print the networks with the shapes of their inputs.

    Raises:
        ConfigError: the network's definition does not fit.
        MeasureError: it cannot be imported, or the disk is full. Of a list the others are imported first.
    """
    from tencost.measure.network_list import listed_networks
    from tencost.networks.network import variant_name

    collection = collection_of(cfg, root)
    definitions = list(listed_networks(cfg.measure.networks)) if listed else [cfg.network]
    if dry_run:
        for definition in definitions:
            shapes = (f"{name} {item.shape}" for name, item in definition.inputs.items())
            sys.stdout.write(f"{variant_name(definition)}: {', '.join(shapes)}\n")
        return collection.path
    if not listed:
        _import_network(cfg, cfg.network, collection, root)
        return collection.path
    present, refused = set(collection.networks()), []
    if skipped := sorted(present & {variant_name(definition) for definition in definitions}):
        Console(stderr=True).print(
            f"{len(skipped)} networks of the list are in the collection by name and stay as they were imported: "
            f"{', '.join(skipped[:8])}{', ...' if len(skipped) > 8 else ''}. Where their settings have changed since: "
            "tencost measure networks network=<name>"
        )
    for definition in definitions:
        if variant_name(definition) in present:
            continue
        try:
            _import_network(cfg, definition, collection, root)
        except TencostError as error:
            refused.append(f"{variant_name(definition)}: {error}")
    if refused:
        raise MeasureError(
            f"expected networks that can be imported, found {len(refused)} that cannot; all others of the list are in "
            f"{shown_path(collection.path, root)}.\n" + "\n".join(refused)
        )
    return collection.path


def _import_network(
    cfg: Config, definition: NetworkConfig, collection: Collection, root: Path
) -> None:
    from tvm.ir import save_json

    from tencost.networks.network import load_network
    from tencost.programs.trace.intrinsics import register_intrinsics
    from tencost.store.ids import workload_id

    hardware = resolve_hardware(cfg.hardware)
    with (
        collection.locked("networks and programs"),
        _quiet_tvm(collection.path / ".locks" / "tvm.log") as console,
    ):
        started = time.monotonic()
        register_intrinsics(hardware.target["kind"])
        network = load_network(definition, root, target=hardware.target)
        by_workload: dict[str, dict[str, Any]] = {}
        for task in network.tasks(hardware.target):
            text = str(save_json(task.mod))
            identity = workload_id(text)
            fields = {"task_name": task.name, "weight": 0, "flop": task.flop}
            fields |= {"workload_id": identity, "mod": text}
            by_workload.setdefault(identity, fields)["weight"] += task.weight
        tasks = list(by_workload.values())
        collection.add_network(network.name, str(save_json(network.mod)), tasks)
        chosen = [task for task in tasks if task["flop"] >= cfg.measure.min_mflop * 1e6]
        work = sum(task["flop"] * task["weight"] for task in tasks)
        share = sum(task["flop"] * task["weight"] for task in chosen) / max(work, 1.0)
        console.print(
            f"{network.name}: {len(tasks)} tasks, {len(chosen)} of them with at least {cfg.measure.min_mflop} MFLOP "
            f"({share:.1%} of {work / 1e9:.2f} GFLOP), {time.monotonic() - started:.1f} s. "
            f"{len(collection.networks())} networks in {shown_path(collection.path, root)}"
        )


def programs(cfg: Config, root: Path) -> Path:
    """Make programs for every task of the collection, cfg.measure.programs each; return the collection's folder.

    Tasks that have enough are left as they are; others get more. A killed run loses the task that it was at.

    Raises:
        MeasureError: there are no networks, no task has a program, or the disk is full.
    """
    from tencost.measure.drawing import drawn, needs_programs

    collection = collection_of(cfg, root)
    hardware = resolve_hardware(cfg.hardware)
    check_target(hardware)
    settings = cfg.measure
    with (
        collection.locked("networks and programs"),
        _quiet_tvm(collection.path / ".locks" / "tvm.log") as console,
    ):
        tasks = collection.tasks(settings.min_mflop)
        todo = [task for task in tasks if needs_programs(settings, collection.origin(task))]
        num_new, exhausted, refused, started = 0, [], [], time.monotonic()

        def state(task: CollectedTask) -> str:
            return f"{num_new / max(time.monotonic() - started, 1e-9):.0f} programs/s | {task.task_name[:32]}"

        with progress_bar(console) as bars:
            bar = bars.add_task("programs", total=len(tasks), state=state(todo[0]) if todo else "")
            bars.update(bar, completed=len(tasks) - len(todo))
            new_programs = drawn(cfg, hardware, collection, todo, root, console)
            for task, new in zip(todo, new_programs, strict=True):
                if new.refused:
                    refused.append(
                        f"{task.task_name} of {', '.join(task.networks)} ({new.refused})"
                    )
                else:
                    lines = [*collection.program_lines(task), *new.lines]
                    collection.write_programs(task, new.shash, lines, new.origin)
                    num_new += len(new.lines)
                    if new.origin.exhausted:
                        exhausted.append(f"{task.task_name} ({len(new.origin.origins)})")
                bars.update(bar, advance=1, state=state(task))
            bars.update(bar, completed=len(tasks), state="")
        collection.write_index()
        total = sum(len(collection.programs(task)) for task in tasks)
        told = (
            f"{len(refused)} tasks have no program, TVM's rules refuse them for {hardware.name}: "
            f"{'; '.join(refused[:8])}{'; ...' if len(refused) > 8 else ''}"
        )
        if refused and not total:
            raise MeasureError(f"{told}. Add networks with others: tencost measure networks")
        console.print(
            f"{num_new} new programs, {total} in all for {len(tasks)} tasks, "
            f"{num_new / max(time.monotonic() - started, 1e-9):.0f} a second. Measure them: tencost measure run "
            f"hardware={hardware.name} measure.name={cfg.measure.name}"
        )
        if refused:
            console.print(told)
        if exhausted:
            console.print(
                f"{len(exhausted)} tasks have fewer, their design space is used up: {', '.join(exhausted[:8])}"
                f"{', ...' if len(exhausted) > 8 else ''}"
            )
    return collection.path


def run(cfg: Config, root: Path) -> Path:
    """Measure all programs of the collection on cfg.hardware; return the collection's folder.

    Raises:
        HardwareError: its programs would crash on this host, or its devices cannot be reached.
        MeasureError: nothing to measure, no worker, or a full disk.
    """
    from tencost.measure.run import plan_measurements

    console = Console(stderr=True)
    collection = collection_of(cfg, root)
    hardware = resolve_hardware(cfg.hardware)
    if hardware.runner is RunnerKind.local:
        check_device(hardware)
        check_described(hardware)
    else:
        check_target(hardware)
    shard = cfg.measure.shard_of()
    with collection.locked(_lock_name(hardware, shard)):
        tasks = collection.tasks(cfg.measure.min_mflop)
        blocks = plan_measurements(collection, tasks, hardware, shard)
        if blocks:
            _measure(cfg, root, hardware, collection, blocks, console)
        else:
            console.print(f"{hardware.name}: every program has been measured")
    _into_store(collection, hardware, cfg, root, console)
    if cfg.measure.pack and shard == (0, 1):
        pack(cfg, root)
    return collection.path


def _measure(
    cfg: Config,
    root: Path,
    hardware: HardwareConfig,
    collection: Collection,
    blocks: list[Block],
    console: Console,
) -> None:
    """Measure blocks in a session; after Ctrl-C what was measured is in the store."""
    from tencost.measure.host_state import collect
    from tencost.measure.run import (
        MeasuringProgress,
        MeasuringSession,
        cpu_plan,
        measure_blocks,
        timing_options,
    )

    cpus, shard = cpu_plan(hardware, cfg.measure), cfg.measure.shard_of()
    flags = _flags(cpus, console)
    settings = {**timing_options(cfg.measure, hardware).settings(), "overlap": cpus.overlaps}
    about = collect(hardware, settings, cpus.run)
    about["additional_info"]["flags"] = flags
    session = MeasuringSession(collection.path / "measure_records" / hardware.name, shard, about)
    count = sum(len(block.programs) for block in blocks)
    progress, printed = MeasuringProgress(count), time.monotonic()
    with progress_bar(console) as bars:
        bar = bars.add_task(hardware.name, total=count, state="starting")

        def on_progress(progress: MeasuringProgress) -> None:
            nonlocal printed
            bars.update(bar, completed=progress.num_measured, state=_state(progress))
            if not console.is_terminal and time.monotonic() - printed > SAY_EVERY_S:
                printed = time.monotonic()
                console.print(f"{progress.num_measured} of {count} | {_state(progress)}")

        try:
            measure_blocks(
                collection, blocks, hardware, cfg.measure, session, progress, on_progress
            )
        except KeyboardInterrupt:
            bars.stop()
            _into_store(collection, hardware, cfg, root, console)
            raise
        finally:
            session.end(progress, flags + _noise_flags(progress))
    failures = ", ".join(f"{count} {name}" for name, count in progress.failures.items())
    table = Table(title=f"measured on {hardware.name}", show_header=False)
    table.add_row("programs", f"{progress.num_measured} at {progress.per_second:.1f} a second")
    table.add_row("failures", failures or "none")
    if progress.noise:
        noise = f"{progress.noise_median:.3f} median, {max(progress.noise):.2f} most"
        table.add_row("noise", noise)
    console.print(table)


def pack(cfg: Config, root: Path) -> Path:
    """Pack the collection as datasets/<name>.tar.zst with conf/dataset/<name>.yaml; return the archive."""
    from tencost.measure.packing import pack_collection

    return pack_collection(collection_of(cfg, root), root, Console(stderr=True))


def collection_of(cfg: Config, root: Path) -> Collection:
    """Return the collection that cfg.measure names."""
    return Collection(root / cfg.measure.workdir / cfg.measure.name)


def _into_store(
    collection: Collection, hardware: HardwareConfig, cfg: Config, root: Path, console: Console
) -> None:
    """Bring what was measured on a hardware into the live record store; what is there already stays one row."""
    from tencost.records.databases import import_dataset
    from tencost.records.door import admit
    from tencost.store.record_store import RecordStore
    from tencost.store.schema import to_arrow

    imported = import_dataset(collection.path, collection.name)
    records = [record for record in imported.records if record.hardware == hardware.name]
    place = cfg.paths.live_store(root)
    try:
        rejects = root / "data" / "rejects"
        added, rejected = admit(RecordStore(place), to_arrow(records), rejects, collection.name)
    except OSError as error:
        raise disk_error(Path(place), error) from error
    store = place if "://" in place else shown_path(Path(place), root)
    console.print(f"{added.records + added.again} new records in the store ({store})")
    if rejected is not None:
        console.print(f"kept apart, with the reasons beside it: {rejected}", style="yellow")


def _flags(cpus: CpuPlan, console: Console) -> list[str]:
    """Return, and print, why times measured now would scatter."""
    from tencost.workers.noise import host_load, is_busy

    reason = is_busy(host_load(set(cpus.run))) if cpus.run else None
    if reason is None:
        return []
    console.print(
        f"This host is busy: {reason}. Times will scatter; the records are flagged.", style="yellow"
    )
    return [reason]


def _noise_flags(progress: MeasuringProgress) -> list[str]:
    """Return what the reference kernel's median time, over its best, says against a session."""
    from tencost.workers.noise import NOISY

    noise = progress.noise_median
    if noise is None or noise < NOISY:
        return []
    return [f"the reference kernel took {noise:.2f} times its best, median"]


def _state(progress: MeasuringProgress) -> str:
    seconds = (progress.total - progress.num_measured) / max(progress.per_second, 1e-9)
    remaining = timedelta(seconds=round(min(seconds, 359_999)))
    failed = progress.num_measured - progress.statuses["ok"]
    noise = f" | noise {progress.noise[-1]:.2f}" if progress.noise else ""
    return f"{progress.per_second:.1f}/s | {failed} failed{noise} | {remaining} left"


def _lock_name(hardware: HardwareConfig, shard: tuple[int, int]) -> str:
    index, count = shard
    return hardware.name if count == 1 else f"{hardware.name} shard {index} of {count}"


def progress_bar(console: Console) -> Progress:
    """Return a bar of which each task has a `state`, what is said behind it."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        console=console,
    )


@contextmanager
def _quiet_tvm(log: Path) -> Iterator[Console]:
    """Yield a console on the terminal, while what TVM's C++ side writes to stderr goes to a file."""
    with os.fdopen(os.dup(2), "w") as terminal, native_messages_to(log):
        yield Console(file=terminal)
