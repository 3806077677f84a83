"""TenSet's dataset folder: what lies where, in all four generations of its layout.

::

    network_info/          <network>.relay.pkl, <network and kind>.task.pkl, all_tasks.pkl; network_meta_data/ at first
    to_measure_programs/   <task>.json: programs with the cost 0.0, which means not measured; all_tasks.pkl at first
    measure_records/<hardware>/<task>.json
    <network>-B<batch>-<kind>-<hardware>.json           in generation 0, in place of the two folders above

`.json` files are logs of auto_scheduler (ansor.py), plain, `.gz` or `.zst`; names are in tensetnames.py, pickles in
pickles.py. The folder of a hardware is the target's -model: `unknown` there means that the target has none. Names
identify nothing that the contents tell: a log line holds its workload and target.

We write no pickles. In their place a folder that tensetwriter.py made has

    network_info/<network and kind>.task.json   {network, kind, tasks: [{task: SearchTask, weight}, ...]}
    network_info/all_tasks.json                 [SearchTask, ...]

with the fields of :class:`tencost.records.tenset.pickles.SearchTask`; networks' modules are not there.

Not to be relied on: that a task has 4,000 records (small spaces have fewer), that a program was measured once (a rerun
of TenSet appends), that records of a kind agree in their target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from tencost.errors import RecordError
from tencost.records.formats import ansor
from tencost.records.reading.opening import read_head
from tencost.records.reading.protocol import Reject
from tencost.records.tenset.names import (
    CURRENT_GENERATION,
    FileName,
    NetworkKey,
    is_log_name,
    network_from_label,
    parse_name,
)
from tencost.records.tenset.pickles import SearchTask, WeightedTask, read_all_tasks, read_tasks
from tencost.store.ids import canonical_json, text_id

INFO_FOLDERS = ("network_info", "network_meta_data")
PROGRAM_FOLDER = "to_measure_programs"
RECORD_FOLDER = "measure_records"
NO_MODEL = "unknown"
"""Folder of records whose target has no -model."""

_TASK_LISTS = (
    "network_info/all_tasks.pkl",
    "network_info/all_tasks.json",
    "to_measure_programs/all_tasks.pkl",
    "to_measure_programs/task_registry.pkl",
)
_TASK_SUFFIXES = (".task.pkl", ".task.json", ".task")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class NetworkTask:
    """A task of a network for targets of a kind; weight: occurrences in the network."""

    network: str
    kind: str
    task: SearchTask
    weight: int


@dataclass(frozen=True)
class TensetNetwork:
    """A network of the dataset; `relay` is the file of its module, which pickles.read_relay reads."""

    key: NetworkKey
    relay: Path | None = None

    @property
    def label(self) -> str:
        """The network's name in the record store."""
        return self.key.label


@dataclass(frozen=True)
class TensetDataset:
    """What a TenSet folder holds; log files are listed, not read.

    Attributes:
        folder: the dataset's folder.
        generation: of its naming, 0 to 3.
        networks: by label.
        tasks: of every network that the dataset has the tasks of, in the order of files and lists.
        record_files: (log file, hardware), by path; hardware is None where neither folder nor name tells it.
        program_files: logs of programs that were not measured, by path.
        all_tasks: every task once; TenSet's task number is the position, where the dataset has its list.
        log_networks: label of the network that a log is of, generation 0 only.
        rejects: pickles and lists of tasks that could not be read, line 0, file relative to the folder.
    """

    folder: Path
    generation: int
    networks: list[TensetNetwork] = field(default_factory=list)
    tasks: list[NetworkTask] = field(default_factory=list)
    record_files: list[tuple[Path, str | None]] = field(default_factory=list)
    program_files: list[Path] = field(default_factory=list)
    all_tasks: list[SearchTask] = field(default_factory=list)
    log_networks: dict[Path, str] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=list)


class TaskFile(msgspec.Struct):
    """Contents of a `.task.json`."""

    network: str
    kind: str
    tasks: list[WeightedTask]


def is_tenset(folder: Path) -> bool:
    """Say whether a folder holds a TenSet dataset: task files of its, or logs of auto_scheduler where it has them.

    Our own layout (raw_layout.py) has the same folders with MetaSchedule's databases in them, and is none.
    """
    if any(
        _content(path) in ("network", "tasks")
        for name in INFO_FOLDERS
        for path in _files(folder / name)
    ):
        return True
    if any((folder / name).is_file() for name in _TASK_LISTS):
        return True
    logs = [*_first_logs(folder), *(path for path in _files(folder) if _early_log(path))]
    return any(ansor.FORMAT.recognizes(path, read_head(path)) for path in logs)


def read_layout(folder: Path) -> TensetDataset:
    """List a TenSet dataset, with the tasks and weights of its networks.

    A file of tasks that cannot be read is a reject; the records are there without it.

    Raises:
        RecordError: the folder holds no TenSet dataset.
    """
    if not is_tenset(folder):
        inside = [path.name for path in _folders(folder) if is_tenset(path)]
        hint = f"import {folder / inside[0]}" if inside else "see docs/how-to/tenset.md"
        raise RecordError(
            f"expected a TenSet dataset in {folder} ({RECORD_FOLDER}/<hardware>/*.json, network_info/*.task.pkl), "
            f"found none: {hint}"
        )
    rejects: list[Reject] = []
    info = [path for name in INFO_FOLDERS for path in _files(folder / name)]
    tasks = [
        task
        for path in info
        if path.name.endswith(_TASK_SUFFIXES) or _content(path) == "tasks"
        for task in _tried(folder, path, rejects, _network_tasks)
    ]
    early = {path: parse_name(path.name) for path in _files(folder) if _early_log(path)}
    records = [(path, name.hardware if name else None) for path, name in early.items()]
    for hardware in _folders(folder / RECORD_FOLDER):
        device = None if hardware.name == NO_MODEL else hardware.name
        records += [(path, device) for path in _logs(hardware)]
    programs = _logs(folder / PROGRAM_FOLDER)
    paths = [*info, *(path for path, _ in records), *programs]
    named = [(path, name) for path in paths if (name := parse_name(path.name)) is not None]
    return TensetDataset(
        folder=folder,
        generation=min((name.generation for _, name in named), default=CURRENT_GENERATION),
        networks=_networks(named, tasks),
        tasks=tasks,
        record_files=records,
        program_files=programs,
        all_tasks=_all_tasks(folder, rejects) or distinct_tasks(item.task for item in tasks),
        log_networks={
            path: name.network.label for path, name in early.items() if name and name.network
        },
        rejects=rejects,
    )


def network_weights(
    dataset: TensetDataset, kind: str | None = None
) -> dict[str, list[tuple[str, int]]]:
    """Return (network, weight) of each workload key, by label; weight: occurrences in the network.

    Args:
        dataset: of which the tasks are.
        kind: targets of this kind only. Without it, a network whose kinds disagree gives the larger weight.
    """
    counts: dict[str, dict[tuple[str, str], int]] = {}
    for item in dataset.tasks:
        if kind in (None, item.kind):
            of_key = counts.setdefault(item.task.workload_key, {})
            place = item.network, item.kind
            of_key[place] = of_key.get(place, 0) + item.weight
    weights: dict[str, list[tuple[str, int]]] = {}
    for key, of_key in counts.items():
        largest: dict[str, int] = {}
        for (network, _), weight in of_key.items():
            largest[network] = max(weight, largest.get(network, weight))
        weights[key] = sorted(largest.items())
    return weights


def workload_networks(
    dataset: TensetDataset, kind: str | None = None
) -> dict[str, list[tuple[str, int]]]:
    """Return :func:`network_weights` by the workload_id of records; keys that are no JSON are left out."""
    found: dict[str, list[tuple[str, int]]] = {}
    for key, weights in network_weights(dataset, kind).items():
        try:
            found[text_id(ansor.FAMILY, canonical_json(json.loads(key)))] = weights
        except (ValueError, RecursionError):
            continue
    return found


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_file())


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _logs(folder: Path) -> list[Path]:
    return [path for path in _files(folder) if is_log_name(path.name)]


def _first_logs(folder: Path) -> Iterator[Path]:
    for place in (folder / PROGRAM_FOLDER, *_folders(folder / RECORD_FOLDER)):
        yield from _logs(place)[:3]


def _early_log(path: Path) -> bool:
    name = parse_name(path.name)
    return name is not None and name.generation == 0 and name.content == "log"


def _content(path: Path) -> str | None:
    name = parse_name(path.name)
    return name.content if name is not None else None


def _networks(
    named: Iterable[tuple[Path, FileName]], tasks: Iterable[NetworkTask]
) -> list[TensetNetwork]:
    """Return the networks that names or tasks are of, by label."""
    found: dict[str, TensetNetwork] = {}
    for path, name in named:
        if name.network is not None and name.content == "network":
            found[name.network.label] = TensetNetwork(name.network, path)
    keys = [
        *(name.network for _, name in named),
        *(network_from_label(item.network) for item in tasks),
    ]
    for key in keys:
        if key is not None:
            found.setdefault(key.label, TensetNetwork(key))
    return [found[label] for label in sorted(found)]


def _network_tasks(path: Path) -> list[NetworkTask]:
    if path.name.endswith(".json"):
        content = _read_json(path, TaskFile)
        return [
            NetworkTask(content.network, content.kind, item.task, item.weight)
            for item in content.tasks
        ]
    name = parse_name(path.name)
    label = name.network.label if name and name.network else path.name.partition(".task")[0]
    return [NetworkTask(label, item.task.kind, item.task, item.weight) for item in read_tasks(path)]


def _all_tasks(folder: Path, rejects: list[Reject]) -> list[SearchTask]:
    for name in _TASK_LISTS:
        path = folder / name
        if path.is_file() and (found := _tried(folder, path, rejects, _read_list)):
            return found
    return []


def _read_list(path: Path) -> list[SearchTask]:
    if path.suffix == ".json":
        return _read_json(path, list[SearchTask])
    return read_all_tasks(path)


def _read_json(path: Path, kind: type[_Value]) -> _Value:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"expected tasks as JSON in {path}: {error}") from error


def _tried(
    folder: Path, path: Path, rejects: list[Reject], read: Callable[[Path], list[_Value]]
) -> list[_Value]:
    try:
        return read(path)
    except RecordError as error:
        rejects.append(Reject(path.relative_to(folder).as_posix(), 0, str(error)))
        return []


def distinct_tasks(tasks: Iterable[SearchTask]) -> list[SearchTask]:
    """Return tasks once each by workload key and kind, the first of equals."""
    found: dict[tuple[str, str], SearchTask] = {}
    for task in tasks:
        found.setdefault((task.workload_key, task.kind), task)
    return list(found.values())
