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
from dataclasses import dataclass, replace
from typing import Any

import orjson

from tencost.features.extractor import joined
from tencost.features.ragged import FloatArray
from tencost.features.spec import FeatureSpec
from tencost.features.tiles import tile_row

CHUNK = 32
"""Programs of one workload that a worker gets at once."""


@dataclass(frozen=True)
class Chunk:
    """Some programs of one workload."""

    workload_id: str
    mod_json: str
    """The workload: a module, or for a log without modules {"workload": name, "args": [...]}."""
    target: str
    """JSON text of one of the targets that the programs were measured for; only its kind matters to features."""
    program_ids: tuple[str, ...]
    programs: tuple[str, ...]

    def halves(self) -> list[Chunk]:
        """Return the first and the second half of two or more programs."""
        middle = len(self.program_ids) // 2
        return [
            Chunk(
                self.workload_id,
                self.mod_json,
                self.target,
                self.program_ids[part],
                self.programs[part],
            )
            for part in (slice(None, middle), slice(middle, None))
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
    if spec.kind in TRACE_KINDS:
        return _featurize_texts(spec, chunk)
    stores = _featurize_per_store(chunk)
    return join_tiles(stores, chunk.programs) if spec.kind == "per_store_tiles" else stores


TRACE_KINDS = ("trace", "tiles", "ansor_steps", "ansor_tiles", "autotvm_knobs")
"""Kinds that read the program's text alone: no TVM, a fraction of a millisecond a program."""


def _featurize_texts(spec: FeatureSpec, chunk: Chunk) -> list[Featurized]:
    encode = _encoder(spec, chunk)
    results = []
    for program_id, program in zip(chunk.program_ids, chunk.programs, strict=True):
        try:
            rows = encode(orjson.loads(program))
            reason = "" if rows is not None else "the trace has no primitive"
        except (ValueError, TypeError, KeyError, IndexError) as error:
            rows, reason = (
                None,
                f"no program that {spec.name} reads ({type(error).__name__}: {error})",
            )
        results.append(Featurized(program_id, chunk.workload_id, rows, reason))
    return results


def _encoder(spec: FeatureSpec, chunk: Chunk) -> Callable[[Any], FloatArray | None]:
    from tencost.features import ansor
    from tencost.features.knob_rows import knob_row
    from tencost.features.trace import TraceEncoder

    if spec.kind == "trace":
        return TraceEncoder(**spec.options).encode
    if spec.kind == "ansor_steps":
        return ansor.AnsorStepEncoder(**spec.options).encode
    if spec.kind == "autotvm_knobs":
        workload = orjson.loads(chunk.mod_json)
        return lambda program: knob_row(workload, program)
    return tile_row if spec.kind == "tiles" else ansor.tile_row


def join_tiles(stores: Sequence[Featurized], programs: Sequence[str]) -> list[Featurized]:
    """Append the tile columns of each program's trace to its store rows."""
    return [
        replace(one, rows=joined(one.rows, tile_row(orjson.loads(program))))
        for one, program in zip(stores, programs, strict=True)
    ]


def _featurize_per_store(chunk: Chunk) -> list[Featurized]:
    from tvm.s_tir.meta_schedule import TuneContext
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate
    from tvm.target import Target

    from tencost.features import per_store
    from tencost.features.intrinsics import register_intrinsics
    from tencost.features.replay import load_module, replay

    target = Target(orjson.loads(chunk.target))
    register_intrinsics(target.kind.name)
    module = load_module(chunk.mod_json)
    context = TuneContext(module, target=target, num_threads=1)
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
