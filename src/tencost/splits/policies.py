"""Which record is on which side: pure, seeded policies over one table.

Membership comes from a hash of what is assigned (a workload family, a program), never from its position: a record
keeps its side when the dataset grows (the rule of Halide's autoscheduler, whose validation membership is "a fixed
property of a hash"). All records of a workload, on every hardware, are on one side, except under `by_hardware` and
`within_task`.

A workload family is an operator and a size: the task's name without its counters, and the rounded log2 of its FLOP, or
where no task says its FLOP (logs of other tuners), of the product of the extents in its arguments.
Layers that differ by a channel count in the same power of two are near-duplicates, and stay together.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import polars as pl

from tencost.config import SplitConfig, SplitPolicy
from tencost.errors import SplitError

PARTS = ("train", "valid", "test")
SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)
"""Values of `valid_fraction` that are tried where a part is empty, to say which one fills it."""
WAYS = {
    SplitPolicy.by_task: "tasks are held out",
    SplitPolicy.within_task: "programs are held out: figures flatter",
}
"""Policies that need less than others do: a few tasks, a few programs of one."""
VARIANT = r"(-b\d+)?(-s\d+)?(-folded|-nhwc)?(-unpacked)?"
"""What follows a network's name in those of its variants: batch, size, graph, order of the weights."""


def workload_family(task_name: str, flop: float) -> str:
    """Return the family of a workload, for example ``fused_conv_d_add~2^24``."""
    operator = re.sub(r"_+", "_", re.sub(r"\d+", "", task_name)).strip("_")
    return f"{operator}~2^{round(math.log2(flop)) if flop >= 1 else 0}"


@lru_cache(maxsize=65536)
def extents_product(workload_args: str | None) -> float:
    """Return the product of the positive whole numbers in a workload's arguments, JSON text; 0 without any."""
    extents: list[int] = []
    waiting = [json.loads(workload_args or "[]")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
            extents.append(value)
    return float(math.prod(extents)) if extents else 0.0


def unit_hash(text: str, seed: int, salt: str) -> float:
    """Map a text to [0, 1), uniformly and the same on every machine."""
    digest = hashlib.sha256(f"{salt}:{seed}:{text}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2.0**64


def assign(records: pl.DataFrame, tasks: pl.DataFrame, config: SplitConfig) -> pl.DataFrame:
    """Assign every record to train, valid or test.

    Args:
        records: record_id, program_id, workload_id, task_name, hardware, timestamp (epoch seconds or null).
        tasks: network, task_name, workload_id, weight, flop: all tasks of every network.
        config: the policy and its settings.

    Returns:
        record_id, program_id, workload_id, hardware, part; sorted by record_id.

    Raises:
        SplitError: a named network or hardware is not in the dataset, or a part is empty.
    """
    described = with_families(records, tasks)
    split = _divided(described, tasks, config)
    empty = _empty_part(split)
    if empty is not None:
        raise SplitError(
            f"the {empty} part of split policy {config.policy.value} is empty: expected at least one of "
            f"{len(split)} records there. {_ways_out(described, tasks, config)}"
        )
    return split.sort("record_id")


def check_measured(
    split: pl.DataFrame, records: pl.DataFrame, tasks: pl.DataFrame, config: SplitConfig
) -> None:
    """Refuse a split with a part in which every program failed: there is nothing to learn from or to judge on.

    Args:
        split: as `assign` returns it for these records.
        records: as `assign` takes them, and status.
        tasks: as `assign` takes them.
        config: the policy and its settings.

    Raises:
        SplitError: a part without a record that has a time.
    """
    ok = records.filter(pl.col("status") == "ok")
    timed = split.join(ok.select("record_id"), on="record_id", how="semi")
    failed = _empty_part(timed)
    if failed is None:
        return
    statuses = (
        split.filter(part=failed)
        .join(records.select("record_id", "status"), on="record_id")
        .group_by("status")
        .len()
        .sort("status")
    )
    counts = ", ".join(f"{count} {status}" for status, count in statuses.iter_rows())
    raise SplitError(
        f"the {failed} part of split policy {config.policy.value} has no record with a time: expected at least one "
        f"with status ok, found {counts}. {_ways_out(with_families(ok, tasks), tasks, config)}"
    )


def _divided(described: pl.DataFrame, tasks: pl.DataFrame, config: SplitConfig) -> pl.DataFrame:
    """Assign every record, whether or not this fills all parts; `described` as `with_families` returns it."""
    policies: dict[SplitPolicy, Callable[[pl.DataFrame, pl.DataFrame, SplitConfig], pl.Expr]] = {
        SplitPolicy.by_network: _by_network,
        SplitPolicy.by_task: _by_task,
        SplitPolicy.by_hardware: _by_hardware,
        SplitPolicy.by_time: _by_time,
        SplitPolicy.within_task: _within_task,
    }
    is_test = policies[config.policy](described, tasks, config)
    unit = "program_id" if config.policy is SplitPolicy.within_task else "family"
    is_valid = _below(described, unit, config.valid_fraction, config.seed, "valid")
    part = (
        pl.when(is_test)
        .then(pl.lit("test"))
        .when(is_valid)
        .then(pl.lit("valid"))
        .otherwise(pl.lit("train"))
    )
    return described.with_columns(part=part).select(
        "record_id", "program_id", "workload_id", "hardware", "part"
    )


def _empty_part(split: pl.DataFrame) -> str | None:
    return next((name for name in PARTS if not (split["part"] == name).any()), None)


def can_be_learnt(split: pl.DataFrame) -> bool:
    """Say whether all parts hold something, and valid and test two programs of a workload: one alone ranks nothing."""
    ranked = split.group_by("part", "workload_id", "hardware").agg(pl.col("program_id").n_unique())
    ranked = ranked.filter(pl.col("program_id") > 1)
    return _empty_part(split) is None and {"valid", "test"} <= set(ranked["part"])


def filling_share(records: pl.DataFrame, tasks: pl.DataFrame, config: SplitConfig) -> float | None:
    """Return the `valid_fraction` next to the configured one with which all parts can be learnt from and judged on.

    Args:
        records: as `assign` takes them.
        tasks: as `assign` takes them.
        config: the policy and its settings.

    Returns:
        None where no share that was tried does.
    """
    described = records if "family" in records.columns else with_families(records, tasks)

    def fits(share: float) -> bool:
        try:
            return can_be_learnt(_divided(described, tasks, replace(config, valid_fraction=share)))
        except SplitError:
            return False

    shares = sorted(
        {config.valid_fraction, *SHARES}, key=lambda share: abs(share - config.valid_fraction)
    )
    return next(filter(fits, shares), None)


def _ways_out(described: pl.DataFrame, tasks: pl.DataFrame, config: SplitConfig) -> str:
    """Return a sentence with settings that fill all parts: each was tried on these records."""
    ways = []
    for policy, meaning in WAYS.items():
        if config.policy in (policy, SplitPolicy.within_task):
            continue
        other = SplitConfig(policy=policy, test_fraction=0.1, valid_fraction=0.1)
        if policy is SplitPolicy.by_task:
            other = SplitConfig(policy=policy)
        share = filling_share(described, tasks, other)
        if share is not None:
            changed = (
                "" if share == other.valid_fraction else f" with valid_fraction: {share} there"
            )
            ways.append(f"split: {policy.value} in params.yaml{changed} ({meaning})")
    share = filling_share(described, tasks, config)
    if share is not None:
        ways.insert(0, f"valid_fraction: {share} in the split's file in conf/split/")
    if not ways:
        return "Change test, test_fraction, valid_fraction or seed in conf/split/, or measure more tasks."
    return f"What fills all parts: {'; or '.join(ways)}."


def with_families(records: pl.DataFrame, tasks: pl.DataFrame) -> pl.DataFrame:
    """Add the column `family`; a workload that no task names has its record's task name and no size."""
    flops = tasks.group_by("workload_id").agg(pl.col("flop").max())
    joined = records.join(flops, on="workload_id", how="left").with_columns(
        pl.col("flop").fill_null(0.0)
    )
    args = joined["workload_args"] if "workload_args" in joined.columns else [None] * len(joined)
    families = [
        workload_family(name or "", flop if flop >= 1 else extents_product(text))
        for name, flop, text in zip(joined["task_name"], joined["flop"], args, strict=True)
    ]
    # One family per workload, also where networks name the same workload differently.
    return joined.with_columns(family=pl.Series(families, dtype=pl.String)).with_columns(
        family=pl.col("family").min().over("workload_id")
    )


def held_out_networks(tasks: pl.DataFrame, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (networks of the dataset that are held out, names that the dataset does not have).

    A name stands for all variants of the network: `resnet_50` also for `resnet_50-b4` and `resnet_50-b4-s256-nhwc`.
    """
    dataset_networks = sorted(tasks["network"].unique().to_list())
    variants = {name: re.compile(rf"{re.escape(name)}{VARIANT}") for name in names}
    matches = {
        name: [network for network in dataset_networks if pattern.fullmatch(network)]
        for name, pattern in variants.items()
    }
    absent = [name for name, networks in matches.items() if not networks]
    return sorted({network for networks in matches.values() for network in networks}), absent


def not_judged(split: pl.DataFrame, tasks: pl.DataFrame, names: Sequence[str]) -> dict[str, int]:
    """Return the variants that are held out with named networks, and how many measured tasks only they have.

    A leaderboard counts the tasks of the networks that the split names, and of no others.
    """
    variants = set(held_out_networks(tasks, names)[0]) - set(names)
    judged = tasks.filter(pl.col("network").is_in(names))
    task_counts = (
        tasks.filter(pl.col("network").is_in(variants))
        .join(split.filter(pl.col("part") == "test"), on="workload_id", how="semi")
        .join(judged, on="workload_id", how="anti")
        .group_by("network")
        .agg(pl.col("workload_id").n_unique())
    )
    return dict(task_counts.sort("network").iter_rows())


def _by_network(_: pl.DataFrame, tasks: pl.DataFrame, config: SplitConfig) -> pl.Expr:
    networks, absent = held_out_networks(tasks, config.test)
    if not networks:
        valid_names = ", ".join(sorted(tasks["network"].unique().to_list()))
        raise SplitError(
            f"split.test must name networks of the dataset ({valid_names}), found {', '.join(absent) or 'none'}"
        )
    held_out = tasks.filter(pl.col("network").is_in(networks))["workload_id"].unique()
    return pl.col("workload_id").is_in(held_out.to_list())


def _by_task(records: pl.DataFrame, _: pl.DataFrame, config: SplitConfig) -> pl.Expr:
    return _below(records, "family", config.test_fraction, config.seed, "test")


def _by_hardware(records: pl.DataFrame, _: pl.DataFrame, config: SplitConfig) -> pl.Expr:
    measured = sorted(records["hardware"].unique().to_list())
    unknown = sorted(set(config.test) - set(measured))
    if unknown or not config.test:
        names = ", ".join(unknown) if unknown else "none"
        raise SplitError(
            f"split.test must name hardware of the dataset ({', '.join(measured)}), found {names}"
        )
    return pl.col("hardware").is_in(config.test)


def _by_time(records: pl.DataFrame, _: pl.DataFrame, config: SplitConfig) -> pl.Expr:
    if records["timestamp"].null_count():
        raise SplitError(
            f"split policy by_time needs a timestamp in every record, found {records['timestamp'].null_count()} "
            "without. Use by_network or by_task."
        )
    first_seen = (
        records.group_by("workload_id")
        .agg(pl.col("timestamp").min())
        .sort("timestamp", "workload_id")
    )
    count = max(1, round(len(first_seen) * (1.0 - config.test_fraction)))
    latest = first_seen.filter(pl.col("timestamp") > first_seen["timestamp"][count - 1])
    if not len(latest):
        raise SplitError(
            f"split policy by_time needs workloads measured at different times, found none first measured later than "
            f"the earliest {count} of {len(first_seen)}. Use by_network or by_task."
        )
    return pl.col("workload_id").is_in(latest["workload_id"].to_list())


def _within_task(records: pl.DataFrame, _: pl.DataFrame, config: SplitConfig) -> pl.Expr:
    return _below(records, "program_id", config.test_fraction, config.seed, "test")


def _below(records: pl.DataFrame, column: str, fraction: float, seed: int, salt: str) -> pl.Expr:
    chosen = [
        text
        for text in records[column].unique().to_list()
        if unit_hash(text, seed, salt) < fraction
    ]
    return pl.col(column).is_in(chosen)
