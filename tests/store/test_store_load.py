"""The store under load: writers at once, killed and started again, a reader and compaction meanwhile."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from test_store import AVX2, record

from tencost.errors import RecordError
from tencost.store import compaction, delta
from tencost.store import record_store as store_module
from tencost.store.compaction import rewrite
from tencost.store.delta import commit_version
from tencost.store.editing import rename_hardware
from tencost.store.layout import data_files
from tencost.store.record_store import RecordStore
from tencost.store.schema import SCHEMA, Record, to_arrow

WRITERS = 3
BATCHES = 8
SIZE = 3
"""Records of a batch that no other writer has; as many again are the same for all writers."""


def batch(writer: int, number: int) -> list[Record]:
    """Return what a writer commits at once: records of its own, and of all writers."""
    hardware = "ab"[number % 2]
    first = number * SIZE
    own = [record(1000 * (writer + 1) + first + at, hardware) for at in range(SIZE)]
    return own + [record(first + at, hardware) for at in range(SIZE)]


def write_all(uri: str, writer: int, acknowledged: Path) -> None:
    """Write every batch from the first on, and note each once the store has answered."""
    store = RecordStore(uri)
    for number in range(BATCHES):
        store.write(batch(writer, number))
        with acknowledged.open("a") as file:
            file.write(f"{number}\n")


class Writer:
    """A process that runs :func:`write_all`."""

    def __init__(self, uri: str, number: int, folder: Path) -> None:
        self.number = number
        self.acknowledged = folder / f"acknowledged-{number}"
        self.acknowledged.touch()
        code = (
            "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); "
            "from test_store_load import write_all; "
            "write_all(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))"
        )
        here = str(Path(__file__).parent)
        words = [here, uri, str(number), str(self.acknowledged)]
        self._command = [sys.executable, "-c", code, *words]
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, from the first batch on."""
        self.process = subprocess.Popen(self._command)
        return self.process

    def batches(self) -> list[int]:
        """Return the batches that were acknowledged."""
        return [int(line) for line in self.acknowledged.read_text().splitlines()]

    def kill(self) -> bool:
        """End it at once, in whatever it is doing; False where it was done before."""
        self.process.send_signal(signal.SIGKILL)
        return self.process.wait(10) == -signal.SIGKILL


def ids_in(uri: str) -> Counter[str]:
    store = RecordStore(uri)
    return Counter(store.read(columns=["record_id"])["record_id"] if store.exists() else [])


def expect_whole(uri: str, writers: list[Writer]) -> int:
    """Check that acknowledged batches are there, others whole or not at all; return the number of rows."""
    noted = {writer.number: writer.batches() for writer in writers}
    found = ids_in(uri)
    assert set(found.values()) <= {1}
    for writer in writers:
        for number in range(BATCHES):
            made = [item.record_id for item in batch(writer.number, number)]
            for part in (made[:SIZE], made[SIZE:]):
                held = sum(found[name] for name in part)
                assert held in (0, SIZE), (writer.number, number)
                assert held == SIZE or number not in noted[writer.number]
    return found.total()


@pytest.mark.slow
def test_writers_killed_and_started_again(tmp_path: Path) -> None:
    kill_and_start_again(str(tmp_path / "store"), tmp_path)


def kill_and_start_again(uri: str, folder: Path, pause_s: float = 0.05) -> None:
    """Kill writers at once at a store and start them again; at the end everything is there, once.

    `pause_s` lies between two looks at the whole store, of which each takes from the writers' time.
    """
    writers = [Writer(uri, number, folder) for number in range(WRITERS)]
    kills = {0: [2, 5], 1: [4]}  # after so many batches; then started again
    rows, compacted, chance = 0, 0, random.Random(1)
    until = time.monotonic() + 300
    try:
        while any(kills.values()) or any(writer.process.poll() is None for writer in writers):
            assert time.monotonic() < until
            for writer in writers:
                left = kills.get(writer.number, [])
                if left and len(writer.batches()) >= left[0]:
                    time.sleep(chance.uniform(0.0, 0.2))
                    if writer.kill():  # else it was faster, and is killed in its next run
                        left.pop(0)
                    rows = expect_whole(uri, writers)
                    writer.start()
            now = expect_whole(uri, writers)
            assert now >= rows
            rows = now
            if rows > 40 * (compacted + 1) and compacted < 2:
                compacted += bool(RecordStore(uri).compact().added)
            time.sleep(pause_s)
    finally:
        for writer in writers:
            if writer.process.poll() is None:
                writer.kill()
    assert [writer.process.returncode for writer in writers] == [0] * WRITERS
    assert kills == {0: [], 1: []}
    assert compacted
    everything = {
        item.record_id
        for writer in range(WRITERS)
        for n in range(BATCHES)
        for item in batch(writer, n)
    }
    assert ids_in(uri) == Counter(everything)


def test_a_write_cut_short_before_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed writer leaves behind: files that no version has."""
    uri = str(tmp_path / "store")

    def never(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "commit_version", never)
        with pytest.raises(KeyboardInterrupt):
            RecordStore(uri).write(batch(0, 0))
    assert list(Path(uri).glob("hardware=*/*.parquet"))
    assert ids_in(uri) == Counter()
    assert RecordStore(uri).write(batch(0, 0)) == 2 * SIZE
    assert set(ids_in(uri).values()) == {1}
    assert RecordStore(uri).vacuum(0) == 1


def test_a_commit_whose_answer_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = str(tmp_path / "store")
    answers = iter([CommitFailedError("the connection was closed"), None])

    def unreliable(*arguments: Any) -> None:
        commit_version(*arguments)
        answer = next(answers)
        if answer:
            raise answer

    monkeypatch.setattr(store_module, "commit_version", unreliable)
    assert RecordStore(uri).write(batch(0, 0)) == 2 * SIZE
    assert ids_in(uri).total() == 2 * SIZE


def test_another_writer_is_faster_with_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "store")
    RecordStore(uri).write(batch(0, 2))
    others = iter([batch(1, 0), batch(2, 1), batch(3, 2)])

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(store_module, "commit_version", commit_version)
        other = next(others, None)
        if other:
            RecordStore(uri).write(other)
            monkeypatch.setattr(store_module, "commit_version", overtaken)
        commit_version(*arguments)

    monkeypatch.setattr(store_module, "commit_version", overtaken)
    assert RecordStore(uri).write(batch(0, 0)) == SIZE  # batch(1, 0) had the others'
    assert next(others, None) is None
    everything = {
        item.record_id for part in ((0, 2), (1, 0), (2, 1), (3, 2), (0, 0)) for item in batch(*part)
    }
    assert ids_in(uri) == Counter(everything)


def test_a_writer_that_is_always_overtaken_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(*_: object) -> None:
        raise CommitFailedError("version 1 exists")

    monkeypatch.setattr(store_module, "commit_version", overtaken)
    monkeypatch.setattr(delta, "ATTEMPTS", 3)
    with pytest.raises(RecordError, match="within 3 attempts; other writers were faster each time"):
        RecordStore(str(tmp_path / "store")).write(batch(0, 0))


def rewriting_while(monkeypatch: pytest.MonkeyPatch, other: Callable[[], object]) -> None:
    """Let `other` happen once, between what a compaction reads and its commit."""

    def slow(*arguments: Any) -> Any:
        made = rewrite(*arguments)
        monkeypatch.setattr(compaction, "rewrite", rewrite)
        other()
        return made

    monkeypatch.setattr(compaction, "rewrite", slow)


def test_compaction_beside_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = str(tmp_path / "store")
    for number in (0, 2, 4):
        RecordStore(uri).write(batch(0, number))
    rewriting_while(monkeypatch, lambda: RecordStore(uri).write(batch(1, 0)))
    before = ids_in(uri)
    assert len(RecordStore(uri).compact().replaced) == 3
    assert ids_in(uri) == before + Counter(item.record_id for item in batch(1, 0)[:SIZE])


def test_two_compactions_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = str(tmp_path / "store")
    for number in (0, 2, 4):
        RecordStore(uri).write(batch(0, number))
    rewriting_while(monkeypatch, lambda: RecordStore(uri).compact())
    before = ids_in(uri)
    with pytest.raises(RecordError, match=r"another process rewrote them\. Nothing is lost"):
        RecordStore(uri).compact()
    assert ids_in(uri) == before


def test_many_small_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are merged on the way, and opening reads a checkpoint, not every commit there was."""
    monkeypatch.setattr(compaction, "SMALL_FILES", 8)
    store = RecordStore(str(tmp_path / "store"))
    for number in range(90):
        store.write([record(number)])
    assert len(data_files(DeltaTable(store.uri))) <= 8
    assert list((tmp_path / "store" / "_delta_log").glob("*.checkpoint.parquet"))
    assert store.best("w", hardware="a", target=AVX2, n=200).height == 90
    assert set(ids_in(store.uri).values()) == {1}


@pytest.mark.parametrize("change", ["compact", "further", "rename", "release"])
def test_delta_lakes_own_optimize_beside_a_change_is_refused(tmp_path: Path, change: str) -> None:
    """Somebody's script that began before the change and would bring the old rows back beside the new ones."""
    uri = str(tmp_path / "store")
    store = RecordStore(uri)
    doubtful = to_arrow([record(9)]).to_pylist()
    doubtful[0]["quarantine"] = "too fast"
    store.write_table(pa.Table.from_pylist(doubtful, schema=SCHEMA))
    for number in range(3):
        store.write([record(number)])
    outside = DeltaTable(uri)
    changes: dict[str, Callable[[], object]] = {
        "compact": store.compact,
        "further": lambda: store.write([replace(record(1), run_secs=(5e-3,))]),
        "rename": lambda: rename_hardware(uri, "a", "b"),
        "release": lambda: store.release(["a-0009"]),
    }
    changes[change]()
    before = ids_in(uri)
    with pytest.raises(CommitFailedError, match="concurrent transaction deleted data"):
        outside.optimize.compact()
    assert ids_in(uri) == before
