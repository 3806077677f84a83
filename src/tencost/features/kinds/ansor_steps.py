"""`ansor_steps`: one row a schedule step of an Ansor program, as `trace` does it for MetaSchedule (TLP, ASPLOS'23).

It reads a program straight from the log, a JSON list of steps (their grammar is in tencost.records.formats.ansor): its
compiler is gone, and nothing needs to be lowered. A row: position / max_steps; one-hot of the kind; its numbers in the
order of the log as sign(x) * log2(1 + |x|); one-hot of the annotation; one-hot hash buckets (CRC-32) of scope and
pragma names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tencost.features.rows.ragged import FloatArray
from tencost.features.rows.texts import StepEncoder, step_kind

STEPS = ("AN", "FU", "PR", "RE", "SP", "FSP", "FFSP", "SA", "CA", "CI", "CR", "CHR", "CHW", "RF")
ANNOTATIONS = (
    "none", "unroll", "vectorize", "parallel", "vthread", "block_x", "thread_x", "block_y", "thread_y",
    "block_z", "thread_z", "tensorize",
)  # fmt: skip
"""Annotations by their number in the log."""


class AnsorStepEncoder(StepEncoder):
    """Encodes the steps of a program; see the module's text."""

    kinds = STEPS
    annotations = ANNOTATIONS

    def encode(self, program: Sequence[Sequence[Any]]) -> FloatArray | None:
        """Return float32 [steps, columns]; None for a program without steps."""
        rows = []
        for position, (kind, *fields) in enumerate(program[: self.max_steps]):
            annotation = int(fields.pop()) if kind == "AN" else None
            names = [value.partition("$") for value in fields if isinstance(value, str)]
            numbers = _numbers(fields)
            numbers += [float(number) for _, _, number in names if number.isdigit()]
            texts = [text for text, _, _ in names]
            rows.append(self.row(position, STEPS.index(kind), numbers, texts, annotation))
        return np.stack(rows) if rows else None


def _numbers(fields: Iterable[Any]) -> list[float]:
    numbers: list[float] = []
    for value in fields:
        if isinstance(value, list):
            numbers += _numbers(value)
        elif isinstance(value, int | float):
            numbers.append(float(value))
    return numbers


KIND = step_kind(AnsorStepEncoder, "ansor_steps", preference=1)
