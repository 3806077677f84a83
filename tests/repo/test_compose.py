"""compose.yaml: options that MLflow knows, no secret in it, nothing published beyond loopback."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "compose.yaml").read_text()


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return dict(yaml.safe_load(TEXT)["services"])


def test_mlflow_knows_its_options(services: dict[str, Any]) -> None:
    from mlflow import environment_variables
    from mlflow.cli import server

    known = {name for param in server.params for name in param.opts}
    command = services["mlflow"]["command"]
    assert command[:2] == ["mlflow", "server"]
    assert {word.partition("=")[0] for word in command[2:]} <= known
    asked = {name for name in services["mlflow"]["environment"] if name.startswith("MLFLOW_")}
    assert all(hasattr(environment_variables, name) for name in asked)


def test_every_service_starts_after_what_it_needs(services: dict[str, Any]) -> None:
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
    sources = {item["source"] for one in services.values() for item in one.get("configs", ())}
    assert sources == set(yaml.safe_load(TEXT)["configs"])


def test_secrets_come_from_the_environment() -> None:
    asked = set(re.findall(r"\$\{(\w+)", TEXT))
    given = set(re.findall(r"(?m)^(\w+)=$", (ROOT / "docs" / "how-to" / "team.env").read_text()))
    assert given <= asked
    assert {name for name in asked if name not in given} == {
        "MLFLOW_HOSTS", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD",
    }  # fmt: skip
    for name in re.findall(r"(\w*(?:PASSWORD|SECRET)\w*): (\S+)", TEXT):
        assert name[1].startswith("${"), name


def test_only_loopback_is_published(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
