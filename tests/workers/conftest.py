"""The small collection for the tests of this room."""

from __future__ import annotations

from pathlib import Path

import pytest

from small_collection import *  # noqa: F403


@pytest.fixture
def built_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a builder writes down lies in the test's own folder: no tuner is there to remove it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
