"""Aliases of environments, on a real SQLite registry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tencost import cli
from tencost.errors import ConfigError, RegistryError
from tencost.register import registry
from tencost.register.pull import default_alias, pull
from tencost.register.registry_status import point_alias

MakeBundle = Callable[..., Path]
NAME = "tencost-toy-1c"


@pytest.fixture
def versions(
    register: Callable[..., registry.Version], make_bundle: MakeBundle
) -> list[registry.Version]:
    """Three versions; the second is the champion."""
    return [
        register(make_bundle(f"b{number}", center=float(number)), champion=number == 1)
        for number in range(3)
    ]


def test_a_version_goes_from_staging_to_production(
    versions: list[registry.Version], client: Any, project: Path, tmp_path: Path
) -> None:
    version, before = point_alias(client, NAME, "staging")
    assert (version.number, before) == (2, None)
    version, before = point_alias(client, NAME, "production", 1)
    assert (version.number, before) == (1, None)
    version, before = point_alias(client, NAME, "production", 3)
    assert (version.number, before) == (3, 1)
    first, second, third = registry.list_versions(client, NAME)
    assert second.aliases == ("champion", "staging")
    assert set(third.aliases) == {"challenger", "production"}
    assert "alias.production" in first.tags  # when it was there
    assert pull(f"models:/{NAME}@production", tmp_path / "cache", root=project).name == "3"
    assert pull(f"models:/{NAME}@staging", tmp_path / "cache", root=project).name == "2"


@pytest.mark.parametrize("alias", ["champion", "challenger", "", "Production", "a b", "1", "-x"])
def test_aliases_that_are_not_a_persons(
    versions: list[registry.Version], client: Any, alias: str
) -> None:
    with pytest.raises(RegistryError, match="expected an environment's alias"):
        point_alias(client, NAME, alias)
    assert registry.find_champion(client, NAME) is not None


def test_what_is_not_there(versions: list[registry.Version], client: Any, run_id: str) -> None:
    with pytest.raises(RegistryError, match="has no version 9; it has: 1, 2, 3"):
        point_alias(client, NAME, "staging", 9)
    with pytest.raises(RegistryError, match=f"no model 'tencost-other'; it has: {NAME}"):
        point_alias(client, "tencost-other", "staging")


def test_the_command_says_what_it_did(
    versions: list[registry.Version],
    project: Path,
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    cli.main(["register", "promote", NAME, "--to", "staging"])
    assert "staging is version 2 (" in capsys.readouterr().out
    cli.main(["register", "promote", NAME, "3", "--to", "staging"])
    assert ", it was version 2" in capsys.readouterr().out


def test_the_alias_of_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENCOST_ALIAS", raising=False)
    assert default_alias() == "champion"
    monkeypatch.setenv("TENCOST_ALIAS", "production")
    assert default_alias() == "production"
    monkeypatch.setenv("TENCOST_ALIAS", "models:/x")
    with pytest.raises(ConfigError, match="TENCOST_ALIAS must be an alias"):
        default_alias()
