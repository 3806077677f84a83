"""What a model would choose of the programs measured, over the rule's program, by operator class; networks left out.

    python benchmarks/families.py xgb mlp xgb+mlp --seeds 2
    python benchmarks/classes.py xgb+mlp --seeds 2

The first command trains each candidate once a fold of networks, this one reads its scores: each task is judged by a
model that has seen none of its network's programs. A row is an operator class, all ratios over the time of the task as
the rules schedule it, geometric means over tasks (a network's operator once):

best          the fastest program that was measured, or the rule's: what there is to choose
first         the program that the model ranks first, nothing measured
five          the fastest of its first five and the rule's, and which share of what there is that is
worse         share of tasks whose first program takes more than 1.05 of the rule's time

A best of many noisy times is lower than it is (a few percent, see ceiling.py), and what five measurements reach of it
with it. The rules' times are those of `tencost measure run`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np
import polars as pl
from families import Judged, Tried
from headroom import CLASSES, operator_class

from tencost.config import Config
from tencost.programs.codegen.products import product_of, vectors_of
from tencost.programs.trace.replay import load_module

FIRST = 5
WORSE = 1.05
OTHERS = "no product: normalizations, poolings, elementwise"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("candidate", help="a candidate of families.py, or a+b")
    parser.add_argument("--dataset", default="tencost-zen5")
    parser.add_argument("--split", default="by_network")
    parser.add_argument("--hardware", default="epyc-avx512-1c")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("data/families"))
    asked = parser.parse_args()
    tried = Tried(asked.dataset, asked.split, asked.hardware)
    folder = asked.out / asked.dataset / asked.hardware
    scores = {
        (name, seed): pl.read_parquet(folder / f"{name}-seed{seed}.parquet")
        for name in asked.candidate.split("+")
        for seed in range(asked.seeds)
    }
    judged = Judged(tried, scores)
    classes = classes_of(tried.data.cfg, asked.dataset)
    rows: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for fold, truth in enumerate(judged.truths):
        score = judged.total(asked.candidate, fold, truth)
        for task in truth.tasks:
            ratio = truth.latency_s[task.rows] / task.rule_s
            if not np.isfinite(task.rule_s) or not np.isfinite(ratio).all():
                continue
            order = np.argsort(-score[task.rows], kind="stable")
            best = min(1.0, float(ratio.min()))
            five = min(1.0, float(ratio[order[:FIRST]].min()))
            row = best, float(ratio[order[0]]), five
            for name in ("all", classes[task.workload_id]):
                rows[name].append(row)
    print(
        "| operator class | tasks | best | first | five | share | worse |\n|---|---|---|---|---|---|---|"
    )
    for name in ("all", *CLASSES, OTHERS):
        if rows[name]:
            print(line(name, np.array(rows[name])))


def line(name: str, ratios: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> str:
    """Return a row of the table for tasks' ratios (best, first, five), float64 [n, 3]."""
    best, first, five = np.exp(np.log(ratios).mean(axis=0))
    share = np.log(five) / np.log(best) if best < 1 else float("nan")
    worse = float((ratios[:, 1] > WORSE).mean())
    return f"| {name} | {len(ratios)} | {best:.3f} | {first:.3f} | {five:.3f} | {share:.0%} | {worse:.0%} |"


def classes_of(cfg: Config, dataset: str) -> dict[str, str]:
    """Return each workload's operator class."""
    path = Path("data/records") / dataset / "workloads.parquet"
    found: dict[str, str] = {}
    from tvm.s_tir import Schedule

    vectors = vectors_of(cfg.hardware.target)
    for identity, module in pl.read_parquet(path).select("workload_id", "mod_json").iter_rows():
        product = product_of(Schedule(load_module(module), debug_mask=0), vectors)
        found[identity] = OTHERS if product is None else operator_class(product)
    return found


if __name__ == "__main__":
    main()
