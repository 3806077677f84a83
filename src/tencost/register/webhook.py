"""A promotion re-tunes networks: what listens to MLflow's webhooks, and what registers there.

MLflow posts `model_version_alias.created` whenever an alias is set, signed with a secret::

    {"entity": "model_version_alias", "action": "created", "timestamp": ..., "data": {"name", "alias", "version"}}
    X-MLflow-Delivery-Id: <id>   X-MLflow-Timestamp: <seconds>
    X-MLflow-Signature: v1,<base64 of HMAC-SHA256 of "<id>.<seconds>.<body>">

The listener takes what is signed with TENCOST_WEBHOOK_SECRET, young and not yet seen, and tunes each network of its
list with the promoted version, one after the other: `tencost tune network=... model_uri=models:/<name>/<version>`.
MLflow's server delivers only to https and public addresses, unless it is told otherwise
(MLFLOW_WEBHOOK_ALLOWED_SCHEMES, MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS), and keeps secrets encrypted with
MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rich.console import Console

from tencost.errors import RegistryError, printable
from tencost.register import registry
from tencost.register.pull import registry_uri
from tencost.tracking.server_check import explain_server_errors

SECRET_VARIABLE = "TENCOST_WEBHOOK_SECRET"
EVENT = "model_version_alias.created"
HOOK = "tencost-retune"
"""Name of the webhook at MLflow."""
OLDEST_S = 300
"""A delivery that is older, or as much younger than the clock says, is somebody's recording."""
MOST_BYTES = 1 << 16
_MOST_SEEN = 1000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Promotion:
    """An alias that was set."""

    name: str
    alias: str
    version: int

    @property
    def uri(self) -> str:
        """What `pull` takes: the version, whatever the alias means by then."""
        return f"models:/{self.name}/{self.version}"


def secret() -> str:
    """Return the secret that server and listener share.

    Raises:
        RegistryError: there is none.
    """
    shared = os.environ.get(SECRET_VARIABLE, "")
    if len(shared) < 16:
        raise RegistryError(
            f"expected a secret of 16 characters or more in {SECRET_VARIABLE}, found "
            f"{'a shorter one' if shared else 'none'}. Make one: export {SECRET_VARIABLE}=$(openssl rand -hex 24)"
        )
    return shared


def add(root: Path, url: str) -> None:
    """Let the registry's server tell a listener at `url` of every alias that is set; an earlier address is replaced.

    Raises:
        RegistryError: no secret, no server, or one that does not take the address.
    """
    uri, shared = registry_uri(root), secret()
    if not uri.startswith(("http://", "https://")):
        raise RegistryError(
            "expected an MLflow server in MLFLOW_TRACKING_URI, found a database: only a server delivers webhooks"
        )
    from mlflow.exceptions import MlflowException

    with explain_server_errors(uri):
        client = registry.connect(uri)
        replaced = [hook for hook in client.list_webhooks() if hook.name == HOOK]
        try:
            client.create_webhook(HOOK, url, [EVENT], secret=shared)
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            raise RegistryError(
                f"the registry's server does not deliver to {url}: {error}"
            ) from None
        for hook in replaced:
            client.delete_webhook(hook.webhook_id)
    Console().print(f"{HOOK}: {url} is told of every promotion", highlight=False, soft_wrap=True)


def promotion(headers: Mapping[str, str], body: bytes, shared: str, now: float) -> Promotion:
    """Return what a delivery tells.

    Args:
        headers: of the request.
        body: its content.
        shared: the secret.
        now: seconds since 1970.

    Raises:
        PermissionError: it is not signed with the secret, or too old.
        ValueError: it tells something else.
    """
    identity = headers.get("X-MLflow-Delivery-Id", "")
    stamp = headers.get("X-MLflow-Timestamp", "")
    signed = f"{identity}.{stamp}.".encode() + body
    expected = base64.b64encode(hmac.new(shared.encode(), signed, hashlib.sha256).digest())
    signature = headers.get("X-MLflow-Signature", "").encode("latin-1", "replace")
    if not hmac.compare_digest(b"v1," + expected, signature):
        raise PermissionError("not signed with the secret")
    if not stamp.isdecimal() or abs(now - int(stamp)) > OLDEST_S:
        raise PermissionError("too old")
    try:
        content = json.loads(body)
        data = content["data"]
        event = Promotion(str(data["name"]), str(data["alias"]), int(data["version"]))
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError("expected name, alias and version of a model") from error
    if (content.get("entity"), content.get("action")) != tuple(EVENT.split(".")):
        raise ValueError(f"expected {EVENT}")
    return event


@dataclass
class Listener:
    """Waits for promotions and tunes.

    Attributes:
        networks: what is tuned, as conf/network names it.
        alias: which alias counts.
        hardware: what is tuned for; None: what the model's name says, tencost-<hardware>.
        overrides: further words of `tencost tune`.
    """

    networks: Sequence[str]
    alias: str
    hardware: str | None = None
    overrides: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.promotions: queue.Queue[Promotion | None] = queue.Queue()
        self._seen: dict[str, None] = {}
        self._child: subprocess.Popen[bytes] | None = None
        self._ending = threading.Event()

    def take(self, headers: Mapping[str, str], body: bytes) -> int:
        """Take a delivery; return the HTTP status of the answer."""
        try:
            event = promotion(headers, body, secret(), time.time())
        except PermissionError:
            return 403
        except ValueError:
            return 400
        identity = headers.get("X-MLflow-Delivery-Id", "")
        graphs = event.name.startswith("tencost-graph-")
        if event.alias != self.alias or graphs or not event.name.startswith("tencost-"):
            return 204
        if identity not in self._seen:
            self._seen[identity] = None
            for old in list(self._seen)[:-_MOST_SEEN]:
                del self._seen[old]
            self.promotions.put(event)
        return 202

    def commands(self, event: Promotion) -> list[list[str]]:
        """Return the commands that a promotion makes."""
        hardware = self.hardware or event.name.removeprefix("tencost-")
        tune = [sys.executable, "-m", "tencost.cli", "tune"]
        about = [f"hardware={hardware}", f"model_uri={event.uri}", *self.overrides]
        return [[*tune, f"network={network}", *about] for network in self.networks]

    def tune(self, console: Console) -> None:
        """Tune after each promotion until :meth:`end`; a run that fails stops no other."""

        def line(text: str) -> None:
            console.print(text, markup=False, highlight=False, soft_wrap=True)

        while (event := self.promotions.get()) is not None and not self._ending.is_set():
            line(printable(f"{event.name}: {event.alias} is version {event.version}"))
            for command in self.commands(event):
                if self._ending.is_set():
                    return
                self._child = subprocess.Popen(command)
                line(f"exit code {self._child.wait()}: {' '.join(command[2:])}")

    def end(self) -> None:
        """Stop tuning as Ctrl-C would, which the child may ignore: what was measured is kept."""
        self._ending.set()
        self.promotions.put(None)
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)


def listen(listener: Listener, host: str, port: int) -> None:
    """Listen until Ctrl-C or SIGTERM.

    Raises:
        RegistryError: no secret, or an address that is taken.
    """
    secret()
    console = Console()

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > MOST_BYTES:
                self.answer(413)
                return
            self.answer(listener.take(dict(self.headers.items()), self.rfile.read(int(length))))

        def answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *message: Any) -> None:
            _log.info("%s", message)

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise RegistryError(
            f"cannot listen at {host}:{port}: {error.strerror or error}. Choose another: --port"
        ) from error
    server.daemon_threads = True
    tuning = threading.Thread(target=listener.tune, args=(console,))
    tuning.start()
    networks = ", ".join(listener.networks)
    console.print(
        f"listening at http://{host}:{server.server_port}; when a model's {listener.alias} is set, these are tuned: "
        f"{networks}. Tell the registry: tencost register hook <the address that it reaches this host by>",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        console.print("ending; what was measured is kept")
    finally:
        signal.signal(signal.SIGTERM, before)
        server.server_close()
        listener.end()
        tuning.join()
