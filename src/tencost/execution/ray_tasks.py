"""Workers that are processes of a Ray cluster, one task an item."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from tencost import __version__
from tencost.config import ExecutionConfig
from tencost.errors import ExecutionError
from tencost.execution.mapping import Work, WorkerLostError
from tencost.execution.ray_cluster import ray, running

exceptions = ray.exceptions

_BLAMELESS = (
    exceptions.NodeDiedError,
    exceptions.LocalRayletDiedError,
    exceptions.ObjectLostError,
    exceptions.ObjectFetchTimedOutError,
)
_DEATHS = (exceptions.WorkerCrashedError, exceptions.OutOfMemoryError)
AHEAD = 2
"""Items given out by CPU: the next one is there when a worker has finished one."""
_LOOK_SECONDS = 5.0
"""How often the cluster's CPUs are counted: machines come and go."""


class RayWorkers:
    """Processes of a Ray cluster, one a CPU. A machine that comes is used, one that goes costs time only."""

    exact = True

    def __init__(
        self, work: Work, shared: Any, settings: ExecutionConfig, jobs: int | None
    ) -> None:
        """Connect.

        Args:
            work: the function.
            shared: what all items share; put into each machine's shared memory once, so that its arrays are read-only.
            settings: which cluster.
            jobs: workers at once; None: all CPUs.

        Raises:
            ExecutionError: nobody answers, or the cluster does not fit.
        """
        self._jobs = jobs
        self._running = contextlib.ExitStack()
        self._running.enter_context(running(settings, jobs))
        self._flying: set[Any] = set()
        self._look()
        if self._cpus == 0:
            self._running.close()
            raise ExecutionError(
                "expected a Ray cluster with CPUs, found none: add a machine (`ray start --address=...`)"
            )
        try:
            self._function = ray.put((work, __version__))
            self._shared = ray.put(shared)
            self._task = ray.remote(num_cpus=1, max_retries=0)(_run)
        except BaseException:
            self._running.close()
            raise

    @property
    def count(self) -> int:
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._look()
        cpus = max(self._cpus, 1)  # all machines may be gone for the moment
        return AHEAD * min(cpus, self._jobs or cpus)

    def _look(self) -> None:
        self._cpus = int(ray.cluster_resources().get("CPU", 0))
        self._looked = time.monotonic()

    def submit(self, item: Any) -> Any:
        handle = self._task.remote(self._function, self._shared, item)
        self._flying.add(handle)
        return handle

    def wait(self, handles: Sequence[Any]) -> Sequence[Any]:
        done, _ = ray.wait(list(handles), num_returns=1, fetch_local=False)
        return done

    def result(self, handle: Any) -> Sequence[Any]:
        self._flying.discard(handle)
        try:
            return ray.get(handle)
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, exceptions.RayError):
                raise _refused(error.cause) from error
            raise error.cause from error
        except _BLAMELESS as error:
            self._look()
            raise WorkerLostError("the machine died", blameless=True) from error
        except _DEATHS as error:
            raise WorkerLostError("the worker process died") from error
        except exceptions.RayError as error:
            raise _refused(error) from error

    def close(self, *, at_once: bool) -> None:
        if at_once:
            for handle in self._flying:
                ray.cancel(handle, force=True)
        self._flying.clear()
        self._running.close()


def _refused(error: Exception) -> ExecutionError:
    """Return what is wrong with a machine of the cluster: another Python, or none of the modules needed."""
    told = str(error).partition("traceback:")[0]
    return ExecutionError(
        f"Ray: {' '.join(told.split())[:500]}. Every machine of the cluster needs the Python and the packages of this "
        "one: docs/how-to/scale.md"
    )


def _run(function: tuple[Work, str], shared: Any, item: Any) -> Sequence[Any]:
    work, version = function
    if version != __version__:
        raise ExecutionError(
            f"expected tencost {version} on every machine of the cluster, found {__version__} on one"
        )
    return work(shared, item)
