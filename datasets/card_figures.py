"""Print the figures of a dataset card: `python datasets/card_figures.py [data/records/<name>]`."""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl

from tencost.store.tables import load_records, load_tasks

DEFAULT = Path(__file__).resolve().parents[1] / "data" / "records" / "tencost-xeon"


def table(frame: pl.DataFrame) -> str:
    def show(value: object) -> str:
        return f"{value:.1%}" if isinstance(value, float) and value <= 1.0 else str(value)

    rows = [frame.columns, ["---"] * frame.width, *([show(v) for v in row] for row in frame.rows())]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def by_network(records: pl.DataFrame, tasks: pl.DataFrame) -> pl.DataFrame:
    """Tasks, measured tasks, share of the network's operations that they have, programs."""
    work = pl.col("flop") * pl.col("weight")
    index = tasks.group_by("network", maintain_order=True).agg(
        pl.len().alias("tasks"),
        pl.col("measured").sum(),
        (work.filter("measured").sum() / work.sum()).alias("share of flop"),
    )
    programs = (
        records.select("program_id", pl.col("networks"))
        .explode("networks")
        .select("program_id", pl.col("networks").struct.field("network"))
        .group_by("network")
        .agg(pl.col("program_id").n_unique().alias("programs"))
    )
    return index.join(programs, on="network", how="left", maintain_order="left")


def by_hardware(records: pl.DataFrame) -> pl.DataFrame:
    """Records by status, and how far the repeats of one record lie apart: (max - min) / median."""
    spread = (pl.col("run_secs").list.max() - pl.col("run_secs").list.min()) / pl.col("latency_s")
    repeated = spread.filter(pl.col("run_secs").list.len() > 1)
    return (
        records.group_by("hardware")
        .agg(
            pl.len().alias("records"),
            (pl.col("status") == "ok").sum().alias("ok"),
            (pl.col("status") == "unknown").sum().alias("unknown"),
            (pl.col("run_secs").list.len() == 1).sum().alias("single run"),
            repeated.median().alias("spread, median"),
            repeated.quantile(0.9).alias("spread, 90 %"),
            (repeated > 0.05).mean().alias("above 5 %"),
        )
        .sort("hardware")
    )


def facts(records: pl.DataFrame) -> list[str]:
    good = records.filter(pl.col("status") == "ok")
    groups = good.group_by("workload_id", "hardware").agg(
        pl.len(), (pl.col("latency_s").median() / pl.col("latency_s").min()).alias("ratio")
    )
    pairs = good.pivot(on="hardware", index=["program_id", "task_name"], values="latency_s")
    names = pairs.columns[2:]
    lines = [
        f"times from {good['latency_s'].min() * 1e6:.0f} us to {good['latency_s'].max():.1f} s",
        f"median of a workload over its best: {groups['ratio'].median():.1f} (median of workloads)",
        f"workloads with fewer than 10 programs: {groups.filter(pl.col('len') < 10).height // len(names)}"
        f" of {groups.height // len(names)}",
    ]
    if len(names) == 2:
        ratio = (pairs[names[0]] / pairs[names[1]]).drop_nulls()
        lines.append(
            f"{names[0]} over {names[1]}: median {ratio.median():.2f}, 5 % {ratio.quantile(0.05):.2f}, "
            f"95 % {ratio.quantile(0.95):.2f}, least {ratio.min():.2f}, most {ratio.max():.1f}"
        )
    failed = records.filter(pl.col("status") != "ok").group_by("task_name", "hardware").len()
    lines += [f"failed: {n} of {task} on {hw}" for task, hw, n in sorted(failed.rows())]
    return lines


def main(folder: Path) -> None:
    records, tasks = load_records(folder), load_tasks(folder)
    sys.stdout.write(table(by_network(records, tasks)) + "\n" + table(by_hardware(records)) + "\n")
    sys.stdout.write("".join(f"- {line}\n" for line in facts(records)))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT)
