"""Unpack an archive that may be hostile: regular files below a folder, and nothing else.

`.tar.zst`, `.tar.gz`, `.tgz` and `.zip`. Refused by name: absolute paths, `..`, links, devices, a name that occurs
twice, encrypted members, and more bytes than any honest archive of this kind holds. A packed dataset with such a member
is refused as a whole (`unpack`), of an archive of somebody's logs the other members are unpacked (`unpack_members`).

The data filter of `tarfile` is no help: it renames absolute paths, allows links, and there is none for zip.
"""

from __future__ import annotations

import gzip
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import zstandard

from tencost.errors import DatasetError

Kind = Literal["tar", "tar.gz", "tar.zst", "zip"]
_KINDS: dict[str, Kind] = {
    ".tar.zst": "tar.zst",
    ".tar.gz": "tar.gz",
    ".tgz": "tar.gz",
    ".zip": "zip",
}
SUFFIXES = tuple(_KINDS)
MAX_RATIO = 2000
"""Unpacked bytes per packed byte; logs of schedules reach about 30."""
MIN_LIMIT_BYTES = 64 * 2**20
"""Small archives may unpack to this much whatever their ratio."""
_CHUNK_BYTES = 2**16
"""Read at once; what was read of a piece in which a damaged archive ends is lost."""
_MAX_WINDOW_BYTES = 2**31
_HEADER_BYTES = 512
"""Size that a member counts beside its contents, so that empty members are bounded, too."""
_LONGEST_NAME = 1024
_TOO_LONG = "a name that is too long"
_BROKEN_MEMBER = (zipfile.BadZipFile, NotImplementedError)
"""Of a zip file; the members behind it can still be read."""
_DAMAGES = (
    *_BROKEN_MEMBER,
    tarfile.TarError,
    zstandard.ZstdError,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
)
_Member = tuple[str, str, Callable[[], Any] | None]
"""Name, why it is refused for its kind or "", and what opens its content; None of a folder."""


def is_archive(name: str) -> bool:
    """Say whether the name ends as an archive that can be unpacked."""
    return name.endswith(SUFFIXES)


def unpack(archive: Path, folder: Path) -> int:
    """Unpack `archive` into `folder`, which must exist and be empty; return the number of files.

    Raises:
        DatasetError: not an archive, damaged, or a member that must not be unpacked. `folder` may
        then hold part of it.
    """
    kind = next((kind for suffix, kind in _KINDS.items() if archive.name.endswith(suffix)), None)
    if kind is None:
        raise DatasetError(
            f"expected an archive ending in {', '.join(SUFFIXES)}, found {archive.name}. "
            "Pack the folder again, or name the folder itself as dataset.source."
        )
    limit = max(MIN_LIMIT_BYTES, MAX_RATIO * archive.stat().st_size)
    try:
        refusal = next(_unpack(archive, folder, kind, limit), None)
    except _DAMAGES as error:
        raise DatasetError(
            f"expected a whole archive at {archive}, found a damaged one ({error}). "
            "Fetch or copy the archive again."
        ) from error
    if refusal is not None:
        name, why = refusal
        raise DatasetError(
            f"expected plain files below the dataset's folder in {archive}, found {name!r}: {why}. "
            "The archive was not made by tencost, or is damaged; do not use it."
        )
    files = sum(path.is_file() for path in folder.rglob("*"))
    if not files:
        raise DatasetError(f"expected files in {archive}, found none. Pack the dataset again.")
    return files


def unpack_members(
    archive: Path, folder: Path, kind: Kind, limit_bytes: int
) -> list[tuple[str, str]]:
    """Unpack what may be unpacked into `folder`, which must exist and be empty.

    Args:
        archive: of any name.
        folder: gets the members below it, of a damaged archive those before the damage.
        kind: what the archive is.
        limit_bytes: all members together; unpacking ends there.

    Returns:
        (member, why it was refused) each; the member is empty where it is the archive.
    """
    refused: list[tuple[str, str]] = []
    try:
        refused.extend(_unpack(archive, folder, kind, limit_bytes))
    except _DAMAGES as error:
        refused.append(("", f"the archive ends early or is damaged: {error}"))
    return refused


def _unpack(archive: Path, folder: Path, kind: Kind, limit: int) -> Iterator[tuple[str, str]]:
    """Unpack members, and yield (member, why) of each that is refused."""
    size = 0
    paths: set[PurePosixPath] = set()
    for name, fault, content in (
        _zip_members(archive) if kind == "zip" else _tar_members(archive, kind, limit)
    ):
        size += _HEADER_BYTES
        path = PurePosixPath(name)
        fault = fault or _name_fault(name, path, content is not None)
        if content is not None and not fault and path in paths:
            fault = "a name that occurs twice"
        elif content is not None and not fault:
            paths.add(path)
            try:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                with content() as source, (folder / path).open("xb") as file:
                    while size <= limit and (chunk := source.read(_CHUNK_BYTES)):
                        size += len(chunk)
                        file.write(chunk if size <= limit else b"")
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                fault = "a name that is both file and folder"
            except _BROKEN_MEMBER as error:
                fault = f"damaged: {error}"
        if fault:
            yield (f"{name[:60]}..." if fault == _TOO_LONG else name), fault
        if size > limit:
            yield name, f"more than {limit} bytes unpacked; not read on"
            return


def _name_fault(name: str, path: PurePosixPath, is_file: bool) -> str:
    """Return why a member of this name is refused; "" for a plain name."""
    if not name or "\0" in name or "\\" in name or (is_file and not path.parts):
        return "not a plain name"
    if len(name) > _LONGEST_NAME or any(
        len(part.encode(errors="replace")) > 255 for part in path.parts
    ):
        return _TOO_LONG
    if path.is_absolute() or name[1:2] == ":":
        return "an absolute path"
    return "a path that leaves the folder" if ".." in path.parts else ""


def _zip_members(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as file, archive.open("rb") as raw:
        # An archive that was cut off within a member that is one: its directory would be taken for the whole.
        before = min((member.header_offset for member in file.infolist()), default=0)
        if before and raw.read(4) == b"PK\x03\x04":
            raise zipfile.BadZipFile(f"members that its directory lacks, in {before} bytes")
        for member in file.infolist():
            mode = stat.S_IFMT(member.external_attr >> 16)
            plain = mode in (0, stat.S_IFREG, stat.S_IFDIR)
            fault = "" if plain else "a link" if mode == stat.S_IFLNK else "a device or the like"
            if member.flag_bits & 0x1:
                fault = "encrypted"
            yield member.filename, fault, None if member.is_dir() else partial(file.open, member)


def _tar_members(archive: Path, kind: Kind, limit: int) -> Iterator[_Member]:
    with archive.open("rb") as raw:
        stream: Any = raw
        if kind == "tar.zst":
            reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
            stream = reader.stream_reader(raw)
        elif kind == "tar.gz":
            stream = gzip.GzipFile(fileobj=raw)
        with stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                linked = member.issym() or member.islnk()
                plain = member.isreg() or member.isdir()
                fault = "" if plain else "a link" if linked else "a device or the like"
                content = partial(tar.extractfile, member) if member.isreg() else None
                yield member.name, fault, content
            # To the end, so that a checksum behind the last member counts.
            size = 0
            while rest := stream.read(_CHUNK_BYTES):
                size += len(rest)
                if size > limit:
                    raise tarfile.ReadError(f"more than {limit} bytes behind the last member")
