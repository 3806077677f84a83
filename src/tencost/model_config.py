"""The model families' settings: one dataclass a family, a sentence under each field. Part of config.py's schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omegaconf import MISSING

from tencost.checking import at_least, instantiate, one_of
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
    """Name of the family (see FAMILY_CONFIGS)."""
    reads: list[str] = field(default_factory=list)
    """Feature sets that the family can be trained on."""
    pool: Pool = Pool.own
    """Whose records it is trained on."""
    reference: bool = False
    """A baseline that is compared with but never registered."""


@dataclass(kw_only=True)
class XgbConfig(ModelConfig):
    """Gradient-boosted trees over a summary of the program, or over its stores with a packed sum."""

    view: str = "program"
    """program: one row of trees' input a program; stores: one a buffer store, predictions summed (TenSet, TVM)."""
    objective: str = "pairwise"
    """pairwise, lambdarank, listwise or regression."""
    label_power: float = 0.5
    """pairwise and lambdarank: exponent of the label difference that weighs a pair."""
    temperature: float = 0.25
    """listwise: temperature of the labels' softmax."""
    num_rounds: int = 300
    """Boosting rounds at most."""
    early_stopping_rounds: int = 0
    """Stop when the validation split has not improved for so many rounds; 0 never stops."""
    max_depth: int = 6
    """Depth of a tree."""
    eta: float = 0.06
    """Learning rate."""
    gamma: float = 0.0
    """Least loss reduction that justifies a split."""
    min_child_weight: float = 1.0
    """Least sum of hessians in a leaf."""
    subsample: float = 0.7
    """Share of rows drawn per tree."""
    colsample: float = 0.4
    """Share of columns drawn per tree."""
    reg_lambda: float = 1.0
    """L2 penalty of leaf weights."""
    max_bin: int = 128
    """Histogram bins a column."""
    num_models: int = 1
    """Boosters averaged in one model, each from its own seed."""
    num_threads: int = 1
    """Threads while training; scores are served on one."""

    def __post_init__(self) -> None:
        one_of("model.view", self.view, ("program", "stores"))
        one_of(
            "model.objective", self.objective, ("pairwise", "lambdarank", "listwise", "regression")
        )
        at_least(
            "model",
            self,
            num_rounds=1,
            num_models=1,
            num_threads=1,
            max_depth=1,
            early_stopping_rounds=0,
        )


@dataclass(kw_only=True)
class MlpConfig(ModelConfig):
    """Segment-sum MLP over store rows (TenSet), with the program's summary beside them."""

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
    tasks_per_batch: int = 6
    """Groups (workload and hardware) whose programs make up one batch."""
    gradient_clip: float = 1.0
    """Largest norm of the gradient."""
    num_models: int = 1
    """Networks averaged in one model, each from its own seed."""
    num_threads: int = 1
    """Threads while training."""

    def __post_init__(self) -> None:
        one_of(
            "model.objective", self.objective, ("pairwise", "lambdarank", "listwise", "regression")
        )
        one_of("model.beside", self.beside, ("constants", "summary", "nothing"))
        at_least("model", self, hidden=1, epochs=1, tasks_per_batch=1, num_models=1, num_threads=1)


@dataclass(kw_only=True)
class TlpConfig(MlpConfig):
    """Attention over schedule primitives (TLP)."""

    hidden: int = 64
    """Width of the steps' encoding; a multiple of heads."""
    beside: str = "summary"
    """What is read beside the attention over steps: constants, summary (first, sum, maximum of steps), nothing."""
    learning_rate: float = 1.5e-3
    """Largest step size of AdamW; one cycle up and down."""
    epochs: int = 25
    """Passes over the training split."""
    dropout: float = 0.1
    """Share of hidden units dropped while training."""
    layers: int = 1
    """Attention blocks."""
    heads: int = 4
    """Attention heads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("model", self, heads=1, layers=1)
        if isinstance(self.hidden, int) and self.hidden % self.heads:
            raise ConfigError(
                f"model.hidden must be a multiple of model.heads ({self.heads}), found {self.hidden}"
            )


@dataclass(kw_only=True)
class RandomConfig(ModelConfig):
    """Scores that know nothing: a hash of the program's features. The floor."""


@dataclass(kw_only=True)
class TvmXgbConfig(ModelConfig):
    """TVM's own XGBModel recipe, retrained on the same split: the reference."""

    num_rounds: int = 10000
    """Boosting rounds at most (TVM's default)."""
    early_stopping_rounds: int = 50
    """Rounds without a better error on the training data, as TVM does it."""
    num_threads: int = 1
    """Threads while training."""


@dataclass(kw_only=True)
class TvmMlpConfig(ModelConfig):
    """TVM's own MLPModel recipe, retrained on the same split: the reference."""

    epochs: int = 50
    """Passes over the training split (TVM's default)."""
    batch_size: int = 128
    """Programs a batch, tasks mixed, as TVM does it."""
    num_threads: int = 1
    """Threads while training."""


@dataclass(kw_only=True)
class BlendConfig(ModelConfig):
    """Several families, averaged on one scale."""

    members: list[Any] = field(default_factory=list)
    """The families' own settings, each a mapping as in its file in conf/model/; one that reads only `tiles` sees only
    the tile columns."""

    def __post_init__(self) -> None:
        if len(self.members) < 2:
            raise ConfigError(
                f"model.members must name at least 2 families, found {len(self.members)}"
            )
        self.member_configs()

    def member_configs(self) -> list[ModelConfig]:
        """Return the members' settings, checked."""
        return [
            model_config(member, f"model.members.{index}.")
            for index, member in enumerate(self.members)
        ]


FAMILY_CONFIGS: dict[str, type[ModelConfig]] = {
    "xgb": XgbConfig,
    "mlp": MlpConfig,
    "tlp": TlpConfig,
    "random": RandomConfig,
    "tvm_xgb": TvmXgbConfig,
    "tvm_mlp": TvmMlpConfig,
    "blend": BlendConfig,
}


def model_config(values: Any, prefix: str = "model.") -> ModelConfig:
    family = values.get("family") if isinstance(values, dict) else None
    if family not in FAMILY_CONFIGS:
        raise ConfigError(
            f"{prefix}family must be one of {', '.join(FAMILY_CONFIGS)}, found {family!r}"
        )
    return instantiate(FAMILY_CONFIGS[family], values, prefix)
