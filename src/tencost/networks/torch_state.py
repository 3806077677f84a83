"""State that a PyTorch program keeps between calls: a compiled library has none, so such a program is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tencost.errors import MeasureError

_OVERWRITING = {
    "copy", "fill", "zero", "empty_like", "full_like", "ones_like", "zeros_like", "new_empty", "new_full", "new_ones",
    "new_zeros",
}  # fmt: skip
"""Operators that read the shape and type of their first argument alone."""
_COPIES = {"alias", "clone", "detach", "lift_fresh_copy"}


def check_stateless(name: str, program: Any, inputs: Sequence[str]) -> None:
    """Refuse a program whose outputs depend on a tensor that an earlier call wrote, or that writes to an argument.

    A tensor that is written and read by no output (a counter of batches), written before it is read, or put back as it
    was, changes no output of any call.

    Args:
        name: of the network, for the errors.
        program: decomposed torch.export program, in which writes are outputs.
        inputs: names of the arguments, in order; the program's own without.

    Raises:
        MeasureError: the tensors are named.
    """
    signature = program.graph_signature
    nodes = {node.name: node for node in program.graph.nodes}
    arguments = dict(zip(signature.user_inputs, inputs or signature.user_inputs, strict=False))
    states = {**signature.inputs_to_buffers, **signature.inputs_to_parameters}
    holders = {
        **{target: place for place, target in states.items()},
        **{place: place for place in arguments},
    }
    specs = signature.output_specs
    outputs = [
        nodes[spec.arg.name] for spec in specs if spec.target is None and spec.arg.name in nodes
    ]
    written = {
        holders[spec.target]
        for spec in specs
        if spec.kind.name.endswith("_MUTATION")
        and _source(nodes[spec.arg.name]) is not nodes[holders[spec.target]]
    }
    kept = sorted(
        states[node.name].removeprefix("network.")
        for node in _read(outputs)
        if node.name in written and node.name in states
    )
    if kept:
        raise MeasureError(
            f"network {name!r}: expected a program whose outputs depend on its inputs alone, found that it reads "
            f"{', '.join(kept)}, which the calls before have written. A compiled library keeps no state. Take the "
            "state as an input and return the new state as an output"
        )
    passed = [arguments[place] for place in arguments if place in written]
    if passed:
        raise MeasureError(
            f"network {name!r}: expected a program that leaves its arguments as they are, found that it writes to "
            f"{', '.join(passed)}. A compiled library does not. Write to a copy, as {passed[0]}.clone(), and return "
            "the new value as an output if the caller needs it"
        )


def _source(node: Any) -> Any:
    """Return the node that a node is a copy of."""
    while _operator(node) in _COPIES:
        node = node.args[0]
    return node


def _read(outputs: Sequence[Any]) -> set[Any]:
    """Return the nodes whose values outputs depend on."""
    read: set[Any] = set()
    remaining = list(outputs)
    while remaining:
        node = remaining.pop()
        if node not in read:
            read.add(node)
            overwritten = node.args[:1] if _operator(node) in _OVERWRITING else ()
            remaining += [other for other in node.all_input_nodes if other not in overwritten]
    return read


def _operator(node: Any) -> str:
    return str(getattr(getattr(node.target, "overloadpacket", None), "__name__", ""))
