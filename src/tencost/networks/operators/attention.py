"""Linear attention, a step of its recurrence after the other."""

from __future__ import annotations

import numpy as np

from tencost.networks.operators.node import Node, Refused

_MOST_STEPS = 128


def _linear_attention(node: Node) -> None:
    """ONNX defines it with a Scan, which the frontend lacks: the steps are written out, in float32."""
    batch, steps, _ = node.shape(0)
    if steps > _MOST_STEPS:
        raise Refused(f"LinearAttention of {steps} steps; tencost writes up to {_MOST_STEPS} out")
    rule = node.attribute("update_rule", "gated_delta")
    query_heads, heads = node.attribute("q_num_heads"), node.attribute("kv_num_heads")
    key_size, value_size = node.shape(1)[2] // heads, node.shape(2)[2] // heads

    def by_step(index: int, count: int, arranged: list[int]) -> list[str]:
        """Return an input's values at each step, float32 [B, heads, ...]."""
        size = node.shape(index)[2] // count
        data = node.reshape(
            node.cast(node.proto.input[index], np.float32), [batch, steps, count, size]
        )
        values = [
            node.write("Gather", data, node.write_constant(step, np.int64), axis=1)
            for step in range(steps)
        ]
        return [node.reshape(value, [batch, count, *arranged]) for value in values]

    group = query_heads // heads
    queries = by_step(0, query_heads, [1, -1])
    keys, rows = by_step(1, heads, [-1, 1]), by_step(2, heads, [1, -1])
    decays = by_step(4, heads, [-1, 1]) if rule in ("gated", "gated_delta") else []
    shares = []
    if rule in ("delta", "gated_delta"):
        shares = by_step(5, node.shape(5)[2], [1, 1])
    sizes = [batch, heads, key_size, value_size]
    state_dtype = node.dtype(3) if node.has_input(3) else node.dtype(0)
    if node.has_input(3):
        state = node.cast(node.proto.input[3], np.float32)
    else:
        state = node.write_constant(np.zeros(sizes), np.float32)
    scale = node.attribute("scale", 0.0) or 1 / np.sqrt(key_size)
    factor = node.write_constant(scale, np.float32)
    outputs = []
    for step in range(steps):
        key, row = keys[step], rows[step]
        if decays:
            state = node.write("Mul", state, node.write("Exp", decays[step]))
        if shares:
            recalled = node.write("MatMul", node.reshape(key, [batch, heads, 1, key_size]), state)
            row = node.write("Mul", shares[step], node.write("Sub", row, recalled))
        state = node.write("Add", state, node.write("Mul", key, row))
        # The heads of a group read one state: they are rows of one product.
        query = node.reshape(queries[step], [batch, heads, group, key_size])
        product = node.write("Mul", node.write("MatMul", query, state), factor)
        outputs.append(node.reshape(product, [batch, 1, query_heads * value_size]))
    output = node.write("Concat", *outputs, axis=1)
    node.cast(output, node.dtype(0), node.proto.output[:1])
    if node.is_read(1):
        node.cast(state, state_dtype, node.proto.output[1:2])


WRITERS = {"LinearAttention": _linear_attention}
