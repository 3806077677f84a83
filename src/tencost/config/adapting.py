"""How a registered model is adapted to new hardware: settings, a sentence under each. Part of config.py's schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tencost.config.checking import within


class AdaptMode(Enum):
    """What becomes of the model."""

    zero_shot = "zero_shot"
    """Taken as it is; nothing is measured."""
    residual = "residual"
    """Left as it is, with a correction beside it that the labels teach."""
    fine_tune = "fine_tune"
    """Trained on, a little, by the labels: its own trees get more trees."""
    scratch = "scratch"
    """Not used but for what its family is: a new model from the labels alone, to compare with."""


@dataclass(kw_only=True)
class AdaptConfig:
    """How a registered model is adapted to new hardware."""

    mode: AdaptMode = AdaptMode.residual
    """zero_shot, residual, fine_tune or scratch."""
    measure: bool = False
    """Measure here, though the dataset has records of the hardware; without such records it is measured anyway."""
    programs_per_task: int = 8
    """Programs of a task that are labelled, where there are enough tasks: only programs of one task are compared."""
    uncertain_share: float = 0.4
    """Share of the labels that goes, last, to what models of the labels so far disagree about."""
    counts: list[int] = field(default_factory=lambda: [0, 50, 100, 500, 5000])
    """curve: the numbers of labels."""

    def __post_init__(self) -> None:
        within("adapt", self, programs_per_task="[2, inf)", uncertain_share="[0, 1)")
        within("adapt", self, counts="[0, inf)")
