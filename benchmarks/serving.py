"""What scoring costs in a tuning round: a registered model against TVM's own XGBModel, the same candidates, one run.

    python benchmarks/serving.py [uri of the model] [candidates]

Both sides extract features themselves, on one thread, from candidates of one dense layer; the order of the two is
alternated over the repeats, and medians are compared. TVM's model is trained on made-up times first: its speed does not
depend on them.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.cost_model import XGBModel
from tvm.target import Target

import tencost
from tencost.features.intrinsics import register_cpu_intrinsics
from tencost.measure.hardware import detect_host

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
    ours = tencost.load_cost_model(uri, frozen=True)
    seconds: dict[str, list[float]] = {"tvm XGBModel": [], f"tencost {uri}": []}
    models = dict(zip(seconds, (stock, ours), strict=True))
    for repeat in range(REPEATS):
        # Fresh candidates each time: the registered model remembers the ones it has seen.
        batch = made[count * (repeat + 1) : count * (repeat + 2)]
        order = list(seconds) if repeat % 2 else list(seconds)[::-1]
        for name in order:
            start = time.perf_counter()
            models[name].predict(context, batch)
            seconds[name].append(time.perf_counter() - start)
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
