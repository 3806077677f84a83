"""Stage tune: a network tuned with MetaSchedule and a registered model, on the host or a device behind a tracker."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress, TaskID

from tencost import signals
from tencost.config import Config, RunnerKind
from tencost.errors import ConfigError
from tencost.measure.run import cpus_of
from tencost.measure.stage import progress_bar
from tencost.networks.network import variant_name
from tencost.tune.batches import BatchLine, append_batch_line, top_k_size
from tencost.tune.curve import CurvePoint, append_point, plot_curve, read_points
from tencost.tune.deploy import better_than_rules, compile_network, count_tuned, faster_in_network
from tencost.tune.guard import Arm
from tencost.tune.hosts import Host, OnnxRuntime, check_host, host_of, onnx_runtime
from tencost.tune.inputs import TuningInputs, flushes_caches, read_inputs
from tencost.tune.library_export import LibraryExport, LibraryOrigin, check_linker, check_place
from tencost.tune.progress import Outlook, Pace, progress_line
from tencost.tune.recording import Recorder, by_workload, record_batch, record_tuned
from tencost.tune.reporting import print_note, say
from tencost.tune.roofline.report import lines_of
from tencost.tune.session import MeasuredBatch, RunOutcome, TuningSession
from tencost.tune.summary import (
    Conditions,
    mean_correlations,
    plot_bars,
    print_summary,
    weak_tasks,
)
from tencost.tune.verify import Verified, beyond_tasks, compile_and_compare, time_network
from tencost.tune.workfolder import BARS_FILE, artifacts, open_folder, write_run_report
from tencost.workers.hardware import check_target, describe_hardware, resolve_hardware
from tencost.workers.pool import CpuPlan, WorkerPool
from tencost.workers.tracker import devices_of

if TYPE_CHECKING:
    from tencost.tracking.runs import TrackedRun

_SLOWEST = 5
"""Tasks that the closing table names for the time they lose."""


@dataclass(frozen=True)
class Tuned:
    """A session after tuning, with its roofs, its outcome, what its pool compared, the conditions of the host."""

    session: TuningSession
    outlook: Outlook
    outcome: RunOutcome
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
        ConfigError: `to` is no name of a shared library, nothing can be written there, or network.buckets is given.
        HardwareError: the hardware's programs would crash on this host, or it has fewer cores; or no device is there.
        TuneError: the network cannot be tuned, the tuned network computes something else than PyTorch, or
            cfg.tuner.compare_with is no database.
        RegistryError: cfg.model_uri cannot be found.
    """
    from tencost.tracking.runs import start_run

    console = Console(stderr=True)
    if cfg.network.buckets:
        raise ConfigError(
            f"network.buckets={cfg.network.buckets}: expected one size, as each has tasks of its own. Tune them one "
            "after the other, network.batch=8 or network.size=8, then `tencost compile` with network.buckets uses all "
            "programs"
        )
    hardware = resolve_hardware(cfg.hardware)
    check_target(hardware)
    check_host(hardware)
    say(console, f"tuning {describe_hardware(hardware)}")
    if to is not None:
        check_place(to)
        check_linker(hardware)
    cfg = replace(cfg, hardware=hardware)
    name = variant_name(cfg.network)
    path = root / cfg.tuner.workdir / f"{name}-{hardware.name}"
    export = LibraryExport(to, console)
    cache_flush = flushes_caches(cfg.tuner, hardware)
    with open_folder(path, name, hardware.name, hardware.target, cache_flush=cache_flush) as folder:
        try:
            with signals.not_swallowed():
                inputs = read_inputs(cfg, root, folder, console)
        except KeyboardInterrupt:
            export.say_why_not(f"{signals.name()} came before the network was compiled")
            raise
        tags = {"model": inputs.chosen.name}
        title = f"tune · {inputs.name}"
        try:
            with start_run(cfg, root, stage="tune", name=title, tags=tags) as tracked:
                tuned = tune(inputs, tracked)
                report = make_report(inputs, tuned, export)
                write_results(inputs, tuned, report, tracked)
                record_tuned(inputs, report)
        except KeyboardInterrupt:
            if to is not None and not (export.is_written or export.given_up):
                database = folder.database(task.mod for task in inputs.tasks)
                with suppress(KeyboardInterrupt), closing(host_of(hardware)) as host:
                    _export(inputs, _worth_it(inputs, database), export, host, {})
            export.say_why_not(
                f"a second {signals.name()} gave it up. Its programs are kept: the same command goes on, and "
                f"`tencost compile` with the same network and hardware and with --database {path} --to {to} writes it "
                "as it is"
            )
            raise
    print_summary(report, path, console)
    return path


def tune(inputs: TuningInputs, tracked: TrackedRun) -> Tuned:
    """Adopt the store's programs, time the tasks untuned, tune; each batch is written when it is measured."""
    cfg, folder, console = inputs.cfg, inputs.folder, inputs.console
    cores = cpus_of(cfg.hardware)
    remote, count = devices_of(cfg.hardware)
    plan = CpuPlan.choose(cores, name=cfg.hardware.name) if remote is None else None
    log = folder.logs / "worker.log"
    pool = WorkerPool(inputs.options, cores, plan, log, remote=remote, workers=count)
    with closing(pool), progress_bar(console) as bar:
        conditions = Conditions()
        line = bar.add_task("untuned", total=len(inputs.tasks), state="")
        writer = _BatchWriter(inputs, tracked, bar, line)
        session = TuningSession(
            inputs.tasks,
            cfg.hardware.target,
            cfg.tuner,
            inputs.chosen.model,
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
                print_note(console, f"This host is busy: {conditions.busy}. Times will scatter.")
            _adopt(inputs, session, writer.recorder)
            outcome = _search(inputs, session, outlook, bar, line)
            conditions = conditions.probed(pool)
        except KeyboardInterrupt:
            outcome = RunOutcome(0.0, True, folder.database(task.mod for task in inputs.tasks))
        finally:
            title = f"{inputs.name}, {inputs.chosen.name}"
            is_drawn = plot_curve(read_points(folder.curve), folder.plot, title)
        tuned = Tuned(session, outlook, outcome, pool.num_checked, pool.checked_s, conditions)
    if not is_drawn:
        print_note(
            console,
            "no plots: they need matplotlib, which is not installed (pip install 'tencost[pipeline]')",
        )
    if outcome.settled:
        share = 100 * cfg.tuner.min_gain
        console.print(
            f"Tuning ended after {session.trials} programs: by its last rounds no task saves {share:g} % of all tasks' "
            "time by a minute more (tuner.min_gain; 0 goes on to tuner.trials)."
        )
    if remote is not None:
        print_note(
            console,
            "on a device programs are not compared one by one with their tasks; the whole network's output is",
        )
    else:
        for task, why in session.not_compared.items():
            print_note(console, f"outputs of {task} cannot be compared: {why}")
    return tuned


def _adopt(inputs: TuningInputs, session: TuningSession, recorder: Recorder) -> None:
    """Take over the live store's programs of the network's own workloads."""
    if inputs.store is None:
        return
    from tencost.tune.adopt import adopt

    recorder.keep_modules(inputs.store.uri)
    hardware = inputs.cfg.hardware
    adoption = adopt(
        inputs.folder, inputs.tasks, session.ids, hardware, inputs.store, session.time_here
    )
    if adoption.programs:
        inputs.console.print(
            f"{adoption.programs} programs of the live store taken over, {adoption.timed} of them timed here"
        )
    for message in adoption.notes:
        print_note(inputs.console, message)


def _search(
    inputs: TuningInputs, session: TuningSession, outlook: Outlook, bar: Progress, line: TaskID
) -> RunOutcome:
    """Time the tasks untuned, then tune until the budget is spent."""
    session.measure_untuned(lambda number: bar.update(line, completed=number))
    outlook.beyond_s = beyond_tasks(inputs.network, inputs.untuned, session, inputs.cfg.hardware)
    curve = inputs.folder.curve
    if not curve.exists():
        append_point(curve, CurvePoint(trials=0, total_latency_s=session.total_latency_s))
    bar.update(line, description="preparing", completed=0, total=inputs.cfg.tuner.trials)
    return session.run(
        lambda: bar.update(line, description="tuning", completed=session.trials),
        outlook.above_by_task,
    )


class _BatchWriter:
    """Writes each measured batch: records, the curve, metrics, progress."""

    def __init__(
        self, inputs: TuningInputs, tracked: TrackedRun, bar: Progress, line: TaskID
    ) -> None:
        cfg, chosen = inputs.cfg, inputs.chosen
        bundle = chosen.model.bundle
        self._inputs, self._tracked, self._bar, self._line = inputs, tracked, bar, line
        self.outlook: Outlook | None = None
        self._pace = Pace()
        self.recorder = Recorder(
            inputs.network.name,
            cfg.hardware,
            replace(cfg.tuner, cache_flush=inputs.folder.cache_flush),
            chosen.name,
            inputs.folder.path.name,
            by_workload(inputs.tasks),
            model_tvm="" if bundle is None else bundle.info.versions.get("tvm", ""),
        )

    def write(self, batch: MeasuredBatch) -> None:
        assert self.outlook is not None
        inputs, name, tuner = self._inputs, self._inputs.chosen.name, self._inputs.cfg.tuner
        programs = inputs.folder.new_programs()
        if inputs.store is not None:
            number = len(inputs.chosen.model.history)
            records = self.recorder.records(programs, batch.timings, batch.round, number)
            reasons = record_batch(inputs.store, records).reasons
            if reasons:
                uri = inputs.store.uri
                print_note(
                    inputs.console, f"{len(reasons)} records are not for {uri}: {reasons[0]}"
                )
        append_point(inputs.folder.curve, CurvePoint.of(batch, name))
        if batch.round.num_measured:
            append_batch_line(inputs.folder.batches, BatchLine.of(batch, name, learns=tuner.learn))
        remaining = max(0, tuner.trials - batch.trials)
        remaining_s = self._pace.remaining_s(len(batch.timings), batch.elapsed_s, remaining)
        text = progress_line(batch, self.outlook, remaining_s, inputs.console.width)
        self._bar.update(self._line, completed=batch.trials, state=text)
        self._tracked.log_metrics(_metrics(batch), step=batch.trials)


def _metrics(batch: MeasuredBatch) -> dict[str, float]:
    ranked = batch.round
    score = ranked.score(ranked.arm)
    values = {
        "total_latency_ms": batch.total_latency_s * 1e3,
        "failed": float(ranked.num_failed),
        "wrong_answers": float(batch.num_wrong),
        "fit_seconds": ranked.fit_seconds,
        "residual_weight": ranked.residual_weight,
        "spearman": score.spearman,
        "kendall": ranked.kendall,
        "arm": float(list(Arm).index(ranked.arm)),
        "p_rmse": score.p_rmse,
        "top_k": score.top_k,
    }
    if ranked.num_measured:
        values["top_k_of_chance"] = top_k_size(ranked.num_measured) / ranked.num_measured
    for arm, score in ranked.scores.items():
        name = "model" if arm is Arm.registered else arm.value
        values |= {
            f"{name}_spearman": score.spearman,
            f"{name}_p_rmse": score.p_rmse,
            f"{name}_top_k": score.top_k,
        }
    return {f"tune/{name}": value for name, value in values.items() if value is not None}


def make_report(inputs: TuningInputs, tuned: Tuned, export: LibraryExport) -> dict[str, Any]:
    """Return the run's report; the network is compared with PyTorch, exported, and timed if anything was measured.

    Raises:
        KeyboardInterrupt: Ctrl-C came before the tasks were timed untuned, so that there is nothing to report.
        TuneError: the tuned network computes something else than PyTorch.
    """
    session, outcome = tuned.session, tuned.outcome
    history = inputs.chosen.model.history
    verified = _verified(inputs, tuned, export)
    if not session.has_untuned_times:
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
        "tasks_untuned_latency_s": session.untuned_latency_s,
        "tasks_untuned_stopped": session.num_stopped,
        "tasks_untuned_limit_s": inputs.cfg.tuner.default_timeout_s,
        **tuned.conditions.report(),
        **mean_correlations(history),
        "not_ranked": weak_tasks(history),
        "above_the_roof": lines_of(tuned.outlook.placed(), _SLOWEST),
        **verified,
    }


def _worth_it(inputs: TuningInputs, database: Any) -> Any:
    """Return a database of the programs that are faster than by rule."""
    target = inputs.cfg.hardware.target
    return better_than_rules(database, inputs.every, target, inputs.folder.untuned_s)


def _export(
    inputs: TuningInputs, database: Any, export: LibraryExport, host: Host, values: dict[str, Any]
) -> Verified:
    """Compile the network with a database, compare its output with PyTorch's, write the library if one is asked for.

    Args:
        inputs: what the run has read.
        database: its schedules.
        export: where the library goes.
        host: where the network runs.
        values: gets what the comparison found, before Ctrl-C that came meanwhile is raised.

    Raises:
        KeyboardInterrupt: Ctrl-C came; it is written nevertheless, unless it came twice.
        TuneError: the outputs differ.
    """
    network, hardware, folder = inputs.network, inputs.cfg.hardware, inputs.folder
    with export.holding_interrupts():
        verified = compile_and_compare(
            network, hardware, inputs.untuned, database, inputs.tasks, folder, inputs.options, host, inputs.note
        )  # fmt: skip
        count = count_tuned(database, inputs.every, hardware.target)
        origin = LibraryOrigin(folder.path.name, len(inputs.every), count)
        export.write(network, hardware, verified.built, origin)
        values |= verified.values
    return verified


def _verified(inputs: TuningInputs, tuned: Tuned, export: LibraryExport) -> dict[str, Any]:
    """Compile the network, compare, export and time it; Ctrl-C leaves out what has not been timed."""
    session = tuned.session
    if not (session.trials > 0 or export.to):
        return {}
    network, hardware, compared = inputs.network, inputs.cfg.hardware, inputs.compared
    values: dict[str, Any] = {}
    with (
        inputs.console.status("compiling and timing the network"),
        closing(host_of(hardware)) as host,
    ):
        database = _worth_it(inputs, tuned.outcome.database)
        try:
            with signals.not_swallowed():
                database = faster_in_network(
                    network, hardware, inputs.every, database, inputs.untuned
                )
            verified = _export(inputs, database, export, host, values)
            if session.trials > 0 and session.has_untuned_times:
                is_by_rule = hardware.target.get("kind") == "llvm"
                untuned = "rules" if is_by_rule else "default"
                built = {"tuned": verified.built, untuned: inputs.untuned}
                with signals.not_swallowed():
                    if compared is not None:
                        built["compared"] = compile_network(
                            inputs.compared_network, hardware.target, compared
                        )
                values |= time_network(
                    network, hardware, built, database, session, lambda: _onnx_runtime(inputs), host
                )
        except KeyboardInterrupt:
            if not values:
                raise
            values["interrupted"] = True
    if compared is not None:
        target = hardware.target
        tasks = inputs.compared_network.tasks(target, inputs.cfg.tuner.min_mflop)
        values["compared_tasks"] = count_tuned(compared, tasks, target)
    return values


def _onnx_runtime(inputs: TuningInputs) -> OnnxRuntime | None:
    """Return the network as ONNX Runtime runs it; None where it does not, or on what is no CPU of this host."""
    hardware = inputs.cfg.hardware
    if hardware.target.get("kind") != "llvm" or hardware.runner is RunnerKind.rpc:
        return None
    return onnx_runtime(
        inputs.cfg.network, inputs.root, inputs.network.inputs, hardware.cores,
        lambda message: print_note(inputs.console, message),
    )  # fmt: skip


def write_results(
    inputs: TuningInputs, tuned: Tuned, report: dict[str, Any], tracked: TrackedRun
) -> None:
    """Write report and plot into the folder, figures and files into the MLflow run."""
    folder = inputs.folder
    write_run_report(folder, report)
    if "network_latency_s" in report:
        plot_bars(report, folder.path / BARS_FILE, inputs.name)
    final = {f"tune/{key}": value for key, value in report.items() if isinstance(value, float)}
    tracked.log_metrics(final, step=tuned.session.trials)
    for file in artifacts(folder):
        tracked.log_artifact(file)
