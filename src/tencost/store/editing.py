"""Changing a record store beyond adding to it."""

from __future__ import annotations

import tempfile

from tencost.errors import RecordError
from tencost.store.layout import Folder


def require_writable(uri: str) -> None:
    """Check that a local store can be written, before long work whose result it is to take; make its folder.

    Raises:
        RecordError: it cannot.
    """
    folder = Folder(uri).local
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RecordError(
            f"expected a place for a record store at {uri} that can be written: {error}. Name another: --store URI"
        ) from error
