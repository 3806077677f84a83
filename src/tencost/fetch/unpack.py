"""Unpack an archive that may be hostile: regular files below the folder given, and nothing else.

`.tar.zst`, `.tar.gz`, `.tgz` and `.zip`. Refused by name: absolute paths, `..`, links, devices, a
name that occurs twice, encrypted members, and more bytes than any honest archive of this kind
holds.
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
from typing import IO, Any

import zstandard

from tencost.errors import DatasetError

SUFFIXES = (".tar.zst", ".tar.gz", ".tgz", ".zip")
MAX_RATIO = 2000
"""Unpacked bytes per packed byte; logs of schedules reach about 30."""
MIN_LIMIT_BYTES = 64 * 2**20
"""Small archives may unpack to this much whatever their ratio."""
_CHUNK_BYTES = 2**20
_MAX_WINDOW_BYTES = 2**31


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
        if archive.name.endswith(".zip"):
            _unpack_zip(archive, writer)
        else:
            _unpack_tar(archive, writer)
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zstandard.ZstdError,
        gzip.BadGzipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
    ) as error:
        raise DatasetError(
            f"expected a whole archive at {archive}, found a damaged one ({error}). "
            "Fetch or copy the archive again."
        ) from error
    if not writer.names:
        raise DatasetError(f"expected files in {archive}, found none. Pack the dataset again.")
    return len(writer.names)


class _Writer:
    """Checks each member's name and writes it below the folder, counting bytes."""

    def __init__(self, archive: Path, folder: Path, limit: int) -> None:
        self.archive, self.folder, self.limit = archive, folder, limit
        self.names: set[str] = set()
        self.num_bytes = 0

    def refuse(self, name: str, why: str) -> DatasetError:
        return DatasetError(
            f"expected plain files below the dataset's folder in {self.archive}, found "
            f"{name!r}: {why}. "
            "The archive was not made by tencost; do not use it."
        )

    def target(self, name: str) -> Path:
        path = PurePosixPath(name)
        if not name or "\0" in name or "\\" in name:
            raise self.refuse(name, "not a plain name")
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
                        raise self.refuse(name, f"more than {self.limit} bytes unpacked")
                    file.write(chunk)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise self.refuse(name, "a name that is both file and folder") from error


def _unpack_tar(archive: Path, writer: _Writer) -> None:
    with _tar_stream(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            if member.isdir():
                writer.target(member.name)
            elif member.isreg():
                data = tar.extractfile(member)
                assert data is not None
                writer.write(member.name, data)
            else:
                kind = "a link" if member.issym() or member.islnk() else "a device or the like"
                raise writer.refuse(member.name, kind)
        while stream.read(
            _CHUNK_BYTES
        ):  # to the end, so that a checksum behind the last member counts
            pass


@contextmanager
def _tar_stream(archive: Path) -> Iterator[Any]:
    with archive.open("rb") as raw:
        if archive.name.endswith(".tar.zst"):
            reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
            with reader.stream_reader(raw) as stream:
                yield stream
        else:
            with gzip.GzipFile(fileobj=raw) as stream:
                yield stream


def _unpack_zip(archive: Path, writer: _Writer) -> None:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
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
