"""Whole networks' times as records: a table beside the record store, ``<store>-networks``, of the same kind.

It is a record store with the same columns (RFC 4304's were made for this), so that its gate, ids, writers, history,
queries and exports are the store's own. What a column holds of a network:

    workload, task_name    ``network.bert_tiny`` (``layer.``, ``task.`` for parts), bert_tiny
    workload_args          {"network", "variant", "batch", "size", "part"}; what is not said is not there
    engine, engine_version as in ENGINES, or any other name
    engine_config          what the engine was told
    env_name, hw_model     the host, its CPU
    runtime_config         {"num_cpu_threads": cores}
    run_secs               the single latencies, seconds, in the order taken
    program_format         none
    additional_info        {"granularity", "validation_accuracy", "code_size": bytes, "compile_time": seconds,
                           "tuning_seconds", "tuning_programs", "max_rel_error", "versions": {"tencost", "tvm", ...}}
                           and what the writer says beyond; RFC 4304 names four of them, the others are ours

Ids: a workload is a network with its variant, batch, size and part; a program is that with an engine; a record is one
measurement of it: version and configuration of the engine, hardware, cores, host, target and time of day. So the same
timing written twice is there once, and what was measured again is another record of the same program: its history.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Self

from tencost.config import NetworkConfig
from tencost.errors import RecordError
from tencost.records.reading.jsonfloats import finite
from tencost.records.reading.timestamps import moment_of
from tencost.store.ids import canonical_json, canonical_target, text_id
from tencost.store.record import container_image, elapsed_ms
from tencost.store.status import Status

if TYPE_CHECKING:
    import pyarrow as pa

    from tencost.store.record_store import Added

SUFFIX = "-networks"
HOST_VARIABLE = "TENCOST_HOST"
"""Environment variable with the host's name in records, where its own changes: in a container, in CI."""
ENGINES = {
    "tencost": "tencost",
    "tvm": "apache-tvm",
    "metaschedule": "apache-tvm",
    "onnxruntime": "onnxruntime",
    "pytorch": "torch",
    "torch.compile": "torch",
}
"""Engines by the names that records have, and the package whose version is theirs. tencost: tuned by it; tvm: default
schedules; metaschedule: stock MetaSchedule; pytorch: eager."""


class Granularity(StrEnum):
    """The unit that was timed."""

    end_to_end = "end to end"
    """The network."""
    layer = "layer"
    """A layer of it."""
    task = "task"
    """A tuning task of it."""


_DOMAIN = {
    Granularity.end_to_end: "network",
    Granularity.layer: "layer",
    Granularity.task: "task",
}


def networks_uri(store_uri: str) -> str:
    """Return where the times of networks beside a record store are; a URI of such a table is one itself."""
    uri = store_uri.rstrip("/")
    return uri if uri.endswith(SUFFIX) else uri + SUFFIX


def host_name() -> str:
    """Return what this host is called in records: TENCOST_HOST, or the name that it has."""
    return os.environ.get(HOST_VARIABLE) or platform.node() or "unknown"


def engine_version_here(engine: str) -> str | None:
    """Return the version of an engine as it is installed here; None for one that is not known or not here."""
    return _installed(ENGINES[engine]) if engine in ENGINES else None


def versions_here(engine: str) -> dict[str, str]:
    """Return versions by name of what a time depends on beside the engine: tencost, and TVM where TVM compiled."""
    compiled = engine in ("tencost", "tvm", "metaschedule")
    versions = {name: _installed(ENGINES[name]) for name in ("tencost", "tvm")[: 1 + compiled]}
    return {name: installed for name, installed in versions.items() if installed}


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@dataclass(frozen=True, kw_only=True)
class NetworkTiming:
    """A network, or a part of it, timed with one engine on one host, at one time.

    Attributes:
        network: its plain name, bert_tiny.
        engine: a name of ENGINES, or another.
        hardware: what it was compiled for and ran on, a name of conf/hardware.
        seconds: single latencies, in the order taken: each one call, or the mean of a few; none for a failure.
        batch: of its inputs.
        size: pixels or tokens of its inputs; None: it has one size only.
        variant: what else sets it apart from others of that name: NHWC, fp16.
        cores: how many it ran on.
        engine_version: None: as installed here.
        engine_config: what the engine was told: model, options.
        host: name of the machine.
        hw_model: its CPU; None: not told.
        timestamp: seconds since 1970.
        granularity: what was timed.
        part: name of the layer or task; empty for the network.
        target: TVM's, of what TVM compiled.
        error: why it could not be timed; empty where it could.
        status: of a failure.
        execution: how it was timed: {"number", "repeat"}.
        validation_accuracy: of the network as it was timed, from 0 to 1.
        code_size: bytes of what was deployed, weights included.
        compile_seconds: what compiling took.
        tuning_seconds: what tuning took before.
        tuning_programs: programs measured for it.
        max_rel_error: largest difference from the framework's output, relative to the magnitude of such values.
        info: what else is to be kept, JSON's types.
        source: where it came from: a work folder, a benchmark.
    """

    network: str
    engine: str
    hardware: str
    seconds: tuple[float, ...] = ()
    batch: int = 1
    size: int | None = None
    variant: str = ""
    cores: int = 1
    engine_version: str | None = None
    engine_config: Mapping[str, Any] = field(default_factory=dict)
    host: str = field(default_factory=host_name)
    hw_model: str | None = None
    timestamp: float = field(default_factory=time.time)
    granularity: Granularity = Granularity.end_to_end
    part: str = ""
    target: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    status: Status = Status.run_error
    execution: Mapping[str, Any] = field(default_factory=dict)
    validation_accuracy: float | None = None
    code_size: int | None = None
    compile_seconds: float | None = None
    tuning_seconds: float | None = None
    tuning_programs: int | None = None
    max_rel_error: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse an invalid timing.

        Raises:
            RecordError: a name is missing, a time is none, or there are times and an error, or neither.
        """
        for name in ("network", "engine", "hardware", "host"):
            if not str(getattr(self, name)).strip():
                raise RecordError(f"expected a {name} of a network's timing, found none")
        bad = [latency for latency in self.seconds if not (math.isfinite(latency) and latency > 0)]
        if bad:
            raise RecordError(
                f"expected seconds of {self.network} with {self.engine} above 0, found {bad[0]}. A failure has no "
                "seconds and an error"
            )
        if bool(self.seconds) == bool(self.error):
            presence = "both" if self.seconds else "neither"
            raise RecordError(
                f"expected either seconds or an error of {self.network} with {self.engine}, found {presence}"
            )
        if (self.part == "") != (self.granularity is Granularity.end_to_end):
            raise RecordError(
                f"expected the name of a part for a {Granularity.layer} or {Granularity.task} and for nothing else, "
                f"found {self.part!r} for granularity {self.granularity}"
            )
        if moment_of(self.timestamp) is None:
            raise RecordError(
                f"expected the time of day of {self.network} as seconds since 1970, found {self.timestamp}"
            )
        if self.cores < 1 or self.batch < 1:
            raise RecordError(
                f"expected a batch and cores of at least 1 of {self.network}, found {self.batch} and {self.cores}"
            )

    @classmethod
    def of(cls, config: NetworkConfig, **fields: Any) -> Self:
        """Return a timing of a configured network; `fields` are the others."""
        size = config.size or config.default_size or None
        return cls(network=config.name, batch=config.batch, size=size, **fields)

    def row(self) -> dict[str, Any]:
        """Return the columns of the record schema."""
        from tencost.store.schema import SCHEMA_VERSION

        engine_version = self.engine_version or engine_version_here(self.engine)
        subject = _present(
            network=self.network,
            variant=self.variant or None,
            batch=self.batch,
            size=self.size,
            part=self.part or None,
        )
        workload = text_id("network", canonical_json(subject), self.granularity.value)
        program = text_id(workload, self.engine)
        where = [engine_version, self.hardware, self.host, self.cores, self.timestamp]
        runtime = {"num_cpu_threads": self.cores}
        return {
            "record_id": text_id(
                program,
                canonical_json(where),
                canonical_target(dict(self.target)),
                canonical_json(dict(self.engine_config)),
            ),
            "program_id": program,
            "workload_id": workload,
            "task_name": f"{self.network}/{self.part}" if self.part else self.network,
            "networks": [{"network": self.network, "weight": 1}],
            "hardware": self.hardware,
            "timestamp": float(self.timestamp),
            "schema_version": SCHEMA_VERSION,
            "additional_info": canonical_json(self._info()),
            "workload": f"{_DOMAIN[self.granularity]}.{self.network}",
            "workload_args": canonical_json(subject),
            "engine": self.engine,
            "engine_version": engine_version,
            "engine_config": canonical_json(dict(self.engine_config))
            if self.engine_config
            else None,
            "target": canonical_target(dict(self.target)),
            "env_name": self.host,
            "hw_model": self.hw_model,
            "runtime_config": canonical_json(runtime),
            "execution_config": canonical_json(dict(self.execution)) if self.execution else None,
            **elapsed_ms(self.seconds),
            "program_format": "none",
            "program": "",
            "run_secs": [float(value) for value in self.seconds] or None,
            "status": Status.ok.value if self.seconds else self.status.value,
            "error": self.error or None,
            "source": {"dataset": "networks", "file": self.source, "line": 0},
        }

    def _info(self) -> dict[str, Any]:
        measures = _present(
            validation_accuracy=self.validation_accuracy,
            code_size=self.code_size,
            compile_time=self.compile_seconds,
            tuning_seconds=self.tuning_seconds,
            tuning_programs=self.tuning_programs,
            max_rel_error=self.max_rel_error,
        )
        context = {"granularity": self.granularity.value, "versions": versions_here(self.engine)}
        return {**context, **container_image(), **finite(dict(self.info)), **finite(measures)}


def write_timings(store_uri: str, timings: Iterable[NetworkTiming]) -> Added:
    """Add timings to the table beside a record store, those that it does not have; return what was added.

    It may be called from several processes at once and killed at any time, see :class:`RecordStore`. A timing whose
    repeats contradict each other goes into quarantine, as every record does.

    Args:
        store_uri: of the record store (data/store), or of the table itself.
        timings: what was measured.

    Raises:
        RecordError: the table cannot be written, or what is there is none.
    """
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    from tencost.records.gate import judged
    from tencost.store.delta import delta_error_line
    from tencost.store.record_store import RecordStore
    from tencost.store.schema import SCHEMA

    uri = networks_uri(store_uri)
    table = pa.Table.from_pylist([timing.row() for timing in timings], schema=SCHEMA)
    try:
        return RecordStore(uri).add(judged(table, {}))
    except (DeltaError, OSError) as error:
        raise RecordError(
            f"expected to write the times of networks into {uri}: {delta_error_line(error)}. Make the place writable "
            "and measure again"
        ) from error


def are_networks(table: pa.Table) -> pa.ChunkedArray:
    """Say of each row of a table of the record schema whether it is a record of a network that tencost wrote."""
    import pyarrow.compute as pc

    has_granularity = pc.match_substring(table.column("additional_info"), '"granularity":')
    domains = pc.match_substring_regex(
        table.column("workload"), rf"^({'|'.join(_DOMAIN.values())})\."
    )
    return pc.and_(pc.fill_null(has_granularity, fill_value=False), domains)


def _present(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
