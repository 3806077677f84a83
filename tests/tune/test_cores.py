"""A run on several cores: whose model and starting points serve, and what is written has as many threads."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from known_programs import records_of
from rich.console import Console

from matmuls import make_matmul
from relax_networks import two_layers
from tencost.config import HardwareConfig
from tencost.config.composition import compose
from tencost.errors import HardwareError
from tencost.register import registry
from tencost.store.record_store import RecordStore
from tencost.tracking import runs as tracking
from tencost.tune.hosts import Host
from tencost.tune.inputs import choose_model, run_starting_points
from tencost.tune.library_export import LibraryOrigin, write_library
from tencost.workers.hardware import resolve_hardware

pytestmark = pytest.mark.tvm

TARGET = {"kind": "llvm", "mcpu": "core-avx2", "num-cores": 1}


def console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=1000), out


def test_without_a_model_of_its_own_one_core_s_serves(
    tmp_path: Path,
    mlflow_database: Path,
    make_bundle: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copy(mlflow_database, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    client = registry.connect(tracking.setup(tmp_path))
    experiment = client.get_experiment_by_name(tracking.EXPERIMENT).experiment_id
    registry.register_offer(
        client,
        registry.bundle_offer(make_bundle("xgb"), "a test"),
        run_id=client.create_run(experiment).info.run_id,
        description="a test",
    )
    client.set_registered_model_alias("tencost-test", registry.CHAMPION, "1")
    cfg = replace(
        compose([])[0], model_uri=None, hardware=HardwareConfig(name="test", target=TARGET)
    )
    two = resolve_hardware(replace(cfg.hardware, cores=2))
    told, out = console()
    assert choose_model(replace(cfg, hardware=two), tmp_path, told).name == "models:/tencost-test/1"
    assert "no registered model for 2 cores (test-2c)" in out.getvalue()
    told, out = console()
    assert choose_model(cfg, tmp_path, told).name == "models:/tencost-test/1"
    assert "no registered model" not in out.getvalue()


def test_starting_points_of_as_many_cores_come_first(tmp_path: Path, cpu_intrinsics: None) -> None:
    hardware = resolve_hardware(HardwareConfig(name="mine-1c", target=TARGET, cores=2))
    cfg = replace(compose([])[0], hardware=hardware)
    store = RecordStore(str(tmp_path / "store"))
    store.write(records_of(make_matmul(32), TARGET, "mine-1c"))
    no_bundle: Any = type("Model", (), {"bundle": None})
    told, out = console()
    book = run_starting_points(cfg, no_bundle, store, told)
    assert book is not None
    assert book.hardware == "mine-1c"
    assert "no starting points of 2 cores in the store: those of mine-1c" in out.getvalue()
    store.write(records_of(make_matmul(48), hardware.target, "mine-2c"))
    told, out = console()
    book = run_starting_points(cfg, no_bundle, store, told)
    assert book is not None
    assert (book.hardware, book.num_workloads) == ("mine-2c", 1)
    assert "no starting points of" not in out.getvalue()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, a C++ compiler")
@pytest.mark.parametrize(
    "cores",
    [
        1,
        pytest.param(
            2, marks=pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
        ),
    ],
)
def test_the_runners_have_as_many_threads(cores: int, tmp_path: Path) -> None:
    """Each is looked at while it waits to write its output, after the network ran."""
    network, library = two_layers(), tmp_path / "small.so"
    hardware = resolve_hardware(HardwareConfig(name="local", detect=True, cores=cores))
    write_library(library, network, hardware, parallel(network), LibraryOrigin("", 2, 0))
    assert json.loads(library.with_suffix(".json").read_text())["cores"] == cores
    look = (
        "import runpy, sys; sys.argv = ['small.py']; runpy.run_path('small.py', run_name='__main__'); "
        "import os; print(len(os.listdir('/proc/self/task')))"
    )
    environment = {name: value for name, value in os.environ.items() if "_NUM_THREADS" not in name}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", look], cwd=tmp_path, capture_output=True, text=True, check=True, env=environment
    )  # fmt: skip
    assert int(done.stdout.splitlines()[-1]) == cores

    head = library.with_suffix(".cc").read_text().split("/*\n")[1].split("\n\n")[0]
    *build, _ = head.strip().rsplit("\n", 1)
    build.insert(0, f"export PATH={Path(sys.executable).parent}:$PATH")
    subprocess.run(["bash", "-ec", "\n".join(build)], cwd=tmp_path, check=True)
    os.mkfifo(tmp_path / "output_0.bin")
    runner = subprocess.Popen(["./small", "input_0.bin", "input_1.bin"], cwd=tmp_path, env=environment)  # fmt: skip
    try:
        tasks = waiting(runner.pid)
        with (tmp_path / "output_0.bin").open("rb") as output:
            output.read()
    finally:
        runner.wait(60)
    assert tasks == cores


def waiting(process: int) -> int:
    """Return the threads of a process once it waits: of a runner, for somebody who reads its output."""
    threads, quiet, deadline = Path(f"/proc/{process}/task"), 0, time.monotonic() + 60
    while quiet < 5 and time.monotonic() < deadline:
        states = [(one / "stat").read_text().rpartition(")")[2].split()[0] for one in threads.iterdir()]  # fmt: skip
        quiet = quiet + 1 if set(states) == {"S"} else 0
        time.sleep(0.1)
    return len(list(threads.iterdir()))


def parallel(network: Any) -> Any:
    """Compile a network with the outermost loop of each of its functions in parallel."""
    import tvm
    from tvm import tirx
    from tvm.s_tir import Schedule

    mod = network.deployable({"kind": "llvm"})
    for name, function in mod.functions.items():
        if isinstance(function, tirx.PrimFunc):
            schedule = Schedule(tvm.IRModule({"main": function}))
            for block in schedule.get_child_blocks(schedule.get_sblock("root")):
                loops = schedule.get_loops(block)
                if loops:
                    schedule.parallel(loops[0])
            mod[name] = schedule.mod["main"]
    return tvm.compile(mod, target="llvm")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_the_network_is_timed_on_the_cores_of_the_hardware() -> None:
    import tvm

    free = sorted(os.sched_getaffinity(0))
    hardware = resolve_hardware(HardwareConfig(name="local", detect=True, cores=2))

    def look() -> tuple[int, list[int]]:
        threads = tvm.get_global_func("runtime.NumThreads")()
        return int(threads), sorted(os.sched_getaffinity(0))

    assert Host(hardware).call(look) == (2, free[-2:])
    with pytest.raises(HardwareError, match="expected 512 CPUs"):
        Host(replace(hardware, cores=512)).call(look)
