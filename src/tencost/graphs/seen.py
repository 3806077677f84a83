"""What a model has seen: operators, the range of each of their numbers, and how large networks were.

seen.json in a bundle: {"graphs": count, "max_nodes": count, "operators": {name: {"nodes": count, "low": [16 numbers],
"high": [16 numbers]}}}, numbers in the order of tencost.graphs.operators.COLUMNS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from tencost.errors import BundleError
from tencost.graphs.graph_set import GraphSet
from tencost.graphs.operators import COLUMNS, OPERATOR_CODES, OPERATORS

FILE = "seen.json"
_QUIET = frozenset({"Placeholder", "Const"})
"""Operators that cost nothing: their sizes are not worth a warning."""


@dataclass(frozen=True)
class Range:
    """One operator in the graphs that were learnt from.

    Attributes:
        nodes: how often it was there.
        low: smallest value of each column.
        high: largest value of each column.
    """

    nodes: int
    low: tuple[int, ...]
    high: tuple[int, ...]


@dataclass(frozen=True)
class Seen:
    """What the graphs that were learnt from hold.

    Attributes:
        graphs: how many they were.
        max_nodes: of the largest.
        operators: operator -> its range.
    """

    graphs: int
    max_nodes: int
    operators: dict[str, Range]

    @staticmethod
    def of(graphs: GraphSet) -> Seen:
        """Return what some graphs hold."""
        found = {}
        for code in np.unique(graphs.operator):
            own = graphs.columns[graphs.operator == code]
            low, high = (tuple(int(value) for value in end) for end in (own.min(0), own.max(0)))
            found[OPERATORS[code]] = Range(len(own), low, high)
        return Seen(len(graphs), int(np.diff(graphs.node_start).max(initial=0)), found)

    def unknown(self, graphs: GraphSet) -> list[str]:
        """Return, a sentence each, what some graphs hold that was not there: operators, sizes, number of nodes."""
        told = []
        nodes = int(np.diff(graphs.node_start).max(initial=0))
        if nodes > self.max_nodes:
            told.append(f"{nodes} nodes; the largest network learnt from has {self.max_nodes}")
        for code in np.unique(graphs.operator):
            name = OPERATORS[code]
            own = graphs.columns[graphs.operator == code]
            known = self.operators.get(name)
            if known is None:
                told.append(f"{name} ({len(own)} times) was never learnt")
            elif name not in _QUIET:
                told += _beyond(name, own, known)
        return told

    def to_json(self) -> bytes:
        """Return the content of seen.json."""
        values = {
            "graphs": self.graphs,
            "max_nodes": self.max_nodes,
            "operators": {
                name: {"nodes": one.nodes, "low": list(one.low), "high": list(one.high)}
                for name, one in self.operators.items()
            },
        }
        return orjson.dumps(values, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"


def read_seen(folder: Path) -> Seen:
    """Read seen.json of a bundle.

    Raises:
        BundleError: missing, or not what `to_json` writes.
    """
    path = folder / FILE
    try:
        values = orjson.loads(path.read_bytes())
        operators = {
            name: Range(int(one["nodes"]), _numbers(one["low"]), _numbers(one["high"]))
            for name, one in values["operators"].items()
            if name in OPERATOR_CODES
        }
        return Seen(int(values["graphs"]), int(values["max_nodes"]), operators)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BundleError(
            f"{path}: expected what the model's training graphs hold, found {error!r}. Pull or train it again."
        ) from error


def _numbers(values: Sequence[int]) -> tuple[int, ...]:
    if len(values) != len(COLUMNS):
        raise ValueError(f"expected {len(COLUMNS)} numbers, found {len(values)}")
    return tuple(int(value) for value in values)


def _beyond(
    name: str, own: np.ndarray[tuple[int, ...], np.dtype[np.int32]], known: Range
) -> list[str]:
    told = []
    for place, column in enumerate(COLUMNS):
        low, high = int(own[:, place].min()), int(own[:, place].max())
        if high > known.high[place]:
            told.append(f"{name}: {column} up to {high}; learnt up to {known.high[place]}")
        if 0 < low < known.low[place]:
            told.append(f"{name}: {column} down to {low}; learnt down to {known.low[place]}")
    return told
