"""`ansor_steps`: one row a schedule step of an Ansor program, as `trace` does it for MetaSchedule (TLP, ASPLOS'23).

It reads a program straight from the log, a JSON list of steps (their grammar is in tencost.records.formats.ansor): its
compiler is gone, and nothing needs to be lowered. A row: position / max_steps; one-hot of the kind; its numbers in the
order of the log as sign(x) * log2(1 + |x|); one-hot of the annotation; one-hot hash buckets (CRC-32) of scope and
pragma names.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tencost.features.rows.kind import FeatureKind, Options, Stored
from tencost.features.rows.ragged import FloatArray
from tencost.features.rows.spec import FeatureSpec
from tencost.features.rows.texts import stored_programs

STEPS = ("AN", "FU", "PR", "RE", "SP", "FSP", "FFSP", "SA", "CA", "CI", "CR", "CHR", "CHW", "RF")
ANNOTATIONS = (
    "none", "unroll", "vectorize", "parallel", "vthread", "block_x", "thread_x", "block_y", "thread_y",
    "block_z", "thread_z", "tensorize",
)  # fmt: skip
"""Annotations by their number in the log."""


def step_columns(vocabulary_buckets: int, max_numbers: int) -> tuple[str, ...]:
    """Return the columns' names in order."""
    return (
        "position",
        *(f"is_{name}" for name in STEPS),
        *(f"number_{index}" for index in range(max_numbers)),
        *(f"annotation_{name}" for name in ANNOTATIONS),
        *(f"name_{index}" for index in range(vocabulary_buckets)),
    )


class AnsorStepEncoder:
    """Encodes the steps of a program; see the module's text."""

    def __init__(self, max_steps: int, vocabulary_buckets: int, max_numbers: int) -> None:
        self.max_steps = max_steps
        self.vocabulary_buckets = vocabulary_buckets
        self.max_numbers = max_numbers
        self.columns = step_columns(vocabulary_buckets, max_numbers)
        self._numbers_at = 1 + len(STEPS)
        self._annotations_at = self._numbers_at + max_numbers
        self._names_at = self._annotations_at + len(ANNOTATIONS)

    def encode(self, steps: Sequence[Sequence[Any]]) -> FloatArray | None:
        """Return float32 [steps, columns]; None for a program without steps."""
        kept = steps[: self.max_steps]
        rows = np.zeros((len(kept), len(self.columns)), np.float32)
        for position, (kind, *fields) in enumerate(kept):
            row = rows[position]
            row[0] = position / self.max_steps
            row[1 + STEPS.index(kind)] = 1.0
            if kind == "AN":
                row[self._annotations_at + int(fields.pop())] = 1.0
            for name in [value for value in fields if isinstance(value, str)]:
                text, _, number = name.partition("$")
                row[self._names_at + zlib.crc32(text.encode()) % self.vocabulary_buckets] += 1.0
                fields = [*fields, int(number)] if number.isdigit() else fields
            for slot, value in enumerate(_numbers(fields)[: self.max_numbers]):
                row[self._numbers_at + slot] = math.copysign(math.log2(1.0 + abs(value)), value)
        return rows if len(rows) else None


def _numbers(fields: Iterable[Any]) -> list[float]:
    found: list[float] = []
    for value in fields:
        if isinstance(value, list):
            found += _numbers(value)
        elif isinstance(value, int | float):
            found.append(float(value))
    return found


def _stored(spec: FeatureSpec) -> Stored:
    return stored_programs(spec, _encoder(spec.options).encode)


def _encoder(options: Options) -> AnsorStepEncoder:
    return AnsorStepEncoder(
        options["max_steps"], options["vocabulary_buckets"], options["max_numbers"]
    )


KIND = FeatureKind(
    columns=lambda options: step_columns(options["vocabulary_buckets"], options["max_numbers"]),
    one_row=False,
    program_format="ansor_steps",
    stored=_stored,
    preference=1,
    options=("max_steps", "vocabulary_buckets", "max_numbers"),
    for_tests={"max_steps": 8, "vocabulary_buckets": 4, "max_numbers": 4},
)
