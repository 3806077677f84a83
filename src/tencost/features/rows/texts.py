"""Kinds that read a stored program's text alone: no TVM, a fraction of a millisecond a program."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, ClassVar

import numpy as np
import orjson

from tencost.features.rows.kind import Chunk, FeatureKind, Live, Options, Outcome, Stored
from tencost.features.rows.ragged import FloatArray
from tencost.features.rows.spec import FeatureSpec

STEP_OPTIONS = ("max_steps", "vocabulary_buckets", "max_numbers")


def signed_log2(value: float) -> float:
    """Return sign(x) * log2(1 + |x|)."""
    return math.copysign(math.log2(1.0 + abs(value)), value)


def bucket(name: str, buckets: int) -> int:
    """Return the hash bucket of a name: CRC-32, the same on every machine."""
    return zlib.crc32(name.encode()) % buckets


class StepEncoder:
    """Encodes a program's steps, one row each, with fixed limits.

    A row: position / max_steps; one-hot of the step's kind; its numbers as sign(x) * log2(1 + |x|); one-hot of the
    annotation; one-hot hash buckets of its names.
    """

    kinds: ClassVar[tuple[str, ...]] = ()
    annotations: ClassVar[tuple[str, ...]] = ()
    name_column: ClassVar[str] = "name"

    def __init__(self, max_steps: int, vocabulary_buckets: int, max_numbers: int) -> None:
        self.max_steps = max_steps
        self.vocabulary_buckets = vocabulary_buckets
        self.max_numbers = max_numbers
        self.columns = (
            "position",
            *(f"is_{kind}" for kind in self.kinds),
            *(f"number_{index}" for index in range(max_numbers)),
            *(f"annotation_{name}" for name in self.annotations),
            *(f"{self.name_column}_{index}" for index in range(vocabulary_buckets)),
        )

    @classmethod
    def of(cls, options: Options) -> StepEncoder:
        """Return the encoder with the limits of a set's options."""
        return cls(*(options[name] for name in STEP_OPTIONS))

    def encode(self, program: Any) -> FloatArray | None:
        """Encode a program, JSON values: float32 [steps, columns]; None for one without a single step."""
        raise NotImplementedError

    def row(
        self,
        position: int,
        kind: int,
        numbers: Iterable[float],
        names: Iterable[str],
        annotation: int | None = None,
    ) -> FloatArray:
        """Return the row of a step, float32 [columns]; its kind and annotation are places among those."""
        row = np.zeros(len(self.columns), np.float32)
        row[0] = position / self.max_steps
        row[1 + kind] = 1.0
        numbers_at = 1 + len(self.kinds)
        for slot, number in zip(range(self.max_numbers), numbers, strict=False):
            row[numbers_at + slot] = signed_log2(number)
        annotations_at = numbers_at + self.max_numbers
        if annotation is not None:
            row[annotations_at + annotation] = 1.0
        for name in names:
            place = bucket(name, self.vocabulary_buckets)
            row[annotations_at + len(self.annotations) + place] += 1.0
        return row


def step_kind(
    encoder: type[StepEncoder],
    program_format: str,
    *,
    live: Callable[[FeatureSpec], Live] | None = None,
    preference: int = 0,
) -> FeatureKind:
    """Describe a kind whose rows an encoder of steps makes.

    Args:
        encoder: of its programs.
        program_format: of its stored programs.
        live: as in FeatureKind.
        preference: as in FeatureKind.
    """
    return FeatureKind(
        columns=lambda options: encoder.of(options).columns,
        one_row=False,
        program_format=program_format,
        stored=lambda spec: stored_programs(spec, encoder.of(spec.options).encode),
        live=live,
        options=STEP_OPTIONS,
        preference=preference,
        for_tests={"max_steps": 8, "vocabulary_buckets": 4, "max_numbers": 4},
    )


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
