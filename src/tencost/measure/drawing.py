"""New programs for the tasks of a collection: here one task after another, or side by side on a Ray cluster.

A task's programs depend on its seed, on what it has already and on what steers the search, and on no other task: they
are the same wherever they are drawn. The machines of a cluster read the collection, the live store and the registry, so
the project's folder is the same on each; only the command that was started writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich.console import Console

from tencost.config import Config, ExecutionKind, HardwareConfig, MeasureConfig
from tencost.errors import MeasureError
from tencost.measure.collection import UNKNOWN_ORIGIN, CollectedTask, Collection, Origin
from tencost.measure.programs import ProgramSpace, task_seed
from tencost.measure.steering import Steering, known_starts, steering
from tencost.programs.codegen.refit import Refitter
from tencost.workers.parallel.mapping import Rescue, in_order
from tencost.workers.parallel.workers import open_workers


@dataclass(frozen=True)
class Drawn:
    """New programs of a task.

    Attributes:
        shash: TVM's hash of the workload.
        lines: of MetaSchedule's database, one a new program.
        origin: how all its programs were made, those that it had before included.
    """

    shash: str
    lines: tuple[str, ...]
    origin: Origin


@dataclass(frozen=True)
class Known:
    """What is known of good programs."""

    steered: Steering
    book: Refitter | None


def known_of(
    cfg: Config, hardware: HardwareConfig, collection: Collection, root: Path, console: Console
) -> Known:
    """Return what steers the search, and the programs that others are made near of.

    Raises:
        RegistryError: the registered model cannot be found.
        BundleError: it does not fit.
    """
    settings = cfg.measure
    tasks = collection.tasks(settings.min_mflop)
    steered = (
        steering(cfg.model_uri, hardware, collection, tasks, root, console)
        if settings.evolved_share > 0
        else Steering(None, "nothing")
    )
    book = known_starts(cfg, hardware, root, console) if settings.near_share > 0 else None
    return Known(steered, book)


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
        MeasureError: a task has no program at all, or its workers died again and again.
    """
    known = known_of(cfg, hardware, collection, root, console)
    if cfg.execution.kind is ExecutionKind.local:
        yield from (draw(cfg, hardware, collection, task, known) for task in tasks)
        return

    def died(task: CollectedTask, reason: str) -> Sequence[Drawn]:
        raise MeasureError(
            f"task {task.task_name}: {reason} each time its programs were made. Leave it out: measure.min_mflop=..."
        )

    shared = (cfg, hardware, str(collection.path), str(root))
    workers = open_workers(_draw, shared, cfg.execution, cfg.jobs)
    for results in in_order(workers, tasks, Rescue(died)):
        yield from results


def _draw(shared: Any, task: CollectedTask) -> list[Drawn]:
    cfg, hardware, path, root = shared
    _shared[:] = [(cfg, hardware)]
    return [draw(cfg, hardware, Collection(Path(path)), task, _known(path, root))]


_shared: list[tuple[Config, HardwareConfig]] = []


@lru_cache(1)
def _known(path: str, root: str) -> Known:
    """Return what is known, once a worker process: the command holds the collection's lock, so nothing changes."""
    cfg, hardware = _shared[0]
    return known_of(cfg, hardware, Collection(Path(path)), Path(root), Console(quiet=True))


def missing(settings: MeasureConfig, before: Origin | None) -> bool:
    """Say whether a task needs more programs."""
    return before is None or not (len(before.origins) >= settings.programs or before.exhausted)


def draw(
    cfg: Config,
    hardware: HardwareConfig,
    collection: Collection,
    task: CollectedTask,
    known: Known,
) -> Drawn:
    """Draw new programs of a task.

    Raises:
        MeasureError: it has no program at all.
    """
    settings = cfg.measure
    before = collection.origin(task) or Origin(settings.seed, False, ())
    present = collection.programs(task)
    shares = _shares(settings, before)
    space = ProgramSpace(
        task.mod_json,
        hardware.target,
        task_seed(settings.seed, task.workload_id, len(before.origins)),
        population=population(settings, shares["evolved"], steered=known.steered.model is not None),
        generations=settings.generations,
        model=known.steered.model,
        steered_by=known.steered.name,
    )
    keys = space.keys(present)
    near = space.near(shares["near"], keys, known.book)
    lacking = shares["near"] - len(near.schedules)
    sample = space.random(shares["random"] + lacking, keys)
    samples = [near, sample]
    if shares["evolved"] and not sample.exhausted:
        samples.append(space.evolved(shares["evolved"], keys))
    found = [one for part in samples for one in part.schedules]
    origins = [word for part in samples for word in part.origins]
    if not found and not present:
        raise MeasureError(
            f"task {task.task_name} of {', '.join(task.networks)} has no program at all for target "
            f"{hardware.target}: MetaSchedule's rules refuse it. Leave it out: measure.min_mflop=..."
        )
    shash, lines = space.lines(found)
    origin = Origin(before.seed, sample.exhausted, (*before.origins, *origins))
    return Drawn(shash, tuple(lines), origin)


def population(settings: MeasureConfig, wanted: int, *, steered: bool) -> int:
    """Return programs of a generation: without a model nothing is ranked, and twice those wanted do as well as more."""
    return settings.population if steered else min(settings.population, max(1, 2 * wanted))


def _shares(settings: MeasureConfig, before: Origin) -> dict[str, int]:
    """Return how many programs of each kind are wanted beyond those that are there; unknown ones count as random."""
    evolved = round(settings.programs * settings.evolved_share)
    near = min(round(settings.programs * settings.near_share), settings.programs - evolved)
    wanted = {"random": settings.programs - evolved - near, "evolved": evolved, "near": near}
    have = Counter(text.partition(":")[0] for text in before.origins)
    have["random"] += have.pop(UNKNOWN_ORIGIN, 0)
    left = settings.programs - len(before.origins)
    missing = {kind: max(0, number - have[kind]) for kind, number in wanted.items()}
    for kind in ("random", "evolved", "near"):  # more of one kind than wanted is there already
        missing[kind] -= min(missing[kind], max(0, sum(missing.values()) - left))
    return missing
