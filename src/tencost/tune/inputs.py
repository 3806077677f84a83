"""What a tuning run reads before it measures: the network and its tasks, the model, the live store, starting points."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tencost.config import Config, HardwareConfig
from tencost.errors import MissingDependencyError, RegistryError, TuneError
from tencost.features.device import attributes
from tencost.features.intrinsics import register_cpu_intrinsics
from tencost.measure.hardware import another_machine, one_core
from tencost.register.aliases import default_alias
from tencost.register.pull import EVERY_CPU
from tencost.register.starts import StartBook, shipped_starts
from tencost.tune.workfolder import WorkFolder

if TYPE_CHECKING:
    from tencost.networks.network import Network, NetworkTask
    from tencost.store.record_store import RecordStore
    from tencost.workers.evaluator import MeasureOptions

NOTE: dict[str, Any] = {"style": "yellow", "markup": False, "highlight": False, "soft_wrap": True}
"""How the console prints what a user should know, as it is."""
SCRATCH = "scratch"
"""model_uri of a run without a registered model; the name of its model."""


@dataclass(frozen=True)
class Chosen:
    """The cost model of a run and what it is called in records and reports."""

    model: Any
    name: str


@dataclass(frozen=True)
class Inputs:
    """What a run reads before it measures.

    Attributes:
        cfg: the configuration, its hardware resolved.
        folder: the work folder, open.
        console: where things are said.
        network: the network.
        untuned: its executable with default schedules.
        every: its tasks.
        tasks: those that are tuned.
        chosen: the cost model.
        compared: somebody else's database; None for none.
        compared_network: the network whose workloads that database knows, its weights in the source's order perhaps.
        store: the live store; None where what it needs is not installed.
        book: starting points; None for none.
        options: how programs are timed.
    """

    cfg: Config
    folder: WorkFolder
    console: Console
    network: Network
    untuned: Any
    every: Sequence[NetworkTask]
    tasks: Sequence[NetworkTask]
    chosen: Chosen
    compared: Any | None
    compared_network: Network
    store: RecordStore | None
    book: StartBook | None
    options: MeasureOptions

    @property
    def name(self) -> str:
        return f"{self.network.name}-{self.cfg.hardware.name}"


def read_inputs(cfg: Config, root: Path, folder: WorkFolder, console: Console) -> Inputs:
    """Import the network, load the model, look into the live store; raises as :func:`run`."""
    from tencost.networks.network import load_network
    from tencost.tune.deploy import (
        check_shapes,
        compile_untuned,
        layout_note,
        meaningless,
        open_database,
    )
    from tencost.workers.evaluator import MeasureOptions

    hardware, tuner = cfg.hardware, cfg.tuner
    compared = open_database(root / tuner.compare_with) if tuner.compare_with else None
    chosen = choose_model(cfg, root, console)
    console.print(f"importing {cfg.network.name}")
    with native_messages_to(folder.logs / "import.log"):
        register_cpu_intrinsics()
        network = load_network(cfg.network, root)
        every = network.tasks(hardware.target)
    check_shapes(network, every)
    told = layout_note(cfg.network.graph, every, hardware.target)
    if told:
        console.print(told, **NOTE)
    tasks = [task for task in every if task.flop >= tuner.min_mflop * 1e6]
    if not tasks:
        raise TuneError(
            f"network {network.name!r} has no task of at least {tuner.min_mflop} MFLOP. Lower tuner.min_mflop."
        )
    _leave_others_out(folder, every, network, console)
    compared_network = network if compared is None else _as_known(compared, network, cfg)
    console.print("compiling it untuned")
    with native_messages_to(folder.logs / "import.log"):
        untuned = compile_untuned(network, hardware.target)
    for output, why in meaningless(network).items():
        console.print(
            f"output {output} of {network.name} is {why}, as PyTorch computes it: that the tuned network computes the "
            "same will say nothing. Choose another with network.output, or import it with trained weights",
            **NOTE,
        )
    store = _live_store(cfg.paths.live_store(root), hardware, folder.path, console)
    return Inputs(
        cfg=cfg,
        folder=folder,
        console=console,
        network=network,
        untuned=untuned,
        every=every,
        tasks=tasks,
        chosen=chosen,
        compared=compared,
        compared_network=compared_network,
        store=store,
        book=starting_points(cfg, chosen.model, store, console),
        options=MeasureOptions(
            number=tuner.number, repeat=tuner.repeat, min_repeat_ms=tuner.min_repeat_ms
        ),
    )


def _leave_others_out(
    folder: WorkFolder, tasks: Sequence[NetworkTask], network: Network, console: Console
) -> None:
    """Say where a folder has programs of other workloads: the graph was written otherwise when they were found."""
    from tvm.ir import save_json

    from tencost.store.ids import workload_id

    own = {workload_id(str(save_json(task.mod))) for task in tasks}
    others = folder.leave_out_others(own)
    if others:
        console.print(
            f"{folder.path} has {others} programs that are not of {network.name} as its graph is written now; they "
            "stay, and do not count. Those from before weights were packed: tencost compile with "
            f"network.pack_weights=false and --database {folder.path}",
            **NOTE,
        )


def _as_known(database: Any, network: Network, cfg: Config) -> Network:
    """Return the network, its weights packed or not, as a database to compare with knows it.

    Raises:
        TuneError: it has no program of either, so that it would change nothing.
    """
    from tencost.tune.deploy import count_known

    target = cfg.hardware.target
    for one in (network, replace(network, packed=not network.packed)):
        if count_known(database, one.tasks(target), target):
            return one
    raise TuneError(
        f"tuner.compare_with={cfg.tuner.compare_with}: expected programs of {cfg.network.name} for "
        f"{target}, found none among its {len(database)}. Name one of this network, in the same "
        "layout and for the same target, or leave tuner.compare_with out"
    )


def choose_model(cfg: Config, root: Path, console: Console) -> Chosen:
    """Load cfg.model_uri, or the champion of the hardware, or a model that learns from scratch (also if told so).

    For hardware of several cores without a model of its own, the champion of one of its cores serves; for any other CPU
    without one, the champion of all CPUs, which knows it by its description.

    Raises:
        RegistryError: cfg.model_uri is given and cannot be found.
        BundleError: it does not fit.
    """
    from tencost.features.extractor import spec_for
    from tencost.tune.cost_model import load_cost_model, scratch_cost_model

    hardware = cfg.hardware
    if cfg.model_uri == SCRATCH:
        return Chosen(scratch_cost_model(spec_for(cfg.features)), SCRATCH)
    own = [hardware.name, *(one.name for one in one_core(hardware))]
    names = [*own, EVERY_CPU] if hardware.target.get("kind") == "llvm" else own
    alias = default_alias()
    uris = [cfg.model_uri] if cfg.model_uri else [f"models:/tencost-{one}@{alias}" for one in names]
    failure: RegistryError | None = None
    for uri in uris:
        try:
            model = load_cost_model(
                uri, frozen=not cfg.tuner.learn, device=attributes(hardware), root=root
            )
            break
        except RegistryError as error:
            if cfg.model_uri is not None:
                raise
            failure = failure or error
    else:
        console.print(
            f"No registered model for hardware {hardware.name} ({failure}) Learning from scratch; to use a model of "
            "another hardware: model_uri=models:/<name>@champion",
            style="yellow",
        )
        return Chosen(scratch_cost_model(spec_for(cfg.features)), SCRATCH)
    if not cfg.model_uri and uri == uris[-1] and names[-1] == EVERY_CPU:
        console.print(
            f"no registered model for hardware {hardware.name}: tencost-{EVERY_CPU}, which knows a CPU by its "
            "description, ranks until this run has taught it better",
            **NOTE,
        )
    elif uri != uris[0]:
        console.print(
            f"no registered model for {hardware.cores} cores ({hardware.name}): one core's ranks until this run has "
            "taught it better",
            **NOTE,
        )
    folder = model.bundle.folder
    name = f"{uri.split('@')[0]}/{folder.name}" if "@" in uri else uri
    told = f" ({uri.partition('@')[2]})" if "@" in uri else ""
    console.print(
        f"model {name}{told}: {model.bundle.info.family} on {model.bundle.info.feature_spec.name}"
    )
    return Chosen(model, name)


def _live_store(
    uri: str, hardware: HardwareConfig, folder: Path, console: Console
) -> RecordStore | None:
    """Return the live store; None, which is said, where what it needs is not installed, or it knows another machine."""
    from tencost.tune.recording import open_store

    different = another_machine(hardware)
    if different:
        console.print(
            f"this host is not the machine of hardware {hardware.name!r}: {different}. The store's "
            f"records are left alone; what is measured here stays in {folder}. For this host: tencost measure hardware "
            "hardware.name=...",
            **NOTE,
        )
        return None
    try:
        return open_store(uri)
    except MissingDependencyError as error:
        console.print(
            f"records stay in the database in {folder}: {error}. To bring them into a store where there is one: "
            f"tencost records import {folder} --hardware {hardware.name}",
            **NOTE,
        )
        return None


def starting_points(
    cfg: Config, model: Any, store: RecordStore | None, console: Console
) -> StartBook | None:
    """Return what the model's bundle ships and what the live store has for the hardware; None where neither has any."""
    if cfg.tuner.starts == 0:
        return None
    book = StartBook(cfg.hardware.name, cfg.hardware.target, ())
    if store is not None:
        from tencost.register.start_records import live_starts

        for hardware in (cfg.hardware, *one_core(cfg.hardware)):
            book = live_starts(replace(cfg, hardware=hardware), store.uri)
            if len(book):
                break
        if len(book) and book.hardware != cfg.hardware.name:
            told = f"no starting points of {cfg.hardware.cores} cores in the store: those of {book.hardware}"
            console.print(told, **NOTE)
    shipped = None if model.bundle is None else shipped_starts(model.bundle.folder)
    if shipped is not None:
        book = book.joined(shipped)
    console.print(f"starting points: {len(book)} programs of {book.num_workloads} workloads")
    return book if len(book) else None


@contextmanager
def native_messages_to(path: Path) -> Iterator[None]:
    """Send what TVM's C++ side writes to stderr into a file; our own console keeps the terminal."""
    sys.stderr.flush()
    saved = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
