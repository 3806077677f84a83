"""What `tencost pipeline` has to do: the stages that are out of date, what each waits for, how long each may take.

Times are those of the last run in this checkout, ``.dvc/tmp/tencost_seconds.json`` (stage -> seconds); of a stage that
has not run here, ``meta`` in dvc.yaml tells them: ``seconds`` of any item of the stage, ``longer: {beginning of an
item: seconds}`` of some.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import psutil

SECONDS_FILE = Path(".dvc", "tmp", "tencost_seconds.json")
_STAGE_BYTES = 2 << 30
"""Memory that a stage may take; trainings on the default dataset take half of it."""


@dataclass(frozen=True)
class PipelinePlan:
    """What `dvc repro` may have to do.

    Attributes:
        stages: name of each stage that is out of date, or follows one that is -> seconds, None where nobody knows.
        total: number of stages of the pipeline.
        needs: stage -> those that are out of date, too, and that it depends on itself.
        alone: stages that use all cores: no other runs beside them (`meta: {alone: true}` in dvc.yaml).
        workers: stages that may run side by side.
    """

    stages: dict[str, float | None]
    total: int
    needs: Mapping[str, Set[str]] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()
    workers: int = 1

    def ready(self, finished: Set[str] = frozenset()) -> list[str]:
        """Return the stages that can begin or have begun, first those after which most is left to do."""
        remaining = self._remaining(finished)
        names = [name for name in remaining if not self.needs.get(name, set()) & remaining.keys()]
        return sorted(names, key=lambda name: -remaining[name])

    def seconds(self, finished: Set[str] = frozenset()) -> float | None:
        """Return how long the stages that are not finished may take; None where of some nobody knows."""
        left = {name: value for name, value in self.stages.items() if name not in finished}
        timed = [value for value in left.values() if value is not None]
        if len(timed) < len(left):
            return None
        longest = max(self._remaining(finished).values(), default=0.0)
        alone = sum(left[name] or 0.0 for name in self.alone & left.keys())
        return max(longest, alone + (sum(timed) - alone) / self.workers)

    def _remaining(self, finished: Set[str]) -> dict[str, float]:
        """Return of each stage that is not finished how long it and the longest chain that waits for it take.

        A stage of which nobody knows counts as a second.
        """
        needs = {
            name: self.needs.get(name, set()) - finished
            for name in self.stages
            if name not in finished
        }
        after = dict.fromkeys(needs, 0.0)
        remaining = {}
        for name in reversed(list(TopologicalSorter(needs).static_order())):
            seconds = self.stages[name]
            remaining[name] = after[name] + (1.0 if seconds is None else seconds)
            for need in needs[name]:
                after[need] = max(after[need], remaining[name])
        return remaining


@dataclass(frozen=True)
class Registration:
    """A stage whose effect is outside DVC: a version of a registered model.

    Attributes:
        stage: its name.
        mark: its output, which is never cached: the file that says what was offered to the registry.
        runnable: whether all its inputs are here.
    """

    stage: str
    mark: Path
    runnable: bool


def plan_pipeline(folder: Path) -> PipelinePlan | None:
    """Return what is to be done in the DVC project of a folder; None where DVC cannot say, as `dvc repro` will."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    timed = read_seconds(folder)
    with suppress(DvcException), Repo(str(folder)) as repo:
        changed = repo.status()
        graph = repo.index.graph  # from a stage to those that it depends on
        todo = [stage for stage in graph if stage.addressing in changed]
        outdated = set(todo)
        while todo:
            followers = set(graph.predecessors(todo.pop())) - outdated
            outdated |= followers
            todo += followers
        metas = {stage.addressing: _meta_of(stage) for stage in outdated}
        needs = {
            stage.addressing: {need.addressing for need in graph.successors(stage)} & metas.keys()
            for stage in outdated
        }
        return PipelinePlan(
            {name: timed.get(name, told_seconds(name, meta)) for name, meta in metas.items()},
            len(graph),
            needs,
            frozenset(name for name, meta in metas.items() if meta.get("alone") is True),
            _most_workers(),
        )
    return None


def registrations(folder: Path, targets: Sequence[str] = ()) -> list[Registration]:
    """Return the stages that register what dvc.lock says is evaluated.

    DVC does not run such a stage for a mark that is missing where it is asked to allow that (`--pull`,
    `--allow-missing`), nor for a registry that lacks what the mark is of.

    Args:
        folder: of the DVC project.
        targets: stages, with or without an item, that count; all where none is named.
    """
    from dvc.repo import Repo

    with Repo(str(folder)) as repo, repo.lock:
        return [
            Registration(stage.addressing, Path(out.fs_path), all(dep.exists for dep in stage.deps))
            for stage in repo.index.stages
            for out in stage.outs
            if out.persist and not out.use_cache
            if not targets or {stage.addressing, stage.addressing.partition("@")[0]} & {*targets}
            if not stage.changed(allow_missing=True)
        ]


def told_seconds(name: str, meta: Mapping[str, Any]) -> float | None:
    """Return what dvc.yaml tells of how long a stage takes, or an item of one; None where it tells nothing."""
    item = name.partition("@")[2]
    longer = meta.get("longer")
    longer = longer if isinstance(longer, Mapping) else {}
    told = [longer[start] for start in longer if item.startswith(str(start))]
    return next((seconds for seconds in (*told, meta.get("seconds")) if _is_number(seconds)), None)


def _meta_of(stage: Any) -> Mapping[str, Any]:
    """Return what dvc.yaml says of a stage under `meta`; nothing where that is no mapping, which DVC allows."""
    meta = getattr(stage, "meta", None)
    return meta if isinstance(meta, Mapping) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _most_workers() -> int:
    """Return how many stages may run side by side here: one a core, as far as there is memory."""
    fit = psutil.virtual_memory().available // _STAGE_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), fit))


def read_seconds(folder: Path) -> dict[str, float]:
    """Return the seconds that each stage took when it ran last; nothing where they are not known."""
    with suppress(OSError, ValueError, AttributeError):
        values = json.loads((folder / SECONDS_FILE).read_bytes())
        return {str(name): float(value) for name, value in values.items() if _is_number(value)}
    return {}
