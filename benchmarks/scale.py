"""Programs to features by several workers, processes of this host and Ray: programs a second, efficiency, a million.

    python benchmarks/scale.py data/records/tencost-epyc [--programs 4000] [--jobs 1 2 4] [--execution local ray]
        [--features per_store] [--repeats 2]

The dataset's programs are taken in turn until there are enough, in the chunks that the stage `features` makes. What is
timed is what the stage does with them: chunks to workers, rows back, in order. A worker's start (process, TVM's import,
Ray's cluster) is told beside the rate, which begins when every worker has returned its first chunk. Efficiency is the
rate over that of one worker of the same kind times workers; the better of the repeats counts, which are interleaved so
that a busy minute of the host is nobody's alone. The last column extrapolates: start + programs / rate.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

from tencost.config import ExecutionConfig, ExecutionKind
from tencost.config.composition import compose
from tencost.features.extractor import spec_for
from tencost.features.parallel import featurize
from tencost.features.rows.kind import Chunk
from tencost.features.rows.spec import FeatureSpec
from tencost.features.stage import make_chunks
from tencost.store.tables import load_records, load_workloads


@dataclass(frozen=True)
class Taken:
    start: float
    rate: float
    failed: int


def many(chunks: list[Chunk], programs: int) -> list[Chunk]:
    """Return chunks with so many programs in all, those given taken in turn."""
    found, left = [], programs
    for chunk in cycle(chunks):
        part = slice(0, left)
        found.append(
            replace(chunk, program_ids=chunk.program_ids[part], programs=chunk.programs[part])
        )
        left -= len(found[-1].programs)
        if left == 0:
            return found
    raise AssertionError("a cycle does not end")


def timed(spec: FeatureSpec, chunks: list[Chunk], kind: str, jobs: int) -> Taken:
    """Featurize the chunks and say how long it took."""
    settings = ExecutionConfig(kind=ExecutionKind(kind))
    began = time.perf_counter()
    warm, after, failed = 0.0, 0, 0
    for index, results in enumerate(featurize(spec, chunks, jobs, execution=settings)):
        failed += sum(one.rows is None for one in results)
        if index + 1 == jobs:
            warm = time.perf_counter()
        elif index >= jobs:
            after += len(results)
    return Taken(warm - began, after / (time.perf_counter() - warm), failed)


def hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path)
    parser.add_argument("--programs", type=int, default=4000)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--execution", nargs="+", default=["local", "ray"])
    parser.add_argument("--features", default="per_store")
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    columns = ["program_id", "workload_id", "program", "target"]
    records = load_records(args.records, columns=columns)
    made = make_chunks(records, load_workloads(args.records))
    step = max(1, len(made) // 97)  # workloads differ in what they cost: all kinds early
    spread = [chunk for first in range(step) for chunk in islice(made, first, None, step)]
    chunks = many(spread, args.programs)
    spec = spec_for(compose([f"features={args.features}"])[0].features)
    cells = [(kind, jobs) for kind in args.execution for jobs in args.jobs]
    best: dict[tuple[str, int], Taken] = {}
    for _ in range(args.repeats):
        for cell in cells:
            taken = timed(spec, chunks, *cell)
            if cell not in best or taken.rate > best[cell].rate:
                best[cell] = taken
    print(
        f"features {spec.name} of {args.programs} programs in {len(chunks)} chunks, "
        f"{len(os.sched_getaffinity(0))} CPUs, load {os.getloadavg()[0]:.1f}, the better of {args.repeats}; "
        f"{best[cells[0]].failed} cannot be featurized"
    )
    print(
        "| execution | workers | start s | programs/s | efficiency | core-ms a program | 1 million | 10 million |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for kind, jobs in cells:
        one = best[kind, jobs]
        base = best[kind, min(args.jobs)]
        efficiency = one.rate * min(args.jobs) / (base.rate * jobs)
        print(
            f"| {kind} | {jobs} | {one.start:.1f} | {one.rate:.0f} | {efficiency:.2f} | {1000 * jobs / one.rate:.1f} "
            f"| {hours(one.start + 1e6 / one.rate)} | {hours(one.start + 1e7 / one.rate)} |"
        )
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"this process held {most:.0f} MiB at most; rows are given on, not kept")


if __name__ == "__main__":
    main()
