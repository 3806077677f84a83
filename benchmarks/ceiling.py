"""The ceiling of a leaderboard: how well one measurement run of programs orders what another run of them measured.

    python benchmarks/ceiling.py data/records/tencost-cpu/records.parquet [--least 8]

No model can be expected to predict a second run better than the first run predicts it. Programs that were measured
successfully in two runs at least are grouped by workload, hardware and code generator; groups of fewer than --least
programs are left out, since the order of two programs says little. The median of the first run is the score, the median
of the last one the latency, and the metrics are those of the leaderboard (tencost.evaluate.metrics): pairwise accuracy,
top-1 and top-5 as mean over groups, with the 95 % bootstrap interval over groups. Noise is the median over programs of
|ln(last / first)|.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import polars as pl

from tencost.evaluate.metrics import best_so_far, labels, pairwise_accuracy

GROUP = ["hardware", "generator", "workload_id"]
BOOTSTRAPS = 2000


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "records", type=Path, help="records.parquet of a build, data/records/<dataset>/"
    )
    parser.add_argument("--least", type=int, default=8, help="programs of a group")
    options = parser.parse_args()
    if not options.records.is_file():
        print(
            f"{options.records}: expected records.parquet of a build. Build it: tencost records",
            file=sys.stderr,
        )
        return 2
    repeated = repeated_measurements(options.records)
    print("| hardware | groups | programs | pairwise | top-1 | top-5 | noise |")
    print("|---|---|---|---|---|---|---|")
    for (hardware,), programs in repeated.group_by("hardware", maintain_order=True):
        print(row(str(hardware), programs, options.least))
    return 0


def repeated_measurements(file: Path) -> pl.DataFrame:
    """Return a row a program that two runs measured: GROUP, record_id, `first` and `last` in seconds."""
    records = pl.read_parquet(file, columns=[*GROUP, "record_id", "measurements"])
    runs = (
        records.filter(pl.col("measurements").is_not_null())
        .explode("measurements")
        .unnest("measurements")
        .filter((pl.col("status") == "ok") & pl.col("quarantine").is_null())
        .with_columns(pl.col("run_secs").list.median().alias("latency_s"))
        .sort("timestamp")
    )
    return (
        runs.group_by([*GROUP, "record_id"])
        .agg(
            pl.col("latency_s").first().alias("first"),
            pl.col("latency_s").last().alias("last"),
            pl.len().alias("runs"),
        )
        .filter(pl.col("runs") > 1)
        .sort([*GROUP, "record_id"])
    )


def row(hardware: str, programs: pl.DataFrame, least: int) -> str:
    """Return a hardware's line of the table; "" stands where no group has enough programs."""
    scores = []
    used = 0
    for _, group in programs.group_by(GROUP, maintain_order=True):
        if len(group) < least:
            continue
        used += len(group)
        latency, score = group["last"].to_numpy(), -group["first"].to_numpy()
        best = best_so_far(latency, score)
        optimum = latency.min()
        pairwise = pairwise_accuracy(score, labels(latency))
        scores.append((pairwise, optimum / best[0], optimum / best[min(4, len(best) - 1)]))
    noise = float(
        np.median(np.abs(np.log(programs["last"].to_numpy() / programs["first"].to_numpy())))
    )
    if not scores:
        return f"| {hardware} | 0 | {len(programs)} in smaller groups | | | | {noise:.3f} |"
    values = np.array(scores)
    draws = np.random.default_rng(0).integers(0, len(values), (BOOTSTRAPS, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), [2.5, 97.5], axis=0)
    cells = [
        f"{mean:.3f} [{one:.3f}, {other:.3f}]"
        for mean, one, other in zip(values.mean(axis=0), low, high, strict=True)
    ]
    return f"| {hardware} | {len(values)} | {used} | {' | '.join(cells)} | {noise:.3f} |"


if __name__ == "__main__":
    sys.exit(main())
