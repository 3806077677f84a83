"""What a tuning round asks of a model, in seconds: features and scores of 2,560 candidates.

MetaSchedule scores five generations of 512 a round (the first, and four that evolve from it). The
time comes from a sample: recorded programs of a few test tasks, replayed on their modules, through
the bundle's real extractor on one thread (scaled to 2,560), and its real scoring of 512 programs,
five times. Bundles with the same features share one extraction time, so that noise does not tell
them apart; different ones take turns. The best of three repeats counts, as for prediction times:
what an extractor remembers of a task is then there, as in all rounds of a task but its first.

Not in it: proposing and checking the candidates, which is the same for every model, and what the
tuner saves by remembering candidates and by lowering the promising ones only (`tencost.models.draft_model`),
so that a real round takes less.

Needs TVM and the modules of the workloads (data/records/<dataset>/workloads.parquet); no network.
"""

from __future__ import annotations

import math
import time
import timeit
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl

from tencost.config import Config
from tencost.errors import FeatureError, RecordError
from tencost.evaluate.truth import Truth
from tencost.features.device import attributes
from tencost.features.extractor import Extractor, make_extractor
from tencost.features.rows.ragged import Ragged
from tencost.models.programs.bundle import Bundle
from tencost.store.tables import load_records, load_workloads

GENERATION, GENERATIONS = 512, 5
CANDIDATES = GENERATION * GENERATIONS
"""Candidates scored in a round."""
_TASKS, _PROGRAMS = 4, 16
"""Tasks in the sample, and programs of each, at most: 64 candidates."""
_FORMAT = "metaschedule_trace"
_REPEATS = 3


@dataclass(frozen=True, kw_only=True)
class RoundTime:
    """Seconds of one round.

    Attributes:
        extract_s: features of CANDIDATES candidates, one thread.
        score_s: their scores, in GENERATIONS calls.
        sampled: candidates that were featurized to know `extract_s`.
    """

    extract_s: float
    score_s: float
    sampled: int

    @property
    def seconds(self) -> float:
        """Both."""
        return self.extract_s + self.score_s


@dataclass(frozen=True)
class _Batch:
    """Candidates of one workload, with its TuneContext."""

    context: Any
    candidates: list[Any]


def round_times(
    cfg: Config, root: Path, truth: Truth, bundles: Sequence[Bundle]
) -> tuple[list[RoundTime] | None, str]:
    """Measure a round with each bundle.

    Returns:
        The times in the order of the bundles, or None with the reason why they cannot be measured.
    """
    try:
        batches = _sample(cfg, root, truth)
        extractors = {
            bundle.info.feature_spec.digest: make_extractor(
                bundle.info.feature_spec, bundle.info.device or attributes(cfg.hardware)
            )
            for bundle in bundles
        }
    except (FeatureError, RecordError) as error:
        return None, str(error)
    extracted = _extract(extractors, batches)
    times = []
    for bundle in bundles:
        seconds, rows = extracted[bundle.info.feature_spec.digest]
        extract_s = seconds * CANDIDATES / len(rows)
        generation = rows.take(np.resize(np.arange(len(rows)), GENERATION))
        repeats = timeit.repeat(partial(bundle.scores, generation), number=1, repeat=_REPEATS)
        score_s = GENERATIONS * min(repeats)
        times.append(RoundTime(extract_s=extract_s, score_s=score_s, sampled=len(rows)))
    return times, ""


def _sample(cfg: Config, root: Path, truth: Truth) -> list[_Batch]:
    """Replay recorded programs of a few tasks, spread over the test part.

    Raises:
        RecordError: there are no modules, or the records are not MetaSchedule's.
        FeatureError: nothing replays.
    """
    folder = root / cfg.paths.records / cfg.dataset.name
    workloads = load_workloads(folder)
    modules = dict(zip(workloads["workload_id"], workloads["mod_json"], strict=True))
    columns = ["program_id", "program", "program_format", "target"]
    working = pl.Series(truth.program_id[~np.isnan(truth.latency_s)].tolist(), dtype=pl.String)
    hardware = None if cfg.hardware.members else [cfg.hardware.name]
    records = load_records(folder, hardware, columns).filter(
        pl.col("program_format") == _FORMAT, pl.col("program_id").is_in(working.implode())
    )
    by_program = {row["program_id"]: row for row in records.iter_rows(named=True)}
    tasks = []
    for task in truth.tasks:
        programs = truth.program_id[task.rows].tolist()
        rows = [by_program[program] for program in programs if program in by_program]
        if rows and modules.get(task.workload_id):
            tasks.append((modules[task.workload_id], rows[:_PROGRAMS]))
    if not tasks:
        raise RecordError(
            f"expected modules and MetaSchedule programs of the test tasks in {folder}, found none"
        )
    positions = np.unique(np.linspace(0, len(tasks) - 1, _TASKS).round().astype(int))
    batches = [_replayed(*tasks[position]) for position in positions]
    batches = [batch for batch in batches if batch.candidates]
    if not batches:
        raise FeatureError(f"expected recorded programs that replay, found none of {folder}")
    return batches


def _replayed(mod_json: str, rows: list[dict[str, Any]]) -> _Batch:
    from tvm.s_tir.meta_schedule import TuneContext
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate
    from tvm.target import Target

    from tencost.programs.trace.intrinsics import register_intrinsics
    from tencost.programs.trace.replay import error_line, load_module, replay

    try:
        target = Target(orjson.loads(rows[0]["target"]))
        register_intrinsics(target.kind.name)
        module = load_module(mod_json)
        context = TuneContext(module, target=target, num_threads=1)
    except Exception as error:
        raise FeatureError(f"this TVM cannot read a workload: {error_line(error)}") from error
    schedules = [replay(module, row["program"]).schedule for row in rows]
    return _Batch(
        context, [MeasureCandidate(schedule, []) for schedule in schedules if schedule is not None]
    )


def _extract(
    extractors: dict[str, Extractor], batches: Sequence[_Batch]
) -> dict[str, tuple[float, Ragged]]:
    """Return seconds and rows of the whole sample for each feature set; the sets take turns."""
    best = dict.fromkeys(extractors, math.inf)
    rows: dict[str, Ragged] = {}
    for _ in range(_REPEATS):
        for digest, extractor in extractors.items():
            start = time.perf_counter()
            parts = [extractor.extract(batch.context, batch.candidates) for batch in batches]
            best[digest] = min(best[digest], time.perf_counter() - start)
            blocks = [part[index] for part in parts for index in range(len(part))]
            rows[digest] = Ragged.from_blocks(blocks, parts[0].num_columns)
    return {digest: (best[digest], rows[digest]) for digest in extractors}
