"""Programs to rows in worker processes; a worker that dies costs the program that killed it and nothing else."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from tencost.features.kind import Chunk, Outcome, kind_of
from tencost.features.ragged import FloatArray
from tencost.features.spec import FeatureSpec

CHUNK = 32
"""Programs of one workload that a worker gets at once."""


@dataclass(frozen=True)
class Featurized:
    """What became of one program: its rows, or the reason why it has none."""

    program_id: str
    workload_id: str
    rows: FloatArray | None
    reason: str = ""


def featurize_chunk(spec: FeatureSpec, chunk: Chunk) -> list[Featurized]:
    """Featurize the programs of a chunk in this process."""
    return told(chunk, kind_of(spec).stored(spec)(chunk))


def told(chunk: Chunk, outcomes: Sequence[Outcome]) -> list[Featurized]:
    """Return the outcomes of a chunk with the programs' names."""
    return [
        Featurized(program_id, chunk.workload_id, None, outcome)
        if isinstance(outcome, str)
        else Featurized(program_id, chunk.workload_id, outcome)
        for program_id, outcome in zip(chunk.program_ids, outcomes, strict=True)
    ]


def featurize(
    spec: FeatureSpec,
    chunks: Sequence[Chunk],
    jobs: int | None,
    work: Callable[[FeatureSpec, Chunk], list[Featurized]] = featurize_chunk,
) -> Iterator[list[Featurized]]:
    """Featurize all chunks, yielding results as they come, in no particular order.

    A worker that dies takes its pool along, so no more chunks than workers are handed out at a time: only those are
    suspects. They are run again one by one, and one that kills its worker again is halved down to the program.

    Args:
        spec: the feature set.
        chunks: what to do.
        jobs: worker processes; None uses every core the process may run on.
        work: the function that a worker runs; a parameter so that tests can make one die.
    """
    count = jobs or len(os.sched_getaffinity(0))
    waiting, suspects = deque(chunks), deque[Chunk]()
    while waiting:
        yield from _drain(spec, waiting, suspects, count, work)
    while suspects:
        guilty: deque[Chunk] = deque()
        yield from _drain(spec, suspects, guilty, 1, work)
        for chunk in guilty:
            if len(chunk.program_ids) > 1:
                suspects.extend(chunk.halves())
            else:
                died = "the worker process died"
                yield [Featurized(chunk.program_ids[0], chunk.workload_id, None, died)]


def _drain(
    spec: FeatureSpec,
    waiting: deque[Chunk],
    lost: deque[Chunk],
    count: int,
    work: Callable[[FeatureSpec, Chunk], list[Featurized]],
) -> Iterator[list[Featurized]]:
    """Feed a fresh pool until nothing waits or a worker dies; the chunks in flight then go to `lost`."""
    context = multiprocessing.get_context("spawn")
    size = min(count, len(waiting))
    pool = ProcessPoolExecutor(size, mp_context=context, initializer=prepare_worker)
    flying: dict[Future[list[Featurized]], Chunk] = {}
    broken = False
    try:
        while flying or (waiting and not broken):
            while waiting and not broken and len(flying) < size:
                try:
                    flying[pool.submit(work, spec, waiting[0])] = waiting[0]
                    waiting.popleft()
                except BrokenProcessPool:
                    broken = True
            for future in wait(flying, return_when=FIRST_COMPLETED).done:
                chunk = flying.pop(future)
                try:
                    result = future.result()
                except BrokenProcessPool:
                    broken = True
                    lost.append(chunk)
                else:
                    yield result
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def prepare_worker() -> None:
    """Leave Ctrl-C to the parent, and end with it, however it ends: a pool's workers outlive a killed parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
