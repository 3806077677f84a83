from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from tencost.config import Config
from tencost.errors import ConfigError, HardwareError, MeasureError, UntrustedError
from tencost.measure import run, stage
from tencost.measure.collection import Collection
from tencost.measure.run import MeasuringProgress, cpu_plan, plan_measurements
from tencost.records.databases import import_dataset
from tencost.records.rule_times import RULE_FILE, parse_rule_times
from tencost.store.record_store import RecordStore
from tencost.store.status import Status
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.hardware import resolve_hardware
from tencost.workers.pool import CpuPlan, WorkerPool

pytestmark = pytest.mark.tvm

ONE = "measure.overlap=false"
"""One worker: starting one costs seconds, and what is asked here does not depend on who builds."""


def measured_ids(root: Path) -> Counter[str]:
    imported = import_dataset(root / "measured" / "small", "small")
    assert not imported.rejects
    return Counter(record.record_id for record in imported.records)


def test_all_programs_are_measured_once_and_reach_the_store(
    small_root: Path, configured: Callable[..., Config]
) -> None:
    cfg = configured("measure.pack=false", ONE)
    stage.run(cfg, small_root)
    ids = measured_ids(small_root)
    assert len(ids) == 12
    assert set(ids.values()) == {1}
    records = import_dataset(small_root / "measured" / "small", "small").records
    assert {record.status for record in records} == {Status.ok}
    one = records[0]
    assert one.provenance.engine_version == "0.27.0.post1"
    assert one.provenance.execution_config is not None
    assert one.provenance.execution_config["max_cv"] == 0.1
    assert one.provenance.timestamp is not None
    assert one.extra is not None
    assert one.extra["noise"] >= 1.0
    store = RecordStore(str(small_root / "data" / "store"))
    assert store.read().height == 12
    stage.run(cfg, small_root)
    assert measured_ids(small_root) == ids, "nothing is measured twice"
    assert store.read().height == 12


def test_measurements_of_another_target_do_not_count(
    small_root: Path, configured: Callable[..., Config]
) -> None:
    """The hardware's description was edited: its name stays, its programs are others."""
    stage.run(configured("measure.pack=false", ONE), small_root)
    collection, hardware = Collection(small_root / "measured" / "small"), configured().hardware
    tasks = collection.tasks(0.0)
    measured = resolve_hardware(hardware)
    assert plan_measurements(collection, tasks, measured) == []
    other = replace(measured, target={**measured.target, "mcpu": "x86-64-v3"})
    blocks = plan_measurements(collection, tasks, other)
    assert sum(len(block.programs) for block in blocks) == 12


def test_shards_measure_disjoint_parts_that_merge_by_copying(
    small_root: Path, tmp_path: Path, configured: Callable[..., Config]
) -> None:
    other = Path(shutil.copytree(small_root, tmp_path / "other"))
    for root, shard in ((small_root, "0/2"), (other, "1/2")):
        stage.run(configured("measure.pack=false", f"measure.shard={shard}", ONE), root)
    halves = measured_ids(small_root), measured_ids(other)
    assert [len(half) for half in halves] == [6, 6]
    records = Path("measured") / "small" / "measure_records" / "local"
    shutil.copytree(other / records, small_root / records, dirs_exist_ok=True)
    assert len(measured_ids(small_root)) == 12
    merged = import_dataset(small_root / "measured" / "small", "small").records
    assert len({record.provenance.timestamp for record in merged}) > 1
    assert all(record.provenance.execution_config for record in merged), "both hosts' sessions"
    collection = Collection(small_root / "measured" / "small")
    measured = resolve_hardware(configured().hardware)
    assert plan_measurements(collection, collection.tasks(0.0), measured, (0, 1)) == []


@pytest.mark.parametrize("shard", ["2/2", "x", "1", "-1/2", "1/0"])
def test_a_wrong_shard_is_refused(configured: Callable[..., Config], shard: str) -> None:
    with pytest.raises(ConfigError, match=r"i/n with 0 <= i < n"):
        configured(f"measure.shard={shard}")


def test_blocks_take_turns(small_root: Path, configured: Callable[..., Config]) -> None:
    stage.programs(configured("measure.programs=40"), small_root)
    collection = Collection(small_root / "measured" / "small")
    blocks = plan_measurements(collection, collection.tasks(0.0), configured().hardware)
    assert [len(block.programs) for block in blocks] == [16, 16, 16, 16, 8, 8]
    assert blocks[0].task != blocks[1].task


def test_two_runs_on_one_hardware_exclude_each_other(
    small_root: Path, configured: Callable[..., Config]
) -> None:
    collection = Collection(small_root / "measured" / "small")
    with (
        collection.locked("local"),
        pytest.raises(MeasureError, match="another process is at work on local"),
    ):
        stage.run(configured(), small_root)


def test_a_collection_that_could_run_code_of_others_is_refused(
    small_root: Path, configured: Callable[..., Config]
) -> None:
    collection = Collection(small_root / "measured" / "small")
    file = collection.path / "network_info" / "one.json"
    tasks = json.loads(file.read_text())
    for task in tasks:
        graph = json.loads(task["mod"])
        graph["nodes"].append({"type": "ir.Op", "data": "tirx.call_extern"})
        task["mod"] = json.dumps(graph)
    file.write_text(json.dumps(tasks))
    with pytest.raises(
        UntrustedError, match=r"network_info, task matmul_\d+: .*'tirx.call_extern'"
    ):
        stage.run(configured("measure.pack=false", ONE), small_root)
    assert not list(collection.path.glob("measure_records/**/measurements.jsonl"))


def test_nothing_to_measure_names_the_next_command(
    tmp_path: Path, configured: Callable[..., Config]
) -> None:
    with pytest.raises(MeasureError, match=r"tencost measure networks network="):
        stage.run(configured(), tmp_path)
    with pytest.raises(MeasureError, match=r"tencost measure networks network="):
        stage.programs(configured(), tmp_path)
    with pytest.raises(MeasureError, match=r"tencost measure\s+run"):
        stage.pack(configured(), tmp_path)


def test_networks_without_programs_name_the_next_command(
    small_root: Path, configured: Callable[..., Config]
) -> None:
    shutil.rmtree(small_root / "measured" / "small" / "to_measure_programs")
    with pytest.raises(MeasureError, match="tencost measure programs"):
        stage.run(configured(), small_root)


def test_a_target_that_llvm_does_not_know_is_one_clear_error(
    small_root: Path, configured: Callable[..., Config]
) -> None:
    cfg = configured("hardware=epyc-avx2-1c", "hardware.target.mcpu=granite-mountain")
    with pytest.raises(HardwareError, match="granite-mountain"):
        stage.run(cfg, small_root)


def test_a_gpu_has_no_caches_to_flush_and_no_noise_probe(
    small_root: Path, configured: Callable[..., Config]
) -> None:
    cfg = configured("hardware=nvidia-h100", "measure.cache_flush=true", "measure.pack=false")
    with pytest.raises(ConfigError, match=r"nvidia-h100.*'cuda'.*measure\.cache_flush=false"):
        stage.run(cfg, small_root)
    with closing(WorkerPool(MeasureOptions(), target_kind="cuda")) as pool:
        assert pool.probe() is None, "a kernel on the CPU says nothing of a GPU's times"


def test_more_cores_than_the_host_has_are_refused(configured: Callable[..., Config]) -> None:
    cfg = configured("hardware=epyc-avx2-1c", "hardware.cores=4096")
    with pytest.raises(HardwareError, match="4096 CPUs"):
        cpu_plan(cfg.hardware, cfg.measure)


def test_the_last_cpus_run_and_the_others_build_meanwhile(
    configured: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    cfg = configured("hardware=epyc-avx2-1c", "hardware.cores=2")
    assert cpu_plan(cfg.hardware, cfg.measure) == CpuPlan((0, 1), (2, 3))
    cfg = configured("hardware=epyc-avx2-1c", "hardware.cores=2", "measure.overlap=false")
    assert cpu_plan(cfg.hardware, cfg.measure) == CpuPlan((2, 3), (2, 3))
    cfg = configured("hardware=epyc-avx2-1c", "measure.cpu=1")
    assert cpu_plan(cfg.hardware, cfg.measure) == CpuPlan((0, 2, 3), (1,))
    cfg = configured("hardware=epyc-avx2-1c", "hardware.cores=4")
    assert cpu_plan(cfg.hardware, cfg.measure) == CpuPlan((0, 1, 2, 3), (0, 1, 2, 3))
    cfg = configured("hardware=epyc-avx2-1c", "hardware.cores=4", "measure.overlap=true")
    with pytest.raises(HardwareError, match="one to build meanwhile"):
        cpu_plan(cfg.hardware, cfg.measure)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs, one to build on")
def test_building_may_overlap_running(small_root: Path, configured: Callable[..., Config]) -> None:
    stage.run(configured("measure.overlap=true", "measure.pack=false"), small_root)
    assert len(measured_ids(small_root)) == 12


def test_a_packed_collection_is_a_dataset_that_fetch_takes(
    small_root: Path, configured: Callable[..., Config]
) -> None:
    from omegaconf import OmegaConf

    from tencost.config import DatasetConfig
    from tencost.records import stage as records
    from tencost.records.fetch import stage as fetch
    from tencost.store.tables import load_rule_times, load_tasks

    cfg = configured(ONE)
    (small_root / "measured" / "small" / "NOTES.md").write_text("## Limits\n\nA toy.\n")
    stage.run(cfg, small_root)
    described = OmegaConf.to_container(
        OmegaConf.load(small_root / "conf" / "dataset" / "small.yaml")
    )
    assert isinstance(described, dict)
    cfg.dataset = DatasetConfig(**{str(key): value for key, value in described.items()})
    fetch.run(cfg, small_root)
    folder = records.run(cfg, small_root)
    by_rule = load_rule_times(folder)
    assert by_rule["hardware"].to_list() == ["local", "local"], "every task was timed by rule, too"
    assert set(by_rule["workload_id"]) == set(load_tasks(folder)["workload_id"])
    assert by_rule.filter(pl.col("latency_s") > 0).height == 2
    assert json.loads((folder / "summary.json").read_text())["status"] == {"local": {"ok": 12}}
    tasks = load_tasks(folder)
    assert tasks.filter(pl.col("network") == "one").height == 2
    card = (small_root / "datasets" / "small.md").read_text()
    assert "12 records of 12 programs and 2 workloads" in card
    assert card.endswith("## Limits\n\nA toy.\n")
    archive = small_root / "datasets" / "small.tar.zst"
    before = archive.read_bytes()
    stage.pack(cfg, small_root)
    assert archive.read_bytes() == before, "packing is reproducible"


def test_a_task_is_timed_by_rule_though_the_first_run_was_interrupted_there(
    small_root: Path, configured: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    cfg = configured("measure.pack=false", ONE)
    with monkeypatch.context() as patch:
        patch.setattr(run, "_time_by_rule", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stage.run(cfg, small_root)
    stage.run(cfg, small_root)
    times, _ = parse_rule_times(small_root / "measured" / "small")
    assert len(times) == 2
    assert set(measured_ids(small_root).values()) == {1}


def test_times_by_rule_that_cannot_be_read_are_rejected(tmp_path: Path) -> None:
    good = {"workload_id": "wa", "rules": "0123456789ab", "run_secs": [3.0, 1.0, 2.0]}
    contents = {
        "board/a": json.dumps(good),
        "board/a/shard-0-of-2": json.dumps(good | {"run_secs": [5.0]}),
        "board/b": json.dumps(good | {"workload_id": "wb", "run_secs": None, "error": "refused"}),
        "board/c": '{"workload_id": "wc", "rules": "01',
        "other/a": json.dumps(good | {"run_secs": [4.0]}),
    }
    for folder, content in contents.items():
        path = tmp_path / "measure_records" / folder / RULE_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    times, rejects = parse_rule_times(tmp_path)
    assert [(time.hardware, time.workload_id, time.latency_s) for time in times] == [
        ("board", "wa", 5.0),
        ("other", "wa", 4.0),
    ]
    assert [reject.file for reject in rejects] == ["measure_records/board/c/by_rule.json"]
    assert "expected a task's times by rule" in rejects[0].reason


def test_a_foreign_line_in_the_journal_does_not_stop_the_rest(
    small_root: Path, configured: Callable[..., Config]
) -> None:
    """A journal cut at a random byte, as a lost power supply leaves it, continues without loss or doubling."""
    cfg = configured("measure.pack=false", ONE)
    stage.run(cfg, small_root)
    chance = random.Random(3)
    for path in (small_root / "measured").glob("**/measure_records/**/*.json*"):
        if path.name in ("database_tuning_record.json", "measurements.jsonl"):
            content = path.read_bytes()
            path.write_bytes(content[: chance.randrange(len(content))])
    stage.run(cfg, small_root)
    ids = measured_ids(small_root)
    assert len(ids) == 12
    assert set(ids.values()) == {1}


def test_a_session_is_flagged_where_the_reference_kernel_took_a_tenth_longer() -> None:
    """Its median decides: one slow moment of many says nothing."""
    noisy = stage._noise_flags(MeasuringProgress(5, noise=[1.0, 1.12, 1.3]))
    assert noisy == ["the reference kernel took 1.12 times its best, median"]
    for quiet in ([], [1.0, 1.08, 1.3], [1.0, 1.0, 9.0]):
        assert stage._noise_flags(MeasuringProgress(5, noise=quiet)) == []
