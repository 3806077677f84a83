"""What the search of one task brings, program by program and second by second: models, starting points, settings.

    taskset -c 1 python benchmarks/search.py [--tasks dense batch_matmul conv2d] [--arms tencost alone random stock]
        [--seeds 0 1] [--trials 128] [--name after] [--set population=128 ...]
    python benchmarks/search.py --report [--names before after]

Each run tunes one task from nothing with warm workers, one thread:

tencost     as `tencost tune` does: the registered model, its starting points
alone       the registered model without starting points
random      random scores in the model's place, without starting points, which learn nothing and cost nothing
starts      random scores with the starting points
stock       stock MetaSchedule: XGBModel, rounds of 64, the same workers

A run is one JSON file in benchmarks/results/search/, and is not repeated while that is there. The report says, for each
arm: best latency after 32, 64 and all programs, seconds and how they were spent, and how many programs and seconds it
took to reach what `random` and `stock` of the same seed had in the end.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from runnable import compose_runnable
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tencost.networks.network import NetworkTask, load_network
from tencost.programs.starting_points import shipped_starts
from tencost.programs.trace.intrinsics import register_cpu_intrinsics
from tencost.tune.cost_model import Round, latencies_s, load_cost_model
from tencost.tune.guard import Arm
from tencost.tune.session import MeasuredBatch, TuningSession
from tencost.tune.workfolder import open_folder
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.pool import WorkerPool
from tencost.workers.runner import WarmBuilder, WarmRunner

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "search"
TASKS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "dense": ("bert_tiny", "fused_matmul3_", ()),
    "batch_matmul": ("bert_tiny", "matmul1", ()),
    "network": ("bert_tiny", "", ()),
    "conv2d": ("resnet_18", "fused_conv2d6_", ("network.config.hidden_sizes=[56,112,224,448]",)),
}
"""Name -> network, what the task's name starts with, changes of the network. None is in the champion's data. `network`
is all five tasks, of which the weighted sum counts: what the task scheduler makes of the budget."""
ARMS = ("tencost", "alone", "random", "starts", "stock")
GOALS = ("random", "stock")


@derived_object
class RandomScores(ms.cost_model.PyCostModel):
    """Stands where a registered model would; scores are random, nothing is learnt."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.history: list[Round] = []
        self.bundle = None
        self._generator = np.random.default_rng(seed)

    def predict(self, _context: Any, candidates: Sequence[Any]) -> Any:
        return self._generator.random(len(candidates))

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        pass

    def warm_start(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        pass

    def not_ranked(self, task: str) -> Round:
        return Round(task=task, arm=Arm.residual, next_arm=Arm.residual, residual_weight=0.0)


@derived_object
class Watch(ms.measure_callback.PyMeasureCallback):
    """Notes the seconds at which each batch of stock's was there, and its latencies."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[dict[str, Any]] = []
        self._start = time.perf_counter()

    def apply(
        self, _scheduler: Any, _task: int, _candidates: Any, _builds: Any, results: Any
    ) -> None:
        seconds = time.perf_counter() - self._start
        found = [one if one == one else None for one in latencies_s(results).tolist()]
        self.batches.append({"seconds": seconds, "latencies_s": found})


def load(name: str, hardware: str) -> tuple[Any, list[NetworkTask]]:
    """Return the configuration and the task, or all tasks of the network."""
    network, start, changes = TASKS[name]
    cfg, root = compose_runnable([f"network={network}", f"hardware={hardware}", *changes])
    tasks = load_network(cfg.network, root).tasks(cfg.hardware.target, cfg.tuner.min_mflop)
    if not start:
        return cfg, list(tasks)
    return cfg, [next(replace(one, weight=1) for one in tasks if one.name.startswith(start))]


def run_stock(cfg: Any, task: NetworkTask, seed: int, trials: int, pool: Any) -> dict[str, Any]:
    context = ms.TuneContext(
        mod=task.mod, target=Target(cfg.hardware.target), space_generator="post-order-apply",
        search_strategy="evolutionary", task_name=task.name, rand_state=seed + 1, num_threads=1,
    )  # fmt: skip
    watch = Watch()
    with tempfile.TemporaryDirectory(prefix="tencost-search-") as folder:
        ms.tune_tasks(
            tasks=[context],
            task_weights=[1.0],
            work_dir=folder,
            max_trials_global=trials,
            num_trials_per_iter=min(64, trials),
            builder=WarmBuilder(),
            runner=WarmRunner(pool),
            cost_model=ms.cost_model.XGBModel(num_tuning_cores=1),
            measure_callbacks=[
                ms.measure_callback.AddToDatabase(),
                ms.measure_callback.UpdateCostModel(),
                watch,
                ms.measure_callback.RemoveBuildArtifact(),
            ],
        )
    return {"batches": watch.batches}


def run_tencost(
    cfg: Any,
    tasks: list[NetworkTask],
    seed: int,
    given: argparse.Namespace,
    arm: str,
    pool: Any,
    path: Path,
) -> dict[str, Any]:
    loaded = load_cost_model(given.model, root=ROOT)
    model = RandomScores(seed) if arm in ("random", "starts") else loaded
    changes: dict[str, Any] = {"trials": given.trials, "seed": seed}
    changes |= {key: json.loads(value) for key, value in (one.split("=") for one in given.set)}
    if arm == "random" and "population" not in changes:
        changes["population"] = min(64, cfg.tuner.population)  # more of what is random is no better
    if arm in ("random", "starts"):
        changes["learn"] = False
    if arm in ("alone", "random"):
        changes["starts"] = 0
    tuner = replace(cfg.tuner, **changes)
    book = shipped_starts(loaded.bundle.folder) if tuner.starts else None
    batches: list[dict[str, Any]] = []
    ends: list[float] = []

    def note(batch: MeasuredBatch) -> None:
        found = [statistics.median(one.run_secs) if one.run_secs else None for one in batch.timings]
        if len(tasks) > 1:
            found = [batch.total_latency_s] * len(found)
        ranked = {} if batch.round.num_measured == 0 else {
            one.value: score.spearman for one, score in batch.round.scores.items()
        }  # fmt: skip
        batches.append({"seconds": batch.elapsed_s, "latencies_s": found, "spearman": ranked})
        ends.append(batch.elapsed_s)

    with (
        tempfile.TemporaryDirectory(prefix="tencost-search-") as folder,
        open_folder(Path(folder), "task", "here", cfg.hardware.target) as opened,
    ):
        session = TuningSession(
            tasks, cfg.hardware.target, tuner, model, opened, pool, threads=1, on_batch=note, book=book
        )  # fmt: skip
        session.measure_baseline()
        before = time.perf_counter()
        outcome = session.run()
        seconds = time.perf_counter() - before
    if model is loaded:
        loaded.save(str(path.with_suffix(".npz")))
    settled = getattr(outcome, "settled", False)
    return {"batches": batches, "run_seconds": seconds, "settled": settled}


def measured(pool: WorkerPool, spent: list[float]) -> None:
    """Note what the pool spends on building and timing."""
    before = pool.measure

    def measure(*args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            yield from before(*args, **options)
        finally:
            spent.append(time.perf_counter() - start)

    pool.measure = measure  # type: ignore[method-assign]


def collect(given: argparse.Namespace) -> None:
    for seed in given.seeds:
        for name in given.tasks:
            for arm in given.arms:
                path = RESULTS / f"{given.name}-{name}-{arm}-{seed}.json"
                if path.exists():
                    continue
                cfg, tasks = load(name, given.hardware)
                pool = WorkerPool(MeasureOptions(), target_kind="llvm")
                spent: list[float] = []
                measured(pool, spent)
                try:
                    if arm == "stock":
                        found = run_stock(cfg, tasks[0], seed, given.trials, pool)
                    else:
                        found = run_tencost(cfg, tasks, seed, given, arm, pool, path)
                finally:
                    pool.close()
                found["measuring"] = sum(spent)
                path.write_text(json.dumps(found))
                told = summary(found)
                print(f"{path.stem}: {told}", flush=True)


def curve(found: dict[str, Any]) -> list[tuple[int, float, float]]:
    """Return (programs, seconds, best latency in seconds so far), a program a row."""
    rows: list[tuple[int, float, float]] = []
    best = float("inf")
    for batch in found["batches"]:
        for latency in batch["latencies_s"]:
            best = min(best, latency or best)
            rows.append((len(rows) + 1, batch["seconds"], best))
    return rows


def summary(found: dict[str, Any]) -> str:
    rows = curve(found)
    at = {number: rows[min(number, len(rows)) - 1] for number in (16, 32, 64, len(rows))}
    told = ", ".join(
        f"{n}: {1e6 * best:.1f} us {seconds:.0f} s" for n, (_, seconds, best) in at.items()
    )
    return f"{told}; measuring {found['measuring']:.0f} s, rounds {len(found['batches'])}"


def first_at(rows: list[tuple[int, float, float]], goal: float) -> tuple[float, float]:
    """Return (programs, seconds) until a latency within 1 % of the goal was known; infinite where it was not."""
    return next(
        ((n, seconds) for n, seconds, best in rows if best <= 1.01 * goal), (math.inf, math.inf)
    )


def report(names: list[str]) -> None:
    found = {
        tuple(path.stem.rsplit("-", 3)): json.loads(path.read_text())
        for path in sorted(RESULTS.glob("*.json"))
    }
    head = ["task", "arm", "version", "seed", "us at 32", "us at 64", "us", "programs", "s", "measuring s",
            *(f"{what} to {goal}'s" for goal in GOALS for what in ("programs", "s"))]  # fmt: skip
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    ratios: dict[tuple[str, str, str], list[float]] = {}
    for (version, task, arm, seed), one in sorted(
        found.items(), key=lambda item: (item[0][1], item[0][2], item[0][3])
    ):
        if names and version not in names:
            continue
        rows = curve(one)
        cells = [task, arm, version, seed]
        cells += [f"{1e6 * rows[min(n, len(rows)) - 1][2]:.1f}" for n in (32, 64, len(rows))]
        cells += [str(len(rows)), f"{rows[-1][1]:.0f}", f"{one['measuring']:.0f}"]
        for goal in GOALS:
            other = next((value for key, value in found.items() if key[1:] == (task, goal, seed)
                          and (key[0] == version or goal == "stock")), None)  # fmt: skip
            if other is None:
                cells += ["", ""]
                continue
            its = curve(other)
            programs, seconds = first_at(rows, its[-1][2])
            cells += [f"{programs:.0f}", f"{seconds:.0f}"]
            ratios.setdefault((version, arm, goal), []).append(len(its) / programs)
        print("| " + " | ".join(cells) + " |")
    for (version, arm, goal), values in sorted(ratios.items()):
        if arm != goal:
            mean = math.exp(statistics.fmean(math.log(max(value, 0.5)) for value in values))
            print(
                f"{version} {arm}: {mean:.2f} times fewer programs than {goal} ({len(values)} runs; not reached: 0.5)"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tasks",
        nargs="+",
        default=[one for one in TASKS if one != "network"],
        choices=list(TASKS),
    )
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--hardware", default="local")
    parser.add_argument("--model", default="models:/tencost-epyc-avx512-1c@champion")
    parser.add_argument("--name", default="now", help="what the results are called")
    parser.add_argument("--set", nargs="*", default=[], help="fields of the tuner, field=value")
    parser.add_argument("--report", action="store_true", help="print the table of what is there")
    parser.add_argument("--names", nargs="*", default=[], help="of the report")
    given = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if not given.report:
        os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
        register_cpu_intrinsics()
        collect(given)
    report(given.names)


if __name__ == "__main__":
    main()
