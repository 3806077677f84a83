"""Pack a raw dataset into one archive, byte for byte the same wherever and whenever it is packed.

A `.tar.zst` of regular files only: names sorted, modification time 0, owner 0, mode 0644, no folder
entries. The zstd window covers the whole archive, so programs that occur under several hardware are
stored once in effect.
"""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import zstandard

from tencost.errors import DatasetError
from tencost.writing import whole_file

LEVEL = 19
WINDOW_LOG = 27
"""128 MiB, more than the raw sample; readers must allow a window of this size."""


def pack_folder(folder: Path, archive: Path) -> str:
    """Write every file under `folder` into `archive` (.tar.zst) and return its sha256 in hex.

    The archive appears whole or not at all.

    Raises:
        DatasetError: `folder` is empty, or holds something that is not a regular file.
    """
    paths = sorted(
        (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()),
        key=lambda path: path.relative_to(folder).as_posix(),
    )
    odd = [path for path in paths if path.is_symlink() or not path.is_file()]
    if odd:
        raise DatasetError(
            f"expected regular files only to pack, found {odd[0]}. Remove it and pack again."
        )
    if not paths:
        raise DatasetError(f"expected a folder with files to pack, found none in {folder}")
    parameters = zstandard.ZstdCompressionParameters.from_level(
        LEVEL, window_log=WINDOW_LOG, enable_ldm=True, write_checksum=True
    )
    with whole_file(archive, durable=True) as partial, partial.open("wb") as raw:
        compressor = zstandard.ZstdCompressor(compression_params=parameters)
        with (
            compressor.stream_writer(raw, closefd=False) as stream,
            tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            for path in paths:
                with path.open("rb") as file:
                    tar.addfile(_member(path, path.relative_to(folder).as_posix()), file)
    return sha256_of(archive)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _member(path: Path, name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = path.stat().st_size
    member.mode = 0o644
    return member
