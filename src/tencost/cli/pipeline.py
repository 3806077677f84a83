"""`tencost init`, `params` and `pipeline`: a project's own pipeline."""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
from pathlib import Path

import click

from tencost import signals
from tencost.cli.grammar import Command, PathType, Text, flag, option
from tencost.cli.pipeline_plan import plan_pipeline, registrations
from tencost.cli.pipeline_run import PipelineProgress, repro, repro_plan


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
    if project.lacks_git(folder):
        sys.stderr.write(
            "the project is no git repository, as git is not here or refused: `dvc exp` and `dvc metrics diff` need "
            f"one. With git: cd {shlex.quote(str(folder))} && git init && dvc config --unset core.no_scm\n"
        )
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


def _params(*, check: bool) -> None:
    from tencost.config.pipeline import FILE, check_items, write_items
    from tencost.config.schema import project_root

    if check:
        check_items(project_root())
        return
    changed = write_items(project_root())
    sys.stdout.write(f"{FILE}: {'written anew' if changed else 'up to date'}\n")


PARAMS = Command(
    "params",
    _params,
    "Write the items of params.yaml (what the stage train builds, by name) from its lists.",
    examples=("tencost params", "tencost params --check"),
    params=(flag("--check", "Write nothing; fail where the items are not those of the lists."),),
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
    allow_no_git(folder)
    # Stages are `tencost <stage>`: of this installation, where its scripts are not on the path, too.
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    os.chdir(folder)
    planned = None if words else plan_pipeline(folder)
    if planned is None:
        code = repro(words)
    else:
        with PipelineProgress(folder, planned) as progress:
            code = repro_plan(planned, progress)
    if code == 0 and "--dry" not in words:
        code = _register_missing(root, folder, words)
    if signals.terminated():
        raise click.Abort
    raise SystemExit(code)


def _register_missing(root: Path, folder: Path, words: tuple[str, ...]) -> int:
    """Run the stages of registration whose winner the registry lacks; return DVC's exit code."""
    targets = [
        word.removeprefix("dvc.yaml:")
        for word in words
        if not word.startswith("-") and word != "dvc.yaml"
    ]
    stages = registrations(folder, targets)
    if not stages:
        return 0
    from tencost.register.stage import is_registered

    for registration in stages:
        if is_registered(root, registration.mark):
            continue
        lacks = f"{registration.stage}: the registry lacks the model that was evaluated"
        if not registration.runnable:
            sys.stderr.write(
                f"{lacks}, and its files are not here: dvc pull, then tencost pipeline\n"
            )
            continue
        sys.stderr.write(f"{lacks}\n")
        code = repro(("--single-item", "--force", "--", registration.stage))
        if code:
            return code
    return 0


PIPELINE = Command(
    "pipeline",
    _pipeline,
    "Run every stage that is out of date.\n\nIt is `dvc repro`, with its stages and (after --) its options, on sound "
    "files: a dvc.lock that a kill cut off is restored first, and the items of params.yaml are written from its "
    "lists. Evaluated models that the registry lacks are registered. With graphs/dvc.yaml, or "
    "graphs/dvc.yaml:<stage>, it runs the pipeline of whole networks, a DVC project of its own.",
    examples=(
        "tencost pipeline",
        "tencost pipeline records",
        "tencost pipeline graphs/dvc.yaml",
        "tencost pipeline -- --dry",
    ),
    params=(click.Argument(["words"], nargs=-1, type=click.UNPROCESSED),),
)
