"""`tencost compile`: a network as one library with its weights, and what runs it with TVM's runtime alone.

Beside <name>.so lie, for somebody who has nothing of tencost:

    <name>.json   {"network", "hardware", "target", "cores", "database", "tasks", "tuned_tasks", "tvm",
                   "inputs": [{"name", "shape", "dtype"}, ...], "outputs": [...]}
    <name>.npz    the inputs that the network was imported with, and what PyTorch or ONNX Runtime computes for them:
                  input_<number> and expected_<number>
    <name>.py     runs it on the arrays of an .npz; without one on those of <name>.npz, and tells the difference
    <name>.cc     the same in C++: raw values in, raw values out; its first lines say how it is compiled
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from rich.console import Console
from tvm.support.cc import get_cc

from tencost.config import Config, HardwareConfig, RunnerKind
from tencost.errors import ConfigError, HardwareError, TuneError
from tencost.networks.network import Array, Network, load_network, variant_name
from tencost.networks.source import first_sentence
from tencost.programs.trace.intrinsics import register_cpu_intrinsics
from tencost.tune.deploy import (
    MAX_TIMING_S,
    TOLERANCE,
    TVM_ERRORS,
    better_than_rules,
    check_shapes,
    compare_outputs,
    compile_network,
    compile_untuned,
    count_known,
    count_known_unpacked,
    layout_note,
    open_database,
    spread_of,
    times_in_turn,
    worst,
)
from tencost.tune.hosts import Host, place_of
from tencost.tune.in_network import faster_in_network
from tencost.tune.inputs import NOTE, native_messages_to
from tencost.tune.network_record import record_compiled
from tencost.tune.runners import cpp_runner, python_runner
from tencost.tune.workfolder import has_programs, read_rule_times
from tencost.workers.hardware import (
    check_cores,
    check_runnable,
    check_target,
    in_words,
    resolve_hardware,
)
from tencost.workers.remote import linking
from tencost.workers.tracker import RemoteAddress, check_tracker
from tencost.writing import scratch_beside, whole_file


@dataclass(frozen=True)
class Compiled:
    """What was written.

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
            not run, which is said.
        TuneError: no database in the folder, TVM cannot compile the network, or it computes something else than the
            framework it comes from; or the files cannot be written.
    """
    console = Console(stderr=True)
    hardware = resolve_hardware(cfg.hardware)
    console.print(f"compiling {in_words(hardware)}", markup=False, highlight=False, soft_wrap=True)
    name = f"{variant_name(cfg.network)}-{hardware.name}"
    library = root / "compiled" / f"{name}.so" if to is None else to
    check_place(library)
    check_linker(hardware)
    check_target(hardware)
    folder = database or root / cfg.tuner.workdir / name
    given = database is not None or has_programs(folder)
    opened = open_database(folder, "--database") if given else None
    if not given:
        ended = " (a tuning run ended there before it had any)" if folder.is_dir() else ""
        console.print(
            f"no programs of {name} in {folder.parent}{ended}: schedules by rule. Tune it first (tencost tune), or say "
            "where there are some (--database)",
            **NOTE,
        )
    register_cpu_intrinsics()
    target = hardware.target
    with console.status("importing"), native_messages_to(Path(os.devnull)):
        network = load_network(cfg.network, root)
        tasks = network.tasks(target)
    check_shapes(network, tasks)
    for note in network.notes:
        console.print(note, **NOTE)
    told = layout_note(cfg.network.graph, tasks, hardware.target)
    if told:
        console.print(told, **NOTE)
    if given:
        unpacked = count_known_unpacked(opened, tasks, target)
        if unpacked:
            console.print(
                f"{folder} has programs for {unpacked} tasks with their weights in the source's order, which are other "
                "workloads. To use them: network.pack_weights=false",
                **NOTE,
            )
    known = count_known(opened, tasks, target) if given else 0
    if given and not known:
        console.print(
            f"{folder} has no program of {name}: schedules by rule. Is it of another network or hardware?",
            **NOTE,
        )
    if given:
        opened = better_than_rules(opened, tasks, target, read_rule_times(folder))
    tuned = count_known(opened, tasks, target) if given else 0
    notes: list[str] = []
    started = time.monotonic()
    with console.status("compiling"), native_messages_to(Path(os.devnull)):
        built = compiled(network, target, opened, folder, notes.append)
    compile_s = time.monotonic() - started
    for told in notes:
        console.print(told, **NOTE)
    place = _place(hardware, console)
    with closing(place) if place is not None else nullcontext():
        difference = _difference(network, place, built, tuned, console)
        if difference is not None and tuned:
            opened = faster_in_network(network, hardware, tasks, opened)
            left = count_known(opened, tasks, target)
            if left < tuned:
                built = compiled(network, target, opened, folder)
                difference = _difference(network, place, built, left, console)
            tuned = left
        if tuned < known:
            console.print(
                f"{known - tuned} of {known} tasks with programs run by rule, which is faster",
                **NOTE,
            )
        source = str(database) if database is not None else folder.name if given else ""
        write_library(library, network, hardware, built, Origin(source, len(tasks), tuned))
        seconds = [] if place is None else _timed(network, place, built)
    told = (
        ""
        if difference is None
        else f", {_spread(seconds)}, within {difference:.1e} of what {network.computed_by} computes"
    )
    console.print(
        f"{library}: {library.stat().st_size / 1e6:.1f} MB with its weights, {tuned} of {len(tasks)} tasks tuned{told}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    console.print(
        f"Run it with TVM's runtime alone: python {library.with_suffix('.py')}", soft_wrap=True
    )
    if seconds:
        record_compiled(
            cfg,
            hardware,
            cfg.paths.live_store(root),
            console,
            tuned=tuned > 0,
            seconds=tuple(seconds),
            code_size=library.stat().st_size,
            compile_seconds=compile_s,
            max_rel_error=difference,
            info={"tasks": len(tasks), "tuned_tasks": tuned},
            source=source,
        )
    return Compiled(library, len(tasks), tuned, difference)


def _timed(network: Network, place: Host, built: Any) -> list[float]:
    """Return seconds of a call, turn by turn."""
    running = place.deployed(built, network)
    return place.call(lambda: times_in_turn({"it": running}, MAX_TIMING_S)["it"])


def _spread(seconds: Sequence[float]) -> str:
    found = spread_of(seconds)
    low, middle, high = (1e3 * one for one in (found.lower_s, found.median_s, found.upper_s))
    return f"{middle:.3f} ms [{low:.3f}, {high:.3f}] a call"


@dataclass(frozen=True)
class Origin:
    """Where a library's programs are from: a database, the network's workloads, those with a program of it."""

    database: str
    tasks: int
    tuned: int


def write_library(
    library: Path, network: Network, hardware: HardwareConfig, built: Any, origin: Origin
) -> None:
    """Write a compiled network as a library with its runners; raises TuneError, and what was there is kept."""
    try:
        with native_messages_to(Path(os.devnull)):
            _write(library, network, hardware, built, origin)
    except (OSError, RuntimeError) as error:  # TVM's linker raises the latter
        raise TuneError(
            f"expected to write {library} and its runners, found {first_sentence(error)}. What was there is kept; mend "
            "that, or write elsewhere: --to"
        ) from error


def compiled(
    network: Network,
    target: dict[str, Any],
    database: Any,
    folder: Path,
    note: Callable[[str], object] | None = None,
) -> Any:
    """Compile with a database, if there is one; what TVM refuses is told apart: the network, or its programs.

    Args:
        network: the network.
        target: for which hardware.
        database: MetaSchedule's, or None.
        folder: where it is.
        note: is told what runs otherwise than by program or rule, and why: an operator, or without a database the
            whole network.

    Raises:
        TuneError: TVM cannot compile the network, or not with the database.
    """
    try:
        return compile_network(network, target, database, by_rule=True, note=note)
    except TVM_ERRORS as error:
        untuned = compile_untuned(network, target)  # names the operators, where it is the network
        if database is None:
            if note is not None:
                note(
                    "the whole network has TVM's default schedules, which are many times slower, as TVM refuses it by "
                    f"rule, though each operator alone: {first_sentence(error)}. Please report the network"
                )
            return untuned
        raise TuneError(
            f"expected programs of {network.name!r} in {folder} that TVM {tvm.__version__} compiles, found "
            f"{first_sentence(error)}. Without them it compiles: name another database, --database"
        ) from error


def check_place(library: Path) -> None:
    """Refuse, before minutes of compiling, a place where nothing can be written."""
    if library.suffix != ".so" or library.is_dir():
        found = f"the folder {library}" if library.is_dir() else library
        raise ConfigError(f"--to: expected the name of a shared library, model.so, found {found}")
    try:
        with scratch_beside(library):
            pass
    except OSError as error:
        raise ConfigError(
            f"--to: expected a folder that can be written to at {library.parent}, found another: {error}"
        ) from error


def check_linker(hardware: HardwareConfig) -> None:
    """Refuse hardware that the runners cannot run on, and a host that cannot link."""
    kind = hardware.target.get("kind")
    if kind != "llvm":
        raise HardwareError(
            f"expected a CPU (target kind llvm), as the runners are for CPUs; found {kind!r} as that of hardware "
            f"{hardware.name!r}. Choose another: hardware=local"
        )
    cc, triple = _cc(hardware), str(hardware.target.get("mtriple", ""))
    if cc:
        linking(cc)
        return
    is_remote = hardware.runner is RunnerKind.rpc
    if is_remote and triple and not triple.startswith(platform.machine()):
        raise HardwareError(
            f"expected a compiler that links for {triple}, found hardware.cc empty, and this host is "
            f"{platform.machine()}. Name a cross compiler: hardware.cc={triple}-g++"
        )
    compiler = get_cc()
    if not compiler or shutil.which(compiler) is None:
        raise HardwareError(
            f"expected a C++ compiler that links the library, found {compiler or 'none'}. Install g++ or clang, or "
            "name one: CXX=..."
        )


def _cc(hardware: HardwareConfig) -> str:
    """Return what links for a device elsewhere; on the device itself its own compiler does, whatever is described."""
    return hardware.cc if hardware.runner is RunnerKind.rpc else ""


def _place(hardware: HardwareConfig, console: Console) -> Host | None:
    """Return where the network can run: this host, or a device; None, which is said, where neither is such."""
    try:
        if hardware.runner is RunnerKind.rpc:
            check_tracker(RemoteAddress.of(hardware))
        else:
            check_runnable(hardware)
            check_cores(hardware)
    except HardwareError as error:
        console.print(f"not run, so its output was not compared: {error}", **NOTE)
        return None
    return place_of(hardware)


def _difference(
    network: Network, place: Host | None, built: Any, tuned: int, console: Console
) -> float | None:
    """Run it and compare, where that is possible."""
    if place is None:
        return None
    found = place.call(place.deployed(built, network).outputs)
    agreements = compare_outputs(network, found)
    agreement = worst(agreements)
    name = next(name for name, one in agreements.items() if one is agreement)
    if agreement.differs:
        raise TuneError(
            f"network {network.name!r}: the compiled network's output {name} differs from that of "
            f"{network.computed_by} by {agreement.max_rel:.2e} of its largest value ({TOLERANCE:g} is "
            "accepted); nothing was written. "
            + (
                "`tencost tune` finds the programs of a database that compute something else"
                if tuned
                else "No program of a database is used: it is the schedules by rule; please report the network"
            )
        )
    for name, one in agreements.items():
        if one.degenerate:
            told = f"its output {name} is {one.degenerate}: that it is equal says nothing"
            console.print(told, **NOTE)
    return agreement.max_rel


def _write(
    library: Path,
    network: Network,
    hardware: HardwareConfig,
    built: Any,
    origin: Origin,
) -> None:
    """Write all files, the library last: where it is, the others are of it."""
    inputs = list(network.inputs.values())
    about = {
        "network": network.name,
        "hardware": hardware.name,
        "target": hardware.target,
        "cores": hardware.cores,
        "database": origin.database,
        "tasks": origin.tasks,
        "tuned_tasks": origin.tuned,
        "tvm": tvm.__version__,
        "inputs": _told(list(network.inputs), inputs),
        "outputs": _told(network.outputs, network.expected),
    }
    samples = {f"input_{number}": array for number, array in enumerate(inputs)}
    samples |= {f"expected_{number}": array for number, array in enumerate(network.expected)}
    stem = library.name
    # Nested, so that an earlier library goes only once all that takes its place is there.
    with (
        whole_file(library) as partial,
        whole_file(library.with_suffix(".json")) as told,
        whole_file(library.with_suffix(".npz")) as arrays,
        whole_file(library.with_suffix(".py")) as python,
        whole_file(library.with_suffix(".cc")) as cpp,
    ):
        told.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        with arrays.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **samples)
        python.write_text(python_runner(library.stem, hardware.cores), encoding="utf-8")
        cpp.write_text(cpp_runner(stem, inputs, hardware.cores), encoding="utf-8")
        whole = partial.with_name(f"{partial.name}.so")  # what TVM's linker takes for a library
        built.export_library(str(whole), **linking(_cc(hardware)))
        whole.rename(partial)
        library.unlink(missing_ok=True)


def _told(names: Sequence[str], arrays: Sequence[Array]) -> list[dict[str, Any]]:
    return [
        {"name": name, "shape": list(array.shape), "dtype": array.dtype.name}
        for name, array in zip(names, arrays, strict=True)
    ]
