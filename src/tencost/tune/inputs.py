"""What a tuning run reads before it measures: the network and its tasks, the model, the live store, starting points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tencost.config import Config, HardwareConfig, RunnerKind, TunerConfig
from tencost.errors import FeatureError, MissingDependencyError, RegistryError, TuneError
from tencost.features.device import attributes
from tencost.features.extractor import spec_for
from tencost.networks.network import Network, NetworkTask, load_network
from tencost.programs.starting_points import StartBook, shipped_starts
from tencost.programs.trace.intrinsics import register_cpu_intrinsics
from tencost.register.champions import packaged_at
from tencost.register.pull import (
    CHALLENGER,
    CHAMPION,
    EVERY_CPU,
    champion_of_cpu,
    default_alias,
    objection,
)
from tencost.tune.batches import SCRATCH
from tencost.tune.deploy import (
    check_shapes,
    compile_untuned,
    count_tuned,
    layout_note,
    meaningless,
    open_database,
)
from tencost.tune.recording import by_workload, open_live_store
from tencost.tune.reporting import native_messages_to, print_note
from tencost.tune.workfolder import WorkFolder
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.hardware import another_machine, cpu_product_name, host_flags, one_core

if TYPE_CHECKING:
    from tencost.store.record_store import RecordStore


@dataclass(frozen=True)
class NamedCostModel:
    """The cost model of a run and its name in records and reports."""

    model: Any
    name: str


@dataclass(frozen=True)
class TuningInputs:
    """What a run reads before it measures.

    Attributes:
        cfg: the configuration, its hardware resolved.
        root: the project's root.
        folder: the work folder, open.
        console: gets the messages.
        network: the network.
        untuned: its executable without programs, see :func:`tencost.tune.deploy.compile_untuned`.
        every: its tasks.
        tasks: those that are tuned.
        chosen: the cost model.
        compared: somebody else's database; None for none.
        compared_network: the network whose workloads that database has, its weights in the source's order perhaps.
        store: the live store; None where what it needs is not installed.
        book: starting points; None for none.
        options: how programs are timed.
        notes: what was said when it was compiled untuned.
    """

    cfg: Config
    root: Path
    folder: WorkFolder
    console: Console
    network: Network
    untuned: Any
    every: Sequence[NetworkTask]
    tasks: Sequence[NetworkTask]
    chosen: NamedCostModel
    compared: Any | None
    compared_network: Network
    store: RecordStore | None
    book: StartBook | None
    options: MeasureOptions
    notes: list[str]

    def note(self, message: str) -> None:
        """Print what compiling the network said, once."""
        if message not in self.notes:
            self.notes.append(message)
            print_note(self.console, message)

    @property
    def name(self) -> str:
        return f"{self.network.name}-{self.cfg.hardware.name}"


def read_inputs(cfg: Config, root: Path, folder: WorkFolder, console: Console) -> TuningInputs:
    """Import the network, load the model, look into the live store; raises as :func:`tencost.tune.stage.run`."""
    hardware, tuner = cfg.hardware, cfg.tuner
    compared = None
    if tuner.compare_with:
        compared = open_database(root / tuner.compare_with, hardware.target)
    if folder.cache_flush != flushes_caches(tuner, hardware):
        print_note(
            console,
            f"programs in {folder.path} were timed with {'flushed' if folder.cache_flush else 'warm'} caches, and so "
            f"are further ones; for tuner.cache_flush={str(tuner.cache_flush).lower()} tune into another folder: "
            "tuner.workdir=...",
        )
    chosen = choose_model(cfg, root, console)
    console.print(f"importing {cfg.network.name}")
    messages = folder.logs / "import.log"
    network, every = import_network(cfg, hardware, root, console, messages)
    tasks = [task for task in every if task.flop >= tuner.min_mflop * 1e6]
    if not tasks:
        raise TuneError(
            f"network {network.name!r} has no task of at least {tuner.min_mflop} MFLOP. Lower tuner.min_mflop."
        )
    others = folder.leave_out_others(by_workload(every))
    if others:
        print_note(
            console,
            f"{folder.path} has {others} programs that are not of {network.name} as its graph is written now; they "
            "stay, and do not count. Those from before weights were packed: tencost compile with "
            f"network.pack_weights=false and --database {folder.path}",
        )
    compared_network = network if compared is None else _network_of(compared, network, cfg)
    console.print("compiling it untuned")
    notes: list[str] = []
    with native_messages_to(messages):
        untuned = compile_untuned(network, hardware.target, notes.append)
    for message in notes:
        print_note(console, message)
    for output, why in meaningless(network).items():
        print_note(
            console,
            f"output {output} of {network.name} is {why}, as {network.computed_by} computes it: that the tuned network "
            "computes the same will say nothing. Choose another with network.output, or import it with trained weights",
        )
    store = _live_store(cfg.paths.live_store(root), hardware, folder.path, console)
    return TuningInputs(
        cfg=cfg,
        root=root,
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
        book=run_starting_points(cfg, chosen.model, store, console),
        options=program_timing(tuner, cache_flush=folder.cache_flush),
        notes=notes,
    )


def flushes_caches(tuner: TunerConfig, hardware: HardwareConfig) -> bool:
    """Return whether a new folder's programs are timed with flushed caches: where asked for, on CPUs."""
    return tuner.cache_flush and hardware.target.get("kind") == "llvm"


def program_timing(tuner: TunerConfig, *, cache_flush: bool) -> MeasureOptions:
    """Return how long programs are timed."""
    return MeasureOptions(
        number=tuner.number,
        repeat=tuner.repeat,
        min_repeat_ms=tuner.min_repeat_ms,
        cache_flush=cache_flush,
    )


def import_network(
    cfg: Config, hardware: HardwareConfig, root: Path, console: Console, messages: Path
) -> tuple[Network, list[NetworkTask]]:
    """Import cfg.network; return it with its tasks on a hardware, and print what a user should know of it.

    Args:
        cfg: names the network.
        hardware: what it is compiled for.
        root: the project's root.
        console: gets the messages.
        messages: file that gets those of TVM's C++ side.

    Raises:
        TuneError: it has shapes that are known only when it runs.
    """
    with native_messages_to(messages):
        register_cpu_intrinsics()
        network = load_network(cfg.network, root, target=hardware.target, is_deployed=True)
        tasks = network.tasks(hardware.target)
    check_shapes(network, tasks)
    for message in (*network.notes, layout_note(cfg.network.graph, tasks, hardware.target)):
        if message:
            print_note(console, message)
    return network, tasks


def _network_of(database: Any, network: Network, cfg: Config) -> Network:
    """Return the network, its weights packed or not, as a database to compare with has it.

    Raises:
        TuneError: it has no program of either, so that it would change nothing.
    """
    target = cfg.hardware.target
    for variant in (network, replace(network, packed=not network.packed)):
        if count_tuned(database, variant.tasks(target), target):
            return variant
    raise TuneError(
        f"tuner.compare_with={cfg.tuner.compare_with}: expected programs of {cfg.network.name} for "
        f"{target}, found none among its {len(database)}. Name one of this network, in the same "
        "layout and for the same target, or leave tuner.compare_with out"
    )


def choose_model(cfg: Config, root: Path, console: Console) -> NamedCostModel:
    """Load cfg.model_uri, or the champion of the hardware, or a model that learns from scratch (also if told so).

    Hardware whose champion nobody has promoted is served by its challenger; hardware of several cores without a model
    of its own by the champion of one of its cores; any other CPU by the champion of all CPUs, which knows it by its
    description; and where there is none of these, by the champion that this host's instruction sets choose, the
    registry's or the packaged one. A line names the model, and the reason why not the one before it. A model that
    cannot read MetaSchedule's candidates, as one of Ansor's programs, is none of them.

    Raises:
        RegistryError: cfg.model_uri is given and cannot be found.
        BundleError: it does not fit.
        FeatureError: cfg.model_uri is given and cannot read MetaSchedule's candidates.
    """
    from tencost.tune.cost_model import load_cost_model, scratch_cost_model

    hardware = cfg.hardware
    if cfg.model_uri == SCRATCH:
        return NamedCostModel(scratch_cost_model(spec_for(cfg.features)), SCRATCH)
    alias = default_alias()
    uris = [cfg.model_uri] if cfg.model_uri else _candidates(hardware, alias)
    failures: list[RegistryError | FeatureError] = []
    for uri in uris:
        try:
            model = load_cost_model(
                uri, frozen=not cfg.tuner.learn, device=attributes(hardware), root=root
            )
            break
        except (RegistryError, FeatureError) as error:
            if cfg.model_uri is not None:
                raise
            failures.append(error)
    else:
        if (chosen := _champion_of_host(cfg, alias, _first(failures), root, console)) is not None:
            return chosen
        print_note(
            console,
            f"No registered model for hardware {hardware.name} ({_first(failures)}) Learning from scratch; to use a "
            "model of another hardware: model_uri=models:/<name>@champion",
        )
        return NamedCostModel(scratch_cost_model(spec_for(cfg.features)), SCRATCH)
    if not cfg.model_uri and uri != uris[0]:
        print_note(console, _instead(hardware, uri, _first(failures), root))
    return _chosen(model, uri, console)


def _chosen(model: Any, uri: str, console: Console) -> NamedCostModel:
    """Return a model with its name, and print it."""
    bundle = model.bundle
    name, at, alias = uri.partition("@")
    label = name
    if (champion := packaged_at(bundle.folder)) is not None:
        name = label = champion.label
    elif at:
        name = f"{name}/{bundle.folder.name}"
        label = f"{name} ({alias})"
    console.print(f"model {label}: {bundle.info.family} on {bundle.info.feature_spec.name}")
    return NamedCostModel(model, name)


def _champion_of_host(
    cfg: Config, alias: str, failure: str, root: Path, console: Console
) -> NamedCostModel | None:
    """Return the champion that this host's instruction sets choose; None where none serves, or programs run elsewhere.

    Args:
        cfg: the configuration.
        alias: of the version that is used.
        failure: why the hardware has no model.
        root: the project.
        console: gets a line that says which and why.
    """
    from tencost.tune.cost_model import load_cost_model

    hardware = cfg.hardware
    is_host = hardware.target.get("kind") == "llvm" and hardware.runner is not RunnerKind.rpc
    if alias != CHAMPION or not is_host:
        return None
    try:
        champion, folder, why = champion_of_cpu(
            host_flags(), cpu_product_name(), failure, simd_bits=hardware.simd_bits, root=root
        )
        model = load_cost_model(
            folder, frozen=not cfg.tuner.learn, device=attributes(hardware), root=root
        )
    except (RegistryError, FeatureError):
        return None
    until = "until this run has taught it better"
    print_note(console, f"cost model for hardware {hardware.name} {until}: {why}")
    return _chosen(model, champion.uri, console)


def _first(failures: Sequence[RegistryError | FeatureError]) -> str:
    """Return why the hardware's own model does not serve: that it cannot, rather than that it lacks an alias."""
    unfit = next((error for error in failures if isinstance(error, FeatureError)), failures[0])
    return str(unfit)


def _candidates(hardware: HardwareConfig, alias: str) -> list[str]:
    """Return where a model for a hardware is looked for, the best first."""
    uris = [f"models:/tencost-{hardware.name}@{alias}"]
    # Who asks for another alias by TENCOST_ALIAS wants no version that nobody let there.
    if alias == CHAMPION:
        uris.append(f"models:/tencost-{hardware.name}@{CHALLENGER}")
    uris += [f"models:/tencost-{single.name}@{alias}" for single in one_core(hardware)]
    if hardware.target.get("kind") == "llvm":
        uris.append(f"models:/tencost-{EVERY_CPU}@{alias}")
    return list(dict.fromkeys(uris))


def _instead(hardware: HardwareConfig, uri: str, failure: str, root: Path) -> str:
    """Return a line that says which model ranks in place of the hardware's champion, and why."""
    name, _, alias = uri.removeprefix("models:/").partition("@")
    until = "until this run has taught it better"
    if alias == CHALLENGER:
        refused = objection(name, alias, root=root)
        why = f"it was not promoted ({refused})" if refused else "nobody has promoted it"
        return f"hardware {hardware.name} has no champion: its challenger ranks {until}; {why}"
    if name == f"tencost-{EVERY_CPU}":
        return (
            f"no registered model for hardware {hardware.name}: {name}, which knows a CPU by its description, ranks "
            f"{until}; {failure}"
        )
    return f"no registered model for {hardware.cores} cores ({hardware.name}): one core's ranks {until}; {failure}"


def _live_store(
    uri: str, hardware: HardwareConfig, folder: Path, console: Console
) -> RecordStore | None:
    """Return the live store; None, with a line, where what it needs is not installed, or it is of another machine."""
    different = another_machine(hardware)
    if different:
        print_note(
            console,
            f"this host is not the machine of hardware {hardware.name!r}: {different}. The store's "
            f"records are left alone; what is measured here stays in {folder}. For this host: tencost measure hardware "
            "hardware.name=...",
        )
        return None
    try:
        return open_live_store(uri)
    except MissingDependencyError as error:
        print_note(
            console,
            f"records stay in the database in {folder}: {error}. To bring them into a store where there is one: "
            f"tencost records import {folder} --hardware {hardware.name}",
        )
        return None


def run_starting_points(
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
            cores = cfg.hardware.cores
            print_note(
                console,
                f"no starting points of {cores} cores in the store: those of {book.hardware}",
            )
    shipped = None if model.bundle is None else shipped_starts(model.bundle.folder)
    if shipped is not None:
        book = book.joined(shipped)
    console.print(f"starting points: {len(book)} programs of {book.num_workloads} workloads")
    return book if len(book) else None
