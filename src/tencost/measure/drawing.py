"""New programs for the tasks of a collection: here one task after another, or side by side on a Ray cluster.

A task's programs depend on its seed, on what it has already and on what steers the search, and on no other task: they
are the same wherever they are drawn. The machines of a cluster read the collection, the live store and the registry, so
the project's folder is the same on each; only the command that was started writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from tvm.s_tir.schedule import ScheduleError

from tencost.config import Config, ExecutionKind, HardwareConfig, MeasureConfig
from tencost.errors import MeasureError
from tencost.measure.collection import UNKNOWN_ORIGIN, CollectedTask, Collection, ProgramOrigin
from tencost.measure.programs import ProgramSpace, task_seed
from tencost.measure.steering import Steering, steering
from tencost.programs.trace.replay import error_line
from tencost.workers.parallel.mapping import Rescue, in_order
from tencost.workers.parallel.workers import open_workers


@dataclass(frozen=True)
class Drawn:
    """New programs of a task.

    Attributes:
        shash: TVM's hash of the workload.
        lines: of MetaSchedule's database, one a new program.
        origin: how all its programs were made, those that it had before included.
        refused: why the task has no program at all; empty where it has some.
    """

    shash: str
    lines: tuple[str, ...]
    origin: ProgramOrigin
    refused: str = ""


def drawn(
    cfg: Config,
    hardware: HardwareConfig,
    collection: Collection,
    tasks: Sequence[CollectedTask],
    root: Path,
    console: Console,
) -> Iterator[Drawn]:
    """Draw new programs for tasks, in their order.

    Raises:
        RegistryError: the registered model cannot be found.
        BundleError: it does not fit.
        MeasureError: a task's workers died again and again.
    """
    guide = steering(cfg, hardware, collection, root, console)
    if cfg.execution.kind is ExecutionKind.local:
        yield from (draw_programs(cfg, hardware, collection, task, guide) for task in tasks)
        return

    def died(task: CollectedTask, reason: str) -> Sequence[Drawn]:
        raise MeasureError(
            f"task {task.task_name}: {reason} each time its programs were made. Leave it out: measure.min_mflop=..."
        )

    shared = (cfg, hardware, collection.path, root)
    workers = open_workers(_draw, shared, cfg.execution, cfg.jobs)
    for programs in in_order(workers, tasks, Rescue(died)):
        yield from programs


_guides: dict[Path, Steering] = {}
"""In a worker process: what guides the drawing for a collection, which the command holds the lock of."""


def _draw(shared: Any, task: CollectedTask) -> list[Drawn]:
    cfg, hardware, path, root = shared
    collection = Collection(path)
    if path not in _guides:
        _guides[path] = steering(cfg, hardware, collection, root, Console(quiet=True))
    return [draw_programs(cfg, hardware, collection, task, _guides[path])]


def needs_programs(settings: MeasureConfig, before: ProgramOrigin | None) -> bool:
    """Say whether a task needs more programs."""
    return before is None or not (len(before.origins) >= settings.programs or before.exhausted)


def draw_programs(
    cfg: Config,
    hardware: HardwareConfig,
    collection: Collection,
    task: CollectedTask,
    guide: Steering,
) -> Drawn:
    """Draw new programs of a task; none, and why, where TVM's rules refuse it."""
    settings = cfg.measure
    before = collection.origin(task) or ProgramOrigin(settings.seed, False, ())
    present = collection.programs(task)
    counts = _missing_by_kind(settings, before)
    try:
        space = ProgramSpace(
            task.mod_json,
            hardware.target,
            task_seed(settings.seed, task.workload_id, len(before.origins)),
            population=population(settings, counts["evolved"], steered=guide.model is not None),
            generations=settings.generations,
            model=guide.model,
            steered_by=guide.name,
        )
    except ScheduleError as error:
        return Drawn("", (), before, refused=error_line(error))
    keys = space.keys(present)
    near = space.near(counts["near"], keys, guide.refitter)
    random = space.random(counts["random"] + counts["near"] - len(near.schedules), keys)
    samples = [near, random]
    if counts["evolved"] and not random.exhausted:
        samples.append(space.evolved(counts["evolved"], keys))
    schedules = [schedule for sample in samples for schedule in sample.schedules]
    if not schedules and not present:
        return Drawn("", (), before, refused="no sample of its design space is a program")
    shash, lines = space.lines(schedules)
    origins = (origin for sample in samples for origin in sample.origins)
    origin = ProgramOrigin(before.seed, random.exhausted, (*before.origins, *origins))
    return Drawn(shash, tuple(lines), origin)


def population(settings: MeasureConfig, count: int, *, steered: bool) -> int:
    """Return programs of a generation: without a model nothing is ranked, and twice `count` do as well as more."""
    return settings.population if steered else min(settings.population, max(1, 2 * count))


def _missing_by_kind(settings: MeasureConfig, before: ProgramOrigin) -> dict[str, int]:
    """Return how many programs of each kind are missing; those of unknown origin count as random."""
    evolved = round(settings.programs * settings.evolved_share)
    near = min(round(settings.programs * settings.near_share), settings.programs - evolved)
    requested = {"random": settings.programs - evolved - near, "evolved": evolved, "near": near}
    present = Counter(origin.partition(":")[0] for origin in before.origins)
    present["random"] += present.pop(UNKNOWN_ORIGIN, 0)
    missing = {kind: max(0, count - present[kind]) for kind, count in requested.items()}
    remaining = settings.programs - len(before.origins)
    for kind in ("random", "evolved", "near"):  # there may be more of another kind than requested
        missing[kind] -= min(missing[kind], max(0, sum(missing.values()) - remaining))
    return missing
