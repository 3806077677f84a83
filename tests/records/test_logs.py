"""Logs of any format into a store: found by content, read alone or by processes, written once."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tencost import cli
from tencost.errors import RecordError
from tencost.records import logs as module
from tencost.records import query, stage
from tencost.records.log_dataset import read_log_dataset
from tencost.records.logs import find_logs, import_logs
from tencost.store.modules import stored_modules
from tencost.store.record_store import RecordStore
from tencost.store.tables import load_records, open_records

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"
GOLDEN = Path(__file__).parent / "golden"
KEY = '["matmul_layer", 64, 64, 64]'


def ansor_line(number: int, cost: float = 1e-3, error: int = 0) -> str:
    task = [KEY, "cuda -keys=cuda,gpu", [80, 16, 64, 49152, 2147483647, 1024, 8, 32], "", 0, []]
    state = [[], [["SP", 2, 0, 64, [number + 1], 1], ["AN", 2, 0, 5]]]
    return json.dumps({"i": [task, state], "r": [[cost], error, 1.5, 1637575039], "v": "v0.6"})


def autotvm_line(number: int) -> str:
    tensors = [["TENSOR", [64, 64], "float32"]] * 2
    config = {"index": number, "code_hash": None, "entity": [["tile_x", "sp", [-1, number + 1]]]}
    return json.dumps(
        {
            "input": [
                "cuda -keys=cuda,gpu",
                "dense_small_batch.gpu",
                [*tensors, None, "float32"],
                {},
            ],
            "config": config,
            "result": [[2e-3], 0, 3.5, 1649992289.5],
            "version": 0.2,
            "tvm_version": "0.8.0",
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ansor lines with a broken one, AutoTVM lines in gzip, a MetaSchedule pair, and a file that is no log."""
    top = tmp_path / "logs"
    (top / "deep" / "er").mkdir(parents=True)
    lines = [ansor_line(0), "# a comment", ansor_line(1), '{"i": [["', ansor_line(2, 1e10, 6), ""]
    (top / "a.json").write_text("\n".join(lines))
    with gzip.open(top / "deep" / "b.bin", "wt") as file:
        file.write("".join(f"{autotvm_line(number)}\n" for number in range(3)))
    for path in GOLDEN.glob("database_*.json"):
        shutil.copy(path, top / "deep" / "er")
    (top / "notes.txt").write_text("not a log\n")
    return top


def imported(folder: Path, store: RecordStore, jobs: int = 1) -> module.Progress:
    return import_logs(find_logs([folder], "mixed", "board"), store, jobs=jobs)


def test_formats_are_known_by_content(folder: Path) -> None:
    found = find_logs([folder], "mixed", "board")
    assert {item.about.file: item.format for item in found.files} == {
        "a.json": "ansor",
        "deep/b.bin": "autotvm",
        "deep/er/database_tuning_record.json": "metaschedule",
    }
    assert {name for name, _ in found.skipped} == {"notes.txt", "deep/er/database_workload.json"}


def test_good_lines_are_kept_and_bad_ones_are_named(folder: Path, tmp_path: Path) -> None:
    store = RecordStore(str(tmp_path / "store"))
    progress = imported(folder, store)
    assert [(item.file, item.line) for item in progress.rejects] == [("a.json", 4)]
    frame = store.read("board", ["program_format", "status", "source"])
    counts = dict(frame["program_format"].value_counts().iter_rows())
    assert counts["ansor_steps"] == 3
    assert counts["autotvm_config"] == 3
    assert counts["metaschedule_trace"] == progress.formats["metaschedule_trace"] > 0
    assert progress.records["build_timeout"] == 1
    assert progress.written == frame.height == progress.records.total()


def test_importing_again_adds_nothing(folder: Path, tmp_path: Path) -> None:
    store = RecordStore(str(tmp_path / "store"))
    first = imported(folder, store)
    (folder / "a.json").write_text("\n".join([ansor_line(0), ansor_line(9)]))
    again = imported(folder, store)
    assert first.written > 0
    assert again.written == 1


def test_hidden_files_and_files_named_twice(folder: Path) -> None:
    shutil.copy(folder / "a.json", folder / ".a.json")
    names = [item.about.file for item in find_logs([folder, folder], "mixed", "board").files]
    assert names == ["a.json", "deep/b.bin", "deep/er/database_tuning_record.json"]


def test_neither_a_file_nor_a_folder_is_named(tmp_path: Path) -> None:
    """A pipe may never end."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordError, match="pipe, found neither a file nor a folder"):
        find_logs([tmp_path / "pipe"], "mixed", "board")


def test_processes_give_the_same_store(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, together = RecordStore(str(tmp_path / "one")), RecordStore(str(tmp_path / "two"))
    imported(folder, alone)
    monkeypatch.setattr(module, "ALONE_BYTES", 0)
    imported(folder, together, jobs=2)
    assert alone.read().equals(together.read())


def test_a_lone_best_is_in_the_store_and_in_no_read(tmp_path: Path) -> None:
    log = tmp_path / "log.json"
    log.write_text("\n".join(ansor_line(number) for number in range(12)))
    store = RecordStore(str(tmp_path / "store"))
    import_logs(find_logs([log], "mine", "board"), store)
    log.write_text(ansor_line(50, cost=1e-6))
    progress = import_logs(find_logs([log], "mine", "board"), store)
    assert (progress.written, progress.quarantined) == (1, 1)
    assert store.read("board", ["record_id"]).height == 12
    kept = store.read("board", ["record_id", "quarantine"], quarantined=True).drop_nulls(
        "quarantine"
    )
    assert "would be the best" in kept["quarantine"][0]
    store.release(kept["record_id"].to_list())
    assert store.read("board", ["record_id"]).height == 13


def test_the_folder_below_measure_records_is_the_device(tmp_path: Path) -> None:
    place = tmp_path / "set" / "measure_records" / "e5-2673"
    place.mkdir(parents=True)
    (place / "x.json").write_text(ansor_line(0))
    (tmp_path / "set" / "to_measure_programs").mkdir()
    (tmp_path / "set" / "to_measure_programs" / "x.json").write_text(ansor_line(1, 0.0))
    found = find_logs([tmp_path / "set"], "tenset", None)
    assert [item.about.hardware for item in found.files] == ["e5-2673"]
    assert found.skipped == (("to_measure_programs/x.json", "programs to measure, no records"),)


def test_a_log_that_names_no_device_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(ansor_line(0))
    store = RecordStore(str(tmp_path / "store"))
    with pytest.raises(RecordError, match="hardware=<name>"):
        import_logs(find_logs([tmp_path / "x.json"], "mine", None), store)


def run_cli(*words: str) -> int:
    try:
        cli.main(["records", *words])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(Path(__file__).resolve().parents[2] / "conf", tmp_path / "project" / "conf")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def test_the_command_reports_and_keeps_rejects_and_modules(
    project: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli("import", str(folder), "--hardware", "board", "--dataset", "mixed") == 0
    told = capsys.readouterr().err
    assert "a.json:4:" in told
    (reject,) = (project / "data" / "rejects" / "mixed.jsonl").read_text().splitlines()
    assert json.loads(reject)["line"] == 4
    modules = stored_modules(str(project / "data" / "store"))
    ids = RecordStore(str(project / "data" / "store")).read(
        columns=["workload_id", "program_format"]
    )
    traced = set(ids.filter(ids["program_format"] == "metaschedule_trace")["workload_id"])
    assert traced <= set(modules["workload_id"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["import"], "expected PATHS..., found none"),
        (["import", "nowhere"], "at nowhere"),
        (["import", "conf", "--hardware", "x"], "found none"),
        (["import", "conf", "colour=red"], "found 'colour=red'"),
        (["import", "conf", "--fast"], "found '--fast'"),
        (["import", "conf", "--jobs", "many"], "whole number"),
        (["import", "conf", "jobs=0"], "whole number of at least 1"),
        (["burn"], "import, query"),
    ],
)
def test_mistakes_are_one_clear_message(
    project: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert project.is_dir()
    assert run_cli(*words) == 2
    assert told in capsys.readouterr().err


REAL: dict[str, tuple[int, int]] = {
    "ansor/tvm_ci_logs": (159, 159),
    "autotvm/nnfusion_oldformat_v0.1": (17_496, 13_836),
    "metaschedule/souffle_a100_efficientnet": (430, 399),
    "metaschedule/bennu_cpu_red": (60, 60),
}
"""Records and ok records of some real folders; a script counts them all: benchmarks/records.py counts."""


@pytest.mark.parametrize("name", REAL)
def test_real_logs_are_counted_as_they_are(name: str, tmp_path: Path) -> None:
    if not (DATA / name).is_dir():
        pytest.skip("the external logs are not on this machine")
    progress = import_logs(
        find_logs([DATA / name], "real", "board"), RecordStore(str(tmp_path / "store")), jobs=1
    )
    assert (progress.records.total(), progress.records["ok"]) == REAL[name]
    assert not progress.rejects


def test_a_truncated_file_keeps_what_is_there(tmp_path: Path) -> None:
    whole = gzip.compress("".join(f"{ansor_line(n)}{' ' * n}\n" for n in range(4000)).encode())
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    progress = import_logs(
        find_logs([tmp_path / "cut.gz"], "cut", "board"), RecordStore(str(tmp_path / "store"))
    )
    assert 0 < progress.records.total() < 4000
    assert any("ends early" in item.reason for item in progress.rejects)
    (tmp_path / "small.gz").write_bytes(gzip.compress(f"{ansor_line(1)}\n".encode() * 3)[:-12])
    assert [item.format for item in find_logs([tmp_path / "small.gz"], "cut", "x").files] == [
        "ansor"
    ]


def test_unreadable_things_are_no_logs(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_bytes(b"")
    (tmp_path / "random.json").write_bytes(os.urandom(4096))
    (tmp_path / "other.json").write_text(json.dumps({"a": [1, 2, {"b": None}]}))
    (tmp_path / "all_tasks.pkl").write_bytes(b"\x80\x04N.")
    found: Any = find_logs([tmp_path], "x", "y")
    assert not found.files
    assert len(found.skipped) == 4


def database(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for path in GOLDEN.glob("database_*.json"):
        shutil.copy(path, folder)
    return folder


@pytest.mark.parametrize("layout", ["{}", "measure_records/board/{}"])
def test_a_database_without_its_workloads_is_one_reject(
    layout: str, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files around it are imported, and the summary says so."""
    top = tmp_path / "set"
    for name in ("a", "b", "c"):
        database(top / layout.format(name))
    (top / layout.format("b") / "database_workload.json").unlink()
    assert run_cli("import", str(top), "--hardware", "board") == 0
    told = capsys.readouterr().err
    assert "imported" in told
    records = layout.format("b/database_tuning_record.json")
    assert f"{records}:0: expected" in told
    (reject,) = (project / "data" / "rejects" / "set.jsonl").read_text().splitlines()
    assert json.loads(reject)["file"] == records
    assert RecordStore(str(project / "data" / "store")).read("board").height == 3
    assert stored_modules(str(project / "data" / "store")).height == 1


def test_a_program_that_failed_and_then_ran_is_ok(tmp_path: Path) -> None:
    """In one log and in two, in either order; what is read again is not counted again."""
    failed, ran = ansor_line(0, cost=1e10, error=6), ansor_line(0)
    (tmp_path / "both.json").write_text(f"{failed}\n{ran}\n{failed}\n")
    for number, line in enumerate((ran, failed)):
        (tmp_path / f"{number}.json").write_text(line)
    both, apart = RecordStore(str(tmp_path / "both")), RecordStore(str(tmp_path / "apart"))
    progress = import_logs(find_logs([tmp_path / "both.json"], "mine", "board"), both)
    assert (progress.written, progress.again) == (1, 1)
    for number, expected in ((0, (1, 0)), (1, (0, 1)), (0, (0, 0))):
        progress = import_logs(find_logs([tmp_path / f"{number}.json"], "mine", "board"), apart)
        assert (progress.written, progress.again) == expected
    for store in (both, apart):
        (row,) = store.read("board").to_dicts()
        assert (row["status"], row["run_secs"]) == ("ok", [1e-3])
        found = query.best(store, hardware="board", target=row["target"])
        assert found["latency_s"].to_list() == [1e-3]
        history = query.program_history(
            store, row["program_id"][:9], hardware="board", target=row["target"]
        )
        assert sorted(history["status"]) == ["build_timeout", "ok"]


def test_a_build_takes_all_measurements_of_a_program(tmp_path: Path) -> None:
    """The pipeline's label is the median over all runs, its summary counts programs once."""
    raw = tmp_path / "raw"
    raw.mkdir()
    lines = [ansor_line(0, cost) for cost in (4e-3, 1e-3, 2e-3)] + [ansor_line(1), ansor_line(1)]
    (raw / "log.json").write_text("\n".join(lines))
    (tmp_path / "built").mkdir()
    summary = stage._write(tmp_path / "built", read_log_dataset(raw, "mine", "board"))
    assert (summary["records"], summary["measured_again"], summary["duplicates"]) == (2, 2, 1)
    assert summary["status"] == {"board": {"ok": 2}}
    labels = load_records(tmp_path / "built", columns=["program_id", "latency_s"][:1])["latency_s"]
    assert labels.to_list() == [2e-3, 1e-3]


def test_a_build_and_an_import_keep_out_the_same_and_count_alike(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    lines = [ansor_line(number) for number in range(12)]
    lines += [ansor_line(30, 1e-6), ansor_line(31, 1e-9), ansor_line(3), ansor_line(4, 2e-3)]
    (raw / "log.json").write_text("\n".join(lines))
    (tmp_path / "built").mkdir()
    summary = stage._write(tmp_path / "built", read_log_dataset(raw, "mine", "board"))
    store = RecordStore(str(tmp_path / "store"))
    progress = import_logs(find_logs([raw], "mine", "board"), store)
    assert (summary["records"], summary["quarantined"]) == (14, 2)
    assert (progress.written, progress.quarantined, progress.again) == (14, 2, 1)
    assert summary["measured_again"] == progress.again
    built = open_records(str(tmp_path / "built"))
    for quarantined in (False, True):
        ids = [
            sorted(each.read("board", quarantined=quarantined)["record_id"])
            for each in (built, store)
        ]
        assert ids[0] == ids[1]
        assert len(ids[0]) == (14 if quarantined else 12)
    assert load_records(tmp_path / "built").height == 12
