"""Devices behind a real RPC tracker on loopback. The order matters: a server that was killed is not there any more."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from farm import KEY, Farm, farm_of, free_port, processes_of
from tencost.config import Config
from tencost.errors import HardwareError
from tencost.measure import stage
from tencost.records.databases import import_dataset
from tencost.store.status import Status, Timing
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.remote import RemoteAddress, RemoteDevices, check_tracker
from tencost.workers.warm_worker import WarmWorker
from worker_programs import calling, written

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups"),
]
pytest.importorskip("tornado", reason="TVM's tracker needs tornado: pip install 'apache-tvm[rpc]'")

ARGS = [["TENSOR", "float32", [64, 64]]] * 3
QUICK = MeasureOptions(number=1, repeat=2, max_repeat=2, min_repeat_ms=0, run_timeout_s=5)


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with farm_of(tmp_path_factory.mktemp("farm"), servers=2, small=True) as made:
        yield made


@pytest.fixture
def devices(farm: Farm) -> Iterator[RemoteDevices]:
    one = RemoteDevices(farm.address, no_device_s=3)
    yield one
    one.close()


def test_programs_are_measured_in_one_session(
    farm: Farm, devices: RemoteDevices, candidates: list[Any], target: dict[str, Any]
) -> None:
    assert check_tracker(farm.address) == 2
    for candidate in candidates[:4]:
        times = devices.time(compiled(candidate.sch.mod, target), target, ARGS, QUICK)
        assert len(times) == 2
        assert 1e-7 < min(times) < 0.1
    assert devices.num_sessions == 1
    flushed = replace(QUICK, cache_flush=True)
    assert len(devices.time(compiled(candidates[0].sch.mod, target), target, ARGS, flushed)) == 2


def test_a_server_lets_no_torch_initialize_cuda_before_it_forks(farm: Farm) -> None:
    """A forked session could not use the GPU: "cudaErrorInitializationError", seen on an NVIDIA H100."""
    for server in farm.servers:
        environments = []
        for process in processes_of(server)[1:]:
            with suppress(psutil.NoSuchProcess):  # the session of the test before may just end
                environments.append(process.environ())
        assert environments
        assert {each.get("TVM_FFI_DISABLE_TORCH_C_DLPACK") for each in environments} == {"1"}


def test_a_small_board_takes_what_is_linked_here(
    farm: Farm, matmul: Any, target: dict[str, Any]
) -> None:
    small = replace(farm.address, key="small")
    with pytest.raises(HardwareError, match=r"to link and load a program, found: .*hardware\.cc="):
        RemoteDevices(small).time(compiled(matmul, target), target, ARGS, QUICK)
    devices = RemoteDevices(replace(small, cc=f"{compiler()} -O1"))
    try:
        assert bytes(devices.export(compiled(matmul, target))[:4]) == b"\x7fELF"
        assert len(devices.time(compiled(matmul, target), target, ARGS, QUICK)) == 2
    finally:
        devices.close()


def test_a_missing_cross_compiler_is_no_result(
    farm: Farm, matmul: Any, target: dict[str, Any], tmp_path: Path
) -> None:
    address = asdict(replace(farm.address, cc="warbler-g++ -O1"))
    worker = WarmWorker(QUICK, 1, tmp_path / "worker.log", remote=address)
    try:
        with pytest.raises(HardwareError, match=r"the compiler 'warbler-g\+\+' of hardware\.cc"):
            measured(worker, matmul, target, tmp_path)
    finally:
        worker.close()


def test_a_failing_program_costs_no_session(
    devices: RemoteDevices, matmul: Any, target: dict[str, Any]
) -> None:
    wrong = [["TENSOR", "float32", [32, 32]]] * 3
    with pytest.raises(Exception, match="shape"):
        devices.time(compiled(matmul, target), target, wrong, QUICK)
    assert len(devices.time(compiled(matmul, target), target, ARGS, QUICK)) == 2
    assert devices.num_sessions == 1


def test_a_program_that_fails_on_a_gpu_ends_its_session(
    devices: RemoteDevices, matmul: Any, target: dict[str, Any]
) -> None:
    """Its process may be spoilt: CUDA refuses all calls after an illegal access. Here there is no GPU at all."""
    assert len(devices.time(compiled(matmul, target), target, ARGS, QUICK)) == 2
    gpu = {"kind": "cuda", "arch": "sm_90"}
    with pytest.raises(Exception, match="cuda"):
        devices.time(compiled(matmul, target), gpu, ARGS, QUICK)
    assert len(devices.time(compiled(matmul, target), target, ARGS, QUICK)) == 2
    assert devices.num_sessions == 2


def test_a_session_is_renewed_before_the_server_ends_it(
    devices: RemoteDevices, matmul: Any, target: dict[str, Any]
) -> None:
    library = devices.export(compiled(matmul, target))
    devices.time(library, target, ARGS, QUICK)
    devices.time(library, target, ARGS, replace(QUICK, run_timeout_s=60))
    assert devices.num_sessions == 2


def test_unreachable_tracker(devices: RemoteDevices) -> None:
    nobody = RemoteAddress("127.0.0.1", free_port(), KEY)
    with pytest.raises(
        HardwareError, match=r"expected an RPC tracker.*python -m tvm\.exec\.rpc_tracker"
    ):
        check_tracker(nobody)
    with pytest.raises(HardwareError, match="expected an RPC tracker"):
        RemoteDevices(nobody, no_device_s=0).time(bytearray(), {"kind": "llvm"}, ARGS, QUICK)


def test_something_else_than_a_tracker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as threads:
        address = RemoteAddress("127.0.0.1", listener.getsockname()[1], KEY)
        asked = threads.submit(check_tracker, address)
        connection, _ = listener.accept()
        connection.sendall(b"HTTP/1.1")
        with pytest.raises(HardwareError, match="found something else"):
            asked.result()
        connection.close()


def test_unknown_key(farm: Farm) -> None:
    with pytest.raises(
        HardwareError, match=r"found only board \(2\), small \(1\)\. Start a server"
    ):
        check_tracker(replace(farm.address, key="toaster"))


def test_a_server_that_is_killed_costs_no_program(
    farm: Farm, devices: RemoteDevices, candidates: list[Any], target: dict[str, Any]
) -> None:
    attempts = []

    def running() -> None:
        attempts.append(devices.num_sessions)
        if len(attempts) == 4:
            farm.kill(farm.busy_server())

    for candidate in candidates[:8]:
        module = compiled(candidate.sch.mod, target)
        assert len(devices.time(module, target, ARGS, QUICK, running=running)) == 2
    assert attempts == [1, 1, 1, 1, 2, 2, 2, 2, 2]  # the fourth program was tried again
    assert check_tracker(farm.address) == 1


def test_crash_and_hang_cost_their_program_only(
    farm: Farm, matmul: Any, target: dict[str, Any], tmp_path: Path
) -> None:
    quick = replace(QUICK, run_timeout_s=1)
    worker = WarmWorker(quick, 1, tmp_path / "worker.log", remote=asdict(farm.address))
    try:
        crashed = measured(worker, calling("abort"), target, tmp_path, [["TENSOR", "float32", [4]]])
        assert crashed.status is Status.run_error
        assert "broke" in crashed.error
        assert measured(worker, matmul, target, tmp_path).status is Status.ok
        hung = measured(worker, calling("pause"), target, tmp_path, [["TENSOR", "float32", [4]]])
        assert hung.status is Status.run_timeout
        assert measured(worker, matmul, target, tmp_path).status is Status.ok
    finally:
        worker.close()


def test_no_device_is_no_result(farm: Farm, matmul: Any, target: dict[str, Any]) -> None:
    devices = RemoteDevices(replace(farm.address, key="toaster"), no_device_s=0.5)
    with pytest.raises(HardwareError, match="expected a device with key 'toaster'"):
        devices.time(compiled(matmul, target), target, ARGS, QUICK)


def test_a_collection_is_measured_on_remote_devices(
    farm: Farm, small_root: Path, configured: Callable[..., Config]
) -> None:
    stage.run(
        configured(
            "measure.pack=false",
            "hardware.name=boards",
            "hardware.runner=rpc",
            f"hardware.port={farm.port}",
            f"hardware.key={KEY}",
        ),
        small_root,
    )
    records = import_dataset(small_root / "measured" / "small", "small").records
    assert Counter(record.status for record in records) == {Status.ok: 12}
    assert {record.hardware for record in records} == {"boards"}
    settings = records[0].provenance.runtime_config
    assert settings is not None
    assert settings["runner"] == "rpc"


def compiled(module: Any, target: dict[str, Any]) -> Any:
    from tencost.programs.codegen.build import build

    return build(module, target)


def measured(
    worker: WarmWorker, module: Any, target: dict[str, Any], folder: Path, args: Any = ARGS
) -> Timing:
    return worker.measure(written(module, folder / "module.json"), target, args)


def compiler() -> str:
    from tvm.support import cc

    command = cc.get_cc()
    if command is None:
        pytest.skip("no C++ compiler here")
    return str(command)
