"""RFC 4304 logs: both versions as JSON and Parquet, the way between them, what cannot be read."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tencost.errors import RecordError
from tencost.records.formats.rfc4304 import Rfc4304Format, write_file, write_rows
from tencost.records.formats.rfc4304.names import (
    COLUMNS_FIELDS,
    JSON_FIELDS,
    METRICS,
    ORIGINAL,
    SOFTWARE,
    Version,
    same,
    to_columns,
    to_json,
)
from tencost.records.reading.opening import read_head
from tencost.records.reading.protocol import About, Reject
from tencost.store.schema import MEASUREMENT, SCHEMA, NetworkWeight, Record, Source, to_arrow
from tencost.store.status import Status

MAIL: dict[str, Any] = {
    "timestamp": 1572282699.6,
    "schema_version": "0.1",
    "additional_info": {"docker_tag": "ci:1", "docker_hash": "ab", "validation_accuracy": 48.5},
    "workload": "relay.resnet-18:0a1b",
    "workload_args": {"input_shape": [1, 3, 224, 224], "data_layout": "NCHW"},
    "engine": "tvm",
    "engine_version": "0.6:9f2e",
    "engine_config": {"llvm": "8", "accelerator": "MLAS"},
    "target": "llvm -mcpu=cascadelake",
    "build_config": {"opt_level": 3},
    "env_name": "rasp3b",
    "hw_model": "BCM2837",
    "runtime_config": {"num_cpu_threads": 3, "os": "ubuntu:18.04", "cuda_driver": "480"},
    "execution_config": {"number": 1, "repeat": 10, "min_repeat_ms": 0},
    "execution_elapsed_ms_mean": 12.452,
    "execution_elapsed_ms_std": 5.3,
}
"""A record of the columns version, every field of it."""

DOCS: dict[str, Any] = {
    "workload": "arcface_resnet100",
    "engine": "tvm",
    "hardware": "gcp-c2-standard-16",
    "runtime_ms_mean": 109.5,
    "runtime_ms_std": 0.5,
    "timestamp": "20191123003411",
    "schema_version": "0.1",
    "metadata": {"docker_tag": "ci-gpu:v0.53"},
    "workload_args": {"input_shape_dict": {"data": [1, 3, 112, 112]}},
    "workload_metadata": {"class": "vision", "opset": 8},
    "engine_version": "1.0.0",
    "engine_config": {"relay_opt_level": 3, "tvm_target": "llvm -mcpu=cascadelake"},
    "compilation_config": {"opt_level": 3},
    "software_config": {"os": "ubuntu:18.04", "pip": {"numpy": "1.17.4"}},
    "runtime_config": {},
    "hardware_config": {"cpu_platform": "Cascade Lake", "cpu_count": 16},
    "execution_config": {"number": 1, "repeat": 2},
    "metrics": {"accuracy": 0.5, "compilation_ms_mean": 12},
    "runtime_raw": [{"runtime_ms": 109.0, "core": 1}, {"runtime_ms": 110.0, "core": 2}],
}
"""A record of the json version, every field of it."""


def read(
    path: Path, hardware: str | None = None, batch: int = 100
) -> tuple[pa.Table, list[Reject]]:
    about = About("set", "log", hardware)
    batches = list(Rfc4304Format().read(path, about, batch))
    tables = [item.records for item in batches] or [SCHEMA.empty_table()]
    assert all(table.schema.equals(SCHEMA) for table in tables)
    return pa.concat_tables(tables), [reject for item in batches for reject in item.rejects]


def log(folder: Path, *records: Any) -> Path:
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def row(folder: Path, record: dict[str, Any], hardware: str | None = None) -> dict[str, Any]:
    table, rejects = read(log(folder, record), hardware)
    assert not rejects
    found: dict[str, Any] = table.to_pylist()[0]
    return found


def reason(folder: Path, record: Any, hardware: str | None = None) -> str:
    table, rejects = read(log(folder, record, DOCS), hardware)
    assert table.num_rows == 1
    assert [item.line for item in rejects] == [1]
    return rejects[0].reason


def without(record: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in names}


@pytest.mark.parametrize(
    "workload", ["topi", "topi.", "relay.conv2d:main", "relay:0a1b", "topi.dense:"]
)
def test_a_reserved_namespace_names_an_operator(workload: str, tmp_path: Path) -> None:
    """The mail reserves topi and relay for operators, with the git SHA of the operator behind a colon."""
    for record in (MAIL, DOCS):
        namespace = re.split("[.:]", workload)[0]
        assert reason(tmp_path, {**record, "workload": workload}) == (
            f"workload: expected {namespace}.<operator> or {namespace}.<operator>:<git SHA>, as the namespace is "
            f"reserved for TVM's operators, found {workload!r}"
        )


@pytest.mark.parametrize(
    "workload",
    ["topi.nn.dense", "relay.conv2d:996cf30e", "topical", "relay_net", "ai.onnx.relay:v1"],
)
def test_other_names_of_workloads_are_taken(workload: str, tmp_path: Path) -> None:
    assert row(tmp_path, {**MAIL, "workload": workload})["workload"] == workload


# The way between the versions.


def test_every_field_of_the_mail_has_its_place_in_the_docs_version() -> None:
    assert to_json(MAIL) == {
        "workload": "relay.resnet-18:0a1b",
        "engine": "tvm",
        "hardware": "rasp3b",
        "runtime_ms_mean": 12.452,
        "runtime_ms_std": 5.3,
        "timestamp": 1572282699.6,
        "schema_version": "0.1",
        "metadata": {"docker_tag": "ci:1", "docker_hash": "ab"},
        "workload_args": {"input_shape": [1, 3, 224, 224], "data_layout": "NCHW"},
        "engine_version": "0.6:9f2e",
        "engine_config": {
            "llvm": "8",
            "accelerator": "MLAS",
            "tvm_target": "llvm -mcpu=cascadelake",
        },
        "compilation_config": {"opt_level": 3},
        "software_config": {"os": "ubuntu:18.04", "cuda_driver": "480"},
        "runtime_config": {"num_cpu_threads": 3},
        "hardware_config": {"cpu_platform": "BCM2837"},
        "execution_config": {"number": 1, "repeat": 10, "min_repeat_ms": 0},
        "metrics": {"accuracy": 48.5},
    }


def test_every_field_of_the_docs_has_its_place_in_the_mails_version() -> None:
    assert to_columns(DOCS) == {
        "timestamp": "20191123003411",
        "schema_version": "0.1",
        "additional_info": {"docker_tag": "ci-gpu:v0.53", "validation_accuracy": 0.5},
        "workload": "arcface_resnet100",
        "workload_args": {"input_shape_dict": {"data": [1, 3, 112, 112]}},
        "engine": "tvm",
        "engine_version": "1.0.0",
        "engine_config": {"relay_opt_level": 3},
        "target": "llvm -mcpu=cascadelake",
        "build_config": {"opt_level": 3},
        "env_name": "gcp-c2-standard-16",
        "hw_model": "Cascade Lake",
        "runtime_config": {"os": "ubuntu:18.04"},
        "execution_config": {"number": 1, "repeat": 2},
        "execution_elapsed_ms_mean": 109.5,
        "execution_elapsed_ms_std": 0.5,
        "workload_metadata": {"class": "vision", "opset": 8},
        "software_config": {"pip": {"numpy": "1.17.4"}},
        "hardware_config": {"cpu_count": 16},
        "metrics": {"compilation_ms_mean": 12},
        "runtime_raw": [{"runtime_ms": 109.0, "core": 1}, {"runtime_ms": 110.0, "core": 2}],
    }


@pytest.mark.parametrize(
    ("record", "there", "back"), [(MAIL, to_json, to_columns), (DOCS, to_columns, to_json)]
)
def test_a_full_record_goes_there_and_back_by_names_alone(
    record: Any, there: Any, back: Any
) -> None:
    assert ORIGINAL not in there(record)
    assert same(back(there(record)), record)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [*METRICS, *METRICS.values(), *SOFTWARE, "tvm_target", "cpu_platform", "env_name"]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
ANY_RECORD = st.dictionaries(
    st.sampled_from([*COLUMNS_FIELDS, *JSON_FIELDS, "status", "$float"]) | st.text(max_size=3),
    VALUES,
    max_size=12,
)


@pytest.mark.parametrize(("there", "back"), [(to_json, to_columns), (to_columns, to_json)])
@given(record=ANY_RECORD)
def test_any_object_goes_there_and_back(record: dict[str, Any], there: Any, back: Any) -> None:
    assert same(back(there(record)), record)


# Rows.


def test_columns_of_the_mails_record(tmp_path: Path) -> None:
    found = row(tmp_path, MAIL)
    assert found["timestamp"] == 1572282699.6
    assert found["hardware"] == found["env_name"] == "rasp3b"
    assert found["hw_model"] == "BCM2837"
    assert found["workload"] == "relay.resnet-18:0a1b"
    assert found["task_name"] == "resnet-18"
    assert (found["engine"], found["engine_version"]) == ("tvm", "0.6:9f2e")
    assert json.loads(found["target"]) == {"kind": "llvm", "mcpu": "cascadelake"}
    for name in (
        "additional_info",
        "workload_args",
        "engine_config",
        "build_config",
        "execution_config",
    ):
        assert json.loads(found[name]) == MAIL[name]
    assert found["run_secs"] == [0.012452]
    assert found["execution_elapsed_ms_mean"] == pytest.approx(12.452)
    assert found["execution_elapsed_ms_std"] == pytest.approx(5.3)
    assert (found["program_format"], found["program"], found["status"], found["error"]) == (
        "none",
        "",
        "ok",
        None,
    )
    assert json.loads(found["foreign"])["run_secs"] == "mean"
    assert found["source"] == {"dataset": "set", "file": "log", "line": 1}
    assert found["networks"] == [{"network": "set", "weight": 1}]


def test_columns_of_the_docs_record(tmp_path: Path) -> None:
    found = row(tmp_path, DOCS)
    assert found["timestamp"] == 1574469251.0
    assert found["hardware"] == "gcp-c2-standard-16"
    assert found["hw_model"] == "Cascade Lake"
    assert found["run_secs"] == [0.109, 0.11]
    assert json.loads(found["runtime_config"]) == {"os": "ubuntu:18.04"}
    assert "run_secs" not in json.loads(found["foreign"])


def test_raw_times_are_seconds_in_run_secs_and_the_logs_own_mean_stays(tmp_path: Path) -> None:
    found = row(
        tmp_path, {**DOCS, "runtime_ms_mean": 5.0, "runtime_raw": [100.0, {"runtime_ms": 300}]}
    )
    assert found["run_secs"] == [0.1, 0.3]
    assert found["execution_elapsed_ms_mean"] == 5.0
    only_raw = row(
        tmp_path,
        {**without(DOCS, "runtime_ms_mean", "runtime_ms_std"), "runtime_raw": [100.0, 300.0]},
    )
    assert only_raw["execution_elapsed_ms_mean"] == 200.0
    assert only_raw["execution_elapsed_ms_std"] == pytest.approx(math.sqrt(20000))


@pytest.mark.parametrize(
    "change",
    [
        {"runtime_raw": [{"runtime_ms": 109.0}], "runtime_ms_std": 0.0},
        {"runtime_raw": [], "execution_config": {"repeat": 1}, "runtime_ms_std": 0.0},
        {"runtime_raw": [], "runtime_ms_std": None},
        {"runtime_raw": [], "runtime_ms_std": math.nan},
    ],
)
def test_deviation_of_a_single_or_unknown_run_is_null_and_written_as_it_was(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    record = {**DOCS, **change}
    table, _ = read(log(tmp_path, record))
    assert table["execution_elapsed_ms_std"].to_pylist() == [None]
    assert same(next(write_rows(table, "json")), record)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (1572282699.6, 1572282699.6),
        (1572282699, 1572282699.0),
        ("1572282699.6", 1572282699.6),
        ("20191123003411", 1574469251.0),
        (20191123003411, 1574469251.0),
        ("2019-11-23T00:34:11Z", 1574469251.0),
        ("2019-11-23 01:34:11+01:00", 1574469251.0),
    ],
)
def test_timestamps_as_number_or_text_come_back_as_they_were(
    tmp_path: Path, value: Any, seconds: float
) -> None:
    for record, version in ((MAIL, "columns"), (DOCS, "json")):
        table, _ = read(log(tmp_path, {**record, "timestamp": value}))
        assert table["timestamp"].to_pylist() == [seconds]
        assert same(next(write_rows(table, version))["timestamp"], value)  # type: ignore[arg-type]


def test_the_json_version_may_have_no_timestamp_and_the_columns_version_a_null(
    tmp_path: Path,
) -> None:
    assert row(tmp_path, without(DOCS, "timestamp"))["timestamp"] is None
    assert row(tmp_path, {**MAIL, "timestamp": None})["timestamp"] is None


@pytest.mark.parametrize(
    ("change", "status", "error"),
    [
        ({"runtime_ms_mean": None}, "unknown", "no time"),
        ({"runtime_ms_mean": math.nan}, "unknown", "not finite"),
        ({"runtime_ms_mean": math.inf}, "unknown", "not finite"),
        ({"runtime_ms_mean": 0.0}, "unknown", "not positive"),
        ({"runtime_ms_mean": -1}, "unknown", "not positive"),
        ({"runtime_ms_mean": 1e10}, "unknown", "marks a failure"),
        ({"runtime_raw": [{"runtime_ms": 1.0}, {"runtime_ms": None}]}, "unknown", "null"),
        ({"runtime_raw": [{"runtime_ms": 1.0}, {}]}, "unknown", "null"),
        ({"runtime_raw": [{"runtime_ms": 1.0}, {"runtime_ms": math.nan}]}, "unknown", "not finite"),
        ({"status": "run_timeout", "error": "30 s"}, "run_timeout", "30 s"),
        ({"status": "FAILED"}, "unknown", "FAILED"),
        ({"status": 3}, "unknown", "3"),
        ({"error": "out of memory"}, "unknown", "out of memory"),
        ({"status": "ok", "runtime_ms_mean": None}, "unknown", "no time"),
    ],
)
def test_failed_runs_have_a_status_and_no_number(
    tmp_path: Path, change: dict[str, Any], status: str, error: str
) -> None:
    record = {**without(DOCS, "runtime_raw"), **change}
    table, rejects = read(log(tmp_path, record))
    assert not rejects
    found = table.to_pylist()[0]
    assert found["status"] == status
    assert error in found["error"]
    for name in ("run_secs", "execution_elapsed_ms_mean", "execution_elapsed_ms_std"):
        assert found[name] is None
    assert same(next(write_rows(table, "json")), record)


def test_a_record_without_any_time_is_a_failed_run(tmp_path: Path) -> None:
    assert (
        row(tmp_path, without(DOCS, "runtime_raw", "runtime_ms_mean", "runtime_ms_std"))["status"]
        == "unknown"
    )


def test_another_schema_version_is_kept_and_noted(tmp_path: Path) -> None:
    record = {**MAIL, "schema_version": "0.3"}
    table, rejects = read(log(tmp_path, record))
    assert not rejects
    assert json.loads(table["additional_info"][0].as_py())["rfc4304_schema_version"] == "0.3"
    assert same(next(write_rows(table, "columns")), record)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (without(MAIL, "timestamp"), "timestamp: missing"),
        (without(MAIL, "schema_version"), "schema_version: missing"),
        (without(MAIL, "workload"), "workload: missing"),
        (without(MAIL, "engine"), "engine: missing"),
        (without(MAIL, "env_name", "hw_model"), "hardware: missing"),
        (without(DOCS, "hardware"), "hardware: missing"),
        (without(DOCS, "engine"), "engine: missing"),
        ({**DOCS, "workload": 3}, "workload: expected a text, found 3"),
        ({**DOCS, "engine": " "}, "engine: expected a text"),
        ({**DOCS, "timestamp": "yesterday"}, "timestamp: expected seconds"),
        ({**DOCS, "timestamp": True}, "timestamp: expected seconds"),
        ({**DOCS, "timestamp": math.nan}, "timestamp: expected seconds"),
        ({**DOCS, "timestamp": [1]}, "timestamp: expected seconds"),
        ({**MAIL, "target": '{"kind": "llvm", "x": 1e999}'}, "Out of range float values"),
        (
            {**without(DOCS, "runtime_raw"), "runtime_ms_mean": "12"},
            "runtime_ms_mean: expected milliseconds",
        ),
        (
            {**MAIL, "execution_elapsed_ms_mean": []},
            "execution_elapsed_ms_mean: expected milliseconds",
        ),
        ({**DOCS, "runtime_raw": {}}, "runtime_raw: expected a list"),
        (
            {**DOCS, "runtime_raw": [{"runtime_ms": 1}, "x"]},
            "runtime_raw[1]: expected milliseconds",
        ),
        ({**MAIL, "target": "-mcpu=x"}, "target: expected a target"),
        (
            {**DOCS, "engine_config": {"tvm_target": 5}},
            "engine_config.tvm_target: expected a target",
        ),
        ({**DOCS, "workload": "\ud800"}, "workload: not Unicode"),
        (3, "expected an object"),
    ],
)
def test_rejects_name_the_field(tmp_path: Path, record: Any, said: str) -> None:
    assert reason(tmp_path, record).startswith(said)


def test_the_logs_device_comes_before_the_one_told(tmp_path: Path) -> None:
    assert row(tmp_path, DOCS, "v100")["hardware"] == "gcp-c2-standard-16"
    assert row(tmp_path, without(MAIL, "env_name"), "v100")["hardware"] == "BCM2837"
    assert row(tmp_path, without(MAIL, "env_name", "hw_model"), "v100")["hardware"] == "v100"


def test_a_log_in_which_no_record_names_its_device_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="hardware=<name>"):
        read(log(tmp_path, without(DOCS, "hardware"), {"workload": 3}))


def test_same_record_has_the_same_id_in_both_versions(tmp_path: Path) -> None:
    for record in (MAIL, to_columns(DOCS)):
        one, other = row(tmp_path, record), row(tmp_path, to_json(record))
        for name in ("record_id", "program_id", "workload_id", "hardware", "run_secs", "target"):
            assert one[name] == other[name]


@pytest.mark.parametrize(
    "change",
    [
        {"engine": "onnx-runtime"},
        {"engine_version": "2"},
        {"env_name": "rasp4b"},
        {"target": "llvm -mcpu=haswell"},
        {"timestamp": 1572282700.6},
        {"runtime_config": {"num_cpu_threads": 1}},
        {"build_config": {"opt_level": 2}},
        {"engine_config": {}},
        {"workload": "relay.resnet-50"},
        {"workload_args": {"input_shape": [8, 3, 224, 224]}},
    ],
)
def test_record_id_tells_measurements_apart(tmp_path: Path, change: dict[str, Any]) -> None:
    one, other = row(tmp_path, MAIL), row(tmp_path, {**MAIL, **change})
    assert one["record_id"] != other["record_id"]
    assert (one["workload_id"] == other["workload_id"]) == (
        not change.keys() & {"workload", "workload_args"}
    )


# There and back.

ODD: list[dict[str, Any]] = [
    {"$float": 1, "x": {"$float": "nan"}, "y": [math.nan, -math.inf, {"$float": math.inf}]},
    {
        "engine_config": 5,
        "additional_info": "free text",
        "build_config": None,
        "runtime_config": [],
    },
    {"additional_info": '{"docker_tag": "as text"}', "workload_args": [1, {"new": None}]},
    {"hw_model": "same", "env_name": "same"},
    {"hw_model": None, "engine_version": 1.5},
    {
        "hardware": "a",
        "metadata": 3,
        "engine_config": {"tvm_target": "b", "unknown": {"deep": [1]}},
    },
    {"execution_elapsed_ms_mean": 12, "execution_elapsed_ms_std": 0.1 + 0.2, "status": "success"},
    {"execution_elapsed_ms_mean": 1e-5, "runtime_raw": [{"runtime_ms": 0.1234567, "cpu": 3}]},
    {"target": {"kind": "cuda", "arch": "sm_70"}, "additional_info": {"x": math.nan}},
    {"schema_version": 0.1, "execution_elapsed_ms_mean": 10**400},
    {"workload_args": {"ü": "🙂 \u2028"}},
]


def records_of(version: Version) -> list[dict[str, Any]]:
    base = MAIL if version == "columns" else DOCS
    found = [base, *({**MAIL, **change} for change in ODD)]
    return found if version == "columns" else [DOCS, *(to_json(record) for record in found)]


@pytest.mark.parametrize("version", ["columns", "json"])
@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
def test_files_come_back_as_they_were(tmp_path: Path, version: Version, suffix: str) -> None:
    records = records_of(version)
    table, rejects = read(log(tmp_path, *records))
    assert not rejects
    assert all(same(*pair) for pair in zip(write_rows(table, version), records, strict=True))
    path = tmp_path / f"again.{suffix}"
    assert write_file(table, path, version) == len(records)
    assert Rfc4304Format().recognizes(path, read_head(path))
    again, rejects = read(path, batch=5)
    assert not rejects
    if suffix != "parquet":
        assert all(same(*pair) for pair in zip(write_rows(again, version), records, strict=True))
    names = [name for name in SCHEMA.names if name not in ("source", "foreign")]
    assert again.select(names).equals(table.select(names))


@pytest.mark.parametrize("version", ["columns", "json"])
def test_parquet_loses_nothing_but_the_nulls_of_scalar_fields(
    tmp_path: Path, version: Version
) -> None:
    records = records_of(version)
    write_file(read(log(tmp_path, *records))[0], tmp_path / "a.parquet", version)
    found = list(write_rows(read(tmp_path / "a.parquet")[0], version))
    for one, other in zip(found, records, strict=True):
        lost = other.keys() - one.keys()
        assert lost <= {"hw_model"}
        assert all(other[name] is None for name in lost)
        assert same(one, {key: value for key, value in other.items() if key not in lost})


def test_parquet_has_columns_of_the_fields_types(tmp_path: Path) -> None:
    write_file(read(log(tmp_path, MAIL))[0], tmp_path / "a.parquet", "columns")
    schema = pq.read_schema(tmp_path / "a.parquet")
    assert schema.names == list(COLUMNS_FIELDS)
    assert (
        schema.field("timestamp").type
        == schema.field("execution_elapsed_ms_mean").type
        == pa.float64()
    )
    assert schema.field("workload").type == pa.string()
    text = pq.read_table(tmp_path / "a.parquet")["engine_config"][0].as_py()
    assert json.loads(text) == MAIL["engine_config"]


def test_parquet_of_other_writers(tmp_path: Path) -> None:
    columns = {
        **{
            key: [value]
            for key, value in DOCS.items()
            if key not in ("timestamp", "metadata", "runtime_raw")
        },
        "timestamp": pa.array([1574469251000], pa.timestamp("ms")),
        "metadata": ['{"docker_tag": "text"}'],
        "engine_config": [{"tvm_target": "cuda", "nvcc": None}],
        "runtime_config": pa.nulls(1, pa.string()),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    table, rejects = read(tmp_path / "a.parquet")
    assert not rejects
    found = table.to_pylist()[0]
    assert found["timestamp"] == 1574469251.0
    assert json.loads(found["target"]) == {"kind": "cuda"}
    assert json.loads(found["additional_info"])["docker_tag"] == "text"
    assert found["engine_config"] is None


@pytest.mark.parametrize(
    ("record", "read_as", "other"), [(MAIL, "columns", "json"), (DOCS, "json", "columns")]
)
def test_a_stored_record_is_written_in_the_other_version(
    tmp_path: Path, record: dict[str, Any], read_as: Version, other: Version
) -> None:
    table, _ = read(log(tmp_path, {**record, "new": {"key": [1]}}))
    renamed = next(write_rows(table, other))
    assert renamed["new"] == {"key": [1]}
    back, _ = read(log(tmp_path, renamed))
    assert same(next(write_rows(back, read_as)), {**record, "new": {"key": [1]}})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([MAIL, DOCS]), ANY_RECORD)
def test_whatever_is_kept_is_written_as_it_was(
    tmp_path: Path, base: dict[str, Any], change: dict[str, Any]
) -> None:
    record = {**base, **change}
    table, rejects = read(log(tmp_path, record), "told")
    assert table.num_rows + len(rejects) == 1
    if table.num_rows:
        version = json.loads(table["foreign"][0].as_py())["version"]
        assert same(next(write_rows(table, version)), record)


def native(run_secs: tuple[float, ...] = (0.5, 1.5)) -> pa.Table:
    failed = not run_secs
    return to_arrow(
        [
            Record(
                record_id="r",
                program_id="p",
                workload_id="w",
                task_name="matmul",
                networks=(NetworkWeight("net", 1),),
                hardware="xeon",
                target={"kind": "llvm", "mcpu": "skylake-avx512"},
                program_format="metaschedule_trace",
                program="[[],[]]",
                run_secs=run_secs,
                status=Status.build_error if failed else Status.ok,
                error="no such intrinsic" if failed else "",
                source=Source("set", "file", 1),
            )
        ]
    )


def test_rows_of_other_formats_are_written_as_both_versions(tmp_path: Path) -> None:
    record = next(write_rows(native(), "json"))
    assert record["hardware"] == "xeon"
    assert record["runtime_ms_mean"] == 1000.0
    assert record["runtime_raw"] == [{"runtime_ms": 500.0}, {"runtime_ms": 1500.0}]
    assert json.loads(record["engine_config"]["tvm_target"])["mcpu"] == "skylake-avx512"
    frame = pl.from_arrow(native())
    assert isinstance(frame, pl.DataFrame)
    version: Version
    for version in ("columns", "json"):
        for suffix in ("jsonl", "json", "parquet"):
            assert write_file(frame, tmp_path / f"log.{suffix}", version) == 1
            table, rejects = read(tmp_path / f"log.{suffix}")
            assert not rejects
            found = table.to_pylist()[0]
            assert (found["hardware"], found["run_secs"]) == ("xeon", [0.5, 1.5])
            assert found["timestamp"] is None


def test_single_and_failed_rows_of_other_formats() -> None:
    assert next(write_rows(native((0.5,)), "columns"))["execution_elapsed_ms_std"] is None
    failed = next(write_rows(native(()), "columns"))
    assert (failed["status"], failed["error"]) == ("build_error", "no such intrinsic")
    assert "execution_elapsed_ms_mean" not in failed


def test_a_file_name_that_says_no_format(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"\.jsonl, \.json or \.parquet"):
        write_file(native(), tmp_path / "a.txt", "json")


# Files.


def shapes(folder: Path) -> Iterator[Path]:
    records = [DOCS, {**MAIL, "note": 'a ] } [ { \\ " , \n'}, {**DOCS, "engine": "other"}]
    texts = {
        "lines": "\n\n".join(map(json.dumps, records)),
        "array": json.dumps(records),
        "pretty": json.dumps(records, indent=2),
        "flat": json.dumps(records, indent=0),
        "a line each": "[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n",
        "many objects": "\n".join(json.dumps(record, indent=1) for record in records),
        "marked": "\ufeff" + json.dumps(records),
    }
    for name, text in texts.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        yield path


def test_all_shapes_of_a_file_are_read_alike(tmp_path: Path) -> None:
    for path in shapes(tmp_path):
        assert Rfc4304Format().recognizes(path, read_head(path)), path.name
        table, rejects = read(path)
        assert not rejects, path.name
        assert table["engine"].to_pylist() == ["tvm", "tvm", "other"], path.name
    (tmp_path / "one").write_text(json.dumps(DOCS, indent=4))
    assert read(tmp_path / "one")[0].num_rows == 1


def test_objects_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (1, 7, 64):
        monkeypatch.setattr("tencost.records.reading.jsonobjects.CHUNK_BYTES", size)
        for path in shapes(tmp_path):
            table, rejects = read(path)
            assert (table.num_rows, rejects) == (3, []), path.name


def test_bad_lines_cost_nobody_else(tmp_path: Path) -> None:
    good = json.dumps(DOCS)
    bad = [
        '{"workload": "cut',
        good[: len(good) // 2],
        "garbage",
        "[1,2]",
        "{]",
        '{"a":[1,',
        "\x00",
        good + "}",
    ]
    path = tmp_path / "log"
    path.write_text("\n".join([line for item in bad for line in (good, item)] + [good]))
    table, rejects = read(path)
    kept = table["source"].to_pylist()
    assert [item["line"] for item in kept] == [1, 3, 5, 7, 9, 11, 13, 15, 16, 17]
    assert [item.line for item in rejects] == [2, 4, 6, 8, 10, 12, 14, 16]


def test_bad_elements_of_an_array_cost_nobody_else(tmp_path: Path) -> None:
    good = json.dumps(DOCS)
    for bad in (
        '{"workload": nul, "runtime_raw": [{"runtime_ms": 1}, {"runtime_ms": 2}]}',
        "3",
        "null",
        '"text"',
    ):
        (tmp_path / "one line").write_text(f"[{good}, {bad}, {good}]")
        table, rejects = read(tmp_path / "one line")
        assert (table.num_rows, len(rejects)) == (2, 1), bad
    pretty = json.dumps([DOCS, DOCS, DOCS], indent=2)
    broken = pretty.replace('"hardware": "gcp', '"hardware: "gcp', 1)
    (tmp_path / "pretty").write_text(broken)
    table, rejects = read(tmp_path / "pretty")
    assert (table.num_rows, [item.line for item in rejects]) == (2, [2])


def test_truncated_gzip_keeps_what_came_before(tmp_path: Path) -> None:
    lines = "".join(json.dumps({**DOCS, "timestamp": number}) + "\n" for number in range(3000))
    data = gzip.compress(lines.encode(), mtime=0)
    (tmp_path / "log.gz").write_bytes(data)
    assert read(tmp_path / "log.gz")[0].num_rows == 3000
    (tmp_path / "log.gz").write_bytes(data[: len(data) // 2])
    table, rejects = read(tmp_path / "log.gz")
    assert 1000 < table.num_rows < 3000
    assert [item.line for item in rejects] == [table.num_rows + 1]
    assert "ends early" in rejects[0].reason


def test_a_truncated_array_on_one_line_keeps_what_came_before(tmp_path: Path) -> None:
    data = gzip.compress(json.dumps([{**DOCS, "timestamp": n} for n in range(3000)]).encode())
    (tmp_path / "log.gz").write_bytes(data[: len(data) // 2])
    table, rejects = read(tmp_path / "log.gz")
    assert 1000 < table.num_rows < 3000
    assert [item.line for item in rejects] == [1]


def test_deep_nesting_is_a_reject(tmp_path: Path) -> None:
    deep = "[" * 100_000
    (tmp_path / "log").write_text(f'{{"workload": {deep}\n{json.dumps(DOCS)}\n')
    table, rejects = read(tmp_path / "log")
    assert (table.num_rows, len(rejects)) == (1, 1)
    nested: Any = []
    for _ in range(400):
        nested = {"a": [nested]}
    assert reason(tmp_path, {**DOCS, "new": nested}) == "JSON nested too deeply"


def test_batches_hold_no_more_rows_than_asked(tmp_path: Path) -> None:
    path = log(tmp_path, *[DOCS] * 7, 3)
    sizes = [
        item.records.num_rows + len(item.rejects)
        for item in Rfc4304Format().read(path, About("set", "log", None), 3)
    ]
    assert sizes == [3, 3, 2]


def test_damaged_parquet_is_a_reject(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    table, rejects = read(tmp_path / "a.parquet")
    assert (table.num_rows, rejects[0].line) == (0, 0)
    assert "Parquet" in rejects[0].reason


@pytest.mark.parametrize(
    "text",
    [
        '{"i": [["[\\"matmul\\"]", "cuda"], [[], []]], "r": [[1.0], 0, 1.0, 1], "v": "v0.6"}',
        '{"input": ["cuda", "conv2d", [], {}], "config": {}, "result": [[1.0], 0, 1, 2], "version": 0.2}',
        '["123", "AAAA"]',
        "record_id,workload,engine,hardware\n",
        '{"session": "a", "engine_version": "0.27", "hardware": "x"}',
        "",
    ],
)
def test_other_logs_are_not_taken_for_ours(tmp_path: Path, text: str) -> None:
    assert not Rfc4304Format().recognizes(tmp_path / "log", text.encode())


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None
)
@given(st.data())
def test_mutated_logs_neither_crash_nor_invent(tmp_path: Path, data: st.DataObject) -> None:
    ours = next(write_rows(native(), "json"))
    text = "\n".join(json.dumps(record) for record in (MAIL, DOCS, ours, MAIL))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 20)))
        text = text[:start] + data.draw(st.text('{}[],":\n\\01eNa\ud800é', max_size=5)) + text[end:]
    path = tmp_path / "log"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    table, rejects = read(path, "told")
    assert table.num_rows <= text.count('"engine"') + text.count("engine")
    assert table.num_rows + len(rejects) > 0
    assert len(list(write_rows(table, "json"))) == table.num_rows


def test_what_our_key_says_is_believed_only_where_the_record_agrees(tmp_path: Path) -> None:
    """A program's id under other times, a damaged member: the key is one like any other then."""
    ours = next(write_rows(native(), "columns"))
    for change in (
        {"run_secs": [0.5, 9.5]},
        {"run_secs": None},
        {"record_id": ""},
        {"program": "[["},
        {"networks": [{"network": "\ud800", "weight": 1}]},
        {"measurements": [{"status": "ok"}]},
        {"timestamp": 5.0},
        {"more": 1},
    ):
        log = tmp_path / "log.jsonl"
        log.write_text(json.dumps(ours | {"tencost": ours["tencost"] | change}))
        table, rejects = read(log)
        assert not rejects
        (row,) = table.to_pylist()
        assert row["record_id"] != "r"
        assert (row["program_format"], row["run_secs"]) == ("none", [0.5, 1.5])
        assert next(write_rows(table, "columns"))["tencost"] == ours["tencost"] | change
    log.write_text(json.dumps(ours))
    assert read(log)[0].to_pylist()[0]["record_id"] == "r"


@pytest.mark.parametrize("version", ["columns", "json"])
def test_a_record_without_a_target_comes_back_after_it_was_measured_again(
    tmp_path: Path, version: Version
) -> None:
    """Such a row is written from its columns, and `{}` is no target that is read."""
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(without(MAIL, "target")))
    (row,) = read(log)[0].to_pylist()
    row["measurements"] = [{field.name: row.get(field.name) for field in MEASUREMENT}]
    table = pa.Table.from_pylist([row], schema=SCHEMA)
    again = tmp_path / "again.jsonl"
    assert write_file(table, again, version) == 1
    found, rejects = read(again)
    assert not rejects
    assert found.to_pylist()[0]["record_id"] == row["record_id"]
