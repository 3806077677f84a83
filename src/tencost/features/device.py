"""Columns that depend on the device, appended where rows meet a hardware: training, evaluation and serving alike.

Stored rows say nothing of a device, so that one table serves every hardware. What is appended is the same on all rows
of a program, and of two sorts: the hardware's attributes, constants of it, and relations, which a kind computes of a
program's own columns and those attributes (a vectorized axis over the lanes, a footprint over a cache). A model that
is to rank programs on hardware it has not seen needs the second: constants of a handful of hardware are names to it.

Legend: N programs, R rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tencost.config import FeaturesConfig, HardwareConfig
from tencost.config.parts import FEATURE_KINDS
from tencost.errors import FeatureError
from tencost.features.rows.kind import FeatureKind, Floats, kind_of
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec

Attributes = Mapping[str, float]
"""Name of an attribute -> its value on one hardware."""

_REGISTERS = "device_log2_registers"


def attributes(hardware: HardwareConfig) -> dict[str, float]:
    """Return what a hardware's columns are made of: HardwareConfig.device_columns, and log2 of its vector registers.

    What the hardware's description calls unknown is left out; registers follow from the width of the vectors.
    """
    if "simd_bits" in hardware.unknown:
        return hardware.device_columns()
    registers = math.log2(1.0 + _vector_registers(hardware))
    return {**hardware.device_columns(), _REGISTERS: registers}


def _vector_registers(hardware: HardwareConfig) -> int:
    """Return how many vector registers a program can name: AVX-512 and 64-bit Arm have 32, x86 before has 16."""
    text = " ".join(str(value) for value in hardware.target.values())
    arm = "aarch64" in text or "arm_cpu" in text
    return 32 if arm or hardware.simd_bits >= 512 else 16


def device_names(config: FeaturesConfig) -> tuple[str, ...]:
    """Return the names of the columns that a feature set has of the device; none for most sets.

    Raises:
        ConfigError: no such kind.
        FeatureError: relations are asked for of a kind that has none.
    """
    names: tuple[str, ...] = ()
    if config.relations:
        kind: FeatureKind = FEATURE_KINDS.load(config.kind, "features.kind")
        if kind.relations is None:
            raise FeatureError(
                f"features.relations: expected a kind that relates programs to hardware, found {config.kind}, "
                "which does not; per_store_tiles, tiles and ansor_tiles do"
            )
        names = kind.relations.names
    if config.device_columns:
        names = (*names, *HardwareConfig(name="any").device_columns())
    return names


def with_device(
    features: Ragged,
    spec: FeatureSpec,
    device: Mapping[str, float | Floats],
) -> Ragged:
    """Append the columns `spec.device_columns` to rows that have the columns before them.

    Args:
        features: rows of N programs with the kind's own columns.
        spec: of the result.
        device: attribute -> its value, one for all programs or float64 [N].

    Raises:
        FeatureError: an attribute has no value.
    """
    names = spec.device_columns
    if not names:
        return features
    relations = kind_of(spec).relations
    related = set(names) & set(relations.names) if relations is not None else set()
    constants = [name for name in names if name not in related]
    needed = relations.needs if relations is not None and related else ()
    missing = [name for name in dict.fromkeys((*constants, *needed)) if name not in device]
    if missing:
        raise FeatureError(
            f"feature set {spec.name} needs the device's {', '.join(missing)}, found none. Say them in its file in "
            "conf/hardware/ (and take them off its list `unknown`), or choose a feature set without device_columns "
            "and relations"
        )
    size = len(features)
    every = {name: np.broadcast_to(np.float64(device[name]), size) for name in device}
    columns = {name: every[name] for name in constants}
    if relations is not None and related:
        values = np.full((size, len(relations.names)), np.nan)
        used = np.flatnonzero(features.lengths)
        if len(used):
            chosen = {name: every[name][used] for name in needed}
            values[used] = relations.columns(features.take(used), spec.options, chosen)
        columns |= {name: values[:, relations.names.index(name)] for name in related}
    return features.with_columns(np.stack([columns[name] for name in names], 1).astype(np.float32))


def device_of_each(hardware: Sequence[str], devices: Mapping[str, Attributes]) -> dict[str, Floats]:
    """Return the attributes of N programs: float64 [N] each.

    Args:
        hardware: the hardware of each program.
        devices: hardware -> its attributes; those that one of them lacks are left out.
    """
    names = [
        name
        for name in next(iter(devices.values()))
        if all(name in attributes for attributes in devices.values())
    ]
    return {
        name: np.array([devices[each][name] for each in hardware], np.float64) for name in names
    }
