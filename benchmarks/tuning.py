"""Tuning with a registered model against stock MetaSchedule, live, on networks that no training split has seen.

    python benchmarks/tuning.py [--networks bert_tiny ...] [--seeds 0 1 2] [--stock-trials 320] [--trials 320]
                                [--model models:/...@champion] [--guard] [--report]

Both arms tune the same tasks on the CPUs that this process may use, one thread a program, the arms in turn so that
noise hits both. *stock* is what a user gets: XGBModel, LocalBuilder, LocalRunner, rounds of 64 (the builder has a limit
of 120 s instead of 30, as its workers import for up to 20 s on a busy machine). *tencost* is what `tencost tune` does
with conf/tuner/default.yaml: the registered model, its starting points, warm workers. Afterwards every program that was
ever the best of its task, in either arm, is timed again under one evaluator, in one process: only these times are
compared.

total latency   sum over tasks of weight x latency of the best program so far (by the arm's own times, with the new
                ones); a task without any counts with its default schedule
trials, seconds what tencost needs until it is at or below stock's final total latency; the share of stock's own

Raw results, one row a measured program, are kept in benchmarks/results/tuning/<network>-<seed>-<arm>.parquet; runs that
are there are not run again, so the script can be stopped and goes on. --report prints the tables from what is there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from tvm.ir import save_json
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tencost.config import TunerConfig
from tencost.config.composition import compose
from tencost.features.intrinsics import register_cpu_intrinsics
from tencost.features.ragged import Ragged
from tencost.features.traces import trace_values
from tencost.networks.network import NetworkTask, load_network
from tencost.register.starts import shipped_starts
from tencost.store.ids import workload_id
from tencost.train.bundle import Bundle
from tencost.train.calibration import LOWEST_SCORE
from tencost.train.ranker import Scores
from tencost.tune.cost_model import load_cost_model
from tencost.tune.session import Batch, Session
from tencost.tune.workfolder import open_folder
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.pool import Job, WorkerPool
from tencost.workers.runner import arg_json
from tencost.workers.warm_worker import TracedProgram

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "tuning"
CPUS = len(os.sched_getaffinity(0))
STOCK, OURS = "stock", "tencost"
CHECKPOINTS = (32, 64, 128, 256, 512)
AGAIN = MeasureOptions(repeat=5, max_repeat=15, max_cv=0.05, min_repeat_ms=20)
"""The evaluator of the comparison."""


@dataclass
class Tasks:
    """A network's tasks for a target, and how tencost tunes by default."""

    network: str
    target: dict[str, Any]
    tasks: list[NetworkTask]
    tuner: TunerConfig

    def contexts(self, seed: int) -> list[Any]:
        seeds = np.random.default_rng(seed).integers(1, 2**30, len(self.tasks))
        return [
            ms.TuneContext(
                mod=task.mod,
                target=Target(self.target),
                space_generator="post-order-apply",
                search_strategy="evolutionary",
                task_name=task.name,
                rand_state=int(one),
                num_threads=CPUS,
            )
            for task, one in zip(self.tasks, seeds, strict=True)
        ]


@derived_object
class Watch(ms.measure_callback.PyMeasureCallback):
    """Notes each measured program with the time at which its batch was there."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []
        self._start = time.perf_counter()

    def apply(
        self, _scheduler: Any, task_id: int, candidates: Any, _builds: Any, results: Any
    ) -> None:
        elapsed = time.perf_counter() - self._start
        for candidate, result in zip(candidates, results, strict=True):
            times = [float(value) for value in result.run_secs or []]
            median = statistics.median(times) if times else float("nan")
            self.rows.append(
                {
                    "trial": len(self.rows) + 1,
                    "seconds": elapsed,
                    "task": int(task_id),
                    "latency_s": median if 0 < median < 1e9 else float("nan"),
                    "trace": json.dumps(trace_values(candidate.sch.trace)),
                    "args": json.dumps([arg_json(item) for item in candidate.args_info]),
                }
            )


def load(network: str, hardware: str) -> Tasks:
    cfg, root = compose([f"network={network}", f"hardware={hardware}"])
    loaded = load_network(cfg.network, root)
    tasks = loaded.tasks(cfg.hardware.target, cfg.tuner.min_mflop)
    return Tasks(network, cfg.hardware.target, list(tasks), cfg.tuner)


def run_stock(tasks: Tasks, seed: int, trials: int) -> pl.DataFrame:
    """Tune with what a user of MetaSchedule gets."""
    watch = Watch()
    with tempfile.TemporaryDirectory(prefix="tencost-tuning-") as folder:
        ms.tune_tasks(
            tasks=tasks.contexts(seed),
            task_weights=[float(task.weight) for task in tasks.tasks],
            work_dir=folder,
            max_trials_global=trials,
            num_trials_per_iter=64,
            builder=ms.builder.LocalBuilder(timeout_sec=120),
            runner=ms.runner.LocalRunner(timeout_sec=120),
            cost_model="xgb",
            measure_callbacks=[
                ms.measure_callback.AddToDatabase(),
                ms.measure_callback.UpdateCostModel(),
                watch,
                ms.measure_callback.RemoveBuildArtifact(),
            ],
        )
    return pl.DataFrame(watch.rows)


@dataclass(frozen=True)
class Inverted(Bundle):
    """A model that likes what is slow."""

    def scores(self, features: Ragged) -> Scores:
        found = super().scores(features)
        return np.where(features.lengths > 0, np.maximum(1.0 - found, LOWEST_SCORE), LOWEST_SCORE)


def run_tencost(
    tasks: Tasks, seed: int, trials: int, model: str, *, starts: bool = True, invert: bool = False
) -> pl.DataFrame:
    """Tune as `tencost tune` does, without a live store; pulling the model and default schedules are on the clock."""
    started = time.perf_counter()
    chosen = load_cost_model(model, root=ROOT)
    book = shipped_starts(chosen.bundle.folder) if starts else None
    if invert:
        bundle = chosen.bundle
        chosen._inst.bundle = Inverted(bundle.folder, bundle.info, bundle.ranker)
    tuner = replace(tasks.tuner, trials=trials, seed=seed)
    batches: list[tuple[float, int]] = []

    def note(batch: Batch) -> None:
        batches.append((time.perf_counter() - started, len(batch.timings)))

    pool = WorkerPool(MeasureOptions(), target_kind="llvm")
    try:
        with (
            tempfile.TemporaryDirectory(prefix="tencost-tuning-") as folder,
            open_folder(Path(folder), tasks.network, "here", tasks.target) as opened,
        ):
            session = Session(
                tasks.tasks,
                tasks.target,
                tuner,
                chosen,
                opened,
                pool,
                threads=CPUS,
                on_batch=note,
                book=book,
            )
            session.measure_baseline()
            session.run()
            programs = opened.new_programs()
    finally:
        pool.close()
    seconds = [moment for moment, count in batches for _ in range(count)]
    places = {workload_id(str(save_json(task.mod))): n for n, task in enumerate(tasks.tasks)}
    rows = []
    for number, (program, moment) in enumerate(zip(programs, seconds, strict=True)):
        times = [value for value in program.run_secs if 0 < value < 1e9]
        rows.append(
            {
                "trial": number + 1,
                "seconds": moment,
                "task": places[program.workload.workload_id],
                "latency_s": statistics.median(times) if times else float("nan"),
                "trace": json.dumps(program.trace),
                "args": json.dumps(program.args_info),
            }
        )
    for item in chosen.history:
        print(f"  {item}")
    return pl.DataFrame(rows)


def bests(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the programs that were the best of their task when they were measured."""
    ok = rows.filter(pl.col("latency_s").is_not_nan())
    return ok.filter(
        pl.col("latency_s")
        < pl.col("latency_s").cum_min().shift(1, fill_value=float("inf")).over("task")
    )


def time_again(
    tasks: Tasks, runs: dict[str, pl.DataFrame]
) -> tuple[dict[str, pl.DataFrame], list[float]]:
    """Time the bests of all runs, and the default schedules, under one evaluator."""
    pool = WorkerPool(AGAIN, target_kind="llvm")
    try:
        with tempfile.TemporaryDirectory(prefix="tencost-tuning-") as folder:
            files = []
            for number, mod in enumerate(task.mod for task in tasks.tasks):
                path = Path(folder) / f"{number}.json"
                path.write_text(str(save_json(mod)), encoding="utf-8")
                files.append(path)
            empty: list[Any] = [[], []]
            args = {
                row["task"]: json.loads(row["args"])
                for run in runs.values()
                for row in run.iter_rows(named=True)
            }
            jobs = [
                Job(TracedProgram(files[task], empty), tasks.target, args.get(task, []))
                for task in range(len(files))
            ]
            chosen = {arm: bests(run) for arm, run in runs.items()}
            for frame in chosen.values():
                jobs += [
                    Job(
                        TracedProgram(files[row["task"]], json.loads(row["trace"])),
                        tasks.target,
                        json.loads(row["args"]),
                    )
                    for row in frame.iter_rows(named=True)
                ]
            order = np.random.default_rng(0).permutation(len(jobs))  # drift hits both arms
            found = {
                int(order[at]): timing for at, timing in pool.measure([jobs[n] for n in order])
            }
    finally:
        pool.close()
    again = [
        statistics.median(found[at].run_secs) if found[at].run_secs else float("inf")
        for at in range(len(jobs))
    ]
    start, timed = len(files), {}
    for arm, frame in chosen.items():
        timed[arm] = frame.with_columns(again_s=pl.Series(again[start : start + frame.height]))
        start += frame.height
    return timed, again[: len(files)]


def curve(
    timed: pl.DataFrame, defaults: list[float], weights: list[int]
) -> list[tuple[int, float, float]]:
    """Return (trials, seconds, total latency in seconds) at each improvement, in order."""
    current = list(defaults)
    points = [(0, 0.0, float(np.dot(weights, current)))]
    for row in timed.sort("trial").iter_rows(named=True):
        current[row["task"]] = min(row["again_s"], defaults[row["task"]])
        points.append((row["trial"], row["seconds"], float(np.dot(weights, current))))
    return points


def at(points: list[tuple[int, float, float]], trials: int) -> float:
    return [total for trial, _, total in points if trial <= trials][-1]


def collect(given: argparse.Namespace, network: str, seed: int) -> None:
    tasks = load(network, given.hardware)
    order = (OURS, STOCK) if seed % 2 else (STOCK, OURS)
    runs = {}
    for arm in order:
        path = RESULTS / f"{network}-{seed}-{arm}.parquet"
        if not path.exists():
            if arm == STOCK:
                print(f"{network} seed {seed} {arm}: {given.stock_trials} trials", flush=True)
                run_stock(tasks, seed, given.stock_trials).write_parquet(path)
            else:
                print(f"{network} seed {seed} {arm}: {given.trials} trials", flush=True)
                run_tencost(tasks, seed, given.trials, given.model).write_parquet(path)
        runs[arm] = pl.read_parquet(path)
    path = RESULTS / f"{network}-{seed}.json"
    if not path.exists():
        timed, defaults = time_again(tasks, runs)
        weights = [task.weight for task in tasks.tasks]
        found = {
            "curves": {arm: curve(frame, defaults, weights) for arm, frame in timed.items()},
            "seconds": {arm: run["seconds"].max() for arm, run in runs.items()},
            "trials": {arm: run.height for arm, run in runs.items()},
            "tasks": {arm: by_task(runs[arm], timed[arm]) for arm in runs},
        }
        path.write_text(json.dumps(found))


def by_task(run: pl.DataFrame, timed: pl.DataFrame) -> dict[int, tuple[int, float]]:
    """Return (programs measured, seconds of the fastest, timed again) by task, of the tasks that have any."""
    counts = run.group_by("task").len()
    best = timed.group_by("task").agg(pl.col("again_s").last())
    return {
        task: (count, seconds)
        for task, count, seconds in counts.join(best, on="task").sort("task").iter_rows()
    }


def guard(given: argparse.Namespace, network: str, seed: int) -> None:
    """Tune with models that know nothing or the contrary, without starting points, and compare with stock's run."""
    path = RESULTS / f"{network}-{seed}-guard.json"
    stock = RESULTS / f"{network}-{seed}-{STOCK}.parquet"
    if path.exists() or not stock.exists():
        return
    tasks = load(network, given.hardware)
    runs = {STOCK: pl.read_parquet(stock)}
    trials = min(given.trials, runs[STOCK].height)
    for arm, model in (("random", given.random_model), ("inverted", given.model)):
        file = RESULTS / f"{network}-{seed}-{arm}.parquet"
        if not file.exists():
            print(f"{network} seed {seed} {arm}: {trials} trials", flush=True)
            run = run_tencost(tasks, seed, trials, model, starts=False, invert=arm == "inverted")
            run.write_parquet(file)
        runs[arm] = pl.read_parquet(file)
    timed, defaults = time_again(tasks, runs)
    curves = {
        arm: curve(frame, defaults, [task.weight for task in tasks.tasks])
        for arm, frame in timed.items()
    }
    path.write_text(json.dumps({"curves": curves, "trials": trials}))


def report_guard() -> None:
    found = {
        path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*-guard.json"))
    }
    if not found:
        return
    print("models that know nothing, without starting points: latency over stock's at equal trials")
    for name, one in found.items():
        stock = at(one["curves"][STOCK], one["trials"])
        ratios = {
            arm: at(one["curves"][arm], one["trials"]) / stock for arm in ("random", "inverted")
        }
        told = ", ".join(f"{arm} {ratio:.3f}" for arm, ratio in ratios.items())
        print(f"{name.removesuffix('-guard'):>18}  {one['trials']} trials: {told}")


def report() -> None:
    """Print a row a run and draw the curves."""
    found = {
        path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*[0-9].json"))
    }
    if not found:
        print("no results yet")
        return
    rows = [summary(name, one) for name, one in found.items()]
    print(
        "latencies in ms, of the default schedules and after tuning; n: programs measured, s: seconds"
    )
    print("trials, seconds: how many times fewer tencost needs for stock's final latency")
    print(
        "at N: tencost's latency over stock's after N trials; task: geometric mean over the tasks that both tuned"
    )
    names = list(dict.fromkeys(name for row in rows for name in row))
    width = {name: max(7, len(name)) for name in names} | {"run": 17}
    print(" ".join(f"{name:>{width[name]}}" for name in names))
    for row in [*rows, mean_row(rows, names)]:
        cells = [row.get(name, "") for name in names]
        told = [f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells]
        print(" ".join(f"{cell:>{width[name]}}" for name, cell in zip(names, told, strict=True)))
    plot(found)


def summary(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a network and seed."""
    stock, ours = found["curves"][STOCK], found["curves"][OURS]
    goal = stock[-1][2]
    reached = next(((trial, second) for trial, second, total in ours if total <= goal), None)
    tasks = found["tasks"]
    both = [task for task in tasks[STOCK] if task in tasks[OURS]]
    row = {
        "run": name,
        "default": 1e3 * stock[0][2],
        "stock": 1e3 * goal,
        "n stock": found["trials"][STOCK],
        "s stock": round(found["seconds"][STOCK]),
        "tencost": 1e3 * ours[-1][2],
        "n": found["trials"][OURS],
        "s": round(found["seconds"][OURS]),
        "trials": found["trials"][STOCK] / reached[0] if reached else float("nan"),
        "seconds": found["seconds"][STOCK] / reached[1] if reached else float("nan"),
    }
    row |= {
        f"at {trials}": at(ours, trials) / at(stock, trials)
        for trials in CHECKPOINTS
        if trials <= min(found["trials"].values())
    }
    ratios = [tasks[OURS][task][1] / tasks[STOCK][task][1] for task in both]
    row["task"] = float(np.exp(np.mean(np.log(ratios))))
    return row


def mean_row(rows: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Return geometric means of the ratios, each over the runs that have it."""
    means: dict[str, Any] = {"run": "geometric mean"}
    for name in names:
        if name in ("trials", "seconds", "task") or name.startswith("at "):
            values = [row[name] for row in rows if name in row]
            means[name] = float(np.exp(np.mean(np.log(values))))
    return means


def plot(found: dict[str, dict[str, Any]]) -> None:
    """Draw every run's curve: a row for trials and one for seconds, a column a network."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    networks = list(dict.fromkeys(name.rsplit("-", 1)[0] for name in found))
    figure, grid = plt.subplots(2, len(networks), figsize=(4 * len(networks), 6), squeeze=False)
    colors = {STOCK: "tab:gray", OURS: "tab:red"}
    for name, one in found.items():
        network, seed = name.rsplit("-", 1)
        for arm, points in one["curves"].items():
            end = [one["trials"][arm], one["seconds"][arm], points[-1][2]]
            steps = [*points, end]
            for axis, column in zip(grid[:, networks.index(network)], (0, 1), strict=True):
                axis.step(
                    [step[column] for step in steps],
                    [1e3 * step[2] for step in steps],
                    where="post",
                    color=colors[arm],
                    alpha=0.8,
                    label=arm if seed == min(n.rsplit("-", 1)[1] for n in found) else None,
                )
    for column, network in enumerate(networks):
        for row, label in enumerate(("programs measured", "seconds")):
            grid[row][column].set(xlabel=label, yscale="log")
            grid[row][column].grid(alpha=0.3)
        grid[0][column].set_title(network)
        grid[1][column].set_xscale("log")
        grid[1][column].set_xlim(left=1)
    for row in (0, 1):
        grid[row][0].set_ylabel("tasks of the network, ms")
    grid[0][0].legend()
    figure.tight_layout()
    figure.savefig(RESULTS / "tuning.png", dpi=100)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", nargs="+", default=["bert_tiny", "gpt2", "efficientnet_b0"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--hardware", default="epyc-avx512-1c")
    parser.add_argument("--stock-trials", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=512)
    parser.add_argument("--model", default="models:/tencost-epyc-avx512-1c@champion")
    parser.add_argument("--guard", action="store_true", help="models that know nothing, instead")
    parser.add_argument(
        "--random-model", default="data/models/tencost-epyc/epyc-avx512-1c/random-per_store/seed0"
    )
    parser.add_argument("--report", action="store_true", help="print the tables from what is there")
    given = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if not given.report:
        os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
        register_cpu_intrinsics()
        for seed in given.seeds:
            for network in given.networks:
                (guard if given.guard else collect)(given, network, seed)
    report()
    report_guard()


if __name__ == "__main__":
    main()
