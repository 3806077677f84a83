"""What can be chosen about hardware counters: which become columns of a model's input, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from omegaconf import MISSING

from tencost.config.checking import plain_name
from tencost.errors import ConfigError


class CounterKind(Enum):
    """Where a set's columns come from."""

    ncu = "ncu"
    """The groups of tvm_oraa's features without the two columns that tell run time: 26 columns."""
    ncu_upstream = "ncu_upstream"
    """The groups as they were, 28 columns, or 40 with the group runtime. Leaky, for comparison only."""
    device = "device"
    """What the profiler says of the device: every metric device__attribute_*."""
    ncu_raw = "ncu_raw"
    """The metrics that `columns` lists, or all that the profiles have."""


class Preprocessing(Enum):
    """How a metric becomes a column."""

    self_normalize = "self_normalize"
    """(x - min) / (max - min), minimum and maximum of the rows that it is fitted on; a constant becomes 0."""
    normalize_to = "normalize_to"
    """x / `by`, a number or another metric of the same program."""
    minimize = "minimize"
    """The least of `metric` and `others` of the same program."""
    identity = "identity"
    """x."""
    log = "log"
    """log2(1 + |x|), with the sign of x."""


class FittedOn(Enum):
    """Which rows say what the minimum and maximum of a column are."""

    training = "training"
    """The rows that the model learns from; what it is asked later may lie outside [0, 1]."""
    workload = "workload"
    """Each workload's own training part, of which no time is read: for models that are asked about workloads whose
    counts are of another size. Never the rows that are tested."""


@dataclass(kw_only=True)
class CounterConfig:
    """One column."""

    metric: str = MISSING
    """Name of the metric, as Nsight Compute's newest generation calls it."""
    how: Preprocessing = Preprocessing.self_normalize
    """How it becomes a column."""
    by: str = ""
    """normalize_to: a number, or the name of a metric."""
    others: list[str] = field(default_factory=list)
    """minimize: the other metrics."""

    def __post_init__(self) -> None:
        if (self.how is Preprocessing.normalize_to) != bool(self.by):
            raise ConfigError(
                f"profile_features.columns: expected `by` with how=normalize_to and with nothing else, found how="
                f"{self.how.value} by={self.by!r} of {self.metric}"
            )
        if (self.how is Preprocessing.minimize) != bool(self.others):
            raise ConfigError(
                f"profile_features.columns: expected `others` with how=minimize and with nothing else, found how="
                f"{self.how.value} others={self.others} of {self.metric}"
            )


@dataclass(kw_only=True)
class CounterGroups:
    """ncu, ncu_upstream: which groups of columns are in, tvm_oraa's mask."""

    occupancy: bool = True
    """The least of the four limits of occupancy: 1 column."""
    launch: bool = True
    """Sizes of the launch: 3 columns."""
    memory: bool = True
    """Loads and stores: 8 columns, 10 of ncu_upstream."""
    conflicts: bool = True
    """Bank conflicts of shared memory: 4 columns."""
    instructions: bool = True
    """Counts of instructions and sectors: 10 columns."""
    runtime: bool = False
    """ncu_upstream: ten shares of a peak, a rate and a count of branches: 12 columns."""


@dataclass(kw_only=True)
class ProfileFeaturesConfig:
    """A set of columns made of hardware counters."""

    name: str = "ncu"
    """Name of the set."""
    kind: CounterKind = CounterKind.ncu
    """Where its columns come from."""
    groups: CounterGroups = field(default_factory=CounterGroups)
    """ncu, ncu_upstream: which groups of columns are in."""
    columns: list[CounterConfig] = field(default_factory=list)
    """ncu_raw: the columns; none: every metric of the profiles, each by `how`."""
    how: Preprocessing = Preprocessing.self_normalize
    """ncu_raw without `columns`, device: how each metric becomes a column (self_normalize, identity, log)."""
    fitted_on: FittedOn = FittedOn.training
    """Which rows say what the minimum and maximum of a column are."""
    leaky: bool = False
    """Whether metrics that tell the run time may be columns: rates, shares of a peak, cycles. For comparison only."""

    def __post_init__(self) -> None:
        plain_name("profile_features.name", self.name)
        if self.kind is CounterKind.ncu_upstream and not self.leaky:
            raise ConfigError(
                "expected profile_features.leaky=true with kind ncu_upstream, which has columns that tell run time; "
                "found false. The set without them: profile_features=ncu"
            )
        if self.kind is CounterKind.ncu and self.groups.runtime:
            raise ConfigError(
                "expected profile_features.groups.runtime=false with kind ncu: these columns tell run time; "
                "found true. For comparison: profile_features=ncu_upstream"
            )
        if self.columns and self.kind is not CounterKind.ncu_raw:
            raise ConfigError(
                f"expected profile_features.columns with kind ncu_raw only, found it with {self.kind.value}"
            )
        if self.how in (Preprocessing.normalize_to, Preprocessing.minimize):
            raise ConfigError(
                f"profile_features.how must be one of self_normalize, identity, log; found {self.how.value}, which "
                "needs a list of columns"
            )
