"""A registry that several people share: MLflow with passwords on PostgreSQL, artifacts on an object store."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

import servers
from tencost import cli
from tencost.errors import RegistryError
from tencost.register import registry
from tencost.register.pull import manifest_digest, pull
from tencost.tracking import server_check as reaching

pytestmark = pytest.mark.slow
MakeBundle = Callable[..., Path]
READERS = 3
ROOT = Path(__file__).resolve().parents[2]
VARIABLES = (
    "MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES",
    "MLFLOW_HTTP_REQUEST_TIMEOUT",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
)


@pytest.fixture(autouse=True)
def environment(registry_server: servers.Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of somebody who may write; what a command sets is taken back."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in registry_server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(reaching, "_reached", set())


@pytest.fixture
def shared(registry_server: servers.Registry) -> Any:
    """A client of the writer."""
    return registry.connect(registry_server.uri)


@pytest.fixture
def run_id(shared: Any) -> str:
    """A finished training run on the server."""
    run = shared.create_run(shared.create_experiment(f"tencost-{uuid.uuid4()}"))
    shared.set_terminated(run.info.run_id)
    return str(run.info.run_id)


@pytest.fixture
def hardware() -> str:
    """A device, and so a registered model, that no other test has."""
    return f"toy-{uuid.uuid4().hex[:8]}"


def add(client: Any, bundle: Path, run_id: str) -> tuple[registry.Version, bool]:
    return registry.register_offer(
        client, registry.bundle_offer(bundle, "a toy"), run_id=run_id, description=""
    )


class Said(NamedTuple):
    """What a command said and how it ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def tencost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Said]:
    """Run a command as somebody else, in this process as if it were a new one: starting one takes seconds."""

    def run(*words: str, **environment: str) -> Said:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(reaching, "_reached", set())
            for name, value in environment.items():
                patch.setenv(name, value)
            try:
                cli.main(list(words))
                code = 0
            except SystemExit as ended:
                code = int(ended.code or 0)
        return Said(code, *capsys.readouterr())

    return run


def test_registered_by_one_pulled_by_another(
    shared: Any,
    run_id: str,
    hardware: str,
    make_bundle: MakeBundle,
    registry_server: servers.Registry,
    tencost: Callable[..., Said],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle = make_bundle(hardware=hardware)
    version, new = add(shared, bundle, run_id)
    assert new
    registry.promote(shared, version)
    for name, value in registry_server.environment("reader").items():
        monkeypatch.setenv(name, value)
    pulled = pull(f"models:/{version.name}@champion", tmp_path / "cache")
    assert manifest_digest(pulled) == manifest_digest(bundle)
    done = tencost(
        "register", "rollback", version.name, "1", **registry_server.environment("reader")
    )
    assert done.returncode == 0, done.stderr  # it is the champion already
    done = tencost("register", "status", "--json", **registry_server.environment("reader"))
    assert [
        item["aliases"] for item in json.loads(done.stdout) if item["model"] == version.name
    ] == [["challenger", "champion"]]


def test_who_may_read_cannot_promote(
    shared: Any,
    run_id: str,
    hardware: str,
    make_bundle: MakeBundle,
    registry_server: servers.Registry,
    tencost: Callable[..., Said],
) -> None:
    first, _ = add(shared, make_bundle("one", hardware=hardware), run_id)
    add(shared, make_bundle("two", center=1.0, hardware=hardware), run_id)
    registry.promote(shared, first)
    done = tencost("register", "rollback", first.name, "2", **registry_server.environment("reader"))
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "was refused with the user reader" in done.stderr
    champion = registry.find_champion(shared, first.name)
    assert champion is not None
    assert champion.number == 1
    granted = {"username": "reader", "resource_type": "registered_model", "permission": "EDIT"}
    path = "/api/3.0/mlflow/users/permissions/grant"
    servers.ask(registry_server, "POST", path, granted | {"resource_id": first.name})
    done = tencost("register", "rollback", first.name, "2", **registry_server.environment("reader"))
    assert done.returncode == 0, done.stderr
    champion = registry.find_champion(shared, first.name)
    assert champion is not None
    assert champion.number == 2


PROMOTING = """
import sys
from tencost.register import registry
client = registry.connect(sys.argv[1])
found = {item.number: item for item in registry.list_versions(client, sys.argv[2])}
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[4])):
    registry.promote(client, found[int(sys.argv[3])])
"""


def test_two_promote_at_once_while_others_pull(
    shared: Any,
    run_id: str,
    hardware: str,
    make_bundle: MakeBundle,
    registry_server: servers.Registry,
    tmp_path: Path,
) -> None:
    """No half version, no stale alias."""
    bundles = {
        number: make_bundle(f"b{number}", center=float(number), hardware=hardware)
        for number in (1, 2)
    }
    versions = {number: add(shared, bundle, run_id)[0] for number, bundle in bundles.items()}
    name = versions[1].name
    registry.promote(shared, versions[1])
    digests = {manifest_digest(bundle): number for number, bundle in bundles.items()}
    people = [
        subprocess.Popen(
            [sys.executable, "-c", PROMOTING, registry_server.uri, name, str(number), "5"],
            env={**os.environ, **registry_server.environment(user)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for number, user in ((1, "writer"), (2, "admin"))
    ]
    done = threading.Event()

    def read(reader: int) -> list[int]:
        seen: list[int] = []
        while not done.is_set() or not seen:
            folder = pull(f"models:/{name}@champion", tmp_path / f"cache-{reader}")
            seen.append(digests[manifest_digest(folder)])
        return seen

    for person in people:
        assert person.stdout is not None
        assert person.stdout.readline() == b"ready\n"
    with ThreadPoolExecutor(READERS) as pool:
        readers = [pool.submit(read, number) for number in range(READERS)]
        for person in people:
            person.communicate(b"\n", timeout=120)
        done.set()
        seen = [reader.result() for reader in readers]
    assert [person.returncode for person in people] == [0, 0]
    assert {number for one in seen for number in one} <= {1, 2}
    champion = registry.find_champion(shared, name)
    assert champion is not None
    registry.promote(shared, versions[3 - champion.number])
    # Whoever asks from now on gets this one, with any cache.
    for reader in range(READERS):
        folder = pull(f"models:/{name}@champion", tmp_path / f"cache-{reader}")
        assert digests[manifest_digest(folder)] == 3 - champion.number


def test_somebody_else_was_faster(
    shared: Any, run_id: str, hardware: str, make_bundle: MakeBundle
) -> None:
    first, _ = add(shared, make_bundle("one", hardware=hardware), run_id)
    second, _ = add(shared, make_bundle("two", center=1.0, hardware=hardware), run_id)
    registry.check_unchanged(shared, first.name, None)
    registry.promote(shared, first)
    with pytest.raises(RegistryError, match="found version 1: somebody else was faster"):
        registry.check_unchanged(shared, first.name, None)
    registry.check_unchanged(shared, first.name, first)
    registry.promote(shared, second)
    with pytest.raises(RegistryError, match=r"version 1 as champion of .* found version 2"):
        registry.check_unchanged(shared, first.name, first)


REGISTERING = """
import sys
from pathlib import Path
from tencost.register import registry
client = registry.connect(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for bundle in sys.argv[3:]:
    registry.register_offer(client, registry.bundle_offer(Path(bundle), "a toy"), run_id=sys.argv[2], description="")
"""


def test_two_register_at_once(
    shared: Any,
    run_id: str,
    hardware: str,
    make_bundle: MakeBundle,
    registry_server: servers.Registry,
) -> None:
    """The same content and others: each content is one version, each version has a semver of its own."""
    same = [make_bundle(f"same{k}", center=10.0 + k, hardware=hardware) for k in range(2)]
    people = []
    for person in range(2):
        own = [make_bundle(f"own{person}", center=float(person), hardware=hardware)]
        people.append(
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    REGISTERING,
                    registry_server.uri,
                    run_id,
                    *map(str, [*same, *own]),
                ],
                env={**os.environ, **registry_server.environment()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
    for process in people:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    for process in people:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    assert [process.wait(120) for process in people] == [0, 0]
    for process in people:
        process.communicate()
    versions = registry.list_versions(shared, registry.model_name(hardware))
    assert len({item.tags[registry.CONTENT_TAG] for item in versions}) == 4
    assert len(versions) == 4
    assert len({item.semver for item in versions}) == 4


def test_a_server_killed_and_restarted_in_the_middle_of_a_registration(
    shared: Any,
    run_id: str,
    hardware: str,
    make_bundle: MakeBundle,
    registry_server: servers.Registry,
    tmp_path: Path,
) -> None:
    bundles = [make_bundle(f"b{k}", center=float(k), hardware=hardware) for k in range(5)]
    process = subprocess.Popen(
        [sys.executable, "-c", REGISTERING, registry_server.uri, run_id, *map(str, bundles)],
        env={**os.environ, **registry_server.environment()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdin.write(b"\n")
    process.stdin.flush()
    name = registry.model_name(hardware)
    while len(registry.list_versions(shared, name)) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    servers.stop(registry_server.process, signal.SIGKILL)
    registry_server.restart()
    _, told = process.communicate(timeout=300)
    assert process.returncode == 0, told.decode()
    versions = registry.list_versions(shared, name)
    digests = {manifest_digest(bundle) for bundle in bundles}
    assert {item.tags["bundle_sha256"] for item in versions} == digests
    assert len({item.semver for item in versions}) == len(versions) == len(bundles)
    for (
        version
    ) in versions:  # each is whole: its files have the sha256 that its manifest and its tag say
        folder = pull(version.uri, tmp_path / "cache")
        assert manifest_digest(folder) == version.tags["bundle_sha256"]
    assert [item.number for item in versions if "challenger" in item.aliases] == [len(bundles)]


WRONG = {
    "no server": ({"MLFLOW_TRACKING_URI": "http://me:hunter2@127.0.0.1:1"}, "does not answer"),
    "wrong password": ({"MLFLOW_TRACKING_PASSWORD": "hunter2"}, "was refused with the user writer"),
    "no name": (
        {"MLFLOW_TRACKING_USERNAME": "", "MLFLOW_TRACKING_PASSWORD": ""},
        "was refused with nobody's name",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("words", [("register", "status"), ("train", "model=random")])
def test_what_is_wrong_is_one_sentence(
    wrong: str, words: tuple[str, ...], toy_project: Path, registry_server: servers.Registry,
    tencost: Callable[..., Said], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    changes, expected = WRONG[wrong]
    monkeypatch.chdir(toy_project)
    done = tencost(*words, **{**registry_server.environment(), **changes})
    assert done.returncode == 2, done.stderr
    told = done.stderr.strip().splitlines()
    assert len([line for line in told if line.startswith("tencost: ")]) == 1
    assert expected in told[-1], done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_page_behind_a_proxy_may_search(registry_server: servers.Registry) -> None:
    """A browser names where its page is from; compose.yaml has the address of the proxy in MLFLOW_ORIGINS."""

    def search(origin: str) -> tuple[int, bytes]:
        word = base64.b64encode(f"reader:{registry_server.passwords['reader']}".encode()).decode()
        request = urllib.request.Request(
            f"{registry_server.uri}/ajax-api/2.0/mlflow/experiments/search",
            data=b'{"max_results": 1}',
            headers={
                "Content-Type": "application/json",
                "Authorization": f"Basic {word}",
                "Origin": origin,
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status), answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["mlflow"]
    (name,) = (key for key, value in compose["environment"].items() if "MLFLOW_ORIGINS" in value)
    assert name == servers.ORIGINS, "the server of the tests is told by the same variable"
    assert search(servers.ORIGIN)[0] == 200
    assert search("http://localhost:5000")[0] == 200
    blocked = 403, b"Cross-origin request blocked"
    assert search("https://elsewhere.example.org") == blocked
