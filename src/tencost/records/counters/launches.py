"""Launches of kernels with their counters, which every format of profiles yields one after the other.

A format is described in tencost.records.reading.protocol.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tencost.records.reading.protocol import About, Format
from tencost.store.rejects import Reject as Reject

RESERVED = ("program_id", "workload", "device", "time_ns")
"""Columns of a table of programs that are no metrics."""


@dataclass(frozen=True)
class Note:
    """A defect of a profile that costs no launch.

    Attributes:
        text: a sentence.
        file: where it was read; "" where it is of no file.
        line: in it, from 1, where the profiler itself reports an error; 0 else. Where no launch comes of the file, the
            error is why, and becomes its Reject.
    """

    text: str
    file: str = ""
    line: int = 0


@dataclass(frozen=True, eq=False)
class Columns:
    """Metrics that several launches share: today's names, distinct, and canonical units."""

    names: tuple[str, ...]
    units: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel that ran once under a profiler.

    Attributes:
        file: where it was read.
        line: in it, of its first row.
        kernel: its name.
        shape: what it was launched with, grid and block, as text; "" where that is not told.
        device: as the profiler names it; "" where it does not.
        marks: texts around it that may name its program: ranges of NVTX.
        columns: its metrics.
        values: float64 [len(columns.names)] in canonical units; NaN: not measured.
        time_ns: what it took where its format tells that beside the metrics; NaN: the metrics tell.
        program: its program's id where its format knows; "" where it does not.
        workload: what the program computes, where its format knows.
        run: which of the program's runs it belongs to, where its format knows; 0 where it does not.
        parameters: the program's tuning parameters, where its format has some.
    """

    file: str
    line: int
    kernel: str
    shape: str
    device: str
    marks: str
    columns: Columns
    values: NDArray[np.float64]
    time_ns: float = float("nan")
    program: str = ""
    workload: str = ""
    run: int = 0
    parameters: Mapping[str, object] = field(default_factory=dict)


class ProfileFormat(Format):
    """A kind of file with hardware counters."""

    @abstractmethod
    def read(self, path: Path, about: About, /) -> Iterator[Launch | Reject | Note]:
        """Yield every launch of a file in its order, and between them what was left out and what is odd.

        Raises:
            RecordError: the file cannot be opened.
        """
