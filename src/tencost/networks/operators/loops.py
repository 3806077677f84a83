"""Loops of ONNX graphs, Loop and Scan, written out: the body once for each iteration, if constants say how many."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np

from tencost.networks.onnx_graph import (
    constant_value,
    fold,
    replace,
    subgraphs,
)
from tencost.networks.operators.node import Refused, write_once

MAX_NODES = 1000
"""Nodes that the loops of a model may become."""
_LOOPS = ("Loop", "Scan")


def unroll_loops(model: Any) -> None:
    """Write out the loops of a model in place, the outer ones first.

    Args:
        model: onnx.ModelProto, its input shapes fixed.

    Raises:
        Refused: the number of iterations depends on data, or the loops are too long.
    """
    numbers, remaining = count(), MAX_NODES

    def unroll(node: Any) -> None:
        nonlocal remaining
        remaining -= _Loop(node).unroll(remaining)

    def writer_of(proto: Any) -> Callable[[Any], None] | None:
        return unroll if _is_loop(proto) else None

    while any(_is_loop(node) for graph in subgraphs(model.graph) for node in graph.node):
        if not write_once(model, numbers, writer_of, _outer_graphs(model.graph)):
            return
        # How long an inner loop is may follow from the iteration of the outer one.
        with contextlib.suppress(Exception):
            fold(model)


def _is_loop(proto: Any) -> bool:
    return proto.op_type in _LOOPS and proto.domain in ("", "ai.onnx")


def _outer_graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and those in its nodes, but no body of a loop."""
    yield graph
    for node in graph.node:
        for setting in node.attribute:
            if setting.HasField("g") and not _is_loop(node):
                yield from _outer_graphs(setting.g)


class _Loop:
    """A node that is a loop, as write_once hands it to a writer, and its body."""

    def __init__(self, node: Any) -> None:
        self.node, self.body = node, node.attribute("body")
        self.kind = node.proto.op_type
        self.inputs = [item.name for item in self.body.input]
        self.outputs = [item.name for item in self.body.output]

    def unroll(self, most: int) -> int:
        """Write the iterations in the node's place; return how many nodes of the body these are.

        Raises:
            Refused: more than `most`, or a number of iterations that is no constant.
        """
        if self.kind == "Scan" and self.node.opset < 9:
            raise Refused("Scan of operator set 8 (export the network with 9 or a newer one)")
        constants = {
            name for node in self.body.node if constant_value(node) for name in node.output
        }
        nodes = [node for node in self.body.node if not constants & {*node.output}]
        iterations = self._loop_iterations() if self.kind == "Loop" else self._scan_iterations()
        if iterations * len(nodes) > most:
            raise Refused(
                f"{self.kind} of {iterations} iterations of {len(nodes)} nodes, where loops are written out as at most "
                f"{MAX_NODES} nodes"
            )
        names = self._hoist_constants()
        skipped = 2 if self.kind == "Loop" else 0
        states = list(self.node.proto.input[skipped:])
        scanned: list[str] = []
        if self.kind == "Scan":
            scanned = states[len(states) - self.node.attribute("num_scan_inputs") :]
            states = states[: len(states) - len(scanned)]
        carried = self.outputs[1 if self.kind == "Loop" else 0 :]
        collected: list[list[str]] = [[] for _ in carried[len(states) :]]
        elements = [self._elements(*item, iterations) for item in enumerate(scanned)]
        for iteration in range(iterations):
            values = [*self._first_values(iteration), *states]
            values += [parts[iteration] for parts in elements]
            renamed = names | dict(zip(self.inputs, values, strict=True))
            suffix = f"_{self.node.new_name()}"
            for defined in _definitions(nodes):
                renamed[defined] = f"{defined}{suffix}"
            for proto in nodes:
                self.node.nodes.append(_renamed(proto, renamed, suffix))
            results = [renamed.get(name, name) for name in carried]
            states = results[: len(states)]
            for parts, name in zip(collected, results[len(states) :], strict=True):
                parts.append(name)
        self._finish(states, collected)
        return iterations * len(nodes)

    def _loop_iterations(self) -> int:
        node = self.node
        number = node.constant(0)
        if number is None:
            raise Refused("Loop whose number of iterations is no constant")
        starts = node.constant(1) if node.has_input(1) else np.array(True)
        continues = self._continues()
        if starts is None or continues is None:
            raise Refused("Loop that ends where a condition says so, which is no constant")
        most = max(int(number.item()), 0) if starts.item() else 0
        return most if continues else min(most, 1)

    def _continues(self) -> bool | None:
        """Return what the condition is after an iteration; None where it depends on data."""
        name, constants = self.outputs[0], self.node.tensors.constants
        sources = {node.output[0]: node for node in self.body.node if node.op_type == "Identity"}
        while name in sources:
            name = sources[name].input[0]
        if name == self.inputs[1]:
            return True
        return bool(constants[name].item()) if name in constants else None

    def _scan_iterations(self) -> int:
        number = self.node.attribute("num_scan_inputs")
        first = len(self.node.proto.input) - number
        shape = self.node.shape(first)
        return shape[self._setting("scan_input_axes", 0) % len(shape)]

    def _setting(self, key: str, index: int) -> int:
        values = self.node.attribute(key, ())
        return int(values[index]) if len(values) > index else 0

    def _hoist_constants(self) -> dict[str, str]:
        """Write the body's constants once; return their new names."""
        import onnx

        tensors = {tensor.name: tensor for tensor in self.body.initializer}
        tensors |= {node.output[0]: constant_value(node) for node in self.body.node}
        return {
            name: self.node.write_constant(onnx.numpy_helper.to_array(tensor))
            for name, tensor in tensors.items()
            if tensor is not None
        }

    def _first_values(self, iteration: int) -> list[str]:
        """Return what a Loop's body reads before its states: the iteration and the condition."""
        if self.kind == "Scan":
            return []
        number = self.body.input[0].type.tensor_type
        shape = [1] * len(number.shape.dim)
        iteration_name = self.node.write_constant(np.full(shape, iteration, np.int64))
        return [iteration_name, self.node.write_constant(np.array(True))]

    def _elements(self, index: int, name: str, iterations: int) -> list[str]:
        """Return what the iterations of a Scan read of an input, cut by one operator.

        TVM compiles, and runs once, a function for each operator of constants: a Gather a step takes seconds.
        """
        node = self.node
        if not iterations:
            return []
        shape = list(node.shape(len(node.proto.input) - node.attribute("num_scan_inputs") + index))
        axis = self._setting("scan_input_axes", index) % len(shape)
        parts, sizes = [node.new_name() for _ in range(iterations)], [1] * iterations
        if node.opset < 13:
            node.write("Split", name, outputs=parts, axis=axis, split=sizes)
        else:
            node.write(
                "Split", name, node.write_constant(sizes, np.int64), outputs=parts, axis=axis
            )
        element = node.write_constant([*shape[:axis], *shape[axis + 1 :]], np.int64)
        parts = [node.write("Reshape", part, element) for part in parts]
        return parts[::-1] if self._setting("scan_input_directions", index) else parts

    def _finish(self, states: list[str], collected: list[list[str]]) -> None:
        """Write the node's outputs: the last states, and what the iterations have collected."""
        node, outputs = self.node, list(self.node.proto.output)
        for name, output in zip(states, outputs, strict=False):
            if output:
                node.write("Identity", name, outputs=[output])
        for index, (parts, output) in enumerate(
            zip(collected, outputs[len(states) :], strict=False)
        ):
            if not output:
                continue
            if not parts:
                raise Refused(f"{self.kind} without iterations, whose output {output} is empty")
            axis = self._setting("scan_output_axes", index)
            if self._setting("scan_output_directions", index):
                parts = parts[::-1]
            if node.opset < 13:
                parts = [node.write("Unsqueeze", part, axes=[axis]) for part in parts]
            else:
                axes = node.write_constant([axis], np.int64)
                parts = [node.write("Unsqueeze", part, axes) for part in parts]
            node.write("Concat", *parts, outputs=[output], axis=axis)


def _definitions(nodes: Any) -> Iterator[str]:
    """Yield the names of the tensors that nodes, and the graphs in them, define."""
    for node in nodes:
        yield from (name for name in node.output if name)
        for setting in node.attribute:
            if setting.HasField("g"):
                inner = setting.g
                yield from (item.name for item in (*inner.input, *inner.initializer))
                yield from _definitions(inner.node)


def _renamed(proto: Any, names: dict[str, str], suffix: str) -> Any:
    """Return a copy of a node with its tensors' names changed, in the graphs in it, too."""
    import onnx

    node = onnx.NodeProto()
    node.CopyFrom(proto)
    node.name = f"{proto.name or proto.op_type}{suffix}"
    for field in (node.input, node.output):
        field[:] = [names.get(name, name) for name in field]
    for setting in node.attribute:
        if setting.HasField("g"):
            inner = setting.g
            del inner.value_info[:]
            for item in (*inner.input, *inner.output, *inner.initializer):
                item.name = names.get(item.name, item.name)
            replace(inner.node, [_renamed(part, names, suffix) for part in inner.node])
    return node
