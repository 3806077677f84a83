"""`tencost serve`, scores over HTTP, and `tencost ui`, MLflow's pages."""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tencost.cli.grammar import Command, Text, Whole, option, project
from tencost.errors import ConfigError, MissingDependencyError, RegistryError, without_secrets


def _serve(model: str, port: int, host: str, jobs: int | None, **limits: int) -> None:
    from tencost.register.service.app import RequestLimits
    from tencost.register.service.command import serve

    if port > 65535:
        raise ConfigError(f"expected --port from 0 to 65535, found {port}")
    serve(model, project(), host=host, port=port, jobs=jobs, limits=RequestLimits(**limits))


SERVE = Command(
    "serve",
    _serve,
    "Score candidates over HTTP until Ctrl-C, for tuners that are not in Python's process.\n\nMODEL is "
    "models:/NAME@ALIAS, models:/NAME/VERSION or the folder of a bundle.",
    examples=(
        "tencost serve models:/tencost-epyc-avx512-1c@champion",
        "tencost serve champion --port 8080 --jobs 4",
        "tencost serve models:/tencost-v100/3 --host 0.0.0.0",
    ),
    params=(
        click.Argument(["model"], type=Text("MODEL")),
        option("--port", Whole(0), "0: any that is free.", default=8017),
        option(
            "--host",
            Text("ADDRESS"),
            "Where it listens; others than this host need the token in TENCOST_SERVE_TOKEN.",
            default="127.0.0.1",
        ),
        option("--jobs", Whole(1), "Worker processes. [default: one a core]"),
        option("--candidates", Whole(1), "Of a request, at most.", default=4096),
        option("--megabytes", Whole(1), "Of a request, at most.", default=64),
        option("--seconds", Whole(1), "After which a request is given up.", default=120),
        option("--body-seconds", Whole(1), "After which a request whose body is not here is given up.", default=30),
    ),
)  # fmt: skip


def _ui(port: int, host: str) -> None:
    from tencost.register.pull import is_absent, registry_uri

    if port > 65535:
        raise click.UsageError(f"expected --port from 0 to 65535, found {port}")
    root = project()
    uri = registry_uri(root)
    if is_absent(uri):
        raise RegistryError(
            f"expected runs in {without_secrets(uri)}, found no such database: nothing has run here. Run `tencost "
            "pipeline` in a project (`tencost init FOLDER` starts one), or set MLFLOW_TRACKING_URI to a server"
        )
    source = click.get_current_context().get_parameter_source("port")
    port = _port_to_listen_on(host, port, or_another=source is ParameterSource.DEFAULT)
    from mlflow import MlflowClient

    from tencost.evaluate import runs_view
    from tencost.tracking import runs as tracking
    from tencost.tracking.server_check import MLFLOW_SETTINGS

    uri = tracking.setup(root)
    executable = Path(sys.executable).with_name("mlflow")
    if not executable.exists():
        raise MissingDependencyError(
            "the MLflow UI needs the full mlflow: pip install 'tencost[pipeline]'"
        )
    environment: dict[str, Any] = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    if environment["MLFLOW_LOGGING_LEVEL"] == MLFLOW_SETTINGS["MLFLOW_LOGGING_LEVEL"]:
        environment["MLFLOW_LOGGING_LEVEL"] = "WARNING"  # of a server, errors are read in its log
    command = [str(executable), "ui", "--workers", "1", "--host", host, "--port", str(port)]
    if host not in ("127.0.0.1", "localhost", "::1"):
        command += ["--allowed-hosts", "*"]
    page = runs_view.write_view(MlflowClient(tracking_uri=uri), tracking.EXPERIMENT)
    where = f"[{host}]" if ":" in host else host
    sys.stderr.write(f"runs with their headline figures: http://{where}:{port}{page or '/'}\n")
    try:
        os.execve(executable, [*command, "--backend-store-uri", uri], environment)
    except OSError as error:
        raise RegistryError(f"cannot start {executable}: {error}") from error


UI = Command(
    "ui",
    _ui,
    "Serve the MLflow UI on loopback until Ctrl-C.\n\nIt says under which address the table of runs opens with the "
    "headline figures. One worker, no job queue: it starts in seconds. In a container: --host 0.0.0.0.",
    examples=("tencost ui", "tencost ui --port 5001"),
    params=(
        option(
            "--port",
            Whole(0),
            "The port that it listens on, up to 65535; 0, or none given and 5000 taken: any that is free.",
            default=5000,
        ),
        option(
            "--host",
            Text("ADDRESS"),
            "The address that it listens on; others than loopback let everybody in who reaches it.",
            default="127.0.0.1",
        ),
    ),
)


def _port_to_listen_on(host: str, port: int, *, or_another: bool) -> int:
    """Return a port that is free now.

    Args:
        host: the address that it belongs to.
        port: the requested one; 0: any.
        or_another: whether another one will do where it is occupied.

    Raises:
        ConfigError: it is occupied, or there is no such address here.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as listener:
            return int(listener.getsockname()[1])
    except OSError as error:
        if or_another and error.errno == errno.EADDRINUSE:
            return _port_to_listen_on(host, 0, or_another=False)
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror or error
        raise ConfigError(
            f"expected to listen on {host} port {port}, cannot: {reason}. Choose another with --port "
            "(0: any that is free) or --host"
        ) from error
