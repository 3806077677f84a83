"""What TVM's C++ side writes to standard error, past Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def native_messages_to(path: Path) -> Iterator[None]:
    """Send what TVM's C++ side writes to stderr into a file, at its end; what the terminal shows is ours."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
