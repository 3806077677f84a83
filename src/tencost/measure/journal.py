"""Measurements of one task on one hardware, appended as they come: two files of one line a program.

    database_tuning_record.json   as MetaSchedule writes it (formats/metaschedule.py); run_secs [1e10] for a failure
    measurements.jsonl            {"status", "timestamp", "session", "noise"?, "error"?}: what MetaSchedule has no
                                  place for; `timestamp` in seconds since 1970, `noise` the reference kernel's time
                                  over its best in the session, `session` names a line of sessions.jsonl

A process that is killed leaves at most one line half written or without its counterpart: it is cut off when the
journal is opened, and the program measured again. One writer at a time, which the collection's lock ensures.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, suppress
from io import FileIO
from pathlib import Path
from typing import Any

from tencost.measure.collection import disk_error, write_line, write_whole
from tencost.records.formats.metaschedule import (
    RECORD_FILE,
    WORKLOAD_FILE,
    LoggedProgram,
    encode_module,
)
from tencost.records.measurements import MEASUREMENTS_FILE
from tencost.store.status import Status, Timing

FAILED_RUN_SECS = [1e10]
"""Times of a program that failed, as MetaSchedule writes them: it never offers such a program."""


class Journal:
    """An open journal; use as a context manager.

    Args:
        folder: where the files are.
        program: any program of the task: its workload goes into the database.
        target: the target of the hardware, which replaces the one that the programs were generated for.
    """

    def __init__(self, folder: Path, program: LoggedProgram, target: dict[str, Any]) -> None:
        self._folder = folder
        self._target = target
        self._open = ExitStack()
        self._files: list[FileIO] = []
        workload = [program.workload.shash, encode_module(program.workload.mod_json)]
        text = json.dumps(workload, separators=(",", ":")) + "\n"
        if not (folder / WORKLOAD_FILE).is_file():
            write_whole(folder / WORKLOAD_FILE, text)
        mend_journal(folder)

    def __enter__(self) -> Journal:
        try:
            for name in (RECORD_FILE, MEASUREMENTS_FILE):
                file = (self._folder / name).open("ab", buffering=0)
                self._files.append(self._open.enter_context(file))
        except OSError as error:
            self._open.close()
            raise disk_error(self._folder, error) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def append(self, program: LoggedProgram, timing: Timing, about: dict[str, Any]) -> None:
        """Add what came of a program; on disk (as far as the system is concerned) when this returns.

        Args:
            program: the program.
            timing: its times or status.
            about: further fields of its line in measurements.jsonl.

        Raises:
            MeasureError: the disk is full.
        """
        ok = timing.status is Status.ok
        seconds = list(timing.run_secs) if ok else FAILED_RUN_SECS
        body = [0, [program.trace, seconds, self._target, program.args_info]]
        line: dict[str, Any] = {"status": timing.status.value, **about}
        if timing.error:
            line["error"] = timing.error
        try:
            for file, fields in zip(self._files, (body, line), strict=True):
                write_line(file, fields)
        except OSError as error:
            raise disk_error(self._folder, error) from error


def mend_journal(folder: Path) -> None:
    """Cut off what a killed process left half written, or in one file only."""
    paths = [folder / RECORD_FILE, folder / MEASUREMENTS_FILE]
    contents = [path.read_bytes() if path.is_file() else b"" for path in paths]
    whole = [_whole_lines(content) for content in contents]
    count = min(map(len, whole))
    for path, content, lines in zip(paths, contents, whole, strict=True):
        retained = b"".join(lines[:count])
        if retained != content:
            write_whole(path, retained.decode("utf-8"))


def _whole_lines(content: bytes) -> list[bytes]:
    """Return the lines up to the last one that ends and is JSON."""
    lines = content.splitlines(keepends=True)
    while lines:
        with suppress(ValueError):
            if lines[-1].endswith(b"\n"):
                json.loads(lines[-1])
                break
        lines.pop()
    return lines
