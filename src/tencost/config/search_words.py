"""The words of a search for Hydra: ``hydra/sweeper: optuna`` with its samplers and pruners.

They are those of the package hydra-optuna-sweeper, in whose place they stand; a sampler and a pruner take any argument
of their class in Optuna. What they ask for is done by :mod:`tencost.train.sweeps`.
"""

from __future__ import annotations

from typing import Any

SAMPLERS: dict[str, dict[str, Any]] = {
    "tpe": {"_target_": "optuna.samplers.TPESampler", "multivariate": False, "constant_liar": True},
    "random": {"_target_": "optuna.samplers.RandomSampler"},
    "cmaes": {"_target_": "optuna.samplers.CmaEsSampler"},
    "nsgaii": {"_target_": "optuna.samplers.NSGAIISampler"},
    "gp": {"_target_": "optuna.samplers.GPSampler"},
    "qmc": {"_target_": "optuna.samplers.QMCSampler"},
    "grid": {"_target_": "optuna.samplers.BruteForceSampler"},
}
PRUNERS: dict[str, dict[str, Any]] = {
    "none": {"_target_": "optuna.pruners.NopPruner"},
    "halving": {"_target_": "optuna.pruners.SuccessiveHalvingPruner", "reduction_factor": 2},
    "hyperband": {"_target_": "optuna.pruners.HyperbandPruner"},
    "median": {"_target_": "optuna.pruners.MedianPruner"},
}
CHOICES = {"sampler": SAMPLERS, "pruner": PRUNERS}
"""Group below ``hydra/sweeper`` -> its choices. What later versions of Optuna may choose otherwise is named."""

WORDS: dict[str, Any] = {
    "_target_": "tencost.train.sweeps.optuna",  # only compared: Hydra does not run searches
    "direction": "minimize",
    "storage": None,
    "study_name": None,
    "n_trials": 20,
    "n_jobs": 1,
    "max_failure_rate": None,
    "params": None,
    "sampler": None,
    "pruner": None,
}
"""What may stand below ``hydra.sweeper``, with the defaults."""


def register_words() -> None:
    """Make the words known to Hydra, in place of those of an installed hydra-optuna-sweeper."""
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins

    Plugins.instance()  # stores the words of that package
    store = ConfigStore.instance()
    sweeper = {"defaults": ["_self_", {"sampler": "tpe"}, {"pruner": None}], **WORDS}
    store.store(group="hydra/sweeper", name="optuna", node=sweeper, provider="tencost")
    for group, choices in CHOICES.items():
        for name, node in choices.items():
            store.store(group=f"hydra/sweeper/{group}", name=name, node=node, provider="tencost")
