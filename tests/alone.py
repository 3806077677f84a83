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

import pytest

AT_MOST = 3
"""More failures than that are no accidents."""
_FAILED = "tencost/failed"
"""Where pytest's cache has the names of the last run's failures, unlike its own `lastfailed` of no run before."""


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Note what failed; a hook of pytest, in conftest.py."""
    reports = [
        report for word in ("failed", "error") for report in terminalreporter.stats.get(word, [])
    ]
    cache: pytest.Cache | None = getattr(config, "cache", None)  # none with -p no:cacheprovider
    if cache is not None:
        cache.set(_FAILED, sorted({_plain(report.nodeid) for report in reports}))


def main(root: Path, words: Sequence[str]) -> int:
    """Return pytest's exit code for the last run's failures, 1 where there are too many.

    Args:
        root: of the tests, where pytest keeps its cache.
        words: options of the run before, and which tests it was to run.
    """
    file = root / ".pytest_cache" / "v" / _FAILED
    failed = json.loads(file.read_text()) if file.exists() else []
    if not 0 < len(failed) <= AT_MOST:
        return 1
    names = ", ".join(failed)
    sys.stdout.write(f"Alone, once more: {names}\n")
    sys.stdout.flush()
    options = [word for word in words if not (root / word.partition("::")[0]).exists()]
    command = [sys.executable, "-m", "pytest", *options, *failed]
    code = subprocess.run(command, cwd=root, check=False).returncode
    if code == 0:
        sys.stdout.write(f"Failed beside other tests and passed alone, to be mended: {names}\n")
    return code


def _plain(name: str) -> str:
    """Return a test's name without the group that pytest-xdist's loadgroup puts after it."""
    test, at, group = name.rpartition("@")
    return test if at and "]" not in group and "/" not in group else name


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[1], sys.argv[1:]))
