"""`tencost register export`: a registered model as a folder, for a machine without a network.

The folder is a bundle as `tencost register` registered it, with its starting points, and nothing else: it is its own
registry, and its bundle.json lists the sha256 of every file in it. Its card, where asked for, is a file beside it.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from tencost.config.composition import compose
from tencost.errors import BundleError, RegistryError
from tencost.models.manifest import MANIFEST
from tencost.models.programs.bundle import BundleInfo, load_bundle
from tencost.programs.starting_points import shipped_starts
from tencost.register import registry
from tencost.register.champions import Champion, write_card
from tencost.register.pull import (
    DIGEST_TAG,
    has_registry,
    manifest_digest,
    pull,
    registry_uri,
    verify,
)
from tencost.writing import whole_folder


@dataclass(frozen=True)
class Exported:
    """What lies in the folder now.

    Attributes:
        info: what its bundle.json says.
        digest: sha256 of its bundle.json, hex.
        is_new: False where the same bundle was there.
    """

    info: BundleInfo
    digest: str
    is_new: bool


def run(uri: str, folder: Path, root: Path, *, card: bool = False, replace: bool = False) -> None:
    """Export a model and say how it is used.

    Args:
        uri: what `pull` takes.
        folder: see `export_bundle`.
        root: the project.
        card: write the model's card, `<folder>.md`, too.
        replace: another bundle in the folder is replaced.

    Raises:
        RegistryError: no such model, or a card is asked for what is no version of a registered model.
        BundleError: the bundle is damaged, or the folder holds something else or cannot be written.
        ConfigError: a card is asked for, and conf/hardware/ does not describe the model's hardware.
    """
    exported = export_bundle(uri, folder, root=root, replace=replace)
    if card:
        _write_card(uri, exported, folder, root)
    info, names = exported.info, (MANIFEST, *exported.info.files)
    size = sum((folder / name).stat().st_size for name in names) / 1e6
    book = shipped_starts(folder)
    starts = f", {len(book)} starting points" if book else ""
    text = f"""\
{uri}: {info.family} for {info.hardware}, {len(names)} files{starts}, {size:.1f} MB, \
{"in" if exported.is_new else "already in"} {folder}
sha256 of {MANIFEST}, which has that of every other file: {exported.digest}
Copy the folder; where it lies, no registry is asked:
  tencost tune model.onnx model_uri={folder}
  tencost.load_cost_model("{folder}")"""
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


def export_bundle(
    uri: str,
    folder: Path,
    *,
    root: Path | None = None,
    cache_dir: Path | None = None,
    replace: bool = False,
) -> Exported:
    """Copy a model's bundle into a folder, which appears whole or not at all.

    Args:
        uri: what `pull` takes.
        folder: new or empty; one that holds this very bundle is left as it is.
        root: the project whose registry is meant where MLFLOW_TRACKING_URI is not set.
        cache_dir: where pulled bundles are kept; the user's cache directory by default.
        replace: another bundle in the folder is replaced; a folder with anything else is still refused.

    Raises:
        RegistryError: no such model, or the registry is down and nothing was pulled before.
        BundleError: the bundle is damaged, or the folder holds something else or cannot be written.
    """
    source = pull(uri, cache_dir, root=root)
    info = load_bundle(source).info
    digest = manifest_digest(source)
    if not (replace and (folder / MANIFEST).is_file()) and _holds(folder, digest):
        return Exported(info, digest, is_new=False)
    try:
        with whole_folder(folder) as copy:
            for name in (MANIFEST, *info.files):
                shutil.copyfile(source / name, copy / name)
            verify(copy, digest)
    except OSError as error:
        raise BundleError(
            f"cannot write {folder}: {error.strerror or error}. Make room or choose another folder"
        ) from error
    return Exported(info, digest, is_new=True)


def _write_card(uri: str, exported: Exported, folder: Path, root: Path) -> None:
    """Write the card of an exported version, `<folder>.md`: its origin, figures and verdict.

    Raises:
        RegistryError: the URI names no version of a registered model, or another version by now.
        ConfigError: conf/hardware/ does not describe the model's hardware.
    """
    info = exported.info
    name = registry.model_name(info.hardware)
    version = None
    if has_registry(root):
        client = registry.connect(registry_uri(root))
        versions = registry.list_versions(client, name)
        digests = {version.tags.get(DIGEST_TAG): version for version in versions}
        version = digests.get(exported.digest)
    if version is None:
        raise RegistryError(
            f"--card: expected a version of {name} in the registry with the sha256 of {uri}, found none. A card is "
            "written from the registry: see `tencost register status`"
        )
    tags = client.get_run(version.run_id).data.tags
    dirty = "-dirty" if tags.get("git_dirty") == "true" else ""
    hardware = compose([f"hardware={info.hardware}"])[0].hardware
    champion = Champion(
        model=name,
        version=version.semver,
        sha256=exported.digest,
        dataset=info.dataset,
        dataset_hash=info.dataset_hash,
        commit=tags.get("mlflow.source.git.commit", "unknown") + dirty,
        hardware=info.hardware,
        description=hardware.description,
        simd_bits=hardware.simd_bits,
        requires=list(hardware.requires),
    )
    text = f"# {name} {version.semver}\n\n{version.description}"
    write_card(champion, text, folder.with_name(f"{folder.name}.md"))


def _holds(folder: Path, digest: str) -> bool:
    """Say whether a folder holds the bundle with this digest, whole.

    Raises:
        BundleError: it holds something else.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        verify(folder, digest)
        load_bundle(folder)
    except (BundleError, OSError) as error:
        raise BundleError(
            f"expected a new or empty folder at {folder}, or one that holds this very bundle, found something else. "
            f"Choose another folder, or remove that one. ({error})"
        ) from error
    return True
