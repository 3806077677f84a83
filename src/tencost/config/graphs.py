"""What can be chosen about whole networks as graphs: the model of their latency, and how they are divided."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omegaconf import MISSING

from tencost.config.checking import instantiate, within
from tencost.config.parts import GRAPH_FAMILIES


class GraphSplitPolicy(Enum):
    """Which graphs may be learnt from and which are kept for testing."""

    by_graph = "by_graph"
    """By the hash of a graph's content, a share of every family: graphs that are equal are never on both sides."""
    by_family = "by_family"
    """Hold out whole families; equal graphs that stand in other families leave the training side."""
    cg = "cg"
    """The CG benchmark's own, by the order of its files, five families to learn and three for testing. It leaks: equal
    graphs stand on both sides. For comparison only."""


@dataclass(kw_only=True)
class GraphModelConfig:
    """A family of graph models and its settings; each family adds its own fields."""

    family: str = MISSING
    """Name of the family (a module of tencost.models.networks.families)."""
    reference: bool = False
    """A baseline that is compared with but never registered."""


@dataclass(kw_only=True)
class GraphSplitConfig:
    """How graphs are divided into train, valid, test and test_ood (families that nothing was learnt of)."""

    policy: GraphSplitPolicy = GraphSplitPolicy.by_graph
    """The rule that assigns graphs."""
    families: list[str] = field(default_factory=list)
    """Families that take part; empty: all."""
    test_families: list[str] = field(default_factory=list)
    """by_family: the families held out (test_ood)."""
    per_family: int | None = None
    """by_graph, by_family: graphs to learn from and to choose by in each family, at most; None: all not held out."""
    valid_fraction: float = 0.05
    """by_graph, by_family: share of the graphs of a family that is kept for validation."""
    test_fraction: float = 0.05
    """by_graph, by_family: share of the graphs of a family that is kept for testing."""
    seed: int = 0
    """Salt of the hashes that assign graphs."""

    def __post_init__(self) -> None:
        within(
            "graph_split",
            self,
            valid_fraction="(0, 1)",
            test_fraction="(0, 1)",
            per_family="[1, inf)",
        )


def graph_model_config(values: Any, prefix: str = "graph_model.") -> Any:
    """Check a family's settings against its own dataclass.

    Raises:
        ConfigError: no such family, an unknown key, a wrong type or a value out of range.
    """
    family = values.get("family") if isinstance(values, dict) else None
    return instantiate(GRAPH_FAMILIES.load(family, f"{prefix}family").config, values, prefix)
