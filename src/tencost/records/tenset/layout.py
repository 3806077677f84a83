"""TenSet's dataset folder: what lies where, in all four generations of its layout.

::

    network_info/          <network>.relay.pkl, <network and kind>.task.pkl, all_tasks.pkl; network_meta_data/ at first
    to_measure_programs/   <task>.json: programs with the cost 0.0, which means not measured; all_tasks.pkl at first
    measure_records/<hardware>/<task>.json
    <network>-B<batch>-<kind>-<hardware>.json           in generation 0, in place of the two folders above

`.json` files are logs of auto_scheduler, plain, `.gz` or `.zst`; names.py has the names, pickles.py the pickles. The
folder of a hardware is the target's -model: `unknown` there means that the target has none. Names identify nothing
that the contents tell: a log line holds its workload and target.

We write no pickles. In their place, a folder that writing.py writes has

    network_info/<network and kind>.task.json   {network, kind, tasks: [{task: SearchTask, weight}, ...]}
    network_info/all_tasks.json                 [SearchTask, ...]

with the fields of :class:`tencost.records.tenset.pickles.SearchTask`; networks' modules are not there.

Not to be relied on: that a task has 4,000 records (small spaces have fewer), that a program was measured once (a rerun
of TenSet appends), that records of a kind agree in their target.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from tencost.errors import RecordError
from tencost.records.formats import ansor
from tencost.records.reading.opening import read_head
from tencost.records.reading.protocol import Reject
from tencost.records.tenset.names import FileName, is_log_name, parse_name
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
_LOGS_TRIED = 3
"""Of a folder, in which a line of auto_scheduler is looked for."""
_Contents = TypeVar("_Contents")


class NetworkTasks(msgspec.Struct):
    """The tasks of a network for targets of a kind, with their occurrences in it; as JSON, a `.task.json`."""

    network: str
    kind: str
    tasks: list[WeightedTask]


@dataclass(frozen=True)
class TensetDataset:
    """The contents of a TenSet folder; log files are listed, not read.

    Attributes:
        networks: label to the file of its module, which pickles.read_relay reads; None without one.
        tasks: of every network that the dataset has the tasks of, in the order of files.
        record_files: (log file, hardware), by path; hardware is None where neither folder nor name tells it.
        program_files: logs of programs that were not measured, by path.
        all_tasks: every task once; TenSet's task number is the position, where the dataset has its list.
        rejects: pickles and lists of tasks that could not be read, line 0, file relative to the folder.
    """

    networks: dict[str, Path | None]
    tasks: list[NetworkTasks]
    record_files: list[tuple[Path, str | None]]
    program_files: list[Path]
    all_tasks: list[SearchTask]
    rejects: list[Reject]


def is_tenset(folder: Path) -> bool:
    """Say whether a folder holds a TenSet dataset: task files of its, or logs of auto_scheduler where it has them.

    Our own layout (raw_layout.py) has the same folders with MetaSchedule's databases in them, and is none.
    """
    if any((folder / name).is_file() for name in _TASK_LISTS):
        return True
    if any(name.content != "log" for name in _parsed(_info_files(folder)).values()):
        return True
    places = (folder / PROGRAM_FOLDER, *_inside(folder / RECORD_FOLDER, Path.is_dir))
    logs = [path for place in places for path in _logs(place)[:_LOGS_TRIED]]
    return any(
        ansor.FORMAT.recognizes(path, read_head(path)) for path in [*logs, *_early_logs(folder)]
    )


def read_layout(folder: Path) -> TensetDataset:
    """List a TenSet dataset, with the tasks and weights of its networks.

    A file of tasks that cannot be read is a reject; the records are there without it.

    Raises:
        RecordError: the folder holds no TenSet dataset.
    """
    if not is_tenset(folder):
        inside = [path for path in _inside(folder, Path.is_dir) if is_tenset(path)]
        hint = f"import {inside[0]}" if inside else "see docs/how-to/tenset.md"
        raise RecordError(
            f"expected a TenSet dataset in {folder} ({RECORD_FOLDER}/<hardware>/*.json, network_info/*.task.pkl), "
            f"found none: {hint}"
        )
    rejects: list[Reject] = []

    def read_or_reject(path: Path, read: Callable[[Path], list[_Contents]]) -> list[_Contents]:
        try:
            return read(path)
        except RecordError as error:
            rejects.append(Reject(path.relative_to(folder).as_posix(), 0, str(error)))
            return []

    early = _early_logs(folder)
    records = [(path, name.hardware) for path, name in early.items()]
    for hardware in _inside(folder / RECORD_FOLDER, Path.is_dir):
        device = None if hardware.name == NO_MODEL else hardware.name
        records += [(path, device) for path in _logs(hardware)]
    info = _info_files(folder)
    names = _parsed(info) | early
    tasks = [
        network_tasks
        for path in info
        if path.name.endswith(_TASK_SUFFIXES) or (path in names and names[path].content == "tasks")
        for network_tasks in read_or_reject(path, _read_tasks)
    ]
    lists = (folder / name for name in _TASK_LISTS)
    listed = (read_or_reject(path, _read_list) for path in lists if path.is_file())
    modules = {name.network: path for path, name in names.items() if name.content == "network"}
    labels = {name.network for name in names.values()} | {task.network for task in tasks}
    return TensetDataset(
        networks={label: modules.get(label) for label in sorted(labels)},
        tasks=tasks,
        record_files=records,
        program_files=_logs(folder / PROGRAM_FOLDER),
        all_tasks=next(filter(None, listed), []) or distinct_tasks(tasks),
        rejects=rejects,
    )


def network_weights(tasks: Iterable[NetworkTasks]) -> dict[str, list[tuple[str, int]]]:
    """Return (network, weight) of each workload key, by label; weight: occurrences in the network.

    A network whose kinds of target disagree gives the larger weight.
    """
    occurrences: Counter[tuple[str, str, str]] = Counter()
    for of_network in tasks:
        for weighted in of_network.tasks:
            place = weighted.task.workload_key, of_network.network, weighted.task.kind
            occurrences[place] += weighted.weight
    weights: dict[str, dict[str, int]] = {}
    for (key, network, _), weight in occurrences.items():
        of_key = weights.setdefault(key, {})
        of_key[network] = max(weight, of_key.get(network, 0))
    return {key: sorted(of_key.items()) for key, of_key in weights.items()}


def workload_networks(tasks: Iterable[NetworkTasks]) -> dict[str, list[tuple[str, int]]]:
    """Return :func:`network_weights` by the workload_id of records; keys that are no JSON are left out."""
    networks: dict[str, list[tuple[str, int]]] = {}
    for key, weights in network_weights(tasks).items():
        with suppress(ValueError, RecursionError):
            networks[text_id(ansor.FAMILY, canonical_json(json.loads(key)))] = weights
    return networks


def distinct_tasks(tasks: Iterable[NetworkTasks]) -> list[SearchTask]:
    """Return the tasks of all networks once each by workload key and kind, the first of equals."""
    distinct: dict[tuple[str, str], SearchTask] = {}
    for of_network in tasks:
        for weighted in of_network.tasks:
            distinct.setdefault((weighted.task.workload_key, weighted.task.kind), weighted.task)
    return list(distinct.values())


def _inside(folder: Path, is_kind: Callable[[Path], bool]) -> list[Path]:
    """Return what is directly in a folder, which may be missing, of a kind: files or folders."""
    return sorted(filter(is_kind, folder.glob("*")))


def _info_files(folder: Path) -> list[Path]:
    return [path for name in INFO_FOLDERS for path in _inside(folder / name, Path.is_file)]


def _logs(folder: Path) -> list[Path]:
    return [path for path in _inside(folder, Path.is_file) if is_log_name(path.name)]


def _parsed(paths: Iterable[Path]) -> dict[Path, FileName]:
    """Return what their names tell, of files whose names do."""
    names = {path: parse_name(path.name) for path in paths}
    return {path: name for path, name in names.items() if name is not None}


def _early_logs(folder: Path) -> dict[Path, FileName]:
    """Return the logs of generation 0, which are in the dataset's folder itself."""
    names = _parsed(_inside(folder, Path.is_file))
    return {path: name for path, name in names.items() if name.content == "log"}


def _read_tasks(path: Path) -> list[NetworkTasks]:
    if path.name.endswith(".json"):
        return [_read_json(path, NetworkTasks)]
    name, tasks = parse_name(path.name), read_tasks(path)
    network = name.network if name is not None else path.name.partition(".task")[0]
    return [NetworkTasks(network, tasks[0].task.kind if tasks else "", tasks)]


def _read_list(path: Path) -> list[SearchTask]:
    return _read_json(path, list[SearchTask]) if path.suffix == ".json" else read_all_tasks(path)


def _read_json(path: Path, kind: type[_Contents]) -> _Contents:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"expected tasks as JSON in {path}: {error}") from error
