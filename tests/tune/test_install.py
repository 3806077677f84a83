from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tencost
from tencost.errors import RegistryError

pytestmark = pytest.mark.tvm


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The cost models that tuning runs would have used: the tuning itself is left out."""
    from tvm.s_tir.meta_schedule import relax_integration, tir_integration

    models: list[Any] = []

    def note(*arguments: Any, cost_model: Any, strategy: Any, **options: Any) -> None:
        assert (strategy == "evolutionary") == (cost_model == "xgb")
        models.append(cost_model)

    monkeypatch.setattr(tir_integration, "tune_tir", note)
    monkeypatch.setattr(relax_integration, "tune_relax", note)
    yield models
    tencost.uninstall()


def run_tuning_passes(work_dir: Path, mod: Any, target: dict[str, Any]) -> None:
    """What a pipeline that knows nothing of tencost does."""
    from tvm import relax
    from tvm.target import Target

    with Target(target):
        relax.transform.MetaScheduleTuneTIR(str(work_dir), 8)(mod)
        relax.transform.MetaScheduleTuneIRMod({}, str(work_dir), 8)(mod)


def test_unchanged_relax_pipelines_use_the_installed_model(
    tmp_path: Path,
    seen: list[Any],
    make_bundle: Callable[[str], Path],
    matmul: Any,
    target: dict[str, Any],
) -> None:
    model = tencost.install(make_bundle("xgb"), frozen=True)
    assert model.frozen
    run_tuning_passes(tmp_path, matmul, target)
    assert len(seen) == 2
    assert all(used.same_as(model) for used in seen)

    other = tencost.install(make_bundle("random"))
    run_tuning_passes(tmp_path, matmul, target)
    assert all(used.same_as(other) for used in seen[2:])

    tencost.uninstall()
    run_tuning_passes(tmp_path, matmul, target)
    assert seen[4:] == ["xgb", "xgb"]


def test_a_model_that_is_not_there_installs_nothing(
    tmp_path: Path, seen: list[Any], matmul: Any, target: dict[str, Any]
) -> None:
    with pytest.raises(RegistryError, match="nowhere"):
        tencost.install(tmp_path / "nowhere")
    run_tuning_passes(tmp_path, matmul, target)
    assert seen == ["xgb", "xgb"]


def test_the_names_are_there_without_being_loaded() -> None:
    assert {"install", "load_cost_model", "uninstall"} <= set(dir(tencost))
    with pytest.raises(AttributeError, match="no_such_name"):
        tencost.no_such_name  # noqa: B018 - the access is the test
