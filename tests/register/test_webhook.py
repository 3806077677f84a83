"""The listener for promotions: what it takes, what it refuses, what it runs."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import servers
from tencost.errors import RegistryError
from tencost.register import webhook
from tencost.register.webhook import Listener, Promotion, promotion

SECRET = "a secret of more than sixteen"
NOW = 1_800_000_000.0


def delivery(
    data: object = None,
    *,
    secret: str = SECRET,
    identity: str = "1",
    stamp: float = NOW,
    **changes: Any,
) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body that MLflow sends."""
    told = {"name": "tencost-toy", "alias": "champion", "version": "3"} if data is None else data
    content = {"entity": "model_version_alias", "action": "created", "data": told, **changes}
    body = json.dumps(content).encode()
    when = str(int(stamp))
    signed = hmac.new(secret.encode(), f"{identity}.{when}.".encode() + body, hashlib.sha256)
    return {
        "X-MLflow-Delivery-Id": identity,
        "X-MLflow-Timestamp": when,
        "X-MLflow-Signature": "v1," + base64.b64encode(signed.digest()).decode(),
    }, body


def test_a_promotion_is_read() -> None:
    found = promotion(*delivery(), SECRET, NOW)
    assert found == Promotion("tencost-toy", "champion", 3)
    assert found.uri == "models:/tencost-toy/3"


@pytest.mark.parametrize(
    "about", [{"secret": "another secret, as long"}, {"stamp": NOW - 301}, {"stamp": NOW + 301}]
)
def test_what_is_not_signed_or_old_is_refused(about: dict[str, Any]) -> None:
    with pytest.raises(PermissionError):
        promotion(*delivery(**about), SECRET, NOW)


def test_what_was_changed_on_the_way_is_refused() -> None:
    headers, body = delivery()
    with pytest.raises(PermissionError):
        promotion(headers, body.replace(b"3", b"4"), SECRET, NOW)
    for name in headers:
        with pytest.raises(PermissionError):
            promotion({**headers, name: "9"}, body, SECRET, NOW)
        with pytest.raises(PermissionError):
            promotion(
                {key: value for key, value in headers.items() if key != name}, body, SECRET, NOW
            )


@pytest.mark.parametrize("data", [[], {}, 1, {"name": "a", "alias": "b", "version": "x"}])
def test_other_content_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="name, alias and version"):
        promotion(*delivery(data), SECRET, NOW)
    with pytest.raises(ValueError, match="created"):
        promotion(*delivery(action="deleted"), SECRET, NOW)


def test_each_promotion_counts_once_and_only_that_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(webhook.SECRET_VARIABLE, SECRET)
    listener = Listener(["one", "two"], "champion")
    now = time.time()
    answers = [
        listener.take(*delivery(stamp=now)),
        listener.take(*delivery(stamp=now)),
        listener.take(
            *delivery({"name": "tencost-toy", "alias": "challenger", "version": "3"}, stamp=now)
        ),
        listener.take(
            *delivery({"name": "tencost-graph-toy", "alias": "champion", "version": "3"}, stamp=now)
        ),
        listener.take(
            *delivery({"name": "somebodys", "alias": "champion", "version": "3"}, stamp=now)
        ),
        listener.take(*delivery(stamp=now, secret="another secret, as long")),
        listener.take({}, b""),
    ]
    assert answers == [202, 202, 204, 204, 204, 403, 403]
    assert listener.promotions.qsize() == 1
    found = listener.promotions.get()
    assert found is not None
    words = [command[4:] for command in listener.commands(found)]
    assert words == [
        [f"network={name}", "hardware=toy", "model_uri=models:/tencost-toy/3"]
        for name in ("one", "two")
    ]


def test_a_short_secret_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(webhook.SECRET_VARIABLE, "short")
    with pytest.raises(RegistryError, match=r"found a shorter one.*openssl rand") as told:
        webhook.secret()
    assert "short," not in str(told.value)


@pytest.mark.slow
def test_a_real_server_tells_of_a_promotion(
    registry_server: servers.Registry,
    make_bundle: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MLflow's own delivery; what is started is shown by a network that there is none of."""
    from tencost.register import registry

    for name, value in registry_server.environment("admin").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(webhook.SECRET_VARIABLE, SECRET)
    port = servers.free_port()
    command = [
        sys.executable, "-m", "tencost.cli", "register", "listen", "--network", "no-such-network",
        "--port", str(port), "--hardware", "epyc-avx2-1c",
    ]  # fmt: skip
    log = tmp_path / "listener.log"
    with log.open("wb") as output:
        listener = subprocess.Popen(command, stdout=output, stderr=output, env=dict(os.environ))
    try:
        expect(log, "listening at", listener)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}", data=b"{}", timeout=10)
        webhook.add(tmp_path, f"http://127.0.0.1:{port}/promotions")
        webhook.add(tmp_path, f"http://127.0.0.1:{port}/promotions")  # replaces the first
        client = registry.connect(registry_server.uri)
        assert [item.name for item in client.list_webhooks()] == [webhook.HOOK]
        run = client.create_run(client.create_experiment("webhook"))
        version, _ = registry.register_offer(
            client,
            registry.bundle_offer(make_bundle(hardware="hooked"), "a toy"),
            run_id=run.info.run_id,
            description="",
        )
        registry.promote(client, version)
        expect(log, "exit code 2: tencost.cli tune network=no-such-network", listener)
        text = log.read_text()
        assert text.count("tencost-hooked: champion is version 1") == 1
        assert "model_uri=models:/tencost-hooked/1" in " ".join(text.split())
    finally:
        listener.send_signal(signal.SIGTERM)
        assert listener.wait(60) == 0
    assert "ending" in log.read_text()
    for item in client.list_webhooks():
        client.delete_webhook(item.webhook_id)


def expect(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 90
    while text not in " ".join(log.read_text().split()):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
