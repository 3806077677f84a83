"""Reading hardware counters: files of any known format become programs, and the checks that every launch passes.

A format parses (:mod:`tencost.records.counters.launches`); whether a parsed launch is one is checked here, the same for
all formats. Other ones become a Reject with file, line and reason, and the launches around them stay. So does a file
without launches. Files are streamed: memory grows with the programs, not with the files.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import polars as pl

from tencost.config.parts import PROFILE_FORMATS
from tencost.errors import ProfileError, RecordError
from tencost.records.counters import joining
from tencost.records.counters.launches import RESERVED, Columns, Launch, Note, ProfileFormat, Reject
from tencost.records.counters.metrics import TIME
from tencost.records.counters.programs import Gathered, Programs
from tencost.records.counters.stored import TABLE, load_parameters, load_profiles
from tencost.records.counters.table import Profiles
from tencost.records.reading.protocol import About, first_names
from tencost.records.reading.report import SHOWN, Rejects, in_words, storable
from tencost.records.reading.walk import Source, Walk, recognize

UNKNOWN = "unknown"
"""The device where neither a file nor its reader says which."""
_RENAMED = {name: f"{name} (parameter)" for name in ("program_id", "workload")}
"""Tuning parameters that are called as the parameter table's own columns -> their columns."""
_LARGEST = 1e30
"""No counter of a launch is larger; sums of such are no infinities."""


@dataclass(frozen=True, eq=False)
class ReadProfiles(Gathered):
    """Programs that were read from files of counters; a note of several files says of how many.

    Attributes:
        parameters: tuning parameters where a format has some: program_id, workload and a column a parameter, null where
            a program has it not.
        rejects: how many places were left out.
        joined: programs whose records are in a store.
    """

    parameters: pl.DataFrame
    rejects: int
    joined: int


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
    profiles, parameters, rejects = read_profiles(*places)
    notes = []
    if rejects:
        left_out = f"{len(rejects)} places of the files were left out"
        notes.append(f"{left_out}; tencost profiles import says why")
    return profiles, parameters if parameters.width > 2 and parameters.height else None, notes


def read_files(
    paths: Sequence[Path],
    *,
    manifest: Path | None = None,
    hardware: str | None = None,
    stores: Sequence[str] = (),
    warm_up: int = 0,
    runs: int | None = None,
    decimal: str | None = None,
    on_reject: Callable[[Reject], None] = lambda _: None,
    on_progress: Callable[[int, int, str], None] = lambda *_: None,
) -> ReadProfiles:
    """Read files and folders of hardware counters.

    Args:
        paths: the files; of folders, all files below that are not hidden.
        manifest: which file or kernel is which program, see tencost.records.counters.joining.
        hardware: the device of launches that do not name theirs.
        stores: record stores that know the programs' workloads.
        warm_up: launches of each kernel of a program that are left out.
        runs: how often each program ran while it was profiled; None: found.
        decimal: the decimal mark of all files of Nsight Compute, "point" or "comma"; None: the cells of each file tell.
        on_reject: is called with each Reject, in order.
        on_progress: is called with how many files are read, how many there are, and what they held so far.

    Raises:
        ProfileError: no such file, or no launch in any of them; the message says why.
        RecordError: a store that cannot be read.
    """
    walk = Walk()
    try:
        sources = list(walk.sources(paths, "hardware counters"))
    except RecordError as error:
        raise ProfileError(str(error)) from error
    files = [(source, _format_of(source)) for source in sources]
    rows = None if manifest is None else joining.Manifest(manifest)
    checks = _Checks(on_reject, None if decimal is None else decimal == "comma")
    programs = Programs(warm_up=warm_up, runs=runs)
    identified: Counter[str] = Counter()
    program_ids: dict[str, None] = {}
    parameters: dict[str, dict[str, object]] = {}
    # A file without counters beside the others changes no program's id.
    names = _names(
        [each for each, reader in files if not (each.inner and isinstance(reader, Reject))]
    )
    for number, (source, reader) in enumerate(files):
        state = f"{checks.launches:,} launches, {checks.rejects.count:,} rejects"
        on_progress(number, len(files), state)
        for launch in checks.launches_of(source, reader):
            program = joining.program_of(launch, rows, names[source.place])
            program_id = program.program_id
            if launch.parameters and program_id not in program_ids:
                parameters[program_id] = {"program_id": program_id, "workload": program.workload}
                for name, cell in launch.parameters.items():
                    parameters[program_id][_RENAMED.get(name, name)] = cell
            program_ids[program_id] = None
            device = launch.device or hardware or UNKNOWN
            workload = program.workload or program_id
            identified[program.by] += programs.add(program_id, workload, device, launch)
    if not checks.launches:
        places = ", ".join(map(str, paths[:SHOWN]))
        reasons = "; ".join(map(in_words, checks.rejects.first)) or "There is no file in there"
        raise ProfileError(f"expected launches of kernels in {places}, found none. {reasons}")
    gathered = programs.finish()
    workloads = joining.join(program_ids, stores)
    ids = gathered.profiles.program_id.tolist()
    workload = gathered.profiles.workload.tolist()
    joined = [workloads.get(program, name) for program, name in zip(ids, workload, strict=True)]
    profiles = replace(gathered.profiles, workload=np.array(joined, dtype=np.str_))
    notes = [*checks.notes(), *([] if rows is None else rows.notes()), *gathered.notes]
    notes += [*_device_notes(profiles), f"programs named: {joining.identified_by(identified)}"]
    missing = [program for program in program_ids if program not in workloads]
    if not stores:
        notes.append(
            "no record store was asked for the programs' workloads, as there is none here; name one with --store"
        )
    elif missing:
        notes.append(
            f"{len(missing)} of {len(program_ids)} programs are in no record store ({', '.join(stores)}) and are kept: "
            f"{first_names(missing)}"
        )
    return ReadProfiles(
        profiles, gathered.units, gathered.launches, gathered.kernels, tuple(notes),
        _parameter_table([*parameters.values()]), checks.rejects.count, sum(program in workloads for program in ids),
    )  # fmt: skip


def _names(sources: Sequence[Source]) -> dict[Path, str]:
    """Return what each file is called in ids: its path from the folder that all of them are in, without endings."""
    if not sources:
        return {}
    places = {source.place: source.place.resolve() for source in sources}
    common = os.path.commonpath([path.parent for path in places.values()])
    return {
        place: storable(joining.stem_of(path.relative_to(common).as_posix()))
        for place, path in places.items()
    }


class _Checks:
    """Passes launches on, and counts and reports everything else in the files."""

    def __init__(
        self, on_reject: Callable[[Reject], None], decimal_comma: bool | None = None
    ) -> None:
        self._on_reject = on_reject
        self._decimal_comma = decimal_comma
        self._notes: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self.rejects = Rejects(Path())
        self.launches = 0

    def launches_of(self, source: Source, reader: ProfileFormat | Reject) -> Iterator[Launch]:
        """Yield the launches of a file; one without any is a Reject at least."""
        launches, rejects, error = self.launches, self.rejects.count, Note("")
        for part in _read(source, reader, self._decimal_comma):
            if isinstance(part, Note) and part.line:
                error = part
            elif isinstance(part, Note):
                self._note(part)
            elif isinstance(part, Reject):
                self._reject(part)
            elif (reason := _reason_against(part)) is not None:
                self._reject(Reject(part.file, part.line, reason))
            else:
                self.launches += 1
                yield part
        if error.text and self.launches > launches:
            self._note(error)
        elif error.text or (self.launches, self.rejects.count) == (launches, rejects):
            reason = "expected launches of kernels, found none"
            reason += f": {error.text}" if error.text else ""
            self._reject(Reject(str(source.place), error.line, reason))

    def notes(self) -> Iterator[str]:
        """Yield each note once, with its file or how many files it is of."""
        for text, places in self._notes.items():
            first = next(iter(places))
            more = f" ({len(places)} files, the first is {first})" if len(places) > 1 else ""
            yield f"{first}: {text}" if first and not more else text + more

    def _note(self, note: Note) -> None:
        self._notes[note.text][f"{note.file}:{note.line}" if note.line else note.file] = None

    def _reject(self, reject: Reject) -> None:
        reject = replace(reject, file=storable(reject.file), reason=storable(reject.reason))
        self.rejects.add(reject)
        self._on_reject(reject)


def _format_of(source: Source) -> ProfileFormat | Reject:
    """Return a file's format, or why it has none."""
    try:
        source.require()
        name, _ = recognize(PROFILE_FORMATS, source.path, source.head, later=False)
    except (RecordError, OSError) as error:
        return Reject(str(source.place), 0, f"expected a file that can be read: {error}")
    if name:
        reader: ProfileFormat = PROFILE_FORMATS.load(name)
        return reader
    size = source.path.stat().st_size
    content = f"none of these in its {size} bytes" if size else "an empty file"
    layouts = ", ".join(each.layout for each in PROFILE_FORMATS.all().values())
    return Reject(str(source.place), 0, f"expected {layouts}; found {content}")


def _read(
    source: Source, reader: ProfileFormat | Reject, decimal_comma: bool | None
) -> Iterator[Launch | Reject | Note]:
    """Yield everything in a file, whatever its format is."""
    if isinstance(reader, Reject):
        yield reader
        return
    file = str(source.place)
    try:
        yield from reader.read(source.path, About("", file, None, decimal_comma=decimal_comma))
    except (RecordError, OSError) as error:
        yield Reject(file, 0, f"expected a file that can be read: {error}")


def _reason_against(launch: Launch) -> str | None:
    """Return why something is no launch; None where it is one."""
    if not np.isfinite(launch.values).any() and not np.isfinite(launch.time_ns):
        return "expected a metric with a value, found none"
    if TIME in launch.columns.names:
        time = launch.values[launch.columns.names.index(TIME)]
        if time <= 0:
            return f"expected a time above 0 as {TIME}, found {time:g}"
    if (np.abs(launch.values) > _LARGEST).any() or launch.time_ns > _LARGEST:
        return f"expected values up to {_LARGEST:g}, found larger ones"
    texts = [launch.kernel, launch.device, launch.program, launch.workload]
    texts += [part for pair in launch.parameters.items() for part in pair if isinstance(part, str)]
    return _reason_against_names(texts) or _reason_against_columns(launch.columns)


def _reason_against_names(names: Sequence[str]) -> str | None:
    bad = next((name for name in names if storable(name) != name), None)
    if bad is None:
        return None
    return f"expected names that are text, found half a character in {ascii(bad)[:60]}"


@lru_cache(maxsize=64)  # launches of a file share them
def _reason_against_columns(columns: Columns) -> str | None:
    if any(name in RESERVED for name in columns.names):
        return f"expected metrics, found a column of the table's own: {', '.join(RESERVED)}"
    return _reason_against_names(columns.names)


def _device_notes(profiles: Profiles) -> Iterator[str]:
    names, counts = np.unique(profiles.device, return_counts=True)
    if len(names) > 1:
        devices = ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
        yield f"programs ran on {len(names)} devices and keep theirs: {devices}"
    if UNKNOWN in names:
        yield "some launches name no device; name it with --hardware"


def _parameter_table(rows: Sequence[dict[str, object]]) -> pl.DataFrame:
    """Return programs' parameters as a table; numbers where all of a column are."""
    columns = []
    for name in dict.fromkeys(("program_id", "workload", *(name for row in rows for name in row))):
        cells = [row.get(name) for row in rows]
        present = [cell for cell in cells if cell is not None]
        kind: type[pl.DataType] = pl.Float64
        if not present or not all(isinstance(cell, int | float) for cell in present):
            cells = [None if cell is None else str(cell) for cell in cells]
            kind = pl.String
        elif all(isinstance(cell, int) and abs(cell) < 2**63 for cell in present):
            kind = pl.Int64
        columns.append(pl.Series(name, cells, dtype=kind, strict=False))
    return pl.DataFrame(columns)
