"""compose.yaml: options that MLflow knows, no secret in it, nothing published beyond loopback, a key for each role."""

from __future__ import annotations

import os
import re
import subprocess
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
        "MLFLOW_HOSTS", "MLFLOW_ORIGINS", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD",
    }  # fmt: skip
    for name in re.findall(r"(\w*(?:PASSWORD|SECRET)\w*): (\S+)", TEXT):
        assert name[1].startswith("${"), name


def test_only_loopback_is_published(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


ROLES = ("mlflow", "tunes", "measures", "trains")


def test_nobody_but_the_service_that_makes_users_has_the_root_key(services: dict[str, Any]) -> None:
    holders = {name for name, service in services.items() if "OBJECTS_ROOT_SECRET" in str(service)}
    assert holders == {"objects", "users"}
    keys = {
        name: (one["environment"]["AWS_ACCESS_KEY_ID"], one["environment"]["AWS_SECRET_ACCESS_KEY"])
        for name, one in services.items()
        if "AWS_ACCESS_KEY_ID" in one.get("environment", {})
    }
    assert keys == {
        "mlflow": ("mlflow", "${OBJECTS_MLFLOW_SECRET}"),
        "worker": ("trains", "${OBJECTS_TRAINS_SECRET}"),
    }
    assert services["worker"]["environment"]["MLFLOW_TRACKING_USERNAME"].endswith(":-worker}")
    for before, after in (("users", "mlflow"), ("members", "worker")):
        wanted = services[after]["depends_on"][before]
        assert wanted == {"condition": "service_completed_successfully"}
        assert services[before]["restart"] == "on-failure"


def test_images_are_of_this_year_and_pinned(services: dict[str, Any]) -> None:
    pinned = {one["image"] for one in services.values()} - {"tencost"}
    assert all(re.search(r"@sha256:[0-9a-f]{64}$", image) for image in pinned)
    assert all("RELEASE.2026" in image for image in pinned if "minio" in image)
    assert [name for name, one in services.items() if "build" in one] == ["mlflow"]


def test_users_are_made_once_the_store_answers(services: dict[str, Any], tmp_path: Path) -> None:
    """With a client that writes down what it is asked, and cannot connect at first."""
    service = services["users"]
    client = tmp_path / "mc"
    client.write_text(
        '#!/bin/sh\necho "$@" >> "$CALLS"\n'
        'case "$*" in *"alias set"*) [ "$(grep -c alias "$CALLS")" -ge 2 ];;\n'
        '*"policy attach"*tunes) exit 1;;\n'  # is attached already: the second start
        '*"user info"*) echo "PolicyName: tunes";; esac\n'
    )
    client.chmod(0o755)
    secrets = {name: f"secret of {name}" for name in service["environment"]}
    script = service["command"][0].replace("$$", "$")
    done = subprocess.run(
        [*service["entrypoint"], script],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls"), **secrets},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    calls = (tmp_path / "calls").read_text().splitlines()
    assert done.returncode == 0, done.stderr
    assert len([call for call in calls if "alias set" in call]) == 2
    assert "mb --ignore-existing lab/lab" in calls
    mounted = {item["target"]: item["source"] for item in service["configs"]}
    for role in ROLES:
        assert mounted[f"/run/policies/{role}.json"] == f"{role}_policy"
        assert f"admin policy create lab {role} /run/policies/{role}.json" in calls
        assert f"admin user add lab {role} secret of {role.upper()}_SECRET" in calls
        assert f"admin policy attach lab {role} --user {role}" in calls
