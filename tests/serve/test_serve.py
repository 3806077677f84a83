"""The service as its clients meet it: the command in a process of its own, asked over HTTP."""

from __future__ import annotations

import http.client
import http.server
import json
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

from process_words import words_of
from tencost import cli
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
    words = ("--jobs", "1", "--candidates", "64", "--megabytes", "1", "--body-seconds", "4")
    process, url = start(bundle, *words)
    yield url
    assert stop(process) == 0


@pytest.fixture(scope="module")
def roomy(bundle: Path) -> Iterator[str]:
    """A service with the limits that it has by default."""
    process, url = start(bundle, "--jobs", "1")
    yield url
    assert stop(process) == 0


@pytest.fixture
def asked(context: Any, candidates: list[Any]) -> dict[str, Any]:
    """A request that is right."""
    from tvm.ir import save_json

    from tencost.programs.trace.instructions import trace_values

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
    from tvm.s_tir import meta_schedule as ms

    import tencost

    here = tencost.load_cost_model(bundle, frozen=True, draft=False)
    there = tencost.remote_cost_model(service)
    wanted = here.predict(context, candidates)
    found = there.predict(context, candidates)
    assert found.dtype == np.float64
    assert found.tobytes() == wanted.tobytes()
    assert len(set(wanted.tolist())) > 5
    assert there.unread == 0
    bare = ms.TuneContext(mod=context.mod)  # without a target it is of the model's kind
    assert there.predict(bare, candidates).tobytes() == wanted.tobytes()


def test_a_tuner_uses_it_with_one_line(service: str, matmul: Any, tmp_path: Path) -> None:
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    import tencost
    from tencost.workers.hardware import detect_host
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


def test_what_the_tuner_compiles_is_what_its_workers_measured(service: str) -> None:
    code = f"""
import tvm
from tvm import te, tirx
import tencost

tencost.remote_cost_model({service!r})
a = te.placeholder((8,), "float32")
mod = tvm.IRModule({{"main": te.create_prim_func([a, te.compute((8,), lambda i: tirx.erf(a[i]))])}})
assert "erff" not in tvm.compile(mod, target="llvm").mod.inspect_source("asm")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


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
    [process] = [one for one in psutil.Process().children() if "--megabytes" in words_of(one)]
    before = ask(service, asked)
    workers = [one for one in process.children() if "spawn_main" in words_of(one)]
    assert workers
    for worker in workers:
        worker.kill()
    assert ask(service, asked) == before


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what the command says before it ends with exit code 2."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", *words])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_others_than_this_host_need_a_token(
    bundle: Path, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.delenv("TENCOST_SERVE_TOKEN", raising=False)
    assert "TENCOST_SERVE_TOKEN" in refused(capsys, str(bundle), "--host", "0.0.0.0")
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
    until(lambda: health(url)["slots"]["taken"] == 1)
    assert stop(process) == 0
    asking.join()
    assert [code for code, _ in answers] == [200]
    assert len(answers[0][1]["scores"]) == 900


def test_a_request_that_takes_too_long_is_given_up(bundle: Path, asked: dict[str, Any]) -> None:
    process, url = start(bundle, "--jobs", "1", "--seconds", "1")
    try:
        code, found = ask(url, different(asked, 3000))
        assert code == 504
        assert "fewer candidates" in found["error"]
    finally:
        assert stop(process) == 0


def health(url: str, path: str = "/health") -> Any:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    connection.request("GET", path)
    content = connection.getresponse().read()
    connection.close()
    return json.loads(content) if path == "/health" else content.decode()


def send(url: str, body: bytes, size: int | None = None) -> socket.socket:
    """Send a request for scores, or the first part of one that says it has `size` bytes; nobody reads the answer."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    client = socket.create_connection((host, int(port)))
    head = f"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: {size or len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


def until(true: Callable[[], bool]) -> None:
    for _ in range(600):
        if true():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come true in a minute")


def different(asked: dict[str, Any], count: int) -> dict[str, Any]:
    """Return a request of as many texts, no two alike: the service remembers a program by its text."""
    texts = [json.dumps(one) for one in asked["traces"]]
    marks = [f"{at:b}".replace("0", " ").replace("1", "\t") for at in range(count)]
    return {**asked, "traces": [texts[at % len(texts)] + mark for at, mark in enumerate(marks)]}


def counted(text: str, name: str) -> float:
    [line] = [line for line in text.splitlines() if line.startswith(f"tencost_serve_{name} ")]
    return float(line.split()[-1])


def test_slow_clients_take_no_slot(service: str, asked: dict[str, Any]) -> None:
    """Sixteen that send a part of their body: others are answered, and they are told when their time is up."""
    body = json.dumps(asked).encode()
    slow = [send(service, body[:50], len(body)) for _ in range(20)]
    try:
        until(lambda: health(service)["reading"] == 20)
        assert ask(service, different(asked, 7))[0] == 200  # of programs that it has not seen
        found = health(service)
        assert found["status"] == "ok"
        assert found["slots"] == {"all": 16, "taken": 0}
        assert found["workers"] == {"all": 1, "alive": 1}
        assert found["queue"] == 0
        slow[0].settimeout(60)
        answer = b""
        while part := slow[0].recv(4096):  # until it is closed
            answer += part
        assert b" 408 " in answer
        assert b"expected the request's body within 4 s, found 50 bytes" in answer
    finally:
        for client in slow:
            client.close()


def test_slots_that_are_taken_are_told(roomy: str, asked: dict[str, Any]) -> None:
    clients = []
    try:
        for at in range(16):
            body = json.dumps(different(asked, 900 + at)).encode()
            clients.append(send(roomy, body))
        until(lambda: health(roomy)["slots"]["taken"] == 16)
        assert health(roomy)["status"] == "busy"
        code, found = ask(roomy, asked)
        assert (code, "16 requests are waiting" in found["error"]) == (503, True)
        until(lambda: health(roomy)["queue"] > 0)
    finally:
        for client in clients:
            client.close()
    until(lambda: health(roomy)["slots"]["taken"] == 0)


def test_who_leaves_and_what_is_not_answered_are_lines_in_the_log(
    bundle: Path, asked: dict[str, Any]
) -> None:
    process, url = start(bundle, "--jobs", "1", "--candidates", "100000")
    assert process.stderr is not None
    body = json.dumps(different(asked, 2000)).encode()
    send(url, body[:100], len(body)).close()
    client = send(url, body)
    until(lambda: health(url)["slots"]["taken"] == 1)
    client.close()
    until(lambda: health(url)["slots"]["taken"] == 0)  # what nobody waits for is not scored
    told = health(url, "/metrics")
    assert counted(told, "clients_left_total") == 2
    assert 'how="full"} 2000' not in told

    # It is told to stop while a request would take longer than it may.
    client = send(url, json.dumps(different(asked, 20000)).encode())
    until(lambda: health(url)["slots"]["taken"] == 1)
    process.send_signal(signal.SIGTERM)
    said = process.stderr.read()
    assert process.wait(60) == 0
    process.stderr.close()
    client.close()
    assert said.count(" left after ") == 2, said
    assert "is not answered: the service ends" in said
    assert "Traceback" not in said, said
    assert "leaked" not in said, said


def test_a_service_that_must_end_before_it_is_ready_has_no_traceback(bundle: Path) -> None:
    command = [sys.executable, "-m", "tencost.cli", "serve", str(bundle), "--port", "0"]
    early = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until(lambda: any("spawn_main" in words_of(one) for one in _children(early)))
    early.send_signal(signal.SIGTERM)
    _, said = early.communicate(timeout=60)
    assert early.returncode in (0, 130, 143), said
    assert "Traceback" not in said, said
    assert "leaked" not in said, said


def _children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def test_a_huge_request_holds_up_nobody(roomy: str, asked: dict[str, Any]) -> None:
    """Its JSON and its module are read in a process of their own, and another one than ordinary requests have."""
    node = {"type": "ir.IntImm", "data": {"dtype": 1, "span": 0, "value": 12345678901234}}
    graph = {"root_index": 0, "nodes": [node] * 600_000, "metadata": {}}
    body = json.dumps({**asked, "workload": json.dumps(graph)}).encode()
    assert len(body) > 50 << 20
    answers: list[tuple[int, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(ask(roomy, body)))
    ask(roomy, asked)
    asking.start()
    until(lambda: health(roomy)["slots"]["taken"] == 1)
    passed = 0
    while asking.is_alive():
        health(roomy)
        assert ask(roomy, different(asked, 2 + passed))[0] == 200
        passed += asking.is_alive()
    asking.join()
    assert passed >= 3  # others were answered before it was
    [(code, found)] = answers
    assert (code, "expected one module" in found["error"]) == (422, True), found


def test_metrics_are_read_as_prometheus_reads_them(service: str, asked: dict[str, Any]) -> None:
    before = health(service, "/metrics")
    ask(service, different(asked, 5))
    ask(service, different(asked, 5))
    ask(service, b"{")
    after = health(service, "/metrics")
    sample = re.compile(r'^[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+$')
    for line in after.splitlines():
        assert line.startswith(("# HELP ", "# TYPE ")) or sample.match(line), line
    assert counted(after, 'requests_total{status="200"}') >= 2
    assert counted(after, 'requests_total{status="400"}') >= 1
    grown = counted(after, "request_seconds_count") - counted(before, "request_seconds_count")
    assert grown == 3
    assert counted(after, 'request_seconds_bucket{le="+Inf"}') == counted(
        after, "request_seconds_count"
    )
    assert counted(after, 'candidates_total{how="remembered"}') >= 5
    assert counted(after, "slots") == 16


def test_what_was_scored_is_remembered_and_what_promises_little_is_guessed(
    bundle: Path, context: Any, matmul: Any, target: dict[str, Any]
) -> None:
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    import tencost

    many = ms.TuneContext(
        mod=matmul, target=Target(target), space_generator="post-order-apply", search_strategy="replay-trace",
        task_name="matmul", rand_state=3, num_threads=1,
    )  # fmt: skip
    many.pre_tuning(300, 300, many.generate_design_space())
    programs = list(many.generate_measure_candidates())
    many.post_tuning()
    wanted = tencost.load_cost_model(bundle, frozen=True, draft=False).predict(context, programs)
    process, url = start(bundle, "--jobs", "2")
    try:
        model = tencost.remote_cost_model(url)
        found = model.predict(context, programs)
        told = health(url, "/metrics")
        full = counted(told, 'candidates_total{how="full"}')
        assert full >= 128
        if model.guessed:  # else the draft was not trusted, and all were scored
            assert full + model.guessed + counted(told, 'candidates_total{how="remembered"}') == 300
        assert (found == wanted).sum() >= 300 - model.guessed
        assert found.max() == wanted[np.argmax(found)]  # a guess is never above what is known
        again = model.predict(context, programs)
        assert again.tobytes() == found.tobytes()
        exact = tencost.remote_cost_model(url, draft=False)
        assert exact.predict(context, programs).tobytes() == wanted.tobytes()
        assert exact.guessed == 0
        before = counted(health(url, "/metrics"), 'candidates_total{how="full"}')
        assert exact.predict(context, programs[::-1]).tobytes() == wanted[::-1].tobytes()
        assert counted(health(url, "/metrics"), 'candidates_total{how="full"}') == before
    finally:
        assert stop(process) == 0


def test_nobody_at_the_address_is_one_sentence() -> None:
    import tencost

    with pytest.raises(RegistryError, match="nobody answers"):
        tencost.remote_cost_model("http://127.0.0.1:9")


def test_a_taken_port_is_one_sentence(
    service: str, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = service.rpartition(":")[2]
    told = refused(capsys, str(bundle), "--port", port)
    assert f"port {port}" in told
    assert "Traceback" not in told
    assert "--port" in told


def test_who_is_silent_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import tencost
    from tencost.register.service import client

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
