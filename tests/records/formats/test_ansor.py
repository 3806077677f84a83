"""The auto_scheduler log: every kind of step, every arity, what is skipped, rejected, kept, and written back."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pytest
import zstandard

from tencost.errors import RecordError
from tencost.records.formats import ansor
from tencost.records.formats.ansor import AnsorFormat, parse_line, steps_of, write_lines
from tencost.records.formats.ansor.steps import (
    ANNOTATIONS,
    STEPS,
    Annotation,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    ComputeRoot,
    FollowFusedSplit,
    FollowSplit,
    Fuse,
    Pragma,
    Reorder,
    Rfactor,
    Split,
    Step,
    StorageAlign,
)
from tencost.records.reading.opening import read_head
from tencost.records.reading.protocol import About, Reject
from tencost.store.ids import text_id
from tencost.store.schema import SCHEMA

LOGS = (Path(__file__).resolve().parents[3] / "../shared/data/ansor").resolve()
LISTED = {
    # Folder: records and ok records, as the folder's README counts them; lines without an end count, too.
    "bennu_mixed": (40_085, 32_510),
    "roller_k80_cuda": (93_076, 92_239),
    "roller_mi50_rocm": (87_640, 79_575),
    "roller_v100_cuda": (88_210, 87_424),
    "tvm_ci_logs": (159, 159),
}
needs_logs = pytest.mark.skipif(not LOGS.is_dir(), reason=f"no real logs in {LOGS}")

HW = [4, 64, 64, 0, 0, 0, 0, 0]
KEY = '["matmul", 64, 64, [1, 2], "float32"]'
MD5 = "6b7583cf23c7c37d3212cad9d06e58c1"
TARGET = "llvm -keys=cpu -mcpu=core-avx2"
WIRE: list[tuple[list[Any], Step]] = [
    (["AN", 2, 9, 2], Annotation(2, 9, 2)),
    (["FU", 3, [0, 1, 2]], Fuse(3, [0, 1, 2])),
    (["PR", 2, 0, "auto_unroll_max_step$512"], Pragma(2, 0, "auto_unroll_max_step$512")),
    (["RE", 2, [0, 4, 1]], Reorder(2, [0, 4, 1])),
    (["SP", 2, 0, 1000, [2, 5, 2], 1], Split(2, 0, 1000, [2, 5, 2], 1)),
    (["FSP", 3, 0, 1, 2], FollowSplit(3, 0, 1, 2)),
    (["FFSP", 6, 0, [3, 4], 1, 0], FollowFusedSplit(6, 0, [3, 4], 1, 0)),
    (["SA", 3, 1, 32, 8], StorageAlign(3, 1, 32, 8)),
    (["CA", 2, 3, 5], ComputeAt(2, 3, 5)),
    (["CI", 1], ComputeInline(1)),
    (["CR", 4], ComputeRoot(4)),
    (["CHR", 1, "shared", [4, 5]], CacheRead(1, "shared", [4, 5])),
    (["CHW", 2, "local"], CacheWrite(2, "local")),
    (["RF", 3, 2, 1], Rfactor(3, 2, 1)),
]
STEPS_OF_A_LINE = [wire for wire, _ in WIRE]


def line_of(
    task: Any = (KEY, TARGET, HW, "", 1, []),
    steps: Any = STEPS_OF_A_LINE,
    result: Any = ((0.0826379, 0.107067), 0, 3.3666, 1693565744),
    version: Any = "v0.6",
    **more: Any,
) -> str:
    """Return a line as auto_scheduler formats it."""
    return json.dumps({"i": [task, [[], steps]], "r": result, "v": version, **more})


def read(
    folder: Path, *lines: str, hardware: str | None = "device", batch_rows: int = 100
) -> tuple[pa.Table, list[Reject]]:
    path = folder / "some.log"
    path.write_text("\n".join(lines))
    return read_file(path, hardware, batch_rows)


def read_file(
    path: Path, hardware: str | None = "device", batch_rows: int = 20_000
) -> tuple[pa.Table, list[Reject]]:
    batches = list(AnsorFormat().read(path, About("set", path.name, hardware), batch_rows))
    tables = [batch.records for batch in batches]
    rejects = [reject for batch in batches for reject in batch.rejects]
    return pa.concat_tables([SCHEMA.empty_table(), *tables]), rejects


def row_of(folder: Path, hardware: str | None = "device", **parts: Any) -> dict[str, Any]:
    table, rejects = read(folder, line_of(**parts), hardware=hardware)
    assert rejects == []
    (row,) = table.to_pylist()
    return row


def reason_of(folder: Path, text: str) -> str:
    table, rejects = read(folder, text)
    assert table.num_rows == 0
    (reject,) = rejects
    assert (reject.file, reject.line) == ("some.log", 1)
    return reject.reason


def test_every_kind_of_step_is_typed_and_written_back() -> None:
    assert {wire[0] for wire, _ in WIRE} == set(STEPS)
    assert len(STEPS) == 14
    steps = parse_line(line_of().encode()).steps
    assert steps == [step for _, step in WIRE]
    assert json.loads(msgspec.json.encode(steps)) == STEPS_OF_A_LINE
    assert ANNOTATIONS[steps[0].annotation] == "vectorize"  # type: ignore[union-attr]


@pytest.mark.parametrize("wire", STEPS_OF_A_LINE, ids=lambda wire: wire[0])
def test_a_step_with_a_field_too_many_too_few_or_of_another_type_is_refused(
    wire: list[Any],
) -> None:
    damaged = [[*wire, 0], wire[:-1]]
    damaged += [[*wire[:at], {}, *wire[at + 1 :]] for at in range(len(wire))]
    for step in damaged:
        with pytest.raises(ValueError, match=r"not a line of auto_scheduler: step 1, \[.*Exp|Inv"):
            parse_line(line_of(steps=[["CI", 1], step]).encode())


@pytest.mark.parametrize(
    "step", [["CP", 1], ["AN", 0, 0, 12], ["SP", 0, 0, 8, [2], 2], ["SP", 0, 0, 8, [None], 1], []]
)
def test_what_is_no_step_is_refused(step: list[Any]) -> None:
    with pytest.raises(ValueError, match="not a line of auto_scheduler"):
        parse_line(line_of(steps=[step]).encode())


@pytest.mark.parametrize(
    "task",
    [
        [KEY, TARGET],
        [KEY, TARGET, HW],
        [KEY, TARGET, HW, "llvm", 2],
        [KEY, TARGET, HW, "llvm", 2, ["sparse_data", "sparse_indices"]],
    ],
    ids=len,
)
def test_tasks_of_every_version(tmp_path: Path, task: list[Any]) -> None:
    parsed = parse_line(line_of(task).encode()).task
    assert (parsed.key, parsed.target) == (KEY, TARGET)
    assert parsed.hw == (HW if len(task) > 2 else None)
    assert (parsed.host, parsed.layout) == (("llvm", 2) if len(task) > 3 else ("", 0))
    assert parsed.names == (task[5] if len(task) > 5 else [])
    table, _ = read(tmp_path, line_of(task, version="v0.3"))
    assert json.loads(table["foreign"][0].as_py())["task"] == task
    assert list(write_lines(table)) == [line_of(task, version="v0.3")]


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ([KEY], "2, 3, 5 or 6 items, found 1 items"),
        ([KEY, TARGET, HW, ""], "found 4 items"),
        ([KEY, TARGET, HW, "", 1, [], 0], "found 7 items"),
        ({"key": KEY}, "found dict"),
        ([KEY, TARGET, HW[:7]], "task: .*length >= 8"),
        ([KEY, TARGET, [*HW, 0]], "task: .*length <= 8"),
        ([KEY, TARGET, None], "8 hardware parameters, found null"),
        ([KEY, TARGET, HW, "", 3], "task: .*3"),
        ([KEY, 7], r"task: Expected `str`, got `int` - at `\$\[1\]`"),
        (["matmul", TARGET], "workload key: "),
        (['{"matmul": 1}', TARGET], "workload key: expected a list that begins with a name"),
        (["[]", TARGET], "workload key: "),
        (["[1, 2]", TARGET], "workload key: "),
        (['["f", NaN]', TARGET], "workload key: "),
        (["[" * 100_000, TARGET], "workload key: .*deep"),
        ([KEY, ""], "target: "),
        ([KEY, "-keys=cpu"], "target: "),
        ([KEY, '{"keys": ["cpu"]}'], "target: "),
        ([KEY, '{"kind": "llvm", "opt": ' + "[" * 100_000], "target: .*deep"),
    ],
)
def test_a_task_that_is_none(tmp_path: Path, task: Any, reason: str) -> None:
    assert re.search(reason, reason_of(tmp_path, line_of(task)))


@pytest.mark.parametrize(
    "text",
    [
        line_of(version="v0.7"),
        line_of(version=0.2),
        line_of(extra=1),
        line_of(result=((0.1,), 0, 1.0)),
        line_of(result=((0.1,), 0, 1.0, 1693565744, 0)),
        line_of(result=((0.1,), 0, 1.0, 1693565744.5)),
        line_of(result=((0.1,), 0, 1.0, 1 << 54)),
        line_of(result=((0.1,), 10**30, 1.0, 1)),
        line_of(result=((None,), 0, 1.0, 1)),
        line_of(result=(("nan",), 0, 1.0, 1)),
        line_of().replace("0.107067", "1e999"),
        line_of().replace('{"i"', '{"j"'),
        line_of().replace("[[], ", '[["stage"], '),
        line_of()[:-20],
        line_of() + "}",
        "[1, 2]",
        "[" * 1_000_000,
        '{"i": ' * 100_000,
        "text",
    ],
)
def test_a_line_that_is_none_is_a_reject(tmp_path: Path, text: str) -> None:
    assert reason_of(tmp_path, text).startswith("not a line of auto_scheduler: ")


def test_bytes_that_are_no_text_are_a_reject(tmp_path: Path) -> None:
    path = tmp_path / "some.log"
    good = line_of().encode()
    path.write_bytes(good.replace(b"local", b"lo\xffal") + b"\n" + good.replace(b"mcpu", b"\xc3("))
    table, rejects = read_file(path)
    assert table.num_rows == 0
    assert [reject.line for reject in rejects] == [1, 2]


def test_lines_that_hold_nothing_are_skipped_and_counted(tmp_path: Path) -> None:
    good = line_of()
    table, rejects = read(
        tmp_path, "# a comment", "", good, " " + good, "\r", good + "\r", "{", "   ", good[:-9]
    )
    assert [source["line"] for source in table["source"].to_pylist()] == [3, 6]
    assert [reject.line for reject in rejects] == [7, 9]


@pytest.mark.parametrize("version", ["v0.2", "v0.3", "v0.4", "v0.5", "v0.6"])
def test_versions(tmp_path: Path, version: str) -> None:
    table, rejects = read(tmp_path, line_of(version=version), line_of())
    assert rejects == []
    assert list(write_lines(table)) == [line_of(version=version), line_of()]


def test_columns(tmp_path: Path) -> None:
    row = row_of(tmp_path)
    program = json.dumps(STEPS_OF_A_LINE, separators=(",", ":"))
    target = {"kind": "llvm", "keys": ["cpu"], "mcpu": "core-avx2"}
    target_json = json.dumps(target, sort_keys=True, separators=(",", ":"))
    workload = text_id("auto_scheduler", '["matmul",64,64,[1,2],"float32"]')
    assert row["workload_id"] == workload
    assert row["program_id"] == text_id(workload, "llvm", program)
    assert row["record_id"] == text_id(row["program_id"], target_json, "device")
    assert row["program"] == program
    assert steps_of(row["program"]) == [step for _, step in WIRE]
    assert row["target"] == target_json
    assert row["workload"] == "auto_scheduler.matmul"
    assert row["workload_args"] == '[64,64,[1,2],"float32"]'
    assert row["networks"] == [{"network": "set", "weight": 1}]
    assert row["source"] == {"dataset": "set", "file": "some.log", "line": 1}
    assert row["run_secs"] == [0.0826379, 0.107067]
    assert row["execution_elapsed_ms_mean"] == pytest.approx(94.85245)
    assert (row["wall_s"], row["timestamp"]) == (3.3666, 1693565744.0)
    assert (row["status"], row["error"], row["quarantine"]) == ("ok", None, None)
    assert (row["engine"], row["program_format"]) == ("tvm", "ansor_steps")
    task = [KEY, TARGET, HW, "", 1, []]
    assert json.loads(row["foreign"]) == {
        "format": "auto_scheduler",
        "v": "v0.6",
        "task": task,
        "error_no": 0,
    }


def test_what_counts_for_the_ids(tmp_path: Path) -> None:
    (base,) = read(tmp_path, line_of())[0].to_pylist()
    dense = json.loads(line_of(task=[KEY.replace(", ", ","), TARGET]))
    (same,) = read(tmp_path, json.dumps(dense, separators=(" ,\t", ":  ")))[0].to_pylist()
    later = row_of(tmp_path, result=((1.0,), 0, 1.0, 5), version="v0.5")
    other_device = row_of(tmp_path, hardware="another")
    other_target = row_of(tmp_path, task=[KEY, TARGET + " -num-cores=4"])
    other_kind = row_of(tmp_path, task=[KEY, "cuda"])
    other_steps = row_of(tmp_path, steps=STEPS_OF_A_LINE[1:])
    for row in (same, later):
        for column in ("record_id", "program_id", "workload_id", "program"):
            assert row[column] == base[column]
    for row in (other_device, other_target):
        assert row["program_id"] == base["program_id"]
        assert row["record_id"] != base["record_id"]
    for row in (other_kind, other_steps):
        assert row["workload_id"] == base["workload_id"]
        assert row["program_id"] != base["program_id"]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (["conv2d_layer", 1, 7], "conv2d_layer"),
        ([MD5, 1, 28, 28], "ansor_6b7583cf"),
        (["not a name", 1], "ansor_" + text_id("auto_scheduler", '["not a name",1]')[:8]),
    ],
)
def test_task_name(tmp_path: Path, key: list[Any], name: str) -> None:
    row = row_of(tmp_path, task=[json.dumps(key), TARGET])
    assert row["task_name"] == name
    assert row["workload"] == f"auto_scheduler.{name}"
    assert json.loads(row["workload_args"]) == key[1:]


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (1, "invalid_schedule", "error 1: the steps cannot be applied"),
        (2, "build_error", "error 2: the host code does not compile"),
        (3, "build_error", "error 3: the device code does not compile"),
        (4, "run_error", "error 4: failed on the device"),
        (5, "wrong_answer", "error 5: wrong answer"),
        (6, "build_timeout", "error 6: building took too long"),
        (7, "run_timeout", "error 7: running took too long"),
        (8, "unknown", "error 8: unknown error"),
        (9, "unknown", "error 9: no error number of this format"),
    ],
)
def test_a_failure_is_a_status(tmp_path: Path, error: int, status: str, text: str) -> None:
    row = row_of(tmp_path, result=((1e10,), error, 15.25, 7))
    assert (row["status"], row["error"], row["run_secs"]) == (status, text, None)
    assert row["execution_elapsed_ms_mean"] is None
    assert json.loads(row["foreign"])["error_no"] == error
    assert json.loads(row["foreign"])["costs"] == [1e10]


@pytest.mark.parametrize(
    ("costs", "text"),
    [
        ([0.0], "not measured: the cost is 0"),
        ([], "not measured: run_secs is empty"),
        ([1e10], "the log marks a failure: 1e+10 s"),
        ([0.5, 1e9], "the log marks a failure: 1e+09 s"),
        ([0.5, 0.0], "a time is not positive: 0 s"),
        ([-0.5], "a time is not positive: -0.5 s"),
    ],
)
def test_costs_that_are_no_times(tmp_path: Path, costs: list[float], text: str) -> None:
    table, rejects = read(tmp_path, line_of(result=(costs, 0, 0.0, 7)))
    (row,) = table.to_pylist()
    assert rejects == []
    assert (row["status"], row["error"], row["run_secs"]) == ("unknown", text, None)
    (written,) = write_lines(table)
    assert json.loads(written)["r"] == [costs, 0, 0.0, 7]


def test_the_device_is_the_argument_then_the_model(tmp_path: Path) -> None:
    task = [KEY, "llvm -model=platinum-8272"]
    assert row_of(tmp_path, hardware=None, task=task)["hardware"] == "platinum-8272"
    assert row_of(tmp_path, hardware="device", task=task)["hardware"] == "device"
    number = [KEY, "cuda -model=3090"]
    assert row_of(tmp_path, hardware=None, task=number)["hardware"] == "3090"
    for target in (TARGET, "cuda -model=unknown"):
        with pytest.raises(
            RecordError, match=r"names its device by -model, .*some\.log.* hardware="
        ):
            read(tmp_path, line_of([KEY, target]), hardware=None)


def test_lines_are_written_as_auto_scheduler_writes_them(tmp_path: Path) -> None:
    lines = [
        line_of(),
        line_of([KEY.replace("matmul", "é\\t"), TARGET]).replace("\\u00e9", "é"),
        line_of([KEY, TARGET, HW], result=((1e10,), 4, 12.5, 7), version="v0.3").replace(
            "10000000000.0", "1e+10"
        ),
        line_of(result=((5.06217e-05, 1e-06), 0, 3, 7)).replace("5.06217e-05", "5.06217e-05"),
        line_of(steps=[], result=((0,), 0, 0, 7)),
    ]
    table, rejects = read(tmp_path, *lines)
    assert rejects == []
    assert list(write_lines(table)) == lines
    assert list(write_lines(pl.DataFrame(table))) == lines
    assert list(write_lines(table.slice(2, 1))) == lines[2:3]


def test_no_digit_of_a_time_is_lost(tmp_path: Path) -> None:
    result = [[0.1234567890123, 1 / 3], 0, 2.000000000001, 1693565744]
    table, _ = read(tmp_path, line_of(result=result))
    (written,) = write_lines(table)
    assert json.loads(written) == json.loads(line_of(result=result))
    assert json.loads(written)["r"] == result


def test_records_of_another_origin_cannot_be_written(tmp_path: Path) -> None:
    table, _ = read(tmp_path, line_of())
    at = table.column_names.index("foreign")
    for foreign in (None, '{"format":"autotvm"}', "[]"):
        other = table.set_column(at, "foreign", pa.array([foreign], pa.string()))
        with pytest.raises(RecordError, match="program_format = 'ansor_steps'"):
            list(write_lines(other))


def test_batches_end_by_rows_and_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "some.log"
    path.write_text("".join(line_of() + "\n{\n" for _ in range(25)))
    about = About("set", "some.log", "device")
    batches = list(AnsorFormat().read(path, about, 10))
    assert [batch.records.num_rows for batch in batches] == [10, 9, 6]
    assert [len(batch.rejects) for batch in batches] == [9, 10, 6]
    assert [line["line"] for batch in batches for line in batch.records["source"].to_pylist()] == (
        list(range(1, 50, 2))
    )
    assert [reject.line for batch in batches for reject in batch.rejects] == list(range(2, 51, 2))
    assert all(batch.records.schema.equals(SCHEMA) for batch in batches)
    monkeypatch.setattr(ansor.rows, "BATCH_BYTES", 2 * len(line_of()))
    sizes = [batch.records.num_rows for batch in AnsorFormat().read(path, about)]
    assert sizes == [2] * 12 + [1]


def test_a_file_with_nothing_in_it_has_no_batch(tmp_path: Path) -> None:
    path = tmp_path / "some.log"
    path.write_text("# nothing\n\n")
    assert list(AnsorFormat().read(path, About("set", "some.log", None))) == []
    with pytest.raises(RecordError, match="expected a log file"):
        list(AnsorFormat().read(tmp_path / "none.log", About("set", "none.log", None)))


def test_compressed_logs(tmp_path: Path) -> None:
    text = "".join(line_of(result=((0.1 * k,), 0, 1.0, k)) + "\n" for k in range(1, 400)).encode()
    zipped, zstd = tmp_path / "a.json", tmp_path / "b.json"
    zipped.write_bytes(gzip.compress(text))
    zstd.write_bytes(zstandard.compress(text))
    for path in (zipped, zstd):
        assert AnsorFormat().recognizes(path, read_head(path))
        table, rejects = read_file(path)
        assert (table.num_rows, rejects) == (399, [])
    zipped.write_bytes(zipped.read_bytes()[:-500])
    table, (reject,) = read_file(zipped)
    assert 0 < table.num_rows < 399
    assert (reject.line, "ends early" in reject.reason) == (table.num_rows + 1, True)


AUTOTVM_01 = (
    '{"i": ["cuda", "conv2d", [["TENSOR", [1, 2], "float32"]], {}, ["conv2d", 1], {}],'
    ' "r": [[0.1], 0, 1.0, 7.0], "v": 0.1}'
)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (line_of(), True),
        (line_of() + "\n", True),
        ("# a comment\n\n " + line_of() + "\n" + line_of() + "\n", True),
        ('{"i": [["[\\"mat\n' + line_of() + "\n", True),
        (line_of(steps=[["CI", 1]] * 20_000) + "\n", True),
        (line_of(version="v9"), True),
        (AUTOTVM_01, False),
        (AUTOTVM_01 + "\n" + line_of() + "\n", False),
        ('{"input": ["cuda", "f", [], {}], "config": {}, "result": [], "version": 0.2}', False),
        ('[0, [[[], []], [0.1], {"kind": "llvm"}, []]]\n', False),
        ('{"i": [[], []], "r": [], "v": "v0.6"}', False),
        ('{"i": [["matmul", "llvm"], []], "r": [], "v": "v0.6"}', False),
        (line_of(extra=1), False),
        ("[" * 60_000, False),
        ("", False),
        (" " + line_of(), False),
        ("# " + line_of(), False),
    ],
)
def test_recognizes(tmp_path: Path, text: str, known: bool) -> None:
    path = tmp_path / "some.log"
    path.write_text(text)
    assert AnsorFormat().recognizes(path, read_head(path)) is known


def test_steps_of_what_is_no_program() -> None:
    for text in ("{}", '[["CP", 1]]', "[" * 100_000, ""):
        with pytest.raises(ValueError, match=r"deep|Expected|Invalid|truncated|malformed"):
            steps_of(text)


def originals(path: Path) -> list[str]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file if line.strip() and line[0] not in "# "]


@needs_logs
@pytest.mark.parametrize("folder", LISTED)
def test_real_logs(folder: str) -> None:
    """A sample: every fifteenth file of a folder; all of a small one."""
    files = sorted(path for path in (LOGS / folder).rglob("*") if path.is_file())
    sample = files if len(files) < 16 else files[::15]
    total = ok = 0
    for path in sample:
        assert AnsorFormat().recognizes(path, read_head(path)), path
        table, rejects = read_file(path)
        lines = originals(path)
        assert rejects == []
        assert table.num_rows == len(lines)
        for written, original in zip(write_lines(table), lines, strict=True):
            assert written == original or json.loads(written) == json.loads(original)
        total += table.num_rows
        ok += table["status"].to_pylist().count("ok")
    if sample is files:
        assert (total, ok) == LISTED[folder]
    assert 0 < ok <= total
