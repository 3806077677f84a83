"""Under what conditions a run timed its programs: whether others used the host, and whether it became slower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tencost.workers.noise import NOISY, host_load, is_busy
from tencost.workers.pool import WorkerPool


@dataclass(frozen=True)
class Conditions:
    """What was seen of the host.

    Attributes:
        busy: why times would not be trusted when the run began; empty on a quiet host.
        probe_s: seconds of the noise probe's kernel at the start and at the end; fewer where it could not run.
    """

    busy: str = ""
    probe_s: tuple[float, ...] = ()

    @classmethod
    def at_start(cls, pool: WorkerPool) -> Conditions:
        """Look at the CPUs that a pool's programs run on."""
        return cls(busy_of(host_load(set(pool.cpus.run)) if pool.cpus.run else {}))._probed(pool)

    def at_end(self, pool: WorkerPool) -> Conditions:
        """Time the kernel again."""
        return self._probed(pool)

    @property
    def noise(self) -> float | None:
        """How many times as long as its best the kernel took at its worst, 1 on a quiet host."""
        return max(self.probe_s) / min(self.probe_s) if len(self.probe_s) > 1 else None

    @property
    def told(self) -> str:
        """What speaks against the run's times, in words; empty if nothing does."""
        reasons = [f"busy at the start: {self.busy}"] if self.busy else []
        if self.noise is not None and self.noise >= NOISY:
            first, last = self.probe_s[0], self.probe_s[-1]
            when = "end" if last > first else "start"
            reasons.append(
                f"the reference kernel took {self.noise:.2f} times its best at the {when}"
            )
        return "; ".join(reasons)

    def report(self) -> dict[str, Any]:
        """Return rows of the report."""
        return {"host_busy": self.busy, "host_noise": self.noise, "host_told": self.told}

    def _probed(self, pool: WorkerPool) -> Conditions:
        seconds = pool.probe()
        return self if seconds is None else Conditions(self.busy, (*self.probe_s, seconds))


def busy_of(load: Mapping[str, Any]) -> str:
    """Return why a host with this load, see :func:`host_load`, is too busy to be timed on; empty if it is not."""
    return is_busy(load) or ""
