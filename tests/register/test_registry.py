"""The registry's calls on a real SQLite registry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tencost.errors import RegistryError
from tencost.features.rows.spec import FEATURE_ABI
from tencost.register import registry
from tencost.register.pull import manifest_digest

MakeBundle = Callable[..., Path]
NAME = "tencost-toy-1c"


def add(client: Any, bundle: Path, run_id: str) -> tuple[registry.Version, bool]:
    return registry.register_offer(
        client,
        registry.bundle_offer(bundle, "a toy"),
        run_id=run_id,
        description="| top-1 |\n| 0.9 |",
    )


def test_first_version(client: Any, run_id: str, make_bundle: MakeBundle) -> None:
    bundle = make_bundle()
    version, new = add(client, bundle, run_id)
    assert new
    assert (version.name, version.number, version.semver) == (NAME, 1, f"{FEATURE_ABI}.0")
    assert version.aliases == ("challenger",)
    assert version.run_id == run_id
    assert version.tags["bundle_sha256"] == manifest_digest(bundle)
    assert version.tags["family"] == "random"
    assert "0.9" in version.description
    assert "champion" in client.get_registered_model(NAME).description
    assert registry.find_champion(client, NAME) is None


def test_the_same_content_is_registered_once(
    client: Any, run_id: str, make_bundle: MakeBundle
) -> None:
    add(client, make_bundle(), run_id)
    version, new = add(client, make_bundle("again", versions={"tencost": "9"}), run_id)
    assert (version.number, new) == (1, False)
    other, new = add(client, make_bundle("other", center=1.0), run_id)
    assert (other.number, other.semver, new) == (2, f"{FEATURE_ABI}.1", True)
    back, new = add(client, make_bundle("third"), run_id)
    assert (back.number, new) == (1, False)
    aliases = {item.number: item.aliases for item in registry.list_versions(client, NAME)}
    assert aliases == {1: ("challenger",), 2: ()}


def test_versions_made_at_once_settle_on_semvers_of_their_own(
    client: Any, run_id: str, make_bundle: MakeBundle
) -> None:
    """Each maker saw so much of the others; the last one looks again before the one ahead of him has."""
    bundles = [make_bundle(f"b{number}", center=float(number)) for number in range(4)]
    first, _ = add(client, bundles[0], run_id)
    offers = []
    for number, bundle in enumerate(bundles[1:], start=2):
        version, _ = add(client, bundle, run_id)
        # As if none of them had seen another but the first.
        client.set_model_version_tag(NAME, str(number), "semver", f"{FEATURE_ABI}.1")
        offers.append(offer_of(version, bundle))
    for number, offer in reversed(list(enumerate(offers, start=2))):
        found, new = registry._settled(client, offer, number)
        assert (found.number, new) == (number, True)
    semvers = {item.number: item.semver for item in registry.list_versions(client, NAME)}
    assert semvers == {number: f"{FEATURE_ABI}.{number - 1}" for number in range(1, 5)}
    assert first.semver == f"{FEATURE_ABI}.0"


def offer_of(version: registry.Version, bundle: Path) -> registry.Offer:
    """What a version was registered as."""
    return registry.Offer(
        name=version.name,
        bundle=bundle,
        content_digest=version.tags[registry.CONTENT_TAG],
        major=FEATURE_ABI,
        tags={},
        model_text="",
        save=lambda folder, bundle: None,
    )


def test_champion_and_rollback(client: Any, run_id: str, make_bundle: MakeBundle) -> None:
    versions = [add(client, make_bundle(f"b{i}", center=float(i)), run_id)[0] for i in range(3)]
    registry.promote(client, versions[0])
    registry.promote(client, versions[2])
    champion = registry.find_champion(client, NAME)
    assert champion is not None
    assert champion.number == 3
    assert champion.aliases == ("challenger", "champion")
    # Version 2 never was champion, so the one before is 1.
    assert registry.rollback(client, NAME).number == 1
    with pytest.raises(RegistryError, match="no champion before version 1"):
        registry.rollback(client, NAME)
    assert registry.rollback(client, NAME, 2).number == 2


def test_a_rollback_skips_what_was_rolled_back(
    client: Any, run_id: str, make_bundle: MakeBundle
) -> None:
    first, second, third = [
        add(client, make_bundle(f"b{i}", center=float(i)), run_id)[0] for i in range(3)
    ]
    registry.promote(client, first)
    registry.promote(client, second)
    assert registry.rollback(client, NAME).number == 1
    registry.promote(client, third)
    assert registry.rollback(client, NAME).number == 1
    tags = {item.number: item.tags for item in registry.list_versions(client, NAME)}
    assert [number for number in tags if "rolled_back" in tags[number]] == [2, 3]
    promoted = tags[1]["promoted"]
    # Forward by number is no rollback, and clears the mark; to where it stands changes nothing.
    assert registry.rollback(client, NAME, 2).number == 2
    registry.rollback(client, NAME, 2)
    tags = {item.number: item.tags for item in registry.list_versions(client, NAME)}
    assert [number for number in tags if "rolled_back" in tags[number]] == [3]
    assert tags[1]["promoted"] == promoted


def test_rollback_of_what_is_not_there(client: Any, run_id: str, make_bundle: MakeBundle) -> None:
    with pytest.raises(RegistryError, match="has no model 'nothing'; it has: none"):
        registry.rollback(client, "nothing")
    add(client, make_bundle(), run_id)
    with pytest.raises(RegistryError, match=f"no model 'nothing'; it has: {NAME}"):
        registry.rollback(client, "nothing")
    with pytest.raises(RegistryError, match="no version 7; it has: 1"):
        registry.rollback(client, NAME, 7)


def test_registered_model_is_a_pyfunc(
    client: Any, uri: str, run_id: str, make_bundle: MakeBundle, project: Path
) -> None:
    import mlflow.pyfunc
    import numpy as np
    import pandas as pd

    from tencost.features.rows.ragged import Ragged
    from tencost.models.programs.bundle import load_bundle

    bundle = make_bundle()
    version, _ = add(client, bundle, run_id)
    assert client.get_run(run_id).info.status == "FINISHED"
    rows = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    frame = pd.DataFrame({"program": [7, 3, 7], "a": rows[:, 0], "b": rows[:, 1]})
    location = client.get_model_version_download_uri(NAME, str(version.number))
    answer = mlflow.pyfunc.load_model(location).predict(frame)
    expected = load_bundle(bundle).scores(Ragged(rows[[0, 2, 1]], np.array([0, 2, 3])))
    assert answer["program"].tolist() == [7, 3]
    assert answer["score"].to_numpy() == pytest.approx(expected)
