"""What the machine code of a program says beyond its source: worth, cost, and what is left of it at equal seconds.

    python benchmarks/machine_code.py columns [--archive tencost-zen5] [--jobs 2]
    python benchmarks/machine_code.py judge [--archive tencost-zen5]

Both read the dataset of the last `dvc repro` (--dataset, tencost-zen5; --hardware, epyc-avx512-1c): its records and its
features per_store_tiles.

`columns` builds each program of the hardware as a measuring worker does and counts instructions of its assembly: in the
innermost loop with most multiply-adds their number, lanes an instruction, vector width, loads, stack accesses,
broadcasts and shuffles a multiply-add; the like over the whole function. LLVM writes assembly for CPUs other than the
host's, too. It writes one row a program, with the seconds of the build and of the assembly, to --to.

`judge` fits pairwise boosted trees on source columns, on assembly columns and on both, for each network with all other
networks' programs, and prints

- geo1 (geometric mean over tasks of best / latency of the program ranked first), top-5 and pairwise accuracy of each,
  also of a second stage, which builds the best 16 by source and orders them by both, with intervals of the differences
  over networks and their tasks;
- the best program found over the best known after so many seconds: programs measured in the order of the source's
  scores against 16 built first, ordered by both, then only run. Seconds of building are those of `columns`, those
  of a measurement --seconds: `tencost measure run` prints how many programs it measures a second.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tencost.evaluate.metrics import labels, pairwise_accuracy
from tencost.features.parallel import Featurized, featurize, with_names
from tencost.features.rows.kind import Chunk, Outcome
from tencost.features.rows.spec import FeatureSpec
from tencost.features.rows.summary import summarize_programs
from tencost.features.stage import make_chunks
from tencost.features.table import load_features

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "machine-code"
COLUMNS = (
    *("fmas", "lanes_an_instruction", "width", "loads", "stack", "broadcasts", "shuffles"),
    *("gathers", "length", "other_arithmetic", "all_length", "all_fmas", "all_stack"),
    *("all_gathers", "all_shuffles", "all_lanes_an_instruction", "loops", "calls"),
)
SECONDS = ("build_s", "assembly_s")
FINALISTS = 16
LEAST = 8
"""Programs of a task that is judged."""
SEEDS = 3
AFTER_S = (0.5, 1.0, 2.0, 3.0, 4.0)
DRAWS = 2000
_LANES = {"x": 4, "y": 8, "z": 16}
_REGISTER = re.compile(r"%?([xyz])mm\d+")
_LABEL = re.compile(r"^([.\w$]+):")
_JUMP = re.compile(r"^j\w+\s+(\.L\w+)$")
_SHUFFLES = ("vperm", "vshuf", "vpunpck", "vunpck", "vinsert", "vextract", "vblend", "valign")
Floats = npt.NDArray[np.float64]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=("columns", "judge"))
    parser.add_argument("--root", type=Path, default=ROOT, help="a clone where dvc repro ran")
    parser.add_argument("--dataset", default="tencost-zen5")
    parser.add_argument("--hardware", default="epyc-avx512-1c")
    parser.add_argument("--archive", default="", help="of the dataset's archives, that alone")
    parser.add_argument("--seconds", type=float, default=0.24, help="of a measurement")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--to", type=Path, default=RESULTS)
    options = parser.parse_args()
    path = options.to / f"{options.dataset}-{options.hardware}.parquet"
    folder = options.root / "data" / "records" / options.dataset
    records = pl.read_parquet(folder / "records.parquet").filter(
        (pl.col("hardware") == options.hardware) & (pl.col("status") == "ok")
    )
    if options.archive:
        records = records.filter(pl.col("source").struct.field("dataset") == options.archive)
    if options.task == "columns":
        write_columns(records, pl.read_parquet(folder / "workloads.parquet"), options.jobs, path)
    else:
        features = options.root / "data" / "features" / options.dataset / "per_store_tiles"
        judge(records, features, path, options.seconds)
    return 0


def write_columns(records: pl.DataFrame, workloads: pl.DataFrame, jobs: int, path: Path) -> None:
    """Build the programs and write a row each."""
    spec = FeatureSpec(
        name="machine_code", kind="per_store", columns=(*COLUMNS, *SECONDS), options={}
    )
    rows, failed, started = [], 0, time.monotonic()
    chunks = make_chunks(records, workloads)
    for place, outcomes in enumerate(featurize(spec, chunks, jobs, work=built)):
        for outcome in outcomes:
            if outcome.rows is None:
                failed += 1
            else:
                values = dict(zip(spec.columns, outcome.rows[0].tolist(), strict=True))
                rows.append({"program_id": outcome.program_id, **values})
        if place % 20 == 0:
            print(
                f"{place + 1} of {len(chunks)} chunks, {len(rows)} programs, {failed} failed, "
                f"{time.monotonic() - started:.0f} s",
                flush=True,
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(rows).write_parquet(path)


def built(_: FeatureSpec, chunk: Chunk) -> list[Featurized]:
    """Build the programs of a chunk; in a worker process."""
    from tencost.programs.trace.intrinsics import register_cpu_intrinsics
    from tencost.programs.trace.replay import load_module, replay
    from tencost.workers.worker import build

    register_cpu_intrinsics()
    module = load_module(chunk.mod_json)
    target = json.loads(chunk.target)
    outcomes: list[Outcome] = []
    for program in chunk.programs:
        try:
            replayed = replay(module, program)
            if replayed.schedule is None:
                outcomes.append(replayed.error)
                continue
            started = time.perf_counter()
            library = build(replayed.schedule.mod, target)
            middle = time.perf_counter()
            assembly = assembly_of(getattr(library, "mod", library))
            seconds = [middle - started, time.perf_counter() - middle]
            outcomes.append(np.array([[*columns_of(assembly), *seconds]], np.float32))
        except Exception as error:  # noqa: BLE001 - whatever the compiler raises is this program's reason
            outcomes.append(repr(error)[:300])
    return with_names(chunk, outcomes)


def assembly_of(module: Any) -> str:
    """Return the assembly of the LLVM module of a library."""
    for part in (module, *module.imports):
        if part.kind == "llvm":
            return str(part.inspect_source("asm"))
    raise ValueError("expected a module of LLVM, found none")


def columns_of(assembly: str) -> list[float]:
    """Return COLUMNS of an x86 assembly, AT&T syntax."""
    instructions: list[str] = []
    labels_at: dict[str, int] = {}
    for line in assembly.splitlines():
        text = line.split("#")[0].strip()
        label = _LABEL.match(text)
        if label:
            labels_at[label.group(1)] = len(instructions)
        elif text and not text.startswith("."):
            instructions.append(text)
    loops = []
    for place, text in enumerate(instructions):
        jump = _JUMP.match(text)
        if jump and labels_at.get(jump.group(1), place + 1) <= place:
            loops.append((labels_at[jump.group(1)], place + 1))
    innermost = [
        loop
        for loop in loops
        if not any(other != loop and loop[0] <= other[0] and other[1] <= loop[1] for other in loops)
    ]
    counts = [_counts(instructions[first:last]) for first, last in innermost]
    everything = _counts(instructions)
    densest = max(counts, key=lambda c: (c["lanes"], c["other"]), default=everything)
    fmas = max(densest["fmas"], 1)
    length, total = max(densest["length"], 1), max(everything["length"], 1)
    return [
        densest["fmas"],
        densest["lanes"] / length,
        densest["width"],
        *(densest[name] / fmas for name in ("loads", "stack", "broadcasts", "shuffles")),
        densest["gathers"],
        densest["length"],
        densest["other"] / fmas,
        everything["length"],
        everything["fmas"],
        everything["stack"] / total,
        everything["gathers"],
        everything["shuffles"] / total,
        everything["lanes"] / total,
        len(loops),
        everything["calls"],
    ]


def _counts(instructions: Sequence[str]) -> dict[str, int]:
    counts = dict.fromkeys(
        ("fmas", "lanes", "loads", "stack", "broadcasts", "shuffles", "gathers", "other", "calls"),
        0,
    ) | {"length": len(instructions), "width": 1}
    for text in instructions:
        name = text.split()[0]
        if name.startswith(("vfm", "vfnm")):
            widths = [_LANES[letter] for letter in _REGISTER.findall(text)]
            lanes = 1 if name.endswith("ss") else max(widths, default=1)
            counts["fmas"] += 1
            counts["lanes"] += lanes
            counts["width"] = max(counts["width"], lanes)
        counts["other"] += name.startswith(("vadd", "vmul", "vmax", "vsub", "vmin"))
        counts["loads"] += name.startswith("v") and "(" in text
        counts["stack"] += "rsp" in text
        counts["broadcasts"] += "1to" in text or name.startswith("vbroadcast")
        counts["shuffles"] += name.startswith(_SHUFFLES)
        counts["gathers"] += "gather" in name
        counts["calls"] += name.startswith("call")
    return counts


def judge(records: pl.DataFrame, features: Path, path: Path, seconds: float) -> None:
    """Print both tables; a measurement takes so many seconds, its build included."""
    if not path.is_file():
        sys.exit(f"expected {path}, found none. Make it: python benchmarks/machine_code.py columns")
    assembly = pl.read_parquet(path)
    programs = (
        records.with_columns(
            pl.col("run_secs").list.median().alias("latency_s"),
            pl.col("networks").list.first().struct.field("network").alias("network"),
        )
        .join(assembly, on="program_id")
        .unique("program_id")
        .sort("workload_id", "program_id")
        .filter(pl.len().over("workload_id") >= LEAST)
    )
    table = load_features(features)
    source = summarize_programs(table.select(programs["program_id"].to_list()), table.spec)
    code = programs.select(COLUMNS).to_numpy().astype(np.float32)
    both = np.concatenate([source, code], axis=1)
    latency = programs["latency_s"].to_numpy()
    tasks, group = np.unique(programs["workload_id"].to_numpy(), return_inverse=True)
    network = programs["network"].to_numpy()
    of_task = network[np.unique(group, return_index=True)[1]]
    scores = {
        "source": left_out_scores(source, latency, group, network),
        "assembly": left_out_scores(code, latency, group, network),
        "source and assembly": left_out_scores(both, latency, group, network),
    }
    second = scores["source"].copy()
    members = [np.flatnonzero(group == task) for task in range(len(tasks))]
    for task in members:
        best = task[np.argsort(-scores["source"][task], kind="stable")][:FINALISTS]
        # Above all that are not built, in the order of both.
        second[best] = (
            scores["source"][task].max() + 1.0 + _ranks(scores["source and assembly"][best])
        )
    scores[f"second stage of {FINALISTS}"] = second
    print(
        f"{len(programs)} programs, {len(tasks)} tasks, {len(set(of_task))} networks; "
        f"build {programs['build_s'].median():.3f} s, assembly {programs['assembly_s'].median():.3f} s "
        f"(medians); measurement {seconds:.3f} s\n"
    )
    print(
        "| columns | geo1 | over source | top-5 | pairwise | over source |\n|---|---|---|---|---|---|"
    )
    base = _figures(members, latency, scores["source"])
    for name, score in scores.items():
        figures = _figures(members, latency, score)
        difference = figures - base
        speed = np.exp(_interval(difference[:, 0], of_task))
        pairs = _interval(difference[:, 2], of_task)
        print(
            f"| {name} | {np.exp(figures[:, 0].mean()):.3f} | {speed[0]:.3f} [{speed[1]:.3f}, {speed[2]:.3f}] "
            f"| {figures[:, 1].mean():.3f} | {figures[:, 2].mean():.3f} "
            f"| {pairs[0]:+.3f} [{pairs[1]:+.3f}, {pairs[2]:+.3f}] |"
        )
    worst = np.argsort(base[:, 0])[:10]
    both_figures = _figures(members, latency, scores["source and assembly"])
    print(
        f"\nThe ten worst tasks by source: geo1 {np.exp(base[worst, 0].mean()):.2f}, "
        f"with assembly {np.exp(both_figures[worst, 0].mean()):.2f}\n"
    )
    build = (programs["build_s"] + programs["assembly_s"]).to_numpy()
    measure = np.full(len(programs), seconds)
    run = np.maximum(measure - programs["build_s"].to_numpy(), 0.0)
    print("| seconds | measured by source | 16 built, then run |\n|---|---|---|")
    for after in AFTER_S:
        found = []
        for task in members:
            order = _order(scores["source"], task)
            staged, spent = _staged(order, scores["source and assembly"], build, run, measure)
            found.append(
                (
                    found_after(latency[order], measure[order], after),
                    found_after(latency[staged], spent, after),
                )
            )
        cells = [np.exp(np.mean(np.log(column))) for column in zip(*found, strict=True)]
        print(f"| {after:g} | {cells[0]:.3f} | {cells[1]:.3f} |")


def left_out_scores(
    columns: npt.NDArray[np.float32],
    latency: Floats,
    group: npt.NDArray[np.int64],
    network: npt.NDArray[Any],
) -> Floats:
    """Return scores of all programs, each by trees that learnt from the other networks."""
    import xgboost

    best = np.full(group.max() + 1, np.inf)
    np.minimum.at(best, group, latency)
    label = best[group] / latency
    scores = np.zeros(len(group))
    parameters = {
        "objective": "rank:pairwise",
        "lambdarank_pair_method": "mean",
        "lambdarank_num_pair_per_sample": 8,
        "ndcg_exp_gain": False,
        "max_depth": 6,
        "eta": 0.08,
        "subsample": 0.7,
        "colsample_bytree": 0.4,
        "min_child_weight": 0.1,
        "tree_method": "hist",
        "nthread": 1,
    }
    for name in np.unique(network):
        out = network == name
        train = np.flatnonzero(~out)
        matrix = xgboost.DMatrix(columns[train], label=label[train])
        matrix.set_group(np.unique(group[train], return_counts=True)[1])
        for seed in range(SEEDS):
            booster = xgboost.train({**parameters, "seed": seed}, matrix, 250)
            scores[out] += booster.predict(xgboost.DMatrix(columns[out]))
    return scores


def _figures(members: Sequence[npt.NDArray[np.int64]], latency: Floats, score: Floats) -> Floats:
    """Return log(best / first), best / best of five and pairwise accuracy of each task."""
    rows = []
    for task in members:
        seconds, ordered = latency[task], latency[_order(score, task)]
        best = seconds.min()
        pairs = pairwise_accuracy(score[task], labels(seconds))
        rows.append((np.log(best / ordered[0]), best / ordered[:5].min(), pairs))
    return np.array(rows)


def _interval(values: Floats, network: npt.NDArray[Any]) -> Floats:
    """Return mean and 95 % interval; networks are drawn, then their tasks."""
    generator = np.random.default_rng(0)
    of_network = [np.flatnonzero(network == name) for name in np.unique(network)]
    means = []
    for _ in range(DRAWS):
        drawn = generator.integers(len(of_network), size=len(of_network))
        tasks = [generator.choice(of_network[place], len(of_network[place])) for place in drawn]
        means.append(values[np.concatenate(tasks)].mean())
    return np.array([values.mean(), *np.percentile(means, [2.5, 97.5])])


def _staged(
    order: npt.NDArray[np.int64], both: Floats, build: Floats, run: Floats, measure: Floats
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the order of a task's programs where finalists are built first, and the seconds that each then takes."""
    finalists, others = _order(both, order[:FINALISTS]), order[FINALISTS:]
    seconds = np.concatenate([run[finalists], measure[others]])
    seconds[0] += build[finalists].sum()
    return np.concatenate([finalists, others]), seconds


def found_after(latency: Floats, seconds: Floats, after: float) -> float:
    """Return best known over the best found after so many seconds; before the first one the slowest counts.

    Args:
        latency: of a task's programs in the order measured, float64 [n].
        seconds: that each measurement takes, float64 [n].
        after: seconds.
    """
    found = latency[np.cumsum(seconds) <= after]
    return float(latency.min() / (found.min() if len(found) else latency.max()))


def _order(score: Floats, task: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return task[np.argsort(-score[task], kind="stable")]


def _ranks(values: Floats) -> Floats:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)


if __name__ == "__main__":
    sys.exit(main())
