"""Programs by rule depend on the vectors they are written for: each test that runs them does so for AVX2, too."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def target(vector_target: dict[str, Any]) -> dict[str, Any]:
    return vector_target
