"""Lines of nn-Meter's dataset, made of graphs: named nodes, weights among the inbounds, TensorFlow's attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs
from tencost.networks.graph.operators import OPERATORS
from tencost.records.network_graphs.formats.nn_meter import DEVICES


def nn_meter_lines(labelled: LabelledGraphs) -> list[bytes]:
    """Return a line a graph; `labelled` has nn-Meter's devices."""
    assert labelled.hardware == tuple(DEVICES.values())
    lines = []
    for row, graphs in enumerate(labelled.graphs.batches(1)):
        latency = labelled.latency_ms[row]
        entry = {
            "id": str(graphs.name[0]),
            **{
                key: None if np.isnan(ms) else ms
                for key, ms in zip(DEVICES, latency.tolist(), strict=True)
            },
            "graph": nn_meter_graph(graphs),
        }
        lines.append(orjson.dumps(entry) + b"\n")
    return lines


def nn_meter_graph(graphs: GraphSet) -> dict[str, Any]:
    """Return the nodes of one graph as nn-Meter writes them."""
    kinds = [OPERATORS[code] for code in graphs.operator]
    names = [f"net/layer_{place}/{kind}" for place, kind in enumerate(kinds)]
    nodes: dict[str, Any] = {}
    for place, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        row = graphs.columns[place].tolist()
        attributes: dict[str, Any] = {}
        inbounds = [names[source] for source, target in graphs.edges.T if target == place]
        if kind in ("Conv2D", "DepthwiseConv2dNative"):
            inbounds.append(f"{name}/weight")  # no node: the weights were stripped
            attributes = {
                "kernel_shape": row[5:7],
                "weight_shape": row[5:9],
                "strides": row[9:11],
                "dilations": [1, 1],
                "pads": [0, 1, 0, 1],
                "padding": "SAME",
                "data_format": "NHWC",
            }
        elif kind in ("MaxPool", "AvgPool"):
            attributes = {"ksize": row[5:7], "strides": [1, *row[9:11], 1], "padding": "VALID"}
        elif kind == "StridedSlice":
            attributes = {"strides": [1, 1, 1, 1]}
        nodes[name] = {
            "inbounds": inbounds,
            "outbounds": [names[target] for source, target in graphs.edges.T if source == place],
            "attr": {
                "name": name,
                "type": kind,
                "output_shape": _shapes(row[11:16]),
                "input_shape": _shapes(row[0:5]),
                "attr": attributes,
            },
        }
    return nodes


def _shapes(row: list[int]) -> list[list[int]]:
    shape = np.trim_zeros(np.array(row), "b").tolist()
    return [shape] if shape else []
