"""Stage tune: a network tuned with MetaSchedule and a registered model, on the host or a device behind a tracker."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress

from tencost import signals
from tencost.config import Config, HardwareConfig, RunnerKind
from tencost.networks.network import variant_name
from tencost.tune.bars import plot_bars
from tencost.tune.batches import BatchLine, append_line, taken, told
from tencost.tune.compiled import check_linker, check_place
from tencost.tune.curve import CurvePoint, append_point, plot_curve, read_points
from tencost.tune.guard import Arm
from tencost.tune.hosts import Host, place_of
from tencost.tune.inputs import NOTE, Inputs, read_inputs
from tencost.tune.library_export import LibraryExport
from tencost.tune.network_record import record_tuned
from tencost.tune.peer import OnnxRuntime, onnx_runtime
from tencost.tune.progress import Outlook, Pace, progress, state
from tencost.tune.roofline.report import lines_of
from tencost.tune.summary import print_summary
from tencost.tune.workfolder import artifacts, open_folder, write_report
from tencost.workers.hardware import (
    check_cores,
    check_runnable,
    check_target,
    in_words,
    resolve_hardware,
)
from tencost.workers.tracker import RemoteAddress, check_tracker

if TYPE_CHECKING:
    from tencost.tracking.runs import TrackedRun
    from tencost.tune.conditions import Conditions
    from tencost.tune.cost_model import Round
    from tencost.tune.recording import Recorder
    from tencost.tune.session import Batch, Outcome, Session
    from tencost.tune.verify import Verified

BARS_FILE = "network.png"
_LOSERS = 5
"""Tasks that the closing table names for the time they lose."""


@dataclass(frozen=True)
class Tuned:
    """What tuning found: the session, where it stands and how it ended, what its pool compared, the conditions."""

    session: Session
    outlook: Outlook
    outcome: Outcome
    num_checked: int
    checked_s: float
    conditions: Conditions


def run(cfg: Config, root: Path, *, to: Path | None = None) -> Path:
    """Tune cfg.network on cfg.hardware until cfg.tuner.trials programs are measured; return the work folder.

    Args:
        cfg: the configuration.
        root: the project's root.
        to: a library, <name>.so, that the best network is written to with its runners, also where Ctrl-C ends the run.

    Raises:
        ConfigError: `to` is no name of a shared library, or nothing can be written there.
        HardwareError: the hardware's programs would crash on this host, or it has fewer cores; or no device is there.
        TuneError: the network cannot be tuned, the tuned network computes something else than PyTorch, or
            cfg.tuner.compare_with is no database.
        RegistryError: cfg.model_uri cannot be found.
    """
    from tencost.tracking.runs import start_run

    console = Console(stderr=True)
    hardware = _reached(resolve_hardware(cfg.hardware))
    console.print(f"tuning {in_words(hardware)}", markup=False, highlight=False, soft_wrap=True)
    if to is not None:
        check_place(to)
        check_linker(hardware)
    cfg = replace(cfg, hardware=hardware)
    name = variant_name(cfg.network)
    path = root / cfg.tuner.workdir / f"{name}-{hardware.name}"
    keeper = LibraryExport(to, console)
    with open_folder(path, name, hardware.name, hardware.target) as folder:
        try:
            inputs = read_inputs(cfg, root, folder, console)
        except KeyboardInterrupt:
            keeper.say_why_not(f"{signals.name()} came before the network and its model were read")
            raise
        tags = {"model": inputs.chosen.name}
        title = f"tune · {inputs.name}"
        try:
            with start_run(cfg, root, stage="tune", name=title, tags=tags) as tracked:
                tuned = tune(inputs, tracked)
                report = make_report(inputs, tuned, keeper)
                write(inputs, tuned, report, tracked)
                record_tuned(inputs, report)
        except KeyboardInterrupt:
            if to is not None and not (keeper.is_kept or keeper.given_up):
                database = folder.database(task.mod for task in inputs.tasks)
                with suppress(KeyboardInterrupt), closing(place_of(hardware)) as place:
                    _keep(inputs, database, keeper, place)
            keeper.say_why_not(
                f"a second {signals.name()} gave it up. Its programs are kept: the same command goes on, and "
                f"`tencost compile` with the same network and hardware and with --database {path} --to {to} writes it "
                "as it is"
            )
            raise
    print_summary(report, path, console)
    return path


def _reached(hardware: HardwareConfig) -> HardwareConfig:
    """Return the hardware if its programs can run on this host, or on a device that is there; raises HardwareError."""
    check_target(hardware)
    if hardware.runner is RunnerKind.rpc:
        check_tracker(RemoteAddress.of(hardware))
    else:
        check_runnable(hardware)
        check_cores(hardware)
    return hardware


def tune(inputs: Inputs, tracked: TrackedRun) -> Tuned:
    """Take over what the store knows, time the default schedules, tune; each batch is written when it is measured."""
    from tencost.measure.run import cpus_of
    from tencost.tune.conditions import Conditions
    from tencost.tune.session import Outcome, Session
    from tencost.workers.pool import CpuPlan, WorkerPool
    from tencost.workers.tracker import devices_of

    cfg, folder, console, model = inputs.cfg, inputs.folder, inputs.console, inputs.chosen.model
    cores = cpus_of(cfg.hardware)
    remote, count = devices_of(cfg.hardware)
    plan = CpuPlan.choose(cores, name=cfg.hardware.name) if remote is None else None
    log = folder.logs / "worker.log"
    pool = WorkerPool(inputs.options, cores, plan, log, remote=remote, workers=count)
    with closing(pool), progress(console) as bar:
        conditions = Conditions()
        shown = bar.add_task("default schedules", total=len(inputs.tasks), state="")
        writer = _BatchWriter(inputs, tracked, bar, shown)
        session = Session(
            inputs.tasks,
            cfg.hardware.target,
            cfg.tuner,
            model,
            folder,
            pool,
            threads=cfg.jobs or os.cpu_count() or 1,
            on_batch=writer.write,
            book=inputs.book,
        )
        outlook = writer.outlook = Outlook(session, cfg.hardware)
        try:
            conditions = Conditions.at_start(pool)
            if conditions.busy:
                console.print(f"This host is busy: {conditions.busy}. Times will scatter.", **NOTE)
            _adopt(inputs, session, writer.recorder)
            outcome = _search(inputs, session, outlook, bar, shown)
            conditions = conditions.at_end(pool)
        except KeyboardInterrupt:
            outcome = Outcome(0.0, True, folder.database(task.mod for task in inputs.tasks))
        finally:
            title = f"{inputs.name}, {inputs.chosen.name}"
            is_drawn = plot_curve(read_points(folder.curve), folder.plot, title)
        tuned = Tuned(session, outlook, outcome, pool.num_checked, pool.checked_s, conditions)
    if not is_drawn:
        told = "no plots: they need matplotlib, which is not installed (pip install 'tencost[pipeline]')"
        console.print(told, **NOTE)
    if outcome.settled:
        share = 100 * cfg.tuner.min_gain
        console.print(
            f"Tuning ended after {session.trials} programs: by its last rounds no task saves {share:g} % of all tasks' "
            "time by a minute more (tuner.min_gain; 0 goes on to tuner.trials)."
        )
    if remote is not None:
        told = "on a device programs are not compared one by one with their tasks; the whole network's output is"
        console.print(told, **NOTE)
    for task, why in session.not_compared.items() if remote is None else ():
        console.print(f"outputs of {task} cannot be compared: {why}", **NOTE)
    return tuned


def _adopt(inputs: Inputs, session: Session, recorder: Recorder) -> None:
    """Take over what the live store knows of the network's own workloads."""
    if inputs.store is None:
        return
    from tencost.tune.adopt import adopt

    recorder.keep_modules(inputs.store.uri)
    adoption = adopt(
        inputs.folder,
        inputs.tasks,
        session.ids,
        inputs.cfg.hardware,
        inputs.store,
        session.time_here,
    )
    if adoption.programs:
        inputs.console.print(
            f"{adoption.programs} programs of the live store taken over, {adoption.timed} of them timed here"
        )
    for note in adoption.notes:
        inputs.console.print(note, **NOTE)


def _search(
    inputs: Inputs, session: Session, outlook: Outlook, bar: Progress, shown: Any
) -> Outcome:
    """Time the default schedules, then tune until the budget is spent."""
    from tencost.tune.breakdown import beyond_tasks
    from tencost.tune.verify import MAX_DEFAULT_S

    session.measure_baseline(lambda done: bar.update(shown, completed=done))
    hardware = inputs.cfg.hardware
    if session.default_latency_s <= MAX_DEFAULT_S and hardware.runner is RunnerKind.local:
        outlook.beyond_s = beyond_tasks(inputs.network, inputs.untuned, inputs.tasks, hardware)
    curve = inputs.folder.curve
    if not curve.exists():
        append_point(curve, CurvePoint(trials=0, total_latency_s=session.total_latency_s))
    trials = inputs.cfg.tuner.trials
    bar.update(shown, description="preparing", completed=0, total=trials)
    return session.run(lambda: bar.update(shown, description="tuning", completed=session.trials))


class _BatchWriter:
    """Writes each measured batch: records, the curve, metrics, progress."""

    def __init__(self, inputs: Inputs, tracked: TrackedRun, bar: Progress, shown: Any) -> None:
        from tencost.tune.recording import Recorder, by_workload

        cfg, chosen = inputs.cfg, inputs.chosen
        bundle = chosen.model.bundle
        self._inputs, self._tracked, self._bar, self._shown = inputs, tracked, bar, shown
        self.outlook: Outlook | None = None
        self._pace = Pace()
        self.recorder = Recorder(
            inputs.network.name,
            cfg.hardware,
            cfg.tuner,
            chosen.name,
            inputs.folder.path.name,
            by_workload(inputs.tasks),
            model_tvm="" if bundle is None else bundle.info.versions.get("tvm", ""),
        )

    def write(self, batch: Batch) -> None:
        inputs, model = self._inputs, self._inputs.chosen.model
        programs = inputs.folder.new_programs()
        if inputs.store is not None:
            from tencost.tune.recording import write_records

            number = len(model.history)
            records = self.recorder.records(programs, batch.timings, batch.round, number)
            apart = write_records(inputs.store, records)
            if apart.reasons:
                told = f"{len(apart.reasons)} records are not for {inputs.store.uri}: {apart.reasons[0]}"
                inputs.console.print(told, **NOTE)
        append_point(inputs.folder.curve, _point(batch, inputs.chosen.name))
        if batch.round.num_measured:
            line = line_of(batch, inputs.chosen.name, learns=inputs.cfg.tuner.learn)
            append_line(inputs.folder.batches, line)
        remaining = max(0, inputs.cfg.tuner.trials - batch.trials)
        left_s = self._pace.left_s(len(batch.timings), batch.elapsed_s, remaining)
        assert self.outlook is not None
        told = state(batch, self.outlook, left_s)
        self._bar.update(self._shown, completed=batch.trials, state=told)
        self._tracked.log_metrics(_metrics(batch), step=batch.trials)


def make_report(inputs: Inputs, tuned: Tuned, keeper: LibraryExport) -> dict[str, Any]:
    """Return what the run found; the network is compared with PyTorch, kept, and timed if anything was measured.

    Raises:
        KeyboardInterrupt: Ctrl-C came before the default schedules were timed, so that there is nothing to tell.
        TuneError: the tuned network computes something else than PyTorch.
    """
    from tencost.tune.summary import weak_report

    session, outcome = tuned.session, tuned.outcome
    history = inputs.chosen.model.history
    verified = _verified(inputs, tuned, keeper)
    if not session.has_baseline:
        raise KeyboardInterrupt
    return {
        "network": inputs.network.name,
        "hardware": inputs.cfg.hardware.name,
        "model": inputs.chosen.name,
        "trials": session.trials,
        "tasks": len(inputs.tasks),
        "seconds": outcome.seconds,
        "interrupted": outcome.interrupted,
        "wrong_answers": session.num_wrong,
        "outputs_compared": tuned.num_checked,
        "outputs_compared_seconds": tuned.checked_s,
        "tasks_not_compared": len(session.not_compared),
        "tasks_tuning_latency_s": session.total_latency_s,
        "tasks_total_latency_s": session.total_latency_s,
        "tasks_default_latency_s": session.default_latency_s,
        "tasks_default_stopped": session.num_stopped,
        "tasks_default_limit_s": inputs.cfg.tuner.default_timeout_s,
        **tuned.conditions.report(),
        **_correlations(history),
        **weak_report(history),
        "above_the_roof": lines_of(tuned.outlook.placed(), _LOSERS),
        **verified,
    }


def _keep(inputs: Inputs, database: Any, keeper: LibraryExport, place: Host) -> Verified:
    """Compile the network with a database, compare its output with PyTorch's, keep it where it should be kept.

    Raises:
        KeyboardInterrupt: Ctrl-C came; it is kept nevertheless, unless it came twice.
        TuneError: the outputs differ.
    """
    from tencost.tune.compiled import Origin
    from tencost.tune.deploy import better_than_rules, count_known
    from tencost.tune.verify import compile_and_compare

    network, hardware, folder = inputs.network, inputs.cfg.hardware, inputs.folder
    database = better_than_rules(database, inputs.every, hardware.target, folder.rule_s)
    with keeper.held():
        verified = compile_and_compare(
            network, hardware, inputs.untuned, database, inputs.tasks, folder, inputs.options,
            lambda told: inputs.console.print(told, **NOTE), place,
        )  # fmt: skip
        known = count_known(database, inputs.every, hardware.target)
        origin = Origin(folder.path.name, len(inputs.every), known)
        keeper.keep(network, hardware, verified.built, origin)
    return verified


def _verified(inputs: Inputs, tuned: Tuned, keeper: LibraryExport) -> dict[str, Any]:
    """Compile the network, compare, keep and time it; Ctrl-C leaves out what has not been timed."""
    from tencost.tune.deploy import better_than_rules, compile_network, count_known
    from tencost.tune.in_network import faster_in_network
    from tencost.tune.verify import time_network

    session = tuned.session
    if not (session.trials > 0 or keeper.to):
        return {}
    network, hardware, compared = inputs.network, inputs.cfg.hardware, inputs.compared
    rule_s = inputs.folder.rule_s
    database = better_than_rules(tuned.outcome.database, inputs.every, hardware.target, rule_s)
    values: dict[str, Any] = {}
    with (
        inputs.console.status("compiling and timing the network"),
        closing(place_of(hardware)) as place,
    ):
        try:
            database = faster_in_network(network, hardware, inputs.every, database)
            verified = _keep(inputs, database, keeper, place)
            values |= verified.values
            if session.trials > 0 and session.has_baseline:
                built = {"tuned": verified.built, "default": inputs.untuned}
                if compared is not None:
                    known = inputs.compared_network
                    built["compared"] = compile_network(known, hardware.target, compared)
                if hardware.target.get("kind") == "llvm":
                    built["rules"] = compile_network(network, hardware.target, None, by_rule=True)
                values |= time_network(
                    network, hardware, built, database, session, lambda: _peer(inputs), place
                )
        except KeyboardInterrupt:
            if not values:
                raise
            values["interrupted"] = True
    if compared is not None:
        tasks = inputs.compared_network.tasks(hardware.target, inputs.cfg.tuner.min_mflop)
        values["compared_tasks"] = count_known(compared, tasks, hardware.target)
    return values


def _peer(inputs: Inputs) -> OnnxRuntime | None:
    """Return the network as ONNX Runtime runs it; None where it does not, or on what is no CPU of this host."""
    hardware = inputs.cfg.hardware
    if hardware.target.get("kind") != "llvm" or hardware.runner is RunnerKind.rpc:
        return None
    return onnx_runtime(
        inputs.cfg.network, inputs.root, inputs.network.inputs, hardware.cores,
        lambda told: inputs.console.print(told, **NOTE),
    )  # fmt: skip


def write(inputs: Inputs, tuned: Tuned, report: dict[str, Any], tracked: TrackedRun) -> None:
    """Write report and plot into the folder, figures and files into the MLflow run."""
    folder = inputs.folder
    write_report(folder, report)
    if "network_latency_s" in report:
        plot_bars(report, folder.path / BARS_FILE, inputs.name)
    final = {f"tune/{key}": value for key, value in report.items() if isinstance(value, float)}
    tracked.log_metrics(final, step=tuned.session.trials)
    for file in artifacts(folder):
        tracked.log_artifact(file)


def _point(batch: Batch, model: str) -> CurvePoint:
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


def line_of(batch: Batch, model: str, *, learns: bool) -> BatchLine:
    """Return what is kept of a batch: how well it was predicted before the model saw it."""
    ranked = batch.round
    score = ranked.scores[ranked.arm]
    return BatchLine(
        trials=batch.trials,
        task=batch.task.name,
        programs=ranked.num_measured,
        failed=ranked.num_failed,
        k=taken(ranked.num_measured),
        model=model,
        learns=learns,
        arm=ranked.arm.value,
        p_rmse=score.p_rmse,
        top_k=score.top_k,
        spearman=score.spearman,
        kendall=ranked.kendall,
        arms=told(ranked.scores),
        task_latency_s=batch.task_latency_s,
        total_latency_s=batch.total_latency_s,
    )


def _metrics(batch: Batch) -> dict[str, float]:
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
        "tune/p_rmse": batch.round.scores[batch.round.arm].p_rmse,
        "tune/top_k": batch.round.scores[batch.round.arm].top_k,
        "tune/top_k_of_chance": taken(batch.round.num_measured) / batch.round.num_measured,
    }
    for arm, score in batch.round.scores.items():
        name = "model" if arm is Arm.registered else arm.value
        values |= {f"tune/{name}_p_rmse": score.p_rmse, f"tune/{name}_top_k": score.top_k}
    return {name: value for name, value in values.items() if value is not None}


def _correlations(history: Sequence[Round]) -> dict[str, float]:
    """Return the mean rank correlations over this run's rounds."""
    means = {}
    for name in ("spearman", "kendall", "base_spearman", "residual_spearman", "scratch_spearman"):
        values = [getattr(item, name) for item in history if getattr(item, name) is not None]
        if values:
            means[f"mean_{name}"] = statistics.fmean(values)
    return means
