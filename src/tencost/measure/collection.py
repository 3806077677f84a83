"""A raw dataset that grows: networks, programs and measurements in the layout of records/raw_layout.py.

::

    measured/<name>/
        tasks.json                            index of all tasks, made from network_info/
        network_info/<network>.json           tasks with weights and modules
        network_info/<network>.relax          the fused Relax module as TVM's JSON, weights as inputs
        to_measure_programs/<task>/           database pair, run_secs null
        to_measure_programs/<task>/origin.json   how the programs were made: {"seed", "exhausted", "origins": [...]}
        measure_records/<hardware>/<task>/    database pair and measurements.jsonl, see journal.py; by_rule.json
        measure_records/<hardware>/sessions.jsonl
        NOTES.md                              what a person has to say about it, part of the card; optional

Files other than journals appear whole or not at all, so that a killed command leaves nothing half written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tencost.errors import MeasureError, TencostError
from tencost.records.formats.metaschedule import (
    RECORD_FILE,
    WORKLOAD_FILE,
    LoggedProgram,
    encode_module,
    read_programs,
    read_workloads,
)
from tencost.records.raw_layout import folder_name
from tencost.writing import whole_file

ORIGIN_FILE = "origin.json"
UNKNOWN_ORIGIN = "unknown"
"""Of a program whose origin was not written down."""


@dataclass(frozen=True)
class CollectedTask:
    """A distinct workload of the collection.

    Attributes:
        folder: its folder under to_measure_programs/.
        task_name: name of the fused function.
        workload_id: content id.
        mod_json: its module as TVM's JSON text.
        flop: floating-point operations of a call.
        networks: networks that have it.
    """

    folder: str
    task_name: str
    workload_id: str
    mod_json: str
    flop: float
    networks: tuple[str, ...]


@dataclass(frozen=True)
class ProgramOrigin:
    """How the programs of a task were made.

    Attributes:
        seed: seed of the first sampling.
        exhausted: the design space has no further programs.
        origins: "random", "evolved: <model>" or "unknown" for each program in order.
    """

    seed: int
    exhausted: bool
    origins: tuple[str, ...]


class Collection:
    """The folder of a collection; makes nothing until something is written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

    def networks(self) -> list[str]:
        """Return the names of its networks, sorted."""
        return sorted(path.stem for path in (self.path / "network_info").glob("*.json"))

    def add_network(self, network: str, relax_json: str, tasks: Sequence[dict[str, Any]]) -> None:
        """Write a network's module and tasks ({task_name, weight, flop, workload_id, mod}) and the index."""
        folder = self.path / "network_info"
        write_whole(folder / f"{network}.relax", relax_json)
        write_whole(folder / f"{network}.json", json.dumps(list(tasks), indent=1) + "\n")
        self.write_index()

    def write_index(self) -> None:
        """Write tasks.json from network_info/ and the folders that have programs."""
        index: list[dict[str, Any]] = []
        for network in self.networks():
            for task in self._tasks_of(network):
                folder = folder_name(task["task_name"], task["workload_id"])
                chosen = (self.path / "to_measure_programs" / folder).is_dir()
                place = {"measured": chosen, "folder": folder if chosen else None}
                del task["mod"]
                index.append({"network": network, **task, **place})
        write_whole(self.path / "tasks.json", json.dumps(index, indent=1) + "\n")

    def tasks(self, min_mflop: float) -> list[CollectedTask]:
        """Return the distinct workloads of at least so many MFLOP, in order of networks, costliest first.

        Two networks name the same workload differently; the first network's name (alphabetically) counts.

        Raises:
            MeasureError: there is no network.
        """
        if not self.networks():
            raise MeasureError(
                f"expected networks in {self.path}, found none. Add one: tencost measure networks network=bert_tiny"
            )
        by_workload: dict[str, CollectedTask] = {}
        for network in self.networks():
            for task in self._tasks_of(network):
                identity, flop = task["workload_id"], float(task["flop"])
                if flop < min_mflop * 1e6:
                    continue
                earlier = by_workload.get(identity)
                name = earlier.task_name if earlier else task["task_name"]
                sharing = (*(earlier.networks if earlier else ()), network)
                by_workload[identity] = CollectedTask(
                    folder_name(name, identity), name, identity, task["mod"], flop, sharing
                )
        return list(by_workload.values())

    def programs(self, task: CollectedTask) -> list[LoggedProgram]:
        """Return the programs to measure; empty if there are none yet."""
        return logged_programs(self.path / "to_measure_programs" / task.folder)

    def origin(self, task: CollectedTask) -> ProgramOrigin | None:
        """Return how each of its programs was made; None if there are none yet."""
        path = self.path / "to_measure_programs" / task.folder / ORIGIN_FILE
        if not path.is_file():
            return None
        origin = json.loads(path.read_text(encoding="utf-8"))
        origins = tuple(origin["origins"])
        count = len(self.program_lines(task))
        if count < len(origins):  # killed between the two files of write_programs
            return ProgramOrigin(origin["seed"], False, origins[:count])
        unknown = (UNKNOWN_ORIGIN,) * (count - len(origins))
        return ProgramOrigin(origin["seed"], origin["exhausted"], (*origins, *unknown))

    def program_lines(self, task: CollectedTask) -> list[str]:
        """Return the lines of the database of its programs; empty if there is none yet."""
        path = self.path / "to_measure_programs" / task.folder / RECORD_FILE
        return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []

    def write_programs(
        self, task: CollectedTask, shash: str, lines: Sequence[str], origin: ProgramOrigin
    ) -> None:
        """Write a task's programs, each a record line of a database; replaces what was there.

        Their origins come first: :meth:`origin` leaves those out whose programs a killed command did not get to.
        """
        folder = self.path / "to_measure_programs" / task.folder
        workload = [shash, encode_module(task.mod_json)]
        write_whole(folder / WORKLOAD_FILE, json.dumps(workload, separators=(",", ":")) + "\n")
        write_whole(folder / ORIGIN_FILE, json.dumps(asdict(origin)) + "\n")
        write_whole(folder / RECORD_FILE, "".join(f"{line}\n" for line in lines))

    def records_folder(self, hardware: str, task: CollectedTask, shard: tuple[int, int]) -> Path:
        """Return the folder of a task's measurements; a shard's has its own, so that shards merge by copying."""
        folder = self.path / "measure_records" / hardware / task.folder
        index, count = shard
        return folder if count == 1 else folder / f"shard-{index}-of-{count}"

    def measured(self, hardware: str, task: CollectedTask) -> list[LoggedProgram]:
        """Return what was measured of a task on a hardware, all shards together."""
        top = self.path / "measure_records" / hardware / task.folder
        folders = sorted(path.parent for path in top.glob(f"**/{RECORD_FILE}"))
        return [program for folder in folders for program in logged_programs(folder)]

    def hardware(self) -> list[str]:
        """Return the names of the hardware that it has measurements of."""
        return sorted(
            path.name for path in (self.path / "measure_records").glob("*") if path.is_dir()
        )

    def locked(self, what: str) -> AbstractContextManager[Any]:
        """Hold the collection for one kind of work, "networks and programs" or the name of a hardware, see `hold`.

        Raises:
            MeasureError: another process holds it.
        """
        folder = self.path / ".locks"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(folder, error) from error
        refusal = MeasureError(
            f"{self.path}: another process is at work on {what} of this collection. Wait for it, or collect "
            "elsewhere: measure.name=..."
        )
        return hold(folder / f"{what.replace(' ', '-')}.lock", refusal)

    def _tasks_of(self, network: str) -> list[dict[str, Any]]:
        path = self.path / "network_info" / f"{network}.json"
        try:
            tasks: list[dict[str, Any]] = json.loads(path.read_bytes())
            for task in tasks:
                task["flop"], task["mod"], task["workload_id"]
        except (ValueError, KeyError, TypeError) as error:
            raise MeasureError(
                f"expected a list of tasks in {path}, found something else ({error}). Write it again: "
                "tencost measure networks network=..."
            ) from error
        return tasks


def logged_programs(folder: Path) -> list[LoggedProgram]:
    """Read the records of a folder's database, in order; lines that are none are left out."""
    if not (folder / RECORD_FILE).is_file():
        return []
    workloads, _ = read_workloads(folder / WORKLOAD_FILE)
    programs = read_programs(folder / RECORD_FILE, workloads)
    return [program for program in programs if isinstance(program, LoggedProgram)]


def hold(lock: Path, refusal: TencostError) -> AbstractContextManager[Any]:
    """Hold a file lock from now to the end of the block; raises `refusal` where another process holds it."""
    try:
        return FileLock(lock).acquire(timeout=0)
    except Timeout as error:
        raise refusal from error


def write_line(file: FileIO, fields: Any) -> None:
    """Append a line of JSON to an unbuffered file, whole; raises OSError."""
    remaining = json.dumps(fields, separators=(",", ":")).encode() + b"\n"
    while remaining:
        remaining = remaining[file.write(remaining) :]


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        MeasureError: the disk is full or read-only.
    """
    try:
        with whole_file(path, durable=True) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise disk_error(path, error) from error


def disk_error(path: Path, error: OSError) -> MeasureError:
    """Return the error of a file that cannot be written."""
    return MeasureError(
        f"cannot write {path}: {error.strerror or error}. What was measured before is kept; make room or choose "
        "another place (measure.workdir=...), then run the command again to continue."
    )
