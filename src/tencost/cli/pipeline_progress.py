"""What `tencost pipeline` says while DVC runs: how much there is to do, where it is, how long the rest may take.

Times are those of the last run in this checkout, ``.dvc/tmp/tencost_seconds.json`` (stage -> seconds); of a stage that
has not run here, ``meta: {seconds: ...}`` in dvc.yaml.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tencost.writing import whole_file

FILE = Path(".dvc", "tmp", "tencost_seconds.json")
_LOGGER = logging.getLogger("dvc.stage")
_RUNNING = "Running stage"
_UNCHANGED = ("didn't change, skipping", "is cached - skipping run")


@dataclass(frozen=True)
class Plan:
    """What `dvc repro` may have to do.

    Attributes:
        stages: name of each stage that is out of date, or follows one that is -> seconds, None where nobody knows.
        total: number of stages of the pipeline.
    """

    stages: dict[str, float | None]
    total: int

    def seconds(self, done: frozenset[str] = frozenset()) -> float | None:
        """Return how long the stages that are not done may take; None where of some nobody knows."""
        left = [seconds for name, seconds in self.stages.items() if name not in done]
        known = [seconds for seconds in left if seconds is not None]
        return sum(known) if len(known) == len(left) else None


def plan(folder: Path) -> Plan | None:
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
        stages = {
            stage.addressing: timed.get(
                stage.addressing, (getattr(stage, "meta", None) or {}).get("seconds")
            )
            for stage in outdated
        }
        return Plan(stages, len(graph))
    return None


def read_seconds(folder: Path) -> dict[str, float]:
    """Return the seconds that each stage took when it ran last; nothing where they are not known."""
    with suppress(OSError, ValueError, AttributeError):
        values = json.loads((folder / FILE).read_bytes())
        return {str(name): float(seconds) for name, seconds in values.items()}
    return {}


class Progress(logging.Handler):
    """Listens to what DVC logs, prints a line before each stage that runs, and keeps the stages' times."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        super().__init__(logging.INFO)
        self._folder, self._plan = folder, plan
        self._began = time.monotonic()
        self._done: set[str] = set()
        self._stage: tuple[str, float] | None = None

    def __enter__(self) -> Progress:
        self._say(
            f"{len(self._plan.stages)} of {self._plan.total} stages are out of date", "in all"
        )
        _LOGGER.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        _LOGGER.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        name = text.partition("'")[2].partition("'")[0]
        if text.startswith(_RUNNING):
            self.end_stage()
            self._stage = (name, time.monotonic())
            spent = minutes(time.monotonic() - self._began)
            place = f"[{len(self._done & set(self._plan.stages)) + 1}/{len(self._plan.stages)}]"
            self._say(f"{place} {name}: {spent} so far", "left")
        elif any(part in text for part in _UNCHANGED):
            self.end_stage()
            self._done.add(name)

    def end_stage(self) -> None:
        """Note that the stage that runs has ended, and its time."""
        if self._stage is None:
            return
        name, began = self._stage
        self._stage = None
        self._done.add(name)
        timed = read_seconds(self._folder) | {name: round(time.monotonic() - began, 1)}
        with suppress(OSError), whole_file(self._folder / FILE) as partial:
            partial.write_text(json.dumps(timed, indent=1, sort_keys=True))

    def _say(self, text: str, what: str) -> None:
        seconds = self._plan.seconds(frozenset(self._done))
        rest = "" if not seconds else f", about {minutes(seconds)} {what}"
        sys.stderr.write(f"{text}{rest}\n")
        sys.stderr.flush()


def minutes(seconds: float) -> str:
    """Return a duration for people: `40 s`, `6 min`."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
