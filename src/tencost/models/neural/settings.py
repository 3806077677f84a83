"""Settings of the networks that learn by ranking losses. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from tencost.config import ModelConfig
from tencost.config.checking import one_of, within

ACCELERATORS = ("cpu", "gpu", "cuda", "mps", "auto")
"""Lightning's accelerators that have float32 networks."""


@dataclass(kw_only=True)
class NeuralConfig(ModelConfig):
    """What the networks that learn by ranking losses have in common; the defaults are mlp's."""

    objective: str = "pairwise"
    """pairwise, lambdarank, listwise or regression."""
    label_power: float = 0.5
    """pairwise and lambdarank: exponent of the label difference that weighs a pair."""
    temperature: float = 0.25
    """listwise: temperature of the labels' softmax."""
    hidden: int = 128
    """Width of every hidden layer."""
    beside: str = "constants"
    """What is read beside the sum over stores: constants (columns that are the same on every row), summary, nothing."""
    dropout: float = 0.2
    """Share of hidden units dropped while training."""
    learning_rate: float = 1e-3
    """Largest step size of AdamW; one cycle up and down."""
    weight_decay: float = 1e-2
    """Decoupled L2 penalty."""
    epochs: int = 40
    """Passes over the training split."""
    patience: int = 0
    """Epochs without a better validation split before training stops; 0 never stops."""
    tasks_per_batch: int = 12
    """Groups (workload and hardware) whose programs make up one batch."""
    gradient_clip: float = 1.0
    """Largest norm of the gradient."""
    num_models: int = 1
    """Networks averaged in one model, each from its own seed."""
    num_threads: int = 1
    """Threads while training."""
    accelerator: str = "cpu"
    """Lightning's accelerator while training: cpu, gpu, cuda, mps or auto. Ranking always runs on the CPU."""

    def __post_init__(self) -> None:
        one_of(
            "model.objective", self.objective, ("pairwise", "lambdarank", "listwise", "regression")
        )
        one_of("model.accelerator", self.accelerator, ACCELERATORS)
        one_of("model.beside", self.beside, ("constants", "summary", "nothing"))
        within("model", self, label_power="[0, inf)", temperature="(0, inf)", hidden="[1, inf)")
        within("model", self, dropout="[0, 1)", learning_rate="(0, 1]", weight_decay="[0, inf)")
        within("model", self, epochs="[1, inf)", patience="[0, inf)", tasks_per_batch="[1, inf)")
        within("model", self, gradient_clip="(0, inf)", num_models="[1, inf)")
        within("model", self, num_threads="[1, inf)")
