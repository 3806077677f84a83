"""Where the work of a stage is done: in processes of this host, or on a Ray cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from tencost.config.checking import within
from tencost.errors import ConfigError


class ExecutionKind(Enum):
    """Who runs the workers."""

    local = "local"
    """Processes of this host."""
    ray = "ray"
    """Ray: a cluster of several machines, or one that is started on this host for the command."""


@dataclass(kw_only=True)
class ExecutionConfig:
    """Where the work of a stage is done; what comes out is the same, byte for byte."""

    kind: ExecutionKind = ExecutionKind.local
    """local: processes of this host; ray: a Ray cluster (tencost[scale])."""
    address: str | None = None
    """ray: host:port of a running cluster's head; None starts one on this host, which ends with the command."""
    store_mb: int = 256
    """ray: shared memory of a cluster that is started here, MiB; what does not fit is kept on disk."""
    limit_s: float | None = None
    """seconds that a piece of work may take before its worker is ended and another one gets it; None: 600 for a chunk
    of programs, 3600 for a model or a task, 14400 for a training, 86400 for a trial of a search."""

    def __post_init__(self) -> None:
        within("execution", self, store_mb="[100, inf)", limit_s="(0, inf)")
        if self.address is not None and not re.fullmatch(r"\[?[\w.:-]+\]?:\d{1,5}", self.address):
            raise ConfigError(
                f"execution.address must be host:port, such as 10.0.0.5:6379, found {self.address!r}"
            )
