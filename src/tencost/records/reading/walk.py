"""The one walk over what a person wants to import: files, folders to the bottom, archives as the folders they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tencost.config.parts import Parts
from tencost.errors import RecordError
from tencost.records.fetch.unpack import Kind
from tencost.records.reading.archives import Unpacked, archive_kind, unread_kind
from tencost.records.reading.opening import MOST_BLANK_BYTES, later_heads, read_head
from tencost.store.rejects import Reject

UNKNOWN_FORMAT = "no format that is known"


@dataclass(frozen=True)
class Source:
    """A file to read, or a folder that one reader reads as a whole.

    Attributes:
        path: where it is; a member of an archive is in a temporary folder.
        base: the folder that was imported, or that of an imported file.
        name: its path below `base`; the archive's name stands before that of a member.
        inner: its path below the folder or archive that it was found in; empty of an imported file.
        head: the first bytes of a file, decompressed; None: not read yet.
    """

    path: Path
    base: Path
    name: str
    inner: str = ""
    head: bytes | None = None

    @property
    def place(self) -> Path:
        """The path that a person knows; of a member, that of its archive and its name in there."""
        return self.base / self.name


class Walk:
    """Finds sources; hidden files of folders are left out, and a file that is named twice comes once.

    Attributes:
        rejects: what cannot be opened or unpacked.
        unpacked: archives, whose members are there as long as this object.
    """

    def __init__(
        self, is_whole: Callable[[Path], bool] = lambda _: False, *, full_names: bool = False
    ) -> None:
        """Prepare a walk.

        Args:
            is_whole: says which folders are read as a whole.
            full_names: rejects have the path that a person knows, not the one below what was imported.
        """
        self._full_names = full_names
        self.rejects: list[Reject] = []
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
                yield from self._folder(top, top, "")
            elif top.is_file():
                yield from self._file(top, top.parent, top.name)
            else:  # a pipe may never end
                kind = "neither a file nor a folder" if top.exists() else "nothing"
                raise RecordError(f"expected a file or a folder of {noun} at {top}, found {kind}")

    def _folder(self, folder: Path, base: Path, archive: str) -> Iterator[Source]:
        if self._is_whole(folder):
            yield Source(folder, base, archive)
            return
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                inner = path.relative_to(folder).as_posix()
                yield from self._file(path, base, archive + inner, inner, packed=bool(archive))

    def _file(
        self, path: Path, base: Path, name: str, inner: str = "", *, packed: bool = False
    ) -> Iterator[Source]:
        try:
            head = read_head(path)
            kind = archive_kind(path, head)
            if kind is not None:
                members = self._archive(path, base, name, kind, packed)
        except RecordError as error:
            self._reject(base, name, str(error))
            return
        if kind is None:
            yield Source(path, base, name, inner, head)
        else:
            yield from members

    def _archive(
        self, path: Path, base: Path, name: str, kind: Kind, packed: bool
    ) -> Iterator[Source]:
        """Unpack an archive and return its sources.

        Raises:
            RecordError: it lies in an archive, or there is no place to unpack it.
        """
        if packed:
            raise RecordError(f"an archive ({kind}) in an archive is not opened: unpack it first")
        unpacked = Unpacked(path, kind)
        self.unpacked.append(unpacked)
        for member, why in unpacked.refused:
            file = f"{name}/{member}" if member else name
            shown = file if file.isprintable() else ascii(file)
            self._reject(base, shown, f"not unpacked: {why}")
        folder, archive = unpacked.folder, f"{name}/"
        inside = list(folder.iterdir())
        # An archive mostly holds one folder, which is the one that was packed.
        if len(inside) == 1 and inside[0].is_dir() and self._is_whole(inside[0]):
            folder, archive = inside[0], f"{archive}{inside[0].name}/"
        return self._folder(folder, base, archive)

    def _reject(self, base: Path, name: str, reason: str) -> None:
        file = str(base / name) if self._full_names else name
        self.rejects.append(Reject(file, 0, reason))


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
    return next(filter(None, matches), ("", UNKNOWN_FORMAT))


def _match(formats: Parts, path: Path, head: bytes) -> tuple[str, str] | None:
    for name, known in formats.all().items():
        if what := known.part(head):
            return "", f"{what}, read with its records"
        if known.recognizes(path, head):
            return name, ""
    return None
