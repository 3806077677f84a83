"""`tencost serve`: pull a model, begin its workers, answer until told to stop."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import uvicorn
from rich.console import Console

from tencost import signals
from tencost.errors import ConfigError, TencostError
from tencost.features.device import attributes
from tencost.features.rows.kind import Chunk, kind_of
from tencost.models.programs.bundle import read_info
from tencost.register.pull import manifest_digest, pull
from tencost.register.service.app import RequestLimits, Service
from tencost.register.service.pool import ScoringPool
from tencost.register.service.reading import LateError, Readers, Rules
from tencost.register.service.scoring import ServedModel
from tencost.workers.hardware import detect_host

TOKEN = "TENCOST_SERVE_TOKEN"
"""Environment variable with the token that requests must bear."""
START_SECONDS = 120.0
"""How long the first worker may take to import TVM and to load the model."""
_LOOK_SECONDS = 0.05
"""How often a starting service looks whether it is ready."""
STOP_SECONDS = 10
"""How long requests that are being answered may take when the service is told to stop."""


def serve(
    uri: str, root: Path, *, host: str, port: int, jobs: int | None, limits: RequestLimits
) -> None:
    """Answer until SIGTERM or Ctrl-C.

    Args:
        uri: of the model, as `pull` takes it.
        root: the project whose registry is meant where MLFLOW_TRACKING_URI is not set.
        host: the address to listen on.
        port: 0: any that is free.
        jobs: worker processes; None: one a core.
        limits: see there.

    Raises:
        ConfigError: an address that others reach, and no token; a port that is taken.
        BundleError: the model does not fit this TVM, or is damaged.
        RegistryError: there is no such model.
    """
    token = os.environ.get(TOKEN) or None
    if token is None and not _is_loopback(host):
        raise ConfigError(
            f"--host {host}: expected a token where others than this host can connect. Set {TOKEN}, and the same for "
            "the clients, or leave --host out"
        )
    console = Console(stderr=True)
    folder = pull(uri, root=root)
    info = read_info(folder)
    device = info.device
    if info.feature_spec.device_columns and not device:
        device = attributes(detect_host())
    pool = ScoringPool(ServedModel(folder, tuple(sorted(device.items()))), jobs)
    rules = Rules(info.target_kind, limits.candidates, kind_of(info.feature_spec).lowers)
    readers = Readers(rules)
    with ThreadPoolExecutor(1) as starter, _listening(host, port) as listener:
        try:
            stop = threading.Event()
            _handle_signals(lambda *_: stop.set())
            starting = starter.submit(_begin, pool, readers, info.target_kind)
            with console.status(f"{uri}: starting"):
                while not (starting.done() or stop.wait(_LOOK_SECONDS)):
                    pass
            if stop.is_set():
                console.print(f"{uri}: stopped before it was ready")
                return
            starting.result()
            service = Service(uri, manifest_digest(folder), info, pool, readers, limits, token)
            settings = uvicorn.Config(
                service.app, log_level="warning", access_log=False, lifespan="off",
                timeout_graceful_shutdown=STOP_SECONDS, timeout_keep_alive=60,
            )  # fmt: skip
            address, free_port = listener.getsockname()[:2]
            address = f"[{address}]" if ":" in address else address
            console.print(
                f"{uri}: http://{address}:{free_port} ({signals.name()} ends it)", soft_wrap=True
            )
            server = uvicorn.Server(settings)
            # uvicorn has handlers of its own while it runs, and raises the signal again when all is answered.
            _handle_signals(lambda *_: setattr(server, "should_exit", True))
            server.should_exit = stop.is_set()
            server.run(sockets=[listener])
        finally:
            pool.close()
            readers.close()


def _handle_signals(handler: Callable[[int, object], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _begin(pool: ScoringPool, readers: Readers, target_kind: str) -> None:
    """Start the processes and let a worker load the model, so that what is wrong with it is said now.

    Not in the main thread, where a signal would come between a process and what it is sent: it would print a traceback.
    """
    readers.begin()
    empty = Chunk("w", "", f'{{"kind": "{target_kind}"}}', (), ())
    try:
        pool.begin(empty, START_SECONDS)
    except LateError:
        raise TencostError(
            f"expected a worker that has loaded the model within {START_SECONDS:g} s, found none"
        ) from None


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"expected to listen on {host} port {port}, cannot: {getattr(error, 'strerror', None) or error}. "
            "Choose another with --port (0: any that is free) or --host"
        ) from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
