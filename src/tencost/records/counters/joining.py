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
from tencost.store.ids import ID_LENGTH
from tencost.store.tables import open_records

_MARK = re.compile(r"tencost:([^\s:;,\"'/()<>]+)")
_ID = re.compile(rf"(?<![0-9a-f])[0-9a-f]{{{ID_LENGTH}}}(?![0-9a-f])")
_BRACKETS = re.compile(r"[<(].*", re.DOTALL)
_COLUMNS = {"record_id", "file", "kernel", "workload"}


@dataclass(frozen=True)
class Found:
    """A launch's program; `by` says how it was found: nvtx, kernel, file, manifest, format, or nothing."""

    program_id: str
    workload: str
    by: str


class Manifest:
    """The rows of a manifest.

    Raises:
        ProfileError: no such file, other columns, a row without an id or two rows for one program that differ.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[tuple[str, str], tuple[str, str]] = {}
        self.used: set[tuple[str, str]] = set()
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

    def __len__(self) -> int:
        return len(self._rows)

    def _add(self, row: Mapping[str, str], line: int) -> None:
        key = (row["file"], _BRACKETS.sub("", row["kernel"]).strip() if row["kernel"] else "")
        if not row["record_id"] or key == ("", ""):
            raise ProfileError(
                f"expected a record_id and a file or kernel, found {dict(row)} at {self.path}:{line}"
            )
        value = (row["record_id"], row["workload"])
        if self._rows.setdefault(key, value) != value:
            raise ProfileError(
                f"expected one program for {' '.join(filter(None, key))} in {self.path}, found "
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
                    self.used.add((file, kernel))
                    return self._rows[file, kernel]
        return None

    def unused(self) -> list[str]:
        """Return what was named and never seen."""
        return [" ".join(filter(None, key)) for key in self._rows if key not in self.used]


def program_of(launch: Launch, manifest: Manifest | None, name: str) -> Found:
    """Return the program that a launch belongs to.

    Args:
        launch: the launch.
        manifest: None: there is none.
        name: what its file is called in ids of programs that nobody named; distinct for each file.
    """
    mark = _MARK.search(launch.marks) or _MARK.search(launch.kernel)
    if mark is not None:
        return Found(mark[1], launch.workload, "nvtx")
    named = _ID.search(launch.kernel)
    if named is not None:
        return Found(named[0], launch.workload, "kernel")
    if _ID.fullmatch(stem := stem_of(Path(launch.file).name)):
        return Found(stem, launch.workload, "file")
    row = None if manifest is None else manifest.find(launch)
    if row is not None:
        return Found(row[0], row[1] or launch.workload, "manifest")
    if launch.program:
        return Found(launch.program, launch.workload, "format")
    return Found(f"{name}/{_BRACKETS.sub('', launch.kernel) or launch.kernel}", "", "")


def stem_of(name: str) -> str:
    """Return a file's name without what says how it is written: bfs.log.gz is bfs."""
    for suffix in (".gz", ".zst", ".csv", ".log", ".txt", ".tsv", ".xlsx", ".json"):
        name = name.removesuffix(suffix)
    return name


@dataclass(frozen=True)
class Joined:
    """What the record stores know of programs.

    Attributes:
        workload: id -> its record's workload.
        stores: which stores were asked.
    """

    workload: Mapping[str, str]
    stores: tuple[str, ...]


def join(program_ids: Iterable[str], stores: Sequence[str]) -> Joined:
    """Look programs up in record stores.

    Args:
        program_ids: records' ids, or others.
        stores: URIs of stores and folders of builds, see tencost.store.tables.open_records.

    Raises:
        RecordError: a store that cannot be read.
    """
    wanted = pl.Series("record_id", sorted(set(program_ids)), dtype=pl.String)
    workload: dict[str, str] = {}
    asked = []
    for uri in stores:
        records = open_records(uri)
        if not records.exists():
            raise RecordError(f"expected a record store at {uri}, found none")
        asked.append(uri)
        rows = records.read(columns=["record_id", "alias", "workload_id"], quarantined=True)
        for name in ("alias", "record_id"):
            named = rows.filter(pl.col(name).is_in(wanted.implode()))
            workload.update(zip(named[name], named["workload_id"], strict=True))
    return Joined(workload, tuple(asked))


def told(counts: Counter[str]) -> str:
    """Return how programs were found, in words."""
    words = {
        "nvtx": "a range of NVTX", "kernel": "the kernel's name", "file": "the file's name", "manifest": "the manifest",
        "format": "the file's format", "": "nothing: each kernel of a file counts as a program",
    }  # fmt: skip
    return ", ".join(f"{count} by {words[by]}" for by, count in counts.most_common())
