from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tencost.errors import BundleError
from tencost.models.programs.bundle import load_bundle
from tencost.programs.starting_points import FILE, PER_WORKLOAD, StartBook, shipped_starts
from tencost.register.start_records import as_recorded, ship

TARGET = {"kind": "llvm", "num-cores": 1}


def trace(unroll: int) -> list[Any]:
    instructions = [
        ["GetSBlock", [], ["c", "main"], ["b0"]],
        ["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v1"]],
        ["EnterPostproc", [], [], []],
        ["GetSBlock", [], ["root", "main"], ["b2"]],
    ]
    return [instructions, [[1, unroll]]]


def book(count: int = 3) -> StartBook:
    programs = [("w", 1e-3 * (count - number), trace(number % 2)) for number in range(count)]
    return StartBook.of("here", TARGET, [*programs, ("v", 5e-3, trace(0))])


def test_the_fastest_of_each_workload_are_kept() -> None:
    found = book(PER_WORKLOAD + 4)
    assert [one.workload for one in found.starts] == ["v"] + ["w"] * PER_WORKLOAD
    assert (PER_WORKLOAD, len(found), found.num_workloads) == (8, 9, 2)
    latencies = [one.latency_s for one in found.starts[1:]]
    assert latencies == sorted(latencies)
    assert found.starts[1].share == 1.0
    assert found.starts[2].share == pytest.approx(0.5)
    assert len(found.starts[0].trace[0]) == 2  # nothing of post-processing


def test_decisions_of_post_processing_are_left_out() -> None:
    instructions = [*trace(0)[0], ["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v3"]]]
    decided = [[0, 7], [1, 0], [2, 0], [4, 1]]
    found = StartBook.of("here", TARGET, [("w", 1e-3, [instructions, decided])])
    assert found.starts[0].trace == [instructions[:2], [[0, 7], [1, 0]]]


def test_a_file_holds_the_same_book(tmp_path: Path) -> None:
    path = tmp_path / FILE
    book().write(path)
    assert StartBook.read(path) == book()
    assert len(json.loads(path.read_text())["instructions"]) == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "found something else"),
        ("[]", "found something else"),
        ('{"version": 1}', "found something else"),
        ('{"version": 9}', "expected starting points of version 1, found 9"),
        (
            '{"version": 1, "hardware": "h", "target": {}, "instructions": [], "programs": [["w", 1, 0, []]]}',
            "found something else",
        ),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / FILE
    path.write_text(content)
    with pytest.raises(BundleError, match=told):
        StartBook.read(path)


def test_books_are_joined_by_speed_within_a_kind_of_target() -> None:
    faster = StartBook.of("here", TARGET, [("v", 1e-3, trace(1))])
    joined = book().joined(faster)
    assert [one.latency_s for one in joined.starts if one.workload == "v"] == [1e-3, 5e-3]
    with pytest.raises(BundleError, match="cuda"):
        book().joined(StartBook.of("there", {"kind": "cuda"}, []))


def test_a_bundle_ships_its_book(tmp_path: Path, make_bundle: Any) -> None:
    plain = make_bundle()
    assert shipped_starts(plain) is None
    shipped = ship(plain, book(), tmp_path / "shipped")
    assert load_bundle(shipped).info.files.keys() == {*load_bundle(plain).info.files, FILE}
    assert shipped_starts(shipped) == book()
    (shipped / FILE).write_text("{}")
    with pytest.raises(BundleError, match="was changed after training"):
        load_bundle(shipped)


def test_no_program_of_the_test_side_is_shipped(toy_project: Path, toy_config: Any) -> None:
    from tencost.register.start_records import live_starts, training_starts
    from tencost.splits.table import load_split
    from tencost.store.record_store import RecordStore
    from tencost.train.data import Data

    cfg = toy_config
    found = training_starts(Data(cfg, toy_project))
    split = load_split(toy_project / cfg.paths.splits / cfg.dataset.name / cfg.split_name)
    shipped = {one.workload for one in found.starts}
    held_out = set(split.filter(split["part"] == "test")["workload_id"])
    assert shipped
    assert held_out
    assert not shipped & held_out
    nowhere = live_starts(cfg, str(toy_project / "no-store"))
    assert len(nowhere) == 0
    assert not RecordStore(str(toy_project / "no-store")).exists()


def test_a_model_of_several_hardware_ships_what_is_fast_on_any() -> None:
    from tencost.config.composition import compose
    from tencost.register.start_records import _shared

    slow = StartBook.of("slow", TARGET, [("w", 8e-3, trace(0)), ("w", 4e-3, trace(1))])
    fast = StartBook.of("fast", TARGET, [("w", 1e-3, trace(0)), ("w", 4e-3, trace(1))])
    cfg = compose(["hardware=all"])[0]
    found = _shared([slow, fast], cfg)
    assert found.hardware == "cpu"
    # Both are the fastest of one hardware; the seconds are the geometric mean of the fastest ones, 4 ms and 1 ms.
    assert [one.latency_s for one in found.starts] == pytest.approx([2e-3, 2e-3])
    assert {one.trace[1][0][1] for one in found.starts} == {0, 1}
    assert [one.share for one in found.starts] == [1.0, 1.0]
    lone = StartBook.of("slow", TARGET, [("v", 8e-3, trace(0)), ("v", 16e-3, trace(1))])
    assert [one.share for one in _shared([lone, fast], cfg).starts if one.workload == "v"] == [
        1,
        0.5,
    ]


def test_a_target_of_logs_that_name_none_stays_as_it_is() -> None:
    """T4 results without a description of their search space have {}, which TVM refuses."""
    assert as_recorded({}) == {}
