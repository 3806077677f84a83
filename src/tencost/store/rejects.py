"""What could not be read of files, by file, line and reason; where in its files a graph was read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, order=True)
class Reject:
    """What could not be read: file, line from 1 (0: the file as a whole), reason."""

    file: str
    line: int
    reason: str


@dataclass(frozen=True, order=True)
class GraphReject(Reject):
    """What could not be used of a family of networks: its family too, and the graph from 0 (-1: none)."""

    family: str
    graph: int


@dataclass(frozen=True, eq=False)
class Places:
    """Where graphs were read.

    Attributes:
        file: str [G], relative to the folder that was read.
        line: int64 [G], of the graph's first item, from 1; 0: not known.
        step: lines from one item of a graph to its next; 0 where a graph stands on one line.
    """

    file: NDArray[np.str_]
    line: NDArray[np.int64]
    step: int

    def take(self, indices: NDArray[np.int64]) -> Places:
        return Places(self.file[indices], self.line[indices], self.step)
