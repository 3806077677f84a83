"""Measurements of a tuning run as records of the live store, with what MetaSchedule's database leaves out.

The store needs packages that ``tencost[tuner]`` leaves out; without them a run has its MetaSchedule database alone.

`additional_info` of a record, besides the versions and the hardware:

    chosen_by   version of the model that the run tuned with, models:/<name>/<version>; `scratch` without one
    model_tvm   TVM that the model was trained with
    run         id of the tuning run
    round       number of the batch in the run, from 1
    batch       programs in that batch; the store may hold fewer, as it keeps a program that it has
    arm         who ranked the batch, see guard.py
    score       the model's own score of the program, in (0, 1], higher is faster, without what the run learnt

`tencost register drift` is made of these.

The whole network's times, as `tencost tune` and `tencost compile` take them, are records beside the live store: with
the tuned programs of the engine `tencost`, with default schedules only of `tvm`.
"""

from __future__ import annotations

import json
import platform
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rich.console import Console
from tvm.ir import save_json
from tvm_ffi import structural_hash

from tencost.config import Config, HardwareConfig, RunnerKind, TunerConfig
from tencost.errors import MissingDependencyError, RecordError
from tencost.networks.network import NetworkTask
from tencost.programs.codegen.vector_math import current_generator
from tencost.records.formats.metaschedule import RECORD_FILE, LoggedProgram
from tencost.records.network_times.timing import NetworkTiming, networks_uri, write_timings
from tencost.store.ids import program_id, record_id, workload_id
from tencost.store.record import NetworkWeight, Provenance, Record, Source, container_image
from tencost.store.status import Timing
from tencost.tune.curve import CurvePoint, read_points
from tencost.tune.reporting import print_note
from tencost.workers.hardware import another_machine

if TYPE_CHECKING:
    from tencost.records.door import RefusedRows
    from tencost.store.record_store import RecordStore
    from tencost.tune.cost_model import Round
    from tencost.tune.inputs import TuningInputs

DATASET = "tune"
"""Dataset name of records that come from tuning runs."""

STORE_PACKAGES = frozenset({"deltalake", "polars", "pyarrow"})
"""What the live store needs beyond ``tencost[tuner]``."""

TIMES = "network_times_s"
"""Row of the report: seconds of each turn, by what the network was compiled with: tuned, rules, default, compared."""


def open_live_store(uri: str) -> RecordStore:
    """Return the live store at `uri`; it need not exist yet.

    Raises:
        MissingDependencyError: a package that it needs is not installed.
        RecordError: what is at `uri` is no record store.
    """
    try:
        from tencost.store.record_store import RecordStore
    except ImportError as error:
        package = (error.name or "").split(".")[0]
        if package not in STORE_PACKAGES:
            raise
        raise MissingDependencyError(
            f"a live record store needs {package}, which is not installed (pip install 'tencost[pipeline]')"
        ) from error
    return RecordStore(uri)


def record_batch(store: RecordStore, records: Sequence[Record]) -> RefusedRows:
    """Write a batch's records; return those that a store of several people's does not let in.

    They stay in the work folder's database.
    """
    from tencost.records.door import Gate, RefusedRows, gate_of
    from tencost.records.gate import judged
    from tencost.store.schema import to_arrow

    table, refused = to_arrow(records), RefusedRows()
    if gate_of(store.uri) is Gate.apart:
        table = refused.let_in(table, judged(table, {}))
    store.add(table)
    return refused


def by_workload(tasks: Sequence[NetworkTask]) -> dict[str, NetworkTask]:
    """Return tasks by workload id."""
    return {workload_id(str(save_json(task.mod))): task for task in tasks}


@dataclass(frozen=True)
class Recorder:
    """What is the same for all records of a run.

    Attributes:
        network: name of the network.
        hardware: what is measured on.
        tuner: how it is measured.
        model: the model version that chose the programs.
        folder: name of the work folder.
        tasks: tasks by workload id.
        model_tvm: TVM that the model was trained with; empty where there is none.
        run: id of the run.
    """

    network: str
    hardware: HardwareConfig
    tuner: TunerConfig
    model: str
    folder: str
    tasks: Mapping[str, NetworkTask]
    model_tvm: str = ""
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    def records(
        self,
        programs: Sequence[LoggedProgram],
        timings: Sequence[Timing],
        ranked: Round | None = None,
        number: int = 0,
    ) -> list[Record]:
        """Join a batch's database lines with what came of each program, in the same order.

        Args:
            programs: the lines.
            timings: what came of each.
            ranked: how the batch had been ranked; None where it is not known.
            number: of the batch in the run, from 1.
        """
        batch: dict[str, Any] = {}
        if ranked is not None:
            batch = {"round": number, "batch": len(timings), "arm": ranked.arm.value}
        about = self._provenance(batch)
        scores: Sequence[float | None] = ranked.base_scores if ranked else ()
        if len(scores) != len(timings):  # the cost model does not see programs that did not build
            scores = [None] * len(timings)
        triples = zip(programs, timings, scores, strict=True)
        return [self._record(*triple, about) for triple in triples]

    def keep_modules(self, store_uri: str) -> None:
        """Put the tasks' modules beside the store, so that its schedules can be exported and learnt from."""
        from tencost.store.modules import write_modules

        rows = (
            (key, str(save_json(task.mod)), task.name, str(structural_hash(task.mod) % 2**64))
            for key, task in self.tasks.items()
        )
        write_modules(store_uri, rows)

    def _record(
        self, program: LoggedProgram, timing: Timing, score: float | None, about: Provenance
    ) -> Record:
        workload = program.workload.workload_id
        task = self.tasks[workload]
        identity = program_id(workload, program.target["kind"], program.trace)
        generator = current_generator(program.target["kind"])
        return Record(
            record_id=record_id(identity, program.target, self.hardware.name, generator),
            program_id=identity,
            workload_id=workload,
            task_name=task.name,
            networks=(NetworkWeight(self.network, task.weight),),
            hardware=self.hardware.name,
            target=program.target,
            program_format="metaschedule_trace",
            program=json.dumps(program.trace, separators=(",", ":")),
            run_secs=timing.run_secs,
            status=timing.status,
            error=timing.error,
            source=Source(DATASET, f"{self.folder}/{RECORD_FILE}", program.line),
            workload_args=program.args_info,
            provenance=about,
            extra=None if score is None else {"score": score},
            generator=generator,
        )

    def _provenance(self, batch: Mapping[str, Any]) -> Provenance:
        tuner, hardware = self.tuner, self.hardware
        return Provenance(
            timestamp=time.time(),
            engine_version=version("apache-tvm"),
            env_name=platform.platform() if hardware.runner is RunnerKind.local else None,
            hw_model=hardware.model,
            engine_config={"population": tuner.population, "generations": tuner.generations},
            runtime_config={"cores": hardware.cores},
            execution_config={
                "number": tuner.number,
                "repeat": tuner.repeat,
                "min_repeat_ms": tuner.min_repeat_ms,
                "cache_flush": tuner.cache_flush,
            },
            additional_info={
                "chosen_by": self.model,
                **({"model_tvm": self.model_tvm} if self.model_tvm else {}),
                "run": self.run,
                **batch,
                "tvm_ffi": version("apache-tvm-ffi"),
                "tencost": version("tencost"),
                "simd_bits": None if "simd_bits" in hardware.unknown else hardware.simd_bits,
                "clock_ghz": hardware.clock_ghz,
                **container_image(),
            },
        )


def record_tuned(inputs: TuningInputs, report: dict[str, Any]) -> None:
    """Write a tuned network's times, and of TVM's default schedules, where there is a store and they were taken.

    Somebody else's database, tuner.compare_with, is of no engine that the store knows, and is left out.
    """
    if inputs.store is None or TIMES not in report:
        return
    network, times = inputs.cfg.network, report[TIMES]
    conditions = {name: report[name] for name in ("tasks", "host_told") if report.get(name)}
    common = _common(inputs.cfg.hardware)
    common |= {"source": inputs.folder.path.name, "info": conditions}
    timings = [
        NetworkTiming.of(
            network,
            engine="tencost",
            seconds=tuple(times["tuned"]),
            engine_config={"model": inputs.chosen.name},
            tuning_seconds=tuning_seconds(read_points(inputs.folder.curve)),
            tuning_programs=report["trials"],
            max_rel_error=report.get("max_rel_error"),
            **common,
        ),
    ]
    if "default" in times:
        default = tuple(times["default"])
        timings.append(NetworkTiming.of(network, engine="tvm", seconds=default, **common))
    _write_timings(inputs.store.uri, timings, inputs.console)


def record_compiled(
    cfg: Config,
    hardware: HardwareConfig,
    store_uri: str,
    console: Console,
    *,
    tuned: bool,
    **fields: Any,
) -> None:
    """Write the time of a compiled network, where what a store needs is installed and the host is the hardware's.

    Args:
        cfg: of which the network is.
        hardware: what it was compiled for.
        store_uri: the live store, which need not be there.
        console: gets a line where it cannot be written.
        tuned: whether programs of a database are in it.
        fields: the others of its timing.
    """
    if any(find_spec(name) is None for name in STORE_PACKAGES) or another_machine(hardware):
        return
    fields |= _common(hardware)
    fields["engine_config"] = {"programs": "tuned" if tuned else "by rule"}
    timing = NetworkTiming.of(cfg.network, engine="tencost", **fields)
    _write_timings(store_uri, [timing], console)


def tuning_seconds(points: Iterable[CurvePoint]) -> float:
    """Return what all runs of a work folder tuned together, seconds: each counts from 0."""
    total = last = 0.0
    for point in points:
        total += point.elapsed_s - (last if point.elapsed_s >= last else 0.0)
        last = point.elapsed_s
    return total


def _common(hardware: HardwareConfig) -> dict[str, Any]:
    return {
        "hardware": hardware.name,
        "cores": hardware.cores,
        "hw_model": hardware.model or None,
        "target": hardware.target,
    }


def _write_timings(store_uri: str, timings: list[NetworkTiming], console: Console) -> None:
    """Write them; that the store cannot be written to now does not undo what was tuned or compiled."""
    try:
        added = write_timings(store_uri, timings)
    except RecordError as error:
        print_note(console, f"the network's time is in no record: {error}")
        return
    if added.quarantined:
        print_note(
            console,
            f"{added.quarantined} of the network's times are in quarantine, as their repeats contradict each other: "
            f"tencost records quarantine --store {networks_uri(store_uri)}",
        )
