"""Outputs that appear whole or not at all, whatever kills the process that makes them."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Yield an empty hidden folder beside `folder`, removed at the end; fill it, then `publish`.

    What killed runs left there is removed first; running processes keep theirs.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f".{glob.escape(folder.name)}.*.partial"):
        process = left.name.removesuffix(".partial").rsplit(".", 1)[-1]
        if process.isdigit() and (
            int(process) == os.getpid() or not psutil.pid_exists(int(process))
        ):
            shutil.rmtree(left)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def publish(content: Path, folder: Path, scratch: Path) -> None:
    """Put `content`, a folder inside `scratch`, in the place of `folder`."""
    if folder.exists():
        folder.rename(scratch / "replaced")
    content.rename(folder)
