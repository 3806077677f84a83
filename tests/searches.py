"""A search over one setting, for tests."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from optuna.distributions import IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, BruteForceSampler

from tencost.workers.parallel.search import Search


def grid(trials: int) -> BaseSampler:
    """Return a sampler that tries every combination."""
    with warnings.catch_warnings(category=ExperimentalWarning, action="ignore"):
        return BruteForceSampler(seed=trials)


def a_search(folder: Path, **settings: Any) -> Search:
    """Return a search for the largest x from 1 to 4."""
    space = {"x": IntDistribution(1, 4)}
    return Search(
        **{
            "name": "small", "folder": folder, "space": space, "trials": 9, "sampler": grid, "maximize": True,
            "jobs": 1, **settings,
        }
    )  # fmt: skip
