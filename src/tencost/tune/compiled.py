"""`tencost compile`: a network as one library with its weights, compiled with a database's programs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tvm
from rich.console import Console

from tencost import signals
from tencost.config import Config, HardwareConfig, NetworkConfig
from tencost.errors import HardwareError, TencostError, TuneError
from tencost.networks.network import Network, NetworkTask, variant_name
from tencost.networks.source import first_sentence, read_network
from tencost.programs.refusals import TvmRefusal
from tencost.tune.buckets import (
    Buckets,
    dimension_of,
    entry,
    of_size,
    other_size,
    prove_padding,
    try_padding,
)
from tencost.tune.deploy import (
    better_than_rules,
    compare_outputs,
    compile_default,
    compile_together,
    compile_untuned,
    count_tuned,
    count_tuned_unpacked,
    faster_in_network,
    meaningless,
    open_database,
    worst,
)
from tencost.tune.hosts import MAX_TIMING_S, Host, check_host, host_of, spread_of, times_in_turn
from tencost.tune.inputs import import_network
from tencost.tune.library_export import LibraryOrigin, check_linker, check_place, write_library
from tencost.tune.recording import record_compiled
from tencost.tune.reporting import native_messages_to, print_note, say
from tencost.tune.workfolder import has_programs, read_untuned_times
from tencost.workers.hardware import check_target, describe_hardware, resolve_hardware


@dataclass(frozen=True)
class Compiled:
    """The library that was written.

    Attributes:
        library: the .so; the other files lie beside it.
        tasks: distinct workloads of the network, of all its sizes.
        tuned: how many of them have a program of the database.
        max_rel_error: largest difference from the framework's outputs, relative to the magnitude of such values; None
            where this host cannot run it.
    """

    library: Path
    tasks: int
    tuned: int
    max_rel_error: float | None


@dataclass
class NetworkPart:
    """The network in one of its sizes.

    Attributes:
        config: that the network was read with.
        network: it.
        tasks: of it.
        folder: of the programs' database.
        programs: the database of the programs that are used; None: none are.
        available: tasks that have a program.
        tuned: tasks whose program is used.
    """

    config: NetworkConfig
    network: Network
    tasks: list[NetworkTask]
    folder: Path
    programs: Any
    available: int = 0
    tuned: int = 0

    def use(self, programs: Any, target: dict[str, Any]) -> None:
        """Use these programs."""
        self.programs = programs
        self.tuned = count_tuned(programs, self.tasks, target)


def run(
    cfg: Config,
    root: Path,
    *,
    to: Path | None = None,
    database: Path | None = None,
    records: bool = True,
) -> Compiled:
    """Compile cfg.network for cfg.hardware with the best programs of a database, and write it with its runners.

    Args:
        cfg: the network and the hardware.
        root: the project's root.
        to: the library; None: compiled/<network>-<hardware>.so.
        database: a folder of MetaSchedule's; None: that of `tencost tune` for this network (of each of its sizes) and
            hardware, if there is one, else schedules by rule.
        records: write the network's time into the live store of networks.

    Raises:
        ConfigError: `to` is no name of a shared library, nothing can be written there, or the network has no dimension
            for network.buckets.
        HardwareError: no CPU, or no compiler to link with. Where a device behind a tracker is not there, the network is
            not run, and a line says so.
        TuneError: no database in the folder, TVM cannot compile the network, or it computes something else than the
            framework it comes from; or the files cannot be written.
    """
    console = Console(stderr=True)
    hardware = resolve_hardware(cfg.hardware)
    target = hardware.target
    say(console, f"compiling {describe_hardware(hardware)}")
    library = root / "compiled" / f"{variant_name(cfg.network)}-{hardware.name}.so"
    library = library if to is None else to
    check_place(library)
    check_linker(hardware)
    check_target(hardware)
    parts, buckets = _parts(cfg, hardware, root, database, console)
    started = time.monotonic()
    notes: list[str] = []
    with console.status("compiling"), native_messages_to(Path(os.devnull)), signals.not_swallowed():
        built = compiled(parts, target, notes.append)
    compile_s = time.monotonic() - started
    for message in notes:
        print_note(console, message)
    host = _host(hardware, console)
    differences, seconds = [], []
    with nullcontext() if host is None else closing(host):
        if host is not None:
            differences = [_difference(part, host, built, console) for part in parts]
            slower = [_leave_out_slower(part, hardware) for part in parts if part.tuned]
            if any(slower):
                with signals.not_swallowed():
                    built = compiled(parts, target)
                differences = [_difference(part, host, built, console) for part in parts]
        if buckets is not None:
            buckets = _padding(buckets, parts, host, built, root, console)
        tasks, tuned = sum(len(part.tasks) for part in parts), sum(part.tuned for part in parts)
        available = sum(part.available for part in parts)
        if tuned < available:
            print_note(
                console,
                f"{available - tuned} of {available} tasks with programs run by rule, which is faster",
            )
        used = next((part.folder.name for part in parts if part.programs is not None), "")
        origin = LibraryOrigin(str(database or used), tasks, tuned)
        write_library(library, parts[-1].network, hardware, built, origin, buckets)
        if host is not None:  # last: who does not wait for it has the library
            seconds = _seconds(parts, host, built)
    size_bytes = library.stat().st_size
    say(
        console,
        f"{library}: {size_bytes / 1e6:.1f} MB with its weights, {origin}"
        + _times(parts, seconds, differences),
    )
    say(console, f"Run it with TVM's runtime alone: python {library.with_suffix('.py')}")
    timed = zip(parts, seconds, differences, strict=False) if records else ()
    for part, times, difference in timed:
        record_compiled(
            replace(cfg, network=part.config),
            hardware,
            cfg.paths.live_store(root),
            console,
            tuned=part.tuned > 0,
            seconds=tuple(times),
            code_size=size_bytes,
            compile_seconds=compile_s,
            max_rel_error=difference,
            info={"tasks": len(part.tasks), "tuned_tasks": part.tuned},
            source=origin.database,
        )
    return Compiled(library, tasks, tuned, max(differences, default=None))


def _parts(
    cfg: Config, hardware: HardwareConfig, root: Path, database: Path | None, console: Console
) -> tuple[list[NetworkPart], Buckets | None]:
    """Read the network in each of its sizes."""
    sizes = sorted(cfg.network.buckets)
    if not sizes:
        return [_part(cfg, cfg.network, hardware, root, database, console)], None
    dimension = dimension_of(cfg.network, root)
    configs = [of_size(cfg.network, dimension, size) for size in sizes]
    parts = [_part(cfg, config, hardware, root, database, console) for config in configs]
    for size, part in zip(sizes, parts, strict=True):
        part.network = replace(part.network, entry=entry(size, sizes))
    # One size does not show which axes it decides; another one does.
    other = (
        parts[1].network
        if len(parts) > 1
        else read_network(of_size(cfg.network, dimension, other_size(sizes)), root)
    )
    return parts, Buckets.of(dimension, sizes, parts[0].network, other)


def _part(
    cfg: Config,
    config: NetworkConfig,
    hardware: HardwareConfig,
    root: Path,
    database: Path | None,
    console: Console,
) -> NetworkPart:
    """Read a network and find its programs; a line says where they are of other workloads, or of another network."""
    name = f"{variant_name(config)}-{hardware.name}"
    folder = database or root / cfg.tuner.workdir / name
    programs = _open_programs(
        folder, name, hardware.target, console, is_required=database is not None
    )
    with console.status("importing"):
        network, tasks = import_network(
            replace(cfg, network=config), hardware, root, console, Path(os.devnull)
        )
    part = NetworkPart(config, network, tasks, folder, None)
    if programs is None:
        return part
    target = hardware.target
    if unpacked := count_tuned_unpacked(programs, tasks, target):
        print_note(
            console,
            f"{folder} has programs for {unpacked} tasks with their weights in the source's order, which are other "
            "workloads. To use them: network.pack_weights=false",
        )
    part.available = count_tuned(programs, tasks, target)
    if not part.available:
        print_note(
            console,
            f"{folder} has no program of {name}: schedules by rule. Is it of another network or hardware?",
        )
    part.use(better_than_rules(programs, tasks, target, read_untuned_times(folder)), target)
    return part


def _leave_out_slower(part: NetworkPart, hardware: HardwareConfig) -> int:
    """Use no program any more that is slower in the network than the rule; return how many that are."""
    before = part.tuned
    part.use(faster_in_network(part.network, hardware, part.tasks, part.programs), hardware.target)
    return before - part.tuned


def _seconds(parts: Sequence[NetworkPart], host: Host, built: Any) -> list[list[float]]:
    """Return the seconds of calls of each size, timed in turn."""
    running = {part.network.entry: host.deployed(built, part.network) for part in parts}
    times = host.call(lambda: times_in_turn(running, MAX_TIMING_S))
    return [times[part.network.entry] for part in parts]


def _times(
    parts: Sequence[NetworkPart], seconds: Sequence[Sequence[float]], differences: Sequence[float]
) -> str:
    """Return what a user is told of the times of calls; nothing where it was not run."""
    told = []
    for times, part in zip(seconds, parts, strict=False):
        spread = spread_of(times)
        of = f" {part.network.name}," if len(parts) > 1 else ""
        told.append(
            f",{of} {1e3 * spread.median_s:.3f} ms [{1e3 * spread.lower_s:.3f}, {1e3 * spread.upper_s:.3f}] a call"
        )
    computed_by = parts[0].network.computed_by
    within = f", within {max(differences):.1e} of what {computed_by} computes" if told else ""
    return "".join(told) + within


def _padding(
    buckets: Buckets,
    parts: Sequence[NetworkPart],
    host: Host | None,
    built: Any,
    root: Path,
    console: Console,
) -> Buckets:
    """Return the buckets, padded where the graph proves that padding changes nothing, and one padded call agrees."""
    between = buckets.between
    if between is None:
        return buckets
    part = next(part for part, size in zip(parts, buckets.sizes, strict=True) if size > between)
    try:
        with (
            console.status("proving that calls can be padded"),
            native_messages_to(Path(os.devnull)),
        ):
            reason = prove_padding(buckets, part.config, root)
        if not reason and host is not None:
            smaller = read_network(of_size(part.config, buckets.dimension, between), root)
            reason = try_padding(
                buckets, part.network, smaller, lambda network: host.outputs(built, network)
            )
    except TencostError as error:  # the file itself does not run at that size
        reason = first_sentence(error)
    if reason:
        sizes = ", ".join(map(str, buckets.sizes))
        print_note(
            console,
            f"network.{buckets.dimension}={between} cannot be padded ({reason}): the library runs the sizes {sizes} "
            "alone",
        )
    return replace(buckets, padded=not reason)


def _open_programs(
    folder: Path, name: str, target: dict[str, Any], console: Console, *, is_required: bool
) -> Any:
    """Read the records of a target from a folder; None, with a line, where it need not be there and has no programs."""
    if is_required or has_programs(folder):
        return open_database(folder, target, "--database")
    if folder.is_dir():
        print_note(
            console,
            f"no programs of {name} in {folder.parent} (a tuning run ended there before it had any): schedules by "
            "rule. Tune it first (tencost tune), or say where there are some (--database)",
        )
    else:
        say(console, f"{name}: schedules by rule; `tencost tune` looks for faster ones")
    return None


def compiled(
    parts: Sequence[NetworkPart],
    target: dict[str, Any],
    note: Callable[[str], object] = lambda _message: None,
) -> Any:
    """Compile a network, in all its sizes; errors tell apart the network and its programs.

    Args:
        parts: its sizes, and their programs.
        target: for which hardware.
        note: called for what runs otherwise than by program or rule, with the reason: an operator, or without a
            database the whole network.

    Raises:
        TuneError: TVM cannot compile the network, or not with the database.
    """
    try:
        with signals.not_swallowed():
            return compile_together([(part.network, part.programs) for part in parts], target, note)
    except TvmRefusal as error:
        with_programs = [part for part in parts if part.programs is not None]
        if not with_programs and len(parts) == 1:
            return compile_untuned(parts[0].network, target, note)
        for part in parts:
            compile_default(part.network, target)  # names the operators that TVM refuses
        name = parts[0].network.name
        if not with_programs:
            raise TuneError(
                f"network {name!r}: TVM {tvm.__version__} cannot compile its sizes by rule: {first_sentence(error)}. "
                "Leave network.buckets out, and please report the network"
            ) from error
        raise TuneError(
            f"expected programs of {name!r} in {with_programs[0].folder} that TVM {tvm.__version__} compiles, found "
            f"{first_sentence(error)}. Without them it compiles: name another database, --database"
        ) from error


def _host(hardware: HardwareConfig, console: Console) -> Host | None:
    """Return where the network can run: this host, or a device; None, with a line, where neither is such."""
    try:
        check_host(hardware)
    except HardwareError as error:
        print_note(console, f"not run, so its output was not compared: {error}")
        return None
    return host_of(hardware)


def _difference(part: NetworkPart, host: Host, built: Any, console: Console) -> float:
    """Run it and compare; return the largest relative difference. Raises TuneError where it is too large."""
    network = part.network
    agreements = compare_outputs(network, host.outputs(built, network))
    name, agreement = worst(agreements)
    if agreement.differs:
        raise TuneError(
            f"network {network.name!r}: the compiled network's output {name} differs from that of "
            f"{network.computed_by} {agreement}; nothing was written. "
            + (
                "`tencost tune` finds the programs of a database that compute something else"
                if part.tuned
                else "No program of a database is used: it is the schedules by rule; please report the network"
            )
        )
    for output, each in agreements.items():
        if each.noise:
            print_note(
                console,
                f"its output {output} differs by {each.max_rel:.1e} of such values, and {network.computed_by}'s "
                f"changes by {each.noise:.1e} when the inputs are rounded otherwise, and the weights",
            )
    for output, reason in meaningless(network).items():
        print_note(console, f"its output {output} is {reason}: that it is equal says nothing")
    return agreement.max_rel
