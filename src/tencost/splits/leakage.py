"""The leakage check: no workload of the test side may be learnt from."""

from __future__ import annotations

import polars as pl

from tencost.config import SplitConfig, SplitPolicy
from tencost.errors import SplitError
from tencost.splits.policies import held_out_networks


def check_leakage(split: pl.DataFrame, tasks: pl.DataFrame, config: SplitConfig) -> None:
    """Fail when what is tested has been learnt from.

    Checks, by policy: within_task leaks workloads by design, but no program is on two sides; by_hardware has no
    hardware on two of train and test; all others have no workload on two sides, and by_network has no workload of a
    test network outside the test side.

    Raises:
        SplitError: with the first offenders.
    """
    if config.policy is SplitPolicy.within_task:
        _on_one_side(split, "program_id")
    elif config.policy is SplitPolicy.by_hardware:
        _on_one_side(split.with_columns(pl.col("part").replace("valid", "train")), "hardware")
    else:
        _on_one_side(split, "workload_id")
    if config.policy is SplitPolicy.by_network:
        networks, _ = held_out_networks(tasks, config.test)
        held_out = tasks.filter(pl.col("network").is_in(networks))
        learnt = split.filter(pl.col("part") != "test").join(held_out, on="workload_id", how="semi")
        if len(learnt):
            raise SplitError(
                f"the split leaks: {learnt['workload_id'].n_unique()} workloads of the test networks "
                f"{', '.join(networks)} are outside the test side, first {learnt['workload_id'][0]}"
            )


def _on_one_side(split: pl.DataFrame, column: str) -> None:
    sides = (
        split.group_by(column)
        .agg(pl.col("part").unique().sort())
        .filter(pl.col("part").list.len() > 1)
    )
    if len(sides):
        first = sides.sort(column).row(0, named=True)
        raise SplitError(
            f"the split leaks: expected every {column} on one side, found {len(sides)} on several, "
            f"first {first[column]} in {' and '.join(first['part'])}"
        )
