"""T4 results in all shapes that writers give them; the contract of all formats is in tests/contract."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tencost.errors import RecordError
from tencost.records import query
from tencost.records.formats.t4 import FORMAT, UNITS
from tencost.records.formats.t4.writing import document_of
from tencost.records.formats.table import write_file
from tencost.records.logs import find_logs, import_logs, recognize
from tencost.records.reading.protocol import About, Reject
from tencost.store.ids import record_id
from tencost.store.record_store import RecordStore

REAL = (Path(__file__).resolve().parents[3] / "../shared/data/kerneltuner").resolve()


def result(tile: int, **changes: Any) -> dict[str, Any]:
    return {
        "timestamp": "2023-12-22 09:54:05.5+00:00",
        "configuration": {"tile": tile, "layout": "NHWC", "pad": True},
        "times": {"compilation": 918.5, "runtimes": [2.0 * tile, 2.5 * tile]},
        "invalidity": "correct",
        "correctness": 1,
        "measurements": [{"name": "time", "value": 2.25 * tile, "unit": ""}],
        **changes,
    }


def read(path: Path, hardware: str = "a100") -> tuple[list[dict[str, Any]], list[Reject]]:
    batches = list(FORMAT.read(path, About("set", path.name, hardware)))
    rows = [row for batch in batches for row in batch.records.to_pylist()]
    return rows, [reject for batch in batches for reject in batch.rejects]


def written(folder: Path, content: Any, name: str = "blur_A100_T4.json") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def document(*results: Any, unit: str = "miliseconds") -> dict[str, Any]:
    return {"metadata": {"timeunit": unit}, "results": results, "schema_version": "1.0.0"}


def test_a_result_becomes_a_record(tmp_path: Path) -> None:
    (row,), rejects = read(written(tmp_path, document(result(2, extra={"kept": [1]}))))
    assert rejects == []
    assert row["run_secs"] == [0.004, 0.005]
    assert row["execution_elapsed_ms_mean"] == 4.5
    assert (row["status"], row["error"], row["timestamp"]) == ("ok", None, 1703238845.5)
    assert (row["hardware"], row["workload"], row["task_name"]) == ("a100", "t4.blur", "blur")
    assert json.loads(row["program"]) == {"tile": 2, "layout": "NHWC", "pad": True}
    assert row["program_format"] == "configuration"
    assert row["record_id"] == record_id(row["program_id"], {}, "a100"), "as renaming needs it"
    foreign = json.loads(row["foreign"])["result"]
    assert foreign["extra"] == {"kept": [1]}
    assert foreign["times"] == {"compilation": 918.5}


def test_all_shapes_of_a_file_hold_the_same_records(tmp_path: Path) -> None:
    results = [result(tile) for tile in range(1, 6)]
    whole = document(*results)
    last = {"results": results, "schema_version": "1.0.0", "metadata": whole["metadata"]}
    member = {"made_by": {"name": "a tuner"}, **last}
    shapes = {
        "one line": json.dumps(whole),
        "indented": json.dumps(whole, indent=2),
        "metadata last": json.dumps(last),
        "metadata last, indented": json.dumps(last, indent=4),
        "a line each": json.dumps(whole["metadata"]) + "\n" + "\n".join(map(json.dumps, results)),
        "an unknown member": json.dumps(member),
        "an unknown member, indented": json.dumps(member, indent=1),
    }
    expected, _ = read(written(tmp_path, whole))
    for shape, text in shapes.items():
        path = written(tmp_path, text)
        assert recognize(path, path.name) == ("t4", ""), shape
        rows, rejects = read(path)
        is_clean = "unknown" not in shape and shape != "a line each"
        assert len(rejects) == (0 if is_clean else 1), (shape, rejects)
        for row in (*rows, *expected):
            row["source"] = None
        assert rows == expected, shape


def test_a_large_file_is_read_in_parts(tmp_path: Path) -> None:
    """More than a window of json_objects holds, with the metadata where windows begin and end."""
    for number in range(2800, 2806):
        text = json.dumps({"results": [result(tile) for tile in range(1, number)]}, indent=2)
        text = text[:-2] + ',\n  "metadata": {\n    "timeunit": "ms"\n  }\n}\n'
        rows, rejects = read(written(tmp_path, text))
        assert (len(rows), rejects) == (number - 1, [])
        assert rows[-1]["run_secs"][0] == pytest.approx(2e-3 * (number - 1))


@pytest.mark.parametrize(("unit", "per_second"), UNITS.items())
def test_times_are_converted_to_seconds(unit: str, per_second: float, tmp_path: Path) -> None:
    (row,), _ = read(written(tmp_path, document(result(4), unit=unit.title())))
    assert row["run_secs"] == [8 / per_second, 10 / per_second]


def test_without_metadata_the_measurement_says_the_unit(tmp_path: Path) -> None:
    """Kernel Tuner's own files have none."""
    measured = [
        {"name": "GFLOP/s", "value": 9, "unit": ""},
        {"name": "time", "value": 3, "unit": "ms"},
    ]
    raw, mean, none = result(1, measurements=measured), result(2, measurements=measured), result(3)
    del mean["times"]["runtimes"]
    rows, rejects = read(
        written(tmp_path, {"results": [raw, mean, none], "schema_version": "1.0.0"})
    )
    assert [row["run_secs"] for row in rows] == [[0.002, 0.0025], [0.003]]
    assert [reject.reason[:35] for reject in rejects] == ["expected metadata.timeunit, one of "]
    rows, rejects = read(written(tmp_path, document(raw, unit="fortnights")))
    assert rows == []
    assert "found 'fortnights'" in rejects[0].reason


@pytest.mark.parametrize(
    ("changes", "status", "error"),
    [
        ({"invalidity": "compile"}, "build_error", "compile"),
        ({"invalidity": "runtime"}, "run_error", "runtime"),
        ({"invalidity": "timeout"}, "run_timeout", "timeout"),
        ({"invalidity": "correctness"}, "wrong_answer", "correctness"),
        ({"invalidity": "constraints"}, "invalid_schedule", "constraints"),
        ({"invalidity": "max_threads"}, "unknown", "max_threads"),
        ({"correctness": 0}, "wrong_answer", "correctness is 0"),
        ({"times": {"runtimes": [1e10]}}, "unknown", "the log marks a failure: 1e+10 s"),
        ({"times": {"runtimes": [0.0]}}, "unknown", "a time is not positive: 0 s"),
        ({"times": {"runtimes": [1.0, None]}}, "unknown", "not a list of times: [1.0, None]"),
        ({"times": {}, "measurements": []}, "unknown", "not a list of times: [None]"),
        (
            {"invalidity": "compile", "measurements": [{"name": "time", "value": "CompilationFailedConfig"}]},
            "build_error",
            "CompilationFailedConfig",
        ),
    ],
)  # fmt: skip
def test_a_failure_is_a_status(
    changes: dict[str, Any], status: str, error: str, tmp_path: Path
) -> None:
    changed = {"measurements": [], **changes}
    (row,), _ = read(written(tmp_path, document(result(1, **changed))))
    assert (row["status"], row["error"], row["run_secs"]) == (status, error, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"configuration": {}}, {"configuration": [1]}, {"configuration": {"tile": float("nan")}},
        {"configuration": {"tile": "\ud800"}}, {"invalidity": ["correct"]}, {"times": [1]},
        {"timestamp": "yesterday"}, {"measurements": [7]},
    ],
)  # fmt: skip
def test_a_result_that_is_none_is_a_reject_and_costs_no_other(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    path = written(
        tmp_path, json.dumps(document(result(1), result(2, **changes), result(3)), indent=1)
    )
    rows, rejects = read(path)
    assert [json.loads(row["program"])["tile"] for row in rows] == [1, 3]
    assert len(rejects) == 1
    missing = result(2)
    del missing["invalidity"]
    rows, rejects = read(written(tmp_path, document(result(1), missing)))
    assert (len(rows), len(rejects)) == (1, 1)
    assert "KeyError: 'invalidity'" in rejects[0].reason


@pytest.mark.parametrize("indent", [None, 2])
def test_a_damaged_result_costs_itself(indent: int | None, tmp_path: Path) -> None:
    """Each character of the second of four results is made another one."""
    texts = [json.dumps(result(tile), indent=indent) for tile in range(1, 5)]
    head, tail = '{"metadata": {"timeunit": "ms"}, "results": [\n', '], "schema_version": "1.0.0"}'
    good, _ = read(written(tmp_path, head + ",\n".join(texts) + tail))
    ids = [row["record_id"] for row in good]
    for position in range(0, len(texts[1]), 1 if indent is None else 5):
        damaged = f"{texts[1][:position]}\x01{texts[1][position + 1 :]}"
        text = head + ",\n".join([texts[0], damaged, *texts[2:]]) + tail
        rows, rejects = read(written(tmp_path, text))
        rest = [row["record_id"] for row in rows if row["record_id"] in ids]
        assert rest == [ids[0], *ids[2:]] or rest == ids, position
        assert rejects or len(rows) == 4, position


def test_a_description_beside_it_names_the_kernel(tmp_path: Path) -> None:
    parameters = [{"Name": name} for name in ("tile", "layout", "pad")]
    space = {
        "General": {"BenchmarkName": "gaussian"},
        "ConfigurationSpace": {"TuningParameters": parameters},
        "KernelSpecification": {"Language": "OpenCL", "ProblemSize": [4096, 4096]},
    }
    other = {**space, "ConfigurationSpace": {"TuningParameters": parameters[:1]}}
    content = document(result(1))
    first = written(tmp_path, content)
    assert read(first)[0][0]["task_name"] == "blur"
    written(tmp_path, other, "other_T1.json")
    assert read(first)[0][0]["task_name"] == "blur"
    described = written(tmp_path, space, "blur_T1.json")
    assert recognize(described, described.name)[1].endswith("(T1), read with its records")
    second = written(tmp_path, content, "blur_A4000_T4.json")
    rows = [read(first)[0][0], read(second, "a4000")[0][0]]
    for row in rows:
        assert (row["task_name"], row["workload_args"]) == ("gaussian", "[4096, 4096]")
        assert json.loads(row["target"]) == {"kind": "opencl"}
    assert rows[0]["program_id"] == rows[1]["program_id"]
    assert rows[0]["record_id"] != rows[1]["record_id"]
    written(tmp_path, '{"TuningParameters": ', "blur_T1.json")
    with pytest.raises(RecordError, match=r"a T1 description in blur_T1.json.*away from blur_A100"):
        read(first)


def test_another_version_is_refused(tmp_path: Path) -> None:
    last = {**document(result(1)), "schema_version": "2.0.0"}
    for number, content in enumerate((last, dict(reversed(last.items())))):
        with pytest.raises(RecordError, match=r"schema_version 1, found .?2\.0\.0"):
            read(written(tmp_path / str(number), content))
    del last["schema_version"]
    assert len(read(written(tmp_path, last))[0]) == 1, "Kernel Tuner once wrote none"


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    """Fields, words and texts as they were; times to the bit when they are read again; one device, one unit."""
    mean = result(3, measurements=[{"name": "time", "value": 1 / 3, "unit": "s"}], extra=[1e400])
    del mean["times"]["runtimes"]
    source = document(result(1), mean, result(7, invalidity="runtime", times={"compilation": 1}))
    store = RecordStore(str(tmp_path / "store"))
    import_logs(find_logs([written(tmp_path / "in", source)], "blur", "a100"), store)
    again = document_of(store.read().sort(pl.col("source").struct.field("line"), "timestamp"))
    assert {json.dumps(item, sort_keys=True) for item in again["results"]} == {
        json.dumps(item, sort_keys=True) for item in source["results"]
    }
    assert again["metadata"] == source["metadata"]
    nanoseconds = document(*(result(tile) for tile in range(100, 200)), unit="nanoseconds")
    other = written(tmp_path / "in", nanoseconds, "other_T4.json")
    import_logs(find_logs([other], "other", "a100"), store)
    with pytest.raises(RecordError, match=r"one unit of time, found 'miliseconds', 'nanoseconds'"):
        document_of(store.read())
    rows, _ = read(other)
    copied = written(
        tmp_path / "in", document_of(store.read().filter(task_name="other")), "other_T4.json"
    )
    times = {row["program"]: row["run_secs"] for row in rows}
    assert {row["program"]: row["run_secs"] for row in read(copied)[0]} == times
    import_logs(find_logs([other], "other", "a4000"), store)
    with pytest.raises(RecordError, match=r"one hardware, found 'a100', 'a4000'"):
        document_of(store.read())


def test_a_table_of_such_records_is_a_table_and_can_be_asked(tmp_path: Path) -> None:
    """The columns of a table hold the words of a result, too; the records' target is {}."""
    store = RecordStore(str(tmp_path / "store"))
    log = written(tmp_path / "in", document(*(result(tile) for tile in range(1, 40))))
    import_logs(find_logs([log], "blur", "a100"), store)
    for name in ("all.csv", "all.parquet"):
        write_file(store.read(), tmp_path / name)
        assert recognize(tmp_path / name, name) == ("table", "")
    target = query.only_target(store, "a100")
    best = query.best(store, hardware="a100", target=target, n=1)
    assert best["latency_s"].to_list() == [pytest.approx(0.00225)]


@pytest.mark.skipif(
    not REAL.is_dir(),
    reason="needs ../shared/data/kerneltuner, results that are not ours to pass on",
)
def test_files_of_kernel_tuner_are_imported_as_two_hardware(tmp_path: Path) -> None:
    """Both files have 4,362 configurations, 6 of which do not compile and 155 do not run."""
    store = RecordStore(str(tmp_path / "store"))
    for gpu in ("A100", "A4000"):
        logs = find_logs([REAL / f"convolution_{gpu}_T4.json.gz"], "convolution", gpu.lower())
        progress = import_logs(logs, store)
        assert progress.rejects == []
        assert progress.records == {"ok": 4201, "run_error": 155, "build_error": 6}
        source = json.loads(gzip.decompress((REAL / f"convolution_{gpu}_T4.json.gz").read_bytes()))
        times = source["results"][0]["times"]["runtimes"]
        frame = store.read(gpu.lower()).filter(task_name="convolution_milo")
        first = frame.filter(timestamp=frame["timestamp"].min()).row(0, named=True)
        assert first["run_secs"] == [time / 1e3 for time in times]
    records = store.read()
    assert Counter(records["hardware"]) == {"a100": 4362, "a4000": 4362}
    assert records["program_id"].n_unique() == 4362, "programs that both have are the same ones"
    assert isinstance(records.to_arrow(), pa.Table)
