"""nn-Meter's dataset: a file a family, ``<family>.jsonl`` or ``<family>.jsonl.gz``, an object a line for each network.

::

    {"id": "alexnet_1356",
     "cortexA76cpu_tflite21": 231.5, "adreno630gpu_tflite21": 20.1,     milliseconds; null: nobody measured
     "adreno640gpu_tflite21": 14.8, "myriadvpu_openvino2019r2": null,
     "graph": {NODE: {"inbounds": [NODE, ...], "outbounds": [NODE, ...],
                      "attr": {"name": NODE, "type": TYPE, "output_shape": [SHAPE, ...],
                               "input_shape": [SHAPE, ...], "attr": {...}}}, ...}}

A NODE is a name; in- and outbounds that name no node are weights, and skipped. An edge may be told at one of its ends
only. A TYPE is TensorFlow's name of an operator, which are CG's names, too; of some there are versions. A SHAPE is NHWC
of at most five numbers, null where one is not known. Of the operator's own attributes count ``weight_shape`` (height,
width, in, out), ``kernel_shape`` or ``ksize`` and ``strides`` (height and width, or TensorFlow's four numbers), of
convolutions and pooling only, as in CG. Where ``input_shape`` is missing, the first inbound's output is taken.

Source: microsoft/nn-Meter, docs/dataset.md and nn_meter/dataset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from tencost.errors import RecordError
from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs
from tencost.networks.graph.operators import COLUMNS, OPERATOR_CODES, OPERATORS
from tencost.records.network_graphs.reading import (
    GraphFormat,
    GraphReject,
    ReadGraphs,
    bad_latency,
    places,
)
from tencost.records.reading.opening import TruncatedError, lines
from tencost.records.reading.protocol import About

DEVICES = {
    "cortexA76cpu_tflite21": "cortex-a76",
    "adreno630gpu_tflite21": "adreno-630",
    "adreno640gpu_tflite21": "adreno-640",
    "myriadvpu_openvino2019r2": "myriad-vpu",
}
"""nn-Meter's names of devices -> hardware."""
_SUFFIXES = (".jsonl", ".jsonl.gz")
_SAME = {
    "AddV2": "Add", "BatchMatMulV2": "MatMul", "Concat": "ConcatV2", "FusedBatchNormV2": "FusedBatchNorm",
    "FusedBatchNormV3": "FusedBatchNorm", "MaxPoolV2": "MaxPool", "RealDiv": "Div", "SplitV": "Split",
}  # fmt: skip
"""Versions of an operator -> the one of the vocabulary."""
_CONVOLUTIONS = frozenset(("Conv2D", "DepthwiseConv2dNative", "Conv2DTranspose", "GroupConv2D"))
_POOLING = frozenset(("AvgPool", "MaxPool"))
_INT32 = 2**31 - 1


class _LineError(ValueError):
    """A line that is no network: what was expected and found."""


@dataclass(eq=False)
class _Graph:
    """A network as it is read: operator [n], columns [n, 16], edges [2, e]."""

    operator: NDArray[np.uint8]
    columns: NDArray[np.int32]
    edges: NDArray[np.int32]


@dataclass(eq=False)
class _Collected:
    """Columns of the graphs that were read so far, and the rejects."""

    graphs: list[_Graph] = field(default_factory=list)
    family: list[str] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    position: list[int] = field(default_factory=list)
    latency: list[list[float]] = field(default_factory=list)
    file: list[str] = field(default_factory=list)
    line: list[int] = field(default_factory=list)
    rejects: list[GraphReject] = field(default_factory=list)


def read(folder: Path) -> ReadGraphs:
    """Read all families of a folder, line by line."""
    collected = _Collected()
    for family, path in sorted(_files(folder).items()):
        position = -1
        for number, line in _lines(path, family, collected):
            if not line.strip():
                continue
            position += 1
            try:
                _add(collected, line, family, position, path.name, number)
            except _LineError as error:
                collected.rejects.append(
                    GraphReject(path.name, number, str(error), family, position)
                )
    graphs = GraphSet(
        np.full(len(collected.graphs), "", dtype="<U1"),
        np.array(collected.family, dtype=np.str_),
        np.array(collected.name, dtype=np.str_),
        np.array(collected.position, dtype=np.int32),
        np.concatenate([np.zeros(0, np.uint8), *(graph.operator for graph in collected.graphs)]),
        np.concatenate(
            [np.zeros((0, len(COLUMNS)), np.int32), *(graph.columns for graph in collected.graphs)]
        ),
        np.cumsum([0, *(len(graph.operator) for graph in collected.graphs)], dtype=np.int64),
        np.concatenate(
            [np.zeros((2, 0), np.int32), *(graph.edges for graph in collected.graphs)], axis=1
        ),
        np.cumsum([0, *(graph.edges.shape[1] for graph in collected.graphs)], dtype=np.int64),
    )
    latency = np.array(collected.latency, dtype=np.float64).reshape(-1, len(DEVICES))
    where = places(collected.file, collected.line, 0)
    labelled = LabelledGraphs(graphs, tuple(DEVICES.values()), latency)
    return ReadGraphs(labelled, where, where, tuple(collected.rejects))


def _files(folder: Path) -> dict[str, Path]:
    """Return family -> its file, the plain one of two."""
    return {
        path.name.removesuffix(suffix): path
        for suffix in reversed(_SUFFIXES)
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name.endswith(suffix) and not path.name.startswith(".")
    }


def _lines(path: Path, family: str, collected: _Collected) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, line); where a damaged file ends is a reject."""
    number = 0
    try:
        for number, line in lines(path):
            yield number, line
    except (RecordError, TruncatedError) as error:
        collected.rejects.append(GraphReject(path.name, number + 1, str(error), family, -1))


def _add(
    collected: _Collected, line: bytes, family: str, position: int, file: str, number: int
) -> None:
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise _LineError(f"expected a JSON object, found none ({error})") from error
    if not isinstance(entry, dict) or not isinstance(entry.get("graph"), dict):
        raise _LineError("expected a JSON object with a graph, found something else")
    graph = _graph(entry["graph"])
    latency = []
    for key, hardware in DEVICES.items():
        value = entry.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            reason = bad_latency(hardware, value)
            collected.rejects.append(GraphReject(file, number, reason, family, position))
            value = None
        latency.append(np.nan if value is None else float(value))
    name = entry.get("id")
    collected.graphs.append(graph)
    collected.family.append(family)
    collected.name.append(name if isinstance(name, str) and name else f"{family}/{position}")
    collected.position.append(position)
    collected.latency.append(latency)
    collected.file.append(file)
    collected.line.append(number)


def _graph(nodes: dict[str, Any]) -> _Graph:
    """Return the graph of a line's nodes, in their order."""
    number = {name: place for place, name in enumerate(nodes)}
    operator = np.zeros(len(nodes), dtype=np.uint8)
    columns = np.zeros((len(nodes), len(COLUMNS)), dtype=np.int32)
    sources: list[dict[int, None]] = [{} for _ in nodes]  # as sets that keep their order
    for name, node in nodes.items():
        try:
            operator[number[name]], columns[number[name]] = _node(node, nodes)
            for source in node["inbounds"]:
                if source in number:
                    sources[number[name]][number[source]] = None
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            what = f"{type(error).__name__}: {error}"
            raise _LineError(
                f"expected nodes with inbounds, outbounds and attr, found another at {name!r} ({what})"
            ) from error
        except _LineError as error:
            raise _LineError(f"{error} at {name!r}") from error
    for name, node in nodes.items():
        outbounds = node.get("outbounds", ())
        if not isinstance(outbounds, list | tuple):
            raise _LineError(f"expected a list of outbounds, found {outbounds!r:.40} at {name!r}")
        for target in outbounds:
            if isinstance(target, str) and target in number:
                sources[number[target]].setdefault(number[name])
    pairs = [(source, target) for target, inbounds in enumerate(sources) for source in inbounds]
    return _Graph(operator, columns, np.array(pairs, dtype=np.int32).reshape(-1, 2).T)


def _node(node: dict[str, Any], nodes: dict[str, Any]) -> tuple[int, list[int]]:
    """Return a node's code and columns."""
    about = node["attr"]
    kind = _SAME.get(about["type"], about["type"])
    if kind not in OPERATOR_CODES:
        raise _LineError(f"expected one of {len(OPERATORS)} known operators, found {kind!r:.40}")
    inputs = about.get("input_shape")
    if inputs is None:
        before = (source for source in node["inbounds"] if source in nodes)
        inputs = next((nodes[source]["attr"]["output_shape"] for source in before), [])
    attributes = about.get("attr") or {}
    kernel, strides = [0] * 4, [0] * 2
    if kind in _CONVOLUTIONS:
        kernel = _numbers(attributes["weight_shape"], 4)
        strides = _height_width(attributes["strides"])
    elif kind in _POOLING:
        kernel = [*_height_width(attributes.get("kernel_shape") or attributes["ksize"]), 0, 0]
        strides = _height_width(attributes["strides"])
    outputs = about.get("output_shape") or []
    return OPERATOR_CODES[kind], [
        *_shape(inputs),
        *kernel,
        *strides,
        *_shape(outputs),
    ]


def _shape(shapes: Sequence[Any]) -> list[int]:
    """Return the first shape, padded with zeros."""
    shape = _numbers(shapes[0], None) if shapes else []
    if len(shape) > 5:
        raise _LineError(f"expected shapes of at most five numbers, found {len(shape)}")
    return shape + [0] * (5 - len(shape))


def _height_width(numbers: Any) -> list[int]:
    """Return height and width of two numbers, or of TensorFlow's four with the batch and the channels around them."""
    sizes = _numbers(numbers, None)
    if len(sizes) not in (2, 4):
        raise _LineError(f"expected a height and a width, found {numbers!r:.40}")
    return sizes if len(sizes) == 2 else sizes[1:3]


def _numbers(values: Any, count: int | None) -> list[int]:
    if not isinstance(values, list) or (count is not None and len(values) != count):
        raise _LineError(f"expected {count or 'some'} numbers, found {values!r:.40}")
    numbers = [-1 if value is None else value for value in values]
    if not all(type(value) is int and abs(value) <= _INT32 for value in numbers):
        raise _LineError(f"expected whole numbers below 2^31, found {values!r:.40}")
    return numbers


class NnMeterFormat(GraphFormat):
    """Reads nn-Meter's dataset."""

    layout = "files <family>.jsonl (nn-Meter)"

    def recognizes(self, path: Path, _head: bytes) -> bool:
        """Say whether there is a file of a family; lines that say of what hardware they are were measured here."""
        return bool(_files(path)) and not (path / "hardware.json").exists()

    def read(self, path: Path, _about: About) -> Iterator[ReadGraphs]:
        """Yield all networks of the folder, see :func:`read`."""
        yield read(path)


FORMAT = NnMeterFormat()
