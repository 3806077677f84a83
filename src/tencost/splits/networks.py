"""Which graphs may be learnt from, and which are kept for testing; and a division on disk, ``parts.parquet``.

The file has a row for each graph of the table that takes part, by row: row int64, graph_id string, part string (train,
valid, test or test_ood).

Under `by_graph` and `by_family` a hash of the graph's shape key decides, never its position: equal graphs, be it with
their nodes in another order or in another family, stay together, and a graph keeps its side when the dataset grows.
`cg` is the benchmark's own: by position, which puts equal graphs on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.exceptions import PolarsError

from tencost.config.graphs import GraphSplitConfig, GraphSplitPolicy
from tencost.errors import SplitError
from tencost.networks.graph.graph_set import GraphSet
from tencost.networks.graph.identity import shape_keys
from tencost.splits.policies import unit_hash
from tencost.writing import whole_file

FILE = "parts.parquet"
_SCHEMA = {"row": pl.Int64, "graph_id": pl.String, "part": pl.String}


@dataclass(frozen=True, eq=False)
class GraphParts:
    """Rows of a GraphSet, int64, increasing, each in one part at most.

    Attributes:
        train: to learn from.
        valid: to choose by.
        test: of the families that were learnt from.
        test_ood: of other families.
    """

    train: NDArray[np.int64]
    valid: NDArray[np.int64]
    test: NDArray[np.int64]
    test_ood: NDArray[np.int64]

    def items(self) -> list[tuple[str, NDArray[np.int64]]]:
        """Return (name, rows) of the four parts."""
        return [(part.name, getattr(self, part.name)) for part in fields(self)]


def divide_graphs(graphs: GraphSet, config: GraphSplitConfig) -> GraphParts:
    """Divide graphs.

    Args:
        graphs: with their ids.
        config: the policy and its settings.

    Raises:
        SplitError: a family that is not there or that is on both sides, settings that the policy does not have, or
            a part without a graph.
    """
    learnt, held_out = _families(graphs, config)
    learning = np.isin(graphs.family, learnt)
    ood = np.isin(graphs.family, held_out)
    if config.policy is GraphSplitPolicy.cg:
        part = _by_position(graphs, learning, ood)
    else:
        keys = shape_keys(graphs)
        part = _by_hash(keys, learning, config)
        equal = np.isin(keys, keys[ood])
        part[equal & np.isin(part, ("train", "valid"))] = ""
        part[ood] = "test_ood"
        if config.per_family is not None:
            _cap(graphs.family, keys, part, config, config.per_family)
    parts = GraphParts(*(np.flatnonzero(part == field.name) for field in fields(GraphParts)))
    for name, rows in parts.items():
        if not len(rows) and (name != "test_ood" or held_out):
            raise SplitError(
                f"the part {name} of split policy {config.policy.value} is empty: expected at least one of "
                f"{len(graphs)} graphs there. Change valid_fraction, test_fraction, per_family or seed of split."
            )
    return parts


def leaks(graphs: GraphSet, parts: GraphParts) -> NDArray[np.int64]:
    """Return the rows of test and test_ood that are equal to a graph to learn from: int64, none in a fair division."""
    tested = np.concatenate([parts.test, parts.test_ood])
    keys = shape_keys(graphs)
    return tested[np.isin(keys[tested], keys[parts.train])]


def save_parts(folder: Path, graphs: GraphSet, parts: GraphParts) -> None:
    """Write a division; complete or not at all."""
    rows = np.concatenate([rows for _, rows in parts.items()])
    names = np.repeat([name for name, _ in parts.items()], [len(rows) for _, rows in parts.items()])
    columns = {"row": rows, "graph_id": graphs.graph_id[rows], "part": names}
    with whole_file(folder / FILE) as partial:
        pl.DataFrame(columns, schema=_SCHEMA).sort("row").write_parquet(partial)


def load_parts(folder: Path, graphs: GraphSet) -> GraphParts:
    """Read what `save_parts` wrote.

    Args:
        folder: that it was written to.
        graphs: that were divided.

    Raises:
        SplitError: nothing there, a damaged file, or one of other graphs.
    """
    path = folder / FILE
    if not path.is_file():
        raise SplitError(
            f"expected {path}, found nothing. Divide the graphs first: tencost graphs splits"
        )
    again = "Divide the graphs again: tencost graphs splits"
    try:
        frame = pl.read_parquet(path)
    except (PolarsError, OSError) as error:
        raise SplitError(f"expected {path} to be whole, found {error}. {again}") from error
    if frame.schema != _SCHEMA or any(frame.null_count().row(0)):
        raise SplitError(f"expected {', '.join(_SCHEMA)} in {path}, found others. {again}")
    rows, names = frame["row"].to_numpy(), frame["part"]
    part_names = [field.name for field in fields(GraphParts)]
    ordered = (
        len(rows) > 0 and rows[0] >= 0 and rows[-1] < len(graphs) and (np.diff(rows) > 0).all()
    )
    if not ordered or not names.is_in(part_names).all():
        raise SplitError(
            f"expected rows of {len(graphs)} graphs in order in {path}, found others. {again}"
        )
    if graphs.graph_id[rows].tolist() != frame["graph_id"].to_list():
        raise SplitError(
            f"expected {path} to divide these graphs, found the ids of others. {again}"
        )
    return GraphParts(*(rows[(names == name).to_numpy()] for name in part_names))


def _families(graphs: GraphSet, config: GraphSplitConfig) -> tuple[list[str], list[str]]:
    """Return (families to learn from, families held out)."""
    families = np.unique(graphs.family).tolist()
    for field, names in (("families", config.families), ("test_families", config.test_families)):
        absent = sorted(set(names) - set(families))
        if absent:
            raise SplitError(
                f"split.{field} must name families of the dataset ({', '.join(families)}), "
                f"found {', '.join(absent)}"
            )
    both = sorted(set(config.families) & set(config.test_families))
    if both:
        raise SplitError(
            f"expected no family in both split.families and test_families, found {', '.join(both)}"
        )
    if (config.policy is GraphSplitPolicy.by_graph) == bool(config.test_families):
        quantity = "no" if config.test_families else "at least one of the"
        raise SplitError(
            f"expected {quantity} split.test_families with the policy {config.policy.value}, "
            f"found {', '.join(config.test_families) or 'none'}"
        )
    if config.policy is GraphSplitPolicy.cg and config.per_family is not None:
        raise SplitError("expected no split.per_family with the policy cg, which has its own sizes")
    learnt = config.families or [name for name in families if name not in config.test_families]
    return learnt, config.test_families


def _by_hash(
    keys: NDArray[np.uint64], learning: NDArray[np.bool_], config: GraphSplitConfig
) -> NDArray[np.str_]:
    valid = _hashes(keys, config.seed, "valid") < config.valid_fraction
    test = _hashes(keys, config.seed, "test") < config.test_fraction
    part = np.full(len(keys), "", dtype="<U8")
    part[learning] = np.where(test, "test", np.where(valid, "valid", "train"))[learning]
    return part


def _hashes(keys: NDArray[np.uint64], seed: int, salt: str) -> NDArray[np.float64]:
    return np.array([unit_hash(f"{key:016x}", seed, f"graph {salt}") for key in keys.tolist()])


def _cap(
    family: NDArray[np.str_],
    keys: NDArray[np.uint64],
    part: NDArray[np.str_],
    config: GraphSplitConfig,
    most: int,
) -> None:
    """Keep the `most` graphs of smallest hash of each family in train and valid together, at least one in valid."""
    for name in np.unique(family):
        remaining = most
        choosing = min(most - 1, max(1, round(config.valid_fraction * most)))
        for side in ("valid", "train"):
            rows = np.flatnonzero((family == name) & (part == side))
            order = np.argsort(_hashes(keys[rows], config.seed, "cap"), kind="stable")
            quota = choosing if side == "valid" else remaining
            part[rows[order[quota:]]] = ""
            remaining -= min(quota, len(rows))


def _by_position(
    graphs: GraphSet, learning: NDArray[np.bool_], ood: NDArray[np.bool_]
) -> NDArray[np.str_]:
    """Return the benchmark's parts: 90, 5, 5 % of a family in its file's order; of held-out families the first 10 %."""
    part = np.full(len(graphs), "", dtype="<U8")
    for family in np.unique(graphs.family):
        of_family = graphs.family == family
        position = graphs.position.astype(np.int64)
        count = int(position[of_family].max()) + 1
        train, valid = 10 * position < 9 * count, 20 * position < 19 * count
        part[of_family & learning] = np.where(train, "train", np.where(valid, "valid", "test"))[
            of_family & learning
        ]
        part[of_family & ood & (10 * position < count)] = "test_ood"
    return part
