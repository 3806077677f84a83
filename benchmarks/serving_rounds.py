"""What a tuner's round costs at `tencost serve`: 2,560 candidates in five batches, as MetaSchedule asks for them.

    python benchmarks/serving_rounds.py [uri of the model] [--jobs 2] [--programs 2560] [--batch 512]
                                        [--workloads dense conv2d batch_matmul]

A round of ms.tune_tir scores a population of 512 in each of five generations. Programs are drawn from the workload's
design space, all different; the same ones are sent

    full      each scored by the model
    draft     what promises little is guessed from tile columns, as tencost.remote_cost_model asks
    again     the last ones once more

each to a service that has seen none of them. Seconds are what a client waits; CPU seconds are those of the service and
its processes. `same` counts those of the 64 programs with the best full scores that are among the 64 best with a draft;
`exact` says whether each score that is not named as guessed has the bytes of the full one.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import psutil
from round import WORKLOADS, context, load_workloads
from tvm.ir import save_json

from tencost.programs.trace.instructions import trace_values
from tencost.programs.trace.intrinsics import register_cpu_intrinsics

TOP = 64


@contextmanager
def served(uri: str, jobs: int) -> Iterator[tuple[str, psutil.Process]]:
    """Start the service; yields its address and its process."""
    command = [
        sys.executable,
        "-m",
        "tencost.cli",
        "serve",
        uri,
        "--port",
        "0",
        "--jobs",
        str(jobs),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if found := re.search(r"http://\S+", line):
                yield found[0], psutil.Process(process.pid)
                return
        sys.exit(f"the service did not start: {said}")
    finally:
        process.terminate()
        process.wait()


def distinct(name: str, mod: Any, target: dict[str, Any], count: int) -> tuple[str, list[Any]]:
    """Return the module's text and different programs of its design space."""
    programs: dict[str, Any] = {}
    for seed in range(1, 20):
        tuned = context(name, mod, target, seed, "replay-trace")
        tuned.pre_tuning(count, count, tuned.generate_design_space())
        for candidate in tuned.generate_measure_candidates():
            trace = trace_values(candidate.sch.trace)
            programs.setdefault(json.dumps(trace), trace)
        tuned.post_tuning()
        if len(programs) >= count:
            break
    return str(save_json(tuned.mod)), list(programs.values())[:count]


def cpu_seconds(process: psutil.Process) -> float:
    found = [process, *process.children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in found)


def ask(url: str, process: psutil.Process, asked: list[bytes]) -> tuple[float, float, list[Any]]:
    """Return seconds, CPU seconds and answers of requests, one after the other."""
    before, start = cpu_seconds(process), time.perf_counter()
    answers = [
        json.loads(urlopen(Request(f"{url}/v1/score", body), timeout=600).read()) for body in asked
    ]
    return time.perf_counter() - start, cpu_seconds(process) - before, answers


def scores(answers: list[Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([one["scores"] for one in answers])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("uri", nargs="?", default="models:/tencost-epyc-avx512-1c@champion")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--programs", type=int, default=2560)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--hardware", default="epyc-avx512-1c")
    given = parser.parse_args()
    register_cpu_intrinsics()
    target, modules = load_workloads(given.workloads, given.hardware)
    print(
        f"{given.programs} programs in batches of {given.batch}, --jobs {given.jobs}, {given.uri}"
    )
    print("| workload | asked | s | CPU s | programs/CPU s | guessed | same | exact |")
    print("|---|---|---|---|---|---|---|---|")
    for name, mod in modules.items():
        workload, traces = distinct(name, mod, target, given.programs)
        common = {"workload": workload, "target": {"kind": target["kind"]}}
        parts = [traces[at : at + given.batch] for at in range(0, len(traces), given.batch)]
        full = np.empty(0)
        for draft in (False, True):
            asked = [
                json.dumps({**common, "traces": one, "draft": draft}).encode() for one in parts
            ]
            with served(given.uri, given.jobs) as (url, process):
                for how in ("draft" if draft else "full", "again"):
                    seconds, cpu, answers = ask(url, process, asked)
                    found = scores(answers)
                    guessed = np.concatenate([
                        np.isin(np.arange(len(one["scores"])), one["guessed"]) for one in answers
                    ])  # fmt: skip
                    if not len(full):
                        full = found
                    best = set(np.argsort(-full)[:TOP]) & set(np.argsort(-found)[:TOP])
                    exact = bool(np.array_equal(found[~guessed], full[~guessed]))
                    print(
                        f"| {name} | {how} | {seconds:.2f} | {cpu:.2f} | {len(found) / cpu:.0f} | "
                        f"{int(guessed.sum())} | {len(best)} of {TOP} | {exact} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
