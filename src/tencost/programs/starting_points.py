"""Starting points: the fastest programs of every workload that a model was trained on, shipped in its bundle.

A tuner re-fits them to the task at hand (:mod:`tencost.programs.codegen.refit`) and measures them before it searches.
They are of what the model was fitted on: all records, or, with `rule.refit=false`, those of the training and validation
sides of the split only, so that a figure on held-out networks stays one.

The file, ``starts.json``, version 1: one JSON object.

    {"version": 1, "hardware": name, "target": {...},
     "instructions": [[instruction, ...], ...],        distinct instruction lists, without post-processing
     "programs": [[workload id, seconds, index of an instruction list, [[instruction index, decision], ...]], ...]}

Instructions and decisions are those of TVM's ``Trace.as_json``. The fastest program of a workload comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tencost.errors import BundleError

VERSION = 1
FILE = "starts.json"
PER_WORKLOAD = 8
"""Programs of a workload that are kept."""

Trace = Sequence[Any]


@dataclass(frozen=True)
class StartingPoint:
    """A program that was measured.

    Attributes:
        workload: workload id.
        latency_s: median seconds.
        share: latency of the workload's fastest program / this one's, in (0, 1].
        trace: ``[instructions, decisions]``, plain JSON values, without post-processing.
    """

    workload: str
    latency_s: float
    share: float
    trace: Trace


@dataclass(frozen=True)
class StartBook:
    """Fast programs of one hardware and target, those of a workload together and the fastest first."""

    hardware: str
    target: dict[str, Any]
    starts: tuple[StartingPoint, ...]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def num_workloads(self) -> int:
        """Number of workloads that the programs are of."""
        return len({start.workload for start in self.starts})

    @classmethod
    def of(
        cls,
        hardware: str,
        target: dict[str, Any],
        programs: Iterable[tuple[str, float, Trace]],
        per_workload: int = PER_WORKLOAD,
    ) -> StartBook:
        """Keep the fastest programs of each workload.

        Args:
            hardware: name of the hardware that they were measured on.
            target: TVM target that they were measured for.
            programs: (workload id, median seconds, trace as plain JSON values) in any order.
            per_workload: programs of a workload to keep.
        """
        by_workload: dict[str, list[tuple[float, Trace]]] = {}
        for workload, seconds, trace in programs:
            by_workload.setdefault(workload, []).append((seconds, trace))
        starts = []
        for workload, timed in sorted(by_workload.items()):
            timed.sort(key=lambda pair: pair[0])
            fastest = timed[0][0]
            starts += [
                StartingPoint(workload, seconds, fastest / seconds, without_postproc(trace))
                for seconds, trace in timed[:per_workload]
            ]
        return cls(hardware, target, tuple(starts))

    def joined(self, other: StartBook) -> StartBook:
        """Return the fastest programs of both.

        Raises:
            BundleError: they are for different kinds of target.
        """
        if self.target["kind"] != other.target["kind"]:
            raise BundleError(
                f"expected starting points for target {self.target}, found some for {other.target}"
            )
        programs = [
            (start.workload, start.latency_s, start.trace)
            for start in (*self.starts, *other.starts)
        ]
        return StartBook.of(self.hardware, self.target, programs)

    def write(self, path: Path) -> None:
        """Write the book to one file."""
        lists: dict[bytes, int] = {}
        programs = []
        for start in self.starts:
            index = lists.setdefault(orjson.dumps(start.trace[0]), len(lists))
            programs.append([start.workload, start.latency_s, index, start.trace[1]])
        content = {
            "version": VERSION,
            "hardware": self.hardware,
            "target": self.target,
            "instructions": [orjson.Fragment(text) for text in lists],
            "programs": programs,
        }
        path.write_bytes(orjson.dumps(content) + b"\n")

    @classmethod
    def read(cls, path: Path) -> StartBook:
        """Read what `write` wrote.

        Raises:
            BundleError: missing, damaged, or written by another version.
        """
        try:
            content = orjson.loads(path.read_bytes())
            if content["version"] != VERSION:
                raise BundleError(
                    f"{path}: expected starting points of version {VERSION}, found {content['version']}. "
                    "Use the tencost release that wrote them, or tune without: tuner.starts=0"
                )
            lists = content["instructions"]
            programs = [
                (str(workload), float(seconds), [lists[index], decided])
                for workload, seconds, index, decided in content["programs"]
            ]
            return cls.of(
                str(content["hardware"]), dict(content["target"]), programs, len(programs)
            )
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise BundleError(
                f"{path}: expected starting points (JSON), found something else: {error}. "
                "Pull the model again, or tune without: tuner.starts=0"
            ) from error


def without_postproc(trace: Trace) -> Trace:
    """Return the trace up to EnterPostproc: the rest follows mechanically, and differs between TVM versions."""
    instructions, decided = trace[0], trace[1]
    ends = (at for at, instruction in enumerate(instructions) if instruction[0] == "EnterPostproc")
    end = next(ends, None)
    if end is None:
        return trace
    return [instructions[:end], [decision for decision in decided if int(decision[0]) < end]]


def shipped_starts(bundle: Path) -> StartBook | None:
    """Return the book in a bundle's folder; None where it has none.

    Raises:
        BundleError: it cannot be read.
    """
    path = bundle / FILE
    return StartBook.read(path) if path.is_file() else None
