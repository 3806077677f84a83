"""The servers that a team shares, on loopback: an object store (moto), PostgreSQL, and MLflow with passwords.

Tests start them where what they need is installed and skip otherwise; people without containers can, too:

    python tests/servers.py FOLDER      all three; prints the environment of a user; Ctrl-C stops them

The object store keeps everything in memory. It checks signatures and what a user may do, as S3 does. moto looks
whether an object exists and writes it in two steps; requests that write are served one after another, so that "put if
absent" is what it is on S3.
"""

from __future__ import annotations

import base64
import ctypes
import importlib.util
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
BUCKET = "lab"
START_S = 240
"""Seconds that a server may take to answer: it may be started on a busy host."""
PATIENT = "--timeout-worker-healthcheck 60"
"""MLflow's server ends a process of its own that is too busy to say within five seconds that it lives, and with it
what it was answering."""
READS = ["s3:GetObject", "s3:ListBucket", "s3:GetBucketLocation"]
WRITES = [*READS, "s3:PutObject", "s3:AbortMultipartUpload"]
ORIGIN = "https://mlflow.example.org"
"""Where browsers see the registry server's page, behind a proxy, and the variable that tells MLflow."""
ORIGINS = "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"
USERS = {"reader": READS, "writer": WRITES, "admin": [*WRITES, "s3:DeleteObject"]}


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        return int(found.getsockname()[1])


@contextmanager
def running(
    command: list[str],
    log: Path,
    answers: Callable[[], bool],
    *,
    environment: dict[str, str] | None = None,
    user: int | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block ends, once it answers.

    Raises:
        RuntimeError: it ended, or does not answer; with the end of its log.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            cwd="/" if user is not None else None,
            user=user,
            preexec_fn=_end_with_parent,
        )
    try:
        end = time.monotonic() + START_S
        while not answers():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{command[0]} does not answer: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield process
    finally:
        stop(process)


def _end_with_parent() -> None:
    """Let Linux stop a server whose test was killed."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def stop(process: subprocess.Popen[bytes], number: int = 15) -> None:
    """Send a server and its children a signal, and wait until it is gone."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, number)
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
    process.wait()


def answers_http(url: str) -> bool:
    """Say whether a server answers at all."""
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


@dataclass(frozen=True)
class ObjectStore:
    """A running object store with a bucket :data:`BUCKET`.

    Attributes:
        endpoint: its address.
        keys: user -> access key's id and secret; "reader" may read, "writer" write, too, "admin" also delete.
    """

    endpoint: str
    keys: dict[str, tuple[str, str]]

    def environment(self, user: str = "writer") -> dict[str, str]:
        """Return what a user has in the environment."""
        identity, secret = self.keys[user]
        return {
            "AWS_ACCESS_KEY_ID": identity,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@contextmanager
def object_store(
    folder: Path,
    port: int | None = None,
    *,
    conditions: bool = True,
    policies: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[ObjectStore]:
    """Run an object store; its log is written to `folder`.

    Args:
        folder: of the log.
        port: where it listens.
        conditions: False: it ignores If-None-Match, as some servers do.
        policies: more users, and what they may do.
    """
    port = port or free_port()
    endpoint = f"http://{LOOPBACK}:{port}"
    command = [sys.executable, str(Path(__file__).resolve()), "--objects", str(port)]
    command += [] if conditions else ["--no-conditions"]
    with running(command, folder / "objects.log", lambda: answers_http(f"{endpoint}/moto-api/")):
        yield ObjectStore(endpoint, _users(endpoint, policies or {}))


def _users(endpoint: str, policies: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Make bucket and users, and let nobody else in from now on."""
    import boto3

    first = {"aws_access_key_id": "first", "aws_secret_access_key": "first"}
    session = boto3.Session(region_name="us-east-1", **first)
    session.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
    iam = session.client("iam", endpoint_url=endpoint)
    keys = {}
    usual = {
        user: {"Version": "2012-10-17", "Statement": [_allowed(actions)]}
        for user, actions in USERS.items()
    }
    for user, policy in {**usual, **policies}.items():
        iam.create_user(UserName=user)
        iam.put_user_policy(UserName=user, PolicyName="store", PolicyDocument=json.dumps(policy))
        made = iam.create_access_key(UserName=user)["AccessKey"]
        keys[user] = (str(made["AccessKeyId"]), str(made["SecretAccessKey"]))
    request = urllib.request.Request(
        f"{endpoint}/moto-api/reset-auth",
        data=b"0",
        headers={"Content-Type": "text/plain"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=10):
        return keys


def _allowed(actions: list[str]) -> dict[str, Any]:
    bucket = f"arn:aws:s3:::{BUCKET}"
    return {"Effect": "Allow", "Action": actions, "Resource": [bucket, f"{bucket}/*"]}


def _serve_objects(port: int, *, conditions: bool) -> None:
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        create_backend_app,
    )
    from moto.s3.models import s3_backends
    from werkzeug.serving import WSGIRequestHandler, run_simple

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, *_: Any) -> None:
            """Say nothing."""

    application = DomainDispatcherApplication(create_backend_app)
    writing = threading.Lock()

    def one_writer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return application(environ, start_response)
        with writing:
            if not conditions and "HTTP_IF_NONE_MATCH" in environ:
                # The header is signed, and cannot be dropped: what it would meet is.
                bucket, _, key = environ["PATH_INFO"].lstrip("/").partition("/")
                with suppress(KeyError):
                    del s3_backends["123456789012"]["aws"].buckets[bucket].keys[key]
            return application(environ, start_response)

    run_simple(LOOPBACK, port, one_writer, threaded=True, request_handler=Quiet)


def postgres_tools() -> Path | None:
    """Return the folder of PostgreSQL's programs, of Debian's packages too; None: not installed."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").is_file()), None)


def missing() -> str:
    """Return what a registry server needs and is not there; empty: all is there."""
    if postgres_tools() is None:
        return "PostgreSQL is not installed: apt-get install postgresql"
    for package in ("psycopg", "flask_wtf", "moto", "boto3"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed: pip install 'tencost[dev]'"
    return ""


@contextmanager
def postgres(folder: Path, port: int | None = None) -> Iterator[str]:
    """Run PostgreSQL with databases `mlflow` and `auth`; yields its address without a database's name.

    Its files lie in a folder of its own, gone afterwards: root may not run it, and whoever does instead may not look
    into root's folders.
    """
    tools = postgres_tools()
    assert tools is not None
    port = port or free_port()
    password = secrets.token_hex(16)
    other = _another_user() if os.getuid() == 0 else None
    data = Path(tempfile.mkdtemp(prefix="tencost-postgres-"))
    try:
        secret = data / "password"
        secret.write_text(password)
        if other is not None:
            for path in (data, secret):
                os.chown(path, other, -1)
        asked: dict[str, Any] = {} if other is None else {"user": other}
        subprocess.run(
            [str(tools / "initdb"), "-D", str(data / "db"), "-U", "tencost", "--pwfile", str(secret),
             "--auth=scram-sha-256", "--no-sync", "-E", "UTF8", "--locale=C"],
            check=True, capture_output=True, cwd="/", **asked,
        )  # fmt: skip
        secret.unlink()
        command = [
            str(tools / "postgres"), "-D", str(data / "db"), "-h", LOOPBACK, "-p", str(port), "-k", str(data),
            "-F", "-c", "max_connections=200",
        ]  # fmt: skip
        address = f"postgresql+psycopg://tencost:{password}@{LOOPBACK}:{port}"
        with running(command, folder / "postgres.log", lambda: _has_databases(address), **asked):
            yield address
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _another_user() -> int:
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    raise RuntimeError("expected a user postgres or nobody to run PostgreSQL as, found neither")


def _has_databases(address: str) -> bool:
    import psycopg

    plain = address.replace("+psycopg", "")
    try:
        with psycopg.connect(f"{plain}/postgres", autocommit=True, connect_timeout=5) as connection:
            have = {row[0] for row in connection.execute("SELECT datname FROM pg_database")}
            for name in {"mlflow", "auth"} - have:
                connection.execute(f"CREATE DATABASE {name}".encode())
    except psycopg.OperationalError:
        return False
    return True


@dataclass
class Registry:
    """A running MLflow server with users: "admin" and "writer" may everything and write, "reader" read.

    Attributes:
        uri: its address, without a user.
        passwords: user -> password.
        process: the server.
        restart: starts it again where it was stopped, and waits until it answers.
    """

    uri: str
    passwords: dict[str, str]
    process: subprocess.Popen[bytes]
    restart: Callable[[], None]

    def environment(self, user: str = "writer") -> dict[str, str]:
        """Return what a user has in the environment."""
        return {
            "MLFLOW_TRACKING_URI": self.uri,
            "MLFLOW_TRACKING_USERNAME": user,
            "MLFLOW_TRACKING_PASSWORD": self.passwords[user],
        }


@contextmanager
def registry(
    folder: Path, database: str, objects: ObjectStore, port: int | None = None
) -> Iterator[Registry]:
    """Run an MLflow server on a database and an object store, with passwords; its log is written to `folder`."""
    port = port or free_port()
    passwords = {user: secrets.token_urlsafe(18) for user in ("admin", "writer", "reader")}
    settings = folder / "basic_auth.ini"
    settings.write_text(
        "[mlflow]\ndefault_permission = READ\n"
        f"database_uri = {database}/auth\n"
        "admin_username = admin\nauth_cache_ttl_seconds = 60\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    settings.chmod(0o600)
    environment = {
        **objects.environment(),
        "MLFLOW_AUTH_CONFIG_PATH": str(settings),
        "MLFLOW_AUTH_ADMIN_PASSWORD": passwords["admin"],
        "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(32),
        "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": base64.urlsafe_b64encode(os.urandom(32)).decode(),
        "MLFLOW_WEBHOOK_CACHE_TTL": "1",
        "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https",
        "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        ORIGINS: ORIGIN,
        "MLFLOW_S3_ENDPOINT_URL": objects.endpoint,
    }
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", LOOPBACK, "--port", str(port), "--workers", "2",
        "--backend-store-uri", f"{database}/mlflow", "--artifacts-destination", f"s3://{BUCKET}/mlflow",
        "--app-name", "basic-auth", "--uvicorn-opts", PATIENT,
    ]  # fmt: skip
    uri = f"http://{LOOPBACK}:{port}"
    with ExitStack() as stack:

        def start() -> subprocess.Popen[bytes]:
            log = folder / "mlflow.log"
            healthy = running(
                command, log, lambda: answers_http(f"{uri}/health"), environment=environment
            )
            return stack.enter_context(healthy)

        def restart() -> None:
            served.process = start()

        served = Registry(uri, passwords, start(), restart)
        _make_users(served)
        yield served


def _make_users(served: Registry) -> None:
    """Make writer and reader: a user of MLflow's may read everything, and change what he made himself or is given."""
    for user in ("writer", "reader"):
        made = {"username": user, "password": served.passwords[user]}
        ask(served, "POST", "/api/2.0/mlflow/users/create", made)


def ask(
    served: Registry, method: str, path: str, content: object, user: str = "admin"
) -> dict[str, Any]:
    """Send a request to the server as a user; return its answer."""
    word = base64.b64encode(f"{user}:{served.passwords[user]}".encode()).decode()
    request = urllib.request.Request(
        served.uri + path,
        data=json.dumps(content).encode(),
        method=method,
        headers={"Content-Type": "application/json", "Authorization": f"Basic {word}"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
    return dict(json.loads(text)) if text else {}


@contextmanager
def everything(
    folder: Path, ports: tuple[int, int, int] | None = None
) -> Iterator[tuple[ObjectStore, Registry]]:
    """Run object store, PostgreSQL and MLflow."""
    objects_port, database_port, registry_port = ports or (None, None, None)
    with (
        object_store(folder, objects_port) as objects,
        postgres(folder, database_port) as database,
        registry(folder, database, objects, registry_port) as served,
    ):
        yield objects, served


def main(arguments: list[str]) -> None:
    """Start what is asked for."""
    if arguments[:1] == ["--objects"]:
        _serve_objects(int(arguments[1]), conditions="--no-conditions" not in arguments)
        return
    if lacking := missing():
        raise SystemExit(lacking)
    folder = Path(arguments[0] if arguments else "servers")
    folder.mkdir(parents=True, exist_ok=True)
    with everything(folder, (9000, 5433, 5000)) as (objects, served):
        values = {
            **objects.environment(),
            **served.environment(),
            "TENCOST_STORE": f"s3://{BUCKET}/store",
        }
        shown = folder / "environment"
        shown.touch(0o600)
        shown.write_text("".join(f"export {name}='{value}'\n" for name, value in values.items()))
        sys.stdout.write(f"running; in another terminal: source {shown}\nCtrl-C stops them\n")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main(sys.argv[1:])
