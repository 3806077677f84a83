"""Measurements of a tuning run as records of the live store, with what MetaSchedule's database does not keep."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from tencost.config import HardwareConfig, TunerConfig
from tencost.measure.networks import NetworkTask
from tencost.records.formats.metaschedule import RECORD_FILE, LoggedProgram
from tencost.records.ids import program_id, record_id
from tencost.records.schema import NetworkWeight, Provenance, Record, Source
from tencost.records.status import Timing

DATASET = "tune"
"""Dataset name of records that come from tuning runs."""


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
    """

    network: str
    hardware: HardwareConfig
    tuner: TunerConfig
    model: str
    folder: str
    tasks: Mapping[str, NetworkTask]

    def records(self, programs: Sequence[LoggedProgram], timings: Sequence[Timing]) -> list[Record]:
        """Join a batch's database lines with what came of each program, in the same order."""
        about = self._provenance()
        pairs = zip(programs, timings, strict=True)
        return [self._record(program, timing, about) for program, timing in pairs]

    def _record(self, program: LoggedProgram, timing: Timing, about: Provenance) -> Record:
        workload = program.workload.workload_id
        task = self.tasks[workload]
        identity = program_id(workload, program.target["kind"], program.trace)
        return Record(
            record_id=record_id(identity, program.target, self.hardware.name),
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
        )

    def _provenance(self) -> Provenance:
        tuner, hardware = self.tuner, self.hardware
        return Provenance(
            timestamp=time.time(),
            engine_version=version("apache-tvm"),
            env_name=platform.platform(),
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
                "tvm_ffi": version("apache-tvm-ffi"),
                "tencost": version("tencost"),
                "simd_bits": hardware.simd_bits,
                "clock_ghz": hardware.clock_ghz,
            },
        )
