"""ONNX operators that TVM's frontend lacks or computes otherwise than ONNX says: written with others, or refused.

What ONNX defines as a function of other operators becomes those; of the rest, a few nodes are written anew, in one
module for each kind of operator. Some operators are converted directly (:mod:`.importer`). An operator that neither
does for is refused by name before anything is imported: a wrong number is worse than none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from tencost.networks.onnx_graph import subgraphs
from tencost.networks.operators import (
    arithmetic,
    attention,
    functions,
    normalization,
    quantized,
    regions,
    resize,
    selection,
    signals,
    windows,
)
from tencost.networks.operators.node import WRITTEN, Refused, Writer, write_once

__all__ = ["Refused", "written_anew"]

_KINDS = (
    arithmetic,
    attention,
    functions,
    normalization,
    quantized,
    regions,
    resize,
    selection,
    signals,
    windows,
)
_WRITERS: dict[str, Writer] = {
    name: writer for kind in _KINDS for name, writer in kind.WRITERS.items()
}
"""Operator -> what writes it with others, refuses it, or leaves it where the frontend is right."""


def written_anew(model: Any) -> bool:
    """Write the operators of a model that the frontend gets wrong with others, in place; say whether there were any.

    Args:
        model: onnx.ModelProto, its input shapes fixed.

    Raises:
        Refused: an operator that the frontend computes wrongly and that cannot be written with others.
    """
    numbers = count()
    # Operators of com.microsoft come first: ONNX infers no type of what they make.
    changed = _write_once(model, numbers, quantized.MICROSOFT_WRITERS, ("com.microsoft",))
    # What operators are written with may be such operators, too.
    while _write_once(model, numbers, _WRITERS, ("", "ai.onnx")):
        changed = True
    return changed


def _write_once(
    model: Any, numbers: Iterator[int], writers: dict[str, Writer], domains: tuple[str, ...]
) -> bool:
    def writer_of(proto: Any) -> Writer | None:
        is_candidate = proto.domain in domains and not proto.name.startswith(WRITTEN)
        return writers.get(proto.op_type) if is_candidate else None

    return write_once(model, numbers, writer_of, subgraphs(model.graph))
