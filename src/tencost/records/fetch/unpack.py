"""Unpack an archive that may be hostile: regular files below the folder given, and nothing else.

`.tar.zst`, `.tar.gz`, `.tgz` and `.zip`. Refused by name: absolute paths, `..`, links, devices, a
name that occurs twice, encrypted members, and more bytes than any honest archive of this kind
holds. A packed dataset with such a member is refused as a whole (`unpack`), of an archive of somebody's
logs the other members are kept (`unpack_members`).
"""

from __future__ import annotations

import gzip
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

import zstandard

from tencost.errors import DatasetError

Kind = Literal["tar", "tar.gz", "tar.zst", "zip"]
SUFFIXES = (".tar.zst", ".tar.gz", ".tgz", ".zip")
MAX_RATIO = 2000
"""Unpacked bytes per packed byte; logs of schedules reach about 30."""
MIN_LIMIT_BYTES = 64 * 2**20
"""Small archives may unpack to this much whatever their ratio."""
_CHUNK_BYTES = 2**16
"""Read at once; what was read of a piece in which a damaged archive ends is lost."""
_MAX_WINDOW_BYTES = 2**31
_HEADER_BYTES = 512
"""What a member counts beside its contents, so that empty ones are bounded, too."""
_LONGEST_NAME = 1024
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


def is_archive(name: str) -> bool:
    """Say whether the name ends as an archive that can be unpacked."""
    return name.endswith(SUFFIXES)


def unpack(archive: Path, folder: Path) -> int:
    """Unpack `archive` into `folder`, which must exist and be empty; return the number of files.

    Raises:
        DatasetError: not an archive, damaged, or a member that must not be unpacked. `folder` may
        then hold part of it.
    """
    if not is_archive(archive.name):
        raise DatasetError(
            f"expected an archive ending in {', '.join(SUFFIXES)}, found {archive.name}. "
            "Pack the folder again, or name the folder itself as dataset.source."
        )
    limit = max(MIN_LIMIT_BYTES, MAX_RATIO * archive.stat().st_size)
    writer = _Writer(archive, folder, limit)
    try:
        _unpack(archive, _kind(archive.name), writer)
    except _DAMAGES as error:
        raise DatasetError(
            f"expected a whole archive at {archive}, found a damaged one ({error}). "
            "Fetch or copy the archive again."
        ) from error
    if not writer.names:
        raise DatasetError(f"expected files in {archive}, found none. Pack the dataset again.")
    return len(writer.names)


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
    writer = _Writer(archive, folder, limit_bytes, refused)
    try:
        _unpack(archive, kind, writer)
    except _LimitError as error:
        refused.append((error.name, f"{error.why}; not read on"))
    except _DAMAGES as error:
        refused.append(("", f"the archive ends early or is damaged: {error}"))
    return refused


class _MemberError(DatasetError):
    """A member that must not be unpacked."""

    def __init__(self, archive: Path, name: str, why: str) -> None:
        super().__init__(
            f"expected plain files below the dataset's folder in {archive}, found "
            f"{name!r}: {why}. "
            "The archive was not made by tencost; do not use it."
        )
        self.name, self.why = name, why


class _LimitError(_MemberError):
    """More bytes than an honest archive holds."""


class _Writer:
    """Checks each member's name and writes it below the folder, counting bytes."""

    def __init__(
        self,
        archive: Path,
        folder: Path,
        limit: int,
        refused: list[tuple[str, str]] | None = None,
    ) -> None:
        self.archive, self.folder, self.limit = archive, folder, limit
        self.refused = refused
        self.names: set[str] = set()
        self.num_bytes = 0

    @contextmanager
    def member(self, name: str) -> Iterator[None]:
        """Note what is refused within, where it does not end the unpacking."""
        self.num_bytes += _HEADER_BYTES
        try:
            yield
        except _LimitError:
            raise
        except _MemberError as error:
            if self.refused is None:
                raise
            self.refused.append((error.name, error.why))
            if self.num_bytes > self.limit:
                raise _LimitError(self.archive, name, f"more than {self.limit} bytes") from error
        except _BROKEN_MEMBER as error:
            if self.refused is None:
                raise
            self.refused.append((name, f"damaged: {error}"))

    def refuse(self, name: str, why: str) -> _MemberError:
        return _MemberError(self.archive, name, why)

    def target(self, name: str) -> Path:
        path = PurePosixPath(name)
        if not name or "\0" in name or "\\" in name:
            raise self.refuse(name, "not a plain name")
        if len(name) > _LONGEST_NAME or any(
            len(part.encode(errors="replace")) > 255 for part in path.parts
        ):
            raise self.refuse(f"{name[:60]}...", "a name that is too long")
        if path.is_absolute() or (len(name) > 1 and name[1] == ":"):
            raise self.refuse(name, "an absolute path")
        if ".." in path.parts:
            raise self.refuse(name, "a path that leaves the folder")
        return self.folder.joinpath(*path.parts)

    def write(self, name: str, data: IO[bytes]) -> None:
        target = self.target(name)
        if target == self.folder:
            raise self.refuse(name, "not a plain name")
        key = target.relative_to(self.folder).as_posix()
        if key in self.names:
            raise self.refuse(name, "a name that occurs twice")
        self.names.add(key)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                while chunk := data.read(_CHUNK_BYTES):
                    self.num_bytes += len(chunk)
                    if self.num_bytes > self.limit:
                        raise _LimitError(
                            self.archive, name, f"more than {self.limit} bytes unpacked"
                        )
                    file.write(chunk)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise self.refuse(name, "a name that is both file and folder") from error


def _kind(name: str) -> Kind:
    if name.endswith(".zip"):
        return "zip"
    return "tar.zst" if name.endswith(".tar.zst") else "tar.gz"


def _unpack(archive: Path, kind: Kind, writer: _Writer) -> None:
    if kind == "zip":
        _unpack_zip(archive, writer)
    else:
        _unpack_tar(archive, kind, writer)


def _unpack_tar(archive: Path, kind: Kind, writer: _Writer) -> None:
    with _tar_stream(archive, kind) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            with writer.member(member.name):
                if member.isdir():
                    writer.target(member.name)
                elif member.isreg():
                    data = tar.extractfile(member)
                    assert data is not None
                    writer.write(member.name, data)
                else:
                    linked = member.issym() or member.islnk()
                    what = "a link" if linked else "a device or the like"
                    raise writer.refuse(member.name, what)
        # To the end, so that a checksum behind the last member counts.
        while rest := stream.read(_CHUNK_BYTES):
            writer.num_bytes += len(rest)
            if writer.num_bytes > writer.limit:
                raise _LimitError(archive, "", f"more than {writer.limit} bytes unpacked")


@contextmanager
def _tar_stream(archive: Path, kind: Kind) -> Iterator[Any]:
    with archive.open("rb") as raw:
        if kind == "tar.zst":
            reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
            with reader.stream_reader(raw) as stream:
                yield stream
        elif kind == "tar.gz":
            with gzip.GzipFile(fileobj=raw) as stream:
                yield stream
        else:
            yield raw


def _unpack_zip(archive: Path, writer: _Writer) -> None:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            with writer.member(member.filename):
                _unpack_zip_member(file, member, writer)


def _unpack_zip_member(file: zipfile.ZipFile, member: zipfile.ZipInfo, writer: _Writer) -> None:
    kind = stat.S_IFMT(member.external_attr >> 16)
    if member.flag_bits & 0x1:
        raise writer.refuse(member.filename, "encrypted")
    if kind == stat.S_IFLNK:
        raise writer.refuse(member.filename, "a link")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise writer.refuse(member.filename, "a device or the like")
    if member.is_dir():
        writer.target(member.filename)
    else:
        with file.open(member) as data:
            writer.write(member.filename, data)
