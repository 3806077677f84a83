"""Programs to rows in worker processes; a worker that dies costs the program that killed it and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tencost.config import ExecutionConfig
from tencost.features.rows.kind import Chunk, Outcome, kind_of
from tencost.features.rows.ragged import FloatArray
from tencost.features.rows.spec import FeatureSpec
from tencost.workers.parallel.mapping import Rescue, in_order
from tencost.workers.parallel.workers import open_workers

CHUNK = 32
"""Programs of one workload that a worker gets at once."""
CHUNK_LIMIT_S = 600.0
"""Seconds that they may take; most chunks need less than one, the first of a worker imports TVM."""


@dataclass(frozen=True)
class Featurized:
    """What became of one program: its rows, or the reason why it has none."""

    program_id: str
    workload_id: str
    rows: FloatArray | None
    reason: str = ""


def featurize_chunk(spec: FeatureSpec, chunk: Chunk) -> list[Featurized]:
    """Featurize the programs of a chunk in this process."""
    return with_names(chunk, kind_of(spec).stored(spec)(chunk))


def with_names(chunk: Chunk, outcomes: Sequence[Outcome]) -> list[Featurized]:
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
    execution: ExecutionConfig | None = None,
) -> Iterator[Sequence[Featurized]]:
    """Featurize all chunks, yielding the results of each in the order given.

    A worker that dies costs the program that killed it, see :mod:`tencost.workers.parallel.mapping`.

    Args:
        spec: the feature set.
        chunks: what to do.
        jobs: workers; None uses every core the process may run on.
        work: the function that a worker runs; a parameter so that tests can make one die.
        execution: where they are; None: on this host.
    """
    workers = open_workers(work, spec, execution, jobs, CHUNK_LIMIT_S)
    return in_order(workers, chunks, Rescue(_died, halves=_halves))


def _died(chunk: Chunk, reason: str) -> list[Featurized]:
    return with_names(chunk, [reason] * len(chunk.program_ids))


def _halves(chunk: Chunk) -> list[Chunk]:
    return chunk.halves() if len(chunk.program_ids) > 1 else []
