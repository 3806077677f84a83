"""One record as a dataclass: what tuning and measuring need of records where only ``tencost[tuner]`` is installed.

The columns that it becomes are in schema.py, which needs pyarrow.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from tencost.store.generator import UNKNOWN
from tencost.store.status import Status

PROGRAM_FORMATS = ("metaschedule_trace", "ansor_steps", "autotvm_config", "configuration", "none")
"""What the program column holds: a program of that tuner, see formats/; configuration: {name: value, ...} of any other;
none: the log has no programs."""


@dataclass(frozen=True)
class NetworkWeight:
    """A network that a workload occurs in, and how often."""

    network: str
    weight: int


@dataclass(frozen=True)
class Source:
    """Where a record was read: dataset, file relative to the dataset's folder, line from 1."""

    dataset: str
    file: str
    line: int


@dataclass(frozen=True)
class Provenance:
    """What is the same for all records of one hardware of a dataset; fields as in the schema."""

    timestamp: float | None = None
    engine_version: str | None = None
    env_name: str | None = None
    hw_model: str | None = None
    engine_config: dict[str, Any] | None = None
    build_config: dict[str, Any] | None = None
    runtime_config: dict[str, Any] | None = None
    execution_config: dict[str, Any] | None = None
    additional_info: dict[str, Any] | None = None


@dataclass(frozen=True)
class Record:
    """One program measured on one hardware.

    `run_secs` holds all times in seconds and is empty unless `status` is ok. `target` and
    `workload_args` are as the log has them, `program` is JSON text in `program_format`.
    """

    record_id: str
    program_id: str
    workload_id: str
    task_name: str
    networks: tuple[NetworkWeight, ...]
    hardware: str
    target: dict[str, Any]
    program_format: str
    program: str
    run_secs: tuple[float, ...]
    status: Status
    error: str
    source: Source
    workload_args: list[Any] | None = None
    engine: str = "tvm"
    provenance: Provenance = Provenance()
    extra: dict[str, Any] | None = None
    """What this record's log says beyond the columns; goes to `additional_info`."""
    foreign: str | None = None
    generator: str = UNKNOWN
    """Who made its machine code, see generator.py; part of `record_id`."""

    def __post_init__(self) -> None:
        assert self.program_format in PROGRAM_FORMATS, self.program_format
        assert bool(self.run_secs) == (self.status is Status.ok)
        assert all(math.isfinite(value) and value > 0 for value in self.run_secs)


def elapsed_ms(run_secs: Sequence[float]) -> dict[str, float | None]:
    """Return RFC 4304's two columns of a record's seconds: mean and sample deviation in ms, None of too few times."""
    milliseconds = [1e3 * value for value in run_secs]
    return {
        "execution_elapsed_ms_mean": statistics.fmean(milliseconds) if milliseconds else None,
        "execution_elapsed_ms_std": (
            statistics.stdev(milliseconds) if len(milliseconds) > 1 else None
        ),
    }


_IMAGE = {"docker_tag": "TENCOST_DOCKER_TAG", "docker_hash": "TENCOST_DOCKER_HASH"}
"""Members of `additional_info` in RFC 4304 -> environment variables, as a container cannot ask what its image is."""


def container_image() -> dict[str, str]:
    """Return docker_tag and docker_hash of the image that this process runs in, as far as its environment says them."""
    values = {name: os.environ.get(variable, "").strip() for name, variable in _IMAGE.items()}
    return {name: value for name, value in values.items() if value}


def provenance_from_json(values: dict[str, Any]) -> Provenance:
    """Read a provenance file's object; keys that are no field go to `additional_info`."""
    names = {field.name for field in fields(Provenance)}
    extra = {key: value for key, value in values.items() if key not in names}
    arguments = {key: value for key, value in values.items() if key in names}
    if extra:
        arguments["additional_info"] = {**(arguments.get("additional_info") or {}), **extra}
    return Provenance(**arguments)
