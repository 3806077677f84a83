"""Programs for a GPU, made and built on a host that has none: everything but running them."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import tarfile
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tencost.config import HardwareConfig
from tencost.config.composition import compose
from tencost.store.status import Status
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.remote import RemoteDevices
from tencost.workers.tracker import RemoteAddress
from worker_programs import written

pytestmark = pytest.mark.tvm

AARCH64 = 183
"""e_machine of an ELF file for 64-bit ARM."""


@dataclass
class Task:
    """A matmul on a GPU, with some of its programs."""

    dtype: str
    mod_json: str
    hardware: HardwareConfig
    schedules: list[Any]
    traces: list[str]


@pytest.fixture(scope="module", params=["float32", "float16"])
def task(request: pytest.FixtureRequest) -> Task:
    """MetaSchedule schedules float16 for the tensor cores, with intrinsics of its own."""
    import tvm
    from tvm import te
    from tvm.ir import save_json

    from tencost.measure.programs import ProgramSpace

    hardware = compose(["hardware=nvidia-h200"])[0].hardware
    a, b = (te.placeholder((256, 256), name=name, dtype=request.param) for name in "AB")
    k = te.reduce_axis((0, 256), name="k")
    c = te.compute((256, 256), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    mod_json = str(save_json(tvm.IRModule({"main": te.create_prim_func([a, b, c])})))
    space = ProgramSpace(mod_json, hardware.target, 1)
    schedules = list(space.random(6, set()).schedules)
    _, lines = space.lines(schedules)
    traces = [json.dumps(json.loads(line)[1][0]) for line in lines]
    return Task(request.param, mod_json, hardware, schedules, traces)


def test_the_design_space_is_a_gpus(task: Task) -> None:
    assert len(task.traces) == 6
    assert all("threadIdx.x" in trace for trace in task.traces)
    assert {"Tensorize" in trace for trace in task.traces} == {task.dtype == "float16"}


@pytest.mark.parametrize("kind", ["per_store", "tiles"])
def test_programs_have_features(task: Task, kind: str) -> None:
    from tencost.features.extractor import spec_for
    from tencost.features.parallel import featurize_chunk
    from tencost.features.rows.kind import Chunk

    spec = spec_for(compose([f"features={kind}"])[0].features)
    names = tuple(f"p{index}" for index in range(6))
    chunk = Chunk("w", task.mod_json, json.dumps(task.hardware.target), names, tuple(task.traces))
    found = featurize_chunk(spec, chunk)
    assert [one.reason for one in found] == [""] * 6
    assert len({one.rows.tobytes() for one in found if one.rows is not None}) >= 4


def test_replayed_programs_are_built_and_packed_for_the_device(task: Task) -> None:
    from tencost.programs.codegen.build import build
    from tencost.programs.trace.replay import load_module, replay

    replayed = replay(load_module(task.mod_json), task.traces[0])
    assert replayed.schedule is not None, replayed.error
    devices = RemoteDevices(RemoteAddress.of(task.hardware))
    objects = unpacked(devices.export(build(replayed.schedule.mod, task.hardware.target)))
    assert any(b"main_kernel" in data for data in objects.values())
    board = {**task.hardware.target, "host": {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}}
    objects = unpacked(devices.export(build(replayed.schedule.mod, board)))
    assert {struct.unpack_from("<H", data, 18)[0] for data in objects.values()} == {AARCH64}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_nvcc_takes_the_generated_code(task: Task) -> None:
    from tvm.support.nvcc import compile_cuda
    from tvm.target import Target

    from tencost.programs.codegen.build import build

    executable = build(task.schedules[0].mod, task.hardware.target)
    (kernels,) = executable.mod.imports
    with Target(task.hardware.target):
        made = compile_cuda(kernels.inspect_source("cuda"), "fatbin", compiler="nvcc")
    assert len(made) > 1000


def test_a_program_that_fails_on_the_gpu_costs_no_other(tmp_path: Path) -> None:
    """CUDA refuses all later calls of a process after an illegal access: each failure ends its process."""
    import tvm

    from tencost.workers.warm_worker import WarmWorker

    target = compose(["hardware=nvidia-h100"])[0].hardware.target
    args = [["TENSOR", "float32", [1024]]] * 2
    bad, good = (added(tmp_path / f"{step}.json", step) for step in (2_097_151, 1))
    with closing(WarmWorker(MeasureOptions(), cores=1, target_kind="cuda")) as worker:
        for starts in (1, 2):
            failed = worker.measure(bad, target, args)
            assert failed.status is Status.run_error, failed.error
            assert worker.num_starts == starts
        if tvm.cuda().exist:
            assert worker.measure(good, target, args).status is Status.ok


def added(path: Path, step: int) -> Path:
    """Write a program that reads A[i * step] of 1,024 numbers: for any step but 1 far outside."""
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    a = te.placeholder((1024,), name="A")
    b = te.compute((1024,), lambda i: a[i * step] + 1.0, name="B")
    schedule = Schedule(tvm.IRModule({"main": te.create_prim_func([a, b])}))
    blocks, threads = schedule.split(schedule.get_loops(schedule.get_sblock("B"))[0], [None, 256])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    return written(schedule.mod, path)


REGISTER = """
import inspect, sys
from tencost.programs.trace.intrinsics import PACKAGE, register_intrinsics
from tencost.workers.parallel.lean_imports import leave_out_unused

leave_out_unused()
searched, absolute = [], inspect.getabsfile
inspect.getabsfile = lambda item, name=None: searched.append(name) or absolute(item, name)
register_intrinsics("metal")
register_intrinsics("vulkan")
print([name.split(".")[-1] for name in sys.modules if name.startswith(PACKAGE + ".")])
print([name for name in searched if name and name.startswith("<")])
"""


def test_other_intrinsics_than_the_gpus_stay_away() -> None:
    """`inspect` searches all modules for no frame of the stack at which TVM looks: that took most of the time."""
    command = [sys.executable, "-c", REGISTER]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['metal']", "[]"]


def unpacked(archive: bytearray) -> dict[str, bytes]:
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        return {
            member.name: found.read()
            for member in files
            if (found := files.extractfile(member)) is not None
        }
