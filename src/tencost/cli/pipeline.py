"""`tencost init`, `params` and `pipeline`: a project's own pipeline, and what is printed while DVC runs.

Printed are how much there is to do, which stage runs, and how long the rest may take. Times are those of the last run
in this checkout, ``.dvc/tmp/tencost_seconds.json`` (stage -> seconds); of a stage that has not run here, ``meta`` in
dvc.yaml tells them: ``seconds`` of any item of the stage, ``longer: {beginning of an item: seconds}`` of some.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import click
import psutil

from tencost import signals
from tencost.cli.grammar import Command, PathType, Text, option
from tencost.writing import whole_file

_SECONDS = Path(".dvc", "tmp", "tencost_seconds.json")
_DVC_LOGGER = logging.getLogger("dvc.stage")
_RUNNING = "Running stage"
_UNCHANGED = ("didn't change, skipping", "is cached - skipping run")
_STAGE_BYTES = 2 << 30
"""Memory that a stage may take; trainings on the default dataset take half of it."""
_SHELLS = ("bash", "dash", "fish", "ksh", "sh", "zsh")


def _init(folder: Path, names: tuple[str, ...], logs: Path | None) -> None:
    from tencost import __version__
    from tencost.config import project

    devices = {
        place: name for place, equals, name in (word.rpartition("=") for word in names) if equals
    }
    defaults = [name for name in names if "=" not in name]
    if len(defaults) > 1 or (devices and logs is None):
        raise click.UsageError(
            "expected one --hardware NAME, and with --logs any number of --hardware FOLDER=NAME, found "
            f"{', '.join(names)}"
        )
    hardware = next(iter([*defaults, *devices.values()]), "mine")
    for name in {hardware, *devices.values()}:
        project.check(folder, hardware=name, logs=logs)
    brought = None
    if logs is not None:
        from tencost.measure.brought import look_at

        brought = look_at(logs, hardware, project.templates()[0], devices)
        for note in brought.notes:
            sys.stderr.write(f"{note}\n")
    project.init(folder, hardware=hardware, logs=logs, version=__version__, brought=brought)
    command = project.first_command(folder, hardware=hardware, logs=logs)
    sys.stdout.write(f"a project in {folder}; next: cd {shlex.quote(str(folder))} && {command}\n")


INIT = Command(
    "init",
    _init,
    "Start a project of one's own: conf/, params.yaml, dvc.yaml.\n\nThe folder is new or empty. Logs are read once: "
    "devices, features and split are those that they allow.",
    examples=(
        "tencost init cost-models",
        "tencost init cost-models --hardware ryzen-1c",
        "tencost init cost-models --hardware v100 --logs ~/tuning-logs",
        "tencost init cost-models --hardware a.json=a100 --hardware b.json=a4000 --logs ~/t4-results",
    ),
    params=(
        click.Argument(["folder"], type=PathType("FOLDER"), metavar="FOLDER"),
        option(
            "--hardware",
            Text("NAME"),
            "Name of the device that programs are measured on; of logs, where they do not name it. FOLDER=NAME is that "
            "of the logs in a folder or file. [default: mine]",
            parameter="names",
            multiple=True,
        ),
        option(
            "--logs", PathType("PATH"), "A folder or an archive of logs that are there already."
        ),
    ),
)


def _params() -> None:
    from tencost.config.pipeline import FILE, write_items
    from tencost.config.schema import project_root

    changed = write_items(project_root())
    sys.stdout.write(f"{FILE}: {'written anew' if changed else 'up to date'}\n")


PARAMS = Command(
    "params",
    _params,
    "Write the items of params.yaml (what the stage train builds, by name) from its lists.",
    examples=("tencost params",),
)


def _pipeline(words: tuple[str, ...]) -> None:
    from tencost.config import graph_outputs, lockfile
    from tencost.config.pipeline import allow_no_git, write_items
    from tencost.config.schema import project_root

    root = project_root()
    for name, source in lockfile.mend_lockfiles(root).items():
        sys.stderr.write(f"{name} was cut off, as by a kill; restored from {source}\n")
    if lockfile.release(root):
        sys.stderr.write("what a killed command still held of DVC's paths is released\n")
    write_items(root)
    folder, words = graph_outputs.pipeline_words(root, words)
    if folder != root:
        graph_outputs.report_old_outputs(root)
        graph_outputs.remove_lost_marks(root)
    allow_no_git(folder)
    # Stages are `tencost <stage>`: of this installation, where its scripts are not on the path, too.
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    os.chdir(folder)
    planned = None if words else plan_pipeline(folder)
    if planned is None:
        code = _repro(words)
    else:
        with PipelineProgress(folder, planned) as progress:
            code = _repro_plan(planned, progress)
    if signals.terminated():
        raise click.Abort
    raise SystemExit(code)


PIPELINE = Command(
    "pipeline",
    _pipeline,
    "Run every stage that is out of date.\n\nIt is `dvc repro`, with its stages and (after --) its options, on sound "
    "files: a dvc.lock that a kill cut off is restored first, and the items of params.yaml are written from its "
    "lists. With graphs/dvc.yaml, or graphs/dvc.yaml:<stage>, it runs the pipeline of whole networks, a DVC project "
    "of its own.",
    examples=(
        "tencost pipeline",
        "tencost pipeline records",
        "tencost pipeline graphs/dvc.yaml",
        "tencost pipeline -- --dry",
    ),
    params=(click.Argument(["words"], nargs=-1, type=click.UNPROCESSED),),
)


def _repro_plan(planned: PipelinePlan, progress: PipelineProgress) -> int:
    """Run what is out of date, side by side where it can be; with one worker, or nothing to do, it is `dvc repro`."""
    if planned.workers == 1 or not planned.stages:
        code = _repro(())
        if code == 0:
            progress.end_stage()
        return code
    finished: set[str] = set()
    while ready := planned.ready(finished):
        first = ready[0]
        if len(ready) > 1 and first not in planned.alone:
            code = _run_side_by_side(planned, finished, progress)
        else:  # in this process: its progress bars reach the terminal
            code = _repro(("--single-item", "--", first))
            progress.end_stage()
            finished.add(first)
        if code:
            return code
    return 0


def _run_side_by_side(planned: PipelinePlan, finished: set[str], progress: PipelineProgress) -> int:
    """Run stages in processes of their own until none is left that may run beside others; print what they print.

    Args:
        planned: what there is to do.
        finished: stages that are done; those that end well are added.
        progress: told what the stages print, a line at a time.

    Returns:
        The exit code of the first stage that failed; after it no other begins, and those that run go to their ends.
    """
    processes: dict[str, subprocess.Popen[str]] = {}
    ended: SimpleQueue[str] = SimpleQueue()
    interrupted = threading.Event()

    def end_stages() -> None:
        """Have the stages end, without waiting: a second signal may arrive while the first is handled.

        Ctrl-C reaches them from the terminal; a SIGINT to this process alone does not, and the next one ends them.
        """
        if signals.terminated() or interrupted.is_set():
            terminate()
        interrupted.set()

    def terminate() -> None:
        for process in list(processes.values()):
            process.terminate()

    def relay(name: str, process: subprocess.Popen[str]) -> int:
        """Print a stage's lines until it ends, and return its exit code."""
        assert process.stdout is not None
        try:
            with process.stdout:
                for line in process.stdout:
                    progress.follow(line, name)
                    sys.stderr.write(f"{name} | {line}")
        except OSError:  # nobody reads on, as after `| head`
            interrupted.set()
            terminate()
            raise
        finally:
            code = process.wait()
            ended.put(name)
        return code

    failed = 0
    with signals.handled(end_stages), ThreadPoolExecutor(planned.workers) as threads:
        relays: dict[str, Future[int]] = {}
        while True:
            ready = [name for name in planned.ready(finished) if name not in processes]
            for name in ready:
                if failed or interrupted.is_set() or name in planned.alone:
                    continue
                if len(relays) < planned.workers:
                    processes[name] = _start(name)
                    if interrupted.is_set():  # by a signal that came while it was started
                        processes[name].terminate()
                    relays[name] = threads.submit(relay, name, processes[name])
            if not relays:
                break
            name = ended.get()
            code = relays.pop(name).result()
            if code == 0:
                progress.end_stage(name)
                finished.add(name)
            elif not interrupted.is_set():
                _say_failed(name, code)
                failed = failed or (code if code > 0 else 128 - code)
    if interrupted.is_set():
        raise KeyboardInterrupt
    return failed


def _start(name: str) -> subprocess.Popen[str]:
    """Run `dvc repro` of one stage in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", _STAGE, str(os.getpid()), name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def _say_failed(name: str, code: int) -> None:
    cause = "failed: its lines above say why"
    if code < 0:
        cause = f"ended by signal {-code} ({signal.strsignal(-code)}): memory may have run out"
    sys.stderr.write(f"{name} | {cause}. Then run the command again\n")


_STAGE = (
    "import sys; from tencost.cli.pipeline import run_beside; "
    "sys.exit(run_beside(int(sys.argv[1]), sys.argv[2]))"
)


def run_beside(parent: int, name: str) -> int:
    """Run a stage beside others; return the exit code.

    DVC looks at this stage alone: to look at one that several need it would lock what the others read.

    Args:
        parent: number of the process of `tencost pipeline`: where it is killed, the stage gets SIGTERM.
        name: of the stage.
    """
    signals.end_with_parent(parent)
    with signals.listening():
        try:
            return _repro(("--single-item", "--", name), ("--wait-for-lock",))
        except KeyboardInterrupt:
            return 130


def _repro(words: Sequence[str], options: Sequence[str] = ()) -> int:
    """Run `dvc repro` in this process; SIGTERM goes to the stage that DVC waits for, whose end is waited for."""
    from dvc.cli import main as dvc

    def end_stages() -> None:
        if signals.terminated():
            stages = list(_stages(psutil.Process()))
            for stage in stages:
                with suppress(psutil.NoSuchProcess):
                    stage.terminate()
            while any(_runs(stage) for stage in stages):
                time.sleep(0.05)
        raise KeyboardInterrupt

    with signals.handled(end_stages):
        return int(dvc([*options, "repro", *words]))


def _stages(process: psutil.Process) -> Iterator[psutil.Process]:
    """Yield the commands that a process waits for: a shell first, which so starts no other, then its own."""
    for child in process.children():
        with suppress(psutil.NoSuchProcess):
            is_shell = child.name() in _SHELLS
            commands = list(_stages(child)) if is_shell else []
            yield child
            yield from commands


def _runs(process: psutil.Process) -> bool:
    """Say whether a child runs; one that has ended is left to whoever waits for it."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@dataclass(frozen=True)
class PipelinePlan:
    """What `dvc repro` may have to do.

    Attributes:
        stages: name of each stage that is out of date, or follows one that is -> seconds, None where nobody knows.
        total: number of stages of the pipeline.
        needs: stage -> those that are out of date, too, and that it depends on itself.
        alone: stages that use all cores: no other runs beside them (`meta: {alone: true}` in dvc.yaml).
        workers: stages that may run side by side.
    """

    stages: dict[str, float | None]
    total: int
    needs: Mapping[str, Set[str]] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()
    workers: int = 1

    def ready(self, finished: Set[str] = frozenset()) -> list[str]:
        """Return the stages that can begin or have begun, first those after which most is left to do."""
        remaining = self._remaining(finished)
        names = [name for name in remaining if not self.needs.get(name, set()) & remaining.keys()]
        return sorted(names, key=lambda name: -remaining[name])

    def seconds(self, finished: Set[str] = frozenset()) -> float | None:
        """Return how long the stages that are not finished may take; None where of some nobody knows."""
        left = {name: value for name, value in self.stages.items() if name not in finished}
        timed = [value for value in left.values() if value is not None]
        if len(timed) < len(left):
            return None
        longest = max(self._remaining(finished).values(), default=0.0)
        alone = sum(left[name] or 0.0 for name in self.alone & left.keys())
        return max(longest, alone + (sum(timed) - alone) / self.workers)

    def _remaining(self, finished: Set[str]) -> dict[str, float]:
        """Return of each stage that is not finished how long it and the longest chain that waits for it take.

        A stage of which nobody knows counts as a second.
        """
        needs = {
            name: self.needs.get(name, set()) - finished
            for name in self.stages
            if name not in finished
        }
        after = dict.fromkeys(needs, 0.0)
        remaining = {}
        for name in reversed(list(TopologicalSorter(needs).static_order())):
            seconds = self.stages[name]
            remaining[name] = after[name] + (1.0 if seconds is None else seconds)
            for need in needs[name]:
                after[need] = max(after[need], remaining[name])
        return remaining


def plan_pipeline(folder: Path) -> PipelinePlan | None:
    """Return what is to be done in the DVC project of a folder; None where DVC cannot say, as `dvc repro` will."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    timed = read_seconds(folder)
    with suppress(DvcException), Repo(str(folder)) as repo:
        changed = repo.status()
        graph = repo.index.graph  # from a stage to those that it depends on
        todo = [stage for stage in graph if stage.addressing in changed]
        outdated = set(todo)
        while todo:
            followers = set(graph.predecessors(todo.pop())) - outdated
            outdated |= followers
            todo += followers
        metas = {stage.addressing: _meta_of(stage) for stage in outdated}
        needs = {
            stage.addressing: {need.addressing for need in graph.successors(stage)} & metas.keys()
            for stage in outdated
        }
        return PipelinePlan(
            {name: timed.get(name, told_seconds(name, meta)) for name, meta in metas.items()},
            len(graph),
            needs,
            frozenset(name for name, meta in metas.items() if meta.get("alone") is True),
            _most_workers(),
        )
    return None


def told_seconds(name: str, meta: Mapping[str, Any]) -> float | None:
    """Return what dvc.yaml tells of how long a stage takes, or an item of one; None where it tells nothing."""
    item = name.partition("@")[2]
    longer = meta.get("longer")
    longer = longer if isinstance(longer, Mapping) else {}
    told = [longer[start] for start in longer if item.startswith(str(start))]
    return next((seconds for seconds in (*told, meta.get("seconds")) if _is_number(seconds)), None)


def _meta_of(stage: Any) -> Mapping[str, Any]:
    """Return what dvc.yaml says of a stage under `meta`; nothing where that is no mapping, which DVC allows."""
    meta = getattr(stage, "meta", None)
    return meta if isinstance(meta, Mapping) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _most_workers() -> int:
    """Return how many stages may run side by side here: one a core, as far as there is memory."""
    fit = psutil.virtual_memory().available // _STAGE_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), fit))


def read_seconds(folder: Path) -> dict[str, float]:
    """Return the seconds that each stage took when it ran last; nothing where they are not known."""
    with suppress(OSError, ValueError, AttributeError):
        values = json.loads((folder / _SECONDS).read_bytes())
        return {str(name): float(value) for name, value in values.items() if _is_number(value)}
    return {}


class PipelineProgress(logging.Handler):
    """Listens to what DVC logs, prints a line before each stage that runs, and keeps the stages' times."""

    def __init__(self, folder: Path, plan: PipelinePlan) -> None:
        super().__init__(logging.INFO)
        self._folder, self._plan = folder, plan
        self._began = time.monotonic()
        self._done: set[str] = set()
        self._running: dict[str, tuple[str, float]] = {}
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> PipelineProgress:
        self._say(
            f"{len(self._plan.stages)} of {self._plan.total} stages are out of date", "in all"
        )
        _DVC_LOGGER.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        _DVC_LOGGER.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.follow(record.getMessage())

    def follow(self, text: str, process: str = "") -> None:
        """Take a line of DVC: a stage that begins ends the one before it, of its process."""
        name = text.partition("'")[2].partition("'")[0]
        if text.startswith(_RUNNING) and name in self._plan.stages:
            self.end_stage(process)
            with self._one_at_a_time:
                self._running[process] = name, time.monotonic()
                spent = minutes(time.monotonic() - self._began)
                begun = len(self._done & set(self._plan.stages)) + len(self._running)
                self._say(f"[{begun}/{len(self._plan.stages)}] {name}: {spent} so far", "left")
        elif any(part in text for part in _UNCHANGED):
            self.end_stage(process)
            self._done.add(name)

    def end_stage(self, process: str = "") -> None:
        """Note that the stage that a process runs has ended, and its time."""
        with self._one_at_a_time:
            if process not in self._running:
                return
            name, began = self._running.pop(process)
            self._done.add(name)
            timed = read_seconds(self._folder) | {name: round(time.monotonic() - began, 1)}
            with suppress(OSError), whole_file(self._folder / _SECONDS) as partial:
                partial.write_text(json.dumps(timed, indent=1, sort_keys=True))

    def _say(self, text: str, what: str) -> None:
        seconds = self._plan.seconds(frozenset(self._done))
        rest = "" if not seconds else f", about {minutes(seconds)} {what}"
        sys.stderr.write(f"{text}{rest}\n")
        sys.stderr.flush()


def minutes(seconds: float) -> str:
    """Return a duration for people: `40 s`, `6 min`."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
