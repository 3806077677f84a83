"""Labels measured here: chosen programs of a dataset in a small collection of their own; what is there is kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from small_collection import *  # noqa: F403
from tencost.adapt.measuring import Labeller
from tencost.config import Config
from tencost.errors import HardwareError, MeasureError
from tencost.measure.collection import Collection
from tencost.records.databases import import_dataset
from tencost.store.ids import program_id
from tencost.workers.hardware import resolve_hardware

pytestmark = [pytest.mark.tvm, pytest.mark.slow]


@pytest.fixture
def fetched(small_root: Path, configured: Callable[..., Config]) -> tuple[Config, Path, list[str]]:
    """The small collection as a dataset that was fetched, the configuration of new hardware, and its programs."""
    raw = small_root / "data" / "raw" / "small"
    raw.parent.mkdir(parents=True)
    shutil.move(small_root / "measured" / "small", raw)
    cfg = configured("measure.name=measured", "measure.overlap=false", "hardware.name=desk")
    cfg = replace(cfg, dataset=replace(cfg.dataset, name="small"))
    cfg = replace(cfg, hardware=resolve_hardware(cfg.hardware))
    source = Collection(raw)
    names = [
        program_id(program.workload.workload_id, str(program.target["kind"]), program.trace)
        for task in source.tasks(0.0)
        for program in source.programs(task)
    ]
    return cfg, small_root, names


def test_what_was_chosen_is_measured_once_and_kept(
    fetched: tuple[Config, Path, list[str]],
) -> None:
    cfg, root, names = fetched
    assert len(names) == 12
    labeller = Labeller(cfg, root)
    assert labeller.collection.path == root / "measured" / "adapt-desk"
    first = labeller.measure(names[1:4])
    assert np.isfinite(first).all()
    assert (first > 0).all()
    again = Labeller(cfg, root).measure([*names[2:4], names[9]])
    assert again[:2].tolist() == first[1:].tolist(), (
        "what an earlier run measured is not measured again"
    )
    imported = import_dataset(root / "measured" / "adapt-desk", "adapt-desk")
    assert not imported.rejects
    assert {record.program_id for record in imported.records} == {*names[1:4], names[9]}
    assert len(imported.records) == 4
    assert {record.hardware for record in imported.records} == {"desk"}


def test_programs_that_are_not_there_are_named(
    fetched: tuple[Config, Path, list[str]],
) -> None:
    cfg, root, names = fetched
    with pytest.raises(MeasureError, match="such as nobody"):
        Labeller(cfg, root).measure([names[0], "nobody"])
    shutil.rmtree(root / "data" / "raw")
    with pytest.raises(MeasureError, match="tencost fetch dataset=small"):
        Labeller(cfg, root)


def test_hardware_that_this_host_is_not_is_refused(
    fetched: tuple[Config, Path, list[str]],
) -> None:
    cfg, root, names = fetched
    board = replace(cfg.hardware, name="board", requires=["no_cpu_has_this"])
    with pytest.raises(HardwareError, match="no_cpu_has_this"):
        Labeller(replace(cfg, hardware=board), root).measure(names[:2])
