"""Networks from ONNX files.

TVM's frontend wants static shapes and looks at constants only where they stand. So a graph's input shapes are fixed,
what follows from shapes and constants alone is folded (exported transformers compute most of their shapes in the
graph), and its tensors are sorted into weights, which stay inputs of the Relax module until after fusion, and
constants, as they come out of PyTorch: integers, scalars and the running statistics of batch norms are constants, every
other tensor is a weight. A layer then gives the same workload whichever way it came.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tencost.config import NetworkConfig
from tencost.errors import MeasureError
from tencost.networks.inputs import (
    Array,
    DeclaredInput,
    batch_notes,
    draw_inputs,
    resolve_shapes,
)
from tencost.networks.onnx_graph import (
    check_bytes,
    constant_node,
    constant_value,
    fix_shapes,
    fold,
    infer_shapes,
    load_model,
    replace,
    subgraphs,
    without_large_weights,
)
from tencost.networks.onnx_run import run_model
from tencost.networks.operators import Refused, written_anew
from tencost.networks.operators.loops import unroll_loops
from tencost.networks.operators.recurrent_layers import check_recurrent
from tencost.networks.operators.regions import padded_outputs
from tencost.networks.source import Imported, NetworkSource, first_sentence, require_module

_CONSTANT_INPUTS = {"BatchNormalization": (3, 4), "Resize": (1, 2, 3), "Upsample": (1,)}
"""Operators and which of their inputs are settings or statistics though they are floating-point tensors."""


def _read(config: NetworkConfig, path: Path | None) -> Imported:
    """Import an ONNX file; onnxruntime computes the expected outputs (the onnx package does where it is missing).

    Raises:
        ConfigError: not a whole ONNX model, or inputs that do not fit it.
        MeasureError: an operator that TVM's frontend lacks, or a graph that it or onnxruntime cannot take.
    """
    assert path is not None
    require_module("onnx", "onnxscript", extra="tuner")
    model = load_model(path)
    declared = _declared(config, model.graph)
    inputs = draw_inputs(config, declared, resolve_shapes(config, declared))
    outputs = [output.name for output in model.graph.output]
    if not outputs:
        raise MeasureError(f"network {config.name!r}: expected a graph with outputs, found none")
    _check_tensors(config, "outputs", model.graph.output)
    mod, params = to_relax(config, model, inputs)
    expected, computed_by = run_model(config, path, inputs)
    notes = batch_notes(config, declared)
    for name in padded_outputs(model.graph):
        place = outputs.index(name)
        rows = int(mod["main"].ret_ty.fields[place].shape[0])
        expected[place] = pad_rows(expected[place], rows)
        notes.append(
            f"output {name} (NonMaxSuppression) has always {rows} rows: the selected boxes, then rows of -1"
        )
    return Imported(
        mod,
        params,
        inputs,
        expected,
        outputs,
        outputs[0],
        computed_by=computed_by,
        notes=tuple(notes),
        again=lambda *arguments: run_model(config, path, *arguments)[0],
    )


def _to_onnx(config: NetworkConfig, path: Path | None) -> Any:
    """Return the file's model with its inputs' shapes fixed.

    Raises:
        ConfigError: as `_read`.
    """
    assert path is not None
    require_module("onnx", "onnxscript", extra="latency")
    return _with_fixed_shapes(config, load_model(path))


def _structure(config: NetworkConfig, path: Path | None) -> Any:
    """Return the same without the weights' data, which need not be there.

    Raises:
        ConfigError: as `_read`.
    """
    assert path is not None
    require_module("onnx", "onnxscript", extra="latency")
    return _with_fixed_shapes(config, load_model(path, weights=False))


def _with_fixed_shapes(config: NetworkConfig, model: Any) -> Any:
    declared = _declared(config, model.graph)
    fix_shapes(model.graph, resolve_shapes(config, declared))
    return model


def _declared(config: NetworkConfig, graph: Any) -> dict[str, DeclaredInput]:
    """Return the graph's inputs; old files list their weights among them."""
    import onnx

    weights = {tensor.name for tensor in graph.initializer}
    inputs = [tensor for tensor in graph.input if tensor.name not in weights]
    _check_tensors(config, "inputs", inputs)
    declared = {}
    for item in inputs:
        tensor = item.type.tensor_type
        dims = None
        if tensor.HasField("shape"):
            dims = tuple(dim.dim_value or dim.dim_param for dim in tensor.shape.dim)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
        declared[item.name] = DeclaredInput(dims, dtype)
    if not declared:
        raise MeasureError(f"network {config.name!r}: expected a graph with inputs, found none")
    return declared


def _check_tensors(config: NetworkConfig, ends: str, declared: Iterable[Any]) -> None:
    for item in declared:
        kind = item.type.WhichOneof("value")
        if kind != "tensor_type":
            raise MeasureError(
                f"network {config.name!r}: expected tensors as {ends}, found {item.name} of {kind or 'no type'}"
            )


def to_relax(config: NetworkConfig, model: Any, inputs: dict[str, Array]) -> tuple[Any, list[Any]]:
    """Return (Relax IRModule with its weights as inputs, the weights) of an onnx.ModelProto, which is changed.

    Raises:
        MeasureError: an operator that the frontend lacks or refuses, by name; shapes that depend on data.
    """
    from tvm.error import OpNotImplemented
    from tvm.relax.frontend import detach_params

    from tencost.networks.operators.importer import import_graph

    _check_domains(config, model.graph)
    try:
        _prepare(model, {name: array.shape for name, array in inputs.items()})
    except Refused as error:
        raise MeasureError(
            f"network {config.name!r}: expected operators that TVM's ONNX frontend imports as ONNX defines them, found "
            f"{error} ({config.path}). Nothing was built; export the network without it, or cut it off the graph with "
            "onnx.utils.extract_model"
        ) from error
    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore")  # names that it changes, and the like
        try:
            mod = import_graph(model)
        except OpNotImplemented as error:
            raise MeasureError(_lacking(config, str(error).rpartition(":")[2])) from error
        except Exception as error:
            # It prints the operator that it was at, and only that says where the trouble is.
            operator = re.search(r"Error converting operator (\w+)", printed.getvalue())
            at = f" operator {operator.group(1)} of" if operator else ""
            raise MeasureError(
                f"network {config.name!r}: TVM's ONNX frontend cannot import{at} {config.path}: "
                f"{first_sentence(error)}. Simplify the graph or export it with another opset"
            ) from error
    mod, params = detach_params(mod)
    mod = _returning_tuple(mod)
    _check_static(config, mod, [name for name, array in inputs.items() if not array.size])
    return mod, list(params.get("main", []))


def _prepare(model: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    """Fix a model's input shapes, fold constants, write anew what TVM gets wrong and sort its tensors, all in place.

    Raises:
        ConfigError: a tensor that is too large.
        Refused: an operator that TVM's frontend computes wrongly.
    """
    check_recurrent(model.graph)
    fix_shapes(model.graph, shapes)
    # A graph that cannot be folded may be imported all the same.
    with contextlib.suppress(Exception):
        fold(model)
    check_bytes(infer_shapes(without_large_weights(model)[0]), "network.path")
    unroll_loops(model)
    if written_anew(model):
        with contextlib.suppress(Exception):
            fold(model)
    _sort_tensors(model.graph)


def _sort_tensors(graph: Any) -> None:
    """Make every tensor in use either an initializer, which becomes a weight, or a Constant node."""
    from onnx import numpy_helper

    parts = list(subgraphs(graph))
    used = {name for part in parts for node in part.node for name in node.input}
    used |= {output.name for part in parts for output in part.output}
    settings = {
        node.input[index]
        for part in parts
        for node in part.node
        for index in _CONSTANT_INPUTS.get(node.op_type, ())
        if index < len(node.input)
    }
    for part in reversed(parts):  # a graph before the one that it is in
        tensors = {tensor.name: tensor for tensor in part.initializer}
        others = []
        for node in part.node:
            value = constant_value(node)
            if value is None:
                others.append(node)
            else:
                tensors[node.output[0]] = value
        weights, constants = [], []
        for name, tensor in tensors.items():
            array = numpy_helper.to_array(tensor)
            numbers = array.dtype.kind == "f" and array.ndim > 0 and array.size > 1
            # The frontend does not see the tensors of a branch.
            if numbers and part is graph and name not in settings:
                weights.append(numpy_helper.from_array(array, name))
            else:
                constants.append(constant_node(name, array, f"constant_{name}"))
        if part is graph:
            weights = [tensor for tensor in weights if tensor.name in used]
            constants = [node for node in constants if node.output[0] in used]
            replace(graph.input, [tensor for tensor in graph.input if tensor.name not in tensors])
        replace(part.initializer, weights)
        replace(part.node, [*constants, *others])


def pad_rows(boxes: Array, rows: int) -> Array:
    """Return selected boxes, int64 [boxes, 3], with rows of -1 after them, [rows, 3]."""
    return np.pad(boxes, ((0, rows - len(boxes)), (0, 0)), constant_values=-1)


def _lacking(config: NetworkConfig, operators: str) -> str:
    names = ", ".join(sorted(operators.replace(",", " ").split()))
    return (
        f"network {config.name!r}: TVM's ONNX frontend has no operator {names} ({config.path}). "
        "Export the network without it, or export it with torch.export and use network=torch_export"
    )


def _check_domains(config: NetworkConfig, graph: Any) -> None:
    """The frontend looks at an operator's name only: one of a person's own would be taken for its namesake."""
    foreign = {
        f"{node.domain}.{node.op_type}"
        for part in subgraphs(graph)
        for node in part.node
        if node.domain not in ("", "ai.onnx", "com.microsoft")
    }
    if foreign:
        raise MeasureError(_lacking(config, " ".join(foreign)))


def _returning_tuple(mod: Any) -> Any:
    """Let ``main`` return a tuple where it returns a single tensor, as networks from PyTorch do."""
    from tvm import relax

    main = mod["main"]
    if isinstance(main.ret_ty, relax.TupleType):
        return mod
    body = relax.SeqExpr(main.body.blocks, relax.Tuple([main.body.body]))
    mod["main"] = relax.Function(
        main.params, body, relax.TupleType([main.ret_ty]), main.is_pure, main.attrs
    )
    return relax.transform.Normalize()(mod)


def _check_static(config: NetworkConfig, mod: Any, empty: list[str]) -> None:
    """Raise MeasureError for an output whose shape is not known; `empty`: inputs without values."""
    from tvm import relax

    advice = "Cut what depends on data (NonZero, NMS) off the graph, for example with onnx.utils.extract_model"
    if empty:
        advice = f"TVM takes a size of 0 for one that is not known: give {', '.join(empty)} values"

    for item in mod["main"].ret_ty.fields:
        sizes = item.shape if isinstance(item, relax.TensorType) else None
        if sizes is None or not all(hasattr(size, "value") for size in sizes):
            raise MeasureError(
                f"network {config.name!r}: expected outputs of fixed shape, found {item} in {config.path}. {advice}"
            )


def _example(folder: Path) -> NetworkConfig:
    """Write two dense layers."""
    require_module("onnx", extra="tuner")
    import onnx

    rng = np.random.default_rng(0)
    sizes = (8, 16, 4)
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal(sizes[i : i + 2], np.float32), f"w{i}")
        for i in range(2)
    ]
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w0"], ["wide"]),
        onnx.helper.make_node("Relu", ["wide"], ["positive"]),
        onnx.helper.make_node("MatMul", ["positive", "w1"], ["y"]),
    ]
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ("n", size))
        for name, size in (("x", sizes[0]), ("y", sizes[-1]))
    ]
    graph = onnx.helper.make_graph(nodes, "tiny", ends[:1], ends[1:], weights)
    opsets = [onnx.helper.make_opsetid("", 18)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "tiny.onnx"
    )
    return NetworkConfig(name="tiny", source="onnx", path="tiny.onnx", batch=2)


SOURCE = NetworkSource(
    read=_read,
    example=_example,
    to_onnx=_to_onnx,
    structure=_structure,
    declared=lambda config, path: _declared(config, load_model(path, weights=False).graph),
    extension=".onnx",
)
