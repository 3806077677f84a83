"""KTT's results (Kernel Tuning Toolkit 2.1), one JSON object: every configuration that its tuner tried.

::

    {"Metadata": {"Device": NAME, "TimeUnit": "Microseconds", "KttVersion": "2.1.0", "GlobalSizeType": "CUDA", ...},
     "Results": [RESULT, ...]}
    RESULT  {"Status": "Ok", "KernelName": NAME, "Configuration": [{"Name": NAME, "Value": VALUE, ...}, ...],
             "ComputationResults": [{"KernelFunction": NAME, "Duration": TIME, "GlobalSize": SIZE, "LocalSize": SIZE,
                                     "CompilationData": {"RegistersCount": N, "LocalMemorySize": BYTES, ...},
                                     "ProfilingData": {"Counters": [{"Name": METRIC, "Value": NUMBER, ...}, ...]}},
                                    ...], ...}

A configuration is a program: its id is a hash of the kernel's name and the tuning parameters, so that it is the same on
every device; its computations are its kernels. Counters have Nsight Compute's names and base units; KTT measures the
duration without them. GlobalSize counts blocks where GlobalSizeType is CUDA, threads elsewhere. A result whose status
is not Ok is a reject, as is one without a computation. Results are read one at a time; a damaged one costs itself.

Source: https://github.com/HiPerCoRe/KTT, Source/Output/JsonSerializer.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tencost.records.counters.cells import number, text_lines
from tencost.records.counters.launches import Columns, Launch, Note, ProfileFormat, Reject
from tencost.records.counters.metrics import canonical_unit, current_name, expected_unit
from tencost.records.reading.opening import TruncatedError
from tencost.records.reading.protocol import About

_OK = "Ok"
_SIZES = {
    "RegistersCount": ("launch__registers_per_thread", "register/thread"),
    "LocalMemorySize": ("launch__shared_mem_per_block_static", "byte/block"),
}
"""Sizes of KTT's compiler -> today's name and unit."""
_RESULTS = re.compile(r'"Results"\s*:\s*\[')
_NEXT = re.compile(r'\{\s*"(?:ComputationResults|Configuration|KernelName|Status)"')
_BETWEEN = re.compile(r"[\s,]*")
_CHUNK = 1 << 20
_LONGEST = 1 << 23
"""Characters of the longest result that is read."""
_END, _BEGINNING = 16, 64
"""Characters at the end of what is read that may be part of a word, or of a result's beginning."""


class _ResultError(ValueError):
    """A malformed result: what was expected and found."""


class KttFormat(ProfileFormat):
    """Reads KTT's results."""

    layout = "KTT's results as JSON"

    def recognizes(self, _path: Path, head: bytes) -> bool:
        """Say whether a file begins as KTT's results do."""
        begin = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        known = b'"KttVersion"' in begin or b'"Results"' in begin
        return begin.startswith(b"{") and b'"Metadata"' in begin and known

    def read(self, path: Path, about: About) -> Iterator[Launch | Reject | Note]:
        """Yield every computation of every configuration that succeeded."""
        return _read(path, about.file)


FORMAT = KttFormat()


def _read(path: Path, file: str) -> Iterator[Launch | Reject | Note]:
    failed: Counter[str] = Counter()
    metadata: Mapping[str, Any] | None = None
    columns: dict[tuple[str, ...], Columns] = {}
    for run, (line, result) in enumerate(_results(path), 1):
        if isinstance(result, str):
            yield Reject(file, line, result)
        elif metadata is None:
            metadata = result
            unit = metadata.get("TimeUnit")
            if canonical_unit(str(unit)[:20])[0] != "ns":
                reason = f"expected a TimeUnit, found {unit!r:.40}; times are not known"
                yield Reject(file, line, reason)
        elif (status := str(result.get("Status"))[:40]) != _OK:
            failed[status] += 1
            yield Reject(file, line, f"expected the status Ok, found {status!r}")
        else:
            try:
                yield from list(_launches(file, line, result, metadata, run, columns))
            except _ResultError as error:
                yield Reject(file, line, str(error))
            except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
                reason = (
                    f"expected a result of KTT, found another ({type(error).__name__}: {error})"
                )
                yield Reject(file, line, reason[:200])
    if failed:
        counts = ", ".join(f"{count} {status}" for status, count in failed.most_common(5))
        yield Note(f"configurations that did not run: {counts}", file)


def _launches(
    file: str,
    line: int,
    result: Mapping[str, Any],
    metadata: Mapping[str, Any],
    run: int,
    columns: dict[tuple[str, ...], Columns],
) -> Iterator[Launch]:
    workload = result["KernelName"]
    parameters = {each["Name"]: each["Value"] for each in result["Configuration"]}
    if not isinstance(workload, str) or not all(isinstance(name, str) for name in parameters):
        raise _ResultError("expected names of kernel and parameters, found others")
    if not all(isinstance(value, int | float | str) for value in parameters.values()):
        raise _ResultError("expected numbers and words as parameters, found others")
    text = json.dumps([workload, sorted(parameters.items())])
    program = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    if not result["ComputationResults"]:
        raise _ResultError("expected a computation of a kernel, found none")
    unit, factor = canonical_unit(str(metadata.get("TimeUnit")))
    threads = metadata.get("GlobalSizeType", metadata.get("ComputeApi")) != "CUDA"
    for computed in result["ComputationResults"]:
        metrics: dict[str, tuple[str, float]] = {}
        for counter in computed.get("ProfilingData", {}).get("Counters", ()):
            name = current_name(counter["Name"])
            metrics.setdefault(name, (expected_unit(name), number(counter["Value"])))
        for key, (name, size_unit) in _SIZES.items():
            if key in computed.get("CompilationData", {}):
                metrics.setdefault(name, (size_unit, number(computed["CompilationData"][key])))
        block, grid = _size(computed["LocalSize"]), _size(computed["GlobalSize"])
        if threads:
            grid = tuple(-(-total // max(1, size)) for total, size in zip(grid, block, strict=True))
        metrics.setdefault("launch__grid_size", ("", float(math.prod(grid))))
        metrics.setdefault("launch__block_size", ("thread", float(math.prod(block))))
        duration = number(computed["Duration"]) * factor if unit == "ns" else math.nan
        if not duration > 0 and unit == "ns":
            raise _ResultError(f"expected a duration above 0, found {computed['Duration']!r:.40}")
        names = tuple(metrics)
        units = tuple(metric_unit for metric_unit, _ in metrics.values())
        yield Launch(
            file=file,
            line=line,
            kernel=str(computed["KernelFunction"]),
            shape=f"{grid} x {block}",
            device=str(metadata.get("Device", "")),
            marks="",
            columns=columns.setdefault(names, Columns(names, units)),
            values=np.array([value for _, value in metrics.values()], dtype=np.float64),
            time_ns=duration,
            program=program,
            workload=workload,
            run=run,
            parameters=parameters,
        )


def _size(size: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(size[axis]) for axis in ("X", "Y", "Z"))


def _results(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yield (line, the object of metadata), then (line, a result), and (line, why) for what is none, streamed."""
    window = _Window(path)
    while (results := _RESULTS.search(window.text, window.at)) is None:
        if not window.more():
            yield 1, window.broken or "expected Results, found none"
            return
    try:
        metadata = json.loads(window.text[: results.start()].rstrip().rstrip(",") + "}")["Metadata"]
        if not isinstance(metadata, dict):
            raise _ResultError("expected Metadata, found no object")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        yield 1, f"expected Metadata before Results, found damage: {error}"[:200]
        metadata = {}
    yield 1, metadata
    window.go(results.end())
    while window.seek():
        value, end = window.value()
        if value is not None:
            yield window.line, value
            window.go(end)
            continue
        yield window.line, "expected a result, found damage"
        if not window.resume():
            break
    if window.broken:
        yield window.line, window.broken
    elif not window.closed:
        yield window.line, "expected the end of Results, found the end of the file: it is cut off"


class _Window:
    """A part of a file: `text[at:]`, whose first character stands in line `line`."""

    def __init__(self, path: Path) -> None:
        self._lines = text_lines(path)
        self._decode = json.JSONDecoder().raw_decode
        self.text = ""
        self.at = 0
        self.line = 1
        self.broken = ""
        self.closed = False

    def more(self) -> bool:
        """Read on; False at the end, or where one value is longer than any can be."""
        parts, missing = [self.text[self.at :]], _CHUNK
        if self.broken or len(parts[0]) > _LONGEST:
            return False
        try:
            while missing > 0 and (line := next(self._lines, None)) is not None:
                parts += (line[1], "\n")
                missing -= len(line[1]) + 1
        except TruncatedError as error:
            self.broken = str(error)
        self.text, self.at = "".join(parts), 0
        return len(parts) > 1

    def go(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def seek(self) -> bool:
        """Go to the next result; False at the end of Results, or of the file."""
        while True:
            skipped = _BETWEEN.match(self.text, self.at)
            self.go(skipped.end() if skipped else self.at)
            if self.text.startswith("]", self.at):
                self.closed = True
                return False
            if self.at < len(self.text):
                return True
            if not self.more():
                return False

    def value(self) -> tuple[dict[str, Any] | None, int]:
        """Return the object that begins here and where it ends; (None, 0) where there is none."""
        while True:
            try:
                value, end = self._decode(self.text, self.at)
            except json.JSONDecodeError as error:
                if error.pos < len(self.text) - _END and not error.msg.startswith("Unterminated"):
                    return None, 0
            except (RecursionError, ValueError):
                return None, 0
            else:
                return (value, end) if isinstance(value, dict) else (None, 0)
            if not self.more():
                return None, 0

    def resume(self) -> bool:
        """Go to where the next result begins; False where none does."""
        self.go(self.at + 1)
        while (following := _NEXT.search(self.text, self.at)) is None:
            self.go(max(self.at, len(self.text) - _BEGINNING))
            if not self.more():
                return False
        self.go(following.start())
        return True
