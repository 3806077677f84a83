"""A CPU without a model of its own is served by the one for every CPU, which is told what the CPU is."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_choice import chosen

import tencost
from tencost.config import HardwareConfig
from tencost.errors import RegistryError
from tencost.features.device import attributes
from tencost.register import registry
from tencost.tracking import runs as tracking
from tencost.tune.batches import SCRATCH
from tencost.tune.cost_model import load_cost_model
from tencost.workers.hardware import detect_host

pytestmark = pytest.mark.tvm

DESK = HardwareConfig(name="desk", target={"kind": "llvm"}, simd_bits=128, l1d_kib=16)


@pytest.fixture
def registered(
    tmp_path: Path,
    mlflow_database: Path,
    make_bundle: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., None]:
    """Registers a model for a hardware, a hash of all its columns, and makes it the champion.

    With a kind it is one of the rows of that kind.
    """
    shutil.copy(mlflow_database, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    client = registry.connect(tracking.setup(tmp_path))
    experiment = client.get_experiment_by_name(tracking.EXPERIMENT).experiment_id

    def register(hardware: str, kind: str = "") -> None:
        bundle = make_bundle("random", hardware)
        if kind:
            bundle = shutil.copytree(bundle, tmp_path / kind)
            manifest = json.loads((bundle / "bundle.json").read_text())
            manifest["feature_spec"] |= {"name": kind, "kind": kind}
            (bundle / "bundle.json").write_text(json.dumps(manifest))
        registry.register_offer(
            client,
            registry.bundle_offer(bundle, "a test"),
            run_id=client.create_run(experiment).info.run_id,
            description="a test",
        )
        client.set_registered_model_alias(f"tencost-{hardware}", registry.CHAMPION, "1")

    return register


def test_tuning_takes_it_where_a_cpu_has_none(
    tmp_path: Path,
    registered: Callable[[str], None],
    make_bundle: Callable[..., Path],
    context: Any,
    candidates: list[Any],
) -> None:
    registered("cpu")
    found, told = chosen(tmp_path, DESK)
    assert found.name == "models:/tencost-cpu/1"
    assert "no registered model for hardware desk: tencost-cpu, which knows a CPU" in told
    same = load_cost_model(make_bundle("random", "cpu"), device=attributes(DESK))
    scores = same.predict(context, candidates)
    np.testing.assert_array_equal(found.model.predict(context, candidates), scores)
    other = load_cost_model(
        make_bundle("random", "cpu"),
        device=attributes(replace(DESK, simd_bits=512, l1d_kib=64)),
    )
    assert (other.predict(context, candidates) != scores).any(), "it knows what it ranks for"

    registered("desk")
    found, told = chosen(tmp_path, DESK)
    assert found.name == "models:/tencost-desk/1"
    assert "no registered model" not in told


def test_a_model_of_one_s_own_that_was_refused_ranks_and_says_why(
    tmp_path: Path, registered: Callable[[str], None]
) -> None:
    registered("cpu")
    registered("desk")
    client = registry.connect(tracking.setup(tmp_path))
    client.delete_registered_model_alias("tencost-desk", registry.CHAMPION)
    found, told = chosen(tmp_path, DESK)
    assert found.name == "models:/tencost-desk/1"
    assert "desk has no champion: its challenger ranks until this run" in told
    assert "; nobody has promoted it\n" in told

    reasons = "yes: scores fast\nno: top-1 -0.1 against random\nno: top-5 -0.2 against random"
    for tag, value in ((registry.VERDICT_TAG, "refused"), (registry.REASONS_TAG, reasons)):
        client.set_model_version_tag("tencost-desk", "1", tag, value)
    found, told = chosen(tmp_path, DESK)
    assert found.name == "models:/tencost-desk/1"
    assert "; it was not promoted (top-1 -0.1 against random)\n" in told


def test_who_asks_for_another_alias_gets_no_challenger(
    tmp_path: Path, registered: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    registered("desk")
    monkeypatch.setenv("TENCOST_ALIAS", "production")
    found, told = chosen(tmp_path, DESK)
    assert found.name == SCRATCH
    assert "has no alias 'production'" in told


def test_a_champion_of_other_programs_is_passed_over(
    tmp_path: Path, registered: Callable[..., None]
) -> None:
    registered("desk", "ansor_tiles")
    found, told = chosen(tmp_path, DESK)
    assert found.name == SCRATCH
    assert "No registered model for hardware desk" in told
    registered("cpu")
    found, told = chosen(tmp_path, DESK)
    assert found.name == "models:/tencost-cpu/1"
    assert "expected a feature set of MetaSchedule's candidates, found ansor_tiles" in told


def test_a_gpu_is_no_cpu(tmp_path: Path, registered: Callable[[str], None]) -> None:
    registered("cpu")
    found, told = chosen(tmp_path, HardwareConfig(name="v100", target={"kind": "cuda"}))
    assert found.name == SCRATCH
    assert "No registered model for hardware v100" in told


def test_a_script_names_its_hardware_or_nothing(
    registered: Callable[[str], None], context: Any, candidates: list[Any]
) -> None:
    registered("cpu")
    with pytest.warns(UserWarning, match="no registered model for hardware local: tencost-cpu"):
        model = load_cost_model()
    here = load_cost_model(model.bundle.folder, device=attributes(detect_host()))
    scores = here.predict(context, candidates)
    np.testing.assert_array_equal(model.predict(context, candidates), scores)
    with pytest.warns(UserWarning, match="tencost-cpu"):
        installed = tencost.install(hardware="desk")
    tencost.uninstall()
    assert installed.bundle.info.hardware == "cpu"

    registered("desk")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_cost_model(hardware="desk").bundle.info.hardware == "desk"


def test_with_neither_the_hardware_s_own_is_missed(registered: Callable[[str], None]) -> None:
    registered("other")
    with pytest.raises(RegistryError, match="no model 'tencost-desk'; it has: tencost-other"):
        load_cost_model(hardware="desk")
    with pytest.raises(RegistryError, match="no model 'tencost-v100'"):
        load_cost_model(hardware="v100", target_kind="cuda")
