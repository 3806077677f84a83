"""The workers that a configuration asks for."""

from __future__ import annotations

from typing import Any

from tencost.config import ExecutionConfig, ExecutionKind
from tencost.errors import MissingDependencyError
from tencost.workers.parallel.local import LocalWorkers
from tencost.workers.parallel.mapping import HANGS_S, Work, Workers


def open_workers(
    work: Work,
    shared: Any,
    settings: ExecutionConfig | None = None,
    jobs: int | None = None,
    limit_s: float = HANGS_S,
) -> Workers:
    """Return workers; they are closed by `tencost.workers.parallel.mapping.in_order`.

    Args:
        work: what they do with an item, a function of a module.
        shared: what all items share, its first argument.
        settings: where; None: processes of this host.
        jobs: how many at most; None: one for every core.
        limit_s: seconds that an item may take, unless the settings say another number.

    Raises:
        ExecutionError: a cluster that cannot be reached.
        MissingDependencyError: Ray is not installed.
    """
    if settings is not None and settings.limit_s is not None:
        limit_s = settings.limit_s
    if settings is None or settings.kind is ExecutionKind.local:
        return LocalWorkers(work, shared, jobs, limit_s)
    try:
        from tencost.workers.parallel.ray_tasks import RayWorkers
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise MissingDependencyError(
            "execution=ray needs ray, which is not installed: pip install 'tencost[scale]'"
        ) from error
    return RayWorkers(work, shared, settings, jobs, limit_s)
