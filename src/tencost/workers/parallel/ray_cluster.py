"""Ray, started here for one command, or a cluster that runs already.

A cluster that is started here reports nothing, has no dashboard, keeps its files below the system's temporary folder,
and is gone when the command ends, however it ends; files of a command that was killed go with the next one that starts
a cluster. Its ports are open to the network: who connects needs a token that is made for this process. One that runs
already is asked with its own token (RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH).

Importing this module imports Ray, and others take `ray` from here: what it reads from the environment when it is
imported is set here.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

if "ray" not in sys.modules:
    # Ray reads these when it is imported. A token of its own making would be written into the home folder.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if (
        not os.environ.get("RAY_AUTH_TOKEN_PATH")
        and not Path("~/.ray/auth_token").expanduser().is_file()
    ):
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

# isort: split
import ray as ray

from tencost.config import ExecutionConfig
from tencost.errors import ExecutionError

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_REFUSALS = (OSError, RuntimeError, ValueError, ray.exceptions.RayError)
CONNECT_SECONDS, ANSWER_SECONDS = 1.5, 10.0
"""How long an address may take to accept a connection, and then to say that it is a cluster. On a busy host the process
that asks needs longer than that to import Ray, which is not counted."""
_ASK = """
import sys
from ray.scripts import scripts
print("asking", flush=True)
scripts.cli(["health-check", "--address", sys.argv[1]])
"""
_PREFIX, _LOCK = "tencost-ray-", "tencost.lock"
_YOUNG_SECONDS = 60.0
"""A lock may be nobody's for as long: it is just being made."""


@contextlib.contextmanager
def running(settings: ExecutionConfig, jobs: int | None) -> Iterator[None]:
    """Have Ray at hand within the block; inside another one of these, that one's is used.

    Args:
        settings: which cluster.
        jobs: workers of one that is started here; None: one for every core that this process may run on.

    Raises:
        ExecutionError: nobody answers, somebody else, or with another version or token.
    """
    if ray.is_initialized():
        yield
        return
    cluster = (
        _connected(settings.address)
        if settings.address is not None
        else _started(jobs, settings.store_mb << 20)
    )
    with _quiet(), cluster:
        yield


@contextlib.contextmanager
def _started(jobs: int | None, store_bytes: int) -> Iterator[None]:
    with folder() as files, _environment({"RAY_TMPDIR": files}):  # Ray's locks lie there
        try:
            try:
                ray.init(
                    address="local",
                    num_cpus=jobs or len(os.sched_getaffinity(0)),
                    num_gpus=0,
                    include_dashboard=False,
                    configure_logging=False,
                    log_to_driver=False,
                    object_store_memory=store_bytes,
                    _temp_dir=files,
                )
            except _REFUSALS as error:
                raise ExecutionError(
                    f"expected Ray to start on this host, found: {_last_line(str(error))}"
                ) from error
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def folder() -> Iterator[str]:
    """Have a folder for a cluster's files, locked as long as this process lives; remove those that nobody holds.

    Ray's sockets lie in it, and the path of a socket has 107 letters at most.
    """
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError), lock.open("rb") as file:
            if time.time() - lock.stat().st_mtime > _YOUNG_SECONDS:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
    files = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with (files / _LOCK).open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield str(files)
    finally:
        shutil.rmtree(files, ignore_errors=True)


@contextlib.contextmanager
def _connected(address: str) -> Iterator[None]:
    _check(address)
    try:
        ray.init(address=address, configure_logging=False, log_to_driver=False)
    except _REFUSALS as error:
        raise ExecutionError(
            f"execution.address={address}: Ray refuses: {_last_line(str(error))}"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _check(address: str) -> None:
    """Ask whether a cluster answers that this token opens: Ray itself tries for minutes, or ends the process."""
    host, _, port = address.rpartition(":")
    hint = "Start one (`ray start --head`, docs/how-to/scale.md), or leave execution.address out"
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ExecutionError(
            f"execution.address={address}: expected the head of a Ray cluster, nobody answers ({error}). {hint}"
        ) from error
    with subprocess.Popen(
        [sys.executable, "-c", _ASK, address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # "asking", or nothing where it has failed
        try:
            output, errors = process.communicate(timeout=ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            reason = (
                f"it did not answer in {ANSWER_SECONDS:g} s: it is busy, or no Ray listens there"
            )
        else:
            if process.returncode == 0:
                return
            reason = _last_line(errors or output) or "its health check fails"
    raise ExecutionError(
        f"execution.address={address}: expected the head of a Ray {ray.__version__} cluster that this command's token "
        f"opens (RAY_AUTH_TOKEN), found: {reason}. {hint}"
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].partition(". ")[0][:300] if lines else ""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ray's words about itself from the terminal, and its reports from its makers."""
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with _environment(_ENVIRONMENT), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _environment(words: Mapping[str, str]) -> Iterator[None]:
    """Have these variables in the environment within the block, as Ray's processes inherit them."""
    before = {name: os.environ.get(name) for name in words}
    os.environ.update(words)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
