"""Programs to rows in worker processes; a worker that dies costs the program that killed it and nothing else."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import orjson

from tencost.features.ragged import FloatArray
from tencost.features.spec import FeatureSpec

CHUNK = 32
"""Programs of one workload that a worker gets at once."""


@dataclass(frozen=True)
class Chunk:
    """Some programs of one workload."""

    workload_id: str
    mod_json: str
    target: str
    """JSON text of one of the targets that the programs were measured for; only its kind matters to features."""
    program_ids: tuple[str, ...]
    programs: tuple[str, ...]

    def split(self) -> list[Chunk]:
        """Return one chunk a program."""
        pairs = zip(self.program_ids, self.programs, strict=True)
        return [
            Chunk(self.workload_id, self.mod_json, self.target, (one,), (text,))
            for one, text in pairs
        ]


@dataclass(frozen=True)
class Featurized:
    """What became of one program: its rows, or the reason why it has none."""

    program_id: str
    workload_id: str
    rows: FloatArray | None
    reason: str = ""


def featurize_chunk(spec: FeatureSpec, chunk: Chunk) -> list[Featurized]:
    """Featurize the programs of a chunk in this process."""
    return _featurize_trace(spec, chunk) if spec.kind == "trace" else _featurize_per_store(chunk)


def _featurize_trace(spec: FeatureSpec, chunk: Chunk) -> list[Featurized]:
    from tencost.features.trace import TraceEncoder

    encoder = TraceEncoder(**spec.options)
    results = []
    for program_id, program in zip(chunk.program_ids, chunk.programs, strict=True):
        rows = encoder.encode(orjson.loads(program))
        reason = "" if rows is not None else "the trace has no primitive"
        results.append(Featurized(program_id, chunk.workload_id, rows, reason))
    return results


def _featurize_per_store(chunk: Chunk) -> list[Featurized]:
    from tvm.s_tir.meta_schedule import TuneContext
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate
    from tvm.target import Target

    from tencost.features import per_store
    from tencost.features.replay import load_module, replay

    module = load_module(chunk.mod_json)
    context = TuneContext(module, target=Target(orjson.loads(chunk.target)), num_threads=1)
    replayed = [replay(module, program) for program in chunk.programs]
    candidates = [
        MeasureCandidate(one.schedule, []) for one in replayed if one.schedule is not None
    ]
    extracted = iter(per_store.extract(context, candidates))
    results = []
    for program_id, one in zip(chunk.program_ids, replayed, strict=True):
        rows = next(extracted) if one.schedule is not None else None
        reason = "" if rows is not None else (one.error or "TVM cannot lower the program")
        results.append(Featurized(program_id, chunk.workload_id, rows, reason))
    return results


def featurize(
    spec: FeatureSpec,
    chunks: Sequence[Chunk],
    jobs: int | None,
    work: Callable[[FeatureSpec, Chunk], list[Featurized]] = featurize_chunk,
) -> Iterator[list[Featurized]]:
    """Featurize all chunks, yielding results as they come, in no particular order.

    Args:
        spec: the feature set.
        chunks: what to do.
        jobs: worker processes; None uses every core the process may run on.
        work: the function that a worker runs; a parameter so that tests can make one die.
    """
    count = jobs or len(os.sched_getaffinity(0))
    lost: list[Chunk] = []
    for chunk, result in _run(spec, chunks, count, work):
        if result is None:
            lost.append(chunk)
        else:
            yield result
    # One of the lost chunks killed its worker and took the others along: run them one program at a time.
    for single in [one for chunk in lost for one in chunk.split()]:
        for chunk, result in _run(spec, [single], 1, work):
            died = Featurized(
                chunk.program_ids[0], chunk.workload_id, None, "the worker process died"
            )
            yield [died] if result is None else result


def _run(
    spec: FeatureSpec,
    chunks: Sequence[Chunk],
    count: int,
    work: Callable[[FeatureSpec, Chunk], list[Featurized]],
) -> Iterator[tuple[Chunk, list[Featurized] | None]]:
    """Yield (chunk, its results), None for chunks that were lost with a worker."""
    pool = ProcessPoolExecutor(
        min(count, max(1, len(chunks))), mp_context=multiprocessing.get_context("spawn")
    )
    try:
        futures: dict[Future[list[Featurized]], Chunk] = {}
        for chunk in chunks:
            try:
                futures[pool.submit(work, spec, chunk)] = chunk
            except BrokenProcessPool:
                yield chunk, None
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except BrokenProcessPool:
                yield futures[future], None
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
