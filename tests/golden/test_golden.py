"""What an earlier version left on disk is read, and judged to the digit, by this one: see make_archive.py.

A difference here is either a defect or an intended change of results. An intended one is committed by itself, with a
new archive and both leaderboards in the commit message.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd
import polars as pl
import pytest

import toy_project as toy
from made_up_graphs import networks
from tencost.records.fetch.unpack import unpack

pytestmark = pytest.mark.usefixtures("undrawn_figures")
ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = Path(__file__).with_name("golden.tar.zst")
PROGRAM_MODELS = ("random", "knn", "xgb", "tvm_xgb", "mlp", "tvm_mlp")
GRAPH_MODELS = ("constant", "summed", "additive", "gcn")
TIMES = {"predict_ms", "ms_per_1000", "seconds", "milliseconds"}
"""Fields of a leaderboard that depend on the host's speed."""
CLOSE = 1e-5
"""Relative difference of scores: networks add in another order on another CPU."""


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory, mlflow_database: Path) -> Path:
    folder = tmp_path_factory.mktemp("golden") / "golden"
    unpack(ARCHIVE, folder)
    for kind in ("programs", "graphs"):
        (folder / kind / "project" / "mlruns" / "artifacts").mkdir(parents=True)
        shutil.copy(mlflow_database, folder / kind / "project" / "mlruns" / "mlflow.db")
    return folder


@pytest.mark.parametrize("family", PROGRAM_MODELS)
def test_bundles_of_programs_score_as_before(golden: Path, family: str) -> None:
    from tencost.models.programs.bundle import load_bundle
    from tencost.train.data import Data

    project = golden / "programs" / "project"
    features = Data(toy.toy_config(), project).features("toy").features
    with np.load(golden / "programs" / "scores.npz") as scores:
        for seed in (0, 1):
            folder = (
                project / "data" / "models" / "toy" / "toy-1c" / f"{family}-toy" / f"seed{seed}"
            )
            found = load_bundle(folder).scores(features)
            np.testing.assert_allclose(found, scores[f"{family}-seed{seed}"], rtol=CLOSE)


@pytest.mark.parametrize("family", GRAPH_MODELS)
def test_bundles_of_graphs_predict_as_before(golden: Path, family: str) -> None:
    from tencost.models.networks.bundle import load_graph_bundle

    models = golden / "graphs" / "project" / "data" / "models" / "mine" / "by_graph"
    with np.load(golden / "graphs" / "latency.npz") as latency:
        for seed in (0, 1):
            bundle = load_graph_bundle(models / family / f"seed{seed}")
            found = bundle.predict_ms(networks(4, seed=3).graphs, "myriad-vpu")
            np.testing.assert_allclose(found, latency[f"{family}-seed{seed}"], rtol=CLOSE)


def assert_same(found: Any, expected: Any, where: str = "") -> None:
    """Compare two leaderboards, figures to six digits, but for what depends on the host's speed."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected.keys() - TIMES:
            assert_same(found[key], expected[key], f"{where}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{where}/{place}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6, nan_ok=True), where
    else:
        assert found == expected, where


def test_the_leaderboard_of_programs_is_the_same(golden: Path) -> None:
    from tencost.evaluate import stage

    project = golden / "programs" / "project"
    board = project / "data" / "reports" / "toy" / "toy-1c" / "leaderboard.json"
    before = orjson.loads(board.read_bytes())
    board.unlink()
    stage.run(toy.toy_config(), project)
    assert_same(orjson.loads(board.read_bytes()), before)


def test_the_leaderboards_of_graphs_are_the_same(
    golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tencost.cli.main import main

    project = golden / "graphs" / "project"
    shutil.copytree(ROOT / "conf", project / "conf")
    (project / "conf" / "dataset" / "mine.yaml").write_text("name: mine\nsource: networks\n")
    boards = sorted(project.glob("data/reports/mine-by_graph/devices/*/graph_leaderboard.json"))
    assert len(boards) == 2
    before = [orjson.loads(board.read_bytes()) for board in boards]
    for board in boards:
        board.unlink()
    monkeypatch.chdir(project)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    main(["graphs", "evaluate", "dataset=mine", "graph_split=by_graph"])
    for board, expected in zip(boards, before, strict=True):
        assert_same(orjson.loads(board.read_bytes()), expected, board.parent.name)


@pytest.mark.filterwarnings("ignore:tencost.*import it from there:DeprecationWarning")
def test_a_registered_version_of_programs_loads(golden: Path) -> None:
    """Its own copy of pyfunc.py imports our modules by name."""
    import mlflow.pyfunc

    from tencost.models.programs.bundle import load_bundle
    from tencost.train.data import Data

    folder = golden / "registered" / "programs"
    table = Data(toy.toy_config(), golden / "programs" / "project").features("toy")
    lengths = np.diff(table.features.offsets)
    rows = pd.DataFrame(table.features.values, columns=list(table.spec.columns))
    rows.insert(0, "program", np.repeat(np.arange(len(lengths)), lengths))
    found = mlflow.pyfunc.load_model(str(folder)).predict(rows)
    bundle = next((folder / "artifacts").glob("*/bundle.json")).parent
    np.testing.assert_allclose(found["score"], load_bundle(bundle).scores(table.features))


@pytest.mark.filterwarnings("ignore:tencost.*import it from there:DeprecationWarning")
def test_a_registered_version_of_graphs_loads(golden: Path) -> None:
    import mlflow.pyfunc

    from tencost.models.networks.bundle import load_graph_bundle
    from tencost.networks.graph.operators import COLUMNS, OPERATORS

    folder = golden / "registered" / "graphs"
    graphs = networks(2, seed=3).graphs
    rows = []
    for number in range(len(graphs)):
        graph = graphs.take([number])
        for node, code in enumerate(graph.operator):
            inputs = graph.edges[0, graph.edges[1] == node]
            values = dict(zip(COLUMNS, graph.columns[node], strict=True))
            text = " ".join(map(str, inputs))
            rows.append({"graph": number, "operator": OPERATORS[code], **values, "inputs": text})
    found = mlflow.pyfunc.load_model(str(folder)).predict(pd.DataFrame(rows))
    bundle = load_graph_bundle(folder / "artifacts" / "bundle")
    np.testing.assert_allclose(found["latency_ms"], bundle.predict_ms(graphs))


def test_a_store_answers_as_the_table_that_was_built_from_it(golden: Path) -> None:
    from tencost.store.record_store import RecordStore

    store = RecordStore(str(golden / "store"))
    frame = store.read(None, ["record_id", "status"])
    split = pl.read_parquet(golden / "programs/project/data/splits/toy/by_network/split.parquet")
    assert sorted(frame["record_id"]) == sorted(split["record_id"])
    assert frame["status"].value_counts(sort=True)["count"].to_list() == [59, 1]


@pytest.mark.slow
def test_a_project_of_ones_own_runs(golden: Path, mlflow_database: Path) -> None:
    """Its dvc.yaml, params.yaml and conf/ are copies of that version's; this version runs them."""
    own = golden / "own"
    dataset = own / "conf" / "dataset" / "measured.yaml"
    text = re.sub(r"(?m)^source: .*$", f"source: {golden / 'logs'}", dataset.read_text())
    dataset.write_text(text)
    (own / "mlruns").mkdir()
    shutil.copy(mlflow_database, own / "mlruns")
    quiet = os.environ | {"DVC_NO_ANALYTICS": "1", "XDG_CACHE_HOME": str(golden / "cache")}
    quiet["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{quiet['PATH']}"
    command = [sys.executable, "-m", "tencost.cli", "pipeline"]
    ended = subprocess.run(command, cwd=own, env=quiet, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    board = next((own / "data" / "reports").rglob("leaderboard.json"))
    models = {row["model"] for row in orjson.loads(board.read_bytes())["rows"]}
    assert {"random-ansor_tiles", "xgb-ansor_tiles"} < models
