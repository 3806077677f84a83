"""The MLflow model registry: one registered model a hardware; versions, aliases, rollback.

A version's artifact is a pyfunc around the bundle. Tags of a version:

    semver          MAJOR.MINOR after MLGO: MAJOR is the feature ABI, MINOR counts the versions with
                    that ABI
    content_digest  of what decides the scores; the same content is never registered twice
    bundle_sha256   of bundle.json, checked by `pull`
    family, features, hardware, dataset, split_hash, seed
    twin            content digest of the bundle that was judged in its place, where it was fitted on all records, test
                    networks included; its figures are the twin's
    live            what `tencost register live` found of it against the champion then
    fitted_on       what it has learnt from: parts, records; networks by name
    promoted        when it became champion, UTC; absent if it never was
    rolled_back     when it stopped being it by a rollback, UTC; the rule does not promote it again
    verdict         promoted or refused, by the promotion rule when it was asked last; what it saw
                    and said is in the tags that `tencost.register.notes` writes

Alias `challenger`: the version proposed last. Alias `champion`: the version to tune with.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from tencost.errors import RegistryError
from tencost.features.rows.ragged import Ragged
from tencost.models.manifest import BundleFacts
from tencost.models.programs.bundle import content_digest, read_info
from tencost.models.programs.bundle.pyfunc_model import save_pyfunc
from tencost.register.pull import CHALLENGER as CHALLENGER
from tencost.register.pull import CHAMPION as CHAMPION
from tencost.register.pull import DIGEST_TAG, manifest_digest, no_versions, settle_mlflow
from tencost.tracking.runs import log_model
from tencost.tracking.server_check import reach_server

CONTENT_TAG = "content_digest"
PROMOTED_TAG = "promoted"
VERDICT_TAG = "verdict"
REASONS_TAG = "reasons"
ROLLED_BACK_TAG = "rolled_back"
LIVE_TAG = "live"
MODEL_TAG = "logged_model"
"""MLflow's id of the model that a version has."""
TWIN_TAG, FITTED_TAG, NETWORKS_TAG = "twin", "fitted_on", "networks"
_MOST_TEXT = 5000
"""Characters of a version's tag that MLflow keeps."""
BUNDLES = "bundles"
"""Folder among the artifacts of a training run: seed<k>/, the bundle of each seed."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version of a registered model."""

    name: str
    number: int
    run_id: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    description: str = ""

    @property
    def semver(self) -> str:
        """MAJOR.MINOR; empty for a version that was not made here."""
        return self.tags.get("semver", "")

    @property
    def uri(self) -> str:
        """What `pull` and `load_cost_model` take."""
        return f"models:/{self.name}/{self.number}"


def model_name(hardware: str) -> str:
    """Return the name of the hardware's registered model."""
    return f"tencost-{hardware}"


def connect(uri: str) -> Any:
    """Return an MlflowClient for a tracking URI, whose database must exist.

    Raises:
        RegistryError: a server that does not answer, or does not let us in.
    """
    reach_server(uri)
    settle_mlflow()
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def list_models(client: Any) -> list[str]:
    """Return the names of all registered models, sorted."""
    return sorted(str(model.name) for model in client.search_registered_models())


def list_versions(client: Any, name: str) -> list[Version]:
    """Return a model's versions, oldest first; none if there is no such model."""
    if name not in list_models(client):
        return []
    aliases: dict[int, list[str]] = {}
    for alias, number in client.get_registered_model(name).aliases.items():
        aliases.setdefault(int(number), []).append(alias)
    versions = [
        Version(
            name=name,
            number=int(version.version),
            run_id=version.run_id or "",
            tags=dict(version.tags),
            aliases=tuple(sorted(aliases.get(int(version.version), []))),
            description=version.description or "",
        )
        for version in client.search_model_versions(f"name='{name}'")
    ]
    return sorted(versions, key=lambda version: version.number)


def existing_versions(client: Any, name: str) -> list[Version]:
    """Return a model's versions, oldest first.

    Raises:
        RegistryError: no such model, or one without a version.
    """
    versions = list_versions(client, name)
    if not versions:
        models = list_models(client)
        if name in models:
            raise no_versions(name)
        raise RegistryError(
            f"the registry has no model {name!r}; it has: {', '.join(models) or 'none'}."
        )
    return versions


def numbered(versions: list[Version], number: int) -> Version:
    """Return the version with a number, out of those of a model.

    Raises:
        RegistryError: there is none.
    """
    for version in versions:
        if version.number == number:
            return version
    numbers = ", ".join(str(version.number) for version in versions)
    raise RegistryError(f"model {versions[0].name!r} has no version {number}; it has: {numbers}.")


def find_champion(client: Any, name: str) -> Version | None:
    """Return the version that the champion alias points to."""
    return with_alias(list_versions(client, name), CHAMPION)


def with_alias(versions: list[Version], alias: str) -> Version | None:
    """Return the version that an alias points to, out of those of a model."""
    return next((version for version in versions if alias in version.aliases), None)


def bundle_offer(bundle: Path, hardware_text: str, programs: Ragged | None = None) -> Offer:
    """Return a bundle of programs as it is offered to the registry.

    Args:
        bundle: its folder.
        hardware_text: what the registered model is for, one line.
        programs: some as the bundle reads them; the first are the example of a question that is kept beside the model.
    """
    info = read_info(bundle)
    name = model_name(info.hardware)
    refit = {}
    if info.refit:
        refit = {
            TWIN_TAG: str(info.refit["twin"]),
            FITTED_TAG: f"{info.refit['records']} records of {info.refit['parts']}",
            NETWORKS_TAG: ", ".join(info.refit["networks"])[:_MOST_TEXT],
        }
    return Offer(
        name=name,
        bundle=bundle,
        content_digest=content_digest(info),
        major=info.feature_spec.abi,
        tags={**origin_tags(info, info.hardware, info.feature_spec.name), **refit},
        model_text=(
            f"Learned cost model for tensor programs on {hardware_text}.\n\n"
            f"Tune with it: `tencost tune model.onnx model_uri=models:/{name}@champion`, or in a script "
            f"`tencost.load_cost_model('models:/{name}@champion')` as MetaSchedule's `cost_model`.\n\n"
            "Aliases: **champion** is the version to use, **challenger** the one proposed last. "
            "Versions are tagged MAJOR.MINOR: MAJOR is the feature ABI, MINOR counts the trainings."
        ),
        save=partial(save_pyfunc, programs=programs),
    )


def origin_tags(info: BundleFacts, hardware: str, features: str) -> dict[str, str]:
    """Return the tags that say which model a version is, and what of."""
    return {
        "family": info.family,
        "features": features,
        "hardware": hardware,
        "dataset": info.dataset,
        "split_hash": info.split_hash,
        "seed": str(info.seed),
    }


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A bundle that may become a version.

    Attributes:
        name: of the registered model.
        bundle: folder of the bundle.
        content_digest: of what decides the predictions.
        major: first number of the version: that of what the model reads.
        tags: further tags of the version.
        model_text: what the registered model is for, Markdown; used where it is new.
        save: writes a bundle (second) as an MLflow model into a new folder (first).
    """

    name: str
    bundle: Path
    content_digest: str
    major: int
    tags: dict[str, str]
    model_text: str
    save: Callable[[Path, Path], None]


def register_offer(
    client: Any, offer: Offer, *, run_id: str, description: str
) -> tuple[Version, bool]:
    """Make a bundle a new version with alias challenger, or give the alias to the version that has its content.

    Args:
        client: of the registry.
        offer: the bundle.
        run_id: MLflow run that trained it; the artifact is logged there.
        description: Markdown, shown with the version.

    Returns:
        The version, and whether it is new.
    """
    from mlflow.exceptions import MlflowException

    name = offer.name
    versions = list_versions(client, name)
    for version in versions:
        if version.tags.get(CONTENT_TAG) == offer.content_digest:
            client.set_registered_model_alias(name, CHALLENGER, str(version.number))
            return version, False
    if not versions:
        try:
            client.create_registered_model(name, description=offer.model_text)
        except MlflowException as error:  # another process was first, or all versions were deleted
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
    same_major = [
        version for version in versions if version.semver.split(".")[0] == str(offer.major)
    ]
    model_id = _log_pyfunc(client, offer, run_id)
    created = client.create_model_version(
        name,
        source=client.get_logged_model(model_id).artifact_location,
        run_id=run_id,
        tags={
            "semver": f"{offer.major}.{len(same_major)}",
            CONTENT_TAG: offer.content_digest,
            DIGEST_TAG: manifest_digest(offer.bundle),
            **offer.tags,
            MODEL_TAG: model_id,
        },
        description=description,
        model_id=model_id,
    )
    # What MLflow's server notes itself: the model's page lists its versions by it.
    listed = orjson.dumps([{"name": name, "version": str(created.version)}]).decode()
    client.set_logged_model_tags(model_id, {"mlflow.modelVersions": listed})
    version, new = _settled(client, offer, int(created.version))
    client.set_registered_model_alias(name, CHALLENGER, str(version.number))
    return numbered(list_versions(client, name), version.number), new


def _settled(client: Any, offer: Offer, number: int) -> tuple[Version, bool]:
    """Look what other people registered at the same time: the same content stays once, no two have one semver.

    Who has the lower number was first, whatever each saw before it registered.
    """
    from mlflow.exceptions import MlflowException

    versions = [
        version for version in list_versions(client, offer.name) if version.number <= number
    ]
    created = versions[-1]
    for earlier in versions[:-1]:
        if earlier.tags.get(CONTENT_TAG) == offer.content_digest:
            # Who may register may not always delete; a second copy does no harm.
            with suppress(MlflowException):
                client.delete_model_version(offer.name, str(number))
            return earlier, False
    semver = _semvers(versions)[number]
    if created.semver != semver:
        client.set_model_version_tag(offer.name, str(number), "semver", semver)
    return created, True


def _semvers(versions: list[Version]) -> dict[int, str]:
    """Return the semver that each version, the oldest first, settles on, by its number.

    Who made a version looks only once, maybe before those ahead of him did: so what they will settle on is computed for
    them, too, and all who look find the same. Copies of a version, which are being taken away, take no semver.
    """
    semvers: dict[int, str] = {}
    contents: set[str] = set()
    for version in versions:
        content = version.tags.get(CONTENT_TAG)
        if content is not None and content in contents:
            continue
        contents |= set() if content is None else {content}
        semver = version.semver
        if semver and semver in semvers.values():
            major = semver.partition(".")[0]
            pairs = [other.partition(".") for other in semvers.values()]
            minors = [
                int(minor) for first, _, minor in pairs if first == major and minor.isdecimal()
            ]
            semver = f"{major}.{1 + max(minors)}"
        semvers[version.number] = semver
    return semvers


def trained_seeds(client: Any, version: Version) -> tuple[str, ...]:
    """Return the seeds that a version's run trained, as the run says; none if it does not."""
    from mlflow.exceptions import MlflowException

    try:
        seeds = client.get_run(version.run_id).data.params.get("seeds", "")
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        return ()
    return tuple(seed.strip() for seed in seeds.split(",") if seed.strip())


def check_unchanged(client: Any, name: str, champion: Version | None) -> None:
    """Check that a model's champion is still the version that a challenger was judged against.

    Raises:
        RegistryError: somebody promoted another one meanwhile.
    """
    current = find_champion(client, name)
    if (current and current.number) != (champion and champion.number):
        then = "no champion" if champion is None else f"version {champion.number} as champion"
        actual = "none" if current is None else f"version {current.number}"
        raise RegistryError(
            f"expected {then} of {name} still, which the challenger was judged against, found {actual}: somebody else "
            "was faster. Nothing was promoted; run the command again to judge it against that one"
        )


def promote(client: Any, version: Version) -> None:
    """Point the champion alias to a version and note when."""
    number = str(version.number)
    client.set_model_version_tag(version.name, number, PROMOTED_TAG, now())
    if ROLLED_BACK_TAG in version.tags:
        client.delete_model_version_tag(version.name, number, ROLLED_BACK_TAG)
    client.set_registered_model_alias(version.name, CHAMPION, number)


def rollback(client: Any, name: str, number: int | None = None) -> Version:
    """Point the champion alias back: to a version, or to the champion before the present one.

    The version that gives way to an older one is marked, so that the next run of the pipeline does not promote it
    again. A version that is the champion already stays as it is.

    Raises:
        RegistryError: no such model or version, or no earlier champion.
    """
    versions = existing_versions(client, name)
    current = with_alias(versions, CHAMPION)
    chosen = _earlier(name, versions, current) if number is None else numbered(versions, number)
    if current is not None and chosen.number == current.number:
        return chosen
    if current is not None and chosen.number < current.number:
        client.set_model_version_tag(name, str(current.number), ROLLED_BACK_TAG, now())
    promote(client, chosen)
    return chosen


def _earlier(name: str, versions: list[Version], current: Version | None) -> Version:
    """Return the last version before the champion that was champion and was not taken back."""
    chosen = [
        version
        for version in versions
        if PROMOTED_TAG in version.tags
        and ROLLED_BACK_TAG not in version.tags
        and (current is None or version.number < current.number)
    ]
    if not chosen:
        before = f"before version {current.number}" if current else "to go back to"
        raise RegistryError(
            f"model {name!r} has no champion {before}. "
            f"Name a version: tencost register rollback {name} <version>; "
            "see `tencost register status`."
        )
    return chosen[-1]


def now() -> str:
    """Return the time as tags have it: ISO 8601, UTC, seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _log_pyfunc(client: Any, offer: Offer, run_id: str) -> str:
    """Log the bundle as a pyfunc, a logged model of the training run; return its id."""
    with tempfile.TemporaryDirectory(prefix="tencost-") as scratch:
        folder = Path(scratch) / "model"
        offer.save(folder, offer.bundle)
        return log_model(
            client,
            run_id,
            folder,
            name=offer.name,
            model_type=offer.tags.get("family", "tencost"),
            tags={"registered": "true", CONTENT_TAG: offer.content_digest},
        )
