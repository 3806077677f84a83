"""A store on an object store: writers at once and killed, roles, and what is said where something is missing."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_store import AVX2, record
from test_store_load import kill_and_start_again

import servers
from servers import ObjectStore
from tencost import cli
from tencost.errors import RecordError
from tencost.store import conditions, remote
from tencost.store.modules import stored_modules, write_modules
from tencost.store.record_store import RecordStore

pytestmark = pytest.mark.slow
MOST_S = 15.0
"""Ten seconds of the store's own, and five for a busy host."""
ROOT = Path(__file__).resolve().parents[2]
ROLES = ("mlflow", "tunes", "measures", "trains")


@pytest.fixture(autouse=True)
def nothing_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_reached", set())
    monkeypatch.setattr(conditions, "_keep", set())


def test_everything_a_local_store_does(
    as_writer: str, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By somebody who may not delete anything; that is the administrator's, who cleans up."""
    store = RecordStore(as_writer)
    assert not store.exists()
    assert store.write([record(number) for number in range(5)]) == 5
    assert store.write([record(number) for number in range(8)]) == 3
    assert store.best("w", hardware="a", target=AVX2, n=20).height == 8
    assert RecordStore(as_writer, version=store.version).read().height == 8
    assert len(store.compact().replaced) == 2
    assert store.vacuum(0, dry_run=True) == 2
    assert store.read().height == 8
    with pytest.raises(RecordError, match="AccessDenied"):
        store.vacuum(0)
    for name, value in object_store.environment("admin").items():
        monkeypatch.setenv(name, value)
    assert RecordStore(as_writer).vacuum(0) == 2
    assert RecordStore(as_writer).read().height == 8
    modules = [("a", "{}", "one", "1"), ("b", "{}", "two", "2")]
    assert [write_modules(as_writer, modules), write_modules(as_writer, modules)] == [2, 0]
    assert stored_modules(as_writer).height == 2


def test_writers_at_once_and_killed_lose_nothing_and_write_nothing_twice(
    as_writer: str, tmp_path: Path
) -> None:
    kill_and_start_again(as_writer, tmp_path, pause_s=0.5)


def test_who_may_read_cannot_write(
    as_writer: str, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    RecordStore(as_writer).write([record(1)])
    for name, value in object_store.environment("reader").items():
        monkeypatch.setenv(name, value)
    remote._reached.clear()
    store = RecordStore(as_writer)
    assert store.read().height == 1
    with pytest.raises(RecordError, match=r"was refused \(AccessDenied\).*writing takes more"):
        store.write([record(2)])
    with pytest.raises(RecordError, match="AccessDenied"):
        RecordStore(as_writer + "-new").write([record(2)])
    assert RecordStore(as_writer).read().height == 1


@pytest.fixture(scope="module")
def careless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """An object store that ignores If-None-Match."""
    with servers.object_store(tmp_path_factory.mktemp("careless"), conditions=False) as store:
        yield store


def test_a_server_that_ignores_conditions_is_refused_before_the_first_write(
    careless: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in careless.environment().items():
        monkeypatch.setenv(name, value)
    uri = f"s3://{servers.BUCKET}/careless/store"
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")  # whoever says so writes alone
    assert RecordStore(uri).write([record(1)]) == 1
    monkeypatch.delenv("AWS_S3_ALLOW_UNSAFE_RENAME")
    for _ in range(2):  # each time, not only the first
        for written in (
            lambda: RecordStore(uri).write([record(2)]),
            lambda: RecordStore(uri + "-new").write([record(2)]),
            lambda: write_modules(uri, [("a", "{}", "one", "1")]),
            lambda: RecordStore(uri).compact(),
        ):
            with pytest.raises(RecordError, match=r"\(If-None-Match\).* at http://.*ALLOW_UNSAFE"):
                written()
    assert RecordStore(uri).read().height == 1
    assert not RecordStore(uri + "-new").exists()


def test_one_that_keeps_them_is_asked_once_a_process(
    as_writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    put = conditions._put

    def noted(address: str, settings: Mapping[str, str]) -> int:
        answers.append(put(address, settings))
        return answers[-1]

    monkeypatch.setattr(conditions, "_put", noted)
    store = RecordStore(as_writer)
    for number in range(3):
        store.write([record(number)])
    write_modules(as_writer, [("a", "{}", "one", "1")])
    assert answers == [200, 412]  # the first makes the file, the second meets it
    conditions._keep.clear()  # another process, later
    RecordStore(as_writer).write([record(4)])
    assert answers == [200, 412, 412]
    assert RecordStore(as_writer).read().height == 4


def test_a_server_that_cannot_be_asked_is_not_refused(
    as_writer: str, object_store: ObjectStore
) -> None:
    """Its own error says what is wrong when something is written."""
    for settings in (
        {"AWS_SECRET_ACCESS_KEY": "hunter2"},
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
        {"AWS_ENDPOINT_URL": "https://s3.eu-central-1.amazonaws.com"},
        {"AWS_S3_LOCKING_PROVIDER": "dynamodb"},
    ):
        conditions.require_put_if_absent(as_writer, settings)
    assert not conditions._keep
    conditions.require_put_if_absent(as_writer, {"endpoint_url": object_store.endpoint})
    assert conditions._keep


@pytest.fixture(scope="module")
def with_roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """An object store with the users of compose.yaml, and what they may do."""
    configs = yaml.safe_load((ROOT / "compose.yaml").read_text())["configs"]
    policies = {role: json.loads(configs[f"{role}_policy"]["content"]) for role in ROLES}
    folder = tmp_path_factory.mktemp("objects")
    with servers.object_store(folder, policies=policies) as running:
        yield running


def test_each_role_may_what_the_page_says(
    with_roles: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def become(role: str) -> None:
        monkeypatch.setattr(remote, "_reached", set())
        monkeypatch.setattr(conditions, "_keep", set())
        for name, value in with_roles.environment(role).items():
            monkeypatch.setenv(name, value)

    uri = f"s3://{servers.BUCKET}/store"
    for number, role in enumerate(("trains", "measures")):
        become(role)
        assert RecordStore(uri).write([record(number)]) == 1
        assert RecordStore(f"{uri}-networks").write([record(number)]) == 1
        RecordStore(uri).compact()
    become("tunes")
    assert RecordStore(uri).read().height == 2
    with pytest.raises(RecordError, match="AccessDenied"):
        RecordStore(uri).write([record(3)])
    become("mlflow")
    with pytest.raises(RecordError, match="AccessDenied"):
        RecordStore(uri).read()
    may = {
        role: {
            f"{action.__name__} {folder}"
            for folder in ("store", "dvc", "mlflow")
            for action in (put, get, delete)
            if allowed(action, client(with_roles, role), f"{folder}/file")
        }
        for role in ("trains", "mlflow", "measures", "tunes")
    }
    assert may == {
        "trains": {"put store", "get store", "put dvc", "get dvc"},
        "mlflow": {"put mlflow", "get mlflow", "delete mlflow"},
        "measures": {"put store", "get store", "get dvc"},
        "tunes": {"get store"},
    }


def client(store: ObjectStore, role: str) -> Any:
    import boto3

    identity, secret = store.keys[role]
    return boto3.client(
        "s3", endpoint_url=store.endpoint, region_name="us-east-1",
        aws_access_key_id=identity, aws_secret_access_key=secret,
    )  # fmt: skip


def put(s3: Any, key: str) -> None:
    s3.put_object(Bucket=servers.BUCKET, Key=key, Body=b"")


def get(s3: Any, key: str) -> None:
    s3.get_object(Bucket=servers.BUCKET, Key=key)


def delete(s3: Any, key: str) -> None:
    s3.delete_object(Bucket=servers.BUCKET, Key=key)


def allowed(action: Callable[[Any, str], None], s3: Any, key: str) -> bool:
    try:
        action(s3, key)
    except s3.exceptions.ClientError as error:
        if error.response["Error"]["Code"] != "AccessDenied":
            raise
        return False
    return True


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(50)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


WRONG: dict[str, tuple[dict[str, str | None], str]] = {
    "no server": ({"AWS_ENDPOINT_URL": "http://me:hunter2@127.0.0.1:1"}, "none that answers"),
    "unknown host": ({"AWS_ENDPOINT_URL": "http://nowhere.invalid:9000"}, "none that answers"),
    "unknown key": ({"AWS_ACCESS_KEY_ID": "AKIAHUNTER2"}, "InvalidAccessKeyId"),
    "wrong secret": ({"AWS_SECRET_ACCESS_KEY": "hunter2"}, "SignatureDoesNotMatch"),
    "no credentials": (
        {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None},
        "credentials|none that answers",  # the machine's own role is looked for at 169.254.169.254
    ),
    "no https": ({"AWS_ALLOW_HTTP": None}, "set AWS_ALLOW_HTTP=true"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_missing_is_one_sentence(
    as_writer: str,
    wrong: str,
    command_fails: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes, expected = WRONG[wrong]
    for name, value in changes.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    told = command_fails(as_writer)
    assert re.search(expected, told)
    assert "hunter2" not in told.lower()


def test_a_server_that_never_answers(
    as_writer: str,
    silent: str,
    command_fails: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", silent)
    assert silent in command_fails(as_writer)


def test_a_bucket_that_is_not_there(
    as_writer: str, object_store: ObjectStore, command_fails: Callable[[str], str]
) -> None:
    # Who may not list all buckets is told, as by S3, that he may not; what S3 tells others is in `meaning`.
    assert "AccessDenied" in command_fails("s3://nowhere/store")
    told = remote.meaning("s3://nowhere/store", OSError("<Error><Code>NoSuchBucket</Code></Error>"))
    assert told is not None
    assert "expected a bucket nowhere" in told


@pytest.mark.parametrize("uri", ["s4://lab/store", "s3:///store", "az://lab/store"])
def test_addresses_that_are_none(as_writer: str, uri: str) -> None:
    with pytest.raises(RecordError, match=uri):
        RecordStore(uri)


def test_a_server_that_goes_away_meanwhile(as_writer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RecordStore(as_writer)
    store.write([record(1)])
    remote._reached.add((as_writer, "http://127.0.0.1:1"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(RecordError, match="none that answers"):
        RecordStore(as_writer).read()


@pytest.fixture
def command_fails(capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """Run a command at a store; return its message, having checked that it is one line, soon, with exit code 2."""

    def run(uri: str) -> str:
        began = time.monotonic()
        with pytest.raises(SystemExit) as ended:
            cli.main(["records", "query", "stats", "--store", uri])
        assert time.monotonic() - began < MOST_S
        told = capsys.readouterr().err
        assert ended.value.code == 2, told
        assert len(told.strip().splitlines()) == 1, told
        return told

    return run
