"""What modules and schedule traces from files may contain before TVM compiles, or even reads, them.

Compiled, they become native code of this process. Most of what TVM can express only computes; some of it names code of
others: calls of C functions and of registered packed functions by name, pragmas that link LLVM IR or C, loadable
libraries, functions of other compilers. None of it occurs in what TVM's own importers, fusion and search rules make, so
that what occurs there is allowed and the rest refused. Collected by benchmarks/collect_allowed.py from the fused
modules and tasks of the networks in conf/network, from both archives in datasets/, and from databases of MetaSchedule
for CPUs and GPUs that others published.

The text is looked at, not what it becomes: reading a module can load a library already.

Format of a module: TVM's JSON graph, ``{"root_index": i, "nodes": [{"type": t, "data": d}, ...], "metadata": {...}}``,
where `d` refers to other nodes by index. Of a trace: see :mod:`tencost.records.formats.metaschedule`.

What this does not do: code that only computes can still write outside its buffers, as any kernel can, take all time and
all memory. Who cannot trust the sender runs such code in a container or a virtual machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tencost.errors import UntrustedError

Graph = dict[str, Any]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NODE_TYPES = _words("""
    None bool ffi.Array ffi.Map ffi.String ffi.Tensor float int ir.Call ir.DictAttrs ir.FloatImm ir.GenericConst
    ir.GlobalVar ir.IRModule ir.IntImm ir.Op ir.PrimType ir.Range ir.SourceMap ir.StringImm ir.TensorLoad
    ir.TensorRegion ir.Tuple ir.TupleGetItem ir.TupleType ir.Type ir.Var prim.Add prim.And prim.BitwiseAnd
    prim.BitwiseNot prim.BitwiseOr prim.BitwiseXor prim.Broadcast prim.Cast prim.Div prim.EQ prim.FloorDiv
    prim.FloorMod prim.GE prim.GT prim.LE prim.LT prim.Let prim.Max prim.Min prim.Mod prim.Mul prim.NE prim.Not
    prim.Or prim.Ramp prim.Select prim.ShiftLeft prim.ShiftRight prim.Sub relax.FuncType relax.ShapeType
    relax.TensorType relax.attrs.ScanopAttrs relax.expr.BindingBlock relax.expr.DataflowBlock relax.expr.DataflowVar
    relax.expr.Function relax.expr.SeqExpr relax.expr.ShapeExpr relax.expr.TupleGetItem relax.expr.VarBinding
    s_tir.MatchBufferRegion s_tir.SBlock s_tir.SBlockRealize tirx.Bind tirx.BufferRegionType tirx.BufferStore
    tirx.BufferType tirx.For tirx.IfThenElse tirx.IterVar tirx.PrimFunc tirx.SeqStmt tirx.While
    """)  # fmt: skip
"""Types of nodes: values, types, arithmetic, loops, blocks, functions. Not relax.expr.ExternFunc, ffi.Module,
tirx.AttrStmt (pragmas) or tirx.Evaluate (calls for their effect); each would only be needed for code of others."""

OPERATORS = _words("""
    prim.ceil prim.clz prim.if_then_else prim.likely prim.log2 relax.call_tir relax.cumsum tirx.acos tirx.acosh
    tirx.asin tirx.asinh tirx.atan tirx.atan2 tirx.atanh tirx.ceil tirx.copysign tirx.cos tirx.cosh tirx.erf
    tirx.exp tirx.exp10 tirx.exp2 tirx.fabs tirx.floor tirx.fma tirx.fmod tirx.hypot tirx.isfinite tirx.isinf
    tirx.isnan tirx.ldexp tirx.log tirx.log10 tirx.log1p tirx.log2 tirx.nearbyint tirx.nextafter tirx.popcount
    tirx.pow tirx.q_multiply_shift tirx.q_multiply_shift_per_axis tirx.round tirx.rsqrt tirx.sigmoid tirx.sin
    tirx.sinh tirx.sqrt tirx.tan tirx.tanh tirx.trunc
    """)  # fmt: skip
"""Operators: those that compute, without a function's name among their arguments, and relax.call_tir, which calls a
function of the same module. Beyond what was found, the other functions of a calculator's keys."""

ATTRIBUTES = _words("""
    axis global_symbol index_tensor layout_free_buffers num_input op_pattern s_tir schedule_rule tir.noalias
    tirx.noalias
    """)  # fmt: skip
"""Names of a module's attributes, of functions', blocks' and loops'. Not pragma_import_llvm, pragma_import_c, Codegen,
external_symbol."""

INSTRUCTIONS = _words("""
    AddUnitLoop Annotate Bind Blockize CacheInplace CacheRead CacheWrite ComputeAt ComputeInline
    DecomposePadding DecomposeReduction EnterPostproc Fuse FuseReductionEpilogue GetBlock GetChildBlocks
    GetConsumers GetLoops GetOutputBlocks GetProducers GetSBlock Merge PadEinsum Parallel RFactor ReIndex
    ReindexCacheRead ReindexCacheWrite Reorder ReverseComputeAt ReverseComputeInline SampleCategorical
    SampleComputeLocation SamplePartitionedTile SamplePerfectTile SetScope Split StorageAlign Tensorize
    TransformBlockLayout TransformLayout Unannotate Unroll Vectorize
    """)  # fmt: skip
"""Instructions of traces. Beyond what was found, those of MetaSchedule's rules for tensor instructions and layouts; an
instruction that a TVM does not know does not replay."""

ANNOTATIONS = _words("""
    meta_schedule.auto_tensorize meta_schedule.auto_tensorize_init meta_schedule.cooperative_fetch
    meta_schedule.cross_thread_reduction meta_schedule.inline_rule meta_schedule.layout_rewrite_preproc
    meta_schedule.parallel meta_schedule.random_compute_producer meta_schedule.thread_extent_high_inclusive
    meta_schedule.thread_extent_low_inclusive meta_schedule.tiling_structure meta_schedule.unroll_explicit
    meta_schedule.unroll_implicit meta_schedule.vectorization_factor meta_schedule.vectorize
    pragma_auto_unroll_max_step pragma_unroll_explicit schedule_rule software_pipeline_async_stages
    software_pipeline_order software_pipeline_stage tir.manifest_shared_memory_local_stage warp_execution
    """)  # fmt: skip
"""Keys of a trace's annotations. Pragmas are those for unrolling; pragma_import_llvm would link foreign code."""

_MAY_LACK = {"TransformLayout", "TransformBlockLayout"}
_MAY_LACK_INPUTS = {"Split"}
"""A factor of a split may be left to TVM."""
"""Instructions with attributes that may be null: a padding. TVM looks behind any other without asking, and crashes."""
_INDEX_MAP_TYPES = {"tirx.IndexMap"} | NODE_TYPES - {"ir.Op", "ir.Call", "ir.IRModule"}
_TEXT = ("ffi.String", "ir.StringImm")
_CALLED = ("ir.Op", "ir.GlobalVar")


class NoGraphError(UntrustedError):
    """No JSON graph of this TVM at all, such as a module that another TVM wrote."""


def check_module(text: str, where: str = "the module") -> None:
    """Look at a module, TVM's JSON graph, before TVM does.

    Args:
        text: the JSON.
        where: what to call it in a message.

    Raises:
        UntrustedError: it is no such graph, or names something that is not allowed.
    """
    graph = _parsed(text, where)
    try:
        _check_graph(graph, where)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise NoGraphError(
            f"{where}: expected TVM's JSON graph, found something else ({type(error).__name__}: {error})"
        ) from error


def load_checked(text: str, where: str = "the module") -> Any:
    """Return the object (an IRModule) of a JSON graph that passes :func:`check_module`. Needs TVM.

    Raises:
        UntrustedError: it does not pass. TVM raises its own errors for what it cannot read.
    """
    import tvm

    check_module(text, where)
    return tvm.ir.load_json(text)


def check_trace(trace: Any, where: str = "the trace") -> None:
    """Look at a schedule trace, parsed JSON, before it is applied.

    Raises:
        UntrustedError: no trace, or one with what MetaSchedule's rules do not emit.
    """
    try:
        instructions, decisions = trace
        for kind, inputs, attributes, _ in instructions:
            if kind not in INSTRUCTIONS:
                raise _refused(where, "instruction", kind)
            if (kind == "Annotate" or kind == "Unannotate") and attributes[0] not in ANNOTATIONS:
                raise _refused(where, "annotation", attributes[0])
            for value in (*inputs, *attributes):
                if not isinstance(value, int):
                    _check_value(value, where)
            if kind not in _MAY_LACK and _lacks(attributes):
                raise _refused(where, f"attribute of {kind}", None)
            if kind not in _MAY_LACK_INPUTS and _lacks(inputs):
                raise _refused(where, f"input of {kind}", None)
        for place, decision in decisions:
            of_instruction = type(place) is int and 0 <= place < len(instructions)
            if not of_instruction or not _is_decision(decision):
                raise _refused(where, "decision", [place, decision])
    except (TypeError, ValueError, IndexError) as error:
        raise UntrustedError(
            f"{where}: expected [instructions, decisions], found something else ({error})"
        ) from error


def _is_decision(value: Any) -> bool:
    """Say whether a value is a whole number or a list of such: TVM takes anything else for one, and ends at once."""
    numbers = value if isinstance(value, list) else [value]
    return all(type(number) is int for number in numbers)


def _check_value(value: Any, where: str) -> None:
    """Check what TVM reads as an object: the index map of a layout is a JSON graph in a text."""
    if isinstance(value, str):
        if "{" in value:
            _check_index_map(value, where)
    elif isinstance(value, list):
        for item in value:
            _check_value(item, where)
    elif isinstance(value, dict):
        raise _refused(where, "value", "an object")


def _lacks(values: list[Any]) -> bool:
    return any(value is None or (isinstance(value, list) and _lacks(value)) for value in values)


def _check_index_map(text: str, where: str) -> None:
    graph = _parsed(text, where)
    try:
        for node in graph["nodes"]:
            if node["type"] not in _INDEX_MAP_TYPES:
                raise _refused(where, "node in an index map", node["type"])
    except (KeyError, TypeError) as error:
        raise UntrustedError(
            f"{where}: expected an index map, found something else ({error})"
        ) from error


def module_contents(graph: Graph) -> dict[str, set[str]]:
    """Return what of a graph must be allowed: its node types, operators and names of attributes."""
    nodes = graph["nodes"]
    return {
        "types": {node["type"] for node in nodes},
        "operators": {node["data"] for node in nodes if node["type"] == "ir.Op"},
        "attributes": set(_attributes(nodes)),
    }


def trace_contents(trace: Any) -> dict[str, set[str]]:
    """Return what of a trace must be allowed: its instructions and annotations."""
    annotating = ("Annotate", "Unannotate")
    return {
        "instructions": {instruction[0] for instruction in trace[0]},
        "annotations": {attributes[0] for kind, _, attributes, _ in trace[0] if kind in annotating},
    }


def _parsed(text: str, where: str) -> Graph:
    try:
        graph = json.loads(text, object_pairs_hook=_once)  # not orjson: TVM writes infinity as such
    except (ValueError, RecursionError) as error:
        raise NoGraphError(
            f"{where}: expected TVM's JSON graph, found no JSON ({error})"
        ) from error
    if not isinstance(graph, dict) or not isinstance(graph.get("nodes"), list):
        raise NoGraphError(f"{where}: expected TVM's JSON graph, found JSON without nodes")
    return graph


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object; of a key that stands twice, another reader might take the other one."""
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key stands twice")
    return values


def _check_graph(graph: Graph, where: str) -> None:
    nodes = graph["nodes"]
    allowed = {"types": NODE_TYPES, "operators": OPERATORS, "attributes": ATTRIBUTES}
    for name, names in module_contents(graph).items():
        unknown = names - allowed[name]
        if unknown:
            raise _refused(where, name.rstrip("s"), min(map(str, unknown)))
    modules = [node for node in nodes if node["type"] == "ir.IRModule"]
    if len(modules) != 1 or nodes[graph["root_index"]] is not modules[0]:
        raise UntrustedError(f"{where}: expected one module, found {len(modules)}")
    functions = nodes[modules[0]["data"]["functions"]]["data"][::2]
    defined = {_name(nodes, nodes[index]) for index in functions}
    for node in nodes:
        if node["type"] == "ir.GlobalVar" and _name(nodes, node) not in defined:
            # TVM would take the call of a function that it does not have for one of C.
            raise _refused(where, "function that it does not define", _name(nodes, node))
        if node["type"] == "ffi.Array" and any(
            nodes[index]["type"] == "None" for index in node["data"]
        ):
            raise _refused(where, "list with a hole", "None")
        if node["type"] == "ir.Call" and nodes[node["data"]["op"]]["type"] not in _CALLED:
            raise _refused(where, "call of", nodes[node["data"]["op"]]["type"])


def _name(nodes: list[Any], variable: Any) -> str:
    name = nodes[variable["data"]["name_hint"]]["data"]
    if not isinstance(name, str):
        raise TypeError("a name that is no text")
    return name


def _attributes(nodes: list[Any]) -> Iterator[str]:
    """Yield the keys of all maps but those of a module's functions and of their names."""
    for node in nodes:
        if node["type"] != "ffi.Map":
            continue
        entries = node["data"]
        if entries and all(nodes[index]["type"] == "ir.GlobalVar" for index in entries[1::2]):
            continue
        for index in entries[::2]:
            key = nodes[index]
            if key["type"] in _TEXT:
                yield key["data"]
            elif key["type"] != "ir.GlobalVar":
                yield f"a key of type {key['type']}"


def _refused(where: str, what: str, text: object) -> UntrustedError:
    return UntrustedError(
        f"{where}: expected only what TVM's own importers and search rules make, found the {what} {str(text)[:80]!r}, "
        "which could run code of others. Do not use it, or look at it and make it again with TVM here"
    )
