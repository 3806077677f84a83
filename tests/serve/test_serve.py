"""The service as its clients meet it: the command in a process of its own, asked over HTTP."""

from __future__ import annotations

import http.client
import http.server
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tencost.errors import ConfigError, RegistryError, TuneError

pytestmark = [pytest.mark.tvm, pytest.mark.slow]
pytest.importorskip("starlette", reason="tencost[serve] is not installed")


def start(bundle: Path, *words: str, **environment: str) -> tuple[subprocess.Popen[str], str]:
    """Start the command; returns it with the address that it says it has."""
    command = [sys.executable, "-m", "tencost.cli", "serve", str(bundle), "--port", "0", *words]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        found = re.search(r"http://\S+", line)
        if found:
            return process, found[0]
    raise AssertionError(f"the service did not start: {said}")


def stop(process: subprocess.Popen[str]) -> int:
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    code = process.wait(60)
    if process.stderr:
        process.stderr.close()
    _, alive = psutil.wait_procs(started, timeout=20)
    assert alive == []
    return code


@pytest.fixture(scope="module")
def bundle(make_bundle: Callable[..., Path]) -> Path:
    return make_bundle("xgb")


@pytest.fixture(scope="module")
def service(bundle: Path) -> Iterator[str]:
    words = ("--jobs", "1", "--candidates", "64", "--megabytes", "1")
    process, url = start(bundle, *words)
    yield url
    assert stop(process) == 0


@pytest.fixture
def asked(context: Any, candidates: list[Any]) -> dict[str, Any]:
    """A request that is right."""
    from tvm.ir import save_json

    from tencost.features.traces import trace_values

    traces = [trace_values(one.sch.trace) for one in candidates[:3]]
    return {"workload": str(save_json(context.mod)), "target": {"kind": "llvm"}, "traces": traces}


def ask(url: str, body: bytes | Any, path: str = "/v1/score", **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, content, headers)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def test_scores_are_the_bytes_of_the_model_in_process(
    service: str, bundle: Path, context: Any, candidates: list[Any]
) -> None:
    import tencost

    here = tencost.load_cost_model(bundle, frozen=True, draft=False)
    there = tencost.remote_cost_model(service)
    wanted = here.predict(context, candidates)
    found = there.predict(context, candidates)
    assert found.dtype == np.float64
    assert found.tobytes() == wanted.tobytes()
    assert len(set(wanted.tolist())) > 5
    assert there.unread == 0


@pytest.fixture
def tuner_log() -> Iterator[None]:
    """TVM cannot configure its logger where it has a handler without a name: pytest's, if it does not propagate.

    TVM turns that off for good, and closes no handler.
    """
    logger = logging.getLogger("tvm.s_tir.meta_schedule")

    def clear() -> None:
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
            handler.close()
        logger.propagate = True

    clear()
    yield
    clear()


@pytest.mark.usefixtures("tuner_log")
def test_a_tuner_uses_it_with_one_line(service: str, matmul: Any, tmp_path: Path) -> None:
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    import tencost
    from tencost.measure.hardware import detect_host
    from tencost.workers.runner import WarmBuilder, WarmRunner

    database = ms.tune_tir(
        matmul,
        Target(detect_host().target),
        str(tmp_path),
        max_trials_global=4,
        num_trials_per_iter=4,
        num_tuning_cores=1,
        builder=WarmBuilder(),  # TVM's own import TVM anew for every batch
        runner=WarmRunner(),
        strategy=ms.search_strategy.EvolutionarySearch(population_size=16, genetic_num_iters=1),
        cost_model=tencost.remote_cost_model(service),
    )
    assert len(database.get_all_tuning_records()) > 0


def test_a_candidate_that_cannot_be_read_is_named(service: str, asked: dict[str, Any]) -> None:
    code, whole = ask(service, asked)
    assert code == 200
    asked["traces"].insert(1, [[["Fly", [], [], []]], []])
    asked["traces"].append("no JSON")
    code, found = ask(service, asked)
    assert code == 200
    assert [one["index"] for one in found["unread"]] == [1, 4]
    assert all(one["reason"] for one in found["unread"])
    assert [found["scores"][at] for at in (0, 2, 3)] == whole["scores"]
    assert max(found["scores"][1], found["scores"][4]) < min(whole["scores"])


def test_a_trace_that_could_run_code_is_not_replayed(service: str, asked: dict[str, Any]) -> None:
    pragma = ["Annotate", ["l1", '"int f();"'], ["pragma_import_c"], []]
    asked["traces"] = [[[pragma], []]]
    code, found = ask(service, asked)
    assert code == 200
    assert "pragma_import_c" in found["unread"][0]["reason"]


BAD: dict[str, tuple[Callable[[dict[str, Any]], Any], int, str]] = {
    "no JSON": (lambda asked: b"{", 400, "expected JSON"),
    "no object": (lambda asked: [1], 400, "expected an object"),
    "no workload": (lambda asked: {**asked, "workload": 3}, 422, "workload"),
    "a workload of nothing": (lambda asked: {**asked, "workload": "{}"}, 422, "workload"),
    "another target": (lambda asked: {**asked, "target": {"kind": "cuda"}}, 422, "'llvm'"),
    "no target": (lambda asked: {**asked, "target": "llvm"}, 422, "target"),
    "no traces": (lambda asked: {**asked, "traces": []}, 422, "traces"),
    "too many": (lambda asked: {**asked, "traces": asked["traces"] * 30}, 413, "at most 64"),
    "too much": (lambda asked: b" " * (2 << 20), 413, "at most"),
    "a module of others": (
        lambda asked: {**asked, "workload": asked["workload"].replace("tirx.For", "ffi.Module")},
        422,
        "ffi.Module",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_one_sentence_and_the_service_goes_on(
    service: str, asked: dict[str, Any], name: str
) -> None:
    make, status, words = BAD[name]
    code, found = ask(service, make(asked))
    assert code == status, found
    assert words in found["error"]
    assert "\n" not in found["error"]
    assert ask(service, asked)[0] == 200


def test_a_killed_worker_costs_nothing(service: str, asked: dict[str, Any]) -> None:
    [process] = [
        one
        for one in psutil.Process().children()
        if "serve" in one.cmdline() and "tencost.cli" in one.cmdline()
    ]
    before = ask(service, asked)
    workers = [one for one in process.children() if "spawn_main" in " ".join(one.cmdline())]
    assert workers
    for worker in workers:
        worker.kill()
    assert ask(service, asked) == before


def test_others_than_this_host_need_a_token(bundle: Path, asked: dict[str, Any]) -> None:
    command = [sys.executable, "-m", "tencost.cli", "serve", str(bundle), "--host", "0.0.0.0"]
    environment = {name: value for name, value in os.environ.items() if "TENCOST" not in name}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 2
    assert "TENCOST_SERVE_TOKEN" in done.stderr
    process, url = start(bundle, "--jobs", "1", "--host", "0.0.0.0", TENCOST_SERVE_TOKEN="secret")
    url = url.replace("0.0.0.0", "127.0.0.1")
    try:
        code, found = ask(url, asked)
        assert (code, "Bearer" in found["error"]) == (401, True)
        assert ask(url, asked, Authorization="Bearer wrong")[0] == 401
        assert ask(url, asked, Authorization="Bearer secret")[0] == 200
        import tencost

        assert tencost.remote_cost_model(url, token="secret").about["target_kind"] == "llvm"
        with pytest.raises(TuneError, match="401"):
            tencost.remote_cost_model(url, token="wrong")
    finally:
        assert stop(process) == 0


def test_a_request_is_answered_before_the_service_ends(bundle: Path, asked: dict[str, Any]) -> None:
    process, url = start(bundle, "--jobs", "1")
    asked["traces"] *= 300
    answers: list[tuple[int, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(ask(url, asked)))
    asking.start()
    time.sleep(0.5)
    assert stop(process) == 0
    asking.join()
    assert [code for code, _ in answers] == [200]
    assert len(answers[0][1]["scores"]) == 900


def test_a_request_that_takes_too_long_is_given_up(bundle: Path, asked: dict[str, Any]) -> None:
    process, url = start(bundle, "--jobs", "1", "--seconds", "1")
    try:
        code, found = ask(url, {**asked, "traces": asked["traces"] * 1000})
        assert code == 504
        assert "fewer candidates" in found["error"]
    finally:
        assert stop(process) == 0


def test_nobody_at_the_address_is_one_sentence() -> None:
    import tencost

    with pytest.raises(RegistryError, match="nobody answers"):
        tencost.remote_cost_model("http://127.0.0.1:9")


def test_a_taken_port_is_one_sentence(service: str, bundle: Path) -> None:
    port = service.rpartition(":")[2]
    command = [sys.executable, "-m", "tencost.cli", "serve", str(bundle), "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert f"port {port}" in done.stderr
    assert "Traceback" not in done.stderr
    assert "--port" in done.stderr


def test_who_is_silent_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import tencost
    from tencost.serve import client

    monkeypatch.setattr(client, "FIRST_SECONDS", 0.5, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(RegistryError, match="nobody answers"):
            tencost.remote_cost_model(f"http://127.0.0.1:{silent.getsockname()[1]}", seconds=5)
        silent.settimeout(0.5)
        silent.accept()[0].close()
        with pytest.raises(TimeoutError):
            silent.accept()


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://127.0.0.1:port", "http://[::1"])
def test_what_is_no_address_is_told(url: str) -> None:
    import tencost

    with pytest.raises(ConfigError, match="expected the address of a service"):
        tencost.remote_cost_model(url)


@pytest.mark.parametrize(("status", "body"), [(200, b'{"app": "other"}'), (404, b"<html>")])
def test_another_service_is_not_taken_for_ours(status: int, body: bytes) -> None:
    import tencost

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.handle_request, daemon=True).start()
        with pytest.raises(RegistryError, match="found something else"):
            tencost.remote_cost_model(f"http://127.0.0.1:{other.server_port}")
