"""What shares slow fixtures runs in one worker of pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_xdist_sees_the_groups() -> None:
    """Unseen, each test of the pipeline may start in a worker and a project of its own, and the stages never run."""
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-n", "1", "--dist", "loadgroup", "-v", "-p", "no:cacheprovider",
            "tests/repo/test_groups.py", "-k", "named",
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_named@test_groups" in done.stdout, done.stdout


@pytest.mark.slow
def test_named(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("dist", "no") == "loadgroup" and hasattr(
        request.config, "workerinput"
    ):
        assert request.node.nodeid.endswith("@test_groups")
