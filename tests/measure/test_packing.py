from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tencost.measure.packing import fitting_split
from tencost.records.databases import Import
from tencost.records.raw_layout import Task
from tencost.store.schema import NetworkWeight, Record, Source
from tencost.store.status import Status

CONF = Path(__file__).resolve().parents[2] / "conf"


def imported(networks: dict[str, int]) -> Import:
    """Networks with so many tasks of 20 programs each."""
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
                for program in range(20)
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
    found, why = fitting_split(tmp_path, imported(networks))
    assert found == split
    assert ("not by_network" in why) == (split != "by_network")
