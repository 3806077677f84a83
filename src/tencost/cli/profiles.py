"""`tencost profiles`: hardware counters of programs, and what they and pretraining are worth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tencost.cli.grammar import Command, Group, PathType, Text, Whole, option, project
from tencost.cli.overrides import StageCommand
from tencost.cli.records import HARDWARE

_FOLDER = Path("data", "profiles")
_TOP = option("--top", Whole(1), "How many of them count as the fastest.", default=32)


def _import(to: Path, **options: Any) -> None:
    from tencost.records.counters import import_command

    root = project()
    import_command.run(root=root, to=to if to != _FOLDER else root / to, **options)


def _show(table: Path | None, metric: tuple[str, ...]) -> None:
    from tencost.records.counters import import_command

    import_command.show(table or project() / _FOLDER, metric)


_COMMANDS = [
    Command(
        "import",
        _import,
        "Read hardware counters into a table of programs.\n\nFILES are exports of Nsight Compute (ncu --page raw "
        "--csv, the same as .xlsx, or what ncu --csv prints), KTT's results, and folders of them; plain or gzipped. "
        "What cannot be read is listed in rejects.jsonl.",
        examples=(
            "tencost profiles import raw.csv",
            "tencost profiles import exports/ --programs manifest.csv --hardware v100 --warm-up 1",
        ),
        params=(
            click.Argument(["paths"], nargs=-1, required=True, type=PathType("FILES"), metavar="FILES..."),
            option(
                "--programs",
                PathType("MANIFEST"),
                "A CSV file that says which file or kernel is which record: columns file, kernel, record_id.",
                parameter="manifest",
            ),
            option("--hardware", HARDWARE, "The device of launches that do not name theirs."),
            option(
                "--to",
                PathType("FOLDER"),
                "The folder that the table is written to; an earlier one there is replaced.",
                default=str(_FOLDER),
            ),
            option(
                "--store",
                Text("URI"),
                "The record store to join with. [default: the live one and those of all builds]",
                parameter="store_uri",
            ),
            option("--warm-up", Whole(0), "Launches of each kernel of a program that are left out.", default=0),
            option(
                "--runs",
                Whole(1),
                "How often each program ran while it was profiled. [default: found from the order of its kernels]",
            ),
            option(
                "--decimal",
                click.Choice(["point", "comma"]),
                "The decimal mark of the files' numbers. [default: found from all cells of each file]",
            ),
        ),
    ),
    Command(
        "show",
        _show,
        "Print the metrics of a table of programs with units, minimum, median and maximum.",
        examples=(
            "tencost profiles show",
            "tencost profiles show data/profiles --metric gpu__time_duration.sum --metric dram__bytes_read.sum",
        ),
        params=(
            click.Argument(["table"], required=False, type=PathType("TABLE")),
            option("--metric", Text("NAME"), "Only this metric; as often as needed.", multiple=True),
        ),
    ),
    StageCommand(
        "transfer",
        "tencost.compat.counters.transfer_stage",
        "Learn which programs of a workload are fast from their counters, and ask about those of another.\n\nAll "
        "ordered pairs of workloads, each workload with itself as a control, and what columns that tell the run time "
        "do to the scores. Programs that are records of the dataset are compared with their features, too.",
        uses="profile_features dataset features seeds experiment_name paths.records paths.features paths.reports",
        defaults=("seeds=[0,1,2,3,4]",),
        params=(
            option(
                "--profiles",
                PathType(),
                "What was imported, or files of profiles and folders of them. [default: data/profiles]",
                multiple=True,
            ),
            option("--programs", Whole(2), "Programs drawn at a time.", default=128),
            _TOP,
            option("--draws", Whole(1), "Draws of each seed.", default=20),
        ),
        examples=(
            "tencost profiles transfer --profiles ktt_data/ profile_features=ncu_raw",
            "tencost profiles transfer --profiles a.csv --profiles b.csv --programs 64 --top 16",
        ),
    ),
    StageCommand(
        "pretraining",
        "tencost.compat.counters.pretraining_stage",
        "Compare a pretrained network with one from scratch on workloads that neither has seen.\n\nThe programs of the "
        "split's test part are replayed batch by batch: how many of a batch's fastest does a model find before it "
        "learns from the batch?",
        uses="dataset hardware features split model seeds experiment_name paths.records paths.features paths.splits "
        "paths.reports",
        defaults=("model=mlp", "seeds=[0,1,2]"),
        params=(
            option("--batch", Whole(2), "Programs measured at a time.", default=64),
            _TOP,
            option("--epochs", Whole(1), "Passes over all that was measured, after each batch.", default=20),
        ),
        examples=(
            "tencost profiles pretraining experiment=roller_v100 features=ansor_tiles",
            "tencost profiles pretraining hardware=epyc-avx512-1c --batch 10 --top 5",
        ),
    ),
]  # fmt: skip
PROFILES = Group(
    "profiles",
    "Hardware counters of programs: read them, look at them, learn from them.",
    examples=(
        "tencost profiles import raw.csv --programs manifest.csv",
        "tencost profiles show",
        "tencost profiles transfer --profiles data/profiles profile_features=ncu",
    ),
    commands=_COMMANDS,
)
