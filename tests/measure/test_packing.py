from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tencost.measure.packing import fitting_split, next_step
from tencost.records.databases import Import
from tencost.records.raw_layout import Task
from tencost.store.schema import NetworkWeight, Record, Source
from tencost.store.status import Status

CONF = Path(__file__).resolve().parents[2] / "conf"


def imported(networks: dict[str, int], programs: int = 20) -> Import:
    """Networks with so many tasks of so many programs each."""
    records, tasks = [], []
    for network, count in networks.items():
        for number in range(count):
            workload = f"{network}-{number}"
            tasks.append(
                Task(network, f"{network}_{'abcdefghij'[number]}", workload, 1, 2.0**number, True)
            )
            records += [
                Record(
                    record_id=f"{workload}-{program}",
                    program_id=f"{workload}-{program}",
                    workload_id=workload,
                    task_name=f"{network}_{'abcdefghij'[number]}",
                    networks=(NetworkWeight(network, 1),),
                    hardware="board",
                    target={"kind": "llvm"},
                    program_format="metaschedule_trace",
                    program="[[],[]]",
                    run_secs=(1.0,),
                    status=Status.ok,
                    error="",
                    source=Source("set", "file", 1),
                )
                for program in range(programs)
            ]
    return Import(records, [], tasks, [])


@pytest.mark.parametrize(
    ("networks", "split"),
    [
        ({"bert_tiny": 6, "mine": 9, "yours": 9}, "by_network"),
        ({"mine": 10, "yours": 10}, "by_task"),
        ({"bert_tiny": 2}, "within_task"),
    ],
)
def test_the_strictest_split_that_a_dataset_fills(
    tmp_path: Path, networks: dict[str, int], split: str
) -> None:
    shutil.copytree(CONF / "split", tmp_path / "conf" / "split")
    found, why, share = fitting_split(tmp_path, imported(networks))
    assert found == split
    assert share is None
    assert ("not by_network" in why) == (split != "by_network")


def test_a_share_is_named_where_the_split_as_it_is_leaves_nothing_to_rank(tmp_path: Path) -> None:
    shutil.copytree(CONF / "split", tmp_path / "conf" / "split")
    own = tmp_path / "conf" / "split" / "within_task.yaml"
    own.write_text(own.read_text().replace("valid_fraction: 0.1", "valid_fraction: 0.02"))
    found, _, share = fitting_split(tmp_path, imported({"bert_tiny": 3}))
    assert found == "within_task"
    assert share is not None
    assert f"`valid_fraction: {share}` into conf/split/within_task.yaml" in next_step(
        tmp_path, "measured", ["board"], imported({"bert_tiny": 3})
    )
    found, why, _ = fitting_split(tmp_path, imported({"bert_tiny": 1}, programs=2))
    assert found == "within_task"
    assert "measure more programs first" in why


def test_only_what_is_to_be_changed_in_params_is_told(tmp_path: Path) -> None:
    shutil.copytree(CONF / "split", tmp_path / "conf" / "split")
    few, many = imported({"bert_tiny": 2}), imported({"mine": 10, "yours": 10})
    told = next_step(tmp_path, "measured", ["board"], few)
    assert "dataset: measured\n  hardware: [board]\n  split: within_task" in told
    params = "dataset: measured\nsplit: by_task\nhardware: [board]\nfeatures: []\nmodels: {}\n"
    (tmp_path / "params.yaml").write_text(params)
    told = next_step(tmp_path, "measured", ["board"], few)
    assert "in place of `split: by_task`" in told
    assert "dataset:" not in told
    assert "split: within_task" in told
    assert next_step(tmp_path, "measured", ["board"], many).endswith("run `tencost pipeline`.")
