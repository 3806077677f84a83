"""`tencost init`, `params` and `pipeline`: a project's own pipeline, and what is printed while DVC runs.

Printed are how much there is to do, which stage runs, and how long the rest may take. Times are those of the last run
in this checkout, ``.dvc/tmp/tencost_seconds.json`` (stage -> seconds); of a stage that has not run here,
``meta: {seconds: ...}`` in dvc.yaml.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import click
import psutil

from tencost import signals
from tencost.cli.grammar import Command, PathType, Text, option
from tencost.writing import whole_file

_SECONDS = Path(".dvc", "tmp", "tencost_seconds.json")
_DVC_LOGGER = logging.getLogger("dvc.stage")
_RUNNING = "Running stage"
_UNCHANGED = ("didn't change, skipping", "is cached - skipping run")
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
    """Run what branches share, then the branches side by side, then `dvc repro`, which finds what is left."""
    if planned.branches:
        code = _repro(planned.shared) if planned.shared else 0
        progress.end_stage()
        code = code or _run_branches(planned.branches, progress)
        if code:
            return code
    code = _repro(())
    if code == 0:
        progress.end_stage()
    return code


def _run_branches(branches: Sequence[Branch], progress: PipelineProgress) -> int:
    """Run `dvc repro` of each branch in a process of its own; print what they print, a line at a time.

    Returns:
        The exit code of the first branch that failed; the others run to their ends.
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _BRANCH, str(os.getpid()), *branch.stages],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        for branch in branches
    ]

    interrupted = threading.Event()

    def end_branches() -> None:
        """Have the branches end, without waiting: a second signal may arrive while the first is handled."""
        interrupted.set()
        if signals.terminated():  # Ctrl-C reaches the branches from the terminal
            terminate()

    def terminate() -> None:
        for process in processes:
            process.terminate()

    def relay(branch: Branch, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            try:
                for line in process.stdout:
                    progress.follow(line, branch.name)
                    sys.stderr.write(f"{branch.name} | {line}")
            except OSError:  # nobody reads on, as after `| head`
                terminate()
                raise

    with signals.handled(end_branches), ThreadPoolExecutor(len(branches)) as threads:
        relays = [threads.submit(relay, *pair) for pair in zip(branches, processes, strict=True)]
        codes = [process.wait() for process in processes]
    if interrupted.is_set():
        raise KeyboardInterrupt
    for branch, code, relayed in zip(branches, codes, relays, strict=True):
        relayed.result()
        if code == 0:
            progress.end_stage(branch.name)
        else:  # the lines of the others stand after its own
            cause = "failed: its lines above say why"
            if code < 0:
                cause = (
                    f"ended by signal {-code} ({signal.strsignal(-code)}): memory may have run out"
                )
            sys.stderr.write(f"{branch.name} | {cause}. Then run the command again\n")
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


_BRANCH = (
    "import sys; from tencost.cli.pipeline import run_branch; "
    "sys.exit(run_branch(int(sys.argv[1]), sys.argv[2:]))"
)


def run_branch(parent: int, stages: Sequence[str]) -> int:
    """Run stages of one branch, in this order, beside other branches; return the exit code.

    DVC looks at these stages alone: to look at one that several branches need it would lock what the others read.

    Args:
        parent: number of the process of `tencost pipeline`: where it is killed, the stage gets SIGTERM.
        stages: their names.
    """
    signals.end_with_parent(parent)
    with signals.listening():
        try:
            return _repro(("--single-item", *stages), ("--wait-for-lock",))
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
class Branch:
    """Stages that no other branch needs: they can run beside it.

    Attributes:
        name: what their lines begin with: the item of the last stage, as the hardware of `register@<hardware>`.
        stages: their names, each after those that it needs.
    """

    name: str
    stages: tuple[str, ...]


@dataclass(frozen=True)
class PipelinePlan:
    """What `dvc repro` may have to do.

    Attributes:
        stages: name of each stage that is out of date, or follows one that is -> seconds, None where nobody knows.
        total: number of stages of the pipeline.
        shared: stages that several branches need.
        branches: what runs side by side after them; none where one process does all.
    """

    stages: dict[str, float | None]
    total: int
    shared: tuple[str, ...] = ()
    branches: tuple[Branch, ...] = ()

    def seconds(self, finished: frozenset[str] = frozenset()) -> float | None:
        """Return how long the stages that are not finished may take; None where of some nobody knows."""
        remaining = {name: self.stages[name] for name in self.stages if name not in finished}
        timed = {name: value for name, value in remaining.items() if value is not None}
        if len(timed) < len(remaining):
            return None
        parallel = [sum(timed.pop(name, 0.0) for name in branch.stages) for branch in self.branches]
        return sum(timed.values()) + max(parallel, default=0.0)


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
        stages = {
            stage.addressing: timed.get(
                stage.addressing, (getattr(stage, "meta", None) or {}).get("seconds")
            )
            for stage in outdated
        }
        needs = {
            stage.addressing: {need.addressing for need in graph.successors(stage)}
            for stage in graph
        }
        shared, branches = divide_stages(needs, set(stages), len(os.sched_getaffinity(0)))
        return PipelinePlan(stages, len(graph), shared, branches)
    return None


def divide_stages(
    needs: Mapping[str, Set[str]], outdated: Set[str], cores: int
) -> tuple[tuple[str, ...], tuple[Branch, ...]]:
    """Divide the stages that are out of date into those that several branches need, and the branches.

    A branch ends with a stage that no other needs. Where it would run alone, or on one core, there are none.

    Args:
        needs: stage -> those that it depends on itself.
        outdated: stages to run: of those that depend on one of them, all.
        cores: branches at most; what is more joins them in turn.
    """
    needed = frozenset().union(*needs.values())
    last = sorted(outdated - needed)
    groups = [last[at::cores] for at in range(min(cores, len(last)))]
    if len(groups) < 2:
        return (), ()
    order = [name for name in TopologicalSorter(needs).static_order() if name in outdated]
    ends: dict[str, set[str]] = {name: {name} & set(last) for name in order}
    for name in reversed(order):
        for need in needs[name] & outdated:
            ends[need] |= ends[name]
    branches = tuple(
        Branch(
            ", ".join(end.rpartition("@")[2] for end in group),
            tuple(name for name in order if ends[name] <= set(group)),
        )
        for group in groups
    )
    separate = {name for branch in branches for name in branch.stages}
    return tuple(name for name in order if name not in separate), branches


def read_seconds(folder: Path) -> dict[str, float]:
    """Return the seconds that each stage took when it ran last; nothing where they are not known."""
    with suppress(OSError, ValueError, AttributeError):
        values = json.loads((folder / _SECONDS).read_bytes())
        return {str(name): float(seconds) for name, seconds in values.items()}
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

    def follow(self, text: str, branch: str = "") -> None:
        """Take a line of DVC: a stage that begins ends the one before it, of its branch."""
        name = text.partition("'")[2].partition("'")[0]
        if text.startswith(_RUNNING):
            self.end_stage(branch)
            with self._one_at_a_time:
                self._running[branch] = name, time.monotonic()
                spent = minutes(time.monotonic() - self._began)
                begun = len(self._done & set(self._plan.stages)) + len(self._running)
                self._say(f"[{begun}/{len(self._plan.stages)}] {name}: {spent} so far", "left")
        elif any(part in text for part in _UNCHANGED):
            self.end_stage(branch)
            self._done.add(name)

    def end_stage(self, branch: str = "") -> None:
        """Note that the stage that a branch runs has ended, and its time."""
        with self._one_at_a_time:
            if branch not in self._running:
                return
            name, began = self._running.pop(branch)
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
