"""TenSet folders of all generations, made by hand; pickles are built an operation at a time."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tencost.errors import RecordError
from tencost.records.formats.ansor import AnsorFormat
from tencost.records.reading.opening import lines
from tencost.records.reading.protocol import About
from tencost.records.tenset.layout import (
    NetworkTasks,
    is_tenset,
    network_weights,
    read_layout,
    workload_networks,
)
from tencost.records.tenset.names import FileName, clean_name, log_file, parse_name, tasks_file
from tencost.records.tenset.pickles import SearchTask, WeightedTask
from tencost.records.tenset.writing import write_layout

HASH = "12b88bedece6984af589a28b43e0f3c4"
KEY = f'["{HASH}", 1, 56, 56, 64, 3, 3, 64, 128, 1, 1, 1, 128, 1, 28, 28, 128]'
OTHER = '["0bcb8746286db050cd088f375c85372d", 1, 64, 64, 128]'
RESNET = "resnet_50-1x3x224x224"
CPU = "llvm -keys=cpu -link-params=0 -model=platinum-8272"


def _line(
    key: str = KEY,
    target: str = CPU,
    costs: tuple[float, ...] = (0.001, 0.0011),
    error: int = 0,
    length: int = 4,
) -> str:
    task = [key, target, [16, 64, 64, 0, 0, 0, 0, 0], "", 2, []]
    steps = [["SP", 2, 0, 64, [length, 2], 1], ["AN", 2, 0, 3]]
    outcome = [list(costs), error, 0.25, 1_614_689_820]
    return json.dumps({"i": [task, [[], steps]], "r": outcome, "v": "v0.6"}) + "\n"


def _write(path: Path, *written: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(written))
    return path


def _text(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + len(encoded).to_bytes(4, "little") + encoded


def _pickled_task(key: str, target: str) -> bytes:
    """Return the operations that a SearchTask's pickle has; targets may be text, too."""
    new = b"ctvm.runtime.object\n_new_object\ncsearch_task\nX\n\x85R"
    new = new.replace(b"csearch_task\nX\n", b"ctvm.auto_scheduler.search_task\nSearchTask\n")
    return (
        new
        + b"}"
        + _text("workload_key")
        + _text(key)
        + b"s"
        + _text("target")
        + _text(target)
        + b"sb"
    )


def _write_tasks(path: Path, weights: dict[str, int], target: str = "llvm") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    tasks = b"".join(_pickled_task(key, target) for key in weights)
    numbers = b"".join(b"J" + weight.to_bytes(4, "little") for weight in weights.values())
    path.write_bytes(b"\x80\x02](" + tasks + b"e](" + numbers + b"e\x86.")
    return path


def _write_list(path: Path, *keys: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x80\x02](" + b"".join(_pickled_task(key, "llvm") for key in keys) + b"e.")
    return path


SUFFIXES = (".relay.pkl", ".model.pkl", ".task.pkl", ".model", ".task", ".json", ".json.gz")
GENERATIONS = {
    1: (
        "('resnet_50', 'llvm', [(1, 3, 224, 224)]).model.pkl",
        "('resnet_50', 'llvm', [(1, 3, 224, 224)]).task.pkl",
        f"('{KEY}', 'llvm').json",
        "to_measure_programs/all_tasks.pkl",
    ),
    2: (
        "('resnet_50', [(1, 3, 224, 224)]).relay.pkl",
        "(('resnet_50', [(1, 3, 224, 224)]), 'llvm').task.pkl",
        f"('{KEY}', 'llvm').json",
        "to_measure_programs/all_tasks.pkl",
    ),
    3: (
        "(resnet_50,[(1,3,224,224)]).relay.pkl",
        "((resnet_50,[(1,3,224,224)]),llvm).task.pkl",
        f"([{HASH},1,56,56,64,3,3,64,128,1,1,1,128,1,28,28,128],llvm).json",
        "network_info/all_tasks.pkl",
    ),
}


def _tasks(network: str, kind: str, weights: dict[str, int]) -> NetworkTasks:
    tasks = [WeightedTask(SearchTask(key, kind), weight) for key, weight in weights.items()]
    return NetworkTasks(network, kind, tasks)


def _folder(root: Path, generation: int) -> Path:
    relay, tasks, log, listed = GENERATIONS[generation]
    _write_tasks(root / "network_info" / tasks, {OTHER: 2, KEY: 3})
    (root / "network_info" / relay).write_bytes(pickle.dumps(("{}", 4, [])))
    _write_list(root / listed, KEY, OTHER)
    _write(root / "to_measure_programs" / log, _line(target="llvm", costs=(0.0,)))
    _write(root / "measure_records" / "platinum-8272" / log, _line(), _line(costs=(1e10,), error=7))
    _write(root / "measure_records" / "unknown" / log, _line(target="llvm"))
    return root


# --- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet_50-B16.model", FileName("network", "resnet_50-B16")),
        ("resnet_50-B16-llvm.task", FileName("tasks", "resnet_50-B16")),
        ("resnet_50-B16-llvm.model", FileName("tasks", "resnet_50-B16")),  # the README's slip
        ("resnet_50-B16-llvm-e5-2666.json.gz", FileName("log", "resnet_50-B16", "e5-2666")),
        ("resnet_50-B16-cuda.json", FileName("log", "resnet_50-B16")),
        (
            "('bert', 'llvm -mcpu=core-avx2', [(1, 128), (1,)]).task.pkl",
            FileName("tasks", "bert-1x128-1"),
        ),
        *((relay, FileName("network", RESNET)) for relay, *_ in GENERATIONS.values()),
        *((tasks, FileName("tasks", RESNET)) for _, tasks, *_ in GENERATIONS.values()),
        *((log, None) for _, _, log, _ in GENERATIONS.values()),
    ],
)
def test_names(name: str, expected: FileName | None) -> None:
    assert parse_name(name) == expected


def test_clean_names_are_tensets_own() -> None:
    assert clean_name(("resnet_50", [(1, 3, 224, 224)])) == "(resnet_50,[(1,3,224,224)])"
    assert clean_name((("dcgan", [(100,)]), "llvm")) == "((dcgan,[(100,)]),llvm)"
    assert log_file(KEY, "llvm") == GENERATIONS[3][2]
    assert tasks_file(RESNET, "llvm", ".task.pkl") == GENERATIONS[3][1]


@pytest.mark.parametrize(
    "name",
    [
        "all_tasks.pkl",
        "bert_tiny.json",
        "database_workload.json",
        "(a,b",
        "(a,[(1,2)]).json",
        "(a,(1)).relay.pkl",
        "(a,[x]).relay.pkl",
        "((a,[(1,)]),[llvm]).task.pkl",
        "(,).json",
        "(a b).task.pkl",
        "('a, 'llvm').json",
        "([],llvm).json",
        "(" * 120 + ").json",
        "(a,[(99)],,).relay.pkl",
        "a,b.json",
        "(a.json",
        "(a,,b).json",
        "([a](b),c).json",
        "(a b,)c.json",
        "('a, b).json",
        "",
        ".json",
    ],
)
def test_names_that_tell_nothing(name: str) -> None:
    assert parse_name(name) is None


@given(st.text("()[],'\" a1-Bx.é", max_size=30), st.sampled_from([*SUFFIXES, ""]))
@settings(max_examples=500, deadline=None)
def test_any_name_is_read_or_not(stem: str, suffix: str) -> None:
    parsed = parse_name(stem + suffix)
    assert parsed is None or parsed.network


def test_long_names_are_cut_and_stay_apart(tmp_path: Path) -> None:
    first, second = (f'["{HASH}", {", ".join(["112"] * 120)}, {last}]' for last in (1, 2))
    names = [log_file(key, "llvm") for key in (first, second)]
    assert [len(name.encode()) for name in names] == [255, 255]
    assert names[0] != names[1]
    assert names[0] == log_file(first, "llvm")
    for name in names:
        (tmp_path / name).touch()
    wide = log_file(json.dumps(["é" * 200], ensure_ascii=False), "llvm")
    assert 250 <= len(wide.encode()) <= 255


def test_a_slash_leads_to_no_other_folder() -> None:
    name = log_file('["a/../../b", 1]', "llvm")
    assert "/" not in name
    assert name != log_file('["a_.._.._b", 1]', "llvm")


@pytest.mark.parametrize(
    "label", ["resnet_50-1x3x224x224", "bert-1x128-1x128", "x-B4", "plain", "a-()"]
)
def test_labels_back_and_forth(label: str) -> None:
    assert parse_name(tasks_file(label, "llvm", ".task.json")) == FileName("tasks", label)


# --- reading ---------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", [1, 2, 3])
def test_a_folder(tmp_path: Path, generation: int) -> None:
    folder = _folder(tmp_path / "data[set]*", generation)  # what a glob would take for a pattern
    assert is_tenset(folder)
    dataset = read_layout(folder)
    assert dataset.rejects == []
    assert dataset.networks == {RESNET: folder / "network_info" / GENERATIONS[generation][0]}
    assert dataset.tasks == [_tasks(RESNET, "llvm", {OTHER: 2, KEY: 3})]
    assert [task.workload_key for task in dataset.all_tasks] == [KEY, OTHER]
    log = GENERATIONS[generation][2]
    records = folder / "measure_records"
    assert dataset.record_files == [
        (records / "platinum-8272" / log, "platinum-8272"),
        (records / "unknown" / log, None),
    ]
    assert dataset.program_files == [folder / "to_measure_programs" / log]
    assert network_weights(dataset.tasks) == {OTHER: [(RESNET, 2)], KEY: [(RESNET, 3)]}


def test_generation_0(tmp_path: Path) -> None:
    _write_tasks(tmp_path / "network_meta_data" / "resnet_50-B1-llvm.task", {KEY: 4})
    log = _write(tmp_path / "resnet_50-B1-llvm-e5-2666.json", _line(), _line(OTHER))
    unnamed = _write(tmp_path / "resnet_50-B1-cuda.json", _line(target="cuda"))
    assert is_tenset(tmp_path)
    dataset = read_layout(tmp_path)
    assert dataset.record_files == [(unnamed, None), (log, "e5-2666")]
    assert list(dataset.networks) == ["resnet_50-B1"]
    assert network_weights(dataset.tasks) == {KEY: [("resnet_50-B1", 4)]}
    assert [task.workload_key for task in dataset.all_tasks] == [KEY]


def test_records_find_their_networks(tmp_path: Path) -> None:
    dataset = read_layout(_folder(tmp_path, 3))
    path, hardware = dataset.record_files[0]
    (batch,) = AnsorFormat().read(path, About("tenset", path.name, hardware))
    networks = workload_networks(dataset.tasks)
    assert [networks[workload] for workload in batch.records["workload_id"].to_pylist()] == [
        [("resnet_50-1x3x224x224", 3)]
    ] * 2
    assert batch.records["status"].to_pylist() == ["ok", "run_timeout"]
    (programs,) = AnsorFormat().read(dataset.program_files[0], About("tenset", "p", "unmeasured"))
    assert programs.records["status"].to_pylist() == ["unknown"]
    assert programs.records["error"].to_pylist() == ["not measured: the cost is 0"]
    assert programs.records["run_secs"].to_pylist() == [None]


def test_weights_of_two_kinds_and_of_repeated_tasks() -> None:
    tasks = [
        _tasks("b", "llvm", {KEY: 2}),
        _tasks("b", "llvm", {KEY: 1}),
        _tasks("b", "cuda", {KEY: 2}),
        _tasks("a", "cuda", {KEY: 5}),
        _tasks("a", "llvm", {"[": 1}),
    ]
    assert network_weights(tasks) == {KEY: [("a", 5), ("b", 3)], "[": [("a", 1)]}
    assert list(workload_networks(tasks).values()) == [[("a", 5), ("b", 3)]]


def test_a_folder_without_pickles_or_with_bad_ones(tmp_path: Path) -> None:
    log = _write(tmp_path / "measure_records" / "t4" / "x.json.gz")
    log.write_bytes(gzip.compress(_line(target="cuda").encode()))
    (log.parent / "README.md").touch()
    dataset = read_layout(tmp_path)
    assert (dataset.networks, dataset.tasks, dataset.all_tasks) == ({}, [], [])
    assert dataset.record_files == [(log, "t4")]
    bad = tmp_path / "network_info" / GENERATIONS[3][1]
    _write(bad, "cos\nsystem\n(S'false'\ntR.")
    _write(tmp_path / "network_info" / "all_tasks.pkl", "")
    dataset = read_layout(tmp_path)
    assert [(reject.file, reject.line) for reject in dataset.rejects] == [
        (f"network_info/{bad.name}", 0),
        ("network_info/all_tasks.pkl", 0),
    ]
    assert "names 'os.system', which is none of TVM's" in dataset.rejects[0].reason
    assert dataset.record_files == [(log, "t4")]
    assert list(dataset.networks) == [RESNET]


def test_what_is_no_tenset_folder(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    pair = ours / "measure_records" / "xeon" / "matmul-0123456789ab"
    _write(pair / "database_tuning_record.json", "[0,[[],[0.1],{},[]]]\n")
    _write(ours / "measure_records" / "xeon" / "database_workload.json", '["1", "AAAA"]\n')
    _write(ours / "measure_records" / "xeon" / "provenance.json", "{}")
    _write(ours / "network_info" / "resnet_18.json", "[]")
    _write(ours / "tasks.json", "[]")
    _write(tmp_path / "logs" / "some.json", _line())
    _write(tmp_path / "named" / "a-B1-llvm-x.json", "[]")
    for folder in (ours, tmp_path / "logs", tmp_path / "named", tmp_path, tmp_path / "nowhere"):
        assert not is_tenset(folder)
        with pytest.raises(
            RecordError, match=r"expected a TenSet dataset in .*docs/how-to/tenset\.md"
        ):
            read_layout(folder)


def test_a_folder_around_it_is_told(tmp_path: Path) -> None:
    _folder(tmp_path / "dataset_cpu", 3)
    with pytest.raises(RecordError, match=r"import .*dataset_cpu"):
        read_layout(tmp_path)


# --- writing ---------------------------------------------------------------------------------


def _table(folder: Path, dataset: str = "resnet_50-1x3x224x224") -> pa.Table:
    tables = []
    layout = read_layout(folder)
    files = [*layout.record_files, *((path, "unmeasured") for path in layout.program_files)]
    for path, hardware in files:
        about = About(dataset, path.name, hardware or "somewhere")
        tables += [batch.records for batch in AnsorFormat().read(path, about)]
    return pa.concat_tables(tables)


def _logged(folder: Path) -> dict[str, list[Any]]:
    return {
        path.relative_to(folder).as_posix(): [json.loads(line) for _, line in lines(path)]
        for top in ("measure_records", "to_measure_programs")
        for path in sorted((folder / top).rglob("*.json"))
    }


def test_written_as_it_was_read(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "from", 3)
    records = folder / "measure_records" / "platinum-8272"
    _write(records / log_file(OTHER, "llvm"), _line(OTHER), _line(OTHER, length=8), _line(OTHER))
    written = write_layout(tmp_path / "to", _table(folder))
    assert all(path.is_file() for path in written)
    expected = {
        name.replace("/unknown/", "/somewhere/"): logged for name, logged in _logged(folder).items()
    }
    assert _logged(tmp_path / "to") == expected
    assert len(expected) == 4
    assert is_tenset(tmp_path / "to")
    again = read_layout(tmp_path / "to")
    assert again.rejects == []
    assert not list((tmp_path / "to").rglob("*.pkl"))
    assert network_weights(again.tasks) == {
        KEY: [("resnet_50-1x3x224x224", 1)],
        OTHER: [("resnet_50-1x3x224x224", 1)],
    }
    hardware = (16, 64, 64, 0, 0, 0, 0, 0)
    assert again.all_tasks == [
        SearchTask(OTHER, CPU, "", hardware, 2),
        SearchTask(KEY, CPU, "", hardware, 2),
    ]
    assert list(again.networks) == [RESNET]


def test_networks_and_weights_are_written(tmp_path: Path) -> None:
    table = _table(_folder(tmp_path / "from", 3))
    networks = [[{"network": "a", "weight": 7}, {"network": "b/c,d", "weight": 2}], None, [], None]
    at = table.schema.get_field_index("networks")
    table = table.set_column(at, "networks", pa.array(networks, table.schema.field(at).type))
    write_layout(tmp_path / "to", table)
    assert network_weights(read_layout(tmp_path / "to").tasks) == {KEY: [("a", 7), ("b/c,d", 2)]}


def test_long_keys_are_written_and_read(tmp_path: Path) -> None:
    keys = [f'["{HASH}", {", ".join(["112"] * 120)}, {last}]' for last in (1, 2)]
    folder = tmp_path / "from"
    for position, key in enumerate(keys):
        _write(folder / "measure_records" / "t4" / f"{position}.json", _line(key))
    write_layout(tmp_path / "to", _table(folder))
    dataset = read_layout(tmp_path / "to")
    logged = [json.loads(path.read_text())["i"][0][0] for path, _ in dataset.record_files]
    assert sorted(logged) == keys


def test_damaged_lists_of_ours_are_rejects(tmp_path: Path) -> None:
    write_layout(tmp_path / "to", _table(_folder(tmp_path / "from", 3)))
    for path in (tmp_path / "to" / "network_info").iterdir():
        path.write_text(path.read_text().replace('"llvm', '"-llvm'))
    dataset = read_layout(tmp_path / "to")
    assert sorted(reject.file for reject in dataset.rejects) == [
        "network_info/((resnet_50,[(1,3,224,224)]),llvm).task.json",
        "network_info/all_tasks.json",
    ]
    assert len(dataset.record_files) == 2


def test_what_cannot_be_written(tmp_path: Path) -> None:
    table = _table(_folder(tmp_path / "from", 3))
    with pytest.raises(RecordError, match="expected a new folder"):
        write_layout(tmp_path / "from", table)
    at = table.schema.get_field_index("program_format")
    other = table.set_column(at, "program_format", pa.array(["none"] * len(table)))
    with pytest.raises(RecordError, match=r"program_format is ansor_steps, found \['none'\]"):
        write_layout(tmp_path / "a", other)
    at = table.schema.get_field_index("hardware")
    for name in ("..", "a/b", ""):
        other = table.set_column(at, "hardware", pa.array([name] * len(table)))
        with pytest.raises(RecordError, match="expected a hardware that can name a folder"):
            write_layout(tmp_path / "b", other)
    assert not (tmp_path / "b").exists()
    assert write_layout(tmp_path / "c", table.slice(0, 0)) == []


def test_weighted_tasks_as_json_are_those_of_pickles(tmp_path: Path) -> None:
    write_layout(tmp_path / "to", _table(_folder(tmp_path / "from", 3)))
    path = tmp_path / "to" / "network_info" / "((resnet_50,[(1,3,224,224)]),llvm).task.json"
    content = json.loads(path.read_text())
    assert set(content) == {"network", "kind", "tasks"}
    assert set(content["tasks"][0]) == set(WeightedTask.__dataclass_fields__)
    assert set(content["tasks"][0]["task"]) == set(SearchTask.__dataclass_fields__)


SHARED = (Path(__file__).resolve().parents[2] / "../shared/data/ansor").resolve()


@pytest.mark.skipif(
    not SHARED.is_dir(), reason="no ../shared/data/ansor: real logs are not in the repository"
)
def test_a_real_log_as_a_tenset_folder(tmp_path: Path) -> None:
    source = sorted((SHARED / "roller_v100_cuda" / "elementwise").glob("*.gz"))[0]
    log = (
        tmp_path / "from" / "measure_records" / "v100" / source.name.replace(".log.gz", ".json.gz")
    )
    log.parent.mkdir(parents=True)
    log.write_bytes(source.read_bytes())
    table = _table(tmp_path / "from", "roller")
    write_layout(tmp_path / "to", table)
    assert _table(tmp_path / "to", "roller")["record_id"].equals(table["record_id"])
    (logged,) = _logged(tmp_path / "to").values()
    assert logged == [json.loads(line) for _, line in lines(log)]
