"""Kinds that read a stored program's text alone: no TVM, a fraction of a millisecond a program."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import orjson

from tencost.features.rows.kind import Chunk, Outcome, Stored
from tencost.features.rows.ragged import FloatArray
from tencost.features.rows.spec import FeatureSpec


def stored_programs(spec: FeatureSpec, read: Callable[[Any], FloatArray | None]) -> Stored:
    """Read programs one by one.

    Args:
        spec: the feature set, named in reasons.
        read: JSON values of a program -> its rows; None for a program without a single primitive.
    """
    return stored_programs_of_workloads(spec, lambda _, program: read(program))


def stored_programs_of_workloads(
    spec: FeatureSpec, read: Callable[[Callable[[], Any], Any], FloatArray | None]
) -> Stored:
    """Read programs one by one where their workload matters, too.

    Args:
        spec: the feature set, named in reasons.
        read: (a call that returns the workload's JSON values, JSON values of a program) -> its rows.
    """

    def outcomes(chunk: Chunk) -> list[Outcome]:
        workload = cache(lambda: orjson.loads(chunk.mod_json))

        def outcome(program: str) -> Outcome:
            try:
                rows = read(workload, orjson.loads(program))
            except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
                return f"no program that {spec.name} reads ({type(error).__name__}: {error})"
            return "the trace has no primitive" if rows is None else rows

        return [outcome(program) for program in chunk.programs]

    return outcomes
