"""Tile rows of live candidates, read once. Needs TVM."""

from __future__ import annotations

from typing import Any

from tencost.features.ragged import FloatArray
from tencost.features.tiles import tile_row
from tencost.features.trace import plain_trace

MAX_REMEMBERED = 16_384
"""Rows that are remembered; forgotten all at once."""


def trace_key(candidate: Any) -> int:
    """Return a hash of the candidate's trace, instructions and decisions.

    It stands for the program and for everything that features read: the module is what the trace makes of the workload,
    but two traces can make one module and differ in their tile columns.
    """
    if candidate.sch.trace is None:  # made by hand, without a record of how
        return _hashed(candidate.sch.mod)
    return _hashed(_parts(candidate))


class TileReader:
    """Reads the tile row of a candidate, and remembers it by :func:`trace_key`."""

    def __init__(self) -> None:
        self._rows: dict[int, FloatArray | None] = {}

    def row(self, candidate: Any, key: int | None = None) -> FloatArray | None:
        """Return the candidate's columns, float32 [1, 79], see :func:`tencost.features.tiles.tile_row`.

        Args:
            candidate: a MeasureCandidate.
            key: its trace_key where that is known.
        """
        parts = None
        if key is None:
            parts = _parts(candidate)
            key = _hashed(parts)
        if key not in self._rows:
            if len(self._rows) >= MAX_REMEMBERED:
                self._rows.clear()
            self._rows[key] = tile_row(plain_trace(parts or _parts(candidate)))
        return self._rows[key]


def _parts(candidate: Any) -> Any:
    from tvm.s_tir.schedule import _ffi_api

    return _ffi_api.TraceAsJSON(candidate.sch.trace, False)


def _hashed(parts: Any) -> int:
    from tvm_ffi import structural_hash

    return int(structural_hash(parts))
