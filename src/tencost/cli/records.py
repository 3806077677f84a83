"""`tencost records`: the stage, and the live record store: import, query, export and what changes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tencost.cli.answers import form_of, printed
from tencost.cli.grammar import Group, Place, Text, Whole, option
from tencost.cli.overrides import StageCommand, StageGroup, stage_function

F = TypeVar("F", bound=Callable[..., Any])

RECORDS = StageGroup(
    StageCommand(
        "records",
        stage_function("tencost.records.stage"),
        uses=("dataset", "paths.raw", "paths.records"),
        examples=("tencost records dataset=tencost-epyc",),
        help="Read the logs of a raw dataset into its record store.",
    ),
    examples=(
        "tencost records import logs/ --hardware v100 --dataset roller",
        "tencost records query best --hardware v100",
    ),
    help="Read a raw dataset's logs into its record store; ask the live one.\n\nWith a command below: the live store.",
)


def _hardware_names() -> list[str]:
    from tencost.config import composition

    return composition.group_choices()["hardware"]


def _dataset_names() -> list[str]:
    from tencost.config import composition

    return composition.group_choices()["dataset"]


HARDWARE = Text("NAME", _hardware_names)
DATASET = Text("NAME", _dataset_names)


def hardware_option(text: str, **keywords: Any) -> Callable[[F], F]:
    """Return what adds the option that names a device."""
    return option("--hardware", type=HARDWARE, help=text, **keywords)


def store_option(function: F) -> F:
    """Add the option that names a record store."""
    text = "The record store: a folder, or any URI that Delta Lake takes. [default: the live one, data/store]"
    return option("--store", type=Text("URI"), help=text)(function)


def _target(function: F) -> F:
    text = "What was compiled for, JSON or text; not needed where the hardware has records for one target."
    return option("--target", type=Text("TEXT"), help=text)(function)


def _generator(function: F) -> F:
    text = (
        "Records of this code generator only, as `query stats --by generator` names it. [default: of each workload "
        "the newest one with enough programs]"
    )
    return option("--generator", type=Text("TEXT"), help=text)(function)


def _workload(text: str = "One workload", **keywords: Any) -> Callable[[F], F]:
    named = f"{text}: its id, the beginning of one, or its task's name."
    return option("--workload", type=Text("ID"), help=named, **keywords)


def _place(function: F) -> F:
    dataset = "Instead of --store: the one that a build made, data/records/<name>/store."
    function = option(
        "--version", type=Whole(0), help="A version of the table. [default: the latest]"
    )(function)
    function = option("--dataset", type=DATASET, help=dataset)(function)
    return store_option(function)


def project() -> Path:
    """Return the project's root."""
    from tencost.config import composition

    return composition.config_folder()[0]


@RECORDS.command(
    "import",
    examples=[
        "tencost records import logs/ --hardware v100 --dataset roller",
        "tencost records import a.json b.log.gz --hardware board --jobs 2",
        "tencost records import phones/ --hardware a=adreno-640 --hardware b/x.log=mali-g77",
    ],
)
@click.argument("paths", nargs=-1, required=True, type=Place("PATH"))
@hardware_option(
    "The device of records that do not name theirs; FOLDER=NAME: of those in a folder or file. As often as needed.",
    multiple=True,
    metavar="NAME|FOLDER=NAME",
)
@option(
    "--dataset",
    type=DATASET,
    help="What the records are called after. [default: the first path's name]",
)
@store_option
@option("--jobs", type=Whole(1), help="Worker processes. [default: one a core]")
@option(
    "--gate",
    type=click.Choice(["quarantine", "apart"]),
    help="What becomes of records with a fault: kept out of look-ups, or out of the store, in data/rejects/. "
    "[default: apart on an object store, else quarantine]",
)
def import_logs(
    paths: tuple[Path, ...],
    hardware: tuple[str, ...],
    dataset: str | None,
    store: str | None,
    jobs: int | None,
    gate: str | None,
) -> None:
    """Bring logs of any format into the record store.

    PATHS are files, folders and archives: MetaSchedule, Ansor and AutoTVM logs, TenSet folders, RFC 4304 tables and the
    store's own. Lines that cannot be read are listed in data/rejects/<dataset>.jsonl.
    """
    from tencost.records import import_command

    import_command.run(
        paths,
        project(),
        hardware=hardware,
        dataset=dataset,
        store_uri=store,
        jobs=jobs,
        gate=gate,
    )


QUERY = Group(
    "query",
    help="Ask the record store.",
    examples=(
        "tencost records query best --hardware v100 --workload 43ad89 --n 5",
        "tencost records query stats --by hardware,status --json",
    ),
)
RECORDS.add_command(QUERY)
EXPORT = Group(
    "export",
    help="Write records as logs again, or the best as a database.",
    examples=(
        "tencost records export metaschedule best/ --hardware epyc-avx512-1c",
        "tencost records export ansor v100.json --hardware v100",
    ),
)
RECORDS.add_command(EXPORT)


@EXPORT.command(
    "metaschedule",
    examples=[
        "tencost records export metaschedule best/ --hardware epyc-avx512-1c --dataset tencost-epyc",
        "tencost records export metaschedule best/ --hardware v100 --n 3 --overwrite",
    ],
)
@click.argument("folder", type=Place("FOLDER"))
@hardware_option("The device, as the store names it.", required=True)
@_target
@_workload("Of one workload only")
@option(
    "--n", type=Whole(1), default=1, show_default=True, help="Schedules of each workload at most."
)
@click.option("--overwrite", is_flag=True, help="Replace the database in the folder.")
@_place
def export_metaschedule(
    folder: Path,
    hardware: str,
    target: str | None,
    workload: str | None,
    n: int,
    overwrite: bool,
    store: str | None,
    dataset: str | None,
    version: int | None,
) -> None:
    """Write the fastest schedules of a hardware as a MetaSchedule database.

    A network is compiled with it with no tuning at all.
    """
    from tencost.records import best_schedules, query_command

    best_schedules.run(
        folder,
        query_command.Place(store, dataset, version),
        hardware=hardware,
        target=target,
        workload=workload,
        n=n,
        overwrite=overwrite,
    )


def _export_command(kind: str, place: str, what: str) -> None:
    """Add `tencost records export <kind>`."""

    def run(
        place: Path,
        hardware: str | None,
        dataset: str | None,
        store: str | None,
        layout: Any = "json",
    ) -> None:
        from tencost.records import export_logs

        export_logs.run(
            kind,
            place,
            project(),
            hardware=hardware,
            dataset=dataset,
            store_uri=store,
            layout=layout,
        )

    options: list[Callable[[Any], Any]] = [
        store_option,
        option("--dataset", type=DATASET, help="Of this dataset only."),
        hardware_option("Of this device only."),
        click.argument("place", type=Place(place)),
    ]
    if kind == "rfc4304":
        layouts = click.Choice(["columns", "json"])
        text = "Which of the format's two versions."
        options.insert(
            0,
            option(
                "--layout",
                type=layouts,
                default="json",
                show_default=True,
                old=("version",),
                help=text,
            ),
        )
    for add in options:
        run = add(run)
    command = f"tencost records export {kind} {place}"
    examples = [f"{command} --hardware v100"]
    examples += [f"{command} --layout columns"] if kind == "rfc4304" else []
    EXPORT.command(kind, examples=examples, help=what)(run)


_export_command("ansor", "v100.json", "Write Ansor's log lines, each as it was.")
_export_command("autotvm", "v100.log", "Write AutoTVM's log lines, each as it was.")
_export_command("tenset", "folder", "Write a folder in TenSet's layout.")
_export_command("rfc4304", "all.jsonl", "Write records of RFC 4304: .jsonl, .json or .parquet.")
_export_command("table", "all.parquet", "Write the store's own columns: .parquet or .csv.")


def _answer(function: F) -> F:
    """Add the options that every question takes: which store, and how the answer is printed."""
    return _place(printed(function))


def _ask(name: str, keywords: dict[str, Any]) -> None:
    from tencost.records import query_command

    place = query_command.Place(*(keywords.pop(key) for key in ("store", "dataset", "version")))
    form = form_of(*(keywords.pop(key) for key in ("as_json", "as_csv", "limit")))
    getattr(query_command, name)(place, form, **keywords)


_DEVICE = "The device, as the store names it."


@QUERY.command(
    "best",
    examples=[
        "tencost records query best --hardware v100",
        "tencost records query best --hardware v100 --workload 43ad89 --n 5 --json",
    ],
)
@hardware_option(_DEVICE, required=True)
@_target
@_workload()
@option("--n", type=Whole(1), default=1, show_default=True, help="Programs of each workload.")
@_generator
@_answer
def best(**keywords: Any) -> None:
    """Print the n fastest programs of a workload, or of each."""
    _ask("best", keywords)


@QUERY.command(
    "history",
    examples=[
        "tencost records query history --hardware v100 --workload 43ad89",
        "tencost records query history --hardware v100 --program 0f3a21",
    ],
)
@hardware_option(_DEVICE, required=True)
@_workload("How this workload got faster")
@option(
    "--program",
    type=Text("ID"),
    help="All measurements of this program: its id, its record's, or the beginning of one.",
)
@_target
@_generator
@_answer
def history(**keywords: Any) -> None:
    """Print how a workload got faster, trial by trial, or every measurement of a program."""
    _ask("history", keywords)


@QUERY.command(
    "new",
    examples=["tencost records query new --since 17", "tencost records query new --hardware v100"],
)
@option("--since", type=Whole(0), help="A version of the table. [default: from the beginning]")
@hardware_option("Of this device only.")
@_answer
def new(**keywords: Any) -> None:
    """Print what is new since a version of the table, and the version to ask with next time."""
    _ask("new", keywords)


@QUERY.command("compare", examples=["tencost records query compare --hardware v100 --other k80"])
@hardware_option("The first device.", required=True)
@option("--other", type=HARDWARE, required=True, help="The other device.")
@_target
@option("--other-target", type=Text("TEXT"), help="The same of the other device.")
@_workload()
@_answer
def compare(**keywords: Any) -> None:
    """Print two hardware side by side, workload by workload."""
    _ask("compare", keywords)


@QUERY.command(
    "stats",
    examples=[
        "tencost records query stats",
        "tencost records query stats --by hardware,status --dataset tencost-epyc",
    ],
)
@option(
    "--by",
    type=Text("COLUMNS"),
    default="hardware,format",
    show_default=True,
    help="Columns to group by, with commas.",
)
@hardware_option("Of this device only.")
@_workload("Of one workload only")
@_answer
def stats(by: str, **keywords: Any) -> None:
    """Print counts, failures and spread."""
    columns = [name.strip() for name in by.split(",") if name.strip()]
    _ask("stats", {**keywords, "by": columns})


@QUERY.command(
    "sql",
    examples=[
        'tencost records query sql "SELECT hardware, status, count(*) FROM records GROUP BY ALL"'
    ],
)
@click.argument("text", nargs=-1, required=True)
@_answer
def sql(text: tuple[str, ...], **keywords: Any) -> None:
    """Answer a query in DuckDB's SQL; `records` holds the columns of the store."""
    _ask("sql", {**keywords, "text": " ".join(text)})
