"""Hardware counters of programs as one table."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tencost.errors import ProfileError


@dataclass(frozen=True, eq=False)
class Profiles:
    """Hardware counters of programs.

    Legend: P programs, M metrics.

    Attributes:
        program_id: string [P], distinct on a device: a record's id, or that of a tuner's configuration.
        workload: string [P]: what the program computes; programs of one workload compete.
        device: string [P]: the device that it ran on, as the profiler names it.
        metrics: the metrics' names, in Nsight Compute's words of the newest generation.
        values: float64 [P, M] in canonical units (ns, byte, hertz, %; counts as they are); NaN: not measured.
        time_ns: float64 [P]: how long the program took, its kernels together; NaN: not measured.
    """

    program_id: NDArray[np.str_]
    workload: NDArray[np.str_]
    device: NDArray[np.str_]
    metrics: tuple[str, ...]
    values: NDArray[np.float64]
    time_ns: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.program_id)

    def take(self, rows: NDArray[np.int64]) -> Profiles:
        """Select programs, in the order given."""
        names = ("program_id", "workload", "device", "values", "time_ns")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def column(self, metric: str) -> NDArray[np.float64]:
        """Return a metric of every program, float64 [P].

        Raises:
            ProfileError: it was not measured.
        """
        if metric not in self.metrics:
            raise ProfileError(
                f"expected the metric {metric}, found {len(self.metrics)} others: {', '.join(self.metrics)}"
            )
        return self.values[:, self.metrics.index(metric)]
