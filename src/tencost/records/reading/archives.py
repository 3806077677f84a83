"""Archives of logs: known by their content, unpacked into a temporary folder, a log a member.

Members that leave the folder, links, devices and members that are encrypted are refused by name, see
records/fetch/unpack.py; the others are kept, of a damaged archive those before the damage. An archive in an archive is
not opened.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import weakref
from pathlib import Path

from tencost.errors import RecordError
from tencost.records.fetch.unpack import Kind, unpack_members
from tencost.records.reading.opening import GZIP, ZSTANDARD, most_bytes

_BLOCK = 512
_ZIP = b"PK\x03\x04"
_UNREAD = {
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
}
_ZIPPED_FORMATS = (
    ".npz", ".pt", ".pt2", ".pth", ".whl", ".jar", ".docx", ".xlsx", ".xlsm", ".odt", ".ods",
)  # fmt: skip
"""Files that are zip archives and hold no logs."""


class Unpacked:
    """An archive's members in a folder that is removed with this object, or when the process ends.

    Attributes:
        folder: where they are; it is named as the archive is, without its suffixes.
        refused: (member, why it is not there) each; the member is empty where it is the archive.
    """

    def __init__(self, archive: Path, kind: Kind) -> None:
        scratch = tempfile.mkdtemp(prefix="tencost-archive-")
        weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
        self.folder = Path(scratch) / (archive.name.split(".")[0] or "logs")
        self.folder.mkdir()
        try:
            self.refused = unpack_members(archive, self.folder, kind, most_bytes(archive))
        except OSError as error:
            raise RecordError(f"expected to unpack {archive} in {scratch}: {error}") from error


def archive_kind(path: Path, head: bytes) -> Kind | None:
    """Return what archive a file is, None for any other file.

    Args:
        path: the file.
        head: its first bytes, decompressed.
    """
    magic = _magic(path)
    if magic.startswith(_ZIP):
        return None if path.suffix in _ZIPPED_FORMATS else "zip"
    try:
        tarfile.TarInfo.frombuf(head[:_BLOCK], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return None
    if magic.startswith(GZIP):
        return "tar.gz"
    return "tar.zst" if magic.startswith(ZSTANDARD) else "tar"


def unread_kind(path: Path) -> str:
    """Return the name of a compression or kind of archive that is not read; empty for any other file."""
    magic = _magic(path)
    return next((name for start, name in _UNREAD.items() if magic.startswith(start)), "")


def _magic(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(8)
