"""How TVM's threads wait for each other, timed: a compiled network on N cores, quiet and beside a busy process.

    python benchmarks/threads.py model.so --cpus 2,3 [--busy 3] [--spins 0,1000,300000] [--seconds 600]

`model.so` is what `tencost compile hardware.cores=N --to model.so` or `tencost tune --to` wrote, for as many cores as
--cpus names. For each number of times that a waiting thread asks for work before it sleeps
(TVM_THREAD_POOL_SPIN_COUNT), and with threads free to move among the CPUs or bound to one each, the network is called
for half a second in a fresh process, all combinations in turn, again and again. A process beside which others used
more than a tenth of those CPUs is left out (beside the busy one, --busy, none is). Printed, as Markdown: median and
quartiles of single calls in milliseconds, and of how many processes.

--first makes quiet what others use: the network's threads have real-time priority (root only), so that nobody else runs
on those CPUs meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

LENGTH_S = 0.5
MOST_OTHERS = 0.1
CHILD = """
import json, os, sys, time
import numpy, tvm
from tvm import relax
library, cpus, bound, length = sys.argv[1], sys.argv[2].split(","), sys.argv[3] == "bound", float(sys.argv[4])
first = sys.argv[5] == "first"
arrays = numpy.load(library.removesuffix(".so") + ".npz")
machine = relax.VirtualMachine(tvm.runtime.load_module(library), tvm.cpu())
inputs = [tvm.runtime.tensor(arrays[name]) for name in sorted(arrays) if name.startswith("input_")]
network, times = machine["main"], []

def used():
    rows = {line.split()[0]: line.split() for line in open("/proc/stat")}
    return {cpu: sum(int(rows["cpu" + cpu][at]) for at in (1, 2, 3, 6, 7, 8)) for cpu in cpus}

if first: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # before there are threads, which inherit it
tvm.get_global_func("runtime.config_threadpool")(-2 if bound else -3, len(cpus), cpus)
for _ in range(3): network(*inputs)
before, own, begun = used(), time.process_time(), time.perf_counter()
while len(times) < 5 or time.perf_counter() - begun < length:
    started = time.perf_counter()
    network(*inputs)
    times.append(time.perf_counter() - started)
whole, own, after = time.perf_counter() - begun, time.process_time() - own, used()
ticks = os.sysconf("SC_CLK_TCK")
busy = {cpu: (after[cpu] - before[cpu]) / ticks / whole for cpu in cpus}
print(json.dumps({"times": times, "busy": busy, "own": own / whole}), flush=True)
os._exit(0)  # a thread that spins beside a busy process is waited for, else, for minutes
"""


def run(
    library: Path, cpus: str, spin: str, bound: str, priority: str
) -> tuple[list[float], float]:
    """Return the times of calls in a fresh process, seconds, and the CPUs' share that other processes used."""
    environment = {
        **os.environ,
        "TVM_NUM_THREADS": str(len(cpus.split(","))),
        "TVM_THREAD_POOL_SPIN_COUNT": spin,
        "TVM_BIND_THREADS": "1" if bound == "bound" else "0",
    }
    done = subprocess.run(
        ["taskset", "-c", cpus, sys.executable, "-c", CHILD, str(library), cpus, bound, str(LENGTH_S), priority],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = json.loads(done.stdout)
    return told["times"], sum(told["busy"].values()) - told["own"]


def main() -> None:
    """Time all combinations until the seconds are over; print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("library", type=Path)
    parser.add_argument("--cpus", required=True)
    parser.add_argument("--busy", help="CPU of a process that computes all the time")
    parser.add_argument("--first", action="store_true", help="the network before all others")
    parser.add_argument("--spins", default="0,1000,10000,100000,300000")
    parser.add_argument("--seconds", type=float, default=600.0)
    asked = parser.parse_args()
    library = asked.library.resolve()
    priority = "first" if asked.first else "as all"
    places = [None, asked.busy] if asked.busy else [None]
    settings = list(itertools.product(asked.spins.split(","), ("free", "bound")))
    found: dict[tuple[str, str, str | None], list[list[float]]] = {}
    end = time.monotonic() + asked.seconds
    while time.monotonic() < end:
        for place in places:
            hog = None
            if place is not None:
                hog = subprocess.Popen(
                    ["taskset", "-c", place, sys.executable, "-c", "while 1: pass"]
                )
            try:
                for spin, bound in settings:
                    times, others = run(library, asked.cpus, spin, bound, priority)
                    # A busy process leaves no way to tell who else uses its CPU.
                    if place is not None or asked.first or others <= MOST_OTHERS:
                        found.setdefault((spin, bound, place), []).append(times)
            finally:
                if hog is not None:
                    hog.kill()
                    hog.wait()
    sys.stdout.write(
        "| times asked | threads | quiet, ms | beside a busy process, ms |\n|---:|---|---|---|\n"
    )
    for spin, bound in settings:
        cells = []
        for place in (None, asked.busy):
            runs = found.get((spin, bound, place), [])
            cells.append(_cell(runs) if runs and (place or not cells) else "--")
        sys.stdout.write(f"| {int(spin):,} | {bound} | {cells[0]} | {cells[1]} |\n")


def _cell(runs: list[list[float]]) -> str:
    low, median, high = np.quantile([one for run in runs for one in run], (0.25, 0.5, 0.75)) * 1e3
    return f"{median:.2f} [{low:.2f}, {high:.2f}], {len(runs)} processes"


if __name__ == "__main__":
    main()
