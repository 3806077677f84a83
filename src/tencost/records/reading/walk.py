"""The one walk over what a person wants to import: files, folders to the bottom, archives as the folders they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tencost.config.parts import Parts
from tencost.errors import RecordError
from tencost.records.reading.archives import Unpacked, archive_kind, unread_kind
from tencost.records.reading.opening import MOST_BLANK_BYTES, later_heads, read_head

READ_WITH_RECORDS = "read with its records"
"""Why a file that belongs to another one is no log."""


@dataclass(frozen=True)
class Source:
    """A file to read, a folder that one reader reads as a whole, or what cannot be read.

    Attributes:
        path: where it is; a member of an archive is in a temporary folder.
        base: the folder that was imported, or that of an imported file.
        name: its path below `base`; the archive's name stands before that of a member.
        inner: its path below the folder or archive that it was found in; empty of an imported file.
        head: the first bytes of a file, decompressed; None: not read yet.
        reason: why it cannot be opened or unpacked.
    """

    path: Path
    base: Path
    name: str
    inner: str = ""
    head: bytes | None = None
    reason: str = ""

    @property
    def place(self) -> Path:
        """The path that a person knows; of a member, that of its archive and its name in there."""
        return self.base / self.name

    def require(self) -> None:
        """Raise RecordError where it cannot be opened or unpacked."""
        if self.reason:
            raise RecordError(self.reason)


class Walk:
    """Finds sources; hidden files of folders are left out, and a file that is named twice comes once.

    Attributes:
        unpacked: archives, whose members are there as long as this object.
    """

    def __init__(self, is_whole: Callable[[Path], bool] = lambda _: False) -> None:
        """Prepare a walk; `is_whole` says which folders are read as a whole."""
        self.unpacked: list[Unpacked] = []
        self._is_whole = is_whole

    def sources(self, paths: Sequence[Path], noun: str) -> Iterator[Source]:
        """Yield the sources at some paths, each folder's sorted.

        Args:
            paths: files and folders.
            noun: what is looked for, for messages.

        Raises:
            RecordError: a path does not exist, or is neither a file nor a folder.
        """
        for top in dict.fromkeys(paths):
            if top.is_dir():
                yield from self._folder(Source(top, top, ""))
            elif top.is_file():
                yield from self._file(Source(top, top.parent, top.name))
            else:  # a pipe may never end
                kind = "neither a file nor a folder" if top.exists() else "nothing"
                raise RecordError(f"expected a file or a folder of {noun} at {top}, found {kind}")

    def _folder(self, folder: Source, *, packed: bool = False) -> Iterator[Source]:
        if self._is_whole(folder.path):
            yield folder
            return
        for path in sorted(folder.path.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                inner = path.relative_to(folder.path).as_posix()
                source = Source(path, folder.base, folder.name + inner, inner)
                yield from self._file(source, packed=packed)

    def _file(self, source: Source, *, packed: bool = False) -> Iterator[Source]:
        try:
            head = read_head(source.path)
            kind = archive_kind(source.path, head)
            if kind is not None and packed:
                reason = f"an archive ({kind}) in an archive is not opened: unpack it first"
                yield replace(source, reason=reason)
            elif kind is not None:
                yield from self._archive(source, Unpacked(source.path, kind))
            else:
                yield replace(source, head=head)
        except RecordError as error:
            yield replace(source, reason=str(error))

    def _archive(self, archive: Source, unpacked: Unpacked) -> Iterator[Source]:
        self.unpacked.append(unpacked)
        for member, why in unpacked.refused:
            name = f"{archive.name}/{member}" if member else archive.name
            printable_name = name if name.isprintable() else ascii(name)
            yield replace(archive, name=printable_name, reason=f"not unpacked: {why}")
        folder, name = unpacked.folder, f"{archive.name}/"
        inside = list(folder.iterdir())
        # An archive mostly holds one folder, which is the one that was packed.
        if len(inside) == 1 and inside[0].is_dir() and self._is_whole(inside[0]):
            folder, name = inside[0], f"{name}{inside[0].name}/"
        yield from self._folder(Source(folder, archive.base, name), packed=True)


def recognize(
    formats: Parts, path: Path, head: bytes | None = None, *, later: bool = True
) -> tuple[str, str]:
    """Return (the name of a file's format, ""), or ("", why it is of none); at most one format recognizes a file.

    Args:
        formats: the formats.
        path: the file.
        head: its first bytes, decompressed; None: not read yet.
        later: whether its next lines may tell where the first is damaged.

    Raises:
        RecordError: the file cannot be opened, is to be unpacked first, or begins with blank lines only.
    """
    head = read_head(path) if head is None else head
    if head and not head.strip():
        raise RecordError(
            f"more than {MOST_BLANK_BYTES} bytes of blank lines at its beginning: not read on"
        )
    if match := _match(formats, path, head):
        return match
    if unread := unread_kind(path):
        raise RecordError(
            f"{unread} is not read: unpack it first (gzip, zstd, tar and zip are read)"
        )
    heads = later_heads(path) if later else ()
    matches = (_match(formats, path, line) for line in heads)
    return next(filter(None, matches), ("", "no format that is known"))


def _match(formats: Parts, path: Path, head: bytes) -> tuple[str, str] | None:
    for name, file_format in formats.all().items():
        if what := file_format.part(head):
            return "", f"{what}, {READ_WITH_RECORDS}"
        if file_format.recognizes(path, head):
            return name, ""
    return None
