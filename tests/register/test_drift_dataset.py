"""Records of tuning runs become a raw dataset that the pipeline reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from matmuls import make_matmul
from tencost.config.composition import compose
from tencost.errors import RecordError
from tencost.records import stage as records_stage
from tencost.records.databases import import_dataset
from tencost.register.drift import histories
from tencost.register.drift_dataset import add_to_dataset
from tencost.store.modules import write_modules
from tencost.store.record_store import RecordStore
from tencost.store.schema import NetworkWeight, Provenance, Record, Source
from tencost.store.status import Status
from tencost.store.tables import load_records, open_records

pytestmark = pytest.mark.tvm

PROJECT = Path(__file__).resolve().parents[2]


def records(workload: str, name: str, model: str = "models:/m/1") -> list[Record]:
    """Return four records of a round; the last one failed."""
    from tencost.store.ids import program_id, record_id

    found = []
    for index in range(4):
        trace = [[["GetBlock", [], [f"b{index}", "main"], ["b"]]], []]
        identity = program_id(workload, "llvm", trace)
        ok = index < 3
        found.append(
            Record(
                record_id=record_id(identity, {"kind": "llvm"}, "toy-1c"),
                program_id=identity,
                workload_id=workload,
                task_name=name,
                networks=(NetworkWeight("net", 3),),
                hardware="toy-1c",
                target={"kind": "llvm"},
                program_format="metaschedule_trace",
                program=json.dumps(trace, separators=(",", ":")),
                run_secs=(1e-3 * (index + 1), 1e-3 * (index + 1)) if ok else (),
                status=Status.ok if ok else Status.run_timeout,
                error="" if ok else "too slow",
                source=Source("tune", "net-toy-1c/database_tuning_record.json", index + 1),
                workload_args=[["TENSOR", "float32", [16, 16]]],
                provenance=Provenance(
                    timestamp=1e9 + index,
                    engine_version="0.27.0",
                    execution_config={"number": 3},
                    additional_info={
                        "chosen_by": model, "run": "a", "round": 1, "batch": 4, "arm": "residual"
                    },
                ),
                extra={"score": 0.9 - 0.1 * index},
            )
        )  # fmt: skip
    return found


@pytest.fixture(scope="module")
def modules() -> dict[str, tuple[str, str, str, str]]:
    from tvm.ir import save_json
    from tvm_ffi import structural_hash

    from tencost.store.ids import workload_id

    made = {}
    for size in (16, 24):
        mod = make_matmul(size)
        text = str(save_json(mod))
        name, shash = f"matmul_{size}", str(structural_hash(mod) % 2**64)
        made[name] = (workload_id(text), text, name, shash)
    return made


@pytest.fixture
def store(tmp_path: Path, modules: dict[str, Any]) -> RecordStore:
    store = RecordStore(str(tmp_path / "live"))
    for workload, _, name, _ in modules.values():
        store.write(records(workload, name))
    write_modules(store.uri, modules.values())
    return store


def test_the_pipeline_reads_what_was_added_with_all_that_the_store_knew(
    store: RecordStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = tmp_path / "data" / "raw" / "more"
    added = add_to_dataset(store, raw)
    assert (added.records, added.workloads, added.tasks, added.without_module) == (8, 2, 2, ())
    monkeypatch.chdir(PROJECT)
    cfg, _ = compose(["dataset=tencost-xeon", "dataset.name=more"])
    made = load_records(records_stage.run(cfg, tmp_path))
    before = store.read()
    keys = ["record_id", "task_name", "status", "error", "run_secs", "networks", "timestamp", "target",
        "engine_version", "execution_config", "workload_args", "program"]  # fmt: skip
    told = made.sort("record_id").select(keys)
    assert told.equals(before.sort("record_id").select(keys))
    # Drift can be told from the dataset, too.
    (then,), (now,) = (
        histories(item) for item in (store, open_records(str(tmp_path / "data/records/more")))
    )
    assert now.runs == then.runs
    tasks = pl.read_parquet(tmp_path / "data/records/more/tasks.parquet")
    assert dict(tasks.select("task_name", "flop").iter_rows())["matmul_16"] >= 2 * 16**3


def test_a_dataset_grows_by_what_it_lacks_and_adding_again_changes_nothing(
    store: RecordStore, tmp_path: Path, modules: dict[str, Any]
) -> None:
    raw = tmp_path / "raw"
    workload, text, name, _ = modules["matmul_16"]
    entry = {"task_name": name, "weight": 7, "flop": 1.0, "workload_id": workload}
    (raw / "network_info").mkdir(parents=True)
    (raw / "network_info" / "net.json").write_text(json.dumps([{**entry, "mod": text}]))
    (raw / "tasks.json").write_text(json.dumps([{"network": "net", **entry, "measured": True}]))
    assert add_to_dataset(store, raw, "m").tasks == 1
    first = {path: path.read_bytes() for path in raw.rglob("*") if path.is_file()}
    assert add_to_dataset(store, raw, "m").tasks == 0
    assert {path: path.read_bytes() for path in raw.rglob("*") if path.is_file()} == first
    imported = import_dataset(raw, "grown")
    assert {(task.task_name, task.weight) for task in imported.tasks} == {
        (name, 7),
        ("matmul_24", 3),
    }
    assert len(imported.records) == 8
    assert imported.rejects == []


def test_of_one_model_and_only_with_modules(
    store: RecordStore, tmp_path: Path, modules: dict[str, Any]
) -> None:
    store.write(records("0" * 32, "nameless", model="models:/other/1"))
    with pytest.raises(RecordError, match="found 4 records and no module"):
        add_to_dataset(store, tmp_path / "a", "other")
    added = add_to_dataset(store, tmp_path / "b")
    assert (added.records, added.without_module) == (8, ("nameless",))
    with pytest.raises(RecordError, match="found 0 records"):
        add_to_dataset(store, tmp_path / "c", "nobody")
