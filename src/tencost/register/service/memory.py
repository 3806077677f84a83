"""Programs that were scored in full, remembered by what they are: module and trace, as they were sent."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from tencost.features.rows.ragged import FloatArray
from tencost.register.service.scoring import Scored

MOST = 65_536
"""Programs that are remembered; those of the workload that was asked for longest ago are forgotten first."""


@dataclass
class Programs:
    """Those of one workload, by the hash of their trace, the latest last."""

    scored: dict[bytes, Scored] = field(default_factory=dict)
    rows: dict[bytes, FloatArray] = field(default_factory=dict)
    """Tile columns of those that a draft can learn from."""


class Memory:
    """What was scored; threads may share one."""

    def __init__(self, most: int = MOST) -> None:
        """Begin with nothing.

        Args:
            most: programs that are remembered.
        """
        self._workloads: OrderedDict[bytes, Programs] = OrderedDict()
        self._most = most
        self._count = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def of(self, workload: bytes) -> Programs:
        """Return a copy of what is remembered of a workload."""
        with self._lock:
            programs = self._workloads.get(workload)
            if programs is None:
                return Programs()
            self._workloads.move_to_end(workload)
            return Programs(dict(programs.scored), dict(programs.rows))

    def add(self, workload: bytes, new: Programs) -> None:
        """Remember more programs of a workload."""
        with self._lock:
            programs = self._workloads.setdefault(workload, Programs())
            self._workloads.move_to_end(workload)
            before = len(programs.scored)
            programs.scored.update(new.scored)
            programs.rows.update(new.rows)
            self._count += len(programs.scored) - before
            while self._count > self._most and len(self._workloads) > 1:
                self._count -= len(self._workloads.popitem(last=False)[1].scored)
            for key in list(programs.scored)[: max(0, self._count - self._most)]:
                del programs.scored[key]
                programs.rows.pop(key, None)
                self._count -= 1
