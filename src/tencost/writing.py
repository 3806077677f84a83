"""Outputs that appear whole or not at all, whatever kills the process that writes them.

What is written grows in a hidden folder beside its place, `.<name>.<process>-<token>.partial`, and is
renamed when it is whole. What a killed process left there goes when the same place is written next.
"""

from __future__ import annotations

import errno
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

_OLD = "replaced"
_MINE: set[Path] = set()
"""Folders that this process is writing in: its number may be that of a killed one."""


@contextmanager
def whole_file(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a path (of the same suffix) to write to; what is there at the end becomes `path`.

    Where the block raises, an older file at `path` stays as it is.

    Args:
        path: of the file; its folder is made where it is not there.
        durable: whether the file has to survive a power cut once this returns, for what took hours.
    """
    with scratch_beside(path) as scratch:
        new = scratch / f"new{path.suffix}"
        yield new
        if durable:
            _flush(new)
        new.replace(path)
        if durable:
            _flush(path.parent)


@contextmanager
def whole_files(*paths: Path) -> Iterator[list[Path]]:
    """Yield a path to write to for each file, see :func:`whole_file`; at the end all take their places, the first last.

    Where the block raises, the older files stay as they are.

    Raises:
        IsADirectoryError: a folder lies in a file's place.
    """
    for path in filter(Path.is_dir, paths):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with ExitStack() as stack:
        yield [stack.enter_context(whole_file(path)) for path in paths]


def shown_path(path: Path, root: Path) -> str:
    """Return how a report names a path: from the root where it lies below, else as it is."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def append_line(path: Path, line: str) -> None:
    """Add a line to a text file, made with its folder where it is not there.

    A last line that a kill cut off is ended first: the new line would be lost with it.

    Args:
        path: of the file, UTF-8.
        line: without its line feed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
        start = "" if not size or file.read(1) == b"\n" else "\n"
        file.write(f"{start}{line}\n".encode())


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; at the end it takes the place of `path`, an older folder there goes.

    Where the block raises, an older folder at `path` stays as it is.
    """
    with scratch_beside(path) as scratch:
        new = scratch / "new"
        new.mkdir()
        yield new
        put_folder(new, path, scratch)


@contextmanager
def scratch_beside(path: Path) -> Iterator[Path]:
    """Yield an empty hidden folder beside `path`, on its file system, that is gone afterwards."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear(path)
    scratch = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    _MINE.add(scratch)  # first: another thread may be clearing
    try:
        scratch.mkdir()
        yield scratch
    finally:
        _MINE.discard(scratch)
        shutil.rmtree(scratch, ignore_errors=True)


def put_folder(new: Path, path: Path, scratch: Path) -> None:
    """Put a folder inside `scratch`, which :func:`scratch_beside` gave for `path`, in the place of `path`."""
    if path.exists():
        path.rename(scratch / _OLD)
    new.rename(path)


def _clear(path: Path) -> None:
    """Remove leftovers of killed processes beside `path`; put it back if one had moved it away between two renames."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        writer = leftover.name.removesuffix(".partial").rsplit(".", 1)[-1].split("-")[0]
        if not writer.isdigit() or leftover in _MINE:
            continue
        if int(writer) == os.getpid() or not psutil.pid_exists(int(writer)):
            if (leftover / _OLD).exists() and not path.exists():
                (leftover / _OLD).rename(path)
            shutil.rmtree(leftover, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
