"""Run the tests that failed beside others once more, alone: `make test` does it where few of them failed.

On a busy host a test may find a process half a second later than it looks for it. One that passes alone is named, so
that somebody makes it wait for what it needs; one that fails alone, too, has found a defect.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

AT_MOST = 3
"""More failures than that are no accidents."""


def main(root: Path, words: Sequence[str]) -> int:
    """Return pytest's exit code for the last run's failures, 1 where there are too many.

    Args:
        root: of the tests, where pytest keeps its cache.
        words: those of the run before.
    """
    file = root / ".pytest_cache" / "v" / "cache" / "lastfailed"
    failed = list(json.loads(file.read_text())) if file.exists() else []
    if not 0 < len(failed) <= AT_MOST:
        return 1
    names = ", ".join(failed)
    sys.stdout.write(f"Alone, once more: {names}\n")
    sys.stdout.flush()
    code = subprocess.run(
        [sys.executable, "-m", "pytest", "--last-failed", *words], cwd=root, check=False
    ).returncode
    if code == 0:
        sys.stdout.write(f"Failed beside other tests and passed alone, to be mended: {names}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[1], sys.argv[1:]))
