"""AutoTVM lines as nearly all of them are, decoded and checked in one go; autotvm_lines.py has the grammar.

Fields are in the order of canonical JSON, so that an encoded config is a program as the store holds it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tencost.records.reading.protocol import BadLineError

_Value = tuple[int | str, ...] | int | str | bool | None
PlainEntity = tuple[str, Literal["sp", "re", "an", "ot"], _Value]


class PlainConfig(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A config as the store's program column holds it."""

    code_hash: str | None
    entity: tuple[PlainEntity, ...]
    index: int


class Result(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """How a measurement ended, costs in seconds."""

    costs: tuple[float, ...]
    error_no: int
    all_cost_s: float
    timestamp: float


class PlainLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A line of version 0.2 with all its keys and no others; `input` undecoded."""

    input: msgspec.Raw
    config: PlainConfig
    result: Result
    version: float
    tvm_version: str | None


class _OldConfig(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    c: str | None
    e: tuple[PlainEntity, ...]
    i: int
    t: Literal[""]


class _OldInput(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    target: msgspec.Raw
    name: msgspec.Raw
    args: msgspec.Raw
    kwargs: msgspec.Raw
    workload: msgspec.Raw
    config: _OldConfig


class _OldLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    i: _OldInput
    r: Result
    v: float


_decode_new = msgspec.json.Decoder(PlainLine).decode
_decode_old = msgspec.json.Decoder(_OldLine).decode


def decode_plain(line: bytes) -> PlainLine:
    """Return a line of the usual form quickly, an old one with the names of the new.

    Entities are not checked to have values of their kind, nor the task.

    Raises:
        msgspec.MsgspecError, ValueError, RecursionError: it is not of the usual form; `parse_line` knows more.
    """
    if not line.startswith(b'{"i":'):
        new = _decode_new(line)
        if new.version != 0.2:
            raise BadLineError(f"expected version 0.2, found {new.version}")
        return new
    old = _decode_old(line)
    if old.v != 0.1:
        raise BadLineError(f"expected version 0.1, found {old.v}")
    task, config = old.i, old.i.config
    parts = (task.target, task.name, task.args, task.kwargs, task.workload)
    text = b"[" + b",".join(map(bytes, parts)) + b"]"
    return PlainLine(
        msgspec.Raw(text), PlainConfig(config.c, config.e, config.i), old.r, old.v, None
    )


def is_plain(text: str) -> bool:
    """Say whether all writers of JSON agree on a text."""
    return text.isascii() and text.isprintable() and '"' not in text and "\\" not in text
