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

from tencost.records.counters.cells import number
from tencost.records.counters.launches import Columns, Launch, Note, ProfileFormat, Reject
from tencost.records.counters.metrics import canonical_unit, current_name, expected_unit
from tencost.records.reading.jsonobjects import Window
from tencost.records.reading.protocol import About, BadLineError

_OK = "Ok"
_SIZES = {
    "RegistersCount": ("launch__registers_per_thread", "register/thread"),
    "LocalMemorySize": ("launch__shared_mem_per_block_static", "byte/block"),
}
"""Sizes of KTT's compiler -> today's name and unit."""
_RESULTS = re.compile(r'"Results"\s*:\s*\[')
_NEXT = re.compile(r'\{\s*"(?:ComputationResults|Configuration|KernelName|Status)"')
_BETWEEN = re.compile(r"[\s,]*")


class KttFormat(ProfileFormat):
    """Reads KTT's results."""

    layout = "KTT's results as JSON"

    def recognizes(self, _path: Path, head: bytes) -> bool:
        """Say whether a file begins as KTT's results do."""
        begin = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        has_results = b'"KttVersion"' in begin or b'"Results"' in begin
        return begin.startswith(b"{") and b'"Metadata"' in begin and has_results

    def read(self, path: Path, about: About) -> Iterator[Launch | Reject | Note]:
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
            except BadLineError as error:
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
        raise BadLineError("expected names of kernel and parameters, found others")
    if not all(isinstance(value, int | float | str) for value in parameters.values()):
        raise BadLineError("expected numbers and words as parameters, found others")
    text = json.dumps([workload, sorted(parameters.items())])
    program = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    if not result["ComputationResults"]:
        raise BadLineError("expected a computation of a kernel, found none")
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
            raise BadLineError(f"expected a duration above 0, found {computed['Duration']!r:.40}")
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
    window = Window(path, errors="replace")
    results = window.find(_RESULTS)
    if results is None:
        yield 1, window.truncated or "expected Results, found none"
        return
    try:
        text = window.text[: results.start()].strip("\ufeff, \t\r\n")
        metadata = json.loads(text + "}")["Metadata"]
        if not isinstance(metadata, dict):
            raise BadLineError("expected Metadata, found no object")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        yield 1, f"expected Metadata before Results, found damage: {error}"[:200]
        metadata = {}
    yield 1, metadata
    window.advance(results.end())
    while window.skip(_BETWEEN):
        if window.text[window.at] == "]":
            return
        result, end, _ = window.parse()
        if result is not None:
            yield window.line, result
            window.advance(end)
            continue
        yield window.line, "expected a result, found damage"
        window.advance(window.at + 1)
        following = window.find(_NEXT)
        window.advance(following.start() if following else len(window.text))
    yield (
        window.line,
        window.truncated or "expected the end of Results, found the end of the file: it is cut off",
    )
