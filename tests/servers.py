"""The servers that a team shares, on loopback: an object store (moto), PostgreSQL, and MLflow with passwords.

Tests start them where what they need is installed and skip otherwise; people without containers can, too:

    python tests/servers.py FOLDER      all three; prints the environment of a user; Ctrl-C stops them

The object store keeps everything in memory. It checks signatures and what a user may do, as S3 does. moto looks
whether an object exists and writes it in two steps; requests that write are served one after another, so that "put if
absent" is what it is on S3.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
BUCKET = "lab"
START_S = 60
"""Seconds that a server may take to answer: it may be started on a busy host."""
READS = ["s3:GetObject", "s3:ListBucket", "s3:GetBucketLocation"]
WRITES = [*READS, "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]


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
        keys: user -> access key's id and secret; "writer" may read and write, "reader" read.
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
def object_store(folder: Path, port: int | None = None) -> Iterator[ObjectStore]:
    """Run an object store; its log is written to `folder`."""
    port = port or free_port()
    endpoint = f"http://{LOOPBACK}:{port}"
    command = [sys.executable, str(Path(__file__).resolve()), "--objects", str(port)]
    with running(command, folder / "objects.log", lambda: answers_http(f"{endpoint}/moto-api/")):
        yield ObjectStore(endpoint, _users(endpoint))


def _users(endpoint: str) -> dict[str, tuple[str, str]]:
    """Make bucket and users, and let nobody else in from now on."""
    import boto3

    first = {"aws_access_key_id": "first", "aws_secret_access_key": "first"}
    session = boto3.Session(region_name="us-east-1", **first)
    session.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
    iam = session.client("iam", endpoint_url=endpoint)
    keys = {}
    for user, actions in (("writer", WRITES), ("reader", READS)):
        iam.create_user(UserName=user)
        policy = {"Version": "2012-10-17", "Statement": [_allowed(actions)]}
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


def _serve_objects(port: int) -> None:
    from moto.moto_server.werkzeug_app import (  # type: ignore[import-untyped]
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import WSGIRequestHandler, run_simple

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, *_: Any) -> None:
            """Say nothing."""

    application = DomainDispatcherApplication(create_backend_app)
    writing = threading.Lock()

    def one_writer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return application(environ, start_response)  # type: ignore[no-any-return]
        with writing:
            return application(environ, start_response)  # type: ignore[no-any-return]

    run_simple(LOOPBACK, port, one_writer, threaded=True, request_handler=Quiet)


def main(arguments: list[str]) -> None:
    """Start what is asked for."""
    if arguments[:1] == ["--objects"]:
        _serve_objects(int(arguments[1]))
        return


if __name__ == "__main__":
    main(sys.argv[1:])
