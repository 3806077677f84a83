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
from functools import partial
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
    join_graph_sets,
    one_graph,
    places,
)
from tencost.records.reading.opening import TruncatedError, lines
from tencost.records.reading.protocol import About, BadLineError

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


def read(folder: Path) -> ReadGraphs:
    """Read all families of a folder, line by line."""
    graphs: list[GraphSet] = []
    latencies: list[list[float]] = []
    files: list[str] = []
    numbers: list[int] = []
    rejects: list[GraphReject] = []
    for family, path in sorted(_files(folder).items()):
        position = -1
        for number, line in _lines(path, family, rejects):
            if not line.strip():
                continue
            position += 1
            reject = partial(GraphReject, path.name, number, family=family, graph=position)
            try:
                graph, latency, reasons = _labelled(line, family, position)
            except BadLineError as error:
                rejects.append(reject(str(error)))
                continue
            rejects += map(reject, reasons)
            graphs.append(graph)
            latencies.append(latency)
            files.append(path.name)
            numbers.append(number)
    where = places(files, numbers, 0)
    latency_ms = np.array(latencies, dtype=np.float64).reshape(-1, len(DEVICES))
    labelled = LabelledGraphs(join_graph_sets(graphs), tuple(DEVICES.values()), latency_ms)
    return ReadGraphs(labelled, where, where, tuple(rejects))


def _files(folder: Path) -> dict[str, Path]:
    """Return family -> its file, the plain one of two."""
    return {
        path.name.removesuffix(suffix): path
        for suffix in reversed(_SUFFIXES)
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name.endswith(suffix) and not path.name.startswith(".")
    }


def _lines(path: Path, family: str, rejects: list[GraphReject]) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, line); where a damaged file ends is a reject."""
    number = 0
    try:
        for number, line in lines(path):
            yield number, line
    except (RecordError, TruncatedError) as error:
        rejects.append(GraphReject(path.name, number + 1, str(error), family, -1))


def _labelled(line: bytes, family: str, position: int) -> tuple[GraphSet, list[float], list[str]]:
    """Return a line's graph, its latency on each of DEVICES in milliseconds, and why others are none."""
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadLineError(f"expected a JSON object, found none ({error})") from error
    if not isinstance(entry, dict) or not isinstance(entry.get("graph"), dict):
        raise BadLineError("expected a JSON object with a graph, found something else")
    latency: list[float] = []
    reasons = []
    for key, hardware in DEVICES.items():
        value = entry.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            reasons.append(bad_latency(hardware, value))
            value = None
        latency.append(np.nan if value is None else float(value))
    label = entry.get("id")
    name = label if isinstance(label, str) and label else f"{family}/{position}"
    return one_graph(family, name, position, *_graph(entry["graph"])), latency, reasons


def _graph(
    nodes: dict[str, Any],
) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32]]:
    """Return operator [n], columns [n, 16] and edges [2, e] of a line's nodes, in their order."""
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
            raise BadLineError(
                f"expected nodes with inbounds, outbounds and attr, found another at {name!r} ({what})"
            ) from error
        except BadLineError as error:
            raise BadLineError(f"{error} at {name!r}") from error
    for name, node in nodes.items():
        outbounds = node.get("outbounds", ())
        if not isinstance(outbounds, list | tuple):
            raise BadLineError(f"expected a list of outbounds, found {outbounds!r:.40} at {name!r}")
        for target in outbounds:
            if isinstance(target, str) and target in number:
                sources[number[target]].setdefault(number[name])
    pairs = [(source, target) for target, inbounds in enumerate(sources) for source in inbounds]
    return operator, columns, np.array(pairs, dtype=np.int32).reshape(-1, 2).T


def _node(node: dict[str, Any], nodes: dict[str, Any]) -> tuple[int, list[int]]:
    """Return a node's code and columns."""
    about = node["attr"]
    kind = _SAME.get(about["type"], about["type"])
    if kind not in OPERATOR_CODES:
        raise BadLineError(f"expected one of {len(OPERATORS)} known operators, found {kind!r:.40}")
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
        raise BadLineError(f"expected shapes of at most five numbers, found {len(shape)}")
    return shape + [0] * (5 - len(shape))


def _height_width(numbers: Any) -> list[int]:
    """Return height and width of two numbers, or of TensorFlow's four with the batch and the channels around them."""
    sizes = _numbers(numbers, None)
    if len(sizes) not in (2, 4):
        raise BadLineError(f"expected a height and a width, found {numbers!r:.40}")
    return sizes if len(sizes) == 2 else sizes[1:3]


def _numbers(values: Any, count: int | None) -> list[int]:
    if not isinstance(values, list) or (count is not None and len(values) != count):
        raise BadLineError(f"expected {count or 'some'} numbers, found {values!r:.40}")
    numbers = [-1 if value is None else value for value in values]
    if not all(type(value) is int and abs(value) <= _INT32 for value in numbers):
        raise BadLineError(f"expected whole numbers below 2^31, found {values!r:.40}")
    return numbers


class NnMeterFormat(GraphFormat):
    """Reads nn-Meter's dataset."""

    layout = "files <family>.jsonl (nn-Meter)"

    def recognizes(self, path: Path, _head: bytes) -> bool:
        """Say whether there is a file of a family; lines that say of what hardware they are were measured here."""
        return bool(_files(path)) and not (path / "hardware.json").exists()

    def read(self, path: Path, _about: About) -> Iterator[ReadGraphs]:
        yield read(path)


FORMAT = NnMeterFormat()
