"""The folder of a tuning run: a MetaSchedule database with one writer at a time, and what belongs to it.

    tuned/<network>-<hardware>/
        database_workload.json, database_tuning_record.json   stock MetaSchedule database, see formats/metaschedule.py
        adopted.jsonl      {"line", "record_id", "timed"} for each record of the database that came from a store: its
                           line, from 1, its id there, whether its times were taken here; written before the line is
        session.json       {"version": 1, "network", "hardware", "target", "untuned_s": {workload_id: seconds}, "rules":
                           which rules (tencost.programs.codegen.rules.version): times by others are taken anew,
                           "cache_flush": whether programs are timed with flushed caches; false if it is missing}; older
                           folders: "rule_s" for it and "baseline_s", which TVM's default schedules took, or that
                           alone, and "adopted", so many records at the beginning came from a store
        batches.jsonl      how well each batch was predicted before the model saw it, see batches.py
        tuning_curve.csv, tuning_curve.png, network.png, report.json, logs/

Two writers corrupt a MetaSchedule database, so the folder is locked; a line that a killed run left half written would
keep TVM from loading it, so such a line is cut off when the folder is opened, and what adopted.jsonl says of a record
that never came is left out. So each record tells by itself whether it counts as measured, wherever a run was killed.
"""

from __future__ import annotations

import json
import logging
import math
import operator
import shutil
import sys
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from tencost.errors import TuneError, UntrustedError
from tencost.measure.collection import hold, logged_programs
from tencost.programs.codegen import rules
from tencost.programs.trace.allowed import check_module, check_trace
from tencost.records.formats.metaschedule import (
    RECORD_FILE,
    WORKLOAD_FILE,
    LoggedProgram,
    LoggedWorkload,
    Reject,
    read_programs,
    read_workloads,
)
from tencost.records.formats.metaschedule.database import parse_program
from tencost.store.ids import canonical_target
from tencost.tune import batches, curve
from tencost.tune.curve import read_points
from tencost.writing import whole_file

_log = logging.getLogger(__name__)

SESSION_VERSION = 1
ADOPTED_FILE = "adopted.jsonl"
SESSION_FILE = "session.json"
_PLOT_FILE = "tuning_curve.png"
BARS_FILE = "network.png"
_FAILED_RUN_FILES = frozenset(
    {
        ".lock", "logs", SESSION_FILE, WORKLOAD_FILE, RECORD_FILE, ADOPTED_FILE, curve.FILE, _PLOT_FILE,
    }
)  # fmt: skip
"""Files that a run leaves that fails before its first program is measured."""


@dataclass(frozen=True)
class Mark:
    """Says that a record came from a store.

    Attributes:
        line: of the record file, from 1.
        record_id: in the store; empty where an older folder does not tell.
        timed: whether its times were taken here.
    """

    line: int
    record_id: str
    timed: bool


@dataclass
class WorkFolder:
    """An open (locked) folder.

    Attributes:
        path: the folder.
        untuned_s: seconds of each workload as it runs in a network that is not tuned, by workload id, infinite where
            that could not be timed; see :func:`tencost.tune.session.time_untuned`.
        adopted: what came from a store and not from the search, by line.
    """

    path: Path
    untuned_s: dict[str, float] = field(default_factory=dict)
    adopted: dict[int, Mark] = field(default_factory=dict)
    _header: dict[str, Any] = field(default_factory=dict)
    _num_read: int = 0
    _record_bytes: int = 0
    _workload_bytes: int = 0
    _workloads: list[LoggedWorkload | None] = field(default_factory=list)
    _others: set[int] = field(default_factory=set)

    @property
    def cache_flush(self) -> bool:
        """Whether programs are timed with flushed caches here, as the first that was timed."""
        return bool(self._header["cache_flush"])

    @property
    def curve(self) -> Path:
        return self.path / curve.FILE

    @property
    def batches(self) -> Path:
        return self.path / batches.FILE

    @property
    def plot(self) -> Path:
        return self.path / _PLOT_FILE

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def database(self, trusted: Iterable[Any] = ()) -> Any:
        """Open the database with stock TVM (every trace is replayed, about 300 records a second).

        Args:
            trusted: IRModules of the network that is tuned, which may be in it whatever they contain.

        Raises:
            UntrustedError: another module, or a trace, could run code of others.
        """
        from tvm.ir import save_json
        from tvm.s_tir.meta_schedule.database import JSONDatabase

        for name in (WORKLOAD_FILE, RECORD_FILE):
            (self.path / name).touch()
        check_database(self.path, {str(save_json(mod)) for mod in trusted})
        return JSONDatabase(work_dir=str(self.path))

    def save_session(self) -> None:
        """Write session.json."""
        values = {**self._header, "untuned_s": self.untuned_s, "rules": rules.version()}
        _replace(self.path / SESSION_FILE, json.dumps(values, indent=2) + "\n")

    def mark_next(self, record_id: str, *, timed: bool) -> None:
        """Say of the record that is written next that it comes from a store."""
        mark = Mark(_num_lines(self.path / RECORD_FILE) + 1, record_id, timed)
        with (self.path / ADOPTED_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(mark)) + "\n")
        self.adopted[mark.line] = mark

    def programs(self) -> list[LoggedProgram]:
        """Read the database's records, in order."""
        return logged_programs(self.path)

    def num_searched(self) -> int:
        """Return how many programs are there that the search chose, and not a store, without those left out."""
        return sum(
            program.line not in self.adopted and program.line not in self._others
            for program in self.programs()
        )

    def leave_out_others(self, workloads: Collection[str]) -> int:
        """Leave out of the count what is of other workloads than these ids; return how many programs that are.

        A curve that counts them goes on under another name: it is of a network whose graph was written otherwise.
        """
        self._others = {
            program.line
            for program in self.programs()
            if program.workload.workload_id not in workloads
        }
        points = read_points(self.curve)
        if self._others and points and points[-1].trials > self.num_searched():
            for file in (self.curve, self.batches):
                if file.exists():
                    file.replace(file.with_name(f"before_{file.name}"))
        return len(self._others)

    def new_programs(self) -> list[LoggedProgram]:
        """Return what was added to the database since the last call, or since it was opened.

        Only what came is read: a run asks after each round.
        """
        with suppress(FileNotFoundError):
            size = (self.path / WORKLOAD_FILE).stat().st_size
            if size != self._workload_bytes:
                self._workloads, _ = read_workloads(self.path / WORKLOAD_FILE)
                self._workload_bytes = size
            with (self.path / RECORD_FILE).open("rb") as file:
                file.seek(self._record_bytes)
                lines = file.readlines()
                self._record_bytes = file.tell()
            return self._parsed(lines)
        return []

    def _parsed(self, lines: Sequence[bytes]) -> list[LoggedProgram]:
        """Return the programs of the lines that follow those that were read; others are left out, as everywhere."""
        programs = []
        for line in lines:
            self._num_read += 1
            with suppress(ValueError):
                programs.append(parse_program(line, self._num_read, self._workloads))
        return programs


def check_database(folder: Path, trusted: Collection[str] = ()) -> None:
    """Look at everything in a database that TVM would read, before it does.

    Args:
        folder: of both files.
        trusted: modules, TVM's JSON text, that need no look: this process would write the same.

    Raises:
        UntrustedError: a line that cannot be read, a module or a trace that could run code of others.
        TuneError: a file is no text.
    """
    for name in (WORKLOAD_FILE, RECORD_FILE):
        _text(folder / name)
    file = folder / WORKLOAD_FILE
    workloads, unreadable = read_workloads(file)
    for number, workload in enumerate(workloads, 1):
        if workload is not None and workload.mod_json not in trusted:
            check_module(workload.mod_json, f"{file}, line {number}")
    file = folder / RECORD_FILE
    for program in chain(unreadable, read_programs(file, workloads)):
        if isinstance(program, Reject):
            raise UntrustedError(
                f"{program.file}, line {program.line}: expected a line of a MetaSchedule database of this TVM, found "
                f"another, so that what TVM would make of it is not known: {program.reason}. Move the folder away."
            )
        check_trace(program.trace, f"{file}, line {program.line}")


@contextmanager
def open_folder(
    path: Path, network: str, hardware: str, target: dict[str, Any], *, cache_flush: bool = False
) -> Iterator[WorkFolder]:
    """Lock and open the folder of a network on a hardware, new or from an earlier run.

    Where nothing was timed yet, programs will be with flushed caches or without; see :class:`WorkFolder`.

    A new folder goes again where the run ends before anything was timed. A folder of another target in which no program
    was measured (its run failed after the untuned ones were timed) starts over, with a logged line.

    Raises:
        TuneError: another tuner holds it, it was made for another network or hardware, or it holds measured programs of
            another target.
    """
    is_new, is_new_parent = not path.exists(), not path.parent.exists()
    path.mkdir(parents=True, exist_ok=True)
    refusal = TuneError(
        f"{path}: another tuning run holds this folder, and two writers would corrupt its database. Wait for it, or "
        "tune elsewhere: tuner.workdir=..."
    )
    lock = hold(path / ".lock", refusal)
    try:
        with lock:
            header = {
                "version": SESSION_VERSION,
                "network": network,
                "hardware": hardware,
                "target": target,
                "cache_flush": cache_flush,
            }
            if _is_of_another_target(path, header) and not _has_results(path):
                _log.warning(
                    "%s: its run failed for another target before a program was measured: tuning starts over there",
                    path,
                )
                _clear(path)
                is_new = True
            untuned, count = _read_session(path / SESSION_FILE, header)
            if _was_timed(path):  # times of both kinds cannot be compared
                header["cache_flush"] = _load_session(path).get("cache_flush", False) is True
            folder = WorkFolder(path, untuned, {}, header)
            folder.adopted = _read_marks(path, count, _mend(path))
            folder.logs.mkdir(exist_ok=True)
            folder.save_session()
            folder.new_programs()
            yield folder
            is_new = False
    finally:
        if is_new and not _was_timed(path):
            shutil.rmtree(path, ignore_errors=True)
            if is_new_parent:
                with suppress(OSError):  # somebody else's folder is in it
                    path.parent.rmdir()


def has_programs(path: Path) -> bool:
    """Say whether a folder holds a database with programs, or something else than a tuning run left."""
    if not path.is_dir():
        return False
    others = {file.name for file in path.iterdir()} - _FAILED_RUN_FILES
    return bool(others) or _has_content(path / RECORD_FILE)


def _has_content(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > 0


def _has_results(path: Path) -> bool:
    """Say whether a folder holds what a user would lose: records, measured points of its curve, or an unknown file."""
    if has_programs(path) or _has_content(path / ADOPTED_FILE):
        return True
    try:
        return any(point.trials > 0 for point in read_points(path / curve.FILE))
    except TuneError:
        return True


def _clear(path: Path) -> None:
    """Remove the files of a failed run; its lock and its logs stay."""
    for name in _FAILED_RUN_FILES - {".lock", "logs"}:
        (path / name).unlink(missing_ok=True)


def _was_timed(path: Path) -> bool:
    """Say whether a run left a time: a program's, or an untuned one's."""
    session = _load_session(path)
    return has_programs(path) or any(map(session.get, ("untuned_s", "rule_s", "baseline_s")))


def read_untuned_times(folder: Path) -> dict[str, float]:
    """Return a folder's seconds of each workload untuned, by today's rules; none where it is no folder of a run."""
    try:
        return untuned_times(_load_session(folder))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return {}


def untuned_times(session: Mapping[str, Any]) -> dict[str, float]:
    """Return a session's seconds of each workload untuned, on CPUs those by other rules than today's left out.

    Raises:
        ValueError, TypeError, AttributeError, OverflowError: it is no session.
    """
    is_by_rule = session["target"]["kind"] == "llvm"
    if is_by_rule and session.get("rules") != rules.version():
        return {}
    older = session.get("rule_s" if is_by_rule else "baseline_s", {})
    seconds = {str(key): float(value) for key, value in session.get("untuned_s", older).items()}
    # Of what could not be timed by rule an older folder says infinity, and not what it took otherwise.
    most = math.inf if "untuned_s" in session else sys.float_info.max
    return {key: value for key, value in seconds.items() if 0 < value <= most}


def _load_session(path: Path) -> dict[str, Any]:
    """Return a folder's session.json; nothing where there is none that can be read."""
    try:
        session = json.loads((path / SESSION_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return session if isinstance(session, dict) else {}


def _is_of_another_target(path: Path, header: Mapping[str, Any]) -> bool:
    """Say whether a session is the header's in everything but its target; False where it cannot be read."""
    try:
        return _differences(_load_session(path), header) == ["target"]
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def _differences(session: Mapping[str, Any], header: Mapping[str, Any]) -> list[str]:
    """Return the fields of a header in which a session differs."""
    names = [key for key in ("version", "network", "hardware") if session[key] != header[key]]
    if canonical_target(session["target"]) != canonical_target(header["target"]):
        names.append("target")
    return names


def _read_session(path: Path, header: dict[str, Any]) -> tuple[dict[str, float], int]:
    """Return a session's times of what is untuned, and how many records an older folder adopted."""
    if not path.exists():
        return {}, 0
    try:
        session = json.loads(path.read_text(encoding="utf-8"))
        differences = _differences(session, header)
        untuned = untuned_times(session)
        adopted = int(session.get("adopted", 0))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise TuneError(
            f"{path}: expected a tuning session, found something else ({error}). Is the database beside it of "
            f"{header['network']} on {header['hardware']}, move the file away: untuned tasks are timed anew. If "
            "not, tune into another folder: tuner.workdir=..."
        ) from error
    if differences:
        other = {key: session.get(key) for key in header}
        raise TuneError(
            f"{path}: expected a tuning session of {header}, found {other}. A database holds programs of one target "
            "only: tune into another folder (tuner.workdir=...) or move this one away."
        )
    return untuned, adopted


def _read_marks(path: Path, count: int, removed: Sequence[int]) -> dict[int, Mark]:
    """Read the marks of records that are there; an older folder has a number of them at the beginning.

    Args:
        path: the folder.
        count: the number, of an older folder.
        removed: lines that were there and were taken out, ascending; the marks of those behind them move up.

    Raises:
        TuneError: a line says something else.
    """
    file = path / ADOPTED_FILE
    marks = []
    for number, line in enumerate(_whole_lines(file), start=1):
        try:
            mark = Mark(**json.loads(line))
            marks.append(replace(mark, line=operator.index(mark.line)))
        except (TypeError, ValueError) as error:
            raise TuneError(
                f"{file}, line {number}: expected line, record_id and timed, found {line[:80]} ({error}). "
                "Move the folder away."
            ) from error
    if not file.exists():
        marks = [Mark(line, "", False) for line in range(1, count + 1)]
    moved = [
        replace(mark, line=mark.line - bisect_left(removed, mark.line))
        for mark in marks
        if mark.line not in removed
    ]
    last = _num_lines(path / RECORD_FILE)
    adopted = {mark.line: mark for mark in moved if mark.line <= last}
    if marks or file.exists():  # what is half written at its end would spoil the next mark
        _replace(file, "".join(json.dumps(asdict(mark)) + "\n" for mark in adopted.values()))
    return adopted


def _num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _mend(path: Path) -> list[int]:
    """Cut off lines that a killed run left half written; records whose workload is not there move to a file beside.

    Returns:
        The lines of such records, from 1, ascending.

    Raises:
        TuneError: a line between whole ones is damaged; both files stay as they are.
    """
    workloads = _whole_lines(path / WORKLOAD_FILE)
    records = dict(enumerate(_whole_lines(path / RECORD_FILE), start=1))
    removed = [
        number
        for number, line in records.items()
        if _workload_of(line, path / RECORD_FILE, number) >= len(workloads)
    ]
    if removed:
        beside = path / f"cut_off_{RECORD_FILE}"
        with beside.open("a", encoding="utf-8") as file:
            file.writelines(f"{records.pop(number)}\n" for number in removed)
        _log.warning(
            "%s: the workloads of some records are not there; %d records without theirs are kept in %s",
            path / WORKLOAD_FILE,
            len(removed),
            beside,
        )
    for name, lines in ((WORKLOAD_FILE, workloads), (RECORD_FILE, records.values())):
        text = "".join(f"{line}\n" for line in lines)
        if (path / name).exists() and (path / name).read_text(encoding="utf-8") != text:
            _replace(path / name, text)
    return removed


def _workload_of(line: str, file: Path, number: int) -> int:
    """Return the workload's index that a line of the record file begins with."""
    try:
        workload, _record = json.loads(line)
    except (ValueError, TypeError):
        workload = None
    if type(workload) is int:
        return workload
    raise TuneError(
        f"{file}, line {number}: expected [workload, record], found {line[:80]!r}. Take the line out, or move the "
        "folder away."
    )


def _whole_lines(path: Path) -> list[str]:
    """Return the lines of a file without those at its end that a killed run left half written.

    Raises:
        TuneError: the file is no text.
    """
    lines = _text(path).splitlines()
    while lines and not _is_json(lines[-1]):
        lines.pop()
    return lines


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.exists() else ""
    except UnicodeDecodeError as error:
        raise TuneError(
            f"{path}: expected lines of JSON, found bytes that are no text ({error}). Move the folder away."
        ) from error


def _is_json(line: str) -> bool:
    with suppress(ValueError):
        json.loads(line)
        return True
    return False


def _replace(path: Path, text: str) -> None:
    with whole_file(path, durable=True) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_run_report(folder: WorkFolder, values: dict[str, Any]) -> None:
    """Write report.json of the last run."""
    _replace(folder.path / "report.json", json.dumps(values, indent=2, sort_keys=True) + "\n")


def artifacts(folder: WorkFolder) -> Sequence[Path]:
    """Return the files worth keeping with an MLflow run."""
    names = (
        WORKLOAD_FILE, RECORD_FILE, curve.FILE, _PLOT_FILE, batches.FILE, BARS_FILE, "report.json", SESSION_FILE,
        ADOPTED_FILE,
    )  # fmt: skip
    return [folder.path / name for name in names if (folder.path / name).exists()]
