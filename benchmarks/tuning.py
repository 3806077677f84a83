"""Tuning task by task with a registered model against stock MetaSchedule: equal budgets, ablations, live.

    python benchmarks/tuning.py [--networks odd_vit ...] [--tasks 5] [--programs 192] [--seeds 0 1] [--arms ...]
                                [--model models:/...@champion] [--report]

Every arm measures the same number of programs of each task, one task after the other, on the CPUs that this process may
use, one thread a program. Arms take turns task by task, so that noise hits all of them:

stock        what a user gets: XGBModel, LocalBuilder, LocalRunner, rounds of 64 (in its favour: limits of 120 s in
             place of 30, as its workers import for up to 20 s on a busy machine, and a worker for each CPU of this
             process, not of the host)
stock-warm   the same with our warm workers as builder and runner
tencost      what `tencost tune` does with conf/tuner/default.yaml: the registered model, its starting points, warm
             workers
no-tiles     ... in TVM's design spaces alone (tuner.register_tiles=false)
no-starts    ... without starting points: neither programs of other workloads nor tiles that the rules know
random       ... with random scores in the model's place, which learns nothing; the same starting points
random-no-starts   both: what is searched in, and nothing else
frozen       ... without learning from what is measured (tuner.learn=false)
frozen-no-starts   ... and without starting points: what the registered model alone is worth; only if asked for
no-draft     ... every candidate's features are extracted
inverted     ... without starting points, with a model that likes what is slow; only if asked for
knn          ... with the bundle of --knn in the registered model's place, which learns as that does; the same starting
             points; only if asked for
rule         the program that `tencost compile` takes where nothing is tuned, nothing searched; only if asked for

What is paid once a session (the model, the workers' imports) is on nobody's clock; default schedules are on ours.
Afterwards every program that was ever the best of its task, in whichever arm, is timed again under one evaluator, in
random order in one process: only these times are compared.

odd_vit, odd_resnet and odd_encoder have widths that no network of conf/network has; others are names from there.
Raw results, one row a measured program, are kept in benchmarks/results/tasks/<network>-<seed>/<task>-<arm>.parquet;
what is there is not run again, so the script can be stopped and goes on. --report prints the tables from what is there;
tuning_table.py says how they are to be read.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tuning_table as table
from runnable import compose_runnable
from tvm.ir import IRModule, save_json
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tencost.config import TunerConfig
from tencost.errors import TencostError
from tencost.features.rows.ragged import Ragged
from tencost.models.programs.bundle import Bundle
from tencost.models.programs.bundle.calibration import LOWEST_SCORE
from tencost.models.programs.ranker import Scores
from tencost.networks.network import NetworkTask, load_network
from tencost.programs.codegen import rules
from tencost.programs.codegen.overlap import arguments_of
from tencost.programs.starting_points import shipped_starts
from tencost.programs.trace.instructions import trace_values
from tencost.programs.trace.intrinsics import register_cpu_intrinsics
from tencost.tune.cost_model import load_cost_model
from tencost.tune.session import MeasuredBatch, TuningSession
from tencost.tune.workfolder import open_folder
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.pool import Job, WorkerPool
from tencost.workers.runner import WarmBuilder, WarmRunner, arg_json
from tencost.workers.warm_worker import TracedProgram
from tencost.writing import whole_file

ROOT = Path(__file__).resolve().parents[1]
CPUS = len(os.sched_getaffinity(0))
ODD = {
    "odd_vit": (
        *(
            "network=vit_s",
            "network.config.hidden_size=312",
            "network.config.num_attention_heads=6",
        ),
        *("network.config.intermediate_size=1000", "network.size=208"),
    ),
    "odd_resnet": (
        *("network=resnet_18", "++network.config.embedding_size=56"),
        *("network.config.hidden_sizes=[56,104,216,440]", "network.size=208"),
    ),
    "odd_encoder": (
        *(
            "network=bert_tiny",
            "network.config.hidden_size=168",
            "network.config.num_attention_heads=3",
        ),
        *("network.config.intermediate_size=616", "network.size=120"),
    ),
}
"""Networks of widths that no network of conf/network has."""
STOCK_LIMIT_S = 120
AGAIN = MeasureOptions(repeat=5, max_repeat=15, max_cv=0.05, min_repeat_ms=20)
"""The evaluator of the comparison."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """How an arm differs from `tencost tune`."""

    starts: bool = True
    tiles: bool = True
    scores: str = "model"  # random, inverted, knn
    learns: bool = True
    draft: bool = True


STOCK = ("stock", "stock-warm")
RULE = "rule"
VARIANTS = {
    "tencost": Variant(),
    "no-tiles": Variant(tiles=False),
    "no-starts": Variant(starts=False),
    "random": Variant(scores="random", learns=False),
    "random-no-starts": Variant(starts=False, scores="random", learns=False),
    "frozen": Variant(learns=False),
    "no-draft": Variant(draft=False),
    "frozen-no-starts": Variant(starts=False, learns=False),
    "inverted": Variant(starts=False, scores="inverted"),
    "knn": Variant(scores="knn"),
}
ASKED_FOR = ("frozen-no-starts", "inverted", "knn", RULE)


@dataclass(frozen=True)
class Tasks:
    """A network's costliest tasks for a target, and how tencost tunes by default."""

    network: str
    target: dict[str, Any]
    tasks: list[NetworkTask]
    tuner: TunerConfig


@derived_object
class Watch(ms.measure_callback.PyMeasureCallback):
    """Notes each measured program with the time at which its batch was there."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []
        self._start = time.perf_counter()

    def apply(
        self, _scheduler: Any, _task_id: int, candidates: Any, _builds: Any, results: Any
    ) -> None:
        elapsed = time.perf_counter() - self._start
        for candidate, result in zip(candidates, results, strict=True):
            self.rows.append(
                {
                    "trial": len(self.rows) + 1,
                    "seconds": elapsed,
                    "latency_s": median_s(result.run_secs or []),
                    "trace": json.dumps(trace_values(candidate.sch.trace)),
                    "args": json.dumps([arg_json(item) for item in candidate.args_info]),
                }
            )


def median_s(times: Sequence[Any]) -> float:
    """Return the median of a program's times; NaN where it has none."""
    valid = [float(value) for value in times if 0 < float(value) < 1e9]
    return statistics.median(valid) if valid else float("nan")


def load(network: str, hardware: str, count: int) -> Tasks:
    chosen = ODD.get(network, (f"network={network}",))
    # Programs that reorder weights hold what a trace's plain values cannot.
    cfg, root = compose_runnable([*chosen, f"hardware={hardware}", "network.pack_weights=false"])
    loaded = load_network(cfg.network, root)
    tasks = loaded.tasks(cfg.hardware.target, cfg.tuner.min_mflop)
    return Tasks(network, cfg.hardware.target, list(tasks)[:count], cfg.tuner)


def seed_of(seed: int, place: int) -> int:
    return int(np.random.default_rng((seed, place)).integers(1, 2**30))


def run_stock(
    tasks: Tasks, place: int, seed: int, programs: int, pool: WorkerPool | None
) -> pl.DataFrame:
    """Tune a task with what a user of MetaSchedule gets, or with the pool's workers."""
    task = tasks.tasks[place]
    context = ms.TuneContext(
        mod=task.mod,
        target=Target(tasks.target),
        space_generator="post-order-apply",
        search_strategy="evolutionary",
        task_name=task.name,
        rand_state=seed_of(seed, place),
        num_threads=CPUS,
    )
    workers: dict[str, Any] = {
        "builder": ms.builder.LocalBuilder(max_workers=CPUS, timeout_sec=STOCK_LIMIT_S),
        "runner": ms.runner.LocalRunner(timeout_sec=STOCK_LIMIT_S),
    }
    if pool is not None:
        workers = {"builder": WarmBuilder(), "runner": WarmRunner(pool)}
    watch = Watch()
    with tempfile.TemporaryDirectory(prefix="tencost-tuning-") as folder:
        ms.tune_tasks(
            tasks=[context],
            task_weights=[float(task.weight)],
            work_dir=folder,
            max_trials_global=programs,
            num_trials_per_iter=64,
            cost_model="xgb",
            measure_callbacks=[
                ms.measure_callback.AddToDatabase(),
                ms.measure_callback.UpdateCostModel(),
                watch,
                ms.measure_callback.RemoveBuildArtifact(),
            ],
            **workers,
        )
    return pl.DataFrame(watch.rows, schema=table.SCHEMA)


@dataclass(frozen=True)
class Inverted(Bundle):
    """A model that likes what is slow."""

    def scores(self, features: Ragged) -> Scores:
        found = super().scores(features)
        return np.where(features.lengths > 0, np.maximum(1.0 - found, LOWEST_SCORE), LOWEST_SCORE)


@derived_object
class Blind(ms.cost_model.PyCostModel):
    """Random scores in the place of a model."""

    def __init__(self, model: Any, seed: int) -> None:
        super().__init__()
        self.bundle, self.history, self.not_ranked = model.bundle, model.history, model.not_ranked
        self._generator = np.random.default_rng(seed)

    def predict(self, _context: Any, candidates: Sequence[Any]) -> Any:
        return self._generator.uniform(0.01, 1.0, len(candidates))

    def update(self, _context: Any, _candidates: Any, _results: Any) -> None:
        pass

    def warm_start(self, _context: Any, _candidates: Any, _results: Any) -> None:
        pass

    def load(self, _path: str) -> None:
        pass

    def save(self, _path: str) -> None:
        pass


def by_rule(task: NetworkTask, target: dict[str, Any], file: Path) -> Job:
    """Return the measurement of a task as the rules schedule it; its module is written to a file."""
    module = IRModule({"main": rules.scheduled(task.mod["main"], target)})
    file.write_text(str(save_json(module)), encoding="utf-8")
    arguments = [arg_json(argument) for argument in arguments_of(module)]
    return Job(file, rules.leave(module, target), arguments)


def run_rule(tasks: Tasks, place: int, pool: WorkerPool) -> pl.DataFrame:
    """Time a task's program by rule; one row, without a trace."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tencost-tuning-") as folder:
        job = by_rule(tasks.tasks[place], tasks.target, Path(folder) / "by-rule.json")
        timing = pool.measure_one(job)
    row = {
        "trial": 1,
        "seconds": time.perf_counter() - started,
        "latency_s": median_s(timing.run_secs or []),
        "trace": "",
        "args": json.dumps(list(job.args)),
    }
    return pl.DataFrame([row], schema=table.SCHEMA)


def run_tencost(
    tasks: Tasks,
    place: int,
    seed: int,
    programs: int,
    models: tuple[str, str | None],
    pool: WorkerPool,
    arm: Variant,
) -> pl.DataFrame:
    """Tune a task as `tencost tune` does, without a live store; with the registered model of two, or the other."""
    registered, neighbours = models
    chosen = load_cost_model(registered, root=ROOT, frozen=not arm.learns, draft=arm.draft)
    bundle = chosen.bundle
    book = shipped_starts(bundle.folder) if arm.starts else None
    if arm.scores == "knn":
        assert neighbours is not None
        chosen = load_cost_model(neighbours, root=ROOT)
    if arm.scores == "inverted":
        chosen._inst.bundle = Inverted(bundle.folder, bundle.info, bundle.ranker)
    elif arm.scores == "random":
        chosen = Blind(chosen, seed_of(seed, place))
    started = time.perf_counter()
    tuner = replace(
        tasks.tuner,
        trials=programs,
        seed=seed_of(seed, place),
        learn=arm.learns,
        register_tiles=arm.tiles,
        starts=tasks.tuner.starts if arm.starts else 0,
        min_gain=0.0,
    )
    batches: list[tuple[float, int]] = []

    def note(batch: MeasuredBatch) -> None:
        batches.append((time.perf_counter() - started, len(batch.timings)))

    with (
        tempfile.TemporaryDirectory(prefix="tencost-tuning-") as folder,
        open_folder(Path(folder), tasks.network, "here", tasks.target) as opened,
    ):
        session = TuningSession(
            [tasks.tasks[place]],
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
        found = opened.new_programs()
    seconds = [moment for moment, count in batches for _ in range(count)]
    rows = [
        {
            "trial": number,
            "seconds": moment,
            "latency_s": median_s(program.run_secs),
            "trace": json.dumps(program.trace),
            "args": json.dumps(program.args_info),
        }
        for number, (program, moment) in enumerate(zip(found, seconds, strict=True), start=1)
    ]
    return pl.DataFrame(rows, schema=table.SCHEMA)


def runner_of(arm: str, models: tuple[str, str | None]) -> Callable[..., pl.DataFrame]:
    """Return what runs an arm on (tasks, place, seed, programs, pool)."""
    if arm == RULE:
        return lambda *given: run_rule(given[0], given[1], given[4])
    if arm in STOCK:
        return lambda *given: run_stock(*given[:4], given[4] if arm == "stock-warm" else None)
    variant = VARIANTS[arm]
    return lambda *given: run_tencost(*given[:4], models, given[4], variant)


def collect(given: argparse.Namespace, network: str, seed: int) -> None:
    """Run what has not been run yet, then time the best programs again."""
    folder = given.results / f"{network}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    tasks = load(network, given.hardware, given.tasks)
    check_settings(folder, tasks, given)
    with closing(WorkerPool(MeasureOptions(), target_kind="llvm")) as pool:
        for place, task in enumerate(tasks.tasks):
            order = np.random.default_rng((seed, place)).permutation(given.arms)
            for arm in map(str, order):
                file = folder / f"{place}-{arm}.parquet"
                if file.exists():
                    continue
                print(f"{network} seed {seed}: {task.name}, {arm}", flush=True)
                pool.probe()  # imports are on nobody's clock
                run = runner_of(arm, (given.model, given.knn))
                frame = run(tasks, place, seed, given.programs, pool).head(given.programs)
                with whole_file(file) as new:
                    frame.write_parquet(new)
    runs = read_runs(folder, len(tasks.tasks))
    if not (folder / "again.json").exists() or table.is_older(folder, runs):
        print(f"{network} seed {seed}: timing the best programs again", flush=True)
        with whole_file(folder / "again.json") as new:
            new.write_text(json.dumps(time_again(tasks, runs)))


def check_settings(folder: Path, tasks: Tasks, given: argparse.Namespace) -> None:
    """Keep what a folder's runs have in common; runs with other settings are not to be mixed with them."""
    values = {
        "network": tasks.network,
        "hardware": given.hardware,
        "programs": given.programs,
        "model": given.model,
        "cpus": CPUS,
        "tasks": [[task.name, task.weight, task.flop] for task in tasks.tasks],
    }
    file = folder / "settings.json"
    if not file.exists():
        file.write_text(json.dumps(values, indent=1) + "\n")
    found = json.loads(file.read_text())
    if found != values:
        other = [key for key in values if found.get(key) != values[key]]
        raise SystemExit(
            f"{folder}: expected runs of the same {', '.join(other)}, found others. Move the folder away"
        )


def read_runs(folder: Path, count: int) -> dict[tuple[int, str], pl.DataFrame]:
    """Return the runs of a folder by (task, arm)."""
    files = [
        (place, file)
        for place in range(count)
        for file in sorted(folder.glob(f"{place}-*.parquet"))
    ]
    return {(place, file.stem.partition("-")[2]): pl.read_parquet(file) for place, file in files}


def time_again(
    tasks: Tasks, runs: Mapping[tuple[int, str], pl.DataFrame]
) -> dict[str, list[list[float]]]:
    """Time the bests of all runs under one evaluator.

    Returns:
        By "<task>-<arm>": (trial, seconds since it began, latency in s) of each program that was the best so far.
    """
    jobs, marks = [], []
    with (
        closing(WorkerPool(AGAIN, target_kind="llvm")) as pool,
        tempfile.TemporaryDirectory(prefix="tencost-tuning-") as folder,
    ):
        for (place, arm), run in runs.items():
            module = Path(folder) / f"{place}.json"
            module.write_text(str(save_json(tasks.tasks[place].mod)), encoding="utf-8")
            for row in table.bests(run).iter_rows(named=True):
                if arm == RULE:
                    file = Path(folder) / f"{place}-by-rule.json"
                    jobs.append(by_rule(tasks.tasks[place], tasks.target, file))
                else:
                    program = TracedProgram(module, json.loads(row["trace"]))
                    jobs.append(Job(program, tasks.target, json.loads(row["args"])))
                marks.append((f"{place}-{arm}", row["trial"], row["seconds"]))
        order = np.random.default_rng(0).permutation(len(jobs))  # drift hits all arms
        timings = {int(order[at]): timing for at, timing in pool.measure([jobs[n] for n in order])}
    found: dict[str, list[list[float]]] = {f"{place}-{arm}": [] for place, arm in runs}
    for number, (name, trial, seconds) in enumerate(marks):
        latency = median_s(timings[number].run_secs)
        if latency == latency:
            found[name].append([trial, seconds, latency])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [*STOCK, *VARIANTS, RULE]
    parser.add_argument("--networks", nargs="+", default=[*ODD, "bert_tiny"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument(
        "--arms", nargs="+", choices=known, default=[one for one in known if one not in ASKED_FOR]
    )
    parser.add_argument("--tasks", type=int, default=5, help="of a network, the costliest ones")
    parser.add_argument("--programs", type=int, default=192, help="of a task, in every arm")
    parser.add_argument("--hardware", default="local")
    parser.add_argument("--model", default="models:/tencost-epyc-avx512-1c@champion")
    parser.add_argument(
        "--knn", help="folder of a bundle of the family knn, for the arm of that name"
    )
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results" / "tasks")
    parser.add_argument("--report", action="store_true", help="print the tables from what is there")
    given = parser.parse_args()
    if "knn" in given.arms and given.knn is None and not given.report:
        parser.error(
            "--arms knn needs --knn: data/models/<dataset>/<hardware>/knn-per_store_tiles/seed0"
        )
    if not given.report:
        os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
        register_cpu_intrinsics()
        try:
            load_cost_model(given.model, root=ROOT)  # before hours of stock's
        except TencostError as error:
            raise SystemExit(str(error)) from error
        for seed in given.seeds:
            for network in given.networks:
                collect(given, network, seed)
    print(table.report(given.results))


if __name__ == "__main__":
    main()
