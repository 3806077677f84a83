"""The files of a collection, written by a process that is killed between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tencost.measure import collection as module
from tencost.measure.collection import CollectedTask, Collection, ProgramOrigin

TASK = CollectedTask("matmul", "matmul", "0" * 16, "{}", 1e6, ("one",))


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("writes", [0, 1, 2, 3])
def test_every_program_has_one_origin_whatever_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    collection = Collection(tmp_path)
    collection.write_programs(TASK, "1", ["[0]", "[1]"], ProgramOrigin(7, False, ("random",) * 2))
    left = [writes]
    write_whole = module.write_whole

    def write(path: Path, text: str) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        write_whole(path, text)

    monkeypatch.setattr(module, "write_whole", write)
    origins = ("random", "random", "evolved: one", "evolved: one")
    more = ProgramOrigin(7, True, origins)
    if writes < 3:
        with pytest.raises(Killed):
            collection.write_programs(TASK, "1", ["[0]", "[1]", "[2]", "[3]"], more)
    else:
        collection.write_programs(TASK, "1", ["[0]", "[1]", "[2]", "[3]"], more)
    found = collection.origin(TASK)
    assert found is not None
    assert len(found.origins) == len(collection.program_lines(TASK)) == (4 if writes == 3 else 2)
    assert found.origins == origins[: len(found.origins)]
    assert found.exhausted == (writes == 3), "a space that is used up has all its programs there"


def test_programs_that_came_without_origin_are_counted(tmp_path: Path) -> None:
    collection = Collection(tmp_path)
    assert collection.origin(TASK) is None
    collection.write_programs(
        TASK, "1", ["[0]", "[1]", "[2]"], ProgramOrigin(7, False, ("random",))
    )
    assert collection.origin(TASK) == ProgramOrigin(7, False, ("random", "unknown", "unknown"))
