"""Which code runs in a process: the workers of one command have it in common, and a compiled library is of it."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import tencost
from tencost import __version__


@cache
def code() -> str:
    """Return the version of tencost and the sha256, first 12 hex digits, of its modules as they lie on this machine.

    The version alone stays the same from one release to the next, whatever is changed in between.
    """
    digest = hashlib.sha256()
    package = Path(tencost.__file__).parent
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.c")]):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"{__version__} (sources {digest.hexdigest()[:12]})"
