"""Operators that ONNX defines as functions of others, and operators whose inputs are all constant."""

from __future__ import annotations

from typing import Any

from tencost.networks.onnx_graph import node_attributes
from tencost.networks.operators.node import Node, Refused


def as_function(node: Node) -> None:
    """Write a node as ONNX defines it: a function of other operators."""
    import onnx
    import onnx.inliner

    proto, op_type = node.proto, node.proto.op_type
    types = {name: node.tensors.types.get(name) for name in proto.input if name}
    if None in types.values():
        raise Refused(f"{op_type} of an input whose type is not known")
    inputs = [onnx.helper.make_value_info(name, tensor_type) for name, tensor_type in types.items()]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in proto.output if name]
    opsets = [onnx.helper.make_opsetid(*domain) for domain in node.tensors.opsets.items()]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([proto], "alone", inputs, outputs), opset_imports=opsets
    )
    # The body of a function reads the attributes that the node leaves to their defaults.
    schema = onnx.defs.get_schema(op_type, node.opset)
    model.graph.node[0].attribute.extend(
        setting.default_value
        for name, setting in schema.attributes.items()
        if name not in node_attributes(proto) and setting.default_value.name
    )
    if "" in proto.input:
        _define_locally(model, node)
        inlined = onnx.inliner.inline_local_functions(model)
    else:
        inlined = onnx.inliner.inline_selected_functions(
            model, [(proto.domain, op_type)], inline_schema_functions=True
        )
    if any(inner.op_type == op_type for inner in inlined.graph.node):
        raise Refused(f"{op_type} of operator set {node.opset}")
    ends, prefix = {*types, *proto.output, ""}, node.new_name()
    for inner in inlined.graph.node:
        for names in (inner.input, inner.output):
            names[:] = [name if name in ends else f"{prefix}_{name}" for name in names]
    node.nodes.extend(inlined.graph.node)


def _define_locally(model: Any, node: Node) -> None:
    """Add the function that defines a model's one node to the model's local functions, in place.

    ONNX's inliner asks for the type of every input of a function that depends on its inputs, absent ones included.
    """
    import onnx

    proto = node.proto
    schema = onnx.defs.get_schema(proto.op_type, node.opset)
    versions = [
        version
        for version in schema.context_dependent_function_opset_versions
        if version <= node.opset
    ]
    if not versions:
        raise Refused(f"{proto.op_type} of operator set {node.opset} without one of its inputs")
    types = [node.tensors.types[name] if name else onnx.TypeProto() for name in proto.input]
    text = schema.get_context_dependent_function_with_opset_version(
        max(versions), proto.SerializeToString(), [kind.SerializeToString() for kind in types]
    )
    function = onnx.FunctionProto.FromString(text)
    function.domain, function.name = "tencost", proto.op_type
    model.functions.append(function)
    model.opset_import.append(onnx.helper.make_opsetid(function.domain, 1))
    model.graph.node[0].domain = function.domain


def evaluate(node: Node, least: int = 1) -> bool:
    """Compute a node whose inputs are all constants; say whether they are.

    ONNX's reference knows some operators from a later operator set only, `least`, that means the same by them.
    """
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    arrays = {name: node.tensors.constants.get(name) for name in node.proto.input if name}
    if any(array is None for array in arrays.values()):
        return False
    inputs = [helper.make_empty_tensor_value_info(name) for name in arrays]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.proto.output]
    opsets = [
        helper.make_opsetid(domain, version if domain else max(version, least))
        for domain, version in node.tensors.opsets.items()
    ]
    model = helper.make_model(
        helper.make_graph([node.proto], "alone", inputs, outputs), opset_imports=opsets
    )
    results = ReferenceEvaluator(model).run(None, arrays)
    for name, result in zip(node.proto.output, results, strict=True):
        node.write_constant(result, output=name)
    return True


WRITERS = dict.fromkeys(
    (
        "Attention",  # the frontend knows com.microsoft's, whose inputs are others
        "CausalConvWithState", "Celu", "CenterCropPad",
        "NegativeLogLikelihoodLoss", "RotaryEmbedding", "SoftmaxCrossEntropyLoss", "SpaceToDepth", "SwiGLU",
        "Swish",
    ),
    as_function,
)  # fmt: skip
