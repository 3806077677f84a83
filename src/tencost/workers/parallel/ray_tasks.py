"""Workers that are processes of a Ray cluster, one task an item.

A worker leaves a note of which item it begins with the head of the cluster, under a name that only this command knows:
an item that is given out may wait for a CPU as long as others need it, and one that was begun may not take for ever.
Who takes too long is killed by a task on its machine; where that does not help, its item is given out all the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tencost.config import ExecutionConfig
from tencost.errors import ExecutionError
from tencost.workers.parallel.mapping import HANGS_S, OverdueWatch, Work, WorkerLostError
from tencost.workers.parallel.ray_cluster import ray, running
from tencost.workers.parallel.sources import code

# isort: split
from ray.experimental import internal_kv as notes
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

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
_KILL_SECONDS = 30.0
"""How long after its limit an item is waited for until its worker is dead; then its machine is thought to hang, too."""
_NOTES = "tencost"
"""The namespace of the notes."""


@dataclass(frozen=True)
class _Worker:
    node: str
    host: str
    pid: int

    def __str__(self) -> str:
        return f"Ray worker {self.pid} on {self.host}"


class RayWorkers:
    """Processes of a Ray cluster, one a CPU. A machine that comes is used, one that goes costs time only."""

    exact = True

    def __init__(
        self,
        work: Work,
        shared: Any,
        settings: ExecutionConfig,
        jobs: int | None,
        limit_s: float = HANGS_S,
    ) -> None:
        """Connect.

        Args:
            work: the function.
            shared: what all items share; put into each machine's shared memory once, so that its arrays are read-only.
            settings: which cluster.
            jobs: workers at once; None: all CPUs.
            limit_s: seconds that an item may take, from when a worker begins it.

        Raises:
            ExecutionError: nobody answers, or the cluster does not fit.
        """
        self._jobs = jobs
        self._running = contextlib.ExitStack()
        self._running.enter_context(running(settings, jobs))
        self._flying: dict[Any, str] = {}
        self._overdue = OverdueWatch[_Worker](limit_s)
        self._prefix, self._submitted = secrets.token_hex(8), 0
        self._look()
        if self._cpus == 0:
            self._running.close()
            raise ExecutionError(
                "expected a Ray cluster with CPUs, found none: add a machine (`ray start --address=...`)"
            )
        try:
            self._function = ray.put((work, code()))
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
        note = f"{self._prefix}-{self._submitted}"
        self._submitted += 1
        handle = self._task.remote(self._function, self._shared, item, note)
        self._flying[handle] = note
        return handle

    def wait(self, handles: Sequence[Any]) -> Sequence[Any]:
        while True:
            finished, _ = ray.wait(
                list(handles), num_returns=1, fetch_local=False, timeout=self._overdue.look_s
            )
            self._overdue.tick()
            if finished:
                return finished
            self._read_notes()
            for _, worker in self._overdue.newly_late():
                there = NodeAffinitySchedulingStrategy(node_id=worker.node, soft=False)
                kill = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(_kill)
                kill.remote(worker.pid)
            if lost := self._overdue.late_for(_KILL_SECONDS):
                return [handle for handle in handles if self._flying[handle] in lost]

    def _read_notes(self) -> None:
        """Learn which items have been begun, and by whom."""
        for name in notes._internal_kv_list(self._prefix, namespace=_NOTES):
            note = name.decode()
            if not self._overdue.knows(note):
                text = notes._internal_kv_get(note, namespace=_NOTES)
                if text is not None:
                    self._overdue.begun(note, _Worker(**json.loads(text)))

    def result(self, handle: Any) -> Sequence[Any]:
        note = self._flying.pop(handle)
        hangs = self._overdue.is_late(note)
        self._overdue.ended(note)
        notes._internal_kv_del(note, namespace=_NOTES)
        if hangs and not ray.wait([handle], timeout=0, fetch_local=False)[0]:
            raise WorkerLostError(self._overdue.reason)
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
            reason = self._overdue.reason if hangs else "the worker process died"
            raise WorkerLostError(reason) from error
        except exceptions.RayError as error:
            raise _refused(error) from error

    def close(self, *, at_once: bool) -> None:  # noqa: ARG002 - the protocol of workers
        """Leave the cluster, which ends the tasks that are left.

        They are not cancelled first: a task that ends while Ray 2.60 cancels it makes Ray abort this process.
        """
        self._flying.clear()
        self._running.close()


def _refused(error: Exception) -> ExecutionError:
    """Return what is wrong with a machine of the cluster: another Python, or none of the modules needed."""
    text = str(error).partition("traceback:")[0]
    return ExecutionError(
        f"Ray: {' '.join(text.split())[:500]}. Every machine of the cluster needs the Python and the packages of this "
        "one: docs/how-to/scale.md"
    )


def _run(function: tuple[Work, str], shared: Any, item: Any, note: str) -> Sequence[Any]:
    work, expected = function
    require_code(expected)
    worker = {
        "node": ray.get_runtime_context().get_node_id(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    notes._internal_kv_put(note, json.dumps(worker), namespace=_NOTES)
    return work(shared, item)


def require_code(expected: str) -> None:
    """Check in a worker that it runs the code of the command.

    Raises:
        ExecutionError: it runs other code; what it would return may be something else.
    """
    present = code()
    if present != expected:
        raise ExecutionError(
            f"expected tencost {expected} on every machine of the cluster, found {present} on "
            f"{socket.gethostname()} ({ray.util.get_node_ip_address()}): install the same one there, "
            "docs/how-to/scale.md"
        )


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
