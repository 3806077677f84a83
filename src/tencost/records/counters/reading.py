"""Reading hardware counters: files of any known format become programs, and the gate that every launch passes.

A format parses (:mod:`tencost.records.counters.launches`); whether what it parsed is a launch the gate decides, the
same for all formats. What is not becomes a Reject with file, line and reason, and the launches around it are kept.
Files are streamed: memory grows with the programs that they tell of, not with the files.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import polars as pl

from tencost.config.parts import PROFILE_FORMATS
from tencost.errors import ProfileError, RecordError
from tencost.records.counters import joining
from tencost.records.counters.cells import PERMISSION_TOLD
from tencost.records.counters.launches import RESERVED, Columns, Launch, Note, ProfileFormat, Reject
from tencost.records.counters.metrics import TIME
from tencost.records.counters.programs import Programs
from tencost.records.counters.stored import TABLE, load_parameters, load_profiles
from tencost.records.counters.table import Profiles

UNKNOWN = "unknown"
"""The device where neither a file nor its reader says which."""
_TOLD = 5
"""Ids, names and reasons that a message gives at most."""
_OF_TABLE = {name: f"{name} (parameter)" for name in ("program_id", "workload")}
"""Tuning parameters that are called as the table's own columns -> their columns."""
_MOST = 1e30
"""No counter of a launch is larger; sums of such are no infinities."""


@dataclass(frozen=True, eq=False)
class ReadProfiles:
    """What was read.

    Attributes:
        profiles: the programs.
        units: metric -> canonical unit.
        parameters: tuning parameters where a format has some: program_id, workload and a column a parameter, null where
            a program has it not.
        rejects: how many places were left out.
        launches: launches that were kept.
        kernels: kernels of these, by name.
        joined: programs whose records are in a store.
        notes: what is odd but costs nothing, a sentence each.
    """

    profiles: Profiles
    units: dict[str, str]
    parameters: pl.DataFrame
    rejects: int
    launches: int
    kernels: int
    joined: int
    notes: tuple[str, ...]


def read_profiles(*paths: Path) -> tuple[Profiles, pl.DataFrame, tuple[Reject, ...]]:
    """Read files of hardware counters.

    Returns:
        The programs; their tuning parameters, as in :class:`ReadProfiles`; and what was left out.

    Raises:
        ProfileError: no launch in any of them.
    """
    rejects: list[Reject] = []
    read = read_files(paths, on_reject=rejects.append)
    return read.profiles, read.parameters, tuple(rejects)


def read_places(places: Sequence[Path]) -> tuple[Profiles, pl.DataFrame | None, list[str]]:
    """Return profiles, tuning parameters where there are some, and sentences about what is missing.

    Raises:
        ProfileError: nothing that can be read.
    """
    first = places[0]
    if first.is_file() and first.name == TABLE:
        first = first.parent
    if len(places) == 1 and (not first.exists() or (first / TABLE).is_file()):
        return load_profiles(first).profiles, load_parameters(first), []
    read, parameters, rejects = read_profiles(*places)
    notes = []
    if rejects:
        left = f"{len(rejects)} places of the files were left out"
        notes.append(f"{left}; tencost profiles import says why")
    return read, parameters if parameters.width > 2 and parameters.height else None, notes


def read_files(
    paths: Sequence[Path],
    *,
    manifest: Path | None = None,
    hardware: str | None = None,
    stores: Sequence[str] = (),
    warm_up: int = 0,
    runs: int | None = None,
    on_reject: Callable[[Reject], None] = lambda _: None,
    on_file: Callable[[Path, int], None] = lambda *_: None,
) -> ReadProfiles:
    """Read files and folders of hardware counters.

    Args:
        paths: the files; of folders, all files below that are of a known format.
        manifest: which file or kernel is which program, see tencost.records.counters.joining.
        hardware: the device of launches that do not name theirs.
        stores: record stores that know the programs' workloads.
        warm_up: launches of each kernel of a program that are left out.
        runs: how often each program ran while it was profiled; None: found.
        on_reject: is given what is left out, as it comes.
        on_file: is given each file before it is read, and how many launches there are so far.

    Raises:
        ProfileError: no such file, or no launch in any of them; the message says why.
        RecordError: a store that cannot be read.
    """
    try:
        files, notes = _files(paths)
    except OSError as error:
        raise ProfileError(
            f"expected files of hardware counters that can be read: {error}"
        ) from error
    rows = None if manifest is None else joining.Manifest(manifest)
    gate = _Gate(on_reject, notes)
    programs = Programs(warm_up=warm_up, runs=runs)
    by: Counter[str] = Counter()
    seen: dict[str, None] = {}
    parameters: dict[str, dict[str, object]] = {}
    names = _names(files)
    for path in files:
        on_file(path, gate.launches)
        for launch in gate.launches_of(path):
            found = joining.program_of(launch, rows, names[path])
            if found.program_id not in seen:
                seen[found.program_id] = None
                if launch.parameters:
                    own = {
                        _OF_TABLE.get(name, name): cell for name, cell in launch.parameters.items()
                    }
                    parameters[found.program_id] = {
                        "program_id": found.program_id, "workload": found.workload, **own
                    }  # fmt: skip
            device = launch.device or hardware or UNKNOWN
            workload = found.workload or found.program_id
            by[found.by] += programs.add(found.program_id, workload, device, launch)
    if not gate.launches:
        raise ProfileError(_nothing(paths, gate))
    gathered = programs.finish()
    joined = joining.join(seen, stores)
    profiles = gathered.profiles
    workloads = [
        joined.workload.get(program, own)
        for program, own in zip(
            profiles.program_id.tolist(), profiles.workload.tolist(), strict=True
        )
    ]
    profiles = replace(profiles, workload=np.array(workloads, dtype=np.str_))
    if rows is not None and (unused := rows.unused()):
        gate.notes[
            f"{len(unused)} of {len(rows)} rows of {rows.path} name nothing that was read: {_some(unused)}"
        ] = None
    known = sum(program in joined.workload for program in profiles.program_id.tolist())
    told = [*gate.notes, *gathered.notes, *_about_devices(profiles), *_about_ids(seen, by, joined)]
    return ReadProfiles(
        profiles, dict(gathered.units), _table(parameters), gate.rejects, gathered.launches, gathered.kernels, known,
        tuple(told),
    )  # fmt: skip


def _files(paths: Sequence[Path]) -> tuple[list[Path], dict[str, None]]:
    files: list[Path] = []
    notes: dict[str, None] = {}
    for path in paths:
        if path.is_dir():
            found = [
                item for item in sorted(path.rglob("*")) if item.is_file() and item.name[0] != "."
            ]
            fitting = [item for item in found if _format(item) is not None or _unreadable(item)]
            if len(fitting) < len(found):
                notes[
                    f"{len(found) - len(fitting)} of {len(found)} files in {path} hold no counters"
                ] = None
            files += fitting
        elif path.is_file():
            files.append(path)
        else:  # a pipe may never end
            found_there = "neither a file nor a folder" if path.exists() else "nothing"
            raise ProfileError(
                f"expected a file of hardware counters at {path}, found {found_there}"
            )
    return list(dict.fromkeys(files)), notes


def _names(files: Sequence[Path]) -> dict[Path, str]:
    """Return what each file is called in ids: its path from the folder that all of them are in, without endings."""
    if not files:
        return {}
    common = os.path.commonpath([path.resolve().parent for path in files])
    return {
        path: storable(joining.stem_of(path.resolve().relative_to(common).as_posix()))
        for path in files
    }


def storable(text: str) -> str:
    r"""Return a text as UTF-8 can write it: half a character, of a file's name or of damage, becomes \udcff."""
    return text.encode("utf-8", "backslashreplace").decode()


def _unreadable(path: Path) -> str:
    """Return why a file cannot be opened; empty where it can."""
    try:
        path.open("rb").close()
    except OSError as error:
        return str(error)
    return ""


def _format(path: Path) -> ProfileFormat | None:
    formats: dict[str, ProfileFormat] = PROFILE_FORMATS.all()
    try:
        return next((known for known in formats.values() if known.recognises(path)), None)
    except (RecordError, OSError):
        return None


class _Gate:
    """Lets launches through, and counts what it keeps out."""

    def __init__(self, on_reject: Callable[[Reject], None], notes: dict[str, None]) -> None:
        self._on_reject = on_reject
        self.notes = notes
        self.first: list[Reject] = []
        self.rejects = self.launches = 0

    def launches_of(self, path: Path) -> Iterator[Launch]:
        known = _format(path)
        if known is None and (why := _unreadable(path)):
            self._reject(Reject(str(path), 0, f"expected a file that can be read: {why}"))
            return
        if known is None:
            layouts = ", ".join(each.layout for each in PROFILE_FORMATS.all().values())
            size = path.stat().st_size if path.is_file() else 0
            told = f"none of these in its {size} bytes" if size else "an empty file"
            self._reject(Reject(str(path), 0, f"expected {layouts}; found {told}"))
            return
        try:
            for item in known.read(path):
                if isinstance(item, Note):
                    self.notes[item.text] = None
                elif isinstance(item, Reject):
                    self._reject(item)
                elif (reason := _bad(item)) is not None:
                    self._reject(Reject(item.file, item.line, reason))
                else:
                    self.launches += 1
                    yield item
        except (RecordError, OSError) as error:
            self._reject(Reject(str(path), 0, f"expected a file that can be read: {error}"))

    def _reject(self, reject: Reject) -> None:
        reject = replace(reject, file=storable(reject.file), reason=storable(reject.reason))
        self.rejects += 1
        if len(self.first) < _TOLD:
            self.first.append(reject)
        self._on_reject(reject)


def _bad(launch: Launch) -> str | None:
    """Return why something is no launch; None where it is one."""
    if not np.isfinite(launch.values).any() and not np.isfinite(launch.time_ns):
        return "expected a metric with a value, found none"
    if TIME in launch.columns.names:
        time = launch.values[launch.columns.names.index(TIME)]
        if time <= 0:
            return f"expected a time above 0 as {TIME}, found {time:g}"
    if (np.abs(launch.values) > _MOST).any() or launch.time_ns > _MOST:
        return f"expected values up to {_MOST:g}, found larger ones"
    if (told := _unstorable(launch)) is not None:
        return f"expected names that are text, found half a character in {ascii(told)[:60]}"
    if any(name in RESERVED for name in launch.columns.names):
        return f"expected metrics, found a column of the table's own: {', '.join(RESERVED)}"
    return None


def _unstorable(launch: Launch) -> str | None:
    """Return a name of a launch that UTF-8 cannot write, None where there is none."""
    texts = [launch.kernel, launch.device, launch.program, launch.workload]
    texts += [part for item in launch.parameters.items() for part in item if isinstance(part, str)]
    found = next((text for text in texts if storable(text) != text), None)
    return _unstorable_column(launch.columns) if found is None else found


@lru_cache(maxsize=64)  # launches of a file share them
def _unstorable_column(columns: Columns) -> str | None:
    return next((text for text in columns.names if storable(text) != text), None)


def _nothing(paths: Sequence[Path], gate: _Gate) -> str:
    places = ", ".join(map(str, paths[:_TOLD]))
    if PERMISSION_TOLD in gate.notes:
        return f"expected launches in {places}, found none: {PERMISSION_TOLD}"
    reasons = "; ".join(f"{item.file}:{item.line}: {item.reason}" for item in gate.first)
    return f"expected launches of kernels in {places}, found none. {reasons or 'There is no file'}"


def _about_devices(profiles: Profiles) -> Iterator[str]:
    names, counts = np.unique(profiles.device, return_counts=True)
    if len(names) > 1:
        told = ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
        yield f"programs ran on {len(names)} devices and keep theirs: {told}"
    if UNKNOWN in names:
        yield "some launches name no device; name it with --hardware"


def _about_ids(seen: dict[str, None], by: Counter[str], joined: joining.Joined) -> Iterator[str]:
    yield f"programs named: {joining.told(by)}"
    missing = [program for program in seen if program not in joined.workload]
    if not joined.stores:
        yield (
            "no record store was asked for the programs' workloads, as there is none here; name one with --store"
        )
    elif missing:
        yield (
            f"{len(missing)} of {len(seen)} programs are in no record store ({', '.join(joined.stores)}) and are kept: "
            f"{_some(missing)}"
        )


def _table(parameters: dict[str, dict[str, object]]) -> pl.DataFrame:
    """Return programs' parameters as a table; numbers where all of a column are."""
    columns: dict[str, None] = {"program_id": None, "workload": None}
    for row in parameters.values():
        columns.update(dict.fromkeys(row))
    series = []
    for name in columns:
        cells = [row.get(name) for row in parameters.values()]
        told = [cell for cell in cells if cell is not None]
        if name in ("program_id", "workload") or not all(
            isinstance(cell, int | float) for cell in told
        ):
            text = [None if cell is None else str(cell) for cell in cells]
            series.append(pl.Series(name, text, dtype=pl.String))
        elif all(isinstance(cell, int) and abs(cell) < 2**63 for cell in told):
            series.append(pl.Series(name, cells, dtype=pl.Int64, strict=False))
        else:
            series.append(pl.Series(name, cells, dtype=pl.Float64, strict=False))
    return pl.DataFrame(series)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_TOLD]) + (
        f" and {len(names) - _TOLD} more" if len(names) > _TOLD else ""
    )
