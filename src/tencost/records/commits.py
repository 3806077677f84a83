"""Commits to a Delta Lake table that others write to as well: tried again until no other writer was faster."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from deltalake.exceptions import CommitFailedError

from tencost.errors import RecordError

ATTEMPTS = 20
"""Commits tried before a writer gives up because others keep being faster."""
Result = TypeVar("Result")


def retry_commit(commit: Callable[[], Result], uri: str, attempts: int = ATTEMPTS) -> Result:
    """Call `commit`, which reads the table anew each time, until it goes through; return its result.

    Raises:
        RecordError: others were faster every time.
    """
    for attempt in range(attempts):
        try:
            return commit()
        except CommitFailedError as error:
            last = error
            time.sleep(random.uniform(0.5, 1.0) * min(2.0, 0.02 * 2**attempt))
    raise RecordError(
        f"expected to commit to {uri} within {attempts} attempts; other writers were faster each time ({last}). Run "
        "the command again."
    )
