from __future__ import annotations

import csv
import gzip
import json
import math
import statistics
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tencost.compat.lorien.api import (
    AutoSchedulerTuneResult,
    AutoTVMRecords,
    AutoTVMTuneResult,
    MetaScheduleTuneResult,
    TuneResult,
)
from tencost.compat.lorien.knobs import (
    Generated,
    KnobTable,
    extract_feature,
    extract_feature_from_file,
    feature_order,
    gen_features,
    throughput,
)
from tencost.compat.lorien.topi_flop import flop
from tencost.errors import FeatureError, RecordError
from tencost.records.formats.autotvm.lines import Task, parse_line

LOGS = (Path(__file__).resolve().parents[2] / "../shared/data/autotvm").resolve()
DENSE: list[Any] = [
    ["TENSOR", [1, 9216], "float32"],
    ["TENSOR", [4096, 9216], "float32"],
    None,
    "float32",
]
OK = [[0.001, 0.003], 0, 1.0, 1600000000.0]
FAILED = [[1e9], 4, 1.0, 1600000000.0]


def line(
    *entities: list[Any],
    name: str = "dense_nopack.x86",
    target: str = "llvm -mcpu=skylake",
    args: list[Any] | None = None,
    result: list[Any] | None = None,
) -> bytes:
    value = {
        "input": [target, name, DENSE if args is None else args, {}],
        "config": {"index": 0, "code_hash": None, "entity": list(entities)},
        "result": result or OK,
        "version": 0.2,
        "tvm_version": "0.8.0",
    }
    return json.dumps(value).encode()


def write(path: Path, *lines: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(text + b"\n" for text in lines))
    return path


def only(made: Generated) -> KnobTable:
    (table,) = made.tables
    return table


def meta(table: KnobTable) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in json.loads(table.meta.read_bytes())["columns"]}


def cells(table: KnobTable) -> list[dict[str, str]]:
    with table.csv.open(newline="") as file:
        return list(csv.DictReader(file))


def snapshot(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_arguments_and_knobs_have_loriens_names() -> None:
    features = extract_feature(
        line(
            ["tile_k", "sp", [-1, 8]],
            ["ann", "an", ["unroll", "vec"]],
            ["order", "re", [2, 0, 1]],
            ["step", "ot", 512],
            ["flag", "ot", False],
        )
    )
    assert features == {
        "in_0": 1, "in_1": 9216, "in_2": "float32", "in_3": 4096, "in_4": 9216, "in_5": "float32",
        "attr_0": None, "attr_1": "float32",
        "sp_tile_k_0": -1, "sp_tile_k_1": 8, "an_ann": "unroll;vec", "re_order": "2;0;1",
        "ot_step": 512, "ot_flag": False,
    }  # fmt: skip


def test_nested_arguments_are_laid_flat() -> None:
    features = extract_feature(line(args=[[1, [2, "a"]], ["TENSOR", [3], "int8"], "SAME"]))
    assert features == {
        "in_0": 3, "in_1": "int8", "attr_0": 1, "attr_1": 2, "attr_2": "a", "attr_3": "SAME",
    }  # fmt: skip


def test_features_of_bytes_text_and_typed_lines_are_the_same() -> None:
    text = line(["x", "ot", 1])
    assert extract_feature(text) == extract_feature(text.decode())
    assert extract_feature(text) == extract_feature(parse_line(text))
    with pytest.raises(ValueError, match="not a line of JSON"):
        extract_feature(b"x")


def test_features_are_methods_of_the_class_that_loriens_users_know(tmp_path: Path) -> None:
    text = line(["x", "sp", [-1, 4]])
    log = write(tmp_path / "log", text)
    features = extract_feature(text)
    assert AutoTVMTuneResult.extract_feature(text) == features
    assert AutoTVMTuneResult.extract_feature(AutoTVMRecords.decode(text.decode())) == features
    found = AutoTVMTuneResult.extract_feature_from_file(log, tmp_path / "lines")
    (path,) = found.files.values()
    (row,) = map(json.loads, path.read_text().splitlines())
    assert row == {"file": log.as_posix(), "line": 1, **features, "thrpt": 37.75}
    table = only(AutoTVMTuneResult.gen_features(log, tmp_path / "tables"))
    assert (table.task_name, table.rows) == ("dense_nopack.x86", 1)
    assert meta(table)["sp_x_1"]["mean"] == 4.0


@pytest.mark.parametrize("result", [AutoSchedulerTuneResult, MetaScheduleTuneResult, TuneResult])
@pytest.mark.parametrize("name", ["extract_feature", "extract_feature_from_file", "gen_features"])
def test_other_dialects_have_no_features(result: type[TuneResult], name: str) -> None:
    """Upstream: not supported, too."""
    with pytest.raises(FeatureError, match="expected AutoTVMTuneResult, found"):
        getattr(result, name)(*[b"log", "out"][: 1 + (name != "extract_feature")])


def test_columns_have_one_order() -> None:
    names = ["ot_b", "sp_t_10", "sp_t_2", "attr_0", "in_10", "in_9", "re_a", "an_a", "sp_a_0"]
    wanted = ["in_9", "in_10", "attr_0", "sp_a_0", "sp_t_2", "sp_t_10", "an_a", "re_a", "ot_b"]
    assert feature_order(names) == wanted
    assert feature_order(reversed(names)) == wanted


def test_throughput_is_gigaflops_of_the_mean() -> None:
    assert throughput(line()) == round(2 * 9216 * 4096 / 0.002 / 1e9, 2) == 37.75
    assert throughput(line(result=FAILED)) == 0.0
    assert throughput(line(result=[[1e9], 0, 1.0, 1.0])) == 0.0
    assert throughput(line(name="mystery")) is None
    assert throughput(line(name="mystery", result=FAILED)) == 0.0


def tensors(*shapes: list[int]) -> list[Any]:
    return [["TENSOR", shape, "float32"] for shape in shapes]


@pytest.mark.parametrize(
    ("name", "args", "multiply_adds"),
    [
        ("dense_nopack.x86", DENSE, 9216 * 4096),
        ("dense_pack.x86", [*tensors([8, 64], [4, 64, 16]), None, "float32"], 8 * 64 * 64),
        ("dense_large_batch.gpu", tensors([128, 64], [64, 10]), 128 * 64 * 10),
        ("batch_matmul.cuda", tensors([4, 8, 16], [4, 32, 16]), 4 * 8 * 16 * 32),
        ("batch_matmul.x86", tensors([4, 8, 16], [1, 32, 16]), 4 * 8 * 16 * 32),
        (
            "conv2d_nchw.cuda",
            [*tensors([2, 3, 9, 11], [8, 3, 3, 5]), [2, 1], [1, 2], [1, 1], "float32"],
            2 * 8 * 5 * 11 * 3 * 3 * 5,
        ),
        (
            "conv2d_nchw.cuda",
            [*tensors([1, 4, 10, 10], [8, 4, 3, 3]), 2, "SAME", 1, "float32"],
            8 * 5 * 5 * 4 * 9,
        ),
        (
            "conv2d_nchw_winograd.cuda",
            [*tensors([1, 4, 10, 10], [8, 4, 3, 3]), 1, "VALID", 1, "float32"],
            8 * 8 * 8 * 4 * 9,
        ),
        (
            "conv2d_NCHWc.x86",
            [*tensors([1, 1, 10, 10, 4], [2, 1, 3, 3, 4, 4]), 1, [1, 0, 1, 2], 1, "NCHW4c"],
            8 * 10 * 10 * 4 * 9,
        ),
        (
            "conv2d_nhwc_spatial_pack.arm_cpu",
            [*tensors([1, 10, 12, 4], [3, 3, 4, 8]), [1, 1], 0, [2, 2], "float32"],
            6 * 8 * 8 * 9 * 4,
        ),
        (
            "conv2d_hwcn.cuda",
            [*tensors([10, 10, 4, 2], [3, 3, 4, 8]), 1, 0, 1, "float32"],
            2 * 8 * 8 * 8 * 9 * 4,
        ),
        (
            "depthwise_conv2d_nchw.cuda",
            [*tensors([2, 6, 10, 10], [6, 2, 3, 3]), 1, 1, 1, "float32"],
            2 * 12 * 100 * 9,
        ),
        (
            "group_conv2d_nchw.cuda",
            [*tensors([1, 8, 10, 10], [16, 2, 3, 3]), 1, 1, 1, 4, "float32"],
            16 * 100 * 2 * 9,
        ),
        (
            "conv2d_transpose_nchw.cuda",
            [*tensors([1, 4, 5, 5], [4, 8, 4, 4]), [2, 2], [1, 1, 1, 1], "float32", [1, 0]],
            8 * 11 * 10 * 4 * 16,
        ),
        (
            "conv3d_ncdhw.cuda",
            [*tensors([1, 2, 6, 6, 6], [4, 2, 3, 3, 3]), 1, [1, 0, 0, 1, 0, 0], 1, "float32"],
            4 * 6 * 4 * 4 * 2 * 27,
        ),
        (
            "conv3d_ndhwc.cuda",
            [*tensors([1, 6, 6, 6, 2], [3, 3, 3, 2, 4]), 1, 0, 1, "float32"],
            4 * 64 * 2 * 27,
        ),
        (
            "conv1d_ncw.cuda",
            [*tensors([1, 3, 16], [5, 3, 3]), [1], [1, 1], [1], "float32"],
            5 * 16 * 3 * 3,
        ),
        ("conv1d_nwc.cuda", [*tensors([1, 16, 3], [3, 3, 5]), 1, 0, 1, "f"], 5 * 14 * 3 * 3),
        ("tvm_matmul_tune_op", [16, 256, 32], 16 * 256 * 32),
        (
            "tvm_conv2d_nchw_tune_op",
            [[1, 192, 13, 13], [384, 192, 3, 3], [1, 384, 13, 13], [1, 1], [1, 1], [1, 1]],
            384 * 169 * 192 * 9,
        ),
    ],
)
def test_arithmetic_of_templates(name: str, args: list[Any], multiply_adds: int) -> None:
    assert flop(Task("cuda", name, args, {})) == 2 * multiply_adds


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("softmax", tensors([1, 2])),
        ("dense.cuda", tensors([1, 3], [4, 5])),
        ("dense.cuda", tensors([1, 3])),
        ("dense.cuda", []),
        ("conv2d_nchw.cuda", tensors([1, 2, 3, 4], [1, 2, 1, 1])),
        ("conv2d_nchw.cuda", [*tensors([1, 2, 3, 4], [1, 2, 1, 1]), "a", "b", "c"]),
        ("conv2d_nchw.cuda", [*tensors([1, 2, 3, 4], [1, 2, 9, 9]), 1, 0, 1]),
        ("conv2d_nchw.cuda", [*tensors([1, 2, 3, 4], [1, 2, 1, 1]), 0, 0, 1]),
        ("conv2d_ncdhw.cuda", [*tensors([1, 2, 3, 4], [1, 2, 1, 1]), 1, 0, 1]),
        ("conv2d_direct.micro_dev", [*tensors([1, 2, 3, 4], [1, 2, 1, 1]), 1, 0, 1]),
        (
            "conv2d_nchw_winograd_without_weight_transform.cuda",
            [*tensors([1, 2, 8, 8], [6, 6, 2, 4]), 1, 1, 1],
        ),
        ("tvm_matmul_tune_op", [1, 2]),
    ],
)
def test_unknown_arithmetic_is_none(name: str, args: list[Any]) -> None:
    assert flop(Task("cuda", name, args, {})) is None


def test_a_table_is_standardised(tmp_path: Path) -> None:
    log = write(
        tmp_path / "log",
        line(["s", "sp", [-1, 2]], ["a", "an", ["vec"]]),
        b"",
        line(["s", "sp", [-1, 4]], ["a", "an", ["none"]]),
        line(["s", "sp", [-1, 9]], ["a", "an", ["vec"]], result=FAILED),
    )
    table = only(gen_features(log, tmp_path / "deep" / "out"))
    assert (table.rows, table.statistics_rows, table.unknown_flop_rows) == (3, 3, 0)
    found = meta(table)
    deviation = statistics.pstdev([2, 4, 9])
    assert found["sp_s_1"] == {
        "name": "sp_s_1", "kind": "numeric", "mean": 5.0, "std": pytest.approx(deviation),
    }  # fmt: skip
    assert found["sp_s_0"] == {"name": "sp_s_0", "kind": "numeric", "mean": -1.0, "std": 1.0}
    assert found["an_a"] == {"name": "an_a", "kind": "category", "values": ["none", "vec"]}
    assert found["attr_0"] == {"name": "attr_0", "kind": "category", "values": ["None"]}
    rows = cells(table)
    assert list(rows[0]) == [
        *(f"in_{index}" for index in range(6)),
        "attr_0", "attr_1", "sp_s_0", "sp_s_1", "an_a", "thrpt",
    ]  # fmt: skip
    assert [float(row["sp_s_1"]) for row in rows] == [
        pytest.approx((value - 5) / deviation) for value in (2, 4, 9)
    ]
    assert [row["an_a"] for row in rows] == ["1", "0", "1"]
    assert [float(row["thrpt"]) for row in rows] == [37.75, 37.75, 0.0]
    frame = pl.read_parquet(table.parquet)
    assert frame.columns == ["file", "line", *rows[0]]
    assert frame.select("file", "line").rows() == [("log", 1), ("log", 3), ("log", 4)]
    assert frame["sp_s_1"].to_list() == [float(row["sp_s_1"]) for row in rows]


def test_a_feature_that_some_rows_lack_is_a_category(tmp_path: Path) -> None:
    log = write(tmp_path / "log", line(["s", "ot", 3]), line())
    assert meta(only(gen_features(log, tmp_path / "out")))["ot_s"] == {
        "name": "ot_s", "kind": "category", "values": ["3", "None"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (["nan", "inf"], ["inf", "nan"]),
        ([True, False], ["false", "true"]),
        (["a,b", 'c"\n;d'], ["a,b", 'c"\n;d']),
        ([[1, 2], 3], ["3", "[1, 2]"]),
    ],
)
def test_categories_are_kept_whole(tmp_path: Path, values: list[Any], texts: list[str]) -> None:
    log = write(tmp_path / "log", *(line(["x", "ot", value]) for value in values))
    table = only(gen_features(log, tmp_path / "out"))
    assert meta(table)["ot_x"] == {"name": "ot_x", "kind": "category", "values": texts}
    assert sorted(row["ot_x"] for row in cells(table)) == ["0", "1"]


def test_numbers_as_text_are_numeric(tmp_path: Path) -> None:
    log = write(tmp_path / "log", line(["x", "ot", "16"]), line(["x", "ot", 2**70]))
    assert meta(only(gen_features(log, tmp_path / "out")))["ot_x"]["mean"] == 2.0**69 + 8


def test_targets_and_templates_never_share_a_table(tmp_path: Path) -> None:
    # Without spaces and with "-" for "=", the first three targets have the same name.
    targets = ["cuda -a=1", "cuda -a-1", "cuda-a=1", "llvm", "Llvm", "cuda -libs=a/b:c*"]
    names = ["dense.x", "a/../../evil", ".hidden", "Dense.x"]
    lines = [line(target=target, name=name) for target in targets for name in names]
    made = gen_features(write(tmp_path / "log", *lines), tmp_path / "out")
    assert len({table.csv for table in made.tables}) == len(lines)
    assert {(table.target, table.task_name, table.rows) for table in made.tables} == {
        (target, name, 1) for target in targets for name in names
    }
    folders = {table.csv.parent for table in made.tables}
    assert len({folder.name.lower() for folder in folders}) == len(targets)
    assert {folder.parent for folder in folders} == {tmp_path / "out"}


def test_a_rerun_changes_nothing(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    write(logs / "b.log", line(["s", "ot", 1]), line(target="cuda"))
    (logs / "a").mkdir()
    (logs / "a" / "z.log.gz").write_bytes(gzip.compress(line(["s", "ot", 5]) + b"\n"))
    write(logs / "notes.txt", b"not a log")
    made = gen_features(logs, tmp_path / "out")
    first = snapshot(tmp_path / "out")
    assert [path.name for path in made.skipped] == ["notes.txt"]
    assert len(first) == 6
    assert gen_features(logs, tmp_path / "out") == made
    assert snapshot(tmp_path / "out") == first
    frame = pl.read_parquet(made.tables[1].parquet)
    assert frame.select("file", "line").rows() == [("a/z.log.gz", 1), ("b.log", 1)]


def test_statistics_come_from_the_training_rows_only(tmp_path: Path) -> None:
    values: list[Any] = [1, 3, 1000, "odd"]
    modes = ["p", "q", "z", "p"]
    lines = [
        line(["x", "ot", value], ["m", "ot", mode])
        for value, mode in zip(values, modes, strict=True)
    ]
    log = write(tmp_path / "log", *lines)
    rows = [("log", 1), ("log", 2), ("log", 2), ("other", 3), ("log", 99)]
    table = only(gen_features(log, tmp_path / "out", statistics_rows=rows))
    assert (table.rows, table.statistics_rows) == (4, 2)
    assert meta(table)["ot_x"] == {"name": "ot_x", "kind": "numeric", "mean": 2.0, "std": 1.0}
    assert meta(table)["ot_m"]["values"] == ["p", "q"]
    frame = pl.read_parquet(table.parquet)
    assert frame["ot_x"].to_list() == [-1.0, 1.0, 998.0, None]
    assert frame["ot_m"].to_list() == [0, 1, -1, 0]


def test_a_table_without_training_rows_is_not_standardised(tmp_path: Path) -> None:
    log = write(tmp_path / "log", line(["x", "ot", 7]))
    table = only(gen_features(log, tmp_path / "out", statistics_rows=[]))
    assert table.statistics_rows == 0
    assert meta(table)["ot_x"] == {"name": "ot_x", "kind": "numeric", "mean": 0.0, "std": 1.0}
    assert pl.read_parquet(table.parquet)["ot_x"].to_list() == [7.0]


def test_failed_unknown_and_bare_tasks_have_tables(tmp_path: Path) -> None:
    log = write(
        tmp_path / "log",
        line(name="dense.failed", result=FAILED),
        line(name="unknown"),
        line(name="unknown", result=FAILED),
        line(name="bare", args=[]),
        b"{",
    )
    made = gen_features(log, tmp_path / "out")
    tables = {table.task_name: table for table in made.tables}
    assert [row["thrpt"] for row in cells(tables["dense.failed"])] == ["0.0"]
    assert [row["thrpt"] for row in cells(tables["unknown"])] == ["", "0.0"]
    assert tables["unknown"].unknown_flop_rows == 1
    assert json.loads(tables["unknown"].meta.read_bytes())["unknown_flop_rows"] == 1
    assert pl.read_parquet(tables["bare"].parquet).columns == ["file", "line", "thrpt"]
    assert [(reject.file, reject.line) for reject in made.rejects] == [("log", 5)]


def test_a_folder_without_autotvm_logs_is_an_error(tmp_path: Path) -> None:
    ansor = b'{"i": [["[\\"abc\\"]", "llvm"], [[], []]], "r": [[1], 0, 1, 1], "v": "v0.6"}'
    write(tmp_path / "logs" / "ansor.log", ansor)
    for logs in (tmp_path / "logs", tmp_path / "logs" / "ansor.log"):
        with pytest.raises(FeatureError, match="expected AutoTVM logs"):
            gen_features(logs, tmp_path / "out")
    with pytest.raises(RecordError, match="expected a log file"):
        gen_features(tmp_path / "none", tmp_path / "out")


def test_json_lines_of_a_log(tmp_path: Path) -> None:
    log = write(tmp_path / "log", line(["x", "ot", None]), b"bad", line(target="cuda"))
    found = extract_feature_from_file(log, tmp_path / "new" / "out", name="mine")
    assert [(reject.file, reject.line) for reject in found.rejects] == [("mine", 2)]
    path = found.files["llvm -mcpu=skylake", "dense_nopack.x86"]
    assert path.parent.name.startswith("llvm-mcpu-skylake-")
    assert path.name == "dense_nopack.x86.json"
    (row,) = [json.loads(text) for text in path.read_bytes().splitlines()]
    features = extract_feature(line(["x", "ot", None]))
    assert row == {"file": "mine", "line": 1, **features, "thrpt": 37.75}
    assert list(row)[-1] == "thrpt"
    assert len(snapshot(tmp_path / "new" / "out")) == 2


def test_json_lines_of_several_logs_and_reruns(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = write(tmp_path / "a", line(["x", "ot", 1]), line(["x", "ot", 2], target="cuda"))
    second = write(tmp_path / "b", line(["x", "ot", 3]))
    for log in (first, second, first, second):
        found = extract_feature_from_file(log, out)
    path = found.files["llvm -mcpu=skylake", "dense_nopack.x86"]
    assert sorted(json.loads(text)["ot_x"] for text in path.read_bytes().splitlines()) == [1, 3]
    write(first, line(["x", "ot", 9]))
    extract_feature_from_file(first, out)
    assert sorted(json.loads(text)["ot_x"] for text in path.read_bytes().splitlines()) == [3, 9]
    assert list(snapshot(out)) == [path.relative_to(out).as_posix()]


def test_features_of_a_real_log(tmp_path: Path) -> None:
    if not LOGS.is_dir():
        pytest.skip(f"the shared logs are not at {LOGS}")
    log = LOGS / "roller_k80_cuda/matmul/matmul_128_2048_1000.log.gz"
    table = only(gen_features(log, tmp_path))
    frame = pl.read_parquet(table.parquet)
    assert len(frame) == table.rows == 1000 - frame["file"].ne(log.name).sum()
    with gzip.open(log) as file:
        results = [json.loads(text)["result"] for text in file]
    expected = [
        0.0 if code else round(2 * 128 * 2048 * 1000 / costs[0] / 1e9, 2)
        for costs, code, *_ in results
    ]
    assert frame["thrpt"].to_list() == expected
    numeric = [entry["name"] for entry in meta(table).values() if entry["kind"] == "numeric"]
    for name in numeric:
        assert frame[name].mean() == pytest.approx(0.0, abs=1e-9)
        deviation = frame[name].std(ddof=0)
        assert deviation == pytest.approx(1.0) or math.isclose(deviation, 0.0)
