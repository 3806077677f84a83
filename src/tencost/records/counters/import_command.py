"""`tencost profiles import` and `tencost profiles show`: counters into a table, and what a table holds."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tencost.config import PathsConfig
from tencost.errors import ProfileError, printable
from tencost.records.counters.metrics import require
from tencost.records.counters.reading import ReadProfiles, read_files
from tencost.records.counters.stored import PARAMETERS, REJECTS, TABLE, load_profiles, save_profiles
from tencost.records.reading.report import progress_bar, reject_file, report
from tencost.store.tables import RECORDS
from tencost.writing import whole_file

_WIDTH = 160


def run(
    paths: Sequence[Path], root: Path, *, to: Path, store_uri: str | None = None, **options: Any
) -> None:
    """Read profiles into a folder and say what came in.

    Args:
        paths: files and folders of counters.
        root: the project's; its record stores are asked for the programs.
        to: the folder; what an earlier import wrote there is replaced.
        store_uri: the one record store to ask; None: the live one and those of all builds.
        options: manifest, hardware, warm_up, runs and decimal of :func:`read_files`.

    Raises:
        ProfileError: no launch at the paths, or nothing can be written.
        RecordError: a record store that cannot be read.
    """
    console = Console(stderr=True)
    stores = [store_uri] if store_uri else _stores(root)
    try:
        # Renamed at the end, one right after the other: an import that is killed, or finds the disk full, changes
        # nothing.
        with (
            _locked(to),
            reject_file(to / REJECTS) as rejects,
            whole_file(to / TABLE) as table,
            whole_file(to / PARAMETERS) as parameters,
            progress_bar("profiles", console) as move,
        ):
            callbacks: dict[str, Any] = {"on_reject": rejects.add, "on_progress": move}
            read = read_files(paths, stores=stores, **callbacks, **options)
            save_profiles(table, read.profiles, read.units)
            read.parameters.write_parquet(parameters)
    except OSError as error:
        raise ProfileError(f"expected to write profiles into {to}: {error}") from error
    report(_rows(read, to), read.notes, rejects, console)


@contextmanager
def _locked(to: Path) -> Iterator[None]:
    to.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(to / ".lock", timeout=0):
            yield
    except Timeout as error:
        raise ProfileError(
            f"expected to write profiles into {to}, found another import at it. Wait for it, or name another folder "
            "(--to)"
        ) from error


def _stores(root: Path) -> list[str]:
    """Return the record stores of a project: the live one and those of its builds."""
    paths = PathsConfig()
    live = paths.live_store(root)
    builds = sorted((root / paths.records).glob(f"*/{RECORDS}"))
    return [
        *([live] if "://" in live or (Path(live) / "_delta_log").is_dir() else []),
        *(str(file.parent) for file in builds),
    ]


def _rows(read: ReadProfiles, to: Path) -> dict[str, str]:
    """Return what was imported in words, title -> cell."""
    profiles, parameters = read.profiles, read.parameters
    count = f"{parameters.width - 2:,} of {parameters.height:,} programs ({to / PARAMETERS})"
    return {
        "launches": f"{read.launches:,}",
        "kernels": f"{read.kernels:,}",
        "programs": f"{len(profiles):,} ({read.joined:,} joined with records)",
        "workloads": f"{len(set(profiles.workload.tolist())):,}",
        "devices": ", ".join(sorted(set(profiles.device.tolist()))),
        "metrics": f"{len(profiles.metrics):,}",
        "tuning parameters": count if parameters.height else "",
        "table": str(to / TABLE),
    }


def show(place: Path, metrics: Sequence[str] = ()) -> None:
    """Print the metrics of a table with units, and their spread over its programs.

    Args:
        place: the table, or the folder of an import.
        metrics: those to print; all unless given.

    Raises:
        ProfileError: no table, or a metric that is not in it.
    """
    stored = load_profiles(place)
    profiles = stored.profiles
    require(profiles.metrics, metrics, str(place))
    names, counts = np.unique(profiles.device, return_counts=True)
    devices = ", ".join(f"{name} {count:,}" for name, count in zip(names, counts, strict=True))
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    table = Table(title=escape(printable(f"{len(profiles):,} programs: {devices}")))
    for title in ("metric", "unit", "measured", "min", "median", "max"):
        table.add_column(
            title,
            justify="left" if title in ("metric", "unit") else "right",
            no_wrap=title != "metric",
        )
    rows = [] if metrics else [("time_ns", "ns", profiles.time_ns)]
    rows += [
        (name, stored.units[name], profiles.column(name)) for name in metrics or profiles.metrics
    ]
    for name, unit, column in rows:
        measured = column[~np.isnan(column)]
        spread = [function(measured) for function in (np.min, np.median, np.max) if len(measured)]
        cells = [f"{value:,.6g}" for value in spread] or ["-"] * 3
        table.add_row(
            escape(printable(name)), escape(printable(unit)), f"{len(measured):,}", *cells
        )
    console.print(table)
