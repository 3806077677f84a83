"""Measurements of a tuning run as records of the live store, with what MetaSchedule's database does not keep.

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
"""

from __future__ import annotations

import json
import platform
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from tencost.config import HardwareConfig, RunnerKind, TunerConfig
from tencost.errors import MissingDependencyError
from tencost.networks.network import NetworkTask
from tencost.programs.codegen.vector_math import current_generator
from tencost.records.formats.metaschedule import RECORD_FILE, LoggedProgram
from tencost.store.ids import program_id, record_id, workload_id
from tencost.store.record import NetworkWeight, Provenance, Record, Source
from tencost.store.status import Timing

if TYPE_CHECKING:
    from tencost.records.door import Apart
    from tencost.store.record_store import RecordStore
    from tencost.tune.cost_model import Round

DATASET = "tune"
"""Dataset name of records that come from tuning runs."""

STORE_PACKAGES = frozenset({"deltalake", "polars", "pyarrow"})
"""What the live store needs beyond ``tencost[tuner]``."""


def open_store(uri: str) -> RecordStore:
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


def write_records(store: RecordStore, records: Sequence[Record]) -> Apart:
    """Write a batch's records; return those that a store of several people's does not let in.

    They stay in the work folder's database.
    """
    from tencost.records.door import Apart, Gate, gate_of
    from tencost.records.gate import judged
    from tencost.store.schema import to_arrow

    table, apart = to_arrow(records), Apart()
    if gate_of(store.uri) is Gate.apart:
        table = apart.let_in(table, judged(table, {}))
    store.add(table)
    return apart


def by_workload(tasks: Sequence[NetworkTask]) -> dict[str, NetworkTask]:
    """Return tasks by workload id."""
    from tvm.ir import save_json

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
        about = self._provenance(_of_batch(ranked, number, len(timings)))
        scores: Sequence[float | None] = ranked.base_scores if ranked else ()
        if len(scores) != len(timings):  # the cost model does not see programs that did not build
            scores = [None] * len(timings)
        triples = zip(programs, timings, scores, strict=True)
        return [self._record(*triple, about) for triple in triples]

    def keep_modules(self, store_uri: str) -> None:
        """Put the tasks' modules beside the store, so that its schedules can be exported and learnt from."""
        from tvm.ir import save_json
        from tvm_ffi import structural_hash

        from tencost.store.modules import write_modules

        write_modules(
            store_uri,
            (
                (
                    workload,
                    str(save_json(task.mod)),
                    task.name,
                    str(structural_hash(task.mod) % 2**64),
                )
                for workload, task in self.tasks.items()
            ),
        )

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
            },
        )


def _of_batch(ranked: Round | None, number: int, programs: int) -> dict[str, Any]:
    if ranked is None:
        return {}
    return {"round": number, "batch": programs, "arm": ranked.arm.value}
