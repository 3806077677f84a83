"""What there is to choose: the best of many programs of a product over the one that the rule takes, by operator class.

    taskset -c 0 python benchmarks/headroom.py --files dinov2 yolov8_like ... [--work FOLDER] [--tasks 4]
                                               [--count 256] [--to FOLDER] [--report]

Of each file of files.py's work folder it takes the products that take longest by rule, compiled as the default does,
and times the rule's program and its candidates (`tencost.programs.codegen.candidates`) on one core, as a network runs
them: the next weights are fetched ahead, and the weights are another copy at each call, of so many that they are in no
core's own caches; the other operands are. Of three times the least counts, as others only add to them. The rule's
program and the four that were fastest are then timed again, in turn: a best that was luck does not stay one. A task's
ratio is of the second times.

Results: a file a task (JSON lines: the task, then a candidate a line) in --to; what has a file is not timed again.
--report prints the table by operator class and times nothing: the best of all over the rule's, a random one, the best
of the first five by the rule, and what gradient-boosted trees choose that learned from the other files' tasks (groups
of files left out): their first one, that one only if it promises 3 %, and the best of their first five.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from network_processes import ROOT

from tencost.config import GraphChoice, NetworkConfig
from tencost.networks.network import load_network
from tencost.programs.codegen.candidates import Candidate, draw_candidates, schedule_candidate
from tencost.programs.codegen.overlap import without_layout_blocks
from tencost.programs.codegen.prefetch import with_prefetches
from tencost.programs.codegen.products import Product, product_of, vectors_of
from tencost.programs.codegen.rules import leave
from tencost.programs.codegen.vector_math import register_vector_math
from tencost.programs.trace.intrinsics import register_cpu_intrinsics
from tencost.workers.hardware import detect_host

RESULTS = ROOT / "benchmarks" / "results" / "headroom"
FINALISTS = 4
ROUNDS = 9
TIMED_S = 0.004
GROUPS, SEEDS = 8, 5
"""Groups of files that are left out, and trees of other seeds whose predictions are averaged."""
CLASSES = (
    "convolution",
    "convolution in groups",
    "convolution of one tap",
    "depthwise convolution",
    "matrix product",
    "matrix product of a few rows",
)
CACHES, MOST_COPIES = 12 << 20, 32
"""Bytes of all copies of a task's weights, which no core's own caches hold; and of how many, at most."""
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", nargs="*", default=[])
    parser.add_argument("--work", type=Path, default=ROOT / "tuned" / "files-benchmark")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=4, help="products of a file, at most")
    parser.add_argument("--count", type=int, default=256, help="candidates of a product")
    parser.add_argument("--to", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    register_cpu_intrinsics()
    register_vector_math()
    os.environ["TVM_NUM_THREADS"] = "1"
    target = detect_host().target
    options.to.mkdir(parents=True, exist_ok=True)
    for file in [] if options.report else options.files:
        path = options.work / f"{file}-b{options.batch}" / "model.onnx"
        for task, function in slowest_products(path, target, options.tasks):
            result = options.to / f"{file}-b{options.batch}-{task[:8]}.jsonl"
            if result.exists():
                continue
            started = time.monotonic()
            rows = timed(function, target, options.count)
            about = {"file": file, "batch": options.batch, "task": task, "target": target}
            about |= {"seconds": round(time.monotonic() - started), **described(function, target)}
            lines = [json.dumps(row) for row in (about, *rows)]
            result.write_text("\n".join(lines) + "\n", encoding="utf-8")
            print(summary(about, rows), flush=True)
    print(report(options.to))
    return 0


def slowest_products(
    path: Path, target: dict[str, Any], count: int
) -> Iterator[tuple[str, tvm.IRModule]]:
    """Yield the products of a file that take longest by rule, each with an id; equal ones once."""
    config = NetworkConfig(
        name=path.parent.name, source="onnx", path=str(path), graph=GraphChoice.auto
    )
    mod = load_network(config, Path("/")).deployable(target)
    vectors = vectors_of(target)
    by_id: dict[str, tuple[float, tvm.IRModule]] = {}
    for function in mod.functions.values():
        if not isinstance(function, tvm.tirx.PrimFunc):
            continue
        module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
        product = product_of(tvm.s_tir.Schedule(module, debug_mask=0), vectors)
        if product is None:
            continue
        task = sha256(str(module).encode()).hexdigest()
        if task not in by_id:
            first = draw_candidates(module, target, 1)
            seconds = median_s(module, first[0], target) if first else None
            if seconds is not None:
                by_id[task] = seconds, module
    ranked = sorted(by_id.items(), key=lambda item: -item[1][0])
    yield from ((task, module) for task, (_, module) in ranked[:count])


def timed(mod: tvm.IRModule, target: dict[str, Any], count: int) -> list[Row]:
    """Return a row a candidate that ran, the rule's first, with its seconds and, of finalists, the second ones."""
    rows, runs = [], []
    for candidate in draw_candidates(mod, target, count):
        run = runner(mod, candidate, target)
        if run is not None:
            rows.append(row_of(candidate) | {"seconds": min(run() for _ in range(3))})
            runs.append(run)
    ranked = sorted(range(1, len(rows)), key=lambda place: rows[place]["seconds"])
    again: dict[int, list[float]] = {place: [] for place in (0, *ranked[:FINALISTS])}
    for _ in range(ROUNDS):
        for place, seconds in again.items():
            seconds.append(runs[place]())
    for place, seconds in again.items():
        rows[place]["again"] = min(seconds)
    return rows


def median_s(mod: tvm.IRModule, candidate: Candidate, target: dict[str, Any]) -> float | None:
    run = runner(mod, candidate, target)
    return None if run is None else statistics.median(run() for _ in range(3))


def runner(mod: tvm.IRModule, candidate: Candidate, target: dict[str, Any]) -> Any:
    """Return a function that times a candidate and returns seconds; None where it cannot be made."""
    scheduled = schedule_candidate(mod, target, candidate)
    if scheduled is None:
        return None
    fetching = with_prefetches(scheduled["main"])
    scheduled = without_layout_blocks(tvm.IRModule({"main": fetching}))
    try:
        built = tvm.compile(scheduled, target=tvm.target.Target(leave(scheduled, target)))
    except (RuntimeError, ValueError, TypeError):
        return None
    function = built.jit()["main"]
    copies = copies_of(scheduled["main"])

    def run() -> float:
        began, calls = time.perf_counter(), 0
        while calls < len(copies) or time.perf_counter() - began < TIMED_S:
            for tensors in copies:
                function(*tensors)
            calls += len(copies)
        return (time.perf_counter() - began) / calls

    run()
    return run


def copies_of(function: Any) -> list[list[Any]]:
    """Return a function's tensors, several times with other weights: together they are more than a core's caches."""
    rng = np.random.default_rng(0)
    weights = {int(place) for place in dict(function.attrs).get("layout_free_buffers", [])}
    arrays = [
        rng.standard_normal([int(size) for size in parameter.ty.shape]).astype(
            str(parameter.ty.dtype)
        )
        for parameter in function.params
    ]
    size = sum(arrays[place].nbytes for place in weights)
    count = min(MOST_COPIES, -(-CACHES // size)) if size else 1
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    return [
        [
            tvm.runtime.tensor(array) if place in weights else tensors[place]
            for place, array in enumerate(arrays)
        ]
        for _ in range(count)
    ]


def row_of(candidate: Candidate) -> Row:
    product = candidate.product
    return {
        "lanes": product.lanes,
        "padding": product.padding,
        "tile": candidate.tile,
        "decisions": candidate.decisions,
        "overlaps": candidate.overlaps,
        "near": candidate.near,
        "cycles": candidate.cycles,
    }


def described(mod: tvm.IRModule, target: dict[str, Any]) -> Row:
    """Return what a task is: its class and its product's axes."""
    product = product_of(tvm.s_tir.Schedule(mod, debug_mask=0), vectors_of(target))
    assert product is not None
    facts = asdict(product) | {
        "operands": [[sorted(axes), size] for axes, size in product.operands]
    }
    return {"class": operator_class(product), "product": facts}


def operator_class(product: Product) -> str:
    taps = math.prod(product.extents[axis] for axis in product.sums[:-1])
    rows = math.prod(product.extents[axis] for axis in (*product.rows, *product.batch))
    if product.apart:
        return "depthwise convolution"
    if product.group != product.extents[product.column]:
        return "convolution in groups"
    if len(product.sums) > 1:
        return "convolution" if taps > 1 else "convolution of one tap"
    return "matrix product of a few rows" if rows <= 16 else "matrix product"


def summary(about: Row, rows: list[Row]) -> str:
    best = min(rows[1:], key=lambda row: row.get("again", math.inf))
    ratio = best["again"] / rows[0]["again"]
    task = f"{about['file']} {about['class']} {about['product']['extents']}"
    seconds = f"({about['seconds']} s)"
    return f"{task}: {1e3 * rows[0]['again']:.3f} ms by rule, best of {len(rows)} {ratio:.3f} of it {seconds}"


def report(folder: Path) -> str:
    """Return the table by operator class."""
    tasks = [
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in sorted(folder.glob("*.jsonl"))
    ]
    ratios = [relative(rows) for _, *rows in tasks]
    choices: dict[str, list[dict[str, float]]] = defaultdict(list)
    for (about, *_), ratio, promised in zip(tasks, ratios, promises(tasks, ratios), strict=True):
        order = np.argsort(promised)
        first = ratio[order[0]]
        row = {
            "best": ratio.min(),
            "random": float(np.exp(np.log(ratio).mean())),
            "first five by rule": ratio[:5].min(),
            "trees": first,
            "trees, if sure": first if promised[order[0]] < math.log(0.97) else 1.0,
            "first five by trees": min(1.0, ratio[order[:5]].min()),
        }
        for name in (about["class"], "all"):
            choices[name].append(row)
    heads = list(choices["all"][0])
    lines = [f"| operator class | tasks | {' | '.join(heads)} |", "|---|---|" + "---|" * len(heads)]
    for name, rows in sorted(choices.items()):
        means = [statistics.geometric_mean(row[head] for row in rows) for head in heads]
        lines.append(f"| {name} | {len(rows)} | " + " | ".join(f"{x:.3f}" for x in means) + " |")
    return "\n".join(lines)


def relative(rows: list[Row]) -> np.ndarray:
    """Return the times of a task's candidates over that of the rule's, the first: float64, of finalists the second."""
    seconds = np.array([min(row["seconds"], row.get("again", math.inf)) for row in rows])
    return seconds / seconds[0]


def promises(tasks: list[list[Row]], ratios: list[np.ndarray]) -> list[np.ndarray]:
    """Return, for each task, the logarithms of its candidates' ratios as trees predict them that know other files."""
    import xgboost

    tables = [columns(about, rows) for about, *rows in tasks]
    files = sorted({about["file"] for about, *_ in tasks})
    groups = {name: place % GROUPS for place, name in enumerate(files)}
    of_tasks = [groups[about["file"]] for about, *_ in tasks]
    predicted: list[np.ndarray] = [np.zeros(len(table)) for table in tables]
    for group in set(of_tasks):
        known = [place for place, other in enumerate(of_tasks) if other != group]
        for seed in range(SEEDS):
            trees = xgboost.XGBRegressor(
                n_estimators=300, max_depth=5, learning_rate=0.05, subsample=0.7,
                colsample_bytree=0.5, min_child_weight=4, n_jobs=1, random_state=seed,
            )  # fmt: skip
            trees.fit(
                np.vstack([tables[place] for place in known]),
                np.concatenate([np.log(ratios[place]) for place in known]),
            )
            for place, other in enumerate(of_tasks):
                if other == group:
                    predicted[place] += trees.predict(tables[place]) / SEEDS
    return predicted


def columns(about: Row, rows: list[Row]) -> np.ndarray:
    """Return what describes candidates, and how each differs from the rule's: float64 [candidates, columns]."""
    product = about["product"]
    extents, of_rows = product["extents"], product["rows"]
    depth = math.prod(extents[axis] for axis in product["sums"])
    taps = math.prod(extents[axis] for axis in product["sums"][:-1])
    sizes = [size for _, size in product["operands"]]
    task = [math.log2(number) for number in (depth, taps, math.prod(extents), *sizes)]
    task += [product["group"], math.prod(extents[axis] for axis in of_rows), len(product["after"])]
    task += [about["class"] == name for name in CLASSES]
    table = []
    for row in rows:
        wide, heights = row["tile"]
        height, lanes = math.prod(heights), row["lanes"]
        outer, middle, _ = row["decisions"][0]
        below = [tile[:2] for tile in row["decisions"][1 : 1 + len(heights)]]
        unrolled = math.prod(inner for _, inner in row["decisions"][1 + len(heights) :])
        blocks = [math.prod(part) for part in zip(*below, strict=True)] if below else [1, 1]
        panels = depth * wide * lanes, depth * height, depth * wide * lanes * middle
        table.append(
            [
                math.log2(row["cycles"]), wide, height, heights[-1] if heights else 0,
                height * wide, (height + wide) / (height * wide), unrolled, lanes / 16,
                lanes.bit_count(), row["overlaps"], row["near"], bool(row["padding"]),
                *(math.log2(number) for number in (*panels, *blocks, outer, middle)),
            ]
        )  # fmt: skip
    candidates = np.array(table, float)
    task_columns = np.tile(np.array(task, float), (len(rows), 1))
    return np.hstack([candidates, candidates - candidates[0], task_columns])


if __name__ == "__main__":
    sys.exit(main())
