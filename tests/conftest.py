"""Fixtures that more than one room's tests use: an MLflow database, a small project with trained models, a matmul,
programs of it from MetaSchedule's own design space, and bundles of every family to score them with."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import servers
import toy_project as toy
from alone import pytest_terminal_summary as pytest_terminal_summary
from matmuls import make_matmul
from tencost.config import FeaturesConfig, GraphChoice, HardwareConfig
from tencost.config.parts import FAMILIES

SMALL: dict[str, dict[str, Any]] = {
    "xgb": {"num_rounds": 8, "num_threads": 1},
    "mlp": {"epochs": 1, "hidden": 8},
    "tlp": {"epochs": 1, "hidden": 8, "heads": 2},
    "random": {},
    "knn": {"neighbours": 2},
    "column": {"column": "float_mul"},
    "tvm_xgb": {"num_rounds": 4, "num_threads": 1},
    "tvm_mlp": {"epochs": 1},
    "blend": {
        "members": [
            {"family": "xgb", "reads": ["per_store"], "num_rounds": 4, "num_threads": 1},
            {"family": "random", "reads": ["per_store"]},
        ]
    },
    "corrected": {
        "base": {"family": "xgb", "reads": ["per_store"], "num_rounds": 4, "num_threads": 1},
        "num_rounds": 4,
    },
}
"""Settings that train in a second."""

settings.register_profile("tencost", deadline=None)  # a busy machine is no failure
settings.load_profile("tencost")

ALONE = {"workers", "measure"}
"""Rooms whose tests time programs and pin processes to CPUs: one worker of pytest runs them all, one after another."""


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Divide tests over pytest's workers (`--dist loadgroup`): what shares slow fixtures stays together.

    Workers get groups of many tests first, and those of one test in the order in which they are collected: slow ones
    before the thousands of quick tests, or a worker waits for another one's slow test at the end.
    """
    for item in items:
        room = item.path.parent.name
        if room in ALONE:
            item.add_marker(pytest.mark.xdist_group("measuring"))
        elif isinstance(item, pytest.Function) and "object_store" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("servers"))
        elif any(item.get_closest_marker(name) for name in ("tvm", "slow")):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        elif isinstance(item, pytest.Function) and "mlflow_database" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("mlflow"))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


@pytest.fixture(autouse=True)
def loggers_speak() -> None:
    """A command lets Hydra disable every logger there is and the root below errors; a later test may look at one."""
    logging.getLogger().setLevel(logging.WARNING)
    for logger in logging.Logger.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.disabled = False


@pytest.fixture(autouse=True)
def tvm_can_configure_its_log() -> None:
    """A search of TVM's lets its logger propagate no longer and closes no handler.

    pytest then gives that logger handlers of its own, and TVM's next search fails at one without a name.
    """
    logger = logging.getLogger("tvm.s_tir.meta_schedule")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = True


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """SIGINT as at a terminal, here and in what tests start: nohup, `&` in a script and some CI runners ignore it."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def sigterm_is_free() -> None:
    """SIGTERM as in a new process: Ray leaves a handler behind that Python knows of and the system does not."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


_CPUS = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


@pytest.fixture(autouse=True)
def every_cpu_is_there() -> None:
    """TVM binds a thread that runs a parallel program to one CPU; the next test may count them."""
    if _CPUS is not None:
        os.sched_setaffinity(0, _CPUS)


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.ObjectStore]:
    """An object store on loopback with a bucket, a writer and a reader."""
    pytest.importorskip("moto.server", reason="moto[server], of the dev extra, is not installed")
    with servers.object_store(tmp_path_factory.mktemp("objects")) as store:
        yield store


@pytest.fixture(scope="session")
def registry_server(
    object_store: servers.ObjectStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[servers.Registry]:
    """An MLflow server with passwords on PostgreSQL and the object store."""
    if lacking := servers.missing():
        pytest.skip(lacking)
    folder = tmp_path_factory.mktemp("registry")
    with (
        servers.postgres(folder) as database,
        servers.registry(folder, database, object_store) as served,
    ):
        yield served


@pytest.fixture
def as_writer(object_store: servers.ObjectStore, monkeypatch: pytest.MonkeyPatch) -> str:
    """The environment of somebody who may write to an object store; returns a store's address of one's own."""
    for name, value in object_store.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{servers.BUCKET}/{uuid.uuid4()}/store"


@pytest.fixture(scope="session")
def mlflow_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database; from here on SQLite does not wait for the disk, as only a power cut would notice."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    @event.listens_for(Engine, "connect")
    def wait_for_no_disk(connection: Any, _record: Any) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous = OFF").close()

    return toy.make_mlflow_database(tmp_path_factory.mktemp("mlflow"))


@pytest.fixture(scope="session")
def toy_project_template(tmp_path_factory: pytest.TempPathFactory, mlflow_database: Path) -> Path:
    """The toy project, see toy_project.py."""
    root = tmp_path_factory.mktemp("toy") / "project"
    toy.make_toy_project(root, mlflow_database)
    return root


@pytest.fixture
def toy_project(
    toy_project_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A copy of the toy project of one's own; no other MLflow store is in the environment."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    root = tmp_path / "project"
    shutil.copytree(toy_project_template, root)
    return root


@pytest.fixture
def toy_config() -> Any:
    """The toy project's configuration."""
    return toy.toy_config()


@pytest.fixture
def train_toy(toy_project: Path) -> Callable[..., Path]:
    """Train a family on the toy project: ``train_toy(name, config, seeds=..., run_id=...)`` -> its folder."""
    return partial(toy.train_toy, toy_project)


@pytest.fixture(scope="session")
def cpu_intrinsics() -> None:
    from tencost.programs.trace.intrinsics import register_cpu_intrinsics

    register_cpu_intrinsics()


@pytest.fixture(scope="session")
def target() -> dict[str, Any]:
    from tencost.workers.hardware import detect_host

    return detect_host().target


@pytest.fixture(scope="session", params=["x86-64-v3", "x86-64-v4"])
def vector_target(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A target for each width of vectors that programs run in here: AVX2, and AVX-512 where the host has it.

    For tests whose outcome depends on the vectors: with `target` they would only see those of their host.
    """
    from tencost.errors import HardwareError
    from tencost.workers.hardware import check_runnable

    target = {"kind": "llvm", "mcpu": request.param, "num-cores": 1}
    try:
        check_runnable(HardwareConfig(name=request.param, target=target))
    except HardwareError as error:
        pytest.skip(str(error))
    return target


@pytest.fixture(scope="session")
def unoptimized(target: dict[str, Any]) -> dict[str, Any]:
    """The same hardware, for which LLVM does not optimize: whole networks compile in an eighth of the time.

    For tests of a network's graph. How programs by rule come through LLVM at its usual level is asked in codegen/.
    """
    return {**target, "opt-level": 0}


@pytest.fixture(scope="session")
def matmul() -> Any:
    return make_matmul(64)


@pytest.fixture(scope="session")
def context(matmul: Any, target: dict[str, Any], cpu_intrinsics: None) -> Any:
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    return ms.TuneContext(
        mod=matmul,
        target=Target(target),
        space_generator="post-order-apply",
        search_strategy="replay-trace",
        task_name="matmul",
        rand_state=1,
        num_threads=1,
    )


@pytest.fixture(scope="session")
def candidates(context: Any) -> list[Any]:
    """32 random programs of the matmul."""
    context.pre_tuning(32, 32, context.generate_design_space())
    made = list(context.generate_measure_candidates())
    context.post_tuning()
    return made


@pytest.fixture(scope="session")
def make_bundle(
    tmp_path_factory: pytest.TempPathFactory, context: Any, candidates: list[Any]
) -> Callable[..., Path]:
    """Train a family on the candidates (the label is made up from the number of rows' sums) and save its bundle."""
    from tencost.features.device import attributes, device_names
    from tencost.features.extractor import make_extractor, spec_for
    from tencost.features.rows.ragged import Ragged
    from tencost.models.programs.bundle import BundleInfo, plain_config, save_bundle
    from tencost.models.programs.bundle.calibration import fit_calibration
    from tencost.models.programs.ranker import Samples, make_ranker
    from tencost.train.data.samples import sample_spec

    folder = tmp_path_factory.mktemp("bundles")

    def make(family: str, hardware: str = "test") -> Path:
        path = folder / (family if hardware == "test" else f"{family}-{hardware}")
        if path.exists():
            return path
        kind = "trace" if family == "tlp" else "per_store"
        every = (
            hardware == "cpu"
        )  # one model for all CPUs has columns of the device, and no device of its own
        features = FeaturesConfig(name=kind, kind=kind, relations=every)
        spec = sample_spec(spec_for(features), device_names(features))
        avx2 = attributes(HardwareConfig(name="avx2", simd_bits=256))
        rows: Ragged = make_extractor(spec, avx2).extract(context, candidates)
        label = np.random.default_rng(0).uniform(0.1, 1.0, len(rows)).astype(np.float32)
        label[[0, -1]] = 1.0
        names = np.array([str(index) for index in range(len(rows))])
        group = np.repeat(np.arange(2), len(rows) // 2)
        samples = Samples(rows, label, group, 1e-3 / label.astype(np.float64), names)
        config = FAMILIES.load(family).config(family=family, reads=[kind], **SMALL[family])
        ranker = make_ranker(config, spec)
        ranker.fit(samples, samples, seed=0, log=lambda *_: None)
        info = BundleInfo(
            family=family,
            model_config=plain_config(config),
            feature_spec=spec,
            hardware=hardware,
            target_kind="llvm",
            label="made up",
            calibration=fit_calibration(ranker.predict(rows), label),
            tvm_range=("0.27.0", "0.28.0"),
            dataset="test",
            dataset_hash="0",
            split="test",
            split_hash="0",
            seed=0,
        )
        save_bundle(path, ranker, info)
        return path

    return make


@pytest.fixture(params=FAMILIES.names())
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def undrawn_figures() -> Iterator[None]:
    """Figures are empty files: drawing them takes half of an evaluation. evaluate/test_evaluate_stage.py draws them."""
    with pytest.MonkeyPatch.context() as patch:
        save = "matplotlib.figure.Figure.savefig"
        patch.setattr(save, lambda _figure, path, **_settings: Path(path).touch())
        yield


@pytest.fixture(scope="module")
def networks_read_once() -> Iterator[None]:
    """A network of transformers is read once for all tests of a file, however it is rewritten: that takes seconds."""
    from tencost.networks.source import Imported, read_network

    networks: dict[str, Imported] = {}

    def read_once(config: Any, root: Path | None = None) -> Any:
        if config.source != "transformers":
            return read_network(config, root)
        definition = repr(replace(config, graph=GraphChoice.auto, pack_weights=True))
        if definition not in networks:
            networks[definition] = read_network(config, root)
        return networks[definition]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tencost.networks.network.read_network", read_once)
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Keep PyTorch at one thread: small tensors gain nothing by more, which wait for each other on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
