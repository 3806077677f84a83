"""The sample in this repository: what conf/ says about it holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tencost.config import Config, DatasetConfig, HardwareConfig
from tencost.records.fetch import stage
from tencost.records.formats.metaschedule import LoggedProgram
from tencost.records.raw_layout import (
    databases,
    folder_name,
    read_database,
    read_modules,
    read_provenance,
    read_tasks,
)
from tencost.store.ids import canonical_target

ROOT = Path(__file__).resolve().parents[2]
HARDWARE = ("xeon-avx2-1c", "xeon-avx512-1c")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, fetched with its checksum checked."""
    root = tmp_path_factory.mktemp("sample")
    values = yaml.safe_load((ROOT / "conf" / "dataset" / "tencost-xeon.yaml").read_text())
    assert values["sha256"]
    dataset = DatasetConfig(**{**values, "source": str(ROOT / values["source"])})
    return stage.run(Config(dataset=dataset), root)


def test_the_card_is_the_one_in_docs(raw: Path) -> None:
    packed = (raw / "README.md").read_text()
    # The archive is older than the module's name, and than code generators.
    packed = packed.replace("records/tensetlayout.py", "records/raw_layout.py")
    card = (ROOT / "docs" / "reference" / "dataset-card.md").read_text()
    before, _, rest = card.partition("## Code generators")
    counted, _, after = rest.partition("## How it was made")
    assert packed == f"{before}## How it was made{after}"
    for hardware in HARDWARE:
        assert counted.count(f"| {hardware} | math-0 ") == 1


def test_layout(raw: Path) -> None:
    pairs = list(databases(raw))
    assert {pair.hardware for pair in pairs} == set(HARDWARE)
    assert len(pairs) == 140
    folders = {path.name for path in (raw / "to_measure_programs").iterdir()}
    assert all({p.folder.name for p in pairs if p.hardware == name} == folders for name in HARDWARE)
    assert not list(raw.rglob("*.pkl"))


def test_index_and_modules_agree(raw: Path) -> None:
    tasks = json.loads((raw / "tasks.json").read_text())
    modules = list(read_modules(raw))
    assert {task["workload_id"] for task in tasks} == {module.workload_id for module in modules}
    assert len(tasks) == len(modules) == 174
    for task in tasks:
        name = folder_name(task["task_name"], task["workload_id"]) if task["measured"] else None
        assert task["folder"] == name
    assert sum(task.measured for task in read_tasks(raw)) == 70


@pytest.mark.parametrize("name", HARDWARE)
def test_the_hardware_in_conf_is_the_one_measured(raw: Path, name: str) -> None:
    values = yaml.safe_load((ROOT / "conf" / "hardware" / f"{name}.yaml").read_text())
    hardware = HardwareConfig(**values)
    assert hardware.name == name
    assert read_provenance(raw, name).engine_version == "0.27.0.post1"
    pair = next(pair for pair in databases(raw) if pair.hardware == name)
    workloads, programs, rejects = read_database(raw, pair)
    found = list(programs)
    assert len(workloads) == 1
    assert not rejects
    assert len(found) == 64
    for program in found:
        assert isinstance(program, LoggedProgram)
        assert canonical_target(program.target) == canonical_target(hardware.target)
