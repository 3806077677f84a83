"""What a dying worker and a killed parent cost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tencost.features.parallel import Featurized, featurize
from tencost.features.rows.kind import Chunk
from tencost.features.rows.spec import FeatureSpec
from tencost.workers.parallel import local

SPEC = FeatureSpec(name="tiny", kind="per_store", columns=("a",))
SLEEPER = """
import time
from tencost.features.rows.kind import Chunk
from tencost.features.parallel import featurize
from tencost.features.rows.spec import FeatureSpec

def sleep(spec, chunk):
    time.sleep(60)

if __name__ == "__main__":
    chunks = [Chunk("w", "", "", (name,), ("",)) for name in "abcd"]
    list(featurize(FeatureSpec(name="x", kind="trace", columns=("a",)), chunks, 2, sleep))
"""


def poisoned_work(spec: FeatureSpec, chunk: Chunk) -> list[Featurized]:
    if "poison" in chunk.programs:
        os._exit(1)
    return [Featurized(one, chunk.workload_id, None, "fine") for one in chunk.program_ids]


@pytest.mark.slow
def test_a_dying_worker_does_not_take_what_waits_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a worker imports TVM, which takes seconds: only what was in flight is run again."""
    pools = []

    class Counted(ProcessPoolExecutor):
        def __init__(self, *args: Any, **settings: Any) -> None:
            pools.append(args)
            super().__init__(*args, **settings)

    monkeypatch.setattr(local, "ProcessPoolExecutor", Counted)
    chunks = []
    for index in range(30):
        programs = tuple("poison" if (index, place) == (1, 2) else "fine" for place in range(8))
        chunks.append(
            Chunk(f"w{index}", "", "", tuple(f"{index}-{place}" for place in range(8)), programs)
        )
    found = [one for results in featurize(SPEC, chunks, 2, poisoned_work) for one in results]
    assert sorted(one.program_id for one in found) == sorted(
        name for chunk in chunks for name in chunk.program_ids
    )
    assert [one.program_id for one in found if "died" in one.reason] == ["1-2"]
    assert len(pools) <= 10


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)
    parent = subprocess.Popen([sys.executable, str(script)])
    try:
        workers: list[psutil.Process] = []
        deadline = time.monotonic() + 60
        while (
            len(workers) < 3 and time.monotonic() < deadline
        ):  # two workers and the resource tracker
            time.sleep(0.2)
            workers = psutil.Process(parent.pid).children(recursive=True)
        assert len(workers) == 3
        time.sleep(1.0)
    finally:
        parent.kill()
        parent.wait()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert alive == []
