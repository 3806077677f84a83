"""The same on Ray: a cluster of several node processes on this machine, some of which are killed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest

import tencost
import works
from searches import a_search
from tencost.config import Config, DatasetConfig, ExecutionConfig, ExecutionKind, FeaturesConfig
from tencost.errors import ExecutionError
from tencost.workers.parallel.mapping import WINDOW, Rescue, in_order
from tencost.workers.parallel.search import ended_trials, opened
from tencost.workers.parallel.search import run as run_search
from tencost.workers.parallel.sources import code
from tencost.workers.parallel.workers import open_workers

# Not `ray` itself: it reads the environment when it is imported, which that module sets.
ray_cluster = pytest.importorskip(
    "tencost.workers.parallel.ray_cluster",
    reason="tencost[scale] is not installed",
    exc_type=ModuleNotFoundError,
)
pytestmark = [pytest.mark.ray, pytest.mark.slow]


SCRIPT = """
import os
import sys
import tencost
import works
from tencost.config import Config, DatasetConfig, ExecutionConfig, ExecutionKind, FeaturesConfig
from tencost.workers.parallel.mapping import in_order
from tencost.workers.parallel.workers import open_workers

settings = ExecutionConfig(kind=ExecutionKind.ray, address=os.environ.get("CLUSTER"))
list(in_order(open_workers(works.slow, sys.argv[1], settings, 1), range(1000), works.NOTHING_LOST))
"""


def test_nobody_at_the_address_is_one_sentence_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray_cluster.ANSWER_SECONDS == 10
    monkeypatch.setattr(ray_cluster, "ANSWER_SECONDS", 2.0)
    began = time.monotonic()
    with pytest.raises(ExecutionError, match="nobody answers"):
        open_workers(
            works.double, 3, ExecutionConfig(kind=ExecutionKind.ray, address="127.0.0.1:9")
        )
    with socket.create_server(("127.0.0.1", 0)) as other:  # listens, and is no cluster
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(
            ExecutionError, match=r"expected the head of a Ray.*did not answer in 2 s"
        ):
            open_workers(works.double, 3, ExecutionConfig(kind=ExecutionKind.ray, address=address))
    assert time.monotonic() - began < 12, "two refusals, two seconds each, and ten for a busy host"


def test_a_head_that_is_busy_did_not_answer(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    head = next(
        process
        for process in psutil.Process().children(recursive=True)
        if process.name() == "gcs_server"
    )
    head.suspend()
    try:
        monkeypatch.setattr(ray_cluster, "ANSWER_SECONDS", 3.0)
        with pytest.raises(ExecutionError, match="it did not answer in 3 s: it is busy, or no Ray"):
            ray_cluster._check(cluster.address)
    finally:
        monkeypatch.undo()
        head.resume()
    ray_cluster._check(cluster.address)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A temporary folder for Ray's sockets, whose paths have 107 letters at most: too few for pytest's own."""
    with tempfile.TemporaryDirectory(prefix="t-") as name:
        yield Path(name)


def begun(home: Path, temporary: Path, address: str | None = None) -> subprocess.Popen[bytes]:
    """Return a command whose workers have begun; its temporary folder is that given.

    Args:
        home, temporary: folders; the first one is its home where it starts its own cluster.
        address: of a cluster that runs, opened by this process's token; None: the command starts its own.
    """
    (home / "script.py").write_text(SCRIPT)
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(works.__file__).parent),
        "TMPDIR": str(temporary),
    }
    if address is not None:
        environment["CLUSTER"] = address
    else:
        environment["HOME"] = str(home)
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_TMPDIR"):
            environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, str(home / "script.py"), str(home)],
        env=environment,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not list(home.glob("[0-9]*-*")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.1)
    return process


def clusters(temporary: Path) -> list[Path]:
    return list(temporary.glob("tencost-ray-*"))


def test_an_interrupted_command_leaves_nothing(tmp_path: Path, short_folder: Path) -> None:
    process = begun(tmp_path, short_folder)
    try:
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(clusters(short_folder)) == 1
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        process.wait(60)
    finally:
        if process.poll() is None:
            process.kill()
    assert len(started) > 3, "no cluster was started"
    _, alive = psutil.wait_procs(started, timeout=90)  # Ray's agents notice by themselves
    assert alive == []
    assert not (tmp_path / ".ray").exists()
    assert list(short_folder.iterdir()) == []


FOLDER = """
import sys
from tencost.workers.parallel import ray_cluster

with ray_cluster.folder():
    print("begun", flush=True)
    sys.stdin.read()
"""


def test_files_of_a_killed_command_go_with_the_next_one_not_those_of_one_that_runs(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FOLDER],
        env={**os.environ, "TMPDIR": str(short_folder)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    (old,) = clusters(short_folder)
    long_ago = time.time() - 3600
    os.utime(old / "tencost.lock", (long_ago, long_ago))
    try:
        with ray_cluster.folder():
            assert old in clusters(short_folder)
    finally:
        process.kill()
        process.communicate()
    with ray_cluster.folder() as new:
        assert clusters(short_folder) == [Path(new)]
    assert clusters(short_folder) == []


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs, and two nodes of one CPU; their files lie in the system's temporary folder."""
    from tencost.workers.parallel.ray_cluster import running  # before Ray: it makes the token

    # isort: split
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 100 << 20, "include_dashboard": False}
    files = tempfile.mkdtemp(prefix="tencost-ray-")  # short: the path of a socket has 107 letters
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", files)
        patch.setenv(
            "PYTHONPATH", str(Path(works.__file__).parent)
        )  # as installed on every machine
        # Ray looks every 3 s whether a node answers, and gives it up after 5 times: a node is killed here.
        patch.setenv("RAY_health_check_period_ms", "500")
        made = Cluster()
        try:
            made.add_node(num_cpus=0, **small)
            for _ in range(2):
                made.add_node(num_cpus=1, **small)
            with running(ExecutionConfig(kind=ExecutionKind.ray, address=made.address), None):
                yield made
        finally:
            made.shutdown()
            shutil.rmtree(files, ignore_errors=True)


@pytest.fixture
def settings(cluster: Any) -> ExecutionConfig:
    return ExecutionConfig(kind=ExecutionKind.ray, address=cluster.address)


def test_tasks_of_an_interrupted_command_end_on_a_cluster_that_goes_on(
    cluster: Any, tmp_path: Path, short_folder: Path
) -> None:
    process = begun(tmp_path, short_folder, cluster.address)
    try:
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) != -signal.SIGABRT, "Ray aborted the command"
    finally:
        if process.poll() is None:
            process.kill()
    notes = list(tmp_path.glob("[0-9]*-*"))
    pids = {int(note.name.partition("-")[2]) for note in notes}
    workers = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert alive == []
    assert len(list(tmp_path.glob("[0-9]*-*"))) < 100, "the cluster went on with what nobody wants"


def test_results_come_in_the_order_of_the_items(settings: ExecutionConfig) -> None:
    found = list(in_order(open_workers(works.double, 3, settings), range(40), works.NOTHING_LOST))
    assert found == [[3 * item] for item in range(40)]


def test_a_slow_reader_holds_the_cluster_back(settings: ExecutionConfig, tmp_path: Path) -> None:
    workers = open_workers(works.begun, str(tmp_path), settings)
    most = WINDOW * workers.count
    results = in_order(workers, range(200), works.NOTHING_LOST)
    for taken in range(1, 4):
        next(results)
        time.sleep(0.3)
        assert len(list(tmp_path.iterdir())) <= taken + most
    results.close()


def test_an_item_that_kills_its_workers_is_divided_down_to_its_part(
    settings: ExecutionConfig,
) -> None:
    items = [tuple(range(start, start + 3)) for start in range(0, 18, 3)]
    found = list(
        in_order(open_workers(works.parts, 100, settings), items, Rescue(works.gone, works.halves))
    )
    assert found == [[-13 if one == 13 else 100 + one for one in item] for item in items]


def test_a_killed_worker_and_a_killed_node_lose_nothing(
    cluster: Any, settings: ExecutionConfig, tmp_path: Path
) -> None:
    node = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    killed = []

    def kill() -> None:
        while len(begun := list(tmp_path.iterdir())) < 3:
            time.sleep(0.05)
        os.kill(int(begun[-1].name.partition("-")[2]), signal.SIGKILL)
        time.sleep(1)
        cluster.remove_node(node, allow_graceful=False)
        killed.append(node)

    killer = threading.Thread(target=kill)
    killer.start()
    found = list(
        in_order(open_workers(works.slow, str(tmp_path), settings), range(12), works.NOTHING_LOST)
    )
    killer.join()
    assert killed
    assert found == [[item] for item in range(12)]


@pytest.mark.parametrize("killable", [True, False])
def test_what_a_hanging_worker_had_is_given_to_another(
    killable: bool,
    settings: ExecutionConfig,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tencost.workers.parallel.ray_tasks as ray_tasks

    if not killable:  # as if its machine hung, too
        monkeypatch.setattr(ray_tasks, "_kill", works.nothing)
        monkeypatch.setattr(ray_tasks, "_KILL_SECONDS", 2.0)
    stopped = []

    def stop() -> None:
        while not (begun := list(tmp_path.iterdir())):
            time.sleep(0.05)
        stopped.append(int(begun[0].name.partition("-")[2]))
        os.kill(stopped[0], signal.SIGSTOP)

    stopper = threading.Thread(target=stop)
    stopper.start()
    workers = open_workers(works.slow, str(tmp_path), replace(settings, limit_s=3))
    try:
        found = list(in_order(workers, range(12), works.NOTHING_LOST))
    finally:
        stopper.join()
        with contextlib.suppress(ProcessLookupError):
            os.kill(stopped[0], signal.SIGKILL)
    assert found == [[item] for item in range(12)]
    assert f"Ray worker {stopped[0]} on {socket.gethostname()} did not answer in 3 s" in caplog.text


def test_a_machine_with_other_sources_is_refused_by_name(
    cluster: Any, settings: ExecutionConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert re.fullmatch(r"[\d.]+ \(sources [0-9a-f]{12}\)", code())
    package = Path(tencost.__file__).parent
    shutil.copytree(
        package, tmp_path / "tencost", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    with (tmp_path / "tencost" / "features" / "kind.py").open("a") as file:
        file.write("\nOTHER = 1\n")  # the version stays what it was
    beside = Path(works.__file__).parent
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{tmp_path}:{beside}")
        node = cluster.add_node(num_cpus=4, object_store_memory=100 << 20)
    begun = tmp_path / "begun"
    begun.mkdir()
    try:
        with pytest.raises(ExecutionError) as refused:
            list(
                in_order(
                    open_workers(works.slow, str(begun), settings), range(40), works.NOTHING_LOST
                )
            )
    finally:
        cluster.remove_node(node)
    told = str(refused.value)
    assert f"expected tencost {code()} on every machine" in told
    assert re.search(r"found [\d.]+ \(sources [0-9a-f]{12}\) on ", told)
    assert socket.gethostname() in told


def test_a_search_runs_on_the_cluster(settings: ExecutionConfig, tmp_path: Path) -> None:
    search = a_search(tmp_path, trials=3, jobs=2, execution=settings)
    with opened(search) as study:
        run_search(search, study, works.trial, None)
        assert len(ended_trials(study)) == 3


def test_an_error_of_the_work_ends_it_as_it_is(settings: ExecutionConfig) -> None:
    with pytest.raises(KeyError):
        list(in_order(open_workers(works.refuse, None, settings), range(4), works.NOTHING_LOST))


def hashes(folder: Path) -> dict[str, str]:
    """Return what lies below a folder, but for what says when it was made."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_stages_write_the_bytes_of_the_local_run(
    toy_project: Path, settings: ExecutionConfig, toy_config: Config
) -> None:
    from tencost.evaluate.stage import run as evaluate
    from tencost.features.stage import run as features
    from tencost.models.programs.families.xgb import XgbConfig
    from tencost.train.programs import run as train

    traced = toy_project / "data" / "records" / "traced"
    traced.mkdir()
    texts = [
        f'[[["GetSBlock",[],["a{at}","main"],["b0"]],["Fuse",["l{at}","l2"],[1],["l3"]]],[]]'
        for at in range(200)
    ]
    names = [f"p{at:03d}" for at in range(200)]
    workloads = [f"w{at % 5}" for at in range(200)]
    programs = {"program_id": names, "workload_id": workloads, "program": texts}
    hardware = {"target": ['{"kind":"llvm"}'] * 200, "hardware": ["toy-1c"] * 200}
    pl.DataFrame({**programs, **hardware}).write_parquet(traced / "records.parquet")
    pl.DataFrame({"workload_id": workloads[:5], "mod_json": ["{}"] * 5}).write_parquet(
        traced / "workloads.parquet"
    )
    features_config = FeaturesConfig(name="trace", kind="trace")
    dataset = DatasetConfig(name="traced", source="traced")
    toy_config.model = XgbConfig(family="xgb", reads=["toy"], num_rounds=8, num_threads=1)
    toy_config.model_name, toy_config.seeds, toy_config.folds = "xgb", [0, 1], 2
    found = []
    for execution in (ExecutionConfig(), settings):
        toy_config.execution = execution
        trace = replace(toy_config, features=features_config, dataset=dataset)
        written = [features(trace, toy_project), train(toy_config, toy_project).folder]
        evaluate(toy_config, toy_project)
        report = toy_project / "data" / "reports" / "toy" / "toy-1c"
        found.append([hashes(folder) for folder in (*written, report)])
        for folder in (*written, report):
            shutil.rmtree(folder)
    assert all(found[0])
    assert found[0] == found[1]


@pytest.mark.tvm
def test_programs_are_the_lines_of_the_local_run(
    small_collection_template: Path,
    configured: Callable[..., Config],
    settings: ExecutionConfig,
    tmp_path: Path,
) -> None:
    from tencost.measure import stage

    cfg = configured("measure.programs=10", "measure.evolved_share=0.2", "measure.near_share=0.2")
    found = []
    for execution in (ExecutionConfig(), settings):
        root = tmp_path / execution.kind.value
        shutil.copytree(small_collection_template, root)
        cfg.execution = execution
        folder = stage.programs(cfg, root) / "to_measure_programs"
        found.append(hashes(folder))
    assert found[0] == found[1]
    assert found[0] != hashes(small_collection_template / "measured/small/to_measure_programs")
