"""The line that a user sees while a network is tuned: its time now, what can still be gained, when it ends.

The network's time is an estimate: the weighted sum of its tasks' best programs, and what it takes beyond them, measured
once untuned. To gain is what its tasks take longer than the hardware's description says they
must (:mod:`tencost.tune.roofline.roofline`): what tuning could still gain, at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tencost.config import HardwareConfig
from tencost.errors import ProfileError
from tencost.tune.guard import Arm
from tencost.tune.roofline.roofline import Placed, RooflineTask, Roofs, by_gain, roofs_of, work_of

if TYPE_CHECKING:
    from tencost.tune.session import MeasuredBatch, TuningSession

WIDTH = 100
"""Columns of the line, at most."""
_BEFORE = 38
"""Columns that description, bar, programs (four digits) and seconds take while a network is tuned."""
_SHORTEST = 5
"""Characters of a task's name that say something."""


class Outlook:
    """Where a session stands against the roofs.

    Args:
        session: its tasks are known, their latencies come.
        hardware: whose roofs count; one that tells none has nothing above them.

    Attributes:
        beyond_s: seconds of the network beyond its tasks; None: not measured.
    """

    def __init__(self, session: TuningSession, hardware: HardwareConfig) -> None:
        self.beyond_s: float | None = None
        self._session = session
        self._roofs: Roofs | None = None
        self._works: dict[str, Any] = {}
        try:
            self._roofs = roofs_of(hardware)
        except ProfileError:
            return
        pairs = zip(session.ids, session.tasks, strict=True)
        self._works = {identity: work_of(task.mod, task.flop) for identity, task in pairs}

    def placed(self) -> list[Placed]:
        """Return the tasks against the roofs, the one with most to gain first; none where there are no roofs."""
        if self._roofs is None:
            return []
        latency_s = self._session.latency_s
        pairs = zip(self._session.tasks, self._session.ids, strict=True)
        tasks = [
            RooflineTask(task.name, task.weight, self._works[identity], latency_s[identity])
            for task, identity in pairs
        ]
        return by_gain(tasks, self._roofs)

    def above_by_task(self) -> dict[str, float]:
        """Return the seconds above the roof in one run of the network, by the task's name, where they are known."""
        pairs = ((placed.task.name, placed.above_s) for placed in self.placed())
        return {name: seconds for name, seconds in pairs if seconds is not None}

    @property
    def above_s(self) -> float | None:
        """Seconds above the roofs in one run of the network; None: not known."""
        above = [task.above_s for task in self.placed() if task.above_s is not None]
        return sum(above) if above else None


class Pace:
    """How fast a run measures: as slow as on average, or as its last batch where that was slower, as searches are."""

    def __init__(self) -> None:
        self._programs = 0
        self._elapsed_s = 0.0

    def remaining_s(self, programs: int, elapsed_s: float, remaining: int) -> float:
        """Return the seconds that the rest of the run takes.

        Args:
            programs: of the batch that was measured last.
            elapsed_s: since the run began.
            remaining: programs still to measure.
        """
        last_s, self._elapsed_s = elapsed_s - self._elapsed_s, elapsed_s
        self._programs += programs
        return remaining * max(elapsed_s / max(self._programs, 1), last_s / max(programs, 1))


def progress_line(
    batch: MeasuredBatch, outlook: Outlook, remaining_s: float, columns: int = WIDTH
) -> str:
    """Return what the line says after a batch; the least important is left out where it would be too wide.

    Args:
        batch: that was measured last.
        outlook: where the session stands.
        remaining_s: seconds that are left, about.
        columns: of the terminal; the line takes at most WIDTH. In a wider text rich would cut the numbers before it.
    """
    width = min(columns, WIDTH) - _BEFORE
    beyond = outlook.beyond_s
    of = "tasks" if beyond is None else "network"
    parts = [f"{of} {(batch.total_latency_s + (beyond or 0.0)) * 1e3:.3f} ms"]
    if batch.num_wrong:
        parts.append(f"{batch.num_wrong} WRONG")
    if outlook.above_s is not None:
        parts.append(f"{outlook.above_s * 1e3:.3f} to gain")
    parts.append(f"{clock(remaining_s)} left")
    if batch.round.spearman is not None:
        parts.append(f"rank {batch.round.spearman:+.2f}")
    if batch.round.num_failed:
        parts.append(f"{batch.round.num_failed} failed")
    if batch.round.next_arm is not Arm.residual:
        parts.append(f"by {batch.round.next_arm}")
    row = fitting(parts, width)
    room = width - len(row) - 2
    return f"{row}, {batch.task.name[:room]}" if room >= _SHORTEST else row


def fitting(parts: Sequence[str], width: int) -> str:
    """Return the parts in a row, from the first on, that fit into a width; one that does not is skipped."""
    row = ""
    for part in parts:
        longer = f"{row}, {part}" if row else part
        if len(longer) <= width:
            row = longer
    return row


def clock(seconds: float) -> str:
    """Return seconds as 0:09, 12:34 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
