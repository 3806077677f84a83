"""What a person can choose, typed: one dataclass per group of `conf/`, a sentence under each field.

`conf/` holds the values, this module their schema: unknown keys and wrong types fail when a file is composed, and
`__post_init__` checks what a type cannot say. Hydra composes; :func:`resolve` turns the result into :class:`Config`.
A model family's dataclass stands in the family's own module (:mod:`tencost.models.programs.families`), measuring's in
:mod:`tencost.config.measuring`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

from tencost.config.checking import instantiate, one_of, plain_name, within
from tencost.config.graphs import GraphSplitConfig, graph_model_config
from tencost.config.measuring import MeasureConfig
from tencost.config.model import model_config
from tencost.config.parts import FEATURE_KINDS, NETWORK_SOURCES
from tencost.config.profiles import ProfileFeaturesConfig
from tencost.errors import ConfigError


class RunnerKind(Enum):
    """Where programs run."""

    local = "local"
    """On this host."""
    rpc = "rpc"
    """On devices that are registered with a TVM RPC tracker."""


class GraphChoice(Enum):
    """How a network's graph is written before it is lowered; see tencost.networks.rewriting."""

    auto = "auto"
    as_is = "as_is"
    folded = "folded"
    channels_last = "channels_last"


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


@dataclass(kw_only=True)
class DatasetConfig:
    """A raw dataset and where it lives."""

    name: str = MISSING
    """Folder name under data/raw and data/records."""
    source: str = MISSING
    """A folder, an archive (.tar.zst, .tar.gz, .zip) or an https:// URL of one; relative to the project."""
    sha256: str | None = None
    """Expected checksum of the archive in hex; None skips the check (folders have none)."""
    parts: dict[str, str] = field(default_factory=dict)
    """Of a dataset of several archives: their names and checksums, <source>/<name>.tar.zst each; sha256 stays None."""
    description: str = ""
    """One sentence for the dataset's MLflow entry."""
    hardware: str | None = None
    """The device of its logs where they do not name it: Ansor and AutoTVM logs, say."""
    devices: dict[str, str] = field(default_factory=dict)
    """Of logs of several devices that do not name them: a folder or a file below the source -> its device."""
    graphs: bool = False
    """Whole networks as graphs with their latencies (`tencost graphs`), not measured programs."""

    def __post_init__(self) -> None:
        if self.sha256 is not None and len(self.sha256) != 64:
            raise ConfigError(f"dataset.sha256 must be 64 hex digits, found {self.sha256!r}")
        for part, sha256 in self.parts.items():
            plain_name("dataset.parts", part)
            if len(sha256) != 64:
                raise ConfigError(f"dataset.parts.{part} must be 64 hex digits, found {sha256!r}")
        if self.parts and self.sha256 is not None:
            raise ConfigError(
                "dataset.sha256 must be null where dataset.parts has the checksums, found both"
            )


DEVICE_AMOUNTS = ("cores", "simd_bits", "l1d_kib", "l2_kib", "l3_kib")
"""Fields of HardwareConfig that columns of the device are made of."""


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
    peak_gflops: float | None = None
    """Operations on 32-bit numbers that one core can do at most, billions a second; None: not known."""
    bandwidth_gbs: float | None = None
    """Bytes that one core can write to its nearest cache at most, billions a second; None: not known."""
    members: list[str] = field(default_factory=list)
    """Not one device: the hardware that one model is for, by name, or [all] of the dataset with the target's kind."""
    unknown: list[str] = field(default_factory=list)
    """Which of cores, simd_bits, l1d_kib, l2_kib and l3_kib nobody has said: no column is made of them."""
    requires: list[str] = field(default_factory=list)
    """Instruction sets, in /proc/cpuinfo's spelling, without which its programs crash."""
    detect: bool = False
    """Fill every field above from the host (hardware=local)."""
    runner: RunnerKind = RunnerKind.local
    """Where its programs run: on this host, or on devices behind a TVM RPC tracker."""
    host: str = "127.0.0.1"
    """rpc: host name of the tracker."""
    port: int = 9190
    """rpc: port of the tracker."""
    key: str = ""
    """rpc: key that the devices registered with; empty means the hardware's name."""
    cc: str = ""
    """rpc: command that links programs for the devices here (a cross compiler); empty links them there."""

    def __post_init__(self) -> None:
        within("hardware", self, cores="[1, inf)", simd_bits="[1, inf)", clock_ghz="(0, inf)")
        within("hardware", self, l1d_kib="[0, inf)", l2_kib="[0, inf)", l3_kib="[0, inf)")
        within(
            "hardware", self, peak_gflops="(0, inf)", bandwidth_gbs="(0, inf)", port="[1, 65535]"
        )
        for name in self.unknown:
            one_of("hardware.unknown", name, DEVICE_AMOUNTS)

    def device_columns(self) -> dict[str, float]:
        """Return the attributes that can be appended to features: log2 of cores, SIMD bits and cache KiB.

        What is not known is left out.
        """
        import math

        return {
            f"device_log2_{name}": math.log2(1.0 + getattr(self, name))
            for name in DEVICE_AMOUNTS
            if name not in self.unknown
        }


@dataclass(kw_only=True)
class FeaturesConfig:
    """A feature set."""

    name: str = MISSING
    """Name of the set; also its file name under data/features."""
    kind: str = MISSING
    """How a program is turned into rows: a module of tencost.features.kinds, or a kind that another package adds."""
    device_columns: bool = False
    """Append the hardware's attributes (cores, SIMD width, caches) to every row."""
    relations: bool = False
    """Append what relates a program to the hardware: its vectors over the lanes, its footprints over the caches."""
    max_steps: int = 64
    """trace, ansor_steps: schedule primitives or steps kept per program, the first ones."""
    vocabulary_buckets: int = 16
    """trace, ansor_steps: hash buckets for names (blocks, annotations, storage scopes)."""
    max_numbers: int = 8
    """trace, ansor_steps: numeric parameters kept per primitive."""

    def __post_init__(self) -> None:
        if self.kind != MISSING:
            one_of("features.kind", self.kind, FEATURE_KINDS.names())
        within("features", self, max_steps="[1, inf)", vocabulary_buckets="[1, inf)")
        within("features", self, max_numbers="[0, inf)")


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
        within("split", self, test_fraction="[0, 1)", valid_fraction="[0, 1)")


@dataclass(kw_only=True)
class NetworkInput:
    """One input tensor of a network."""

    shape: list[int] = MISSING
    """Dimensions, batch first."""
    dtype: str = "float32"
    """float32 or int64."""
    high: int = 2
    """int64 only: values are drawn from [0, high)."""

    def __post_init__(self) -> None:
        within("network.inputs", self, high="[1, inf)")


@dataclass(kw_only=True)
class NetworkConfig:
    """A network: a transformers architecture with random weights, an ONNX file or a torch.export program."""

    name: str = MISSING
    """Name of the network, the same for all its variants; empty means the stem of `path`."""
    source: str = "transformers"
    """Where it comes from: a module of tencost.networks.sources, or one that an installed package adds."""
    path: str = ""
    """onnx, torch_export, saved: the file; relative to the project."""
    trusted: bool = False
    """torch_export, saved: the file comes from someone who may run code here; a .pt2 is opened only then."""
    batch: int = 1
    """Batch size; inputs refer to it as ${network.batch}."""
    size: int = 0
    """Image height and width in pixels, or tokens of a sequence; inputs refer to it as ${network.size}."""
    default_size: int = 0
    """The size that the plain name stands for; another one is part of the variant's name."""
    buckets: list[int] = field(default_factory=list)
    """onnx, torch_export: sizes of the one dimension that the file leaves open, each compiled, all in one library."""
    architecture: str = ""
    """transformers: model class, for example BertModel."""
    config_class: str = ""
    """transformers: configuration class, for example BertConfig."""
    config: dict[str, Any] = field(default_factory=dict)
    """Arguments of the configuration class."""
    inputs: dict[str, NetworkInput] = field(default_factory=dict)
    """Input tensors by argument name. onnx, torch_export: only those whose shape the file leaves open."""
    graph: GraphChoice = GraphChoice.as_is
    """as_is; folded: batch norms in the convolutions' weights; channels_last: that, and convolutions work on NHWC;
    auto: the last of these that TVM lowers for the hardware."""
    pack_weights: bool = True
    """Programs for CPUs may have constant weights in the order in which they read them; done once, when compiled."""
    winograd: bool = True
    """channels_last, when it is compiled for CPUs: convolutions of 3 by 3 taps (3 of a sequence) multiply less where
    that is faster; their weights take 1.8 or 4 times the memory (1.3 or 2), numbers are up to 5e-6 further off."""
    output: str = "last_hidden_state"
    """Output that is compared; onnx, torch_export: the first one where there is none of this name."""
    seed: int = 0
    """Seed of the weights and of the inputs."""

    def __post_init__(self) -> None:
        one_of("network.source", self.source, NETWORK_SOURCES.names())
        within("network", self, batch="[1, inf)", size="[0, inf)", default_size="[0, inf)")
        within("network", self, seed="[0, inf)")
        within("network", self, buckets="[1, inf)")
        if len(set(self.buckets)) < len(self.buckets):
            raise ConfigError(f"network.buckets: expected different sizes, found {self.buckets}")
        if not self.name:
            self.name = re.sub(r"[^A-Za-z0-9_.-]+", "_", Path(self.path).stem).lstrip(".-")[:100]
        if self.name:
            plain_name("network.name", self.name)


@dataclass(kw_only=True)
class TunerConfig:
    """How a network is tuned."""

    trials: int = 512
    """Programs measured in all."""
    trials_per_round: int = 16
    """Programs measured before the model is asked again."""
    starts: int = 16
    """Programs that a task measures before it searches: register tiles that the rules know, and programs known to be
    fast elsewhere, re-fitted to it; 0 for none."""
    register_tiles: bool = True
    """Search register tiles (tencost.programs.codegen.registers), too; False leaves TVM's design spaces alone."""
    trials_per_task: int | None = None
    """Programs measured for one task at most; None leaves it to the task scheduler."""
    min_gain: float = 0.001
    """The run ends when no task promises to save this share of all tasks' time a minute; 0 goes on to `trials`."""
    learn: bool = True
    """Learn from the measurements (a residual over the registered model); False keeps the model frozen."""
    min_mflop: float = 0.5
    """Tasks with fewer MFLOP are not tuned."""
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
    cache_flush: bool = True
    """Time programs for CPUs with weights and outputs out of the caches, as a network finds them; False times them
    again and again on the same numbers. A folder of earlier runs goes on as it began."""
    default_timeout_s: float = 5.0
    """Longest time that a task's untuned program is run for, seconds; one that takes longer counts as that."""
    check_outputs: bool = True
    """Compare what a program computes with its unscheduled workload before it counts as a task's best."""
    compare_with: str | None = None
    """Folder of a MetaSchedule database made otherwise, as by stock TVM: the network is timed with it, too."""
    workdir: str = "tuned"
    """Where databases, curves and reports of tuning runs are kept, a folder per network and hardware."""
    seed: int = 0
    """Seed of the search."""

    def __post_init__(self) -> None:
        within("tuner", self, trials="[1, inf)", trials_per_round="[1, inf)", starts="[0, inf)")
        within("tuner", self, trials_per_task="[1, inf)", min_mflop="[0, inf)", min_gain="[0, 1]")
        within("tuner", self, population="[1, inf)", generations="[0, inf)", number="[1, inf)")
        within("tuner", self, repeat="[1, inf)", min_repeat_ms="[0, inf)")
        within("tuner", self, default_timeout_s="(0, inf)")


@dataclass(kw_only=True)
class RuleConfig:
    """What of the promotion rule a project may choose."""

    min_seeds: int = 5
    """Seeds that a champion must have been trained with, at least."""
    refit: bool = True
    """Register the winner fitted on all records, test networks included; false: as it was judged, without them."""

    def __post_init__(self) -> None:
        within("rule", self, min_seeds="[1, inf)")


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
    counts: list[int] = field(default_factory=lambda: [0, 5, 10, 20, 50, 100, 500])
    """curve: the numbers of labels."""

    def __post_init__(self) -> None:
        within("adapt", self, programs_per_task="[2, inf)", uncertain_share="[0, 1)")
        within("adapt", self, counts="[0, inf)")


class ExecutionKind(Enum):
    """Who runs the workers."""

    local = "local"
    """Processes of this host."""
    ray = "ray"
    """Ray: a cluster of several machines, or one that is started on this host for the command."""


@dataclass(kw_only=True)
class ExecutionConfig:
    """Where the work of a stage is done; what comes out is the same, byte for byte."""

    kind: ExecutionKind = ExecutionKind.local
    """local: processes of this host; ray: a Ray cluster (tencost[scale])."""
    address: str | None = None
    """ray: host:port of a running cluster's head; None starts one on this host, which ends with the command."""
    store_mb: int = 256
    """ray: shared memory of a cluster that is started here, MiB; what does not fit is kept on disk."""
    limit_s: float | None = None
    """seconds that a piece of work may take before its worker is ended and another one gets it; None: 600 for a chunk
    of programs, 3600 for a model or a task, 14400 for a training, 86400 for a trial of a search."""

    def __post_init__(self) -> None:
        within("execution", self, store_mb="[100, inf)", limit_s="(0, inf)")
        if self.address is not None and not re.fullmatch(r"\[?[\w.:-]+\]?:\d{1,5}", self.address):
            raise ConfigError(
                f"execution.address must be host:port, such as 10.0.0.5:6379, found {self.address!r}"
            )


STORE_VARIABLE = "TENCOST_STORE"
"""Environment variable with the store that everybody of a team means."""


@dataclass(kw_only=True)
class PathsConfig:
    """Where the stages read and write, relative to the project's root; see also tencost.config.graph_outputs."""

    raw: str = "data/raw"
    """Raw datasets, one folder each."""
    records: str = "data/records"
    """Record stores."""
    features: str = "data/features"
    """Feature files."""
    splits: str = "data/splits"
    """Split files."""
    graphs: str = "data/graphs"
    """Whole networks as graphs, and their splits."""
    models: str = "data/models"
    """Trained bundles."""
    searches: str = "data/searches"
    """Searches for settings of graph models."""
    reports: str = "data/reports"
    """Metrics, predictions and plots."""
    registry: str = "mlruns/registered"
    """What was offered to the registry, for DVC: beside the registry, so that both come and go together."""
    store: str = "data/store"
    """The live record store that tuning runs write to; may be an object store's, `s3://bucket/store`."""

    def live_store(self, root: Path) -> str:
        """Return where the live store is: `store`; where that was left alone, TENCOST_STORE of the environment."""
        place = self.store
        if place == PathsConfig.store:
            place = os.environ.get(STORE_VARIABLE) or place
        return place if "://" in place else str(root / place)


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
    """The model family: its own dataclass, see tencost.models.programs.families."""
    graph_model: Any = None
    """graphs: the family of graph models: its own dataclass, see tencost.models.networks.families."""
    graph_split: GraphSplitConfig = field(default_factory=GraphSplitConfig)
    """graphs: how graphs are divided."""
    profile_features: ProfileFeaturesConfig = field(default_factory=ProfileFeaturesConfig)
    """profiles: which hardware counters become columns, and how."""
    network: NetworkConfig = MISSING
    """The network to tune."""
    tuner: TunerConfig = MISSING
    """How it is tuned."""
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    """How programs are collected and measured."""
    adapt: AdaptConfig = field(default_factory=AdaptConfig)
    """How a registered model is adapted to new hardware."""
    labels: int = 100
    """adapt: programs that are labelled on the new hardware."""
    rule: RuleConfig = field(default_factory=RuleConfig)
    """When a registered model becomes the champion."""
    paths: PathsConfig = field(default_factory=PathsConfig)
    """Where the stages read and write."""
    seeds: list[int] = field(default_factory=lambda: [0])
    """Seeds that a model is trained with, one bundle each."""
    folds: int = 3
    """train: folds of networks that a family is tried on by leaving them out, for the choice of the winner; 0: none.
    Slow families are tried on fewer."""
    score_test: bool = True
    """train: score the test part, too, for the MLflow run. The pipeline leaves that to `evaluate`."""
    jobs: int | None = None
    """Worker processes; None uses every core."""
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    """Where the work is done: in processes of this host, or on Ray."""
    model_uri: str | None = None
    """tune, adapt: the registered model or bundle to use; tune: None means the hardware's champion, if there is one."""
    experiment_name: str = "tencost"
    """MLflow experiment."""
    split_name: str = "by_network"
    """Name of the chosen split: a folder under data/splits."""
    model_name: str = "xgb"
    """Name of the chosen model configuration: part of folder and run names."""
    graph_split_name: str = "by_graph"
    """Name of the chosen graph split: part of folder names."""
    graph_model_name: str = "constant"
    """Name of the chosen graph model configuration: part of folder and run names."""

    def __post_init__(self) -> None:
        within("", self, jobs="[1, inf)", seeds="[0, inf)", folds="[0, inf)", labels="[0, inf)")
        if not self.seeds:
            raise ConfigError("seeds must name at least 1 seed, found []")


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
    settings = {str(name): setting for name, setting in container.items() if name != "hydra"}
    model, graph_model = settings.pop("model", None), settings.pop("graph_model", None)
    resolved = instantiate(Config, settings, "")
    resolved.model = model_config(model)
    if graph_model is not None:  # a project of an earlier version has none
        resolved.graph_model = graph_model_config(graph_model)
    return resolved
