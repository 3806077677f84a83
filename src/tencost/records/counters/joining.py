"""Which program a launch belongs to: by id, never by the order of rows.

In this order: a range of NVTX called ``tencost:<record id>`` around the launch; a record's id in the kernel's name; a
file called ``<record id>.csv``; a manifest. What none of them names stays, each kernel of a file as a program.

A manifest is a CSV file with the columns ``record_id`` and one or both of ``file`` (its name, or the end of its path)
and ``kernel`` (its name, with or without what stands in brackets); ``workload`` may say what the program computes.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tencost.errors import ProfileError, RecordError
from tencost.records.counters.launches import Launch
from tencost.records.reading.protocol import first_names
from tencost.store.ids import ID_LENGTH
from tencost.store.tables import open_records

_MARK = re.compile(r"tencost:([^\s:;,\"'/()<>]+)")
_ID = re.compile(rf"(?<![0-9a-f])[0-9a-f]{{{ID_LENGTH}}}(?![0-9a-f])")
_BRACKETS = re.compile(r"[<(].*", re.DOTALL)
_COLUMNS = {"record_id", "file", "kernel", "workload"}
_SUFFIXES = (".gz", ".zst", ".csv", ".log", ".txt", ".tsv", ".xlsx", ".json")
_WORDS = {
    "nvtx": "a range of NVTX", "kernel": "the kernel's name", "file": "the file's name", "manifest": "the manifest",
    "format": "the file's format", "": "nothing: each kernel of a file counts as a program",
}  # fmt: skip


@dataclass(frozen=True)
class LaunchedProgram:
    """A launch's program; `by` says what identified it: nvtx, kernel, file, manifest, format, or "" for nothing."""

    program_id: str
    workload: str
    by: str


class Manifest:
    """The rows of a manifest.

    Raises:
        ProfileError: no such file, other columns, a row without an id or two rows for one program that differ.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[tuple[str, str], tuple[str, str]] = {}
        self._used: set[tuple[str, str]] = set()
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                lines = csv.DictReader(file)
                names = set(lines.fieldnames or ())
                if "record_id" not in names or not names & {"file", "kernel"}:
                    raise ProfileError(
                        f"expected the columns record_id and file or kernel in {path}, found "
                        f"{', '.join(map(str, lines.fieldnames or ())) or 'nothing'}"
                    )
                for row in lines:
                    self._add(
                        {key: (row.get(key) or "").strip() for key in _COLUMNS}, lines.line_num
                    )
        except UnicodeDecodeError as error:
            raise ProfileError(
                f"expected a manifest as CSV in UTF-8 at {path}, found another encoding: {error}. Save it as UTF-8"
            ) from error
        except (OSError, csv.Error) as error:
            raise ProfileError(f"expected a manifest at {path}: {error}") from error

    def _add(self, row: Mapping[str, str], line: int) -> None:
        key = (row["file"], _BRACKETS.sub("", row["kernel"]).strip() if row["kernel"] else "")
        if not row["record_id"] or key == ("", ""):
            raise ProfileError(
                f"expected a record_id and a file or kernel, found {dict(row)} at {self._path}:{line}"
            )
        value = (row["record_id"], row["workload"])
        if self._rows.setdefault(key, value) != value:
            raise ProfileError(
                f"expected one program for {' '.join(filter(None, key))} in {self._path}, found "
                f"{self._rows[key][0]} and, in line {line}, {value[0]}"
            )

    def find(self, launch: Launch) -> tuple[str, str] | None:
        """Return (id, workload) of a launch; the row that says most about it counts."""
        kernels = {_BRACKETS.sub("", launch.kernel).strip(), launch.kernel, ""}
        parts = Path(launch.file).parts
        files = ["/".join(parts[at:]) for at in range(len(parts))] + [""]
        for kernel in sorted(kernels, key=len, reverse=True):
            for file in files:
                if (file, kernel) in self._rows:
                    self._used.add((file, kernel))
                    return self._rows[file, kernel]
        return None

    def notes(self) -> list[str]:
        """Return a sentence about rows that name nothing that was read, where there are some."""
        unused = [" ".join(filter(None, key)) for key in self._rows if key not in self._used]
        if not unused:
            return []
        names = first_names(unused)
        rows = f"{len(unused)} of {len(self._rows)} rows of {self._path}"
        return [f"{rows} name nothing that was read: {names}"]


def program_of(launch: Launch, manifest: Manifest | None, name: str) -> LaunchedProgram:
    """Return the program that a launch belongs to.

    Args:
        launch: the launch.
        manifest: None: there is none.
        name: what its file is called in ids of programs that nobody named; distinct for each file.
    """
    stem = stem_of(Path(launch.file).name)
    if mark := _MARK.search(launch.marks) or _MARK.search(launch.kernel):
        return LaunchedProgram(mark[1], launch.workload, "nvtx")
    if kernel_id := _ID.search(launch.kernel):
        return LaunchedProgram(kernel_id[0], launch.workload, "kernel")
    if _ID.fullmatch(stem):
        return LaunchedProgram(stem, launch.workload, "file")
    if manifest is not None and (row := manifest.find(launch)) is not None:
        return LaunchedProgram(row[0], row[1] or launch.workload, "manifest")
    if launch.program:
        return LaunchedProgram(launch.program, launch.workload, "format")
    return LaunchedProgram(f"{name}/{_BRACKETS.sub('', launch.kernel) or launch.kernel}", "", "")


def stem_of(name: str) -> str:
    """Return a file's name without its endings: bfs.log.gz is bfs."""
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def join(program_ids: Iterable[str], stores: Sequence[str]) -> dict[str, str]:
    """Look programs up in record stores: id -> its record's workload.

    Args:
        program_ids: records' ids, or others.
        stores: URIs of stores and folders of builds, see tencost.store.tables.open_records.

    Raises:
        RecordError: a store that cannot be read.
    """
    ids = pl.Series("record_id", sorted(set(program_ids)), dtype=pl.String)
    workloads: dict[str, str] = {}
    for uri in stores:
        records = open_records(uri)
        if not records.exists():
            raise RecordError(f"expected a record store at {uri}, found none")
        rows = records.read(columns=["record_id", "alias", "workload_id"], quarantined=True)
        for name in ("alias", "record_id"):
            matches = rows.filter(pl.col(name).is_in(ids.implode()))
            workloads.update(zip(matches[name], matches["workload_id"], strict=True))
    return workloads


def identified_by(counts: Counter[str]) -> str:
    """Return how many programs were identified by what, in words."""
    return ", ".join(f"{count} by {_WORDS[by]}" for by, count in counts.most_common())
