"""`autotvm_knobs`: one row an AutoTVM program, from its task's arguments and its configuration's knobs.

The columns are Lorien's features (see tencost.compat.lorien.knobs) in a form of fixed width, the same for every
template: amounts of the arguments in their order (`in_`, `attr_`), a one-hot hash bucket of the template's name, and
for each knob the numbers of its value (split lengths, permutation, choice) in the columns of its name's hash bucket
(CRC-32). Amounts are sign(x) * log2(1 + |x|).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tencost.features.rows.kind import FeatureKind
from tencost.features.rows.ragged import FloatArray
from tencost.features.rows.texts import bucket, signed_log2, stored_programs_of_workloads

NUM_INPUTS, NUM_ATTRIBUTES = 16, 12
TEMPLATES, KNOBS, VALUES = 16, 32, 4
"""Hash buckets of template names and of knob names, and values of a knob with columns."""
_ANNOTATIONS = ("none", "unroll", "vec")

KNOB_COLUMNS: tuple[str, ...] = (
    *(f"in_{index}" for index in range(NUM_INPUTS)),
    *(f"attr_{index}" for index in range(NUM_ATTRIBUTES)),
    *(f"template_{index}" for index in range(TEMPLATES)),
    *(f"knob_{knob}_{index}" for knob in range(KNOBS) for index in range(VALUES)),
)
_PLACE = {name: position for position, name in enumerate(KNOB_COLUMNS)}


def knob_row(workload: dict[str, Any], program: dict[str, Any]) -> FloatArray:
    """Return float32 [1, columns].

    Args:
        workload: {"workload": "autotvm.<template>", "args": [...]}, tensors as ["TENSOR", shape, dtype].
        program: the configuration, {"entity": [[knob, kind, value], ...], ...}.
    """
    row = np.zeros(len(KNOB_COLUMNS), np.float32)
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
    for name, kind, value in program["entity"]:
        knob = bucket(f"{kind}:{name}", KNOBS)
        for slot, amount in enumerate(_amounts([value])[:VALUES]):
            row[_PLACE[f"knob_{knob}_{slot}"]] += amount
    return row[None, :]


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
    columns=lambda _: KNOB_COLUMNS,
    one_row=True,
    program_format="autotvm_config",
    preference=1,
    stored=lambda spec: stored_programs_of_workloads(
        spec, lambda workload, program: knob_row(workload(), program)
    ),
)
