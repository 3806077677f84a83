"""What a process was started with, of one that may end while a test looks at it."""

from __future__ import annotations

import psutil


def words_of(process: psutil.Process) -> str:
    """Return the command of a process, its words joined by blanks; nothing of one that is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
