"""The dataset that the committed pipeline starts from: whole, readable, and what its card says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

from tencost.fetch.pack import sha256_of
from tencost.fetch.stage import dataset_top
from tencost.fetch.unpack import unpack
from tencost.records.databases import Import, import_dataset
from tencost.store.status import Status

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PARAMS = yaml.safe_load((ROOT / "params.yaml").read_text())
NAME = PARAMS["dataset"]
HELD_OUT = ("bert_tiny", "resnet_50", "gpt2", "efficientnet_b0")
"""The standing test networks."""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Import:
    described = yaml.safe_load((ROOT / "conf" / "dataset" / f"{NAME}.yaml").read_text())
    archive = ROOT / described["source"]
    assert sha256_of(archive) == described["sha256"]
    folder = tmp_path_factory.mktemp("raw")
    unpack(archive, folder)
    top = dataset_top(folder)
    assert (top / "README.md").read_text() == (ROOT / "datasets" / f"{NAME}.md").read_text()
    return import_dataset(top, NAME)


def test_every_line_is_read_and_no_record_is_there_twice(imported: Import) -> None:
    assert imported.rejects == []
    assert max(Counter(record.record_id for record in imported.records).values()) == 1


def test_the_card_counts_what_is_there(imported: Import) -> None:
    card = (ROOT / "datasets" / f"{NAME}.md").read_text()
    programs = len({record.program_id for record in imported.records})
    workloads = len({record.workload_id for record in imported.records})
    told = f"{len(imported.records)} records of {programs} programs and {workloads} workloads"
    assert told in card


def test_every_hardware_of_the_pipeline_has_records_with_their_provenance(imported: Import) -> None:
    counts = Counter(record.hardware for record in imported.records)
    assert set(PARAMS["hardware"]) <= set(counts)
    assert all(count > 1000 for count in counts.values())
    for record in imported.records:
        about = record.provenance
        assert about.engine_version
        assert about.execution_config
        assert about.timestamp
        assert record.extra is not None
        assert record.extra["session"]


def test_failures_are_rare_and_told(imported: Import) -> None:
    failed = [record for record in imported.records if record.status is not Status.ok]
    assert len(failed) < 0.03 * len(imported.records)
    assert all(record.error for record in failed)
    assert not any(record.status is Status.unknown for record in failed)


def test_the_standing_test_networks_are_held_out_and_measured(imported: Import) -> None:
    split = yaml.safe_load((ROOT / "conf" / "split" / "by_network.yaml").read_text())
    assert sorted(split["test"]) == sorted(HELD_OUT)
    for network in HELD_OUT:
        tasks = [task for task in imported.tasks if task.network == network]
        work = sum(task.flop * task.weight for task in tasks)
        measured = sum(task.flop * task.weight for task in tasks if task.measured)
        assert measured > 0.95 * work
    assert len({task.network for task in imported.tasks}) >= 12
