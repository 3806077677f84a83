"""What a person can choose, typed: one dataclass per group of `conf/`, a sentence under each field.

`conf/` holds the values, this module their schema: unknown keys and wrong types fail when a file is composed, and
`__post_init__` checks what a type cannot say. Hydra composes; :func:`resolve` turns the result into :class:`Config`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from tencost.errors import ConfigError


class FeatureKind(Enum):
    """How a program is turned into rows."""

    per_store = "per_store"
    """TVM's PerStoreFeature: one row a buffer store of the lowered program."""
    trace = "trace"
    """One row a schedule primitive, straight from the trace, no lowering."""
    tiles = "tiles"
    """One row a program: the tile structure that its trace decides, no lowering."""
    per_store_tiles = "per_store_tiles"
    """The rows of per_store with the columns of tiles appended to each."""


class SplitPolicy(Enum):
    """Which records may be learnt from and which are kept for testing."""

    by_network = "by_network"
    """Hold out whole networks; workloads shared with them leave the training side."""
    by_task = "by_task"
    """Hold out workload families, assigned by hash so that membership survives growth."""
    by_hardware = "by_hardware"
    """Hold out whole hardware."""
    by_time = "by_time"
    """Hold out the latest records."""
    within_task = "within_task"
    """Random programs of every task: leaks by design, for comparison with TenSet's default only."""


class Pool(Enum):
    """Whose records a model is trained on."""

    own = "own"
    """The records of the hardware that the model is for."""
    all = "all"
    """The records of every hardware in the dataset, test programs excluded on all of them."""


@dataclass(kw_only=True)
class DatasetConfig:
    """A raw dataset and where it lives."""

    name: str = MISSING
    """Folder name under data/raw and data/records."""
    source: str = MISSING
    """A folder, an archive (.tar.zst, .tar.gz, .zip) or an https:// URL of one; relative to the project."""
    sha256: str | None = None
    """Expected checksum of the archive in hex; None skips the check (folders have none)."""
    description: str = ""
    """One sentence for the dataset's MLflow entry."""

    def __post_init__(self) -> None:
        if self.sha256 is not None and len(self.sha256) != 64:
            raise ConfigError(f"dataset.sha256 must be 64 hex digits, found {self.sha256!r}")


@dataclass(kw_only=True)
class HardwareConfig:
    """A device that programs are measured on, and the target they are compiled for."""

    name: str = MISSING
    """Name of the hardware: partition of the record store, part of the registered model's name."""
    description: str = ""
    """Where it stands and what is special about it."""
    target: dict[str, Any] = field(default_factory=dict)
    """TVM target as a mapping: kind, mcpu, num-cores, ..."""
    model: str = "unknown"
    """Product name of the device, as far as it is known."""
    cores: int = 1
    """Cores a program may use."""
    simd_bits: int = 128
    """Width of the widest vector instructions that the target allows, bits."""
    l1d_kib: float = 32.0
    """Level-1 data cache per core, KiB."""
    l2_kib: float = 256.0
    """Level-2 cache per core, KiB."""
    l3_kib: float = 0.0
    """Level-3 cache reachable from a core, KiB; 0 if there is none."""
    clock_ghz: float | None = None
    """Nominal clock in GHz; None where it cannot be read."""
    requires: list[str] = field(default_factory=list)
    """Instruction sets, in /proc/cpuinfo's spelling, without which its programs crash."""
    detect: bool = False
    """Fill every field above from the host (hardware=local)."""

    def device_columns(self) -> dict[str, float]:
        """Return the attributes that can be appended to features: log2 of cores, SIMD bits and cache KiB."""
        import math

        amounts = {
            "device_log2_cores": self.cores,
            "device_log2_simd_bits": self.simd_bits,
            "device_log2_l1d_kib": self.l1d_kib,
            "device_log2_l2_kib": self.l2_kib,
            "device_log2_l3_kib": self.l3_kib,
        }
        return {name: math.log2(1.0 + amount) for name, amount in amounts.items()}


@dataclass(kw_only=True)
class FeaturesConfig:
    """A feature set."""

    name: str = MISSING
    """Name of the set; also its file name under data/features."""
    kind: FeatureKind = MISSING
    """Which extractor makes the rows."""
    device_columns: bool = False
    """Append the hardware's attributes (cores, SIMD width, caches) to every row."""
    max_steps: int = 64
    """trace only: schedule primitives kept per program, the first ones."""
    vocabulary_buckets: int = 16
    """trace only: hash buckets for names (blocks, annotations, storage scopes)."""
    max_numbers: int = 8
    """trace only: numeric parameters kept per primitive."""


@dataclass(kw_only=True)
class SplitConfig:
    """How records are divided into train, valid and test."""

    policy: SplitPolicy = MISSING
    """The rule that assigns records."""
    test: list[str] = field(default_factory=list)
    """by_network: networks held out; by_hardware: hardware held out."""
    test_fraction: float = 0.2
    """by_task, by_time, within_task: share of families, time or programs held out."""
    valid_fraction: float = 0.15
    """Share of the remaining workload families kept for early stopping."""
    seed: int = 0
    """Salt of the hashes that assign families."""

    def __post_init__(self) -> None:
        for name in ("test_fraction", "valid_fraction"):
            value = getattr(self, name)
            if not (isinstance(value, float) and 0.0 <= value < 1.0):
                raise ConfigError(f"split.{name} must be in [0, 1), found {value!r}")


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, found {value!r}")


def _at_least(prefix: str, config: object, **least: int) -> None:
    for name, bound in least.items():
        value = getattr(config, name)
        if isinstance(value, int) and value < bound:
            raise ConfigError(f"{prefix}.{name} must be at least {bound}, found {value}")


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
        _one_of("model.view", self.view, ("program", "stores"))
        _one_of(
            "model.objective", self.objective, ("pairwise", "lambdarank", "listwise", "regression")
        )
        _at_least(
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
        _one_of(
            "model.objective", self.objective, ("pairwise", "lambdarank", "listwise", "regression")
        )
        _one_of("model.beside", self.beside, ("constants", "summary", "nothing"))
        _at_least("model", self, hidden=1, epochs=1, tasks_per_batch=1, num_models=1, num_threads=1)


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
        _at_least("model", self, heads=1, layers=1)
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
            _model_config(member, f"model.members.{index}.")
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


@dataclass(kw_only=True)
class NetworkInput:
    """One input tensor of a network."""

    shape: list[int] = MISSING
    """Dimensions, batch first."""
    dtype: str = "float32"
    """float32 or int64."""
    high: int = 2
    """int64 only: values are drawn from [0, high)."""


@dataclass(kw_only=True)
class NetworkConfig:
    """A network, defined by a transformers architecture and configuration, with random weights."""

    name: str = MISSING
    """Name of the network."""
    architecture: str = MISSING
    """Model class of transformers, for example BertModel."""
    config_class: str = MISSING
    """Configuration class of transformers, for example BertConfig."""
    config: dict[str, Any] = field(default_factory=dict)
    """Arguments of the configuration class."""
    inputs: dict[str, NetworkInput] = field(default_factory=dict)
    """Input tensors by argument name."""
    output: str = "last_hidden_state"
    """Field of the model's output that is compared and timed."""
    seed: int = 0
    """Seed of the weights and of the inputs."""


@dataclass(kw_only=True)
class TunerConfig:
    """How a network is tuned."""

    trials: int = 512
    """Programs measured in all."""
    trials_per_round: int = 32
    """Programs measured before the model is asked again."""
    trials_per_task: int | None = None
    """Programs measured for one task at most; None leaves it to the task scheduler."""
    learn: bool = True
    """Learn from the measurements (a residual over the registered model); False keeps the model frozen."""
    min_mflop: float = 0.5
    """Tasks with fewer MFLOP are left to the default schedule."""
    population: int = 512
    """Programs in a generation of the evolutionary search."""
    generations: int = 4
    """Generations a round."""
    number: int = 3
    """Runs averaged into one time."""
    repeat: int = 3
    """Times per program."""
    min_repeat_ms: int = 10
    """Least duration of one time, milliseconds."""
    workdir: str = "tuned"
    """Where databases, curves and reports of tuning runs are kept, a folder per network and hardware."""
    seed: int = 0
    """Seed of the search."""

    def __post_init__(self) -> None:
        for name in ("trials", "trials_per_round", "population", "repeat", "number"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise ConfigError(f"tuner.{name} must be at least 1, found {value}")


@dataclass(kw_only=True)
class PathsConfig:
    """Where the stages read and write, relative to the project's root."""

    raw: str = "data/raw"
    """Raw datasets, one folder each."""
    records: str = "data/records"
    """Record stores."""
    features: str = "data/features"
    """Feature files."""
    splits: str = "data/splits"
    """Split files."""
    models: str = "data/models"
    """Trained bundles."""
    reports: str = "data/reports"
    """Metrics, predictions and plots."""
    registry: str = "data/registry"
    """Verdicts of the promotion rule."""
    store: str = "data/store"
    """The live record store that tuning runs write to."""


@dataclass(kw_only=True)
class Config:
    """Everything a stage may need."""

    dataset: DatasetConfig = MISSING
    """The raw dataset."""
    hardware: HardwareConfig = MISSING
    """The hardware that a model is for, or that is tuned on."""
    features: FeaturesConfig = MISSING
    """The feature set."""
    split: SplitConfig = MISSING
    """How records are divided."""
    model: Any = None
    """The model family: one of FAMILY_CONFIGS."""
    network: NetworkConfig = MISSING
    """The network to tune."""
    tuner: TunerConfig = MISSING
    """How it is tuned."""
    paths: PathsConfig = field(default_factory=PathsConfig)
    """Where the stages read and write."""
    seeds: list[int] = field(default_factory=lambda: [0])
    """Seeds that a model is trained with, one bundle each."""
    jobs: int | None = None
    """Worker processes; None uses every core."""
    model_uri: str | None = None
    """tune: the registered model or bundle to use; None means the hardware's champion, if there is one."""
    experiment_name: str = "tencost"
    """MLflow experiment."""
    split_name: str = "by_network"
    """Name of the chosen split: a folder under data/splits."""
    model_name: str = "xgb"
    """Name of the chosen model configuration: part of folder and run names."""


def project_root(start: Path | None = None) -> Path:
    """Return the nearest folder at or above `start` that holds `conf/`, as DVC finds its root.

    Raises:
        ConfigError: no such folder.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / "conf" / "config.yaml").is_file():
            return folder
    raise ConfigError(
        f"expected a folder conf/ with config.yaml in {here} or above it, found none. Run the command inside a "
        "tencost project, or start one with `tencost init`."
    )


def resolve(composed: DictConfig) -> Config:
    """Check a composed Hydra configuration against the schema and return it as dataclasses.

    Raises:
        ConfigError: an unknown key (with the valid ones), a wrong type, or a value out of range.
    """
    container = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(container, dict)
    plain = {str(key): value for key, value in container.items()}
    plain.pop("hydra", None)
    model = plain.pop("model", None)
    resolved = _instantiate(Config, plain, "")
    resolved.model = _model_config(model)
    return resolved


def _model_config(values: Any, prefix: str = "model.") -> ModelConfig:
    family = values.get("family") if isinstance(values, dict) else None
    if family not in FAMILY_CONFIGS:
        raise ConfigError(
            f"{prefix}family must be one of {', '.join(FAMILY_CONFIGS)}, found {family!r}"
        )
    return _instantiate(FAMILY_CONFIGS[family], values, prefix)


def _instantiate(schema: type[Any], values: dict[str, Any], prefix: str) -> Any:
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), values)
        return OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ConfigError(_explain(error, schema, prefix)) from error


def _explain(error: OmegaConfBaseException, schema: type[Any], prefix: str) -> str:
    where = f"{prefix}{error.full_key or error.key or ''}"
    first_line = str(error.msg or error).splitlines()[0]
    message = f"configuration: {where}: {first_line}"
    parent: Any = error.parent_node
    node_type = OmegaConf.get_type(parent) if parent is not None else schema
    unknown_key = isinstance(error, ConfigKeyError | ConfigAttributeError)
    if unknown_key and isinstance(node_type, type) and hasattr(node_type, "__dataclass_fields__"):
        valid = ", ".join(sorted(item.name for item in fields(node_type)))
        message += f". Valid keys here: {valid}"
    return message
