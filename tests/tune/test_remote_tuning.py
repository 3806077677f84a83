"""Tuning and compiling for a device behind an RPC tracker: a server on this host, a CPU with fewer instruction sets."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm import KEY, Farm, farm_of
from relax_networks import two_layers
from tencost.config import Config, HardwareConfig, RunnerKind
from tencost.config.composition import compose
from tencost.errors import HardwareError, TuneError
from tencost.networks.sources.saved import save_network
from tencost.store.record_store import RecordStore
from tencost.tune import compiled, stage
from tencost.tune.deploy import compile_network
from tencost.tune.hosts import host_of
from tencost.tune.verify import compile_and_compare
from tencost.tune.workfolder import open_folder
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.hardware import llvm_features
from tencost.workers.remote import RemoteDevices

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="its target is an x86 CPU"),
]
pytest.importorskip("tornado", reason="TVM's tracker needs tornado: pip install 'apache-tvm[rpc]'")

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with farm_of(tmp_path_factory.mktemp("farm"), servers=1) as made:
        yield made


@pytest.fixture
def board(farm: Farm) -> HardwareConfig:
    return HardwareConfig(
        name="board",
        target={"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 1},
        model="A Board 1000",
        runner=RunnerKind.rpc,
        host="127.0.0.1",
        port=farm.port,
        key=KEY,
    )


@pytest.fixture
def root(tmp_path: Path, mlflow_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "mlruns").mkdir()
    shutil.copy(mlflow_database, tmp_path / "mlruns" / "mlflow.db")
    save_network(two_layers(), tmp_path / "small.npz")
    return tmp_path


@pytest.fixture
def config(
    root: Path, board: HardwareConfig, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Config]:
    monkeypatch.chdir(PROJECT)

    def make(**changes: Any) -> Config:
        cfg, _ = compose([
            "network=saved", "network.trusted=true", f"network.path={root / 'small.npz'}", "model_uri=scratch",
            "tuner.min_mflop=0.001", "tuner.population=8", "tuner.generations=1", "tuner.number=1", "tuner.repeat=1",
            "tuner.min_repeat_ms=0", "tuner.trials=8", "jobs=1",
        ])  # fmt: skip
        return replace(cfg, hardware=replace(board, **changes))

    return make


def test_a_network_is_tuned_and_compiled_on_a_device(
    root: Path, config: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = config()
    assert "avx2" not in llvm_features(cfg.hardware.target)
    folder = stage.run(cfg, root, to=root / "model.so")
    told = " ".join(capsys.readouterr().err.split())
    assert "on a device programs are not compared one by one" in told
    assert "cannot be compared" not in told
    report = json.loads((folder / "report.json").read_text())
    assert report["trials"] == 8
    assert report["max_rel_error"] < 1e-4
    for name in ("network_latency_s", "network_rules_latency_s"):
        assert 1e-7 < report[name] < 1
    assert report["host_busy"] == ""
    assert "network_onnxruntime_latency_s" not in report
    records = (folder / "database_tuning_record.json").read_text().splitlines()
    assert {json.loads(line)[1][2]["mcpu"] for line in records} == {"x86-64-v2"}
    stored = RecordStore(cfg.paths.live_store(root)).read()
    assert set(stored["hardware"]) == {"board"}
    assert stored["env_name"].null_count() == len(stored)
    about = json.loads((root / "model.json").read_text())
    assert about["target"]["mcpu"] == "x86-64-v2"

    written = compiled.run(cfg, root, to=root / "again.so")
    told = capsys.readouterr().err
    assert written.max_rel_error is not None
    assert written.max_rel_error < 1e-4
    assert "ms [" in told
    assert "not run" not in told


def test_where_no_device_is_there_nothing_is_begun_and_compiling_says_what_was_not_done(
    root: Path, config: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(HardwareError, match=r"a device with key 'oven'.*tencost\.workers\.server"):
        stage.run(config(key="oven"), root)
    assert not (root / "tuned").exists()
    written = compiled.run(config(key="oven"), root, to=root / "model.so")
    assert written.max_rel_error is None
    assert written.library.is_file()
    told = " ".join(capsys.readouterr().err.split())
    assert "not run, so its output was not compared: expected a device with key 'oven'" in told


def test_a_library_for_another_architecture_needs_a_cross_compiler(
    root: Path, config: Callable[..., Config]
) -> None:
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76", "num-cores": 1}
    with pytest.raises(HardwareError, match=r"hardware\.cc=aarch64-linux-gnu-g\+\+"):
        compiled.run(config(target=target), root, to=root / "model.so")
    with pytest.raises(HardwareError, match=r"'warbler-g\+\+' of hardware\.cc"):
        compiled.run(config(target=target, cc="warbler-g++ -O1"), root, to=root / "model.so")


def test_on_the_device_itself_its_own_compiler_links(
    root: Path, config: Callable[..., Config]
) -> None:
    here = config(runner=RunnerKind.local, cc="warbler-g++ -O1")
    assert compiled.run(here, root, to=root / "model.so").library.is_file()


def test_what_is_written_stays_where_timing_it_is_ended(
    root: Path, config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compiled, "times_in_turn", ended)
    with pytest.raises(KeyboardInterrupt):
        compiled.run(config(), root, to=root / "model.so")
    assert (root / "model.so").is_file()
    assert (root / "model.json").is_file()


def test_a_session_that_ended_is_renewed_and_a_server_that_is_gone_is_said(
    board: HardwareConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemoteDevices.__init__, "__kwdefaults__", {"no_device_s": 1.0})
    network = two_layers()
    with farm_of(tmp_path, servers=1) as farm:
        host = host_of(replace(board, port=farm.port))
        running = host.deployed(compile_network(network, board.target, None), network)
        first = host.call(running.outputs)
        assert running.seconds() > 0
        host.close()
        again = host.call(running.outputs)
        for one, other, expected in zip(first, again, network.expected, strict=True):
            np.testing.assert_array_equal(one, other)
            np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-5)
        farm.kill(farm.servers[0])
        with pytest.raises(HardwareError, match=r"broke while network|expected a device"):
            host.call(running.outputs)
        host.close()


@pytest.mark.parametrize(
    ("wrong_import", "told"),
    [(True, "differs by .*, too: the import"), (False, "agrees: a program in")],
)
def test_what_a_device_computes_is_compared(
    board: HardwareConfig,
    tmp_path: Path,
    wrong_import: bool,
    told: str,
) -> None:
    import tvm
    from tvm.s_tir.meta_schedule.database import MemoryDatabase

    network = two_layers()
    wrong = replace(network, expected=[1 + one for one in network.expected])
    twice = tvm.runtime.tensor(2 * network.params[0].numpy())
    other = network if wrong_import else replace(network, params=[twice, *network.params[1:]])
    built = compile_network(other, board.target, None)
    with open_folder(tmp_path, "one", "board", board.target) as folder:
        folder.database()
        host = host_of(board)
        with pytest.raises(TuneError, match=told):
            compile_and_compare(
                wrong if wrong_import else network, board, built, MemoryDatabase(), [], folder,
                MeasureOptions(repeat=1), host=host,
            )  # fmt: skip
        host.close()
