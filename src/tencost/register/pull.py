"""Get a bundle from where it is registered or lies.

``models:/<name>@<alias>``, ``models:/<name>/<version>``, ``runs:/<run id>/<path>``, or a folder.
Works with mlflow-skinny (and SQLAlchemy for a registry in SQLite).

What was pulled is kept in a cache, so that tuning goes on while the registry is down::

    <cache>/bundles/<registry>/<name>/<version>/   the bundle
    <cache>/bundles/<registry>/<name>/index.json   {"aliases": {alias: version}, "sha256": {version:
    sha256}}

<registry> is made of the tracking URI: two registries may both have a ``tencost-local`` version 1.
The sha256 is that of bundle.json, which lists the sha256 of every other file; the version's tag
`bundle_sha256` holds it too, and a cached copy is used only if it has it. Of an index of another
shape the entries that make no sense are left out.

Where there is no registry at all, neither MLFLOW_TRACKING_URI nor a project's database, ``models:/<name>@champion`` is
the packaged champion of that name (:mod:`tencost.register.champions`), with a warning.

A registry that does not answer is given up after TENCOST_REGISTRY_TIMEOUT seconds, 10 unless set:
a request has half of it and is repeated once. MLflow's own variables have precedence.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import orjson

from tencost.config import project_root
from tencost.errors import BundleError, ConfigError, RegistryError, without_secrets
from tencost.models.manifest import MANIFEST, PROGRAMS, read_manifest
from tencost.models.programs.bundle import read_info
from tencost.register.champions import Champion, champion_for, packaged_champions, packaged_model
from tencost.tracking.server_check import refused
from tencost.tracking.server_check import settle_mlflow as settle_mlflow
from tencost.writing import put_folder, scratch_beside, whole_file

DIGEST_TAG = "bundle_sha256"
"""Tag of a model version: sha256 of its bundle.json."""

CHAMPION, CHALLENGER = "champion", "challenger"
"""Aliases: the version to tune with, and the one that was proposed last."""
ALIAS = r"[a-z][a-z0-9-]{0,62}"
"""What an environment's alias looks like."""
ALIAS_VARIABLE = "TENCOST_ALIAS"
EVERY_CPU = "cpu"
"""What models of any CPU are registered as (tencost-cpu): conf/hardware/all.yaml."""

_MODELS_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>\d+))")
_RUNS_URI = re.compile(r"runs:/(?P<run>[0-9a-f]{32})(?:/(?P<path>.+))?")


class StaleBundleWarning(UserWarning):
    """The registry is down and a bundle pulled earlier is used instead."""


class PackagedChampionWarning(UserWarning):
    """There is no registry, and the champion that is packaged with tencost is used."""


class _UnreachableError(Exception):
    """The registry or its artifact store did not answer."""


def pull(uri: str, cache_dir: Path | None = None, *, root: Path | None = None) -> Path:
    """Return the local folder of a bundle, downloading it where needed.

    Args:
        uri: models:/name@alias, models:/name/version, runs:/run/path, or a folder.
        cache_dir: where pulled bundles are kept; the user's cache directory by default.
        root: the project whose registry is meant where MLFLOW_TRACKING_URI is not set.

    Raises:
        RegistryError: not a URI of these forms; no such model, version or alias (the message lists
            what there is); the registry is down or answers something else, and nothing was pulled
            before; the cache cannot be written.
        BundleError: what was found is not a whole bundle.

    Warns:
        StaleBundleWarning: the registry is down, the last pulled bundle is used.
        PackagedChampionWarning: there is no registry, and nothing was pulled before.
    """
    match = _MODELS_URI.fullmatch(uri) or _RUNS_URI.fullmatch(uri)
    if match is None:
        return _local(uri)
    settle_mlflow()
    tracking = registry_uri(root)
    parts = match.groupdict()
    name, alias = parts.get("name"), parts.get("alias")
    if name is not None:
        _check_name(tracking, name)
    cache = _cache(cache_dir, tracking, name or "runs")
    key = parts.get("version") or ""
    if name is None:
        path = parts["path"]
        key = parts["run"]
        key += f"-{hashlib.sha256(path.encode()).hexdigest()[:8]}" if path else ""
    try:
        client = _connect(tracking)
        digest = folder = None
        if name is not None:
            version = _resolve(client, tracking, name, alias, key)
            key, digest = str(version.version), version.tags.get(DIGEST_TAG)
            folder = cache.get(key, digest) if digest else None
        if folder is None:
            with _reaching(tracking):
                if name is not None:
                    location = artifact_location(client, version)
                else:
                    run = client.get_run(parts["run"])
                    location = f"{run.info.artifact_uri}/{parts['path'] or ''}".rstrip("/")
            with cache.scratch() as scratch:
                bundle = download(tracking, location, scratch)
                verify(bundle, digest)
                folder = cache.put(key, bundle)
        if alias is not None:
            cache.remember(alias, key)
    except BundleError as error:
        raise BundleError(f"{uri}: {error}") from error  # the folder that it names may be temporary
    except _UnreachableError as error:
        last = key or cache.aliases().get(alias or "", "")
        folder = cache.get(last, cache.digests().get(last)) if last else None
        if folder is not None:
            warnings.warn(
                f"cannot get {uri}: {error}. Using the bundle pulled last, version {folder.name} in {folder}.",
                StaleBundleWarning,
                stacklevel=2,
            )
            return folder
        hint = "Check MLFLOW_TRACKING_URI and the server, or name the folder of a bundle."
        if not has_registry(root):
            champion = packaged_model(name) if name is not None and alias == CHAMPION else None
            if champion is not None:
                warnings.warn(
                    f"{uri}: {error}; using {champion.origin}",
                    PackagedChampionWarning,
                    stacklevel=2,
                )
                return _verified(champion)
            uris = ", ".join(champion.uri for champion in packaged_champions())
            hint += f" Packaged with tencost: {uris or 'none'}. To train a model: docs/how-to/measuring.md"
        raise RegistryError(
            f"cannot get {uri}: {error}; and no earlier pull of it is in {cache.folder}. {hint}"
        ) from error
    return folder


def champion_of_cpu(
    flags: Set[str], cpu: str, failure: object, *, simd_bits: int | None = None, root: Path | None
) -> tuple[Champion, Path, str]:
    """Return the champion that a CPU's instruction sets choose: the registry's of that name, else the packaged one.

    Args:
        flags: the CPU's instruction sets, in /proc/cpuinfo's spelling.
        cpu: the CPU in words.
        failure: why the registry has no model of this CPU.
        simd_bits: width of the widest vectors that programs may use; None for no limit.
        root: the project.

    Returns:
        The packaged champion, the folder of the bundle, and which model it is and why.

    Raises:
        RegistryError: no packaged champion fits the CPU.
        BundleError: the packaged bundle is damaged.
    """
    champion = champion_for(flags, cpu, simd_bits)
    folder, model = None, f"the registry's {champion.uri}"
    if has_registry(root):
        with suppress(RegistryError):
            folder = pull(champion.uri, root=root)
    else:
        failure = "there is no registry"
    if folder is None:
        folder, model = _verified(champion), champion.origin
    why = f"its programs use {champion.simd_bits}-bit vectors, which {cpu} has"
    return champion, folder, f"{model}; {why}, and no model of this CPU is registered: {failure}"


def objection(name: str, alias: str, *, root: Path | None = None) -> str:
    """Return why the version that an alias points to was refused as champion, the first reason of its verdict.

    Empty where it was not refused, where there is no such version, and where the registry does not answer.
    """
    tracking = registry_uri(root)
    try:
        client = _connect(tracking)
        with _reaching(tracking):
            tags = client.get_model_version_by_alias(name, alias).tags
    except _UnreachableError:
        return ""
    reasons = tags.get("reasons", "").splitlines() if tags.get("verdict") == "refused" else []
    return next((line.removeprefix("no: ") for line in reasons if line.startswith("no: ")), "")


def _check_name(tracking: str, name: str) -> None:
    """Refuse at once what a registry in SQLite plainly lacks: MLflow takes seconds to import.

    What is not plain (another schema, a damaged or a locked file) is left to MLflow.

    Raises:
        RegistryError: there are models, or none, but not this one.
    """
    path = _sqlite_file(tracking)
    if path is None or not path.is_file():
        return
    address = f"{path.resolve().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, timeout=1, uri=True)) as database:
            names = {str(row[0]) for row in database.execute("SELECT name FROM registered_models")}
    except sqlite3.Error:
        return
    if name not in names:
        raise _unknown(tracking, name, names)


def _no_version(
    name: str, alias: str | None, version: str, aliases: Mapping[str, Any], versions: Sequence[int]
) -> RegistryError:
    """Return the refusal of an alias or a version that a registered model lacks.

    Args:
        name: of the model.
        alias: that was asked for; None: the version was.
        version: the number that was asked for.
        aliases: alias -> version; MLflow keeps the alias of a deleted version.
        versions: numbers of those that are there, ascending.
    """
    numbers = ", ".join(map(str, versions))
    if not versions:
        return no_versions(name)
    if alias is not None and alias in aliases:
        command = f"tencost register promote {name} {versions[-1]} --to {alias}"
        if alias == CHAMPION:
            command = f"tencost register rollback {name} {versions[-1]}"
        elif alias == CHALLENGER:
            command = _register_command(name)
        return RegistryError(
            f"model {name!r}: version {aliases[alias]}, to which the alias {alias!r} points, was deleted; versions: "
            f"{numbers}. Point it to another: {command}"
        )
    missing = f"version {version}" if alias is None else f"alias {alias!r}"
    existing = (
        f"{key} = {number}" for key, number in sorted(aliases.items()) if int(number) in versions
    )
    return RegistryError(
        f"model {name!r} has no {missing}; versions: {numbers}; aliases: {', '.join(existing) or 'none'}. "
        "See `tencost register status`."
    )


def no_versions(name: str) -> RegistryError:
    """Return the refusal of a registered model whose versions were all deleted."""
    return RegistryError(
        f"model {name!r} has no version: all were deleted. Register one with `{_register_command(name)}`."
    )


def _register_command(name: str) -> str:
    """Return the command that registers a model: another one where it is of whole networks."""
    return f"tencost {'graphs register' if name.startswith('tencost-graph-') else 'register'}"


def _unknown(tracking: str, name: str, names: Iterable[str]) -> RegistryError:
    return RegistryError(
        f"the registry {without_secrets(tracking)} has no model {name!r}; it has: "
        f"{', '.join(sorted(names)) or 'none'}. "
        f"Register one with `{_register_command(name)}`."
    )


def _sqlite_file(tracking: str) -> Path | None:
    """Return the file of a registry in SQLite; None of a server."""
    if not tracking.startswith("sqlite:///"):
        return None
    return Path(tracking.removeprefix("sqlite:///"))


def is_absent(tracking: str) -> bool:
    """Say whether a registry in SQLite has no file yet; MLflow would create an empty one."""
    path = _sqlite_file(tracking)
    return path is not None and not path.is_file()


def default_alias() -> str:
    """Return the alias that is pulled where none is named: TENCOST_ALIAS of the environment, or champion.

    Raises:
        ConfigError: TENCOST_ALIAS is no alias.
    """
    alias = os.environ.get(ALIAS_VARIABLE) or CHAMPION
    if not re.fullmatch(ALIAS, alias):
        raise ConfigError(
            f"{ALIAS_VARIABLE} must be an alias such as staging or production, found {alias!r}. Unset it for champion"
        )
    return alias


def registry_uri(root: Path | None = None) -> str:
    """Return MLFLOW_TRACKING_URI, or the SQLite file of the project around the working folder."""
    if os.environ.get("MLFLOW_TRACKING_URI"):
        return os.environ["MLFLOW_TRACKING_URI"]
    if root is None:
        try:
            root = project_root()
        except ConfigError:
            root = Path.cwd()
    return f"sqlite:///{root.resolve() / 'mlruns' / 'mlflow.db'}"


def has_registry(root: Path | None = None) -> bool:
    """Say whether there is a registry, which may be down: the environment names one, or the project has one."""
    return bool(os.environ.get("MLFLOW_TRACKING_URI")) or not is_absent(registry_uri(root))


def manifest_digest(folder: Path) -> str:
    """Return the sha256 of a bundle's bundle.json, hex."""
    return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()


def verify(folder: Path, digest: str | None) -> None:
    """Check a bundle's bundle.json against a sha256, and its files against bundle.json.

    Raises:
        BundleError: something is missing or differs.
    """
    files = _files(folder)
    if digest is not None and manifest_digest(folder) != digest:
        raise BundleError(
            f"bundle {folder}: {MANIFEST} does not have the registered sha256 {digest}."
        )
    for name, expected in files.items():
        path = folder / name
        actual = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "nothing"
        if actual != expected:
            raise BundleError(
                f"bundle {folder}: {name}: expected sha256 {expected}, found {actual}."
            )


def download(tracking: str, location: str, target: Path) -> Path:
    """Download an artifact folder into `target` and return the bundle inside it.

    Raises:
        RegistryError: the artifact does not hold exactly one bundle.
    """
    from mlflow.artifacts import download_artifacts

    source = _existing(location, tracking)
    with _reaching(tracking):
        fetched = Path(
            download_artifacts(artifact_uri=source, dst_path=str(target), tracking_uri=tracking)
        )
    bundles = sorted(path.parent for path in fetched.rglob(MANIFEST))
    if len(bundles) != 1:
        inside = ", ".join(str(bundle.relative_to(fetched)) for bundle in bundles) or "none"
        raise RegistryError(
            f"expected one bundle (a folder with {MANIFEST}) in {location}, found {len(bundles)}: {inside}. "
            "Name the folder of one of them."
        )
    return bundles[0]


def artifact_location(client: Any, version: Any) -> str:
    """Return where a model version's artifacts lie (MLflow 3 keeps them with a logged model)."""
    source = str(version.source)
    if source.startswith("models:/m-"):
        return str(client.get_logged_model(source.removeprefix("models:/")).artifact_location)
    return source


def _local(uri: str) -> Path:
    folder = Path(unquote(urlparse(uri).path) if uri.startswith("file:") else uri).expanduser()
    if not folder.is_dir():
        raise RegistryError(
            "expected models:/<name>@<alias>, models:/<name>/<version>, runs:/<run id>/<path> or "
            f"the folder of a bundle, found {uri!r}. See `tencost register status`."
        )
    _files(folder)
    return folder


def _files(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file of a bundle, as its manifest says."""
    manifest = read_manifest(folder)
    if manifest.get("kind", PROGRAMS) == PROGRAMS:
        return read_info(folder).files
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(isinstance(sha256, str) for sha256 in files.values()):
        raise BundleError(f"bundle {folder}: expected names and sha256 as `files` in {MANIFEST}")
    if any(Path(name).name != name for name in files):
        raise BundleError(f"bundle {folder}: expected plain names as `files` in {MANIFEST}")
    return files


def _verified(champion: Champion) -> Path:
    verify(champion.folder, champion.sha256)
    return champion.folder


def _connect(tracking: str) -> Any:
    if is_absent(tracking):
        raise _UnreachableError(
            f"there is no registry at {without_secrets(tracking)}; `tencost register` makes one of evaluated models"
        )
    with _reaching(tracking):
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=tracking, registry_uri=tracking)


def _resolve(client: Any, tracking: str, name: str, alias: str | None, version: str) -> Any:
    """Return MLflow's version of a model by its alias or, without one, its number."""
    from mlflow.exceptions import MlflowException

    with _reaching(tracking):
        try:
            model = client.get_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            names = [str(model.name) for model in client.search_registered_models()]
            raise _unknown(tracking, name, names) from error
        if model.name != name:
            raise _no_registry(tracking, "no name")
        versions = sorted(
            int(version.version) for version in client.search_model_versions(f"name='{name}'")
        )
        number = int(version) if alias is None else int(model.aliases.get(alias, -1))
        if number not in versions:
            raise _no_version(name, alias, version, model.aliases, versions)
        answer = client.get_model_version(name, str(number))
        if str(answer.version) != str(number):
            raise _no_registry(tracking, "another version")
        return answer


def _no_registry(tracking: str, why: str) -> _UnreachableError:
    return _UnreachableError(
        f"{without_secrets(tracking)} does not answer as an MLflow registry ({why})"
    )


@contextmanager
def _reaching(tracking: str) -> Iterator[None]:
    """Turn what MLflow raises when a server, database or store is down, or no MLflow, into _UnreachableError."""
    from google.protobuf.json_format import Error as ProtobufError  # type: ignore[import-untyped]
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except MlflowException as error:
        if error.error_code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
            raise _UnreachableError(refused(tracking)) from None
        raise _silent(tracking, error) from error
    except (
        SQLAlchemyError, OSError,
        # What its client makes of an answer that is no JSON, or JSON of another shape:
        ProtobufError, ValueError, TypeError, AttributeError, LookupError,
    ) as error:  # fmt: skip
        raise _silent(tracking, error) from error


def _silent(tracking: str, error: BaseException) -> _UnreachableError:
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    return _UnreachableError(f"{without_secrets(tracking)} does not answer ({first_line})")


def _existing(location: str, tracking: str) -> str:
    """Return the location, or where the registry's own project has it since it was copied or moved."""
    parsed, database = urlparse(location), _sqlite_file(tracking)
    _, marker, inside = unquote(parsed.path).rpartition("/mlruns/artifacts/")
    if parsed.scheme not in ("", "file") or database is None or not marker:
        return location
    local = database.parent / "artifacts" / inside
    return str(local) if local.exists() or not Path(unquote(parsed.path)).exists() else location


def _cache(base: Path | None, tracking: str, name: str) -> _Cache:
    from platformdirs import user_cache_path

    registry = hashlib.sha256(tracking.encode()).hexdigest()[:12]
    return _Cache((base or user_cache_path("tencost")) / "bundles" / registry / name)


@dataclass(frozen=True)
class _Cache:
    """The pulled versions of one model of one registry."""

    folder: Path

    def get(self, version: str, digest: str | None) -> Path | None:
        """Return the cached version if it is whole and has the digest."""
        folder = self.folder / version
        try:
            if not folder.is_dir():
                return None
            verify(folder, digest)
        except (BundleError, OSError):
            return None
        return folder

    def put(self, version: str, bundle: Path) -> Path:
        """Move a bundle into the cache; what was there before gives way.

        Raises:
            RegistryError: the cache cannot be written.
        """
        folder = self.folder / version
        try:
            with scratch_beside(folder) as scratch:
                put_folder(bundle, folder, scratch)
            self._write("sha256", {**self.digests(), version: manifest_digest(folder)})
        except OSError as error:
            raise self._unusable(error) from error
        return folder

    def remember(self, alias: str, version: str) -> None:
        """Note what an alias meant when the registry was last asked."""
        if self.aliases().get(alias) != version:
            # Only asked for when the registry is down: a cache that cannot be written stops no pull that needs no room.
            with suppress(OSError, RegistryError):
                self._write("aliases", {**self.aliases(), alias: version})

    def aliases(self) -> dict[str, str]:
        """Alias -> version."""
        aliases = self._read("aliases").items()
        return {alias: version for alias, version in aliases if version.isdecimal()}

    def digests(self) -> dict[str, str]:
        """Version -> sha256 of bundle.json."""
        return self._read("sha256")

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a folder on the cache's file system that is gone afterwards.

        Raises:
            RegistryError: the cache cannot be written.
        """
        with ExitStack() as stack:
            try:
                path = stack.enter_context(scratch_beside(self.folder / "pull"))
            except OSError as error:
                raise self._unusable(error) from error
            yield path

    def _unusable(self, error: OSError) -> RegistryError:
        return RegistryError(
            f"cannot keep pulled bundles in {self.folder}: {error.strerror or error}. Make it a folder that can be "
            "written, or set XDG_CACHE_HOME to another place."
        )

    def _read(self, key: str) -> dict[str, str]:
        try:
            index = orjson.loads((self.folder / "index.json").read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return {}
        pairs = index.get(key) if isinstance(index, dict) else None
        if not isinstance(pairs, dict):
            return {}
        return {name: text for name, text in pairs.items() if isinstance(text, str)}

    def _write(self, key: str, pairs: dict[str, str]) -> None:
        index = {"aliases": self.aliases(), "sha256": self.digests(), key: pairs}
        with whole_file(self.folder / "index.json") as path:
            path.write_bytes(orjson.dumps(index, option=orjson.OPT_INDENT_2))
