"""`configuration`: one row a program that is named values, as T4's and AutoTVM's, with its workload's arguments.

The columns are Lorien's features (see tencost.compat.lorien.knobs) in a form of fixed width, the same for every
workload: amounts of the arguments in their order (`in_` of tensors, `attr_` of others), a one-hot hash bucket of the
workload's name, and for each named value its numbers in the columns of its name's hash bucket (CRC-32):

    AutoTVM's knob    split lengths, permutation, annotations or a number; names that share a bucket are added up
    name: value       a number (true is 1), or the parts of a list; names in alphabetical order, one whose bucket is
                      taken has the next free one, so that all configurations of a workload agree
    name: text        VALUES bytes of the text's CRC-32, each as a fraction of 256: a code that no other text changes

Amounts are sign(x) * log2(1 + |x|).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from tencost.features.rows.kind import FeatureKind
from tencost.features.rows.ragged import FloatArray
from tencost.features.rows.texts import bucket, signed_log2, stored_programs_of_workloads

NUM_INPUTS, NUM_ATTRIBUTES = 16, 12
TEMPLATES, KNOBS, VALUES = 16, 32, 4
"""Hash buckets of workloads' names and of values' names, and numbers of a value with columns."""
_ANNOTATIONS = ("none", "unroll", "vec")

COLUMNS: tuple[str, ...] = (
    *(f"in_{index}" for index in range(NUM_INPUTS)),
    *(f"attr_{index}" for index in range(NUM_ATTRIBUTES)),
    *(f"template_{index}" for index in range(TEMPLATES)),
    *(f"knob_{knob}_{index}" for knob in range(KNOBS) for index in range(VALUES)),
)
_PLACE = {name: position for position, name in enumerate(COLUMNS)}


def configuration_row(workload: dict[str, Any], program: dict[str, Any]) -> FloatArray:
    """Return float32 [1, columns].

    Args:
        workload: {"workload": name, "args": [...]}, tensors as ["TENSOR", shape, dtype].
        program: the configuration, {name: value, ...}, or AutoTVM's {"entity": [[knob, kind, value], ...], ...}.

    Raises:
        ValueError: the configuration is empty.
    """
    row = np.zeros(len(COLUMNS), np.float32)
    tensors: list[Any] = []
    others: list[Any] = []
    for argument in workload["args"]:
        is_tensor = isinstance(argument, list) and argument[:1] == ["TENSOR"]
        (tensors if is_tensor else others).append(argument)
    for slot, amount in enumerate(_amounts(tensors)[:NUM_INPUTS]):
        row[_PLACE[f"in_{slot}"]] = amount
    for slot, amount in enumerate(_amounts(others)[:NUM_ATTRIBUTES]):
        row[_PLACE[f"attr_{slot}"]] = amount
    row[_PLACE[f"template_{bucket(str(workload['workload']), TEMPLATES)}"]] = 1.0
    knobs = program.get("entity")
    if not program:
        raise ValueError("expected named values, found none")
    for place, amounts in _of_knobs(knobs) if isinstance(knobs, list) else _of_values(program):
        for slot, amount in enumerate(amounts[:VALUES]):
            row[_PLACE[f"knob_{place}_{slot}"]] += amount
    return row[None, :]


def _of_knobs(knobs: list[Any]) -> Iterator[tuple[int, list[float]]]:
    """Yield (bucket, amounts) of AutoTVM's knobs."""
    for name, kind, value in knobs:
        yield bucket(f"{kind}:{name}", KNOBS), _amounts(value)


def _of_values(configuration: dict[str, Any]) -> Iterator[tuple[int, list[float]]]:
    """Yield (bucket, amounts) of named values, buckets apart as long as there are free ones."""
    occupied: set[int] = set()
    for name in sorted(configuration):
        place = bucket(name, KNOBS)
        while place in occupied and len(occupied) < KNOBS:
            place = (place + 1) % KNOBS
        occupied.add(place)
        value = configuration[name]
        yield place, _code(value) if isinstance(value, str) else _amounts(value)


def _code(text: str) -> list[float]:
    return [byte / 256 for byte in zlib.crc32(text.encode()).to_bytes(VALUES, "big")]


def _amounts(value: Any) -> list[float]:
    """Flatten; texts that are no annotation, None and dtypes have no amount."""
    if isinstance(value, list | tuple):
        return [amount for part in value for amount in _amounts(part)]
    if isinstance(value, str):
        return [float(_ANNOTATIONS.index(value))] if value in _ANNOTATIONS else []
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return [signed_log2(float(value))]
    return []


KIND = FeatureKind(
    columns=lambda _: COLUMNS,
    one_row=True,
    program_format=("configuration", "autotvm_config"),
    preference=1,
    stored=lambda spec: stored_programs_of_workloads(
        spec, lambda workload, program: configuration_row(workload(), program)
    ),
)
