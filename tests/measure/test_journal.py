from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tencost.measure.journal import Journal, mend_journal
from tencost.measure.run import MeasuringProgress, MeasuringSession
from tencost.records.databases import import_dataset
from tencost.records.formats.metaschedule import RECORD_FILE, LoggedProgram, LoggedWorkload
from tencost.records.measurements import MEASUREMENTS_FILE, read_measurements, read_sessions
from tencost.store.status import Status, Timing

MODULE = '{"root_index":0,"nodes":[{"type":"None"}]}'
TARGET: dict[str, Any] = {"kind": "llvm", "mcpu": "x86-64-v3"}


def program(number: int) -> LoggedProgram:
    trace = [[["GetSBlock", [], ["matmul", "main"], ["b0"]]], [[0, number]]]
    workload = LoggedWorkload("1", MODULE, "w" * 32)
    return LoggedProgram(workload, trace, None, {"kind": "llvm"}, [["TENSOR", "float32", [4]]], 1)


def write(folder: Path, count: int, start: int = 0) -> None:
    with Journal(folder, program(0), TARGET) as journal:
        for number in range(start, start + count):
            timing = Timing(Status.ok, (0.5, 0.25 + number))
            if number % 3 == 2:
                timing = Timing(Status.run_timeout, (), "stopped after 10 s")
            journal.append(
                program(number), timing, {"timestamp": 5.0, "session": "s", "noise": 1.1}
            )


def lines(folder: Path) -> tuple[list[str], list[str]]:
    return (
        (folder / RECORD_FILE).read_text().splitlines(),
        (folder / MEASUREMENTS_FILE).read_text().splitlines(),
    )


def test_a_journal_reads_back_as_records(tmp_path: Path) -> None:
    folder = tmp_path / "measure_records" / "board" / "task-1"
    write(folder, 3)
    (folder.parent / "sessions.jsonl").write_text(
        json.dumps({"session": "s", "hw_model": "a board", "additional_info": {"a": 1}})
        + "\nnot json\n"
        + json.dumps({"session": "s", "additional_info": {"b": 2}})
        + "\n"
    )
    records = import_dataset(tmp_path, "set").records
    assert [record.status for record in records] == [Status.ok, Status.ok, Status.run_timeout]
    assert records[1].run_secs == (0.5, 1.25)
    assert records[2].error == "stopped after 10 s"
    assert records[0].provenance.hw_model == "a board"
    assert records[0].provenance.timestamp == 5.0
    assert records[0].provenance.additional_info == {"a": 1, "b": 2}
    assert records[0].extra is not None
    assert records[0].extra["noise"] == 1.1
    assert records[0].target == TARGET


@pytest.mark.parametrize("cut", [1, 5, 40])
@pytest.mark.parametrize("file", [RECORD_FILE, MEASUREMENTS_FILE])
def test_a_line_that_is_half_written_is_cut_off_in_both_files(
    tmp_path: Path, file: str, cut: int
) -> None:
    write(tmp_path, 4)
    whole = lines(tmp_path)
    content = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(content[:-cut])
    mend_journal(tmp_path)
    assert lines(tmp_path) == (whole[0][:3], whole[1][:3])
    write(tmp_path, 1, start=3)
    assert lines(tmp_path) == whole


def test_a_missing_counterpart_cuts_the_other_file(tmp_path: Path) -> None:
    write(tmp_path, 4)
    (tmp_path / MEASUREMENTS_FILE).unlink()
    mend_journal(tmp_path)
    assert (tmp_path / RECORD_FILE).read_text() == ""


def test_bad_lines_of_measurements_are_reported_and_the_database_counts(tmp_path: Path) -> None:
    folder = tmp_path / "measure_records" / "board" / "task-1"
    write(folder, 2)
    (folder / MEASUREMENTS_FILE).write_text('{"status": "great"}\n')
    found, rejects = read_measurements(folder)
    assert found == [None]
    assert rejects[0][0] == 1
    assert "great" in rejects[0][1]
    imported = import_dataset(tmp_path, "set")
    assert [record.status for record in imported.records] == [Status.ok, Status.ok]
    assert [reject.line for reject in imported.rejects] == [1]
    assert read_sessions(tmp_path, "board") == {}


def test_a_session_is_read_behind_one_whose_line_was_cut_off(tmp_path: Path) -> None:
    folder = tmp_path / "measure_records" / "board"
    folder.mkdir(parents=True)
    (folder / "sessions.jsonl").write_text('{"session": "killed", "engine_version": "0.2')
    session = MeasuringSession(folder, (0, 1), {"engine_version": "0.27"})
    session.end(MeasuringProgress(1), ["busy"])
    sessions = read_sessions(tmp_path, "board")
    assert list(sessions) == [session.name]
    assert sessions[session.name].engine_version == "0.27"


def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    """The limit on the size of a file stands for the disk: the system refuses the write in the same place."""
    code = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_journal
from pathlib import Path
from tencost.errors import MeasureError
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    test_journal.write(Path({str(tmp_path)!r}), 1000)
except MeasureError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "cannot write" in done.stdout
    assert "run the command again to continue" in done.stdout
    mend_journal(tmp_path)
    kept, beside = lines(tmp_path)
    assert len(kept) == len(beside) > 3
