"""The code generator of a record: who turned the program into machine code, as one line of text.

    math-2 tvm-0.27.0.post1 llvm-22 flags-none

    math    version of our vector mathematics (programs.codegen.vector_math); 0: libm's functions, one number at a time
    tvm     version of TVM
    llvm    major version of LLVM
    flags   options of the code generator beyond the record's target: `none`, or the first 8 hex digits of their sha256

A program, a target and a hardware do not say how long the program takes: a GELU with libm's erf took 75 times as long
as the same schedule with vector mathematics. So times of two generators are never compared: a label's
group, a gate's crowd and a record's median are of one generator, which is part of the record's id. The version of our
scheduling rules is not part of it: what a rule decided stands in the program's trace.

Where a log does not tell, the generator is :data:`UNKNOWN`, a generator of its own; such a record has the id that it
had before there were generators.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

UNKNOWN = "unknown"
"""The generator of a record whose log does not tell; null in a table."""
ENOUGH_PROGRAMS = 8
"""Programs with times that a generator needs on a workload to be preferred to an older one, as a gate's crowd."""
MATH_SINCE = (1795351092.0, 1795816742.0)
"""Seconds since 1970 from which on measuring workers had version 1, version 2, ... of our vector mathematics.

2026-11-22 12:38:12 UTC: commit ce93178 brought vector mathematics. Sessions of tencost 0.2.0 name their version only
since schema version 4; the times tell the earlier sessions apart. 2026-11-27 21:59:02 UTC: commit 25adcef keeps the erf
of a vector whole. Sessions after it went on naming version 1 for a day.
"""
BUNDLED_LLVM = {"0.27.0.post1": 22}
"""LLVM in the wheel of apache-tvm that a release of tencost was pinned to, for records that do not tell."""
_BEFORE_VECTOR_MATH = frozenset({"0.1.0"})
_FORM = re.compile(r"math-(\d+) tvm-(\S+) llvm-(\S+) flags-(\S+)")


def generator(math: int, tvm: str, llvm: int | str | None, flags: str = "none") -> str:
    """Return the text of a generator."""
    return f"math-{math} tvm-{tvm} llvm-{UNKNOWN if llvm is None else llvm} flags-{flags}"


def age(text: str | None) -> tuple[Any, ...]:
    """Return a sort key: the newer the generator, the larger; a generator that is not known is older than all."""
    match = _FORM.fullmatch(text or "")
    if match is None:
        return (0, text or UNKNOWN)
    math, tvm, llvm, flags = match.groups()
    numbers = tuple(int(number) for number in re.findall(r"\d+", tvm))
    return (1, int(math), numbers, int(llvm) if llvm.isdecimal() else 0, flags)


def preferred(counts: Mapping[str, int]) -> str:
    """Return the generator whose records answer for a workload, where nobody names one.

    It is the newest with at least :data:`ENOUGH_PROGRAMS` programs; where none has as many, that with the most (of
    equally many the newest).

    Args:
        counts: generator -> programs with times; not empty.
    """
    enough = [text for text, count in counts.items() if count >= ENOUGH_PROGRAMS]
    if enough:
        return max(enough, key=age)
    return max(counts, key=lambda text: (counts[text], age(text)))


def inferred(
    target_kind: str | None,
    engine_version: str | None,
    engine_config: Mapping[str, Any] | str | None,
    additional_info: Mapping[str, Any] | str | None,
    timestamp: float | None,
) -> str:
    """Return the generator that a record's own columns tell of.

    Records that tencost measured name its version, in `engine_config` (`tencost measure`) or in `additional_info`
    (`tencost tune`); those of a TVM that somebody ran by hand name TVM and its FFI. All others are UNKNOWN.

    Args:
        target_kind: kind of the record's target; vector mathematics is for llvm alone.
        engine_version: version of TVM.
        engine_config: mapping, or its JSON text.
        additional_info: mapping, or its JSON text.
        timestamp: when it was measured, seconds since 1970.
    """
    config, info = _mapping(engine_config), _mapping(additional_info)
    release = config.get("tencost") or info.get("tencost")
    if not engine_version or not (release or "apache-tvm-ffi" in config):
        return UNKNOWN
    math = config.get("vector_math")
    if math is None and (target_kind != "llvm" or not release or release in _BEFORE_VECTOR_MATH):
        math = 0
    elif math is None and timestamp is None:
        return UNKNOWN
    elif math in (None, 1) and timestamp is not None:
        math = max(math or 0, sum(timestamp >= since for since in MATH_SINCE))
    llvm = config.get("llvm") or BUNDLED_LLVM.get(engine_version)
    return generator(int(math or 0), engine_version, llvm, str(config.get("flags") or "none"))


def _mapping(value: Mapping[str, Any] | str | None) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}
