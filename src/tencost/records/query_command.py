"""Questions to a record store as `tencost records query` asks them: which store is meant, the question, the answer.

A workload is named by its id, the beginning of one, or its task's name. A target is JSON or the text of an older TVM;
it may be left out where a hardware has records for one target only. The store is the live one, `data/store`, which
imports and tuning write to, unless named.

A table shows 20 rows, ids shortened, times with their unit. JSON (a list of objects) and CSV hold everything, times in
seconds; nested values in CSV are JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tencost.config import PathsConfig, project_root
from tencost.errors import ConfigError, RecordError
from tencost.records import query
from tencost.records.answers import Form, show
from tencost.store.reading import StoredRecords
from tencost.store.tables import open_records


@dataclass(frozen=True)
class Place:
    """The store of a question.

    Attributes:
        store: where it is; None: the build's, or the live one.
        build: the dataset whose build made it, data/records/<build>.
        version: of the table; None: the latest.
    """

    store: str | None = None
    build: str | None = None
    version: int | None = None

    def words(self) -> str:
        """Return the options that name this place, with a blank before each."""
        options = (("store", self.store), ("build", self.build))
        return "".join(f" --{name} {value}" for name, value in options if value is not None)


def best(
    place: Place,
    form: Form,
    *,
    hardware: str,
    target: str | None = None,
    workload: str | None = None,
    n: int = 1,
    generator: str | None = None,
) -> None:
    """Print the n fastest programs of a workload, or of each, on a hardware.

    Raises:
        RecordError: no store, or nothing in it that is asked for.
    """
    store = open_store(place)
    fastest = query.best(
        store,
        hardware=hardware,
        target=target_of(store, target, hardware),
        workload=_workload(store, workload, hardware),
        n=n,
        generator=generator,
    )
    hidden = ["hardware", "target", "program_format", "timestamp", "record_id", "file", "line"]
    if fastest["generator"].n_unique() < 2:
        hidden.append("generator")
    show(fastest, form, hidden)


def history(
    place: Place,
    form: Form,
    *,
    hardware: str,
    workload: str | None = None,
    program: str | None = None,
    target: str | None = None,
    generator: str | None = None,
) -> None:
    """Print how a workload got faster on a hardware, trial by trial, or all measurements of a program.

    Raises:
        RecordError: no store, nothing in it that is asked for, or not one of workload and program.
    """
    if (workload is None) == (program is None):
        presence = "neither" if workload is None else "both"
        raise RecordError(f"expected one of --workload and --program, found {presence}")
    store = open_store(place)
    chosen = target_of(store, target, hardware)
    if program is not None:
        show(query.program_history(store, program, hardware=hardware, target=chosen), form)
        return
    identity = query.find_workload(store, str(workload), hardware=hardware)
    show(
        query.history(store, identity, hardware=hardware, target=chosen, generator=generator),
        form,
        ("timestamp", "record_id", "file", "line"),
    )


def new(place: Place, form: Form, *, since: int | None = None, hardware: str | None = None) -> None:
    """Print what is new since a version of the store, and how to ask for what comes after.

    Raises:
        RecordError: no store, or no such version.
    """
    store = open_store(place)
    show(query.new(store, since, hardware=hardware), form, ("target", "record_id", "file", "line"))
    if form.name == "table":
        now = query.current_version(store)
        command = f"tencost records query new --since {now}{place.words()}"
        text = f"Version {now}. What comes after it: {command}"
        if now is None:
            text = "A build has no versions: what is new there is what another build makes."
        sys.stdout.write(f"{text}\n")


def compare(
    place: Place,
    form: Form,
    *,
    hardware: str,
    other: str,
    target: str | None = None,
    other_target: str | None = None,
    workload: str | None = None,
) -> None:
    """Print two hardware side by side, workload by workload.

    Raises:
        RecordError: no store, or nothing in it that is asked for.
    """
    store = open_store(place)
    comparison = query.compare(
        store,
        hardware=(hardware, other),
        target=(target_of(store, target, hardware), target_of(store, other_target, other)),
        workload=_workload(store, workload, None),
    )
    show(comparison, form)


def stats(
    place: Place,
    form: Form,
    *,
    by: Sequence[str] = ("hardware", "format"),
    hardware: str | None = None,
    workload: str | None = None,
) -> None:
    """Print counts, failures and spread by some columns.

    Raises:
        RecordError: no store, or nothing in it that is asked for.
    """
    store = open_store(place)
    identity = _workload(store, workload, hardware)
    show(query.statistics(store, by=list(by), hardware=hardware, workload=identity), form)


def sql(place: Place, form: Form, text: str) -> None:
    """Print the answer to a query in DuckDB's SQL.

    Raises:
        RecordError: no store, or a query that DuckDB refuses.
    """
    show(query.sql(open_store(place), text), form)


def open_store(place: Place) -> StoredRecords:
    """Return the store at a place.

    Raises:
        RecordError: a place that is named twice, or no store there.
    """
    if place.store is not None and place.build is not None:
        raise RecordError("expected one of --store and --build, found both")
    uri = place.store
    if uri is None:
        live = PathsConfig().live_store(project_folder())
        uri = live if place.build is None else str(dataset_folder(place.build))
    store = open_records(uri, place.version)
    if not store.exists():
        builds = _builds()
        other = (
            f"what a build made: --build {' or '.join(builds)}"
            if builds
            else "another: --build NAME"
        )
        raise RecordError(
            f"expected a record store at {uri}, found none. Fill it: tencost records import <logs> --hardware "
            f"<name>. Or read {other}, or --store URI"
        )
    return store


def _builds() -> list[str]:
    """Return the datasets that `tencost records` has built."""
    records = project_folder() / PathsConfig().records
    return sorted(path.name for path in records.iterdir()) if records.is_dir() else []


def dataset_folder(name: str) -> Path:
    """Return the folder of a dataset's records, `data/records/<name>`.

    Raises:
        RecordError: no such folder.
    """
    records = project_folder() / PathsConfig().records
    folder = records / name
    if not (name and folder.is_dir()):
        raise RecordError(
            f"expected the records of dataset {name!r} in {folder}, found nothing. There are: "
            f"{', '.join(_builds()) or 'none'}. Build them: tencost records dataset={name}"
        )
    return folder


def project_folder() -> Path:
    """Return the project's root; outside a project the current folder."""
    try:
        return project_root()
    except ConfigError:
        return Path.cwd()


def target_of(store: StoredRecords, target: str | None, hardware: str) -> str:
    """Return a target, canonical JSON; where none is given, a hardware's only one.

    Raises:
        RecordError: no target, or none given where a hardware has several.
    """
    return query.only_target(store, hardware) if target is None else query.canonical(target)


def _workload(store: StoredRecords, text: str | None, hardware: str | None) -> str | None:
    return None if text is None else query.find_workload(store, text, hardware=hardware)
