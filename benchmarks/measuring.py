"""What building and timing programs costs: tencost's warm worker against TVM's LocalBuilder and LocalRunner.

    python benchmarks/measuring.py [speed] [programs] [memory] [--quick]

speed     The same random programs of three tasks, built and timed by both sides in one run, a task after the other, the
          order of the two sides alternated. Stock's builder and runner are made as a user makes them, but for a longer
          time limit (its workers import 17 s of tensor intrinsics for every batch; the default of 30 s fails on a busy
          machine), and one thread a program (TVM_NUM_THREADS=1, both sides). Its default evaluator (3 runs, at least
          100 ms) takes longer than ours (3 times of 10 ms, more if they scatter), so that a second pass of its runner,
          over the libraries that are already built, takes 3 times of 10 ms as well: the fairer ratio, and the two
          passes say how well stock agrees with itself on this machine. Not counted on either side: what is paid once
          a session, the builder's and runner's constructors there, the worker's start and first probes here.
programs  Distinct programs a second from tencost.measure.programs, on one core, and where the time goes.
memory    The worker's memory over 5,000 programs of a small dense layer, without and with the limit at which a
          process gives way to a fresh one. Some minutes; only when asked for.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from scipy.stats import spearmanr
from tvm import IRModule, te, topi
from tvm.ir import save_json
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tencost.config import HardwareConfig, MeasureConfig
from tencost.measure.collection import CollectedTask, Collection, ProgramOrigin
from tencost.measure.programs import ProgramSpace
from tencost.measure.run import cpu_plan, cpus_of, timing_options
from tencost.records.formats.metaschedule import LoggedProgram
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.hardware import detect_host
from tencost.workers.pool import Job, WorkerPool
from tencost.workers.warm_worker import TracedProgram, WarmWorker

SEED = 7
BATCH = 64
"""Programs that MetaSchedule builds and measures at a time, when nothing else is said."""
NO_LIMIT_MIB = 10**6
LIMIT_ABOVE_MIB = 4
"""The limit of the second pass, above what the first one had after 100 programs: tight, so that it is reached."""

OURS, STOCK, STOCK_NEAR = "tencost", "stock", "stock, 3 x 10 ms"
NEAR = ms.runner.EvaluatorConfig(number=1, repeat=3, min_repeat_ms=10)


def convolution() -> Any:
    """3x3, 64 to 64 channels, 56x56: the first stage of resnet_18."""
    data = te.placeholder((1, 64, 56, 56), name="data")
    weight = te.placeholder((64, 64, 3, 3), name="weight")
    return [data, weight, topi.nn.conv2d(data, weight, 1, 1, 1, "NCHW")]


def depthwise_convolution() -> Any:
    """3x3, 144 channels, 56x56: the second stage of mobilenet_v2."""
    data = te.placeholder((1, 144, 56, 56), name="data")
    weight = te.placeholder((144, 1, 3, 3), name="weight")
    return [data, weight, topi.nn.depthwise_conv2d_nchw(data, weight, 1, 1, 1)]


def dense(rows: int = 128, features: int = 768) -> Any:
    """128 tokens, 768 to 768: the projections of bert_base."""
    data = te.placeholder((rows, features), name="data")
    weight = te.placeholder((features, features), name="weight")
    return [data, weight, topi.matmul(data, weight)]


TASKS: dict[str, Callable[[], Any]] = {
    "3x3 convolution": convolution,
    "dense": dense,
    "depthwise convolution": depthwise_convolution,
}


@dataclass
class Pass:
    """What one side made of the programs: median seconds of those that ran, in their order, and the rest."""

    wall_s: float
    medians: list[float | None]
    failures: Counter[str]


class TimedSpace(ProgramSpace):
    """A space that knows how long TVM's sampler took."""

    sampler_s = 0.0

    def _sample(self, count: int) -> list[Any]:
        start = time.perf_counter()
        made = super()._sample(count)
        self.sampler_s += time.perf_counter() - start
        return made


def module_text(arguments: Any) -> str:
    return str(save_json(IRModule({"main": te.create_prim_func(arguments)})))


def sampled(
    name: str, text: str, hardware: HardwareConfig, count: int, folder: Path
) -> tuple[list[Any], list[LoggedProgram], Path]:
    """Return distinct random programs as schedules, as a database holds them, and the file of their workload."""
    space = ProgramSpace(text, hardware.target, SEED)
    schedules = list(space.random(count, set()).schedules)
    shash, lines = space.lines(schedules)
    task = CollectedTask(name.replace(" ", "_"), name, name, text, 0.0, ("benchmark",))
    collection = Collection(folder)
    collection.write_programs(
        task, shash, lines, ProgramOrigin(SEED, False, ("random",) * len(lines))
    )
    workload = folder / f"{task.folder}.json"
    workload.write_text(text, encoding="utf-8")
    return schedules, collection.programs(task), workload


class Stock:
    """TVM's LocalBuilder, and a LocalRunner for each evaluator."""

    def __init__(self, timeout_s: float, target: dict[str, Any]) -> None:
        self._target = Target(target)
        self._builder = ms.builder.LocalBuilder(timeout_sec=timeout_s)
        self._runners = {
            STOCK: ms.runner.LocalRunner(timeout_sec=timeout_s),
            STOCK_NEAR: ms.runner.LocalRunner(timeout_sec=timeout_s, evaluator_config=NEAR),
        }

    def measure(self, schedules: Sequence[Any]) -> dict[str, Pass]:
        """Build once, run with each evaluator; each pass has the builder's time."""
        start = time.perf_counter()
        built = []
        for first in range(0, len(schedules), BATCH):
            batch = schedules[first : first + BATCH]
            built += self._builder.build(
                [ms.builder.BuilderInput(schedule.mod, self._target) for schedule in batch]
            )
        build_s = time.perf_counter() - start
        passes = {}
        for name, runner in self._runners.items():
            medians: list[float | None] = []
            failures: Counter[str] = Counter()
            start = time.perf_counter()
            for schedule, library in zip(schedules, built, strict=True):
                median, failure = self._run(runner, schedule, library)
                medians.append(median)
                failures.update([failure] if failure else [])
            passes[name] = Pass(build_s + time.perf_counter() - start, medians, failures)
        for library in built:
            if library.artifact_path:
                shutil.rmtree(Path(str(library.artifact_path)).parent, ignore_errors=True)
        return passes

    @staticmethod
    def _run(runner: Any, schedule: Any, library: Any) -> tuple[float | None, str]:
        if library.artifact_path is None:
            return None, f"build_{_kind(library.error_msg)}"
        args = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
        item = ms.runner.RunnerInput(str(library.artifact_path), "cpu", args)
        result = runner.run([item])[0].result()
        if result.run_secs is None:
            return None, f"run_{_kind(result.error_msg)}"
        return statistics.median(float(seconds) for seconds in result.run_secs), ""


def measure_ours(
    pool: WorkerPool, workload: Path, programs: Sequence[LoggedProgram], target: dict[str, Any]
) -> Pass:
    start = time.perf_counter()
    jobs = [
        Job(TracedProgram(workload, program.trace), target, program.args_info)
        for program in programs
    ]
    by_position = dict(pool.measure(jobs))
    wall_s = time.perf_counter() - start
    timings = [by_position[position] for position in range(len(programs))]
    return Pass(
        wall_s,
        [statistics.median(one.run_secs) if one.run_secs else None for one in timings],
        Counter(one.status.value for one in timings if not one.run_secs),
    )


def compare_speed(
    hardware: HardwareConfig, tasks: Sequence[str], count: int, timeout_s: float, folder: Path
) -> None:
    config = MeasureConfig()
    pool = WorkerPool(
        timing_options(config),
        cpus_of(hardware),
        cpu_plan(hardware, config),
        folder / "worker.log",
        target_kind=hardware.target["kind"],
    )
    start = time.perf_counter()
    for _ in range(5):
        pool.probe()
    ours_start_s = time.perf_counter() - start
    start = time.perf_counter()
    stock = Stock(timeout_s, hardware.target)
    stock_start_s = time.perf_counter() - start
    print(f"{count} programs a task on {hardware.model}, {hardware.target}")
    print(f"paid once: {ours_start_s:.1f} s tencost, {stock_start_s:.1f} s stock")
    print(
        f"{'task':<22} {'side':<18} {'programs/s':>10} {'ratio':>6} {'Spearman':>9} {'median':>7} {'signed':>7}"
    )
    try:
        for number, name in enumerate(tasks):
            text = module_text(TASKS[name]())
            schedules, programs, workload = sampled(name, text, hardware, count, folder / "made")
            passes: dict[str, Pass] = {}
            for side in (OURS, STOCK) if number % 2 else (STOCK, OURS):
                if side == OURS:
                    passes[OURS] = measure_ours(pool, workload, programs, hardware.target)
                else:
                    passes |= stock.measure(schedules)
            report(name, passes)
    finally:
        pool.close()


def report(name: str, passes: dict[str, Pass]) -> None:
    """Print a task's rows: ours over each pass of stock, and stock's passes against each other."""
    ours = passes[OURS]
    count = len(ours.medians)
    print(f"{name:<22} {OURS:<18} {count / ours.wall_s:10.2f} {failures(ours)}")
    for side in (STOCK, STOCK_NEAR):
        other = passes[side]
        ratio = f"{other.wall_s / ours.wall_s:6.1f}"
        if other.failures.total() > ours.failures.total():
            ratio = f"{'-':>6}"  # time spent on failing says nothing
        print(
            f"{'':<22} {side:<18} {count / other.wall_s:10.2f} {ratio} "
            f"{agreement(ours, other)} {failures(other)}"
        )
    print(
        f"{'':<22} {'stock with itself':<18} {'':>10} {'':>6} "
        f"{agreement(passes[STOCK_NEAR], passes[STOCK])}"
    )


def agreement(ours: Pass, other: Pass) -> str:
    """Return Spearman's correlation, the medians of |a - b| / b and of (a - b) / b, over what ran on both sides."""
    pairs = [
        (a, b)
        for a, b in zip(ours.medians, other.medians, strict=True)
        if a is not None and b is not None
    ]
    if len(pairs) < 3:
        return f"{'-':>9} {'-':>7} {'-':>7}"
    rank = float(spearmanr(*zip(*pairs, strict=True)).statistic)
    signed = [(a - b) / b for a, b in pairs]
    size = statistics.median(map(abs, signed))
    return f"{rank:9.4f} {size:7.2%} {statistics.median(signed):+7.2%}"


def failures(one: Pass) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(one.failures.items()))


def count_programs(hardware: HardwareConfig, count: int) -> None:
    start = time.perf_counter()
    space = TimedSpace(module_text(dense()), hardware.target, SEED)
    space_s = time.perf_counter() - start
    start, cpu = time.perf_counter(), time.process_time()
    sample = space.random(count, set())
    made_s = time.perf_counter() - start
    start = time.perf_counter()
    space.lines(sample.schedules)
    lines_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    found, total = len(sample.schedules), made_s + lines_s
    print(
        f"{found} distinct programs of the dense layer in {total:.1f} s ({cpu_s:.1f} s of CPU) on one core: "
        f"{found / total:.0f} a second "
        f"(TVM's sampler {space.sampler_s / total:.0%}, telling them apart "
        f"{(made_s - space.sampler_s) / total:.0%}, writing lines {lines_s / total:.0%}); design space and "
        f"intrinsics, once: {space_s:.1f} s"
    )


def watch_memory(hardware: HardwareConfig, count: int, limit_mib: int | None, folder: Path) -> None:
    text = module_text(dense(64, 64))
    _, programs, workload = sampled("small dense", text, hardware, count, folder)
    print(f"{len(programs)} programs of a dense layer of 64x64x64")
    first = memory_pass(hardware, programs, workload, NO_LIMIT_MIB, "no limit")
    limit = limit_mib or round(first) + LIMIT_ABOVE_MIB
    memory_pass(hardware, programs, workload, limit, f"limit {limit} MiB")


def memory_pass(
    hardware: HardwareConfig,
    programs: Sequence[LoggedProgram],
    workload: Path,
    limit_mib: int,
    name: str,
) -> float:
    """Build and run all programs, looking at the worker's memory after each hundred; return the first look, MiB."""
    worker = WarmWorker(
        MeasureOptions(repeat=1, max_repeat=1, min_repeat_ms=0),
        cores=1,
        target_kind=hardware.target["kind"],
        max_rss_mib=limit_mib,
    )
    seen: list[float] = []
    start = time.perf_counter()
    try:
        for number, program in enumerate(programs, start=1):
            traced = TracedProgram(workload, program.trace)
            worker.measure(traced, hardware.target, program.args_info)
            if number % 100 == 0 and (size := _worker_mib()) is not None:
                seen.append(size)
    finally:
        worker.close()
    per_second = len(programs) / (time.perf_counter() - start)
    seen = seen or [float("nan")]
    print(
        f"{name:<15} first {seen[0]:6.0f} MiB, last {seen[-1]:6.0f} MiB, peak {max(seen):6.0f} MiB, "
        f"{worker.num_starts} processes, {per_second:.1f} programs/s"
    )
    return seen[0]


def _worker_mib() -> float | None:
    """Return the resident memory of the process that serves; None between two of them."""
    for server in psutil.Process().children():
        for child in server.children():
            if "tencost.workers.worker" in child.cmdline():
                return float(child.memory_info().rss) / 2**20
    return None


def _kind(message: Any) -> str:
    return "timeout" if "Timeout" in str(message) else "error"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", help="speed, programs, memory; the first two by default"
    )
    parser.add_argument("--memory", action="store_true", help="the third part as well")
    parser.add_argument("--quick", action="store_true", help="one task, few programs")
    parser.add_argument("--programs", type=int, help="programs a task (speed), 48")
    parser.add_argument("--distinct", type=int, help="programs to make (programs), 2000")
    parser.add_argument("--built", type=int, help="programs to build (memory), 5000")
    parser.add_argument("--limit-mib", type=int, help="the second pass's limit (memory)")
    parser.add_argument("--stock-timeout", type=float, default=120.0, help="seconds; TVM's own: 30")
    given = parser.parse_args()
    parts = [*(given.parts or ["speed", "programs"]), *(["memory"] if given.memory else [])]
    if unknown := set(parts) - {"speed", "programs", "memory"}:
        parser.error(f"expected speed, programs or memory, found {', '.join(sorted(unknown))}")
    os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    hardware = detect_host()
    quick = given.quick
    with tempfile.TemporaryDirectory(prefix="tencost-benchmark-") as scratch:
        folder = Path(scratch)
        if "speed" in parts:
            names = list(TASKS)[1:2] if quick else list(TASKS)
            count = given.programs or (6 if quick else 48)
            compare_speed(hardware, names, count, given.stock_timeout, folder)
        if "programs" in parts:
            count_programs(hardware, given.distinct or (200 if quick else 2000))
        if "memory" in parts:
            built = max(100, given.built or (300 if quick else 5000))
            watch_memory(hardware, built, given.limit_mib, folder / "memory")


if __name__ == "__main__":
    main()
