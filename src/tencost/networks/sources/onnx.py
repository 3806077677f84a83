"""Networks from ONNX files."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tencost.config import NetworkConfig
from tencost.errors import ConfigError, MeasureError
from tencost.networks.inputs import Array, DeclaredInput, batch_notes, draw_inputs, resolve_shapes
from tencost.networks.onnx_graph import fix_shapes, prepare
from tencost.networks.onnx_nodes import graphs
from tencost.networks.onnx_operators import Refused
from tencost.networks.source import Imported, NetworkSource, first_sentence, require


def read(config: NetworkConfig, path: Path | None) -> Imported:
    """Import an ONNX file; onnxruntime computes the expected outputs (the onnx package does where it is missing).

    Raises:
        ConfigError: not a whole ONNX model, or inputs that do not fit it.
        MeasureError: an operator that TVM's frontend lacks, or a graph that it or onnxruntime cannot take.
    """
    assert path is not None
    require("onnx", "onnxscript", extra="tuner")
    model = checked(path)
    declared = _declared(config, model.graph)
    inputs = draw_inputs(config, declared, resolve_shapes(config, declared))
    outputs = _outputs(config, model.graph)
    mod, params = to_relax(config, model, inputs)
    expected, computed_by = _run(config, path, inputs)
    notes = tuple(batch_notes(config, declared))
    return Imported(
        mod, params, inputs, expected, outputs, outputs[0], computed_by=computed_by, notes=notes
    )


def to_onnx(config: NetworkConfig, path: Path | None) -> Any:
    """Return the file's model with its inputs' shapes fixed.

    Raises:
        ConfigError: as `read`.
    """
    assert path is not None
    require("onnx", "onnxscript", extra="latency")
    model = checked(path)
    declared = _declared(config, model.graph)
    fix_shapes(model.graph, resolve_shapes(config, declared))
    return model


def checked(path: Path) -> Any:
    """Return the model in a file, its local functions inlined; raises ConfigError for something else."""
    import onnx

    try:
        onnx.checker.check_model(str(path))
        model = onnx.load(str(path))
    except Exception as error:
        raise ConfigError(
            f"network.path: expected a whole ONNX model in {path}, found something else: {first_sentence(error)}. "
            "Export it again, or copy it with all its files"
        ) from error
    if model.functions:
        from onnx.inliner import inline_local_functions

        model = inline_local_functions(model)
    return model


def _declared(config: NetworkConfig, graph: Any) -> dict[str, DeclaredInput]:
    """Return the graph's inputs; old files list their weights among them."""
    import onnx

    weights = {tensor.name for tensor in graph.initializer}
    declared = {}
    for item in graph.input:
        if item.name in weights:
            continue
        kind = item.type.WhichOneof("value")
        if kind != "tensor_type":
            raise MeasureError(
                f"network {config.name!r}: expected tensors as inputs, found {item.name} of {kind or 'no type'}"
            )
        tensor = item.type.tensor_type
        dims = None
        if tensor.HasField("shape"):
            dims = tuple(dim.dim_value or dim.dim_param for dim in tensor.shape.dim)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
        declared[item.name] = DeclaredInput(dims, dtype)
    if not declared:
        raise MeasureError(f"network {config.name!r}: expected a graph with inputs, found none")
    return declared


def _outputs(config: NetworkConfig, graph: Any) -> list[str]:
    for item in graph.output:
        kind = item.type.WhichOneof("value")
        if kind != "tensor_type":
            raise MeasureError(
                f"network {config.name!r}: expected tensors as outputs, found {item.name} of {kind or 'no type'}"
            )
    return [item.name for item in graph.output]


def to_relax(config: NetworkConfig, model: Any, inputs: dict[str, Array]) -> tuple[Any, list[Any]]:
    """Return (Relax IRModule with its weights as inputs, the weights) of an onnx.ModelProto, which is changed.

    Raises:
        MeasureError: an operator that the frontend lacks or refuses, by name; shapes that depend on data.
    """
    from tvm.error import OpNotImplemented
    from tvm.relax.frontend import detach_params
    from tvm.relax.frontend.onnx import from_onnx

    _check_domains(config, model.graph)
    try:
        prepare(model, {name: array.shape for name, array in inputs.items()})
    except Refused as error:
        raise MeasureError(
            f"network {config.name!r}: expected operators that TVM's ONNX frontend imports as ONNX defines them, found "
            f"{error} ({config.path}). Nothing was built; export the network without it, or cut it off the graph with "
            "onnx.utils.extract_model"
        ) from error
    said = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(said):
        warnings.simplefilter("ignore")  # names that it changes, and the like
        try:
            mod = from_onnx(model, dtype_dict=None, keep_params_in_input=True)
        except OpNotImplemented as error:
            raise MeasureError(_lacking(config, str(error).rpartition(":")[2])) from error
        except Exception as error:
            # It prints the operator that it was at, and only that says where the trouble is.
            operator = re.search(r"Error converting operator (\w+)", said.getvalue())
            at = f" operator {operator.group(1)} of" if operator else ""
            raise MeasureError(
                f"network {config.name!r}: TVM's ONNX frontend cannot import{at} {config.path}: "
                f"{first_sentence(error)}. Simplify the graph or export it with another opset"
            ) from error
    mod, params = detach_params(mod)
    mod = _returning_tuple(mod)
    _check_static(config, mod, [name for name, array in inputs.items() if not array.size])
    return mod, list(params.get("main", []))


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
        for part in graphs(graph)
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


def _run(config: NetworkConfig, path: Path, inputs: dict[str, Array]) -> tuple[list[Array], str]:
    """Return (what the file computes, what computed it): onnxruntime, else ONNX's reference where that cannot.

    Raises:
        MeasureError: neither runs it.
    """
    try:
        import onnxruntime
    except ImportError:
        return _run_reference(
            config, path, inputs, "Install onnxruntime: pip install 'tencost[tuner]'"
        )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # fatal: everything else is raised as well
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        found = session.run(None, inputs)
    except Exception as error:  # noqa: BLE001 - onnxruntime's have no root of their own
        told = f"onnxruntime does not run it either: {first_sentence(error)}"
        return _run_reference(config, path, inputs, told)
    return [np.asarray(array) for array in found], "ONNX Runtime"


def _run_reference(
    config: NetworkConfig, path: Path, inputs: dict[str, Array], advice: str
) -> tuple[list[Array], str]:
    from onnx.reference import ReferenceEvaluator

    try:
        found = ReferenceEvaluator(str(path)).run(None, inputs)
    except Exception as error:
        raise MeasureError(
            f"network {config.name!r}: ONNX's reference does not run {path}: {first_sentence(error)}. {advice}"
        ) from error
    return [np.asarray(array) for array in found], "ONNX's reference"


def example(folder: Path) -> NetworkConfig:
    """Write two dense layers."""
    require("onnx", extra="tuner")
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


SOURCE = NetworkSource(read=read, example=example, to_onnx=to_onnx, extension=".onnx")
