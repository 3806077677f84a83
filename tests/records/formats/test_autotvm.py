from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tencost.errors import RecordError
from tencost.records.formats import autotvm
from tencost.records.formats.autotvm import AutotvmFormat, from_row, write_lines
from tencost.records.formats.autotvm.lines import (
    ERRORS,
    Annotate,
    Other,
    Reorder,
    Split,
    format_line,
    parse_line,
)
from tencost.records.reading.protocol import About, Batch
from tencost.store.ids import canonical_json, canonical_target, text_id
from tencost.store.schema import SCHEMA
from tencost.store.status import Status

LOGS = (Path(__file__).resolve().parents[3] / "../shared/data/autotvm").resolve()
ABOUT = About("hand", "some.log", "gadget")
TASK: list[Any] = [
    "cuda -keys=cuda,gpu -max_num_threads=512",
    "conv9d_nchw.cuda",
    [["TENSOR", [2, 3, 8, 8], "float32"], [1, 1], "SAME", None, "float32"],
    {},
]
ENTITIES: list[Any] = [
    ["tile_f", "sp", [-1, 4, 2]],
    ["order", "re", [2, 0, 1]],
    ["ann", "an", ["unroll", "vec", "none"]],
    ["unroll", "ot", 512],
    ["flag", "ot", True],
    ["mode", "ot", "fast"],
    ["nothing", "ot", None],
]
OK = [[0.0015], 0, 2.25, 1600000000.5]


def new_line(**changes: Any) -> dict[str, Any]:
    config = {"index": 7, "code_hash": None, "entity": ENTITIES} | changes.pop("config", {})
    line = {"input": TASK, "config": config, "result": OK, "version": 0.2, "tvm_version": "0.8.0"}
    return line | changes


def old_line(**changes: Any) -> dict[str, Any]:
    config = {"i": 7, "t": "", "c": None, "e": ENTITIES} | changes.pop("config", {})
    workload = ["conv9d_nchw", 2, 3, 8, 8]
    return {"i": ["cuda", *TASK[1:], workload, config], "r": OK, "v": 0.1} | changes


def read(path: Path, about: About = ABOUT, **options: int) -> list[Batch]:
    return list(AutotvmFormat().read(path, about, **options))


def read_lines(folder: Path, *lines: Any, about: About = ABOUT) -> Batch:
    path = folder / "some.log"
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(texts) + b"\n")
    (batch,) = read(path, about)
    return batch


def rows(batch: Batch) -> list[dict[str, Any]]:
    return batch.records.to_pylist()


def test_comments_are_neither_records_nor_rejects(tmp_path: Path) -> None:
    batch = read_lines(tmp_path, b"# tuned by hand", new_line(), b"  # {", b"#", old_line(), b"")
    assert (batch.records.num_rows, batch.rejects) == (2, ())
    assert [row["source"]["line"] for row in rows(batch)] == [2, 5]


UNUSUAL = {
    "plain": new_line(),
    "old": old_line(),
    "old template": old_line(config={"t": "winograd"}),
    "no tvm_version": {key: item for key, item in new_line().items() if key != "tvm_version"},
    "unknown keys": new_line(note={"a": [1]}, config={"origin": "mine"}),
    "old unknown keys": old_line(note=1, config={"origin": "mine"}),
    "no entities": new_line(config={"entity": []}),
    "nested choice": new_line(config={"entity": [["x", "ot", [["a", 1.5], {"b": None}]]]}),
    "choice with a list": new_line(config={"entity": [["x", "ot", [1, 2]]]}),
    "float choice": new_line(config={"entity": [["x", "ot", 2.0], ["y", "ot", 1e22]]}),
    "text to escape": new_line(config={"entity": [['q"\\', "ot", "\u007f\u00e4\u4e2d"]]}),
    "hash": new_line(config={"code_hash": "abc"}),
    "no index": new_line(config={"index": None}),
    "huge index": new_line(config={"index": 2**70}),
    "keyword arguments": new_line(input=[*TASK[:3], {"groups": 2}]),
    "several costs": new_line(result=[[0.1, 0.2, 0.30000000000000004], 0, 10, 1600000000]),
    "failure": new_line(result=[[1e9], 4, 0.5, 1600000000.25]),
    "old failure": old_line(r=[[1e9], 6, 10.0, 1600000000.25]),
    "failure with costs": new_line(result=[[0.5], 5, 0.5, 1600000000.25]),
    "good code, failed cost": new_line(result=[[0.5, 1e9], 0, 0.5, 1600000000.25]),
    "no costs": new_line(result=[[], 0, 0.5, 1600000000.25]),
    "infinite cost": new_line(result=[[float("inf")], 0, 0.5, 1600000000.25]),
    "unknown code": new_line(result=[[1e9], 99, 0.5, 1600000000.25]),
}


def test_a_line_is_read_as_typed_values() -> None:
    line = parse_line(json.dumps(new_line()).encode())
    assert (line.task.name, line.task.args[0][1]) == ("conv9d_nchw.cuda", [2, 3, 8, 8])
    assert line.config.entities[:4] == (
        Split("tile_f", (-1, 4, 2)),
        Reorder("order", (2, 0, 1)),
        Annotate("ann", ("unroll", "vec", "none")),
        Other("unroll", 512),
    )
    assert (line.costs, line.error_no, line.all_cost_s, line.timestamp) == (
        (0.0015,), 0, 2.25, 1600000000.5,
    )  # fmt: skip
    assert (line.version, line.tvm_version) == ("0.2", "0.8.0")


def test_an_old_line_has_a_template_and_a_workload() -> None:
    line = parse_line(json.dumps(old_line(config={"t": "direct"})).encode())
    assert (line.version, line.tvm_version, line.config.template) == ("0.1", None, "direct")
    assert line.task.workload == ["conv9d_nchw", 2, 3, 8, 8]
    assert line.config.entities[0] == Split("tile_f", (-1, 4, 2))


@pytest.mark.parametrize("name", UNUSUAL)
def test_lines_come_back_as_they_were(tmp_path: Path, name: str) -> None:
    value = UNUSUAL[name]
    batch = read_lines(tmp_path, value)
    assert batch.rejects == ()
    assert batch.records.schema.equals(SCHEMA)
    (written,) = write_lines(batch.records)
    assert json.loads(written) == value
    assert json.loads(format_line(parse_line(json.dumps(value).encode()))) == value
    assert list(write_lines(pl.from_arrow(batch.records))) == [written]


def test_a_line_of_autotvm_is_written_byte_for_byte(tmp_path: Path) -> None:
    texts = [json.dumps(new_line()), json.dumps(old_line())]
    batch = read_lines(tmp_path, *(text.encode() for text in texts))
    assert list(write_lines(batch.records)) == texts


def test_the_fast_path_says_what_the_careful_one_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = read_lines(tmp_path, *UNUSUAL.values())

    def refuse(line: bytes) -> None:
        raise msgspec.DecodeError

    monkeypatch.setattr(autotvm.rows, "decode_plain", refuse)
    careful = read_lines(tmp_path, *UNUSUAL.values())
    assert len(rows(fast)) == len(UNUSUAL)
    assert rows(fast) == rows(careful)


def test_the_usual_line_takes_the_fast_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotvm.rows, "parse_line", lambda line: pytest.fail("careful path"))
    usual = ["plain", "old", "hash", "several costs", "failure", "old failure"]
    batch = read_lines(tmp_path, *(UNUSUAL[name] for name in usual))
    assert len(rows(batch)) == len(usual)


def test_columns(tmp_path: Path) -> None:
    (row,) = rows(read_lines(tmp_path, b"", new_line()))
    target = {"kind": "cuda", "keys": ["cuda", "gpu"], "max_num_threads": 512}
    assert row["workload_id"] == text_id("autotvm", canonical_json(TASK[1:]))
    program = {"code_hash": None, "entity": ENTITIES, "index": 7}
    assert json.loads(row["program"]) == program
    del program["index"]
    assert row["program_id"] == text_id(row["workload_id"], "cuda", canonical_json(program))
    assert row["record_id"] == text_id(row["program_id"], canonical_target(target), "gadget")
    assert json.loads(row["target"]) == target
    assert (row["task_name"], row["workload"]) == ("conv9d_nchw.cuda", "autotvm.conv9d_nchw.cuda")
    assert json.loads(row["workload_args"])[0] == ["TENSOR", "float32", [2, 3, 8, 8]]
    assert (row["engine"], row["engine_version"]) == ("tvm", "0.8.0")
    assert (row["run_secs"], row["wall_s"], row["timestamp"]) == ([0.0015], 2.25, 1600000000.5)
    assert row["execution_elapsed_ms_mean"] == pytest.approx(1.5)
    assert row["source"] == {"dataset": "hand", "file": "some.log", "line": 2}
    assert (row["status"], row["error"], row["hardware"]) == ("ok", None, "gadget")
    assert json.loads(row["foreign"])["input"] == TASK


def test_ids_do_not_depend_on_spelling(tmp_path: Path) -> None:
    def spelled(one: str, **options: Any) -> bytes:
        value = new_line(config={"entity": [["x", "ot", "ONE"]]})
        return json.dumps(value, **options).replace('"ONE"', one).encode()

    lines = [spelled("1"), spelled("1.0", separators=(",", ":")), spelled("1e0"), spelled("2")]
    ids = [row["record_id"] for row in rows(read_lines(tmp_path, *lines))]
    assert ids[0] == ids[1] == ids[2] != ids[3]


@pytest.mark.parametrize("make", [new_line, old_line])
@pytest.mark.parametrize("unusual", [False, True])
def test_a_configuration_has_one_id_whatever_its_index_and_keeps_its_line(
    tmp_path: Path, make: Callable[..., dict[str, Any]], unusual: bool
) -> None:
    name = "index" if make is new_line else "i"
    extra = {"note": 1} if unusual else {}
    configs: list[dict[str, Any]] = [{name: index} | extra for index in (0, 7, 10**12)]
    configs += [{name: None} | extra] * unusual
    lines = [make(config=config) for config in configs]
    batch = read_lines(tmp_path, *lines)
    assert len({row["record_id"] for row in rows(batch)}) == 1
    written = [json.loads(line) for line in write_lines(batch.records)]
    assert written == lines
    other = make(config={name: 7, ("entity" if make is new_line else "e"): ENTITIES[:3]} | extra)
    assert rows(read_lines(tmp_path, other))[0]["record_id"] != rows(batch)[0]["record_id"]


def test_templates_of_one_task_are_different_programs(tmp_path: Path) -> None:
    names = ("", "direct", "winograd")
    found = rows(read_lines(tmp_path, *(old_line(config={"t": name}) for name in names)))
    assert len({row["program_id"] for row in found}) == 3
    assert len({row["workload_id"] for row in found}) == 1


@pytest.mark.parametrize("code", [code for code in ERRORS if code])
def test_error_codes_become_statuses(tmp_path: Path, code: int) -> None:
    (row,) = rows(read_lines(tmp_path, new_line(result=[[1e9], code, 0.5, 1.6e9])))
    assert (row["status"], row["error"]) == (ERRORS[code][0].value, ERRORS[code][1])
    assert (row["run_secs"], row["execution_elapsed_ms_mean"]) == (None, None)


def test_all_codes_have_the_status_that_their_name_says() -> None:
    statuses = [ERRORS[code][0] for code in range(9)]
    assert statuses == [
        Status.ok, Status.invalid_schedule, Status.build_error, Status.build_error, Status.run_error,
        Status.wrong_answer, Status.build_timeout, Status.run_timeout, Status.unknown,
    ]  # fmt: skip


@pytest.mark.parametrize("costs", [[1e9], [0.0], [], [0.5, 1e9], [-1.0], [float("nan")]])
def test_a_time_that_is_none_is_a_failure(tmp_path: Path, costs: list[float]) -> None:
    (row,) = rows(read_lines(tmp_path, new_line(result=[costs, 0, 0.5, 1.6e9])))
    assert (row["status"], row["run_secs"]) == ("unknown", None)
    assert row["error"]


BAD = {
    "not json": (b"{", "not a line of JSON"),
    "not an object": (b"[1]", "expected an object"),
    "foreign": ({"a": 1}, "expected the key input"),
    "version": (new_line(version=0.3), "expected version 0.2, found 0.3"),
    "old version": (old_line(v=0.2), "expected version 0.1, found 0.2"),
    "version as text": (new_line(version="0.2"), "expected version 0.2"),
    "task too short": (new_line(input=TASK[:3]), "expected [target, task, args, kwargs]"),
    "task too long": (new_line(input=[*TASK, 1]), "expected [target, task, args, kwargs]"),
    "task an object": (new_line(input={"a": 1}), "expected [target, task, args, kwargs]"),
    "task name": (new_line(input=["cuda", 3, [], {}]), "expected a target and a task"),
    "arguments": (new_line(input=["cuda", "x", {}, {}]), "expected a list of arguments"),
    "target": (new_line(input=["-x", *TASK[1:]]), "begins with its kind"),
    "config": (new_line(config={"entity": 3}), "entities as a list"),
    "index": (new_line(config={"index": "3"}), "index as an integer"),
    "split": (new_line(config={"entity": [["x", "sp", ["a"]]]}), "kind sp or re with integers"),
    "bool split": (new_line(config={"entity": [["x", "sp", [True]]]}), "kind sp or re"),
    "reorder": (new_line(config={"entity": [["x", "re", 3]]}), "kind sp or re with integers"),
    "annotate": (new_line(config={"entity": [["x", "an", [1]]]}), "an with texts"),
    "kind": (new_line(config={"entity": [["x", "zz", [1]]]}), "kind sp or re"),
    "entity": (new_line(config={"entity": [["x", "sp"]]}), "[name, kind, value]"),
    "result": (new_line(result=[[1.0], 0]), "expected a result"),
    "costs": (new_line(result=[["a"], 0, 1, 1]), "expected costs"),
    "error code": (new_line(result=[[1.0], "0", 1, 1]), "error_no as an integer"),
    "wall time": (new_line(result=[[1.0], 0, float("nan"), 1]), "all_cost and timestamp"),
    "not finite": (
        new_line(config={"entity": [["x", "ot", float("nan")]]}),
        "expected finite numbers",
    ),
    "surrogate": (new_line(input=["cuda", "\ud800", [], {}]), "not UTF-8"),
    "latin": (b'{"input": "\xe4"}', "not UTF-8"),
    "deep": (b'{"input": ' + b"[" * 100_000, "not a line of JSON|nested"),
    "old config": (old_line(config={"t": None}), "expected a config with i, t, c and e"),
    "old and new": (old_line(config={"index": 3}), "found the keys ['index'] of 0.2"),
    "truncated": (json.dumps(new_line()).encode()[:-30], "not a line of JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_lines_are_rejected_with_a_reason(tmp_path: Path, name: str) -> None:
    line, reason = BAD[name]
    batch = read_lines(tmp_path, new_line(), line, old_line())
    assert [row["source"]["line"] for row in rows(batch)] == [1, 3]
    (reject,) = batch.rejects
    assert (reject.file, reject.line) == ("some.log", 2)
    assert any(part in reject.reason for part in reason.split("|"))


def test_a_bad_line_alone_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected the key input"):
        parse_line(b"{}")


def test_blank_lines_mean_nothing(tmp_path: Path) -> None:
    batch = read_lines(tmp_path, b"", new_line(), b"   ", b"\r", new_line(), b"")
    assert batch.rejects == ()
    assert [row["source"]["line"] for row in rows(batch)] == [2, 5]


def test_an_empty_file_has_no_batches(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"\n\n")
    assert read(tmp_path / "empty") == []


def test_a_file_of_rejects_is_a_batch_without_records(tmp_path: Path) -> None:
    batch = read_lines(tmp_path, b"x", b"y")
    assert (batch.records.num_rows, len(batch.rejects)) == (0, 2)
    assert batch.records.schema.equals(SCHEMA)


def test_batches_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    path.write_text("".join(json.dumps(new_line()) + "\nbad\n" for _ in range(10)))
    batches = read(path, batch_rows=4)
    assert [batch.records.num_rows + len(batch.rejects) for batch in batches] == [4, 4, 4, 4, 4]
    assert sum(batch.records.num_rows for batch in batches) == 10


def test_a_damaged_archive_keeps_its_good_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    text = "".join(json.dumps(new_line(config={"index": i})) + "\n" for i in range(2000))
    data = gzip.compress(text.encode())
    path.write_bytes(data[: len(data) // 2])
    (batch,) = read(path)
    assert 0 < batch.records.num_rows < 2000
    assert batch.rejects[-1].line > batch.records.num_rows


def test_the_device_is_named_by_the_caller_or_the_target(tmp_path: Path) -> None:
    nobody = About("hand", "some.log", None)
    line = new_line(input=["cuda -model=v9000", *TASK[1:]])
    (row,) = rows(read_lines(tmp_path, line, about=nobody))
    assert row["hardware"] == "v9000"
    (row,) = rows(read_lines(tmp_path, line))
    assert row["hardware"] == "gadget"
    for target in ("cuda", "cuda -model=unknown"):
        with pytest.raises(RecordError, match="hardware=<name>"):
            read_lines(tmp_path, new_line(input=[target, *TASK[1:]]), about=nobody)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="expected a log file"):
        read(tmp_path / "none")


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (json.dumps(new_line()).encode(), True),
        (json.dumps(old_line()).encode(), True),
        (b"\nnonsense\n" + json.dumps(new_line(version=0.5)).encode(), True),
        (json.dumps(new_line()).encode()[:100], False),
        (b'{"i": [["[\\"abc\\"]", "llvm"], [[], []]], "r": [[1], 0, 1, 1], "v": "v0.6"}', False),
        (b'{"i": [], "r": [], "v": 0.1}', False),
        (b'[0, [[[], []], [1.0], {"kind": "cuda"}, []]]', False),
        (b'{"input": 3}', False),
        (b"\x00\xff", False),
        (b"", False),
    ],
)
def test_the_format_is_known_by_content(head: bytes, expected: bool) -> None:
    assert AutotvmFormat().recognizes(Path("x"), head) is expected


def test_a_record_of_another_format_is_not_written(tmp_path: Path) -> None:
    (row,) = rows(read_lines(tmp_path, new_line()))
    for foreign in (None, "{}", '{"format": "auto_scheduler"}', "3"):
        with pytest.raises(RecordError, match="expected a record of an AutoTVM log"):
            from_row(row | {"foreign": foreign})


def _mutated() -> st.SearchStrategy[bytes]:
    texts = [json.dumps(value).encode() for value in (new_line(), old_line(), UNUSUAL["failure"])]
    pieces = [
        b"",
        b"0",
        b"-1",
        b"1e9",
        b"null",
        b"[",
        b"]",
        b"{",
        b"}",
        b'"',
        b",",
        b"\xff",
        b"\\u",
    ]

    @st.composite
    def mutate(draw: st.DrawFn) -> bytes:
        text = draw(st.sampled_from(texts))
        for _ in range(draw(st.integers(1, 3))):
            start = draw(st.integers(0, len(text)))
            length = draw(st.sampled_from([0, 0, 1, 1, 2, 5, 40]))
            text = text[:start] + draw(st.sampled_from(pieces)) + text[start + length :]
        return text

    return mutate()


@settings(max_examples=300, deadline=None)
@given(lines=st.lists(_mutated(), min_size=1, max_size=5))
def test_mutated_lines_never_break_or_invent(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    good = new_line(config={"index": 424242})
    batch = read_lines(tmp_path_factory.mktemp("fuzz"), *lines, good)
    found = {row["source"]["line"]: row for row in rows(batch)}
    rejected = {reject.line for reject in batch.rejects}
    assert not rejected & set(found)
    assert json.loads(found[len(lines) + 1]["program"])["index"] == 424242
    for number, line in enumerate(lines, start=1):
        if number in found:
            (written,) = write_lines(pa.Table.from_pylist([found[number]], SCHEMA))
            assert json.loads(written) == json.loads(line)
        else:
            assert number in rejected or not line.strip()


def shared(folder: str) -> Iterator[Path]:
    if not LOGS.is_dir():
        pytest.skip(f"the shared logs are not at {LOGS}")
    return iter(sorted((LOGS / folder).rglob("*.gz")))


@pytest.mark.parametrize(
    ("folder", "records", "good", "workloads"),
    [
        ("roller_v100_cuda", 84_000, 68_156, 80),
        ("roller_k80_cuda", 72_960, 60_776, 73),
        ("roller_mi50_rocm", 67_000, 55_486, 66),
        ("nnfusion_oldformat_v0.1", 17_496, 13_836, 29),
    ],
)
def test_counts_of_real_logs(folder: str, records: int, good: int, workloads: int) -> None:
    batches = [batch for path in shared(folder) for batch in read(path)]
    frame = pl.from_arrow(pa.concat_tables(batch.records for batch in batches))
    assert isinstance(frame, pl.DataFrame)
    assert [batch.rejects for batch in batches if batch.rejects] == []
    assert len(frame) == records
    assert frame["status"].eq("ok").sum() == good
    assert frame["workload_id"].n_unique() == workloads


@pytest.mark.parametrize("folder", ["roller_v100_cuda", "nnfusion_oldformat_v0.1"])
def test_real_lines_come_back(folder: str) -> None:
    path = next(shared(folder))
    (batch, *_) = read(path, batch_rows=500)
    with gzip.open(path) as file:
        originals = [json.loads(next(file)) for _ in range(500)]
    assert [json.loads(line) for line in write_lines(batch.records)] == originals
