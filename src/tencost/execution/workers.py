"""The workers that a configuration asks for."""

from __future__ import annotations

from typing import Any

from tencost.config import ExecutionConfig, ExecutionKind
from tencost.errors import MissingDependencyError
from tencost.execution.local import LocalWorkers
from tencost.execution.mapping import Work, Workers


def open_workers(
    work: Work, shared: Any, settings: ExecutionConfig | None = None, jobs: int | None = None
) -> Workers:
    """Return workers; they are closed by `tencost.execution.mapping.in_order`.

    Args:
        work: what they do with an item, a function of a module.
        shared: what all items share, its first argument.
        settings: where; None: processes of this host.
        jobs: how many at most; None: one for every core.

    Raises:
        ExecutionError: a cluster that cannot be reached.
        MissingDependencyError: Ray is not installed.
    """
    if settings is None or settings.kind is ExecutionKind.local:
        return LocalWorkers(work, shared, jobs)
    try:
        from tencost.execution.ray_tasks import RayWorkers
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise MissingDependencyError(
            "execution=ray needs ray, which is not installed: pip install 'tencost[scale]'"
        ) from error
    return RayWorkers(work, shared, settings, jobs)
