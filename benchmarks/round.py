"""What a tuning round costs, by part: MetaSchedule's search with TVM's cost models and with registered ones, one run.

    taskset -c 0 python benchmarks/round.py [--models models:/...] [--workloads dense conv2d batch_matmul]
                                            [--seeds 1 2 3] [--population 512] [--out benchmarks/results/round.md]

A round is what ms.tune_tir does between two batches of measurements: an initial population, generations of mutation,
all of it scored, 64 programs proposed. Nothing is measured; all models have learnt from the same 64 programs before,
with times made up from a registered model's scores. One thread; the order of the models is rotated over the seeds.
Seconds are of CPU, so that other processes matter little; the search's own parts are its CPU time, split as TVM's
profiler splits its wall time.

lowered    candidates whose features were extracted (TVM's XGBModel extracts all)
top 16     mean score of the 16 best proposed programs, by the last registered model in full: what drafting may cost
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.cost_model import RandomModel, XGBModel
from tvm.target import Target

from tencost.config.composition import compose
from tencost.features.kinds import per_store, tiles
from tencost.models import draft_model as draft
from tencost.networks.network import load_network
from tencost.programs.trace.intrinsics import register_cpu_intrinsics
from tencost.tune import cost_model, residual
from tencost.tune.cost_model import load_cost_model

ROOT = Path(__file__).resolve().parents[1]
WORKLOADS = {
    "dense": ("bert_tiny", "fused_matmul3_"),
    "conv2d": ("resnet_50", "fused_conv2d16_"),
    "batch_matmul": ("bert_tiny", "matmul1"),
}
"""Name -> network and what the task's name starts with."""
STOCK, RANDOM = "tvm XGBModel", "tvm random"
TAUGHT = 64
TIMED: dict[str, tuple[tuple[Any, str], ...]] = {
    "keys": ((cost_model, "trace_key"),),
    "trace": ((tiles, "plain_trace"),),
    "tiles": ((tiles, "tile_row"),),
    "per_store": ((per_store, "extract"),),
    "draft": ((draft.Draft, "__init__"), (draft.Draft, "guess")),
    "learnt": (
        (residual.Residual, "apply"),
        (residual.Residual, "alone"),
        (cost_model, "aggregate"),
    ),
}
"""Part of scoring -> the functions that it is spent in."""
PARTS = ("initial", "mutation", "search", *TIMED, "model", "other")


@dataclass
class Cost:
    """A round: CPU seconds by part, and what came out."""

    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    scoring: float = 0.0
    candidates: int = 0
    lowered: int = 0
    proposed: list[Any] = field(default_factory=list)
    top: float = float("nan")


def load_workloads(names: list[str], hardware: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the target and the module of each workload."""
    modules: dict[str, Any] = {}
    for network in dict.fromkeys(WORKLOADS[name][0] for name in names):
        cfg, root = compose([f"network={network}", f"hardware={hardware}"])
        tasks = load_network(cfg.network, root).tasks(cfg.hardware.target)
        for name in names:
            wanted, start = WORKLOADS[name]
            if wanted == network:
                modules[name] = next(task.mod for task in tasks if task.name.startswith(start))
    return dict(cfg.hardware.target), modules


def context(name: str, mod: Any, target: dict[str, Any], seed: int, strategy: Any) -> Any:
    return ms.TuneContext(
        mod=mod, target=Target(target), space_generator="post-order-apply", search_strategy=strategy,
        task_name=name, rand_state=seed, num_threads=1,
    )  # fmt: skip


def timed(call: Callable[..., Any], note: Callable[[float], None]) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        start = time.process_time()
        try:
            return call(*args, **options)
        finally:
            note(time.process_time() - start)

    return run


@contextmanager
def watched(model: Any, cost: Cost) -> Iterator[None]:
    """Note in `cost` what the parts of scoring take; only for the time of the round."""
    undo: list[tuple[Any, str, Any]] = []

    def watch(owner: Any, name: str, note: Callable[[float], None]) -> None:
        undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, timed(undo[-1][2], note))

    def adder(part: str) -> Callable[[float], None]:
        def note(seconds: float) -> None:
            cost.parts[part] += seconds

        return note

    def scored(seconds: float) -> None:
        cost.scoring += seconds

    tiles._remembered.clear()  # each model reads what it scores itself
    for part, places in TIMED.items():
        for owner, name in places:
            watch(owner, name, adder(part))
    inner = getattr(model, "_inst", None)
    if inner is not None:
        watch(inner, "predict", scored)
    if isinstance(getattr(inner, "extractor", None), ms.FeatureExtractor):
        undo.append((inner, "extractor", inner.extractor))
        reader = timed(inner.extractor.extract_from, adder("per_store"))
        inner.extractor = SimpleNamespace(extract_from=reader)
    elif hasattr(inner, "bundle"):
        watch(inner.bundle.ranker, "predict", adder("model"))
    try:
        yield
    finally:
        for owner, name, before in undo:
            setattr(owner, name, before)


def a_round(task: Any, model: Any, given: argparse.Namespace) -> Cost:
    strategy = ms.search_strategy.EvolutionarySearch(
        population_size=given.population, genetic_num_iters=given.generations
    )
    tuned = context(*task, strategy)
    spaces = tuned.generate_design_space()
    tuned.pre_tuning(1000, 64, spaces, ms.database.MemoryDatabase(), model)
    cost = Cost(candidates=given.population * (given.generations + 1))
    lowered = len(getattr(getattr(model, "_inst", None), "_cache", ()))
    with watched(model, cost), ms.Profiler() as profiler:
        start = time.process_time()
        cost.proposed = list(tuned.generate_measure_candidates())
        cost.seconds = time.process_time() - start
    tuned.post_tuning()
    wall = {name.split("/")[-1]: float(value.value) for name, value in profiler.get().items()}
    scoring = wall["PredictNormalizedScore"]
    rate = (cost.seconds - cost.scoring) / max(wall["Total"] - scoring, 1e-9)
    cost.parts["initial"] = rate * wall["SampleInitPopulation"]
    cost.parts["mutation"] = rate * wall["Mutation"]
    cost.parts["search"] = (
        cost.seconds - cost.scoring - cost.parts["initial"] - cost.parts["mutation"]
    )
    cost.parts["other"] = cost.scoring - sum(cost.parts[part] for part in (*TIMED, "model"))
    cost.lowered = len(getattr(getattr(model, "_inst", None), "_cache", ())) - lowered
    return cost


def taught(model: Any, tuned: Any, candidates: list[Any], scores: Any) -> Any:
    """Let the model learn from times made up from scores."""
    results = [ms.runner.RunnerResult([1e-3 / float(score)], None) for score in scores]
    model.update(tuned, candidates, results)
    return model


def compare(
    task: Any, makers: dict[str, Callable[[], Any]], judge: Any, turn: int, given: Any
) -> dict[str, Cost]:
    tuned = context(*task[:3], task[3] + 1000, "replay-trace")
    tuned.pre_tuning(TAUGHT, TAUGHT, tuned.generate_design_space())
    known = list(tuned.generate_measure_candidates())
    tuned.post_tuning()
    times = judge.predict(tuned, known)
    names = list(makers)
    costs = {}
    for name in names[turn % len(names) :] + names[: turn % len(names)]:
        costs[name] = a_round(task, taught(makers[name](), tuned, known, times), given)
        best = np.sort(judge.predict(tuned, costs[name].proposed))[-16:]
        costs[name].top = float(best.mean())
    return {name: costs[name] for name in names}


def table(found: dict[str, list[dict[str, Cost]]], models: list[str]) -> str:
    parts = [part for part in PARTS if part != "other"] + ["other"]
    head = [
        "workload",
        "cost model",
        "s",
        "from - to",
        "x XGBModel",
        "candidates/s",
        "lowered",
        "top 16",
        *parts,
    ]
    lines = [head, ["---"] * len(head)]
    for workload, runs in found.items():
        stock = statistics.median(run[STOCK].seconds for run in runs)
        for name in models:
            costs = [run[name] for run in runs]
            seconds = [cost.seconds for cost in costs]
            middle = statistics.median(seconds)
            shares = [statistics.median(cost.parts[part] for cost in costs) for part in parts]
            lowered = statistics.median(cost.lowered for cost in costs)
            lines.append([
                workload, name, f"{middle:.2f}", f"{min(seconds):.2f} - {max(seconds):.2f}", f"{middle / stock:.2f}",
                f"{costs[0].candidates / middle:.0f}", f"{lowered:.0f}" if lowered else "",
                f"{statistics.mean(cost.top for cost in costs):.4f}", *(f"{share:.2f}" for share in shares),
            ])  # fmt: skip
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["models:/tencost-epyc-avx512-1c@champion"])
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--hardware", default="epyc-avx512-1c")
    parser.add_argument("--population", type=int, default=512)
    parser.add_argument("--generations", type=int, default=4)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "round.md")
    given = parser.parse_args()
    register_cpu_intrinsics()
    target, modules = load_workloads(given.workloads, given.hardware)
    makers: dict[str, Callable[[], Any]] = {
        RANDOM: RandomModel,
        STOCK: lambda: XGBModel(num_tuning_cores=1, num_warmup_samples=1),
    }
    for uri in given.models:
        makers[f"{uri}, all in full"] = lambda uri=uri: load_cost_model(uri, draft=False, root=ROOT)
        makers[uri] = lambda uri=uri: load_cost_model(uri, root=ROOT)
    judge = load_cost_model(given.models[-1], frozen=True, draft=False, root=ROOT)
    found: dict[str, list[dict[str, Cost]]] = {}
    for name, mod in modules.items():
        runs = found.setdefault(name, [])
        for turn, seed in enumerate(given.seeds):
            runs.append(compare((name, mod, target, seed), makers, judge, turn, given))
    told = (
        f"{given.population} programs, {given.generations} generations, {len(given.seeds)} seeds, one thread; "
        f"CPU seconds, medians\n\n{table(found, list(makers))}\n"
    )
    print(told)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(told)


if __name__ == "__main__":
    main()
