"""The device of a log's records: the one that they name themselves, then the one that the user assigns, then a default.

    hardware  NAME          of records that name no device
            | FOLDER=NAME   of those in a folder or file, the longest that holds the log; wins over the other

FOLDER is a path, or one relative to an imported folder, with or without that folder's name. A folder below
measure_records/ stands between the two. What a record itself names (its target's -model, the hardware of a table) is
never overwritten; where it is another device than the one that its log was given, that is told.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pyarrow as pa

from tencost.config.checking import plain_name
from tencost.errors import RecordError
from tencost.records.reading.protocol import first_names
from tencost.records.reading.targets import named_device

SHOWN = 4
"""Devices that a warning names."""


@dataclass
class Devices:
    """Devices that a user assigns to logs."""

    default: str | None = None
    folders: Mapping[str, str] = field(default_factory=dict)
    """Folder or file -> device."""
    _used: set[str] = field(default_factory=set)

    def of(self, base: Path, relative: str, place: str | None) -> str | None:
        """Return the device of a log's records that name none.

        Args:
            base: the imported folder, or the one of an imported file.
            relative: the log below it.
            place: what the folder below measure_records/ says.
        """
        whole = base.resolve()
        path = whole / relative
        match = ""
        for name in self.folders:
            starts = [(above / name).resolve() for above in (Path(), whole, whole.parent)]
            if len(name) > len(match) and any(path.is_relative_to(start) for start in starts):
                match = name
        self._used.add(match)
        return self.folders[match] if match else place or self.default

    def check_used(self) -> None:
        """Refuse a folder that no log lies in.

        Raises:
            RecordError: there is one.
        """
        for name in self.folders:
            if name not in self._used:
                raise RecordError(
                    f"expected a log in {name}, whose hardware was said to be {self.folders[name]}, found none. Write "
                    "the folder as it lies below the imported one: --hardware FOLDER=NAME"
                )


def parse_devices(words: Sequence[str]) -> Devices:
    """Parse the values of --hardware.

    Raises:
        RecordError: two defaults, or two names of a folder.
        ConfigError: a name that is no name of a folder.
    """
    default: str | None = None
    folders: dict[str, str] = {}
    for word in words:
        folder, equals, name = word.rpartition("=")
        plain_name("hardware", name)
        folder = folder.rstrip("/")
        if equals and (not folder or not name):
            raise RecordError(f"expected FOLDER=NAME, found {word!r}")
        if equals and folders.setdefault(folder, name) != name:
            raise RecordError(
                f"expected one hardware of {folder}, found {folders[folder]} and {name}"
            )
        if not equals:
            if default not in (None, name):
                raise RecordError(
                    f"expected one hardware of records that name none, found {default} and {name}. Say which folder "
                    "is whose: --hardware FOLDER=NAME"
                )
            default = name
    return Devices(default, folders)


@dataclass
class Agreement:
    """Compares the devices that records name with the devices that the user assigned to their logs."""

    _others: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    """Assigned device -> devices that records name instead -> their targets."""
    _unnamed: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    """Assigned device -> kinds (with their -device: mali, adreno) of targets that name no device -> their targets."""

    def add(self, table: pa.Table, device: str) -> None:
        """Compare some records of a log, columns hardware and target, with its assigned device."""
        frame = pl.DataFrame(table.select(["hardware", "target"]))
        for hardware, text in frame.unique().iter_rows():
            if hardware != device:
                self._others.setdefault(device, {}).setdefault(hardware, set()).add(text)
                continue
            target = json.loads(text)
            if named_device(target) is None and isinstance(kind := target.get("kind"), str):
                made_for = f"{kind} -device={target['device']}" if target.get("device") else kind
                self._unnamed.setdefault(device, {}).setdefault(made_for, set()).add(text)

    def warnings(self) -> Iterator[str]:
        """Yield a warning of a sentence or two for each disagreement that a user should check."""
        for device, others in self._others.items():
            targets = set().union(*others.values())
            first = min(others)
            verb = "names" if len(targets) == 1 else "name"
            yield (
                f"{_count(targets)} {verb} another device than {device}: {first_names(sorted(others), SHOWN)}. "
                f"Their records are kept under what they name. If it is {device}: "
                f"tencost records rename --hardware {first} {device}"
            )
        for device, kinds in self._unnamed.items():
            if len(kinds) > 1:
                targets = set().union(*kinds.values())
                yield (
                    f"{_count(targets)} of {len(kinds)} kinds name no device, and all were given {device}: "
                    f"{first_names(sorted(kinds), SHOWN)}. If they are of more devices, say which folder is whose: "
                    "--hardware FOLDER=NAME"
                )


def _count(targets: set[str]) -> str:
    return f"{len(targets)} target{'' if len(targets) == 1 else 's'}"
