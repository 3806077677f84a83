"""The benchmark's YAML configuration, read as it is, and what its words mean here.

A general file has the sections utils, task, train and model; a file of a positional encoding adds keys to model. What
is named below and has no effect here says so; a key that is not named is an error. ``~`` in paths is the home folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from yaml import YAMLError

from tencost.config.checking import instantiate, one_of, within
from tencost.errors import ConfigError
from tencost.models.networks.families.gnn import WITH_HEADS, GnnConfig

TARGETS = {
    "cpu": "cortex-a76",
    "gpu630": "adreno-630",
    "gpu640": "adreno-640",
    "vpu": "myriad-vpu",
}
"""What the benchmark calls a device in fields (`y_cpu`) and as a target -> hardware. It trains no vpu; here one can."""

_CONVOLUTIONS = {
    "GCN": "gcn", "GIN": "gin", "GINE": "gin", "GAT": "gat", "GPS": "gps", "PERFORMER": "performer",
}  # fmt: skip
_DIRECTED = {"DGCN": "dgcn", "DIIGCN": "digcn", "MSGNN": "magnet"}
_WAYS = {"DI": "directed", "BI": "bidirectional"}
MODELS = (
    *_DIRECTED,
    *(f"{way}{name}" for name in _CONVOLUTIONS for way in ("", *_WAYS)),
)
"""Names of models; letters may be small."""

Source = Mapping[str, Any] | DictConfig | str | Path
"""A configuration: as it was loaded, or the path of its file."""


@dataclass(kw_only=True)
class Utils:
    """Section utils."""

    seed: int = 123
    torch_num_threads: int = 10

    def __post_init__(self) -> None:
        within("utils", self, seed="[0, inf)", torch_num_threads="[1, inf)")


@dataclass(kw_only=True)
class Task:
    """Section task; data_processor has no effect."""

    name: str = "CG"
    type: str = "CG"
    target: str = MISSING
    processed_folder: str = MISSING
    divide_seed: Any = "default"
    raw_data_path: str = MISSING
    data_processor: str = "CGDataProcessor"

    def __post_init__(self) -> None:
        one_of("task.name", self.name, ("CG",))
        one_of("task.target", self.target, tuple(TARGETS))


@dataclass(kw_only=True)
class Scheduler:
    """Section train.scheduler."""

    name: str = "StepLR"
    step_size: int = 100
    gamma: float = 0.95

    def __post_init__(self) -> None:
        one_of("train.scheduler.name", self.name, ("StepLR",))
        within("train.scheduler", self, step_size="[1, inf)", gamma="(0, 1]")


@dataclass(kw_only=True)
class Train:
    """Section train; device has no effect: training runs on the CPU."""

    batch_size: int = MISSING
    epoch: int = 500
    optimizer: str = "Adam"
    scheduler: Scheduler = field(default_factory=Scheduler)
    lr: float = MISSING
    criterion: str = "MSE"
    wandb: int = 0
    train_files: str = MISSING
    directed: int = 0
    device: Any = None

    def __post_init__(self) -> None:
        one_of("train.optimizer", self.optimizer, ("Adam",))
        one_of("train.criterion", self.criterion, ("MSE", "L1", "SmoothL1"))
        within(
            "train", self, batch_size="[1, inf)", epoch="[1, inf)", lr="(0, 1]", directed="[0, 1]"
        )
        if self.wandb != 0:
            raise ConfigError(
                f"train.wandb must be 0, found {self.wandb}: what is tracked here goes to MLflow, with "
                "tencost graphs train"
            )


@dataclass(kw_only=True)
class Head:
    """Section model.mlp_out."""

    num_layer: int = MISSING

    def __post_init__(self) -> None:
        within("model.mlp_out", self, num_layer="[1, inf)")


@dataclass(kw_only=True)
class Embedder:
    """Section model.pe_embedder."""

    name: str = "naive"

    def __post_init__(self) -> None:
        one_of("model.pe_embedder.name", self.name, ("naive",))


@dataclass(kw_only=True)
class Model:
    """Section model; node_input_dim, edge_input_dim, all *_pe_dim_output and eigval_encoder have no effect."""

    name: str = MISSING
    inner_gnn: str | None = None
    hidden_dim: int = MISSING
    num_layers: int = MISSING
    node_input_dim: int = 7
    edge_input_dim: int = 2
    dropout: float = 0.0
    mlp_out: Head = MISSING
    pe_file_name: str | None = None
    pe_type: str | None = None
    pe_strategy: str | None = None
    pe_encoder: str | None = None
    lap_pe_dim_input: int = 10
    lap_pe_dim_output: int = 0
    mag_pe_dim_input: int = 10
    mag_pe_dim_output: int = 0
    se_pe_dim_input: int = 0
    se_pe_dim_output: int = 0
    q: float = 0.1
    q_dim: int = 1
    eigval_encoder: dict[str, Any] = field(default_factory=dict)
    pe_embedder: Embedder | None = None

    def __post_init__(self) -> None:
        one_of("model.name", self.name.upper(), MODELS)
        for key, choices in (
            ("inner_gnn", ("GIN", "GINE")),
            ("pe_type", ("lap", "maglap")),
            ("pe_encoder", ("spe",)),
        ):
            if getattr(self, key) is not None:
                one_of(f"model.{key}", getattr(self, key), choices)
        if self.pe_type is not None:
            one_of("model.pe_strategy", self.pe_strategy, ("variant", "invariant_fixed"))
        within("model", self, hidden_dim="[1, inf)", num_layers="[1, inf)", dropout="[0, 1)")
        within("model", self, lap_pe_dim_input="[1, inf)", mag_pe_dim_input="[1, inf)")
        within("model", self, se_pe_dim_input="[0, inf)", q_dim="[1, 1]")


@dataclass(kw_only=True)
class CGConfig:
    """A whole configuration."""

    utils: Utils = field(default_factory=Utils)
    task: Task = MISSING
    train: Train = MISSING
    model: Model = MISSING

    @property
    def hardware(self) -> str:
        """The device whose latency is learnt."""
        return TARGETS[self.task.target]

    @property
    def data_folder(self) -> Path:
        """Where processed graphs lie, a folder for each positional encoding."""
        name = Path(self.task.name) / self.task.type
        return Path(self.task.processed_folder).expanduser() / name

    @property
    def processed_folder(self) -> Path:
        """The folder of this positional encoding: processed_no_pe, processed_lap10, processed_10k_1q0.1."""
        model = self.model
        suffix = {
            None: "no_pe",
            "lap": f"lap{model.lap_pe_dim_input}",
            "maglap": f"{model.mag_pe_dim_input}k_{model.q_dim}q{model.q}",
        }[model.pe_type]
        return self.data_folder / f"processed_{suffix}"

    @property
    def raw_folder(self) -> Path:
        """The families' folders."""
        return Path(self.task.raw_data_path).expanduser()

    @property
    def train_folder(self) -> Path:
        """Where checkpoints and results go: <task>_<type>/<target>_<encoding>/<model>."""
        task, model = self.task, self.model
        parts = f"{task.name}_{task.type}", f"{task.target}_{model.pe_file_name}", model.name
        return Path(self.train.train_files).expanduser().joinpath(*parts)

    def network(self) -> GnnConfig:
        """Return the network that the model is here.

        Raises:
            ConfigError: a combination that there is none for.
        """
        model = self.model
        convolution, direction = _convolution(model.name.upper(), bool(self.train.directed))
        encoding = {None: "none", "lap": "laplacian", "maglap": "magnetic"}[model.pe_type]
        at_edges = model.pe_strategy == "invariant_fixed"
        size = model.mag_pe_dim_input if model.pe_type == "maglap" else model.lap_pe_dim_input
        heads = 1
        if convolution in WITH_HEADS:
            heads = next(count for count in (4, 2, 1) if model.hidden_dim % count == 0)
        return GnnConfig(
            family="gnn",
            convolution=convolution,
            direction=direction,
            encoding=encoding if not at_edges or model.pe_embedder is not None else "none",
            edge_encoding=encoding if at_edges else "none",
            encoding_size=size,
            q=model.q,
            shapes="embedding",
            hidden=model.hidden_dim,
            layers=model.num_layers,
            pool="sum",
            mlp_layers=model.mlp_out.num_layer,
            heads=heads,
            dropout=model.dropout,
            label="raw",
            schedule="step",
            epochs=self.train.epoch,
            batch_size=self.train.batch_size,
            learning_rate=self.train.lr,
            num_threads=self.utils.torch_num_threads,
        )


def load_config(general: Source, pe: Source | None = None) -> dict[str, Any]:
    """Return a configuration, with the keys of a positional encoding's file put over it.

    Raises:
        ConfigError: a file that is not there or is no YAML.
    """
    merged = OmegaConf.merge(_loaded(general), {} if pe is None else _loaded(pe))
    return dict(OmegaConf.to_container(merged, resolve=True))  # type: ignore[arg-type]


def checked(config: Source) -> CGConfig:
    """Check a configuration.

    Raises:
        ConfigError: an unknown key, a missing one, a wrong type or a value that there is not.
    """
    instance: CGConfig = instantiate(CGConfig, load_config(config), "")
    return instance


def _loaded(config: Source) -> Any:
    if not isinstance(config, str | Path):
        return OmegaConf.create(dict(config))
    path = Path(config).expanduser()
    try:
        loaded = OmegaConf.load(path)
    except (OSError, YAMLError) as error:
        raise ConfigError(f"expected a configuration of CG in {path}, found {error}") from error
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"expected sections in {path}, found a list")
    return loaded


def _convolution(name: str, directed: bool) -> tuple[str, str]:
    """Return convolution and direction; DI and BI in a name count more than train.directed."""
    if name in _DIRECTED:
        return _DIRECTED[name], "directed"
    if name in _CONVOLUTIONS:
        return _CONVOLUTIONS[name], "directed" if directed else "undirected"
    return _CONVOLUTIONS[name[2:]], _WAYS[name[:2]]
