"""`tencost records`: the stage, and the live record store: import, query, export and what changes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tencost.cli.grammar import Command, Group, Names, PathType, Text, Whole, flag, option
from tencost.cli.overrides import StageCommand, StageGroup

HARDWARE = Text("NAME", group="hardware")
_DATASET = Text("NAME", group="dataset")
_OF_DEVICE = option("--hardware", HARDWARE, "Of this device only.")
_STORE_HELP = "The record store: a folder, or any URI that Delta Lake takes. [default: the live one, data/store]"
_STORE = option("--store", Text("URI"), _STORE_HELP, parameter="store_uri")
_TARGET = option(
    "--target",
    Text("TEXT"),
    "What was compiled for, JSON or text; not needed where the hardware has records for one target.",
)
_GENERATOR = option(
    "--generator",
    Text("TEXT"),
    "Records of this code generator only, as `query stats --by generator` names it. [default: of each workload the "
    "newest one with enough programs]",
)
_BUILD = option(
    "--build",
    _DATASET,
    "Instead of --store: the records that a build made (`tencost records dataset=NAME`), data/records/<name>.",
    old_option="--dataset",
)
_PLACE = (
    _STORE,
    _BUILD,
    option("--version", Whole(0), "A version of the table. [default: the latest]"),
)  # fmt: skip
_FORM = (
    flag("--json", "Print a list of JSON objects, everything, times in seconds.", parameter="as_json"),
    flag("--csv", "Print CSV, everything, times in seconds.", parameter="as_csv"),
    option("--limit", Whole(0), "Rows at most, 0 for all. [default: 20 of a table, all of the others]"),
)  # fmt: skip
_DRY_RUN = flag("--dry-run", "Say what would change, and change nothing.")


def _device(help: str = "The device, as the store names it.", **keywords: Any) -> click.Option:
    return option("--hardware", HARDWARE, help, **keywords)


def _workload(whose: str = "One workload") -> click.Option:
    return option(
        "--workload", Text("ID"), f"{whose}: its id, the beginning of one, or its task's name."
    )


def _take_form(options: dict[str, Any]) -> Any:
    """Take out of a command's options how its answer is printed."""
    from tencost.records.answers import Form

    as_json, as_csv = options.pop("as_json"), options.pop("as_csv")
    if as_json and as_csv:
        raise click.UsageError("expected one of --json and --csv, found both")
    return Form("json" if as_json else "csv" if as_csv else "table", options.pop("limit"))


def _take_place(options: dict[str, Any]) -> Any:
    """Take out of a command's options which store is asked."""
    from tencost.records.query_command import Place

    uri, build = options.pop("store_uri"), options.pop("build")
    return Place(uri, build, options.pop("version", None))


def _export_metaschedule(folder: Path, **options: Any) -> None:
    from tencost.records import best_schedules

    best_schedules.run(folder, _take_place(options), **options)


_EXPORT = Group(
    "export",
    "Write records as logs again, or the best as a database.",
    examples=(
        "tencost records export metaschedule best/ --hardware epyc-avx512-1c",
        "tencost records export ansor v100.json --hardware v100",
    ),
    commands=[
        Command(
            "metaschedule",
            _export_metaschedule,
            "Write the fastest schedules of a hardware as a MetaSchedule database.\n\nA network is compiled with it "
            "with no tuning at all.",
            examples=(
                "tencost records export metaschedule best/ --hardware epyc-avx512-1c --build tencost-zen5",
                "tencost records export metaschedule best/ --hardware v100 --n 3 --overwrite",
            ),
            params=(
                click.Argument(["folder"], type=PathType("FOLDER")),
                _device(required=True),
                _TARGET,
                _workload("Of one workload only"),
                option("--n", Whole(1), "Schedules of each workload at most.", default=1),
                flag("--overwrite", "Replace the database in the folder."),
                *_PLACE,
            ),
        )
    ],
)
_LAYOUT = option(
    "--layout",
    click.Choice(["columns", "json"]),
    "Which of the format's two versions.",
    default="json",
    old=("version",),
)


def _export_logs(kind: str) -> Callable[..., None]:
    def run(place: Path, **options: Any) -> None:
        from tencost.records import export_logs

        export_logs.run(kind, place, _take_place(options), **options)

    return run


_PER_HARDWARE = flag(
    "--per-hardware", "Write a file for each device, <name>-<hardware>: lines do not tell theirs."
)
for _kind, _file, _help, _options in (
    ("ansor", "v100.json", "Write Ansor's log lines, each as it was.", [_PER_HARDWARE]),
    ("autotvm", "v100.log", "Write AutoTVM's log lines, each as it was.", [_PER_HARDWARE]),
    ("t4", "results.json", "Write T4 results.", [_PER_HARDWARE]),
    ("tenset", "folder", "Write a folder in TenSet's layout.", []),
    ("rfc4304", "all.jsonl", "Write records of RFC 4304: .jsonl, .json or .parquet.", [_LAYOUT]),
    ("table", "all.parquet", "Write the store's own columns: .parquet or .csv.", []),
):
    _line = f"tencost records export {_kind} {_file}"
    _EXPORT.add_command(
        Command(
            _kind,
            _export_logs(_kind),
            _help,
            examples=(
                f"{_line} --hardware v100",
                *([f"{_line} --layout columns"] if _kind == "rfc4304" else []),
                *([f"{_line} --build tencost-zen5"] if _kind == "table" else []),
            ),
            params=(
                click.Argument(["place"], type=PathType(_file)),
                _OF_DEVICE,
                option(
                    "--dataset", _DATASET, "Of records that were imported under this name only."
                ),
                _STORE,
                option(
                    "--build",
                    _DATASET,
                    "Instead of --store: what a build made, data/records/<name>.",
                ),
                *_options,
            ),
        )
    )


def _question(name: str, help: str, *params: click.Parameter, examples: tuple[str, ...]) -> Command:
    """Declare a command that prints an answer of the function `name` of tencost.records.query_command."""

    def ask(**options: Any) -> None:
        from tencost.records import query_command

        place, form = _take_place(options), _take_form(options)
        getattr(query_command, name)(place, form, **options)

    return Command(name, ask, help, examples=examples, params=(*params, *_PLACE, *_FORM))


_QUERY = Group(
    "query",
    "Ask the record store.",
    examples=(
        "tencost records query best --hardware v100 --workload 43ad89 --n 5",
        "tencost records query stats --by hardware,status --json",
    ),
    commands=[
        _question(
            "best",
            "Print the n fastest programs of a workload, or of each.",
            _device(required=True),
            _TARGET,
            _workload(),
            option("--n", Whole(1), "Programs of each workload.", default=1),
            _GENERATOR,
            examples=(
                "tencost records query best --hardware v100",
                "tencost records query best --hardware v100 --workload 43ad89 --n 5 --json",
            ),
        ),
        _question(
            "history",
            "Print how a workload got faster, trial by trial, or every measurement of a program.",
            _device(required=True),
            _workload("How this workload got faster"),
            option(
                "--program",
                Text("ID"),
                "All measurements of this program: its id, its record's, or the beginning of one.",
            ),
            _TARGET,
            _GENERATOR,
            examples=(
                "tencost records query history --hardware v100 --workload 43ad89",
                "tencost records query history --hardware v100 --program 0f3a21",
            ),
        ),
        _question(
            "new",
            "Print what is new since a version of the table, and the version to ask with next time.",
            option("--since", Whole(0), "A version of the table. [default: from the beginning]"),
            _OF_DEVICE,
            examples=(
                "tencost records query new --since 17",
                "tencost records query new --hardware v100",
            ),
        ),
        _question(
            "compare",
            "Print two hardware side by side, workload by workload.",
            _device("The first device.", required=True),
            option("--other", HARDWARE, "The other device.", required=True),
            _TARGET,
            option("--other-target", Text("TEXT"), "The same of the other device."),
            _workload(),
            examples=("tencost records query compare --hardware v100 --other k80",),
        ),
        _question(
            "stats",
            "Print counts, failures and spread.",
            option("--by", Names("COLUMNS"), "Columns to group by, with commas.", default="hardware,format"),
            _OF_DEVICE,
            _workload("Of one workload only"),
            examples=(
                "tencost records query stats",
                "tencost records query stats --by hardware,status --build tencost-zen5",
            ),
        ),
        _question(
            "sql",
            "Answer a query in DuckDB's SQL; `records` holds the columns of the store.",
            click.Argument(["text"], nargs=-1, required=True, callback=lambda _, __, words: " ".join(words)),
            examples=(
                'tencost records query sql "SELECT hardware, status, count(*) FROM records GROUP BY ALL"',
            ),
        ),
    ],
)  # fmt: skip

_STORE_COMMANDS = "tencost.records.store_commands"
_CHANGES = [
    Command(
        "quarantine",
        f"{_STORE_COMMANDS}:quarantine",
        "List what is kept out of look-ups and why, or let it in.",
        examples=("tencost records quarantine", "tencost records quarantine --release all"),
        params=(
            option("--release", Text("ID|all"), "Let this record, or all, into look-ups."),
            _STORE,
        ),
    ),
    Command(
        "compact",
        f"{_STORE_COMMANDS}:compact",
        "Rewrite the store's small files into sorted ones.\n\nLook-ups stay fast after many small imports.",
        examples=("tencost records compact",),
        params=(_STORE,),
    ),
    Command(
        "migrate",
        f"{_STORE_COMMANDS}:migrate",
        "Bring a store of an earlier version up to date: each record gets its code generator.\n\nRecords get ids that "
        "tell the generator, and keep the ids that they had as aliases. A second call changes nothing.",
        examples=("tencost records migrate --dry-run", "tencost records migrate"),
        params=(_DRY_RUN, _STORE),
    ),
    Command(
        "vacuum",
        f"{_STORE_COMMANDS}:vacuum",
        "Delete files that no recent version of the store has.\n\nWhat was deleted, compacted or left behind by killed "
        "writers is gone for good then.",
        examples=("tencost records vacuum --dry-run", "tencost records vacuum --hours 48"),
        params=(
            option(
                "--hours",
                Whole(1),
                "Versions of the last so many hours stay readable; more than the longest import takes.",
                default=168,
            ),
            _DRY_RUN,
            _STORE,
        ),
    ),
    Command(
        "rename",
        f"{_STORE_COMMANDS}:rename",
        "Correct the name of a hardware, or of a dataset.\n\nThere may be records of the new name already. Versions of "
        "the table before it keep the old one.",
        examples=(
            "tencost records rename --hardware adreno adreno-640 --dry-run",
            "tencost records rename --dataset roller roller-v100",
        ),
        params=(
            _device("The name that the records have, and the one that they get.", nargs=2, metavar="OLD NEW"),
            option("--dataset", _DATASET, "The same of a dataset.", nargs=2, metavar="OLD NEW"),
            _DRY_RUN,
            _STORE,
        ),
    ),
    Command(
        "delete",
        f"{_STORE_COMMANDS}:delete",
        "Delete the records of a hardware, those of one file, or those that a condition names.\n\nVersions of the "
        "table before it still have them, until it is vacuumed.",
        examples=(
            "tencost records delete --hardware adreno --dry-run",
            "tencost records delete --hardware adreno --source phones/a.log",
            "tencost records delete --where \"source.dataset = 'roller' AND status <> 'ok'\"",
        ),
        params=(
            _device(),
            option(
                "--source",
                Text("FILE"),
                "Only what was read from this file, as the records name it, or the end of its path.",
            ),
            option(
                "--where",
                Text("SQL"),
                "Instead of both: which records go, as after WHERE in `records query sql`, from quarantine too.",
            ),
            _DRY_RUN,
            _STORE,
        ),
    ),
]  # fmt: skip
_RUNS_OF_NETWORKS = (
    option("--network", Text("NAME"), "Of this network only, all sizes, or one: bert_tiny-b4-s128."),
    _OF_DEVICE,
    option("--engine", Text("NAME"), "Of this engine only."),
    option("--granularity", click.Choice(["end to end", "layer", "task"]), "What was timed.", default="end to end"),
    _STORE,
    *_FORM,
)  # fmt: skip


def _chosen_runs(store_uri: str | None, granularity: str, **words: Any) -> tuple[Any, ...]:
    """Return the store, how the answer is printed, and which runs the options of _RUNS_OF_NETWORKS choose."""
    from tencost.records.network_times.runs import Chosen
    from tencost.records.network_times.timing import Granularity

    form = _take_form(words)
    return store_uri, form, Chosen(**words, granularity=Granularity(granularity))


def _compare(by: list[str], baseline: str | None, **options: Any) -> None:
    from tencost.records.network_times import command

    command.show_comparison(*_chosen_runs(**options), by=by, baseline=baseline)


def _regress(
    since: str,
    margin: int,
    runs: int,
    any_host: bool,
    programs: bool,
    plot: Path | None,
    **options: Any,
) -> None:
    from tencost.records.network_times import command

    slower = command.show_regressions(
        *_chosen_runs(**options),
        since=since,
        margin=margin / 100,
        last=runs,
        any_host=any_host,
        programs=programs,
        plot=plot,
    )
    if slower:
        raise SystemExit(1)


RECORDS = StageGroup(
    StageCommand(
        "records",
        "tencost.records.stage",
        "Read the logs of a raw dataset into its record store.",
        uses="dataset paths.raw paths.records",
        examples=("tencost records dataset=tencost-xeon",),
    ),
    "Read a raw dataset's logs into its record store; ask the live one.\n\nWith a command below: the live store.",
    examples=(
        "tencost records import logs/ --hardware v100 --dataset roller",
        "tencost records query best --hardware v100",
    ),
    commands=[
        Command(
            "import",
            "tencost.records.import_command",
            "Bring logs of any format into the record store.\n\nPATHS are files, folders and archives: MetaSchedule, "
            "Ansor and AutoTVM logs, T4 results, TenSet folders, RFC 4304 tables and the store's own. Lines that "
            "cannot be read are listed in data/rejects/<dataset>.jsonl.",
            examples=(
                "tencost records import logs/ --hardware v100 --dataset roller",
                "tencost records import a.json b.log.gz --hardware board --jobs 2",
                "tencost records import phones/ --hardware a=adreno-640 --hardware b/x.log=mali-g77",
            ),
            params=(
                click.Argument(["paths"], nargs=-1, required=True, type=PathType("PATH")),
                _device(
                    "The device of records that do not name theirs; FOLDER=NAME: of those in a folder or file. As "
                    "often as needed.",
                    multiple=True,
                    metavar="NAME|FOLDER=NAME",
                ),
                option("--dataset", _DATASET, "What the records are called after. [default: the first path's name]"),
                _STORE,
                option("--jobs", Whole(1), "Worker processes. [default: one a core]"),
                option(
                    "--gate",
                    click.Choice(["quarantine", "apart"]),
                    "What becomes of records with a fault: kept out of look-ups, or out of the store, in "
                    "data/rejects/. [default: apart on an object store, else quarantine]",
                ),
            ),
        ),
        _QUERY,
        _EXPORT,
        *_CHANGES,
        Command(
            "compare",
            _compare,
            "Print whole networks' times side by side: engines, versions, hosts, days.\n\nMedians and quartiles, each "
            "run with the same weight; ratios to a baseline with their 95 % bootstrap interval.",
            examples=(
                "tencost records compare --network bert_tiny",
                "tencost records compare --by engine,day --hardware epyc-avx512-1c --baseline onnxruntime",
            ),
            params=(
                *_RUNS_OF_NETWORKS,
                option(
                    "--by",
                    Names("COLUMNS"),
                    "Columns to compare by, with commas: engine, version, host, day, hardware, cores.",
                    default="engine,version",
                ),
                option(
                    "--baseline",
                    Text("VALUE"),
                    "What others are divided by, a value of these columns. [default: pytorch, or what was timed first]",
                ),
            ),
        ),
        Command(
            "regress",
            _regress,
            "Find what became slower beyond its noise: exit code 1 if something did, 0 if not.\n\nRuns are compared "
            "with earlier ones of the same network, engine, hardware, cores and host. Slower is what has the whole 95 "
            "% bootstrap interval of its ratio above 1 + margin; a network that cannot be timed any more counts, too.",
            examples=(
                "tencost records regress --since 2026-11-22 --plot nightly.png",
                "tencost records regress --since 0.27.0.post1 --engine tencost --margin 3",
            ),
            params=(
                *_RUNS_OF_NETWORKS,
                option(
                    "--since",
                    Text("DAY|VERSION"),
                    "Where what is new begins: a day (UTC), or a version of an engine, of TVM or of tencost.",
                    required=True,
                ),
                option(
                    "--margin",
                    Whole(0),
                    "Percent by which something must be slower at least, beyond its noise.",
                    default=5,
                ),
                option("--runs", Whole(1), "Runs before that count, the last ones.", default=10),
                flag("--any-host", "Hosts count as one."),
                flag("--programs", "Programs that were measured again, in place of networks."),
                option("--plot", PathType("FILE"), "A file that gets a plot over time, PNG."),
            ),
        ),
    ],
)  # fmt: skip
