"""How threads of a network's loops wait for each other, timed: tencost's, TVM's and ONNX Runtime's, quiet and not.

    python benchmarks/threads.py model.onnx [--cores 2] [--busy] [--seconds 120]

The file is compiled by default for so many cores, with the library's own threads (workers/loop_threads.c) and without,
which leaves it to TVM's: asleep at once where there is no work (TVM_THREAD_POOL_SPIN_COUNT=0), or asking for it as
often as TVM does by default. Each arm is called for half a second in a fresh process on the last CPUs, all arms in
turn, again and again; with --busy beside a process that computes all the time on the last of them. Printed:
median and quartiles of single calls in milliseconds, and of how many processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

LENGTH_S = 0.5
OWN, NONE, ONNX = "a library's own", "of TVM, asleep at once", "of ONNX Runtime"
ARMS = {
    OWN: ("own.so", ""),
    NONE: ("plain.so", "0"),
    "of TVM, as by default (300,000)": ("plain.so", "300000"),
    ONNX: ("", ""),
}
COMPILE = """
import sys
from tencost.cli import main
from tencost.workers import remote
if sys.argv.pop(1) == "plain": remote.threads_of_library = lambda cores: []
main()
"""
CHILD = """
import json, os, sys, time
import numpy
library, samples, cores, length = sys.argv[1], numpy.load(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
arrays = [samples[name] for name in sorted(samples) if name.startswith("input_")]
if library.endswith(".so"):
    import tvm
    from tvm import relax
    machine = relax.VirtualMachine(tvm.runtime.load_module(library), tvm.cpu())
    inputs, main = [tvm.runtime.tensor(array) for array in arrays], machine["main"]
    network = lambda: main(*inputs)
else:
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = cores, 1
    session = onnxruntime.InferenceSession(library, options, providers=["CPUExecutionProvider"])
    feeds = dict(zip([each.name for each in session.get_inputs()], arrays))
    network = lambda: session.run(None, feeds)
for _ in range(3): network()
times, begun = [], time.perf_counter()
while len(times) < 5 or time.perf_counter() - begun < length:
    started = time.perf_counter()
    network()
    times.append(time.perf_counter() - started)
print(json.dumps(times), flush=True)
os._exit(0)  # a thread of TVM that asks for work beside a busy process is waited for, else, for minutes
"""


def main() -> None:
    """Time all arms until the seconds are over; print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--seconds", type=float, default=120.0)
    asked = parser.parse_args()
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))[-asked.cores :]))
    found: dict[tuple[str, bool], list[list[float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="threads-benchmark-") as folder:
        for which in ("own", "plain"):
            words = ["compile", "network=onnx", f"network.path={asked.file.resolve()}"]
            words += [f"hardware.cores={asked.cores}", "--to", f"{folder}/{which}.so"]
            subprocess.run([sys.executable, "-c", COMPILE, which, *words], check=True)
        end = time.monotonic() + asked.seconds
        while time.monotonic() < end:
            for is_busy in (False, True) if asked.busy else (False,):
                hog = subprocess.Popen(
                    ["taskset", "-c", cpus.split(",")[-1], sys.executable, "-c", "while 1: pass"]
                ) if is_busy else None  # fmt: skip
                try:
                    for arm, (library, spins) in ARMS.items():
                        file = f"{folder}/{library}" if library else str(asked.file.resolve())
                        found[arm, is_busy].append(run(file, f"{folder}/own.npz", cpus, spins))
                finally:
                    if hog is not None:
                        hog.kill()
                        hog.wait()
    sys.stdout.write("| threads | quiet, ms | beside a busy process, ms |\n|---|---|---|\n")
    for arm in ARMS:
        cells = [cell(found[arm, is_busy]) for is_busy in (False, True)]
        sys.stdout.write(f"| {arm} | {cells[0]} | {cells[1]} |\n")


def run(library: str, samples: str, cpus: str, spins: str) -> list[float]:
    """Return the times of calls in a fresh process, seconds."""
    cores = str(len(cpus.split(",")))
    environment = {**os.environ, "TVM_NUM_THREADS": cores, "TVM_BIND_THREADS": "0"}
    if spins:
        environment["TVM_THREAD_POOL_SPIN_COUNT"] = spins
    done = subprocess.run(
        ["taskset", "-c", cpus, sys.executable, "-c", CHILD, library, samples, cores, str(LENGTH_S)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    times: list[float] = json.loads(done.stdout)
    return times


def cell(runs: list[list[float]]) -> str:
    if not runs:
        return "--"
    low, median, high = np.quantile([one for run in runs for one in run], (0.25, 0.5, 0.75)) * 1e3
    return f"{median:.2f} [{low:.2f}, {high:.2f}], {len(runs)} processes"


if __name__ == "__main__":
    main()
