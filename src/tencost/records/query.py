"""Questions to a record store: best programs, history, what is new, two hardware side by side, statistics, SQL.

Each function reads the version that the store was opened at, the latest by default, through DuckDB: only the columns
and the row groups that the question needs. Rows in quarantine are left out, except where a function says otherwise.
All answers are Polars frames; their columns:

    best        rank (from 1), workload_id, task_name, hardware, target (canonical JSON), generator, latency_s, mean_s,
                spread, num_runs, program_id, record_id, program_format, timestamp, dataset, file, line
    history     trial (from 1), timestamp, elapsed_s (since the first time stamp), status, latency_s, best_s (fastest
                so far), improved, program_id, record_id, dataset, file, line
    history of  measurement (from 1), timestamp, elapsed_s, status, latency_s, num_runs, error, quarantine, dataset,
    a program   file, line
    new         workload_id, task_name, hardware, target, status, latency_s, program_id, record_id, timestamp,
                dataset, file, line
    compare     workload_id, task_name, num_ok_a, num_ok_b, best_a_s, best_b_s, ratio (best_a_s / best_b_s: above 1,
                b is faster), num_shared (programs with times on both), spearman (of their latencies; in [-1, 1])
    statistics  the columns asked for; records, ok, quarantined, programs, workloads, spread; for workloads also
                task_name, best_s and median_s

`latency_s` is the median of run_secs, `mean_s` their mean, in seconds; lower is faster. `spread` is the standard
deviation of a record's run_secs over their mean (no unit), null for a single run; in `statistics` it is the median over
records. `timestamp` is seconds since 1970. `target` as an argument is a mapping, its JSON, or the text of an older TVM
(``cuda -keys=cuda,gpu``); targets that differ in an empty tag only are the same. Nothing that answers with a time
crosses hardware, targets or code generators: of each workload the records of one generator answer, the one asked for
or the preferred one (store/generator.py).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import polars as pl

from tencost.errors import RecordError
from tencost.records.query_tables import (
    MEASURED,
    Tables,
    Target,
    canonical,
    in_list,
    quoted,
)
from tencost.records.reading.protocol import first_names, shorten
from tencost.store.ids import ID_LENGTH
from tencost.store.layout import COLUMNS, latency
from tencost.store.measured import measurements
from tencost.store.reading import StoredRecords, known_columns
from tencost.store.record_store import RecordStore
from tencost.store.tables import open_records

__all__ = [
    "GROUPINGS",
    "Target",
    "best",
    "canonical",
    "compare",
    "current_version",
    "find_workload",
    "history",
    "new",
    "only_target",
    "program_history",
    "sql",
    "statistics",
]

GROUPINGS = {
    "hardware": "hardware",
    "target": "target",
    "generator": "generator",
    "workload": "workload_id",
    "task": "task_name",
    "status": "status",
    "format": "program_format",
    "engine": "engine",
    "dataset": "dataset",
}
"""Groupings of `statistics` -> columns."""

_MEASUREMENT = pl.DataFrame(schema={"one": COLUMNS["measurements"].inner}).unnest("one").schema  # type: ignore[attr-defined]
_SHARED_AT_LEAST = 3
"""Programs that two hardware must share before their order is compared."""
_SPREAD = (
    pl.col("execution_elapsed_ms_std").cast(pl.Float64)
    / pl.col("execution_elapsed_ms_mean").cast(pl.Float64)
).alias("spread")
_SPREAD_SQL = "(execution_elapsed_ms_std::DOUBLE / execution_elapsed_ms_mean)"
_NUMBER = pl.int_range(1, pl.len() + 1, dtype=pl.Int64)
_ELAPSED = (pl.col("timestamp") - pl.col("timestamp").min()).alias("elapsed_s")
_SOURCE = "source.dataset AS dataset, source.file AS file, source.line AS line"
_READS = ("SELECT", "EXPLAIN")
_LISTED = frozenset(
    {
        "workload_id",
        "task_name",
        "hardware",
        "target",
        "status",
        "program_id",
        "record_id",
        "timestamp",
    }
)
"""Columns of the schema that `new` lists without being asked."""
_RANKED = (
    "workload_id",
    "task_name",
    "hardware",
    "generator",
    "run_secs",
    "execution_elapsed_ms_mean",
    "execution_elapsed_ms_std",
    "program_id",
    "record_id",
    "program_format",
    "timestamp",
    "source",
)
"""Columns that `best` reads."""


def best(
    store: StoredRecords,
    *,
    hardware: str,
    target: Target,
    workload: str | None = None,
    n: int = 1,
    columns: Sequence[str] = (),
    generator: str | None = None,
) -> pl.DataFrame:
    """Return the n fastest programs of a workload, or of each, on a hardware for a target, fastest first.

    Args:
        store: where to look.
        hardware: the device, exactly as the store names it.
        target: what was compiled for.
        workload: a workload's id; None: all workloads.
        n: programs of each workload, at least 1.
        columns: further columns of the record schema, `program` for example.
        generator: of this code generator only; None: of each workload the preferred one.

    Returns:
        Rows ordered by task name (the least of a workload), workload and rank; none where nothing was measured
        successfully. Of two programs with the same latency the one with the smaller record id comes first.

    Raises:
        RecordError: no store, no such hardware or target in it, or no such column.
    """
    if n < 1:
        raise RecordError(f"expected n of at least 1, found {n}")
    further = list(dict.fromkeys(known_columns(columns)))
    selected = list(dict.fromkeys([*_RANKED, *further]))
    if workload is None:
        rows = Tables(store).fastest(hardware, target, n, selected, generator)
    else:
        name = canonical(target)
        rows = store.best(
            workload, hardware=hardware, target=name, n=n, columns=selected, generator=generator
        )
        if rows.is_empty():
            tables = Tables(store)
            tables.targets(hardware, target)
            tables.compare_generator(generator)
    source = pl.col("source").struct
    return rows.select(
        pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over("workload_id").alias("rank"),
        "workload_id",
        "task_name",
        "hardware",
        pl.lit(canonical(target)).alias("target"),
        "generator",
        latency().alias("latency_s"),
        pl.col("run_secs").list.mean().alias("mean_s"),
        _SPREAD,
        pl.col("run_secs").list.len().cast(pl.Int64).alias("num_runs"),
        "program_id",
        "record_id",
        "program_format",
        "timestamp",
        source.field("dataset", "file", "line"),
        *(name for name in further if name not in _RANKED or name == "run_secs"),
    )


def history(
    store: StoredRecords,
    workload: str,
    *,
    hardware: str,
    target: Target,
    generator: str | None = None,
) -> pl.DataFrame:
    """Return every trial of a workload on a hardware for a target in order of time, with the best so far.

    Records without a time stamp come first, in the order of their log; so do records of one time stamp among
    themselves. A failure is a trial; its latency is null.

    Raises:
        RecordError: no store, no such hardware or target in it.
    """
    tables = Tables(store)
    texts = tables.targets(hardware, target)
    tables.compare_generator(generator)
    rows = tables.ask(
        f"""
        SELECT timestamp, status, latency_s, program_id, record_id, {_SOURCE}
        FROM comparable
        WHERE hardware = $hardware AND target IN {in_list(texts)} AND {_equals("workload_id", workload)}
        ORDER BY timestamp NULLS FIRST, dataset, file, line, record_id
        """,
        hardware=hardware,
    )
    so_far = pl.col("latency_s").cum_min().forward_fill()
    return rows.select(
        _NUMBER.alias("trial"),
        "timestamp",
        _ELAPSED,
        "status",
        "latency_s",
        so_far.alias("best_s"),
        (pl.col("latency_s") < so_far.shift(1).fill_null(float("inf")))
        .fill_null(value=False)
        .alias("improved"),
        "program_id",
        "record_id",
        "dataset",
        "file",
        "line",
    )


def program_history(
    store: StoredRecords, program: str, *, hardware: str, target: Target
) -> pl.DataFrame:
    """Return every measurement of a program on a hardware for a target, earliest first, quarantined ones too.

    Those without a time stamp come first. The record's own latency is the median over all runs of those that
    succeeded and are not in quarantine.

    Args:
        store: where to look.
        program: a program's or a record's id (also the one before its store was migrated), or the beginning of one.
        hardware: the device, exactly as the store names it.
        target: what was compiled for.

    Raises:
        RecordError: no store, no such hardware or target in it, or not one program of that name.
    """
    tables = Tables(store)
    texts = tables.targets(hardware, target)
    begins = (
        f"starts_with(program_id, {quoted(program)}) OR starts_with(record_id, {quoted(program)}) "
        f"OR starts_with(alias, {quoted(program)})"
    )
    records = tables.ask(
        f"""
        SELECT program_id, timestamp, status, error, run_secs, wall_s, quarantine, source, measurements FROM all_records
        WHERE hardware = $hardware AND target IN {in_list(texts)} AND ({begins}) AND {quoted(program)} <> ''
        """,
        hardware=hardware,
    )
    programs = sorted(records["program_id"].unique())
    if len(programs) != 1:
        raise RecordError(
            f"expected the id of one program measured on {hardware} in {store.uri}, or the beginning of it, found "
            f"{program!r}, of {len(programs)}: {', '.join(programs[:8]) or 'none'}. "
            "See them: tencost records query history --workload"
        )
    rows = [measurement for row in records.to_dicts() for measurement in measurements(row)]
    order = ["timestamp", "dataset", "file", "line"]
    ordered = pl.DataFrame(rows, schema=_MEASUREMENT).sort(order)
    return ordered.select(
        _NUMBER.alias("measurement"),
        "timestamp",
        _ELAPSED,
        "status",
        latency().alias("latency_s"),
        pl.col("run_secs").list.len().fill_null(0).cast(pl.Int64).alias("num_runs"),
        *("error", "quarantine", "dataset", "file", "line"),
    )


def new(
    store: StoredRecords,
    since: int | None,
    *,
    hardware: str | None = None,
    columns: Sequence[str] = (),
) -> pl.DataFrame:
    """Return the records that a version of the table has and an earlier one has not.

    Only files that differ between the two versions are read, so compaction and rewritten files bring nothing up. A
    record whose quarantine was lifted in between is new, and so is one that was measured again.

    Args:
        store: where to look.
        since: the earlier version; None: everything is new.
        hardware: of this device only; None: of all.
        columns: further columns of the record schema.

    Raises:
        RecordError: no store, no such version, or its files are gone (vacuumed).
    """
    further = dict.fromkeys(name for name in known_columns(columns) if name not in _LISTED)
    tables = Tables(store)
    if since is not None:
        now = tables.version
        if not isinstance(store, RecordStore) or now is None:
            raise RecordError(
                f"expected a store with versions for since={since}, found {store.uri}, which a build made. "
                "Leave since= out"
            )
        if since > now:
            raise RecordError(
                f"expected a version of {store.uri} up to {now}, found since={since}. "
                "The version at hand: tencost records query new"
            )
        tables.only_since(store.view(since))
    return tables.ask(
        f"""
        SELECT workload_id, task_name, hardware, target, status, latency_s, program_id, record_id, timestamp,
            {", ".join([_SOURCE, *(f'"{name}"' for name in further)])}
        FROM records
        WHERE {_equals("hardware", hardware)}
            AND NOT EXISTS (SELECT 1 FROM known
                WHERE known.record_id = records.record_id AND known.hardware = records.hardware
                    AND known.measured = {MEASURED})
        ORDER BY hardware, dataset, file, line, record_id
        """
    )


def compare(
    store: StoredRecords,
    *,
    hardware: tuple[str, str],
    target: tuple[Target, Target],
    workload: str | None = None,
) -> pl.DataFrame:
    """Compare two hardware, each with its target: a row for each workload that at least one of them has times of.

    `ratio` and `spearman` are null where a side has no times or they share fewer than 3 programs. A program is the
    same on both where workload, kind of target and schedule are. The same hardware twice compares two targets.

    Raises:
        RecordError: no store, no such hardware or target in it.
    """
    tables = Tables(store)
    tables.compare_generator()
    sides = []
    for name, side_target in zip(hardware, target, strict=True):
        texts = tables.targets(name, side_target)
        sides.append(
            tables.ask(
                f"""
                SELECT workload_id, program_id, min(task_name) AS task_name, min(latency_s) AS latency_s
                FROM comparable
                WHERE hardware = $hardware AND target IN {in_list(texts)} AND status = 'ok'
                    AND {_equals("workload_id", workload)}
                GROUP BY workload_id, program_id
                """,
                hardware=name,
            )
        )
    a, b = sides
    shared = a.join(b, on=["workload_id", "program_id"], suffix="_b")
    agreement = shared.group_by("workload_id").agg(
        num_shared=pl.len().cast(pl.Int64),
        spearman=pl.when(pl.len() >= _SHARED_AT_LEAST)
        .then(pl.corr(pl.col("latency_s").rank(), pl.col("latency_s_b").rank()))
        .fill_nan(None),
    )
    return (
        _fastest(a, "a")
        .join(_fastest(b, "b"), on="workload_id", how="full", coalesce=True)
        .join(agreement, on="workload_id", how="left")
        .select(
            "workload_id",
            pl.coalesce("task_name_a", "task_name_b").alias("task_name"),
            pl.col("num_ok_a", "num_ok_b").fill_null(0),
            "best_a_s",
            "best_b_s",
            (pl.col("best_a_s") / pl.col("best_b_s")).alias("ratio"),
            pl.col("num_shared").fill_null(0),
            "spearman",
        )
        .sort("task_name", "workload_id")
    )


def statistics(
    store: StoredRecords,
    *,
    by: Sequence[str] = ("hardware", "format"),
    hardware: str | None = None,
    workload: str | None = None,
) -> pl.DataFrame:
    """Count records in groups; quarantined ones are counted in their own column and nowhere else.

    Args:
        store: where to look.
        by: names of :data:`GROUPINGS`. With `workload`, groups are also divided by hardware, target and code
            generator, and there are `best_s` and `median_s` of latencies, which mean nothing across those.
        hardware: of this device only; None: of all.
        workload: of this workload's id only; None: of all.

    Raises:
        RecordError: no store, or a grouping that there is none of.
    """
    unknown = [name for name in by if name not in GROUPINGS]
    if unknown or not by:
        raise RecordError(
            f"expected groups by some of {', '.join(GROUPINGS)}, found {', '.join(unknown) or 'none'}"
        )
    names = list(dict.fromkeys(by))
    if "workload" in names:
        names = list(dict.fromkeys(["workload", "hardware", "target", "generator", *names]))
    tables = Tables(store)
    tables.register_canonical()
    per_workload = "workload" in names
    name = "min(task_name) AS task_name," if per_workload and "task" not in names else ""
    times = (
        "min(latency_s) FILTER (good) AS best_s, median(latency_s) FILTER (good) AS median_s,"
        if per_workload
        else ""
    )
    keys = ", ".join(GROUPINGS[name] for name in names)
    return tables.ask(
        f"""
        WITH numbered AS (
            SELECT * EXCLUDE (target, source), canonical AS target, source.dataset AS dataset,
                quarantine IS NULL AS kept, status = 'ok' AND quarantine IS NULL AS good
            FROM all_records JOIN targets USING (target)
            WHERE {_equals("hardware", hardware)} AND {_equals("workload_id", workload)}
        )
        SELECT {keys}, {name} count(*) FILTER (kept) AS records, count(*) FILTER (good) AS ok,
            count(*) FILTER (NOT kept) AS quarantined, count(DISTINCT program_id) FILTER (kept) AS programs,
            count(DISTINCT workload_id) FILTER (kept) AS workloads, {times}
            median({_SPREAD_SQL}) FILTER (good) AS spread
        FROM numbered GROUP BY {keys} ORDER BY {keys}
        """
    )


def sql(store: StoredRecords | str, text: str) -> pl.DataFrame:
    """Ask a record store in SQL (DuckDB's), reading only.

    Tables: `records`, the schema's columns and `latency_s`, without quarantined rows; `all_records`, with them.
    Filters on hardware, workload_id, target, status and the like, and the choice of columns, are applied while
    reading. The query sees no file, no network and no variable besides.

    Args:
        store: the store, or where it lives.
        text: one SELECT (also WITH, FROM, DESCRIBE, SUMMARIZE, EXPLAIN).

    Raises:
        RecordError: no store, or a text that is no query, asks for what is not there, or would change something.
    """
    import duckdb

    try:
        statements = duckdb.extract_statements(text)
    except duckdb.Error as error:
        raise RecordError(f"expected a query in SQL, found {shorten(text)}: {error}") from error
    kinds = [str(statement.type).rpartition(".")[2] for statement in statements]
    if len(kinds) != 1 or kinds[0] not in _READS:
        raise RecordError(
            f"expected one SELECT, found {', '.join(kinds) or 'nothing'}: a store is only read with SQL. "
            "Write to it with: tencost records import"
        )
    return Tables(open_records(store) if isinstance(store, str) else store).ask(text)


def current_version(store: StoredRecords) -> int | None:
    """Return the version of the table now, None for a build's file; pass it to `new` later on.

    Raises:
        RecordError: no store.
    """
    return store.view().version


def find_workload(store: StoredRecords, text: str, *, hardware: str | None = None) -> str:
    """Return the id of the workload that has this id, this task name, or an id that begins so.

    Args:
        store: where to look.
        text: id, task name (also with the engine's word before it, `auto_scheduler.<task>`), or beginning of an id.
        hardware: among the workloads of this device only; None: of all.

    Raises:
        RecordError: none or several; the message names them, or what is alike.
    """
    workloads = Tables(store).ask(
        f"SELECT DISTINCT workload_id, task_name, workload FROM records WHERE {_equals('hardware', hardware)}"
    )
    if len(text) == ID_LENGTH and not workloads.filter(workload_id=text).is_empty():
        return text
    same_name = workloads.filter((pl.col("task_name") == text) | (pl.col("workload") == text))
    matches = (
        same_name
        if len(same_name)
        else workloads.filter(pl.col("workload_id").str.starts_with(text))
    )
    ids = matches["workload_id"].unique().to_list() if text else []
    place = f"{store.uri}" if hardware is None else f"{store.uri} on {hardware}"
    if len(ids) == 1:
        return str(ids[0])
    if ids:
        raise RecordError(
            f"expected one workload for {text!r} in {place}, found {len(ids)}: "
            f"{_candidates(matches)}. Name one by its id or the beginning of it."
        )
    alike = difflib.get_close_matches(text, workloads["task_name"].unique().to_list(), n=5)
    near = workloads.filter(pl.col("task_name").is_in(alike)) if alike else workloads
    raise RecordError(
        f"expected a workload's id, the beginning of one, or a task name in {place}, found {text!r}. "
        f"{'Alike' if alike else 'There are'}: {_candidates(near) or 'none'}. "
        "See them all: tencost records query stats --by workload"
    )


def only_target(store: StoredRecords, hardware: str) -> str:
    """Return the one target, canonical JSON, that a hardware's records were compiled for.

    Raises:
        RecordError: no such hardware, or several targets; the message names them.
    """
    targets = sorted(set(Tables(store).canonical_targets(hardware).values()))
    if len(targets) > 1:
        raise RecordError(
            f"expected target=, because {hardware} has records for {len(targets)} targets, found none. One of: "
            + "; ".join(targets)
        )
    return targets[0]


def _fastest(programs: pl.DataFrame, side: str) -> pl.DataFrame:
    """Return the best latency, number of programs and name of each workload of one side."""
    return programs.group_by("workload_id").agg(
        pl.col("task_name").min().alias(f"task_name_{side}"),
        pl.len().cast(pl.Int64).alias(f"num_ok_{side}"),
        pl.col("latency_s").min().alias(f"best_{side}_s"),
    )


def _equals(column: str, value: str | None) -> str:
    return "true" if value is None else f"{column} = {quoted(value)}"


def _candidates(frame: pl.DataFrame) -> str:
    rows = frame.select("workload_id", "task_name").unique().sort("task_name", "workload_id")
    return first_names([f"{identity} ({name})" for identity, name in rows.iter_rows()], 8)
