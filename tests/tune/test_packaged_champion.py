"""Without a model of this CPU a champion is chosen by its instruction sets, and a line says which and why."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_choice import chosen

import tencost
from tencost.config import HardwareConfig, RunnerKind
from tencost.config.composition import compose
from tencost.errors import RegistryError
from tencost.register import champions, registry
from tencost.register.pull import PackagedChampionWarning
from tencost.tracking import runs as tracking
from tencost.tune.batches import SCRATCH
from tencost.workers import hardware as hardware_module
from tencost.workers.hardware import host_flags

NARROW = "epyc-avx2-1c"
AVX2 = sorted(champions.packaged_champions()[-1].requires)

pytestmark = pytest.mark.tvm


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder without a project or a registry."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cpu_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], None]:
    """Let the kernel report a CPU with these instruction sets."""

    def report(flags: list[str]) -> None:
        path = tmp_path / "cpuinfo"
        path.write_text(f"model name\t: Xeon Gold 6454S\nflags\t\t: {' '.join(flags)}\n")
        monkeypatch.setattr(hardware_module, "CPUINFO", path)
        monkeypatch.setattr("platform.machine", lambda: "x86_64")

    return report


def test_a_script_needs_no_registry(
    empty: Path,
    cpu_with: Callable[[list[str]], None],
    caplog: pytest.LogCaptureFixture,
    context: Any,
    candidates: list[Any],
) -> None:
    cpu_with(AVX2)
    with caplog.at_level(logging.WARNING):
        model = tencost.load_cost_model()
    assert model.bundle.folder == champions.FOLDER / f"tencost-{NARROW}"
    (line,) = caplog.messages
    assert f"tencost-{NARROW}" in line
    assert "256-bit vectors, which Xeon Gold 6454S has" in line
    assert "tencost-epyc" in line
    with pytest.warns(UserWarning, match="target=model.target"):  # the candidates are of another
        scores = model.predict(context, candidates)
    assert ((scores > 0) & (scores <= 1)).all()
    assert len(np.unique(scores)) > len(candidates) // 2, "it ranks"


def test_a_cpu_that_none_fits_is_refused(
    empty: Path, cpu_with: Callable[[list[str]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu_with(["sse4_2"])
    with pytest.raises(
        RegistryError, match=rf"no packaged champion fits Xeon Gold 6454S; .*{NARROW} \(needs"
    ):
        tencost.load_cost_model()
    choice, _ = chosen(empty, compose(["hardware=epyc-sse42-1c"])[0].hardware)
    assert choice.name == SCRATCH
    with pytest.raises(RegistryError, match="models:/tencost-desk@champion"):
        tencost.load_cost_model(hardware="desk")
    monkeypatch.setenv("TENCOST_ALIAS", "production")
    cpu_with(AVX2)
    with pytest.raises(RegistryError, match="models:/tencost-local@production"):
        tencost.load_cost_model()


def test_the_registry_s_champion_of_that_name_comes_first(
    empty: Path,
    cpu_with: Callable[[list[str]], None],
    mlflow_database: Path,
    make_bundle: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    cpu_with(AVX2)
    (empty / "mlruns").mkdir()
    shutil.copy(mlflow_database, empty / "mlruns" / "mlflow.db")
    assert tencost.load_cost_model(root=empty).bundle.folder.parent == champions.FOLDER
    assert "has no model 'tencost-local'" in caplog.messages[-1]

    client = registry.connect(tracking.setup(empty))
    experiment = client.get_experiment_by_name(tracking.EXPERIMENT).experiment_id
    version, _ = registry.register_offer(
        client,
        registry.bundle_offer(make_bundle("random", NARROW), "a test"),
        run_id=client.create_run(experiment).info.run_id,
        description="a test",
    )
    registry.promote(client, version)
    assert tencost.load_cost_model(root=empty).bundle.info.family == "random"
    assert f"the registry's models:/tencost-{NARROW}@champion" in caplog.messages[-1]
    desk = HardwareConfig(name="desk", target={"kind": "llvm"}, simd_bits=256)
    choice, printed = chosen(empty, desk)
    assert choice.name == f"models:/tencost-{NARROW}/1"
    assert (
        f"cost model for hardware desk until this run has taught it better: the registry's models:/tencost-{NARROW}"
        in printed
    )


def test_tuning_takes_the_one_for_the_vectors_of_its_hardware(
    empty: Path, cpu_with: Callable[[list[str]], None]
) -> None:
    wide = champions.packaged_champions()[0]
    cpu_with(wide.requires)
    for simd_bits, hardware in ((512, wide.hardware), (256, NARROW)):
        desk = HardwareConfig(name="desk", target={"kind": "llvm"}, simd_bits=simd_bits)
        choice, printed = chosen(empty, desk)
        champion = choice.model.bundle.info.hardware
        assert champion == hardware
        assert choice.name.startswith(f"packaged:/tencost-{hardware}/")
        assert f"model {choice.name}: blend" in printed
        assert "there is no registry" in printed
    board = replace(desk, runner=RunnerKind.rpc)
    assert chosen(empty, board)[0].name == SCRATCH, (
        "the host's instruction sets say nothing of a device"
    )
    assert chosen(empty, replace(desk, simd_bits=128))[0].name == SCRATCH


def test_this_host_is_served_if_it_has_avx2(empty: Path) -> None:
    if not set(AVX2) <= host_flags():
        pytest.skip("this host has no AVX2")
    with pytest.warns(PackagedChampionWarning, match="there is no registry"):
        choice, _ = chosen(empty, compose(["hardware=epyc-avx2-1c"])[0].hardware)
    assert choice.name.startswith(f"packaged:/tencost-{NARROW}/")
