"""A graph of CG's operators, written node by node in topological order."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tencost.networks.graph.graph_set import GraphSet
from tencost.networks.graph.identity import graph_ids
from tencost.networks.graph.onnx_tensors import OnnxTensors, Shape
from tencost.networks.graph.operators import COLUMNS, OPERATOR_CODES, OUTPUT

_RANK = 5
"""Numbers that a shape has in the columns."""


class NodeWriter:
    """The nodes so far, and which of them makes which tensor.

    Args:
        tensors: the tensors of the model that is written; None for a graph by hand.

    Attributes:
        operators: of the nodes so far.
    """

    def __init__(self, tensors: OnnxTensors | None = None) -> None:
        self._tensors = tensors
        self.operators: list[str] = []
        self._columns: list[list[int]] = []
        self._edges: dict[tuple[int, int], None] = {}
        self._makers: dict[str, int] = {}
        self._shapes: dict[str, Shape] = {}

    def operator(self, name: str) -> str:
        """Return which operator makes a tensor; "" for none."""
        maker = self._makers.get(name)
        return "" if maker is None else self.operators[maker]

    def shape(self, name: str) -> Shape:
        """Return a tensor's shape as the columns have it, before it is padded."""
        if name in self._shapes or self._tensors is None:
            return self._shapes.get(name, ())
        return self._tensors.shape(name)

    def sources(self, names: Sequence[str]) -> list[int]:
        """Return the nodes that make some tensors; those of weights have none."""
        return [self._makers[name] for name in names if name in self._makers]

    def add(
        self,
        operator: str,
        sources: Sequence[int],
        shape: Shape = (),
        returned: Shape = (),
        *,
        weight: Sequence[int] = (0, 0, 0, 0),
        strides: Sequence[int] = (0, 0),
    ) -> int:
        """Write a node and return its number.

        Args:
            operator: one of OPERATORS.
            sources: nodes that it takes, each once.
            shape: of its first input.
            returned: shape of its output.
            weight: height, width, channels in and out.
            strides: vertical and horizontal.
        """
        node = len(self.operators)
        self.operators.append(operator)
        self._columns.append([*_five(shape), *weight, *strides, *_five(returned)])
        for source in sources:
            self._edges[source, node] = None
        return node

    def constant(self, shape: Shape = ()) -> int:
        """Write a Const and return its number."""
        return self.add("Const", [], returned=shape)

    def restate(self, node: int, returned: Shape) -> None:
        """Change what a node says of its output."""
        self._columns[node][OUTPUT] = _five(returned)

    def output(self, node: int) -> Shape:
        """Return what a node says of its output, padded."""
        return tuple(self._columns[node][OUTPUT])

    def assign(self, names: Sequence[str], node: int, shape: Shape | None = None) -> None:
        """Note that a node makes these tensors, and the shape of the first where it is not the tensor's own."""
        for name in names:
            self._makers[name] = node
        if shape is not None:
            self._shapes[names[0]] = shape

    def same(self, name: str, other: str) -> None:
        """Note that a tensor is another one, which is made already."""
        if other in self._makers:
            self._makers[name] = self._makers[other]
            self._shapes[name] = self.shape(other)

    def graph(self, name: str, family: str) -> GraphSet:
        """Return what was written as a set of one graph."""
        operator = np.array([OPERATOR_CODES[code] for code in self.operators], np.uint8)
        columns = np.array(self._columns, np.int32).reshape(-1, len(COLUMNS))
        edges = np.array(list(self._edges), np.int32).reshape(-1, 2).T.copy()
        node_start = np.array([0, len(operator)], np.int64)
        edge_start = np.array([0, edges.shape[1]], np.int64)
        return GraphSet(
            graph_ids(operator, columns, node_start, edges, edge_start),
            np.array([family]),
            np.array([name]),
            np.zeros(1, np.int32),
            operator,
            columns,
            node_start,
            edges,
            edge_start,
        )


def _five(shape: Shape) -> list[int]:
    """Return a shape as five numbers, padded on the right; of more dimensions the leading ones are multiplied."""
    if len(shape) > _RANK:
        extra = len(shape) - _RANK + 1
        shape = (prod(shape[:extra]), *shape[extra:])
    return [*shape, *[0] * (_RANK - len(shape))]
