"""`tencost compile`: a network as one library with its weights, compiled with a database's programs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from rich.console import Console

from tencost.config import Config, HardwareConfig
from tencost.errors import HardwareError, TuneError
from tencost.networks.network import Network, NetworkTask, variant_name
from tencost.networks.source import first_sentence
from tencost.tune.deploy import (
    TVM_ERRORS,
    better_than_rules,
    compare_outputs,
    compile_network,
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
from tencost.tune.workfolder import has_programs, read_rule_times
from tencost.workers.hardware import check_target, describe_hardware, resolve_hardware


@dataclass(frozen=True)
class Compiled:
    """The library that was written.

    Attributes:
        library: the .so; the other files lie beside it.
        tasks: distinct workloads of the network.
        tuned: how many of them have a program of the database.
        max_rel_error: largest difference from what the framework computes, in relation to its largest value; None where
            this host cannot run it.
    """

    library: Path
    tasks: int
    tuned: int
    max_rel_error: float | None


def run(
    cfg: Config, root: Path, *, to: Path | None = None, database: Path | None = None
) -> Compiled:
    """Compile cfg.network for cfg.hardware with the best programs of a database, and write it with its runners.

    Args:
        cfg: the network and the hardware.
        root: the project's root.
        to: the library; None: compiled/<network>-<hardware>.so.
        database: a folder of MetaSchedule's; None: that of `tencost tune` for this network and hardware, if there is
            one, else schedules by rule.

    Raises:
        ConfigError: `to` is no name of a shared library, or nothing can be written there.
        HardwareError: no CPU, or no compiler to link with. Where a device behind a tracker is not there, the network is
            not run, and a line says so.
        TuneError: no database in the folder, TVM cannot compile the network, or it computes something else than the
            framework it comes from; or the files cannot be written.
    """
    console = Console(stderr=True)
    hardware = resolve_hardware(cfg.hardware)
    target = hardware.target
    say(console, f"compiling {describe_hardware(hardware)}")
    name = f"{variant_name(cfg.network)}-{hardware.name}"
    library = root / "compiled" / f"{name}.so" if to is None else to
    check_place(library)
    check_linker(hardware)
    check_target(hardware)
    folder = database or root / cfg.tuner.workdir / name
    programs = _open_programs(folder, name, console, is_required=database is not None)
    with console.status("importing"):
        network, tasks = import_network(cfg, hardware, root, console, Path(os.devnull))
    available = tuned = 0
    if programs is not None:
        available = _count_programs(programs, tasks, target, folder, name, console)
        programs = better_than_rules(programs, tasks, target, read_rule_times(folder))
        tuned = count_tuned(programs, tasks, target)
    started = time.monotonic()
    notes: list[str] = []
    with console.status("compiling"), native_messages_to(Path(os.devnull)):
        built = compiled(network, target, programs, folder, notes.append)
    compile_s = time.monotonic() - started
    for message in notes:
        print_note(console, message)
    host = _host(hardware, console)
    difference, seconds = None, []
    with nullcontext() if host is None else closing(host):
        if host is not None:
            difference = _difference(network, host, built, tuned, console)
            if tuned:
                programs = faster_in_network(network, hardware, tasks, programs)
                slower = tuned - count_tuned(programs, tasks, target)
                tuned -= slower
                if slower:
                    built = compiled(network, target, programs, folder)
                    difference = _difference(network, host, built, tuned, console)
        if tuned < available:
            print_note(
                console,
                f"{available - tuned} of {available} tasks with programs run by rule, which is faster",
            )
        source = str(database or ("" if programs is None else folder.name))
        write_library(library, network, hardware, built, LibraryOrigin(source, len(tasks), tuned))
        size = library.stat().st_size
        message = (
            f"{library}: {size / 1e6:.1f} MB with its weights, {tuned} of {len(tasks)} tasks tuned"
        )
        if host is not None:
            running = host.deployed(built, network)
            seconds = host.call(lambda: times_in_turn({"it": running}, MAX_TIMING_S)["it"])
            spread = spread_of(seconds)
            message += (
                f", {1e3 * spread.median_s:.3f} ms [{1e3 * spread.lower_s:.3f}, {1e3 * spread.upper_s:.3f}] a call, "
                f"within {difference:.1e} of what {network.computed_by} computes"
            )
    say(console, message)
    say(console, f"Run it with TVM's runtime alone: python {library.with_suffix('.py')}")
    if seconds:
        record_compiled(
            cfg,
            hardware,
            cfg.paths.live_store(root),
            console,
            tuned=tuned > 0,
            seconds=tuple(seconds),
            code_size=size,
            compile_seconds=compile_s,
            max_rel_error=difference,
            info={"tasks": len(tasks), "tuned_tasks": tuned},
            source=source,
        )
    return Compiled(library, len(tasks), tuned, difference)


def _open_programs(folder: Path, name: str, console: Console, *, is_required: bool) -> Any:
    """Open the database of a folder; None, with a line, where it need not be there and has no programs."""
    if is_required or has_programs(folder):
        return open_database(folder, "--database")
    ended = " (a tuning run ended there before it had any)" if folder.is_dir() else ""
    print_note(
        console,
        f"no programs of {name} in {folder.parent}{ended}: schedules by rule. Tune it first (tencost tune), or say "
        "where there are some (--database)",
    )
    return None


def _count_programs(
    database: Any,
    tasks: Sequence[NetworkTask],
    target: dict[str, Any],
    folder: Path,
    name: str,
    console: Console,
) -> int:
    """Return for how many tasks a database has a program; a line says where it is of other workloads."""
    unpacked = count_tuned_unpacked(database, tasks, target)
    if unpacked:
        print_note(
            console,
            f"{folder} has programs for {unpacked} tasks with their weights in the source's order, which are other "
            "workloads. To use them: network.pack_weights=false",
        )
    available = count_tuned(database, tasks, target)
    if not available:
        print_note(
            console,
            f"{folder} has no program of {name}: schedules by rule. Is it of another network or hardware?",
        )
    return available


def compiled(
    network: Network,
    target: dict[str, Any],
    database: Any,
    folder: Path,
    note: Callable[[str], object] = lambda _message: None,
) -> Any:
    """Compile with a database, if there is one; errors tell apart the network and its programs.

    Args:
        network: the network.
        target: for which hardware.
        database: MetaSchedule's, or None.
        folder: where it is.
        note: called for what runs otherwise than by program or rule, with the reason: an operator, or without a
            database the whole network.

    Raises:
        TuneError: TVM cannot compile the network, or not with the database.
    """
    try:
        return compile_network(network, target, database, by_rule=True, note=note)
    except TVM_ERRORS as error:
        untuned = compile_untuned(network, target)  # names the operators, where it is the network
        if database is None:
            note(
                "the whole network has TVM's default schedules, which are many times slower, as TVM refuses it by "
                f"rule, though each operator alone: {first_sentence(error)}. Please report the network"
            )
            return untuned
        raise TuneError(
            f"expected programs of {network.name!r} in {folder} that TVM {tvm.__version__} compiles, found "
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


def _difference(network: Network, host: Host, built: Any, tuned: int, console: Console) -> float:
    """Run it and compare; return the largest relative difference. Raises TuneError where it is too large."""
    agreements = compare_outputs(network, host.outputs(built, network))
    name, agreement = worst(agreements)
    if agreement.differs:
        raise TuneError(
            f"network {network.name!r}: the compiled network's output {name} differs from that of "
            f"{network.computed_by} by {agreement.max_rel:.2e} of its largest value ({agreement.tolerance:g} is "
            "accepted); nothing was written. "
            + (
                "`tencost tune` finds the programs of a database that compute something else"
                if tuned
                else "No program of a database is used: it is the schedules by rule; please report the network"
            )
        )
    for output, reason in meaningless(network).items():
        print_note(console, f"its output {output} is {reason}: that it is equal says nothing")
    return agreement.max_rel
