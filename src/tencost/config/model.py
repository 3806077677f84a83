"""Settings that all model families share; a family's further settings are in its module, which is found by name."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omegaconf import MISSING

from tencost.config.checking import instantiate
from tencost.config.parts import FAMILIES
from tencost.errors import ConfigError


class Pool(Enum):
    """Whose records a model is trained on."""

    own = "own"
    """The records of the hardware that the model is for."""
    all = "all"
    """The records of every hardware in the dataset, test programs excluded on all of them."""


@dataclass(kw_only=True)
class ModelConfig:
    """A model family and its hyper-parameters; each family adds its own fields."""

    family: str = MISSING
    """Name of the family (a module of tencost.models.programs.families)."""
    reads: list[str] = field(default_factory=list)
    """Feature sets that the family can be trained on."""
    pool: Pool = Pool.own
    """Whose records it is trained on."""
    reference: bool = False
    """A baseline that is compared with but never registered."""


def model_config(values: Any, prefix: str = "model.") -> Any:
    """Check a family's settings against its own dataclass.

    Raises:
        ConfigError: no such family, an unknown key, a wrong type or a value out of range.
    """
    family = values.get("family") if isinstance(values, dict) else None
    schema = FAMILIES.load(family, f"{prefix}family").config
    try:
        return instantiate(schema, values, prefix)
    except ConfigError as error:
        # A family's checks write `model.`; the settings of a blend's member have a longer path.
        raise ConfigError(re.sub(r"^model\.", prefix, str(error))) from error
