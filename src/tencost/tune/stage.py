"""Stage tune: a network tuned with MetaSchedule and a registered model, on the host."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tencost.config import Config, RunnerKind
from tencost.errors import HardwareError, MissingDependencyError, RegistryError, TuneError
from tencost.features.intrinsics import register_cpu_intrinsics
from tencost.measure.hardware import check_runnable, resolve_hardware
from tencost.networks.network import variant_name
from tencost.register.starts import StartBook, shipped_starts
from tencost.tune.bars import plot_bars
from tencost.tune.closing import print_summary
from tencost.tune.curve import CurvePoint, append_point, plot_curve, read_points
from tencost.tune.guard import Arm
from tencost.tune.workfolder import WorkFolder, artifacts, open_folder, write_report

if TYPE_CHECKING:
    from tencost.store.record_store import RecordStore

BARS_FILE = "network.png"
_NOTE: dict[str, Any] = {"style": "yellow", "markup": False, "highlight": False, "soft_wrap": True}

SCRATCH = "scratch"
"""model_uri of a run without a registered model; the name of its model."""


@dataclass(frozen=True)
class Chosen:
    """The cost model of a run and what it is called in records and reports."""

    model: Any
    name: str


def run(cfg: Config, root: Path) -> Path:
    """Tune cfg.network on cfg.hardware until cfg.tuner.trials programs are measured; return the work folder.

    Raises:
        HardwareError: the hardware's programs would crash on this host.
        TuneError: the network cannot be tuned, the tuned network computes something else than PyTorch, or
            cfg.tuner.compare_with is no database.
        RegistryError: cfg.model_uri cannot be found.
    """
    console = Console(stderr=True)
    hardware = resolve_hardware(cfg.hardware)
    if hardware.runner is RunnerKind.rpc:
        raise HardwareError(
            f"hardware {hardware.name!r} is reached through an RPC tracker, and `tencost tune` measures on the host it "
            "runs on. Run it on the device itself: hardware.runner=local"
        )
    check_runnable(hardware)
    name = variant_name(cfg.network)
    path = root / cfg.tuner.workdir / f"{name}-{hardware.name}"
    with open_folder(path, name, hardware.name, hardware.target) as folder:
        return _run(replace(cfg, hardware=hardware), root, folder, console)


def _run(cfg: Config, root: Path, folder: WorkFolder, console: Console) -> Path:
    from tencost.measure.run import cpus_of
    from tencost.networks.network import load_network
    from tencost.train.tracking import start_run
    from tencost.tune.deploy import compile_untuned, count_known, meaningless, open_database
    from tencost.tune.recording import Recorder
    from tencost.tune.session import Batch, Session
    from tencost.tune.verify import verify
    from tencost.workers.evaluator import MeasureOptions
    from tencost.workers.pool import CpuPlan, WorkerPool

    hardware = cfg.hardware
    compared = open_database(root / cfg.tuner.compare_with) if cfg.tuner.compare_with else None
    console.print(f"importing {cfg.network.name}")
    with _native_messages_to(folder.logs / "import.log"):
        register_cpu_intrinsics()
        network = load_network(cfg.network, root)
        tasks = network.tasks(hardware.target, cfg.tuner.min_mflop)
    if not tasks:
        raise TuneError(
            f"network {network.name!r} has no task of at least {cfg.tuner.min_mflop} MFLOP. Lower tuner.min_mflop."
        )
    console.print("compiling it untuned")
    with _native_messages_to(folder.logs / "import.log"):
        untuned = compile_untuned(network, hardware.target)
    for output, why in meaningless(network).items():
        console.print(
            f"output {output} of {network.name} is {why}, as PyTorch computes it: that the tuned network computes the "
            "same will say nothing. Choose another with network.output, or import it with trained weights",
            **_NOTE,
        )
    chosen = choose_model(cfg, root, console)
    options = MeasureOptions(
        number=cfg.tuner.number, repeat=cfg.tuner.repeat, min_repeat_ms=cfg.tuner.min_repeat_ms
    )
    cores = cpus_of(hardware)
    cpus = CpuPlan.choose(cores, name=hardware.name)
    store = _live_store(str(root / cfg.paths.store), cfg.hardware.name, folder.path, console)
    pool = WorkerPool(options, cores, cpus, folder.logs / "worker.log")
    name = f"{network.name}-{hardware.name}"
    started = start_run(cfg, root, stage="tune", name=f"tune · {name}", tags={"model": chosen.name})
    with started as tracked, _progress(console) as bar:
        shown = bar.add_task("default schedules", total=len(tasks), state="")

        def on_batch(batch: Batch) -> None:
            number = len(chosen.model.history)
            programs = folder.new_programs()
            if store is not None:
                store.write(recorder.records(programs, batch.timings, batch.round, number))
            append_point(folder.curve, _point(batch, chosen.name))
            bar.update(shown, completed=batch.trials, state=_state(batch))
            tracked.log_metrics(_metrics(batch), step=batch.trials)

        session = Session(
            tasks,
            hardware.target,
            cfg.tuner,
            chosen.model,
            folder,
            pool,
            threads=cfg.jobs or os.cpu_count() or 1,
            on_batch=on_batch,
            book=_starting_points(cfg, chosen.model, store, console),
        )
        by_id = dict(zip(session.ids, tasks, strict=True))
        bundle = chosen.model.bundle
        recorder = Recorder(
            network.name,
            hardware,
            cfg.tuner,
            chosen.name,
            folder.path.name,
            by_id,
            model_tvm="" if bundle is None else bundle.info.versions.get("tvm", ""),
        )
        if store is not None:
            from tencost.tune.adopt import adopt

            recorder.keep_modules(store.uri)
            adopted = adopt(folder, tasks, session.ids, hardware, store)
            if adopted:
                console.print(f"{adopted} programs of the live store taken over, with their times")
        try:
            session.measure_baseline(lambda done: bar.update(shown, completed=done))
            if not folder.curve.exists():
                append_point(
                    folder.curve, CurvePoint(trials=0, total_latency_s=session.total_latency_s)
                )
            bar.update(shown, description="preparing", completed=0, total=cfg.tuner.trials)
            outcome = session.run(
                lambda: bar.update(shown, description="tuning", completed=session.trials)
            )
        finally:
            pool.close()
            is_drawn = plot_curve(read_points(folder.curve), folder.plot, f"{name}, {chosen.name}")
        bar.stop()
        if not is_drawn:
            console.print(
                "no plots: they need matplotlib, which is not installed (pip install 'tencost[pipeline]')",
                **_NOTE,
            )
        for place, why in pool.unchecked.items():
            task = session.tasks[int(place.stem)].name
            console.print(f"outputs of {task} cannot be compared: {why}", style="yellow")
        databases = {"tuned": outcome.database}
        if compared is not None:
            databases["compared"] = compared
        values = {}
        if session.trials > 0:
            with console.status("compiling and timing the network"):
                values = verify(network, hardware, untuned, databases, session, folder, options)
            if compared is not None:
                values["compared_tasks"] = count_known(compared, tasks, hardware.target)
        report = {
            "network": network.name,
            "hardware": hardware.name,
            "model": chosen.name,
            "trials": session.trials,
            "tasks": len(tasks),
            "seconds": outcome.seconds,
            "interrupted": outcome.interrupted,
            "wrong_answers": session.num_wrong,
            "outputs_compared": pool.num_checked,
            "outputs_compared_seconds": pool.checked_s,
            "tasks_not_compared": len(pool.unchecked),
            "tasks_total_latency_s": session.total_latency_s,
            "tasks_default_latency_s": _default_latency(session, folder),
            **_correlations(chosen.model),
            **values,
        }
        write_report(folder, report)
        if "network_latency_s" in report:
            plot_bars(report, folder.path / BARS_FILE, name)
        final = {f"tune/{key}": value for key, value in report.items() if isinstance(value, float)}
        tracked.log_metrics(final, step=session.trials)
        for file in artifacts(folder):
            tracked.log_artifact(file)
    print_summary(report, folder.path, console)
    return folder.path


def choose_model(cfg: Config, root: Path, console: Console) -> Chosen:
    """Load cfg.model_uri, or the champion of the hardware, or a model that learns from scratch (also if told so).

    Raises:
        RegistryError: cfg.model_uri is given and cannot be found.
        BundleError: it does not fit.
    """
    from tencost.features.extractor import spec_for
    from tencost.tune.cost_model import load_cost_model, scratch_cost_model

    hardware = cfg.hardware
    if cfg.model_uri == SCRATCH:
        return Chosen(scratch_cost_model(spec_for(cfg.features)), SCRATCH)
    uri = cfg.model_uri or f"models:/tencost-{hardware.name}@champion"
    try:
        model = load_cost_model(
            uri, frozen=not cfg.tuner.learn, device=hardware.device_columns(), root=root
        )
    except RegistryError as error:
        if cfg.model_uri is not None:
            raise
        console.print(
            f"No registered model for hardware {hardware.name} ({error}) Learning from scratch; to use a model of "
            "another hardware: model_uri=models:/<name>@champion",
            style="yellow",
        )
        return Chosen(scratch_cost_model(spec_for(cfg.features)), SCRATCH)
    folder = model.bundle.folder
    name = f"{uri.split('@')[0]}/{folder.name}" if "@" in uri else uri
    console.print(
        f"model {name}: {model.bundle.info.family} on {model.bundle.info.feature_spec.name}"
    )
    return Chosen(model, name)


def _live_store(uri: str, hardware: str, folder: Path, console: Console) -> RecordStore | None:
    """Return the live store, or None where what it needs is not installed, which is said."""
    from tencost.tune.recording import open_store

    try:
        return open_store(uri)
    except MissingDependencyError as error:
        console.print(
            f"records stay in the database in {folder}: {error}. To bring them into a store where there is one: "
            f"tencost records import {folder} hardware={hardware}",
            **_NOTE,
        )
        return None


def _starting_points(
    cfg: Config, model: Any, store: RecordStore | None, console: Console
) -> StartBook | None:
    """Return what the model's bundle ships and what the live store has for the hardware; None where neither has any."""
    if cfg.tuner.starts == 0:
        return None
    book = StartBook(cfg.hardware.name, cfg.hardware.target, ())
    if store is not None:
        from tencost.register.start_records import live_starts

        book = live_starts(cfg, store.uri)
    shipped = None if model.bundle is None else shipped_starts(model.bundle.folder)
    if shipped is not None:
        book = book.joined(shipped)
    console.print(f"starting points: {len(book)} programs of {book.num_workloads} workloads")
    return book if len(book) else None


def _point(batch: Any, model: str) -> CurvePoint:
    return CurvePoint(
        trials=batch.trials,
        total_latency_s=batch.total_latency_s,
        task=batch.task.name,
        task_latency_s=batch.task_latency_s,
        failed=batch.round.num_failed,
        spearman=batch.round.spearman,
        elapsed_s=round(batch.elapsed_s, 3),
        model=model,
    )


def _state(batch: Any) -> str:
    rank = "  --" if batch.round.spearman is None else f"{batch.round.spearman:+.2f}"
    failed = f", {batch.round.num_failed} failed" if batch.round.num_failed else ""
    arm = "" if batch.round.next_arm is Arm.residual else f" by {batch.round.next_arm}"
    wrong = f", {batch.num_wrong} WRONG in all" if batch.num_wrong else ""
    best = f"best {batch.total_latency_s * 1e3:.3f} ms"
    return f"{best} | rank {rank}{arm}{failed}{wrong} | {batch.task.name[:20]}"


def _metrics(batch: Any) -> dict[str, float]:
    values = {
        "tune/total_latency_ms": batch.total_latency_s * 1e3,
        "tune/failed": float(batch.round.num_failed),
        "tune/wrong_answers": float(batch.num_wrong),
        "tune/fit_seconds": batch.round.fit_seconds,
        "tune/residual_weight": batch.round.residual_weight,
        "tune/spearman": batch.round.spearman,
        "tune/kendall": batch.round.kendall,
        "tune/model_spearman": batch.round.base_spearman,
        "tune/residual_spearman": batch.round.residual_spearman,
        "tune/scratch_spearman": batch.round.scratch_spearman,
        "tune/arm": float(list(Arm).index(batch.round.arm)),
    }
    return {name: value for name, value in values.items() if value is not None}


def _correlations(model: Any) -> dict[str, float]:
    """Return the mean rank correlations over this run's rounds."""
    means = {}
    for name in ("spearman", "kendall", "base_spearman", "residual_spearman", "scratch_spearman"):
        values = [getattr(item, name) for item in model.history if getattr(item, name) is not None]
        if values:
            means[f"mean_{name}"] = statistics.fmean(values)
    return means


def _default_latency(session: Any, folder: WorkFolder) -> float:
    pairs = zip(session.tasks, session.ids, strict=True)
    return float(sum(task.weight * folder.baseline_s[identity] for task, identity in pairs))


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[state]}"),
        console=console,
    )


@contextmanager
def _native_messages_to(path: Path) -> Iterator[None]:
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
