"""Joined kinds: the rows of one kind, each with the columns of one-row kinds appended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tencost.features.rows.kind import (
    Chunk,
    FeatureKind,
    Floats,
    Live,
    Options,
    Outcome,
    Relations,
    Stored,
    kind_of,
)
from tencost.features.rows.ragged import FloatArray, Ragged
from tencost.features.rows.spec import FeatureSpec


def joined(parts: Mapping[str, FeatureKind]) -> FeatureKind:
    """Describe the kind that joins others: the rows of the first, with the one row of each other on every one.

    Args:
        parts: the kinds by name, in the order of their columns; all but the first have one row a program.
    """
    first, *appended = parts.values()
    assert all(kind.one_row for kind in appended), "only the one row of a program can be appended"
    readable = {kind.program_formats for kind in parts.values()}
    assert len(readable) == 1, f"parts must read the same programs, found {sorted(readable)}"

    def columns(options: Options) -> tuple[str, ...]:
        return tuple(name for kind in parts.values() for name in kind.columns(options))

    def stored(spec: FeatureSpec) -> Stored:
        read = first.stored(spec)
        return lambda chunk: append_parts(spec, chunk, read(chunk))

    def live(spec: FeatureSpec) -> Live:
        readers = [kind.live(spec) for kind in parts.values() if kind.live is not None]

        def rows(context: Any, candidates: Sequence[Any]) -> list[FloatArray | None]:
            programs = zip(*(read(context, candidates) for read in readers), strict=True)
            return [
                None if any(block is None for block in blocks) else _side_by_side(blocks)
                for blocks in programs
            ]

        return rows

    return FeatureKind(
        columns=columns,
        one_row=first.one_row,
        program_format=first.program_format,
        stored=stored,
        live=live if all(kind.live is not None for kind in parts.values()) else None,
        lowers=any(kind.lowers for kind in parts.values()),
        options=tuple(dict.fromkeys(name for kind in parts.values() for name in kind.options)),
        constant=first.constant,
        summary=first.summary,
        derived=first.derived,
        relations=_relations(parts),
        parts=dict(parts),
        preference=sum(kind.preference for kind in parts.values()),
        for_tests={
            name: value for kind in parts.values() for name, value in kind.for_tests.items()
        },
    )


def _relations(parts: Mapping[str, FeatureKind]) -> Relations | None:
    """Return the relations of all parts, each made of the part's own columns; None where no part has any."""
    related = [kind.relations for kind in parts.values() if kind.relations is not None]
    if not related:
        return None

    def columns(rows: Ragged, options: Options, device: Mapping[str, Floats]) -> Floats:
        relations, start = [], 0
        for kind in parts.values():
            end = start + len(kind.columns(options))
            if kind.relations is not None:
                part = Ragged(np.ascontiguousarray(rows.values[:, start:end]), rows.offsets)
                relations.append(kind.relations.columns(part, options, device))
            start = end
        return np.concatenate(relations, axis=1)

    return Relations(
        names=tuple(name for part in related for name in part.names),
        needs=tuple(dict.fromkeys(name for part in related for name in part.needs)),
        columns=columns,
    )


def append_parts(spec: FeatureSpec, chunk: Chunk, rows: Sequence[Outcome]) -> list[Outcome]:
    """Append what the other parts of a joined kind read of each program to the rows that its first part made."""
    appended = [kind.stored(spec)(chunk) for kind in list(kind_of(spec).parts.values())[1:]]
    return [
        next((reason for reason in blocks if isinstance(reason, str)), None)
        or _side_by_side(blocks)
        for blocks in zip(rows, *appended, strict=True)
    ]


def _side_by_side(blocks: Sequence[Any]) -> FloatArray:
    """Join float32 [rows, C] and float32 [1, D], ... on every row: float32 [rows, C + D + ...]."""
    rows, *others = blocks
    repeated = [np.repeat(other, len(rows), axis=0) for other in others]
    return np.concatenate([rows, *repeated], axis=1)
