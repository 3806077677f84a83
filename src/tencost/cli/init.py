"""`tencost init`: a project of one's own, without tencost's repository."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from tencost.cli import grammar


@click.command(
    "init",
    cls=grammar.Command,
    examples=[
        "tencost init cost-models",
        "tencost init cost-models --hardware ryzen-1c",
        "tencost init cost-models --hardware v100 --logs ~/tuning-logs",
    ],
)
@click.argument("folder", type=grammar.Place("FOLDER"), metavar="FOLDER")
@grammar.option(
    "--hardware",
    type=grammar.Text("NAME"),
    default="mine",
    show_default=True,
    help="Name of the device that programs are measured on; of logs, where they do not name it.",
)
@grammar.option(
    "--logs",
    type=grammar.Place("PATH"),
    help="A folder or an archive of logs that are there already.",
)
def init(folder: Path, hardware: str, logs: Path | None) -> None:
    """Start a project of one's own: conf/, params.yaml, dvc.yaml.

    The folder is new or empty. Logs are read once: devices, features and split are those that they allow.
    """
    from tencost import __version__
    from tencost.config import project

    project.check(folder, hardware=hardware, logs=logs)
    brought = None
    if logs is not None:
        from tencost.measure.brought import look_at

        brought = look_at(logs, hardware, project.templates()[0])
        for note in brought.notes:
            sys.stderr.write(f"{note}\n")
    project.init(folder, hardware=hardware, logs=logs, version=__version__, brought=brought)
    first = project.first_command(folder, hardware=hardware, logs=logs)
    sys.stdout.write(f"a project in {folder}; next: cd {shlex.quote(str(folder))} && {first}\n")
