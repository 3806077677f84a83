"""What scoring costs in a tuning round: a registered model against TVM's own XGBModel, the same candidates, one run.

    python benchmarks/serving.py [uri of the model] [candidates]

All sides extract features themselves, on one thread, from candidates of one dense layer; their order is alternated over
the repeats, and medians are compared. TVM's model is trained on made-up times first: its speed does not depend on them.
The registered model is asked as a tuner asks it (with a draft), in full, and in full over HTTP: `tencost serve` with
one worker process; the latter two must give the same bytes.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tvm
from tvm import te
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.cost_model import XGBModel
from tvm.target import Target

import tencost
from tencost.programs.trace.intrinsics import register_cpu_intrinsics
from tencost.workers.hardware import detect_host

REPEATS = 5


def dense_layer() -> Any:
    a = te.placeholder((128, 512), name="A", dtype="float32")
    b = te.placeholder((512, 512), name="B", dtype="float32")
    k = te.reduce_axis((0, 512), name="k")
    c = te.compute((128, 512), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="dense")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


def distinct_candidates(context: Any, count: int) -> list[Any]:
    context.pre_tuning(count, count, context.generate_design_space())
    made = list(context.generate_measure_candidates())
    context.post_tuning()
    return made


@contextmanager
def served(uri: str) -> Iterator[str]:
    """Start the service, with one worker; yields its address."""
    command = [sys.executable, "-m", "tencost.cli", "serve", uri, "--port", "0", "--jobs", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if found := re.search(r"http://\S+", line):
                yield found[0]
                return
        sys.exit(f"the service did not start: {said}")
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    uri = sys.argv[1] if len(sys.argv) > 1 else "models:/tencost-epyc-avx512-1c@champion"
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 256
    register_cpu_intrinsics()
    context = ms.TuneContext(
        mod=dense_layer(), target=Target(detect_host().target), space_generator="post-order-apply",
        search_strategy="replay-trace", task_name="dense", rand_state=1, num_threads=1,
    )  # fmt: skip
    made = distinct_candidates(context, count + REPEATS * count)
    stock = XGBModel(num_tuning_cores=1, num_warmup_samples=1)
    results = [ms.runner.RunnerResult([1e-3 * (1 + index % 97)], None) for index in range(count)]
    stock.update(context, made[:count], results)
    # One thread for all: the registered model would use every CPU that it may.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    ours = tencost.load_cost_model(uri, frozen=True)
    full = tencost.load_cost_model(uri, frozen=True, draft=False)
    with served(uri) as url:
        compare(context, made, count, uri, (stock, ours, full, tencost.remote_cost_model(url)))


def compare(
    context: Any, made: list[Any], count: int, uri: str, models_in_order: tuple[Any, ...]
) -> None:
    names = ("tvm XGBModel", f"tencost {uri}", "the same, draft=False", "the same, tencost serve")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    models = dict(zip(seconds, models_in_order, strict=True))
    found: dict[str, Any] = {}
    for repeat in range(REPEATS):
        # Fresh candidates each time: the registered model remembers the ones it has seen.
        batch = made[count * (repeat + 1) : count * (repeat + 2)]
        order = list(seconds) if repeat % 2 else list(seconds)[::-1]
        for name in order:
            start = time.perf_counter()
            found[name] = models[name].predict(context, batch)
            seconds[name].append(time.perf_counter() - start)
        assert np.array_equal(found[names[2]], found[names[3]]), "the service's scores are others"
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    base = medians["tvm XGBModel"]
    print(f"{count} candidates of a dense layer, one thread, median of {REPEATS} (least to most)")
    for name, times in seconds.items():
        spread = f"{1000 * min(times):.0f} to {1000 * max(times):.0f}"
        print(
            f"{name:<55} {1000 * medians[name]:7.0f} ms  ({spread})  {medians[name] / base:5.2f} x"
        )


if __name__ == "__main__":
    main()
