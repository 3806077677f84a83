"""From an evaluation to a champion: promotion, refusal, idempotence, status and rollback, with real MLflow."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from tencost.config import RandomConfig, XgbConfig
from tencost.errors import ConfigError, RegistryError
from tencost.evaluate import stage as evaluation
from tencost.register import registry, stage, status
from tencost.register.pull import pull
from tencost.train import tracking
from tencost.train.bundle import load_bundle

Train = Callable[..., Path]
NAME = "tencost-toy-1c"
FLOOR = RandomConfig(family="random", reads=["toy"], reference=True)


def trees(rounds: int) -> XgbConfig:
    return XgbConfig(family="xgb", reads=["toy"], num_rounds=rounds)


def verdict_file(project: Path) -> dict[str, Any]:
    path = project / "data" / "registry" / "toy" / "toy-1c.json"
    content: dict[str, Any] = orjson.loads(path.read_bytes())
    return content


@pytest.fixture
def promoted(toy_project: Path, toy_config: Any, train_toy: Train) -> Any:
    """The toy project with a first champion; returns a registry client."""
    client = registry.connect(tracking.setup(toy_project))
    experiment = client.get_experiment_by_name("tencost").experiment_id
    run = client.create_run(experiment, run_name="xgb")
    train_toy("random", FLOOR)
    train_toy("xgb", trees(30), run_id=run.info.run_id)
    evaluation.run(toy_config, toy_project)
    verdict = stage.run(toy_config, toy_project, required=("random",))
    assert verdict.promote
    return client


def test_first_champion(promoted: Any, toy_project: Path, tmp_path: Path) -> None:
    version = registry.find_champion(promoted, NAME)
    assert version is not None
    assert version.aliases == ("challenger", "champion")
    assert version.tags["verdict"] == "promoted"
    assert version.tags["family"] == "xgb"
    for words in ("| xgb | toy |", "load_cost_model", "Promoted:", "against random-toy"):
        assert words in version.description
    run = promoted.get_run(version.run_id)
    assert run.data.tags["register.verdict"] == "promoted"
    content = verdict_file(toy_project)
    assert content["promoted"] is True
    assert content["champion"] == {"version": 1, "semver": "1.0"}
    assert content["comparisons"][0]["search_score"]["mean"] > 0
    folder = pull(f"models:/{NAME}@champion", tmp_path / "cache", root=toy_project)
    assert load_bundle(folder).info.family == "xgb"


def test_again_changes_nothing(promoted: Any, toy_project: Path, toy_config: Any) -> None:
    verdict = stage.run(toy_config, toy_project, required=("random",))
    assert not verdict.promote
    assert verdict.reasons == ("yes: version 1 is the champion already",)
    (version,) = registry.list_versions(promoted, NAME)
    assert version.tags["verdict"] == "promoted"
    assert "Promoted:" in version.description


def test_a_worse_challenger_is_refused(
    promoted: Any, toy_project: Path, toy_config: Any, train_toy: Train
) -> None:
    train_toy("xgb", trees(1))
    evaluation.run(toy_config, toy_project)
    verdict = stage.run(toy_config, toy_project, required=("random",))
    assert not verdict.promote
    assert any(
        reason.startswith("no: ") and "against champion 1.0" in reason for reason in verdict.reasons
    )
    first, second = registry.list_versions(promoted, NAME)
    assert first.aliases == ("champion",)
    assert second.aliases == ("challenger",)
    assert (second.semver, second.tags["verdict"]) == ("1.1", "refused")
    assert "Not promoted:" in second.description
    content = verdict_file(toy_project)
    assert (content["champion"]["version"], content["challenger"]["version"]) == (1, 2)


def test_references_must_be_there(toy_project: Path, toy_config: Any, train_toy: Train) -> None:
    with pytest.raises(ConfigError, match="expected a leaderboard"):
        stage.run(toy_config, toy_project)
    train_toy("random", FLOOR)
    evaluation.run(toy_config, toy_project)
    with pytest.raises(RegistryError, match="found only references"):
        stage.run(toy_config, toy_project)
    train_toy("xgb", trees(30))
    evaluation.run(toy_config, toy_project)
    verdict = stage.run(toy_config, toy_project)
    assert not verdict.promote
    assert "no: tvm_xgb: not evaluated, so not known to be beaten" in verdict.reasons
    assert verdict_file(toy_project)["champion"] is None


def test_a_champion_that_cannot_be_used_any_more_is_not_compared(
    promoted: Any,
    toy_project: Path,
    toy_config: Any,
    train_toy: Train,
) -> None:
    (manifest,) = (toy_project / "mlruns" / "artifacts").rglob("bundle.json")
    text = manifest.read_bytes().replace(b'"abi": 1', b'"abi": 0')
    manifest.write_bytes(text)
    train_toy("xgb", trees(40))
    evaluation.run(toy_config, toy_project)
    verdict = stage.run(toy_config, toy_project, required=("random",))
    assert verdict.promote
    assert "cannot be used here any more" in verdict.reasons[0]


def test_status_and_rollback(
    promoted: Any, toy_project: Path, toy_config: Any, train_toy: Train
) -> None:
    train_toy("xgb", trees(1))
    evaluation.run(toy_config, toy_project)
    stage.run(toy_config, toy_project, required=("random",))
    status.rollback(toy_project, NAME, 2)
    shown = io.StringIO()
    status.print_status(toy_project, Console(file=shown))
    status.print_champions(toy_project, Console(file=shown))
    for words in (
        NAME,
        "1.1",
        "challenger, champion",
        "refused",
        "champion is version 2 (1.1, xgb)",
    ):
        assert words in shown.getvalue(), words
    status.rollback(toy_project, NAME)
    champion = registry.find_champion(promoted, NAME)
    assert champion is not None
    assert champion.number == 1


def test_looking_at_no_registry_creates_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shown = io.StringIO()
    status.print_status(tmp_path, Console(file=shown))
    status.print_champions(tmp_path, Console(file=shown))
    assert "no model is registered" in shown.getvalue()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RegistryError, match="there is no registry"):
        status.rollback(tmp_path, NAME)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(RegistryError, match="does not answer"):
        status.print_status(tmp_path)
