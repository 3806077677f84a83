"""Modules that people import are found under their old names, with a warning."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "line",
    [
        "from tencost.measure.runner import WarmBuilder, WarmRunner",
        "from tencost.records.store import RecordStore",
        "from tencost.records.lorien import AutoTVMRecords, commit, query",
    ],
)
def test_an_old_import_works_and_warns(line: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning", "-c", line],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert " now" in done.stderr


def test_the_rpc_server_starts_under_its_old_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tencost.measure.server", "--help"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--tracker" in done.stdout
