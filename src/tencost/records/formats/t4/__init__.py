"""T4, the open format of autotuning results of Kernel Tuner, KTT, BAT and others (doi 10.1145/3629527.3651429).

    file      {"results": [result, ...], "metadata": {"timeunit": unit}, "schema_version": "1.0.0"}, on one line or many
    result    {"configuration": {name: value, ...}, "times": {"runtimes": [time, ...], "compilation": time, ...},
               "invalidity": word, "correctness": 1 or 0, "timestamp": text, "objectives": [name, ...],
               "measurements": [{"name": text, "value": number or text, "unit": text}, ...]}
    unit      one of UNITS; the file's, or else that of the measurement `time` (Kernel Tuner writes no metadata)

A result must have a configuration and its invalidity, one of STATUSES; any other word, as a constraint's name, is the
status unknown. Without runtimes the measurement `time` is the only time. An example, shortened::

    {"timestamp": "2023-12-22 09:54:05+00:00", "configuration": {"block_size_x": 16}, "invalidity": "correct",
     "times": {"compilation": 918.6, "runtimes": [3.97, 3.87]}, "correctness": 1}

A file names neither its device, which the reader is told, nor its kernel: name, problem size and language are those of
a T1 description in the same folder (T1 in its name) that has the configurations' parameters; else the name is that of
the file, without the words T4 and the device. Further fields are in `foreign`. Not to be relied on: the order of
results, and `correctness` of failures (Kernel Tuner writes 1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tencost.errors import RecordError
from tencost.records.reading.jsonfloats import with_floats
from tencost.records.reading.jsonobjects import json_objects, read_objects
from tencost.records.reading.opening import TruncatedError, lines, read_head
from tencost.records.reading.protocol import BATCH_ROWS, About, Batch, LogFormat, shorten
from tencost.records.reading.targets import device_of
from tencost.records.reading.timestamps import epoch_seconds
from tencost.store.ids import canonical_json, program_id, record_id, text_id
from tencost.store.status import FAILURE_SECONDS, Status, Timing, timing_from_log

STATUSES = {
    "correct": Status.ok,
    "compile": Status.build_error,
    "runtime": Status.run_error,
    "timeout": Status.run_timeout,
    "correctness": Status.wrong_answer,
    "constraints": Status.invalid_schedule,
}
_SPELLINGS = {
    1e0: "s seconds",
    1e3: "ms milliseconds miliseconds",
    1e6: "us microseconds",
    1e9: "ns nanoseconds",
}
UNITS = {unit: per_second for per_second, words in _SPELLINGS.items() for unit in words.split()}
"""Unit of time -> how many are a second."""
_TARGETS = {"CUDA": "cuda", "HIP": "rocm", "OpenCL": "opencl"}
"""Language of a T1 description -> kind of TVM's target."""
_FACTS = re.compile(rb'"(timeunit|schema_version)"\s*:\s*"([^"]*)"')
_AROUND = re.compile(
    r'(?:[\s,\[\]}\ufeff]|\{(?=\s*"(?:results|metadata|schema_version)"\s*:)'
    r'|"results"\s*:|"metadata"\s*:\s*\{[^{}]*\}|"schema_version"\s*:\s*"[^"]*")*'
)
_EXAMPLE = """\
{"schema_version": "1.0.0", "metadata": {"timeunit": "miliseconds"}, "results": [
{"configuration": {"tile": 1, "layout": "NHWC"}, "timestamp": "2023-12-22 09:54:05+00:00", \
"times": {"compilation": 9.5, "runtimes": [3.5, 3.25]}, "invalidity": "correct", "correctness": 1},
{"configuration": {"tile": 2, "layout": "NHWC"}, "times": {"compilation": 9.5}, "invalidity": "runtime", \
"correctness": 0, "measurements": [{"name": "time", "value": "RuntimeFailedConfig", "unit": ""}]},
{"configuration": {"tile": 2, "layout": "NCHW"}, "times": {}, "invalidity": "correct", "correctness": 1, \
"measurements": [{"name": "time", "value": 250.0, "unit": "us"}]}]}
"""
_DESCRIPTION = """\
{"General": {"BenchmarkName": "blur"}, "KernelSpecification": {"Language": "CUDA", "ProblemSize": [4096, 4096]}, \
"ConfigurationSpace": {"TuningParameters": [{"Name": "tile"}, {"Name": "layout"}]}}
"""


class T4Format(LogFormat):
    """Reads T4 results, with the T1 description beside them."""

    example = MappingProxyType({"blur_T4.json": _EXAMPLE, "blur_T1.json": _DESCRIPTION})

    def recognizes(self, _path: Path, head: bytes) -> bool:
        """Say whether the head is JSON with the keys of a result; tables have these words in a column."""
        is_json = head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith((b"{", b"["))
        return is_json and all(key in head for key in (b'"configuration"', b'"invalidity"'))

    def part(self, head: bytes) -> str:
        return "the description of a T4 search space (T1)" if b'"TuningParameters"' in head else ""

    def read(self, path: Path, about: About, batch_rows: int = BATCH_ROWS) -> Iterator[Batch]:
        """Yield the file's records and rejects; a record's line is where its result begins.

        Raises:
            RecordError: another major version than 1, or a damaged T1 description beside it.
        """
        facts: dict[bytes, str] = {}
        with suppress(TruncatedError):  # they may stand behind the results
            for _, line in lines(path):
                for match in _FACTS.finditer(line):
                    facts.setdefault(match[1], match[2].decode(errors="replace"))
                if len(facts) == 2:
                    break
        version, unit = facts.get(b"schema_version", "1"), facts.get(b"timeunit", "")
        if version.partition(".")[0] != "1":
            raise RecordError(
                f"expected T4 results of schema_version 1, found {shorten(version)}. Write them in that version"
            )
        objects = json_objects(path, lambda part: "configuration" in part, _AROUND)
        row = partial(_row, unit=unit, kernels=_kernels(path, about), about=about)
        return read_objects(objects, about, batch_rows, row)


FORMAT = T4Format()


Kernel = tuple[str, list[Any], dict[str, Any]]
"""A tuned kernel: its name, the problem's size, and its target as far as it is known."""


def _kernels(path: Path, about: About) -> dict[frozenset[str], Kernel]:
    """Return the kernels of T1 descriptions beside a file by their parameters, and the file's own by none.

    Raises:
        RecordError: a description is damaged.
    """
    ignored = {"t4", (about.hardware or "").casefold()}
    words = Path(about.file).name.partition(".")[0].split("_")
    name = "_".join(word for word in words if word.casefold() not in ignored) or "kernel"
    kernels: dict[frozenset[str], Kernel] = {frozenset(): (name, [], {})}
    for beside in sorted(path.parent.glob("*[tT]1*")):
        if not beside.is_file() or not FORMAT.part(read_head(beside)):
            continue
        try:
            space = json.loads(b"".join(line for _, line in lines(beside)))
            parameters = space["ConfigurationSpace"]["TuningParameters"]
            kernel, name = space["KernelSpecification"], str(space["General"]["BenchmarkName"])
            target = {"kind": kind} if (kind := _TARGETS.get(kernel["Language"])) else {}
            names = frozenset(parameter["Name"] for parameter in parameters)
            kernels[names] = (name, kernel.get("ProblemSize", []), target)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise RecordError(
                f"expected a T1 description in {beside.name}, found {type(error).__name__}: {error}. "
                f"Correct it, or move it away from {about.file}"
            ) from error
    return kernels


def _row(
    result: dict[str, Any], unit: str, kernels: dict[frozenset[str], Kernel], about: About
) -> dict[str, Any]:
    """Return the columns of a result; read_objects has what is raised for one that is none."""
    configuration, times = result["configuration"], result.get("times") or {}
    if not isinstance(configuration, dict) or not configuration:
        raise ValueError(f"expected named values in configuration, found {shorten(configuration)}")
    json.dumps(result, ensure_ascii=False).encode()  # Arrow cannot hold half a surrogate pair
    json.dumps(configuration, allow_nan=False)
    timing = _timing(result, times, unit)
    name, size, target = kernels.get(frozenset(configuration)) or kernels[frozenset()]
    device = device_of(target, about)
    workload = text_id("t4", canonical_json([name, size]))
    identity = program_id(workload, target.get("kind", ""), configuration)
    rest = {key: value for key, value in result.items() if key != "configuration"}
    rest["times"] = {key: value for key, value in times.items() if key != "runtimes"}
    foreign = {"format": "t4", "timeunit": unit, "result": with_floats(rest)}
    timestamp = result.get("timestamp")
    return {
        "record_id": record_id(identity, target, device),
        "program_id": identity,
        "workload_id": workload,
        "task_name": name,
        "workload": f"t4.{name}",
        "workload_args": json.dumps(size),
        "hardware": device,
        "target": json.dumps(target),
        "engine": "t4",
        "program_format": "configuration",
        "program": canonical_json(configuration),
        "timestamp": None if timestamp is None else epoch_seconds(timestamp),
        "run_secs": list(timing.run_secs) or None,
        "status": timing.status.value,
        "error": timing.error or None,
        "foreign": json.dumps(foreign, separators=(",", ":")),
    }


def _timing(result: dict[str, Any], times: dict[str, Any], unit: str) -> Timing:
    """Return the times of a result in seconds, or how it failed."""
    measurements = {
        measurement["name"]: measurement for measurement in result.get("measurements") or []
    }
    time, word = measurements.get("time", {}), result["invalidity"]
    status, value = STATUSES.get(word, Status.unknown), time.get("value")
    if status is not Status.ok:
        return Timing(status, (), value if isinstance(value, str) else str(word))
    if result.get("correctness") == 0:
        return Timing(Status.wrong_answer, (), "correctness is 0")
    runtimes, unit = times.get("runtimes"), unit or time.get("unit") or ""
    if not runtimes:
        runtimes, unit = [value], time.get("unit") or unit
    if not all(isinstance(runtime, int | float) for runtime in runtimes):
        return Timing(Status.unknown, (), f"not a list of times: {shorten(runtimes)}")
    if unit.casefold() not in UNITS:
        expected = f"expected metadata.timeunit, one of {', '.join(UNITS)}"
        raise ValueError(f"{expected}, found {shorten(unit)}")
    per_second = UNITS[unit.casefold()]
    # Marks of a failure (1e9, 1e10) are no times; in a unit below a millisecond they may be.
    marks = [runtime for runtime in runtimes if runtime >= FAILURE_SECONDS and per_second <= 1e3]
    return timing_from_log(marks or [runtime / per_second for runtime in runtimes])
