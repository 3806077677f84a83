"""A registry that answers nonsense or never, a cache that cannot be used: a clear error, or the copy pulled last."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest

from tencost.errors import ConfigError, RegistryError
from tencost.register.pull import StaleBundleWarning, pull

MakeBundle = Callable[..., Path]
NAME = "tencost-toy-1c"
CHAMPION = f"models:/{NAME}@champion"
MLFLOW_VARIABLES = ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT")


@dataclass
class Server:
    """An HTTP server on loopback that answers every request alike."""

    uri: str
    answer: bytes | None = b""
    """None for never."""
    kind: str = "application/json"
    paths: list[str] = field(default_factory=list)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    done = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.paths.append(self.path)
            if served.answer is None:
                done.wait()
                return
            self.send_response(200)
            self.send_header("Content-Type", served.kind)
            self.send_header("Content-Length", str(len(served.answer)))
            self.end_headers()
            self.wfile.write(served.answer)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = Server(f"http://127.0.0.1:{listener.server_address[1]}")
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", served.uri)
    for name in MLFLOW_VARIABLES:  # so that what a pull sets is taken back
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield served
    done.set()
    listener.shutdown()
    thread.join()
    listener.server_close()


def put_into_cache(cache: Path, uri: str, bundle: Path, version: str = "1") -> Path:
    """Lay a bundle where an earlier pull from that registry would have left it."""
    folder = cache / "bundles" / hashlib.sha256(uri.encode()).hexdigest()[:12] / NAME
    folder.mkdir(parents=True)
    digest = hashlib.sha256((bundle / "bundle.json").read_bytes()).hexdigest()
    index = {"aliases": {"champion": version}, "sha256": {version: digest}}
    (folder / "index.json").write_bytes(orjson.dumps(index))
    return Path(shutil.copytree(bundle, folder / version))


GARBAGE = [
    b"",
    b"<html>It works!</html>",
    b"null",
    b"[]",
    b"1",
    b'"x"',
    b"{}",
    b'{"registered_model": 1}',
    b'{"registered_model": []}',
    b'{"registered_model": {"name": 3}}',
    b'{"registered_model": {"name": "another"}}',
    b'{"registered_model": {"name": "tencost-toy-1c", "aliases": 1}}',
    b'{"registered_model": {"name": "tencost-toy-1c", "aliases": [{"alias": "champion", "version": "x"}]}}',
    b'{"registered_model": {"name": "tencost-toy-1c"}, "model_versions": [{"version": "one"}]}',
    b'{"run": 1}',
    b'{"run": {"info": {}}}',
    b"\xff\xfe\x00",
    b"[" * 100_000,
]


@pytest.mark.parametrize("answer", GARBAGE)
def test_answers_that_are_no_registrys(
    server: Server, answer: bytes, tmp_path: Path, make_bundle: MakeBundle
) -> None:
    server.answer = answer
    with pytest.raises(RegistryError, match="127"):
        pull(CHAMPION, tmp_path / "cache")
    with pytest.raises(RegistryError, match="127"):
        pull(f"runs:/{'0' * 32}/bundle", tmp_path / "cache")
    assert server.paths
    copy = put_into_cache(tmp_path / "kept", server.uri, make_bundle())
    with pytest.warns(StaleBundleWarning, match="Using the bundle pulled last, version 1"):
        assert pull(CHAMPION, tmp_path / "kept") == copy


def test_a_server_that_never_answers(
    server: Server, tmp_path: Path, make_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked twice at most, each time for half of the time-out; then the copy pulled last."""
    server.answer = None
    monkeypatch.setenv("TENCOST_REGISTRY_TIMEOUT", "2")
    copy = put_into_cache(tmp_path / "cache", server.uri, make_bundle())
    with pytest.warns(StaleBundleWarning, match="does not answer"):
        assert pull(CHAMPION, tmp_path / "cache") == copy
    assert len(server.paths) <= 2
    with pytest.raises(RegistryError, match="no earlier pull of it"):
        pull(CHAMPION, tmp_path / "empty")


def test_the_time_out_is_ten_seconds_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import environment_variables as mlflow

    from tencost.register.pull import settle_mlflow

    for name in (*MLFLOW_VARIABLES, "TENCOST_REGISTRY_TIMEOUT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    settle_mlflow()
    asked = 1 + mlflow.MLFLOW_HTTP_REQUEST_MAX_RETRIES.get()
    assert asked * mlflow.MLFLOW_HTTP_REQUEST_TIMEOUT.get() == 10


@pytest.mark.parametrize("value", ["", "0", "-1", "soon", "1.5", "1e9"])
def test_a_time_out_that_is_none(
    value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TENCOST_REGISTRY_TIMEOUT", value)
    with pytest.raises(ConfigError, match="TENCOST_REGISTRY_TIMEOUT must be whole seconds"):
        pull(CHAMPION, tmp_path / "cache")


INDEXES: list[Any] = [
    None, [], 1, "x", {"aliases": []}, {"aliases": {"champion": 1}, "sha256": {"1": []}}, {"sha256": [1]},
    {"aliases": {"champion": "../../x"}, "sha256": "1"}, {"aliases": {"champion": ["1"]}, "sha256": None},
]  # fmt: skip


@pytest.mark.parametrize("index", INDEXES, ids=json.dumps)
def test_an_index_of_another_shape(
    registered: Path, project: Path, tmp_path: Path, index: Any
) -> None:
    """Mended while the registry answers; without it a version that is named is still found."""
    cache = tmp_path / "cache"
    folder = pull(CHAMPION, cache, root=project)
    path = folder.parent / "index.json"
    whole = path.read_bytes()
    path.write_bytes(orjson.dumps(index))
    assert pull(CHAMPION, cache, root=project) == folder
    assert orjson.loads(path.read_bytes())["aliases"] == {"champion": "1"}
    path.write_bytes(orjson.dumps(index))
    shutil.rmtree(project / "mlruns")
    with pytest.raises(RegistryError, match="no earlier pull of it"):
        pull(CHAMPION, cache, root=project)
    with pytest.warns(StaleBundleWarning, match="version 1"):
        assert pull(f"models:/{NAME}/1", cache, root=project) == folder
    path.write_bytes(whole)
    with pytest.warns(StaleBundleWarning, match="version 1"):
        assert pull(CHAMPION, cache, root=project) == folder


def change_consistently(folder: Path) -> None:
    """Change weights and write their sha256 into bundle.json: whole in itself, and not what was registered."""
    (folder / "random.json").write_bytes(b'{"seed":99}')
    manifest = orjson.loads((folder / "bundle.json").read_bytes())
    manifest["files"]["random.json"] = hashlib.sha256(b'{"seed":99}').hexdigest()
    (folder / "bundle.json").write_bytes(orjson.dumps(manifest))


def test_a_cached_copy_has_the_registered_digest(
    registered: Path, project: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    folder = pull(CHAMPION, cache, root=project)
    change_consistently(folder)
    assert pull(CHAMPION, cache, root=project) == folder
    assert (folder / "bundle.json").read_bytes() == (registered / "bundle.json").read_bytes()
    change_consistently(folder)
    shutil.rmtree(project / "mlruns")
    for uri in (CHAMPION, f"models:/{NAME}/1"):
        with pytest.raises(RegistryError, match="no earlier pull of it"):
            pull(uri, cache, root=project)


@pytest.mark.parametrize("place", ["cache", "cache/bundles", "proc"])
def test_a_cache_that_cannot_be_used(
    registered: Path, project: Path, tmp_path: Path, place: str
) -> None:
    """A file where a folder should be; a file system that takes nothing."""
    cache = Path("/proc/nothing") if place == "proc" else tmp_path / "cache"
    if place != "proc":
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text("in the way")
    with pytest.raises(RegistryError, match=r"cannot keep pulled bundles in .*XDG_CACHE_HOME"):
        pull(CHAMPION, cache, root=project)
    shutil.rmtree(project / "mlruns")
    with pytest.raises(RegistryError, match="no earlier pull of it"):
        pull(CHAMPION, cache, root=project)


def test_a_file_where_the_version_should_be(
    registered: Path, project: Path, tmp_path: Path
) -> None:
    folder = pull(CHAMPION, tmp_path / "cache", root=project)
    shutil.rmtree(folder)
    folder.write_text("in the way")
    assert pull(CHAMPION, tmp_path / "cache", root=project) == folder
    assert (folder / "bundle.json").is_file()


def test_an_index_that_cannot_be_written_stops_no_pull(
    registered: Path, project: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    folder = pull(f"models:/{NAME}/1", cache, root=project)
    index = folder.parent / "index.json"
    index.unlink()
    index.mkdir()
    (index / "in the way").touch()
    assert pull(CHAMPION, cache, root=project) == folder


def command(project: Path, *words: str, **environment: str) -> tuple[int, list[str]]:
    """Run a command in a project; return its exit code and the lines that it wrote."""
    (project / "conf").mkdir(exist_ok=True)
    (project / "conf" / "config.yaml").write_text("{}\n")
    settings = {key: text for key, text in os.environ.items() if not key.startswith("MLFLOW_")}
    done = subprocess.run(
        [sys.executable, "-m", "tencost.cli", *words],
        cwd=project, env={**settings, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).splitlines()


@pytest.mark.usefixtures("registered")
def test_a_damaged_database_is_one_sentence(project: Path) -> None:
    """MLflow logs the traceback of what it raises; so it does for every OperationalError of SQLite."""
    with closing(sqlite3.connect(project / "mlruns" / "mlflow.db")) as database:
        database.execute("DROP TABLE model_version_tags")
        database.commit()
    code, lines = command(project, "register", "promote", NAME, "--to", "staging")
    assert code == 2
    assert len(lines) == 1, lines
    assert "does not answer: " in lines[0]
    assert "no such table: model_version_tags" in lines[0]


@pytest.mark.slow
@pytest.mark.usefixtures("registered")
def test_a_locked_database_is_one_sentence_that_says_to_wait(project: Path) -> None:
    """MLflow waits 20 seconds for the lock."""
    with closing(sqlite3.connect(project / "mlruns" / "mlflow.db")) as database:
        database.execute("BEGIN IMMEDIATE")
        code, lines = command(project, "register", "promote", NAME, "--to", "staging")
    assert code == 2
    assert len(lines) == 1, lines
    assert lines[0].endswith(
        "database is locked. Another command writes to it: wait for its end, then run the command again."
    )


@pytest.mark.slow
def test_a_database_that_is_locked_in_the_middle_of_a_stage_is_one_sentence(project: Path) -> None:
    """Writes of runs lie all over the stages: what MLflow raises there reaches the command line."""
    script = (
        "import sqlite3, sys\n"
        "from tencost.cli import main, servers\n"
        "from tencost.tracking import runs\n"
        "def write(port, host):\n"
        "    with runs.parent_run(servers.project(), 'sweep'):\n"
        "        database = sqlite3.connect('mlruns/mlflow.db')\n"
        "        database.execute('BEGIN IMMEDIATE')\n"
        "servers.UI.callback = write\n"
        "main(['ui'])\n"
    )
    (project / "conf").mkdir()
    (project / "conf" / "config.yaml").write_text("{}\n")
    settings = {key: text for key, text in os.environ.items() if not key.startswith("MLFLOW_")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project, env=settings, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "database is locked. Another command writes to it" in done.stderr
