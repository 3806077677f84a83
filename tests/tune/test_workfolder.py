from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tencost.errors import TuneError, UntrustedError
from tencost.records.formats.metaschedule import (
    RECORD_FILE,
    WORKLOAD_FILE,
    LoggedProgram,
    LoggedWorkload,
    encode_module,
    write_database,
)
from tencost.store.ids import workload_id
from tencost.tune.curve import CurvePoint, append_point
from tencost.tune.workfolder import (
    WorkFolder,
    artifacts,
    check_database,
    has_programs,
    open_folder,
    write_run_report,
)

TARGET = {"kind": "llvm", "mcpu": "core-avx2", "num-cores": 1}
MODULE = json.dumps({"root_index": 0, "nodes": [{"type": "None"}]})
WORKLOAD = LoggedWorkload("1", MODULE, "w")


def program(seconds: float) -> LoggedProgram:
    return LoggedProgram(WORKLOAD, [[], []], [seconds], TARGET, [], 1)


def opened(
    path: Path,
    network: str = "net",
    target: dict[str, Any] = TARGET,
    *,
    cache_flush: bool = False,
) -> AbstractContextManager[WorkFolder]:
    return open_folder(path, network, "local", dict(target), cache_flush=cache_flush)


def test_a_second_tuner_is_kept_out(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(TuneError, match="another tuning run holds this folder"):
        opened(tmp_path).__enter__()
    with opened(tmp_path):
        pass


def fail(path: Path, error: BaseException, **untuned: float) -> None:
    with opened(path) as folder:
        (folder.logs / "import.log").write_text("TVM said something")
        if untuned:
            folder.untuned_s |= untuned
            folder.save_session()
        raise error


def test_a_run_that_fails_before_it_measures_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tuned" / "net-local"
    for error in (TuneError("refused"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            fail(path, error)
        assert not (tmp_path / "tuned").exists()
    with pytest.raises(TuneError, match="later"):
        fail(path, TuneError("later"), w=0.5)
    assert path.is_dir(), "what was timed stays"
    with pytest.raises(TuneError, match="again"):
        fail(path, TuneError("again"))
    assert path.is_dir()


def test_untuned_times_are_remembered(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as folder:
        folder.untuned_s["w"] = 0.5
        folder.save_session()
    with opened(tmp_path / "a") as folder:
        assert folder.untuned_s == {"w": 0.5}
        assert folder.logs.is_dir()


@pytest.mark.parametrize("change", [{"network": "other"}, {"target": {**TARGET, "mcpu": "znver5"}}])
def test_a_folder_made_for_something_else_is_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    with opened(tmp_path):
        write_database(tmp_path, [WORKLOAD], [program(1e-3)])
    with pytest.raises(TuneError, match="programs of one target only"):
        opened(tmp_path, **change).__enter__()


OTHER_TARGET = {**TARGET, "mcpu": "znver5"}


def test_a_failed_run_without_tuning_records_does_not_bind_the_folder_to_its_target(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Tasks were timed untuned, then the run failed: a user would lose no program that was searched for."""
    path = tmp_path / "net"
    with pytest.raises(TuneError, match="a worker died"):
        fail(path, TuneError("a worker died"), w0=1e-3)
    for name in (WORKLOAD_FILE, RECORD_FILE):
        (path / name).touch()
    append_point(path / "tuning_curve.csv", CurvePoint(trials=0, total_latency_s=1e-3))
    (path / "tuning_curve.png").write_bytes(b"png")
    assert not has_programs(path), "`tencost compile` says that the run ended before it had any"
    with opened(path) as folder:
        assert folder.untuned_s == {"w0": 1e-3}, "the same target goes on"
    assert not caplog.messages
    with opened(path, target=OTHER_TARGET) as folder:
        assert folder.untuned_s == {}
        assert not folder.curve.exists()
        assert not folder.plot.exists()
    (line,) = caplog.messages
    assert "starts over" in line
    assert json.loads((path / "session.json").read_text())["target"] == OTHER_TARGET


@pytest.mark.parametrize("file", [RECORD_FILE, "batches.jsonl", "report.json", "notes.txt"])
def test_a_folder_with_anything_else_stays_as_it_is(tmp_path: Path, file: str) -> None:
    path = tmp_path / "net"
    with opened(path) as folder:
        folder.untuned_s["w0"] = 1e-3
        folder.save_session()
    (path / file).write_text("{}\n")
    before = {item.name: item.read_bytes() for item in path.iterdir() if item.is_file()}
    with (
        pytest.raises(TuneError, match="programs of one target only"),
        opened(path, target=OTHER_TARGET),
    ):
        pass
    assert {item.name: item.read_bytes() for item in path.iterdir() if item.is_file()} == before


def test_a_curve_with_measured_programs_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "net"
    with opened(path) as folder:
        append_point(folder.curve, CurvePoint(trials=8, total_latency_s=1e-3))
    with (
        pytest.raises(TuneError, match="programs of one target only"),
        opened(path, target=OTHER_TARGET),
    ):
        pass
    assert (path / "tuning_curve.csv").exists()


def test_a_folder_goes_on_with_the_caches_as_it_began(tmp_path: Path) -> None:
    """Times of both kinds cannot be compared, and folders from before there were two say nothing: warm ones."""
    for name, flushed in (("flushed", True), ("warm", False)):
        path = tmp_path / name
        with opened(path, cache_flush=not flushed) as folder:
            assert folder.cache_flush is not flushed
        with opened(path, cache_flush=flushed) as folder:
            assert folder.cache_flush is flushed, "nothing was timed yet"
            folder.untuned_s["w0"] = 1e-3
            folder.save_session()
        with opened(path, cache_flush=not flushed) as folder:
            assert folder.cache_flush is flushed
    session = tmp_path / "flushed" / "session.json"
    older = json.loads(session.read_text())
    del older["cache_flush"]
    session.write_text(json.dumps(older))
    with opened(tmp_path / "flushed", cache_flush=True) as folder:
        assert not folder.cache_flush


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}'])
def test_a_damaged_session_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "session.json").write_text(text)
    with pytest.raises(TuneError, match="expected a tuning session"):
        opened(tmp_path).__enter__()


def test_new_programs_are_those_added_since_the_last_look(tmp_path: Path) -> None:
    write_database(tmp_path, [WORKLOAD], [program(1.0)])
    with opened(tmp_path) as folder:
        assert folder.new_programs() == []
        with (tmp_path / RECORD_FILE).open("a") as file:
            file.write(json.dumps([0, [[[], []], [2.0], TARGET, []]]) + "\n")
        assert [item.run_secs for item in folder.new_programs()] == [[2.0]]
        assert folder.new_programs() == []


def test_new_programs_of_new_workloads_keep_their_lines(tmp_path: Path) -> None:
    """A line that is no program is counted and left out, as where the whole database is read."""
    write_database(tmp_path, [WORKLOAD], [program(1.0)])
    with opened(tmp_path) as folder:
        with (tmp_path / WORKLOAD_FILE).open("a") as file:
            file.write(json.dumps(["2", encode_module(MODULE)]) + "\n")
        with (tmp_path / RECORD_FILE).open("a") as file:
            for line in ([7, []], [1, [[[], []], [3.0], TARGET, []]]):
                file.write(json.dumps(line) + "\n")
        (new,) = folder.new_programs()
        assert (new.line, new.workload.shash, new.run_secs) == (3, "2", [3.0])
        assert folder.programs()[1:] == [new]


def test_a_killed_run_is_mended(tmp_path: Path) -> None:
    """Every cut of both files leaves a database whose remaining lines are whole and refer to what is there."""
    write_database(tmp_path, [WORKLOAD], [program(1.0), program(2.0)])
    second = json.dumps(["2", encode_module(MODULE)]) + "\n"
    whole_workloads = (tmp_path / WORKLOAD_FILE).read_text() + second
    whole_records = (tmp_path / RECORD_FILE).read_text() + "[1, [[[], []], [3.0], {}, []]]\n"
    for cut in range(1, len(second)):
        (tmp_path / WORKLOAD_FILE).write_text(whole_workloads[:-cut])
        (tmp_path / RECORD_FILE).write_text(whole_records)
        with opened(tmp_path):
            pass
        expected = 3 if cut == 1 else 2  # without its newline the line is whole
        assert len((tmp_path / RECORD_FILE).read_text().splitlines()) == expected
    for cut in range(len(whole_records)):
        (tmp_path / WORKLOAD_FILE).write_text(whole_workloads)
        (tmp_path / RECORD_FILE).write_text(whole_records[:cut])
        with opened(tmp_path):
            pass
        text = (tmp_path / RECORD_FILE).read_text()
        assert whole_records.startswith(text)
        assert text == "" or text.endswith("\n")
        assert all(json.loads(line) for line in text.splitlines())


def test_whole_records_whose_workloads_are_gone_stay_beside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A kill leaves no record of a workload that is not there; a truncated copy does."""
    write_database(tmp_path, [WORKLOAD], [program(1.0), program(2.0)])
    records = (tmp_path / RECORD_FILE).read_text()
    (tmp_path / WORKLOAD_FILE).write_text("")
    with opened(tmp_path) as folder:
        assert folder.programs() == []
    assert (tmp_path / f"cut_off_{RECORD_FILE}").read_text() == records
    assert "2 records without theirs" in caplog.text


def test_marks_follow_their_records_when_others_are_taken_out(tmp_path: Path) -> None:
    other = LoggedWorkload("2", json.dumps({"root_index": 0, "nodes": [{"type": ""}]}), "v")
    programs = [replace(program(1.0), workload=other), program(2.0), program(3.0)]
    write_database(tmp_path, [WORKLOAD, other], programs)
    lines = (tmp_path / WORKLOAD_FILE).read_text().splitlines()
    (tmp_path / WORKLOAD_FILE).write_text(lines[0] + "\n")
    (tmp_path / "adopted.jsonl").write_text('{"line": 2, "record_id": "a", "timed": true}\n')
    with opened(tmp_path) as folder:
        assert [mark.line for mark in folder.adopted.values()] == [1]
        assert [item.line in folder.adopted for item in folder.programs()] == [True, False]
        assert folder.num_searched() == 1


@pytest.mark.parametrize("file", [RECORD_FILE, WORKLOAD_FILE])
def test_a_database_that_is_no_text_is_refused(tmp_path: Path, file: str) -> None:
    write_database(tmp_path, [WORKLOAD], [program(1.0)])
    found = b"\xff\xfe" + (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(found)
    with pytest.raises(TuneError, match=f"{file}: expected lines of JSON"):
        opened(tmp_path).__enter__()
    with pytest.raises(TuneError, match=f"{file}: expected lines of JSON"):
        check_database(tmp_path)
    assert (tmp_path / file).read_bytes() == found


@pytest.mark.parametrize("line", ["", "[0, [[[], ", "5", "[]", "{}", "null", '["a"]'])
def test_a_damaged_line_between_whole_records_is_refused(tmp_path: Path, line: str) -> None:
    write_database(tmp_path, [WORKLOAD], [program(1.0)])
    file = tmp_path / RECORD_FILE
    found = f"{line}\n{file.read_text()}"
    file.write_text(found)
    with pytest.raises(TuneError, match=r"record\.json, line 1: expected \[workload, record\]"):
        opened(tmp_path).__enter__()
    assert file.read_text() == found


def test_the_first_mark_half_written_by_a_killed_run_does_not_spoil_the_next(
    tmp_path: Path,
) -> None:
    (tmp_path / "adopted.jsonl").write_text('{"line": 1, "record_id": "mi')
    with opened(tmp_path) as folder:
        assert folder.adopted == {}
        folder.mark_next("mine", timed=True)
        write_database(tmp_path, [WORKLOAD], [program(1.0)])
    with opened(tmp_path) as folder:
        assert [mark.record_id for mark in folder.adopted.values()] == ["mine"]


@pytest.mark.parametrize(
    "line", ["5", '{"line": ', '{"line": "1", "record_id": "", "timed": true}']
)
def test_a_damaged_mark_is_refused(tmp_path: Path, line: str) -> None:
    whole = json.dumps({"line": 1, "record_id": "", "timed": True})
    (tmp_path / "adopted.jsonl").write_text(f"{line}\n{whole}\n")
    with pytest.raises(TuneError, match=r"adopted\.jsonl, line 1: expected line, record_id"):
        opened(tmp_path).__enter__()


LINKING: list[Any] = ["Annotate", ["l1", '"; ModuleID"'], ["pragma_import_llvm"], []]


def foreign(matmul: Any) -> Any:
    """The matmul with a loop that would link foreign code."""
    from tvm.s_tir import Schedule

    schedule = Schedule(matmul)
    schedule.annotate(schedule.get_loops("matmul")[0], "pragma_import_llvm", "; ModuleID")
    return schedule.mod


@pytest.mark.tvm
def test_what_could_run_code_of_others_is_refused_before_tvm_reads_it(
    tmp_path: Path, matmul: Any
) -> None:
    from tvm.ir import save_json

    texts = [str(save_json(module)) for module in (matmul, foreign(matmul))]
    own, other = (LoggedWorkload("1", text, workload_id(text)) for text in texts)

    def line(workload: LoggedWorkload, *steps: Any) -> LoggedProgram:
        return LoggedProgram(workload, [[*steps], []], [1.0], TARGET, [], 1)

    with opened(tmp_path) as folder:
        assert len(folder.database()) == 0
        write_database(tmp_path, [own, other], [line(own), line(own, LINKING)])
        with pytest.raises(UntrustedError, match=r"workload\.json, line 2: .*'pragma_import_llvm'"):
            folder.database()
        # What is tuned may be there whatever it contains, but no trace that links something.
        with pytest.raises(UntrustedError, match=r"record\.json, line 2: .*'pragma_import_llvm'"):
            folder.database([foreign(matmul)])
        write_database(tmp_path, [own, other], [line(own), line(other)])
        assert len(folder.database([foreign(matmul)])) == 2
        (tmp_path / WORKLOAD_FILE).write_text('["1", "AA=="]\n')
        with pytest.raises(UntrustedError, match=r"workload\.json, line 1: expected a line of"):
            folder.database()


def test_artifacts_are_what_there_is(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        assert [path.name for path in artifacts(folder)] == ["session.json"]
        write_run_report(folder, {"trials": 3})
        assert [path.name for path in artifacts(folder)] == ["report.json", "session.json"]
