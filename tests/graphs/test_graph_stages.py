"""From a folder of networks to a registered champion, through the command line, on made-up networks."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import orjson
import pytest

from installed import environment_of
from made_up_graphs import networks
from tencost.cli.main import main
from tencost.config.composition import compose
from tencost.errors import ConfigError
from tencost.evaluate.networks import stage as evaluate
from tencost.models.networks.bundle import load_graph_bundle
from tencost.networks.graph.table import load_graphs
from tencost.records.network_graphs.formats import cg
from tencost.register import registry
from tencost.register.networks import stage as register
from tencost.register.pull import pull
from tencost.tracking import runs as tracking
from tencost.train.networks.data import GraphData

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow
SUMMED = (
    "graph_model=summed",
    "graph_model.reference=false",
    "graph_model.num_rounds=60",
    "seeds=[0,1,2]",
)

ABSENT = {
    "deltalake", "duckdb", "dvc", "lightning", "matplotlib", "onnxruntime", "pandas", "polars", "pyarrow", "torch",
    "torch_geometric", "transformers", "tvm",
}  # fmt: skip
"""Not in tencost[latency], whatever else is not."""


def command(*words: str) -> None:
    main(["graphs", *words])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, mlflow_database: Path) -> Path:
    """A project whose dataset `mine` has 40 networks of three families; all stages have run."""
    from shutil import copy

    root = tmp_path_factory.mktemp("graphs") / "project"
    copytree(ROOT / "conf", root / "conf")
    (root / "mlruns").mkdir()
    copy(mlflow_database, root / "mlruns" / "mlflow.db")
    (root / "conf" / "dataset" / "mine.yaml").write_text("name: mine\nsource: networks\n")
    for name, policy in (("by_graph", "by_graph"), ("by_family", "by_family")):
        held_out = "[wide]" if policy == "by_family" else "[]"
        (root / "conf" / "split" / f"{name}.yaml").write_text(
            f"policy: {policy}\nfamilies: []\ntest_families: {held_out}\nper_family: null\n"
            "valid_fraction: 0.2\ntest_fraction: 0.2\nseed: 0\n"
        )
    cg.write(root / "data" / "raw" / "mine", networks())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        command("records", "dataset=mine")
        for split in ("by_graph", "by_family"):
            own = ("dataset=mine", f"graph_split={split}")
            command("splits", *own)
            command("train", *own, "graph_model=constant", "seeds=[0,1,2]")
            command("train", *own, *SUMMED)
            command("evaluate", *own)
        command("register", "dataset=mine", "graph_split=by_graph", "hardware=myriad-vpu")
    return root


@pytest.fixture
def inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project)
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "cache"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return project


def test_labels_come_through(inside: Path) -> None:
    found = load_graphs(inside / "data" / "graphs" / "mine")
    assert len(found) == 120
    assert found.hardware == ("cortex-a76", "myriad-vpu")
    np.testing.assert_allclose(found.latency_ms, networks().latency_ms, rtol=1e-12)


def test_a_leaderboard_a_device(inside: Path) -> None:
    for split in ("by_graph", "by_family"):
        folder = inside / "data" / "reports" / f"mine-{split}"
        metrics = json.loads((folder / "metrics.json").read_text())
        assert sorted(metrics) == ["cortex-a76", "myriad-vpu"]
        for device in metrics:
            own = metrics[device]
            assert own["summed"]["test"]["mape"]["mean"] < own["constant"]["test"]["mape"]["mean"]
            assert ("test_ood" in own["summed"]) == (split == "by_family")
            assert (folder / "devices" / device / "predicted-summed.png").stat().st_size > 5000
    board = json.loads(
        (
            inside / "data/reports/mine-by_graph/devices/myriad-vpu/graph_leaderboard.json"
        ).read_text()
    )
    assert "thin" not in board["counts"]["test"], "it has no latency on this device"


def test_the_winner_is_champion_and_answers(inside: Path) -> None:
    client = registry.connect(f"sqlite:///{inside / 'mlruns' / 'mlflow.db'}")
    champion = registry.find_champion(client, "tencost-graph-myriad-vpu")
    assert champion is not None
    assert champion.tags["family"] == "summed"
    assert float(champion.tags["acc10"]) > 0.5
    bundle = load_graph_bundle(pull("models:/tencost-graph-myriad-vpu@champion"))
    graphs = networks(4, seed=3)
    found = bundle.predict_ms(graphs.graphs)
    known = np.isfinite(graphs.latency_ms[:, 1])
    error = np.abs(found[known] / graphs.latency_ms[known, 1] - 1)
    assert np.median(error) < 0.3


def test_mlflow_has_runs_and_a_pyfunc(inside: Path) -> None:
    import mlflow.pyfunc
    import pandas as pd

    client = registry.connect(f"sqlite:///{inside / 'mlruns' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tencost")
    runs = client.search_runs([experiment.experiment_id])
    stages = [run.data.tags["tencost.stage"] for run in runs]
    assert stages.count("graphs train") == 4
    assert stages.count("graphs evaluate") == 2
    trained = next(run for run in runs if run.data.tags.get("model") == "summed")
    assert trained.data.params["model.family"] == "summed"
    assert trained.data.metrics["valid/cortex-a76/mape"] > 0

    champion = registry.find_champion(client, "tencost-graph-myriad-vpu")
    assert champion is not None
    version = client.get_model_version(champion.name, str(champion.number))
    model = mlflow.pyfunc.load_model(version.source)
    graphs = networks(2, seed=3).graphs
    starts = graphs.node_start
    rows = []
    for graph in range(len(graphs)):
        own = graphs.take([graph])
        for node in range(len(own.operator)):
            inputs = own.edges[0, own.edges[1] == node]
            rows.append(
                {
                    "graph": graph,
                    "operator": ("Placeholder", "Const", "Conv2D")[own.operator[node]]
                    if own.operator[node] < 3
                    else "Relu",
                    **{
                        name: int(value)
                        for name, value in zip(
                            model.metadata.get_input_schema().input_names()[2:-1],
                            own.columns[node],
                            strict=True,
                        )
                    },
                    "inputs": " ".join(str(one) for one in inputs),
                }
            )
    assert len(rows) == starts[-1]
    found = model.predict(pd.DataFrame(rows))
    bundle = load_graph_bundle(pull("models:/tencost-graph-myriad-vpu@champion"))
    np.testing.assert_allclose(found["latency_ms"], bundle.predict_ms(graphs))


def test_the_same_training_writes_the_same_bytes(inside: Path) -> None:
    folder = inside / "data" / "models" / "mine" / "by_graph" / "summed"
    before = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    command("train", "dataset=mine", "graph_split=by_graph", *SUMMED)
    assert {
        path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    } == before


def test_registered_again_it_is_the_same_version(
    inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = inside / "mlruns" / "registered" / "mine" / "myriad-vpu.json"
    before = mark.read_bytes()
    command("register", "dataset=mine", "graph_split=by_graph", "hardware=myriad-vpu")
    assert "is the champion already" in capsys.readouterr().out
    assert mark.read_bytes() == before
    assert orjson.loads(before)["model"] == "tencost-graph-myriad-vpu"


class Killed(BaseException):
    """Ends the process, as far as the stage can tell."""


class KilledClient:
    """A registry's client that ends the process after it has written for the n-th time."""

    def __init__(self, client: Any, at: int) -> None:
        self._client, self.remaining = client, at

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not name.startswith(("set_", "log_", "update_", "create_", "delete_")):
            return method

        def write(*words: Any, **named: Any) -> Any:
            answer = method(*words, **named)
            self.remaining -= 1
            if self.remaining == 0:
                raise Killed
            return answer

        return write


def test_killed_at_any_write_a_champion_has_its_verdict(
    inside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg, _ = compose(["dataset=mine", "graph_split=by_graph", "hardware=cortex-a76"])
    load_models, connect = evaluate.load_models, registry.connect
    # The models and their predictions are the same for every n; one load of them is enough.
    models = cache(lambda: load_models(GraphData(cfg, inside), parts()))
    parts = cache(lambda: evaluate.test_parts(GraphData(cfg, inside)))
    monkeypatch.setattr(register, "load_models", lambda *_: models())
    monkeypatch.setattr(register, "test_parts", lambda *_: parts())
    writes, promoted = 0, False
    while not promoted:
        root = tmp_path / f"killed{writes}"
        root.mkdir()
        for name in ("conf", "data"):
            (root / name).symlink_to(inside / name)
        copytree(inside / "mlruns", root / "mlruns")
        client = connect(tracking.setup(root))
        killed = KilledClient(client, writes + 1)
        monkeypatch.setattr(registry, "connect", lambda _, killed=killed: killed)
        try:
            register.run(cfg, root)
        except Killed:
            writes += 1
        else:
            promoted = True
        champion = registry.find_champion(client, "tencost-graph-cortex-a76")
        assert champion is not None or not promoted
        if champion is not None:
            assert champion.tags[registry.VERDICT_TAG] == "promoted", writes
            assert "Promoted:" in champion.description, writes
            run = client.get_run(champion.run_id)
            assert run.data.tags[f"register.{champion.name}"].endswith(" promoted"), writes
    assert writes > 10


def test_mistakes_are_told(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [
        (("records", "dataset=tencost-xeon"), "tencost fetch dataset=tencost-xeon"),
        (("splits", "dataset=tencost-xeon"), "graphs"),
        (
            ("train", "dataset=mine", "graph_split=cg"),
            "tencost graphs splits dataset=mine split=cg",
        ),
        (("train", "dataset=mine", "model=none"), "model must be one of constant"),
        (("train", "dataset=mine", "seeds=[0,0]"), "seeds must be different"),
        (("register", "dataset=mine", "hardware=v100"), "cortex-a76, myriad-vpu"),
    ]
    for words, message in cases:
        with pytest.raises(SystemExit) as ended:
            command(*words)
        told = capsys.readouterr().err
        assert ended.value.code == 2
        assert message in told
        assert "Traceback" not in told


def test_models_of_another_split_are_refused(inside: Path) -> None:
    cfg, root = compose(["dataset=mine", "graph_split=by_graph", "graph_split.seed=5"])
    data = GraphData(cfg, root)
    data.__dict__["split_hash"] = "another"
    with pytest.raises(ConfigError, match="another state"):
        evaluate.load_models(data, {})


def test_status_and_leaderboard_show_it(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["register", "status"])
    shown = capsys.readouterr().out
    assert "tencost-graph-myriad-vpu" in shown
    assert "acc10" in shown
    assert "search score" not in shown
    main(["leaderboard"])
    shown = capsys.readouterr().out
    assert "families never learnt, 40 graphs of 1 families (mine, by_family)" in shown
    assert "use it: models:/tencost-graph-myriad-vpu@champion" in shown
    main(["leaderboard", "--hardware", "myriad-vpu"])
    of_one = capsys.readouterr().out
    assert "myriad-vpu: families never learnt" in of_one
    assert "cortex-a76: families never learnt" in shown
    assert "cortex-a76: families never learnt" not in of_one


def test_an_onnx_file_is_answered(
    inside: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnx
    import torch

    import tencost
    from tencost.networks.torch_modules import module_to_onnx

    layers = [
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3),
        torch.nn.GELU(),
    ]
    model = module_to_onnx("mine", torch.nn.Sequential(*layers), (torch.zeros(1, 3, 8, 8),))
    path = tmp_path / "mine.onnx"
    onnx.save(model, path)
    own = ("network=onnx", f"network.path={path}", "hardware=myriad-vpu")
    command("latency", *own)
    shown = capsys.readouterr().out
    assert "mine on myriad-vpu: " in shown
    assert "90% interval" not in shown
    assert "No interval: how far off the model is on what no network learnt from has" in shown
    assert "no network learnt from has it" in shown
    command("latency", *own, "--json")
    values = json.loads(capsys.readouterr().out)
    assert (values["low"], values["high"]) == (None, None)
    assert values["basis"].startswith("No interval: ")
    assert values["model"] == "models:/tencost-graph-myriad-vpu@champion"
    loaded = tencost.load_graph_model("models:/tencost-graph-myriad-vpu@champion")
    assert loaded.predict_ms(tencost.graphs_of(path))[0] == pytest.approx(values["ms"])

    for words, message in (
        (("latency", *own[:2], "hardware=adreno-640"), "tencost-graph-adreno-640"),
        (("latency", "network=onnx", "network.path=none.onnx", "hardware=myriad-vpu"), "none.onnx"),
        (
            ("latency", *own[:2], "hardware=cortex-a76", "model_uri=models:/x@champion"),
            "tencost-graph-myriad-vpu",
        ),
    ):
        with pytest.raises(SystemExit) as ended:
            command(*words)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


def test_a_network_beyond_the_data_gets_the_interval_of_families_held_out(
    inside: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A dilation, which no graph can state, is named, and then there is no interval."""
    import onnx
    import torch

    import tencost
    from tencost.networks.torch_modules import module_to_onnx

    root = tmp_path / "project"
    copytree(
        inside,
        root,
        ignore=lambda folder, _: {"models", "reports"} if folder.endswith("data") else (),
    )
    monkeypatch.chdir(root)
    own = ("dataset=mine", "graph_split=by_family", "graph_split.test_families=[thin,wide]")
    command("splits", *own)
    command("train", *own, *SUMMED[:-2], "graph_model.num_rounds=20", "seeds=[0]")
    command("evaluate", *own)
    command("register", *own, "hardware=cortex-a76")
    capsys.readouterr()

    def answer(dilation: int, *options: str) -> str:
        layer = torch.nn.Conv2d(3, 48, 3, padding=dilation, dilation=dilation, bias=False)
        model = module_to_onnx(
            "mine", torch.nn.Sequential(layer, torch.nn.ReLU()), (torch.zeros(1, 3, 8, 8),)
        )
        onnx.save(model, root / "mine.onnx")
        command(
            "latency",
            "network=onnx",
            "network.path=mine.onnx",
            "hardware=cortex-a76",
            f"model_uri={uri}",
            *options,
        )
        return capsys.readouterr().out

    client = registry.connect(f"sqlite:///{root / 'mlruns' / 'mlflow.db'}")
    (version,) = registry.list_versions(client, "tencost-graph-cortex-a76")
    uri = version.uri
    known = load_graph_bundle(pull(uri)).info.log_error["cortex-a76"]
    values = json.loads(answer(1, "--json"))
    assert values["basis"].endswith("from errors on thin, wide.")
    assert (
        np.log(values["low"] / values["ms"])
        < known[0]
        < known[1]
        < np.log(values["high"] / values["ms"])
    )
    dilated = answer(2)
    assert "No interval: " in dilated
    assert "Conv2D with dilation 2x2 (1 times): a graph cannot state this" in dilated
    with pytest.warns(UserWarning, match="Conv2D with dilation 2x2"):
        tencost.graphs_of(root / "mine.onnx")


def test_an_onnx_file_is_answered_where_only_tencost_latency_is_installed(
    inside: Path, tmp_path: Path
) -> None:
    """By the champion, of trees, and by an additive model; neither torch nor TVM nor polars can be imported."""
    import onnx
    import torch

    from tencost.networks.torch_modules import module_to_onnx

    layers = (torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3))
    model = module_to_onnx("mine", torch.nn.Sequential(*layers), (torch.zeros(1, 3, 8, 8),))
    onnx.save(model, tmp_path / "mine.onnx")
    own = ("dataset=mine", "graph_split=by_graph", "graph_model=additive", "graph_model.members=1")
    quick = ("graph_model.steps=30", "graph_model.hidden=8", "graph_model.num_threads=1")
    command("train", *own, *quick, "seeds=[0]", f"paths.models={tmp_path / 'models'}")
    (additive,) = (path.parent for path in (tmp_path / "models").rglob("bundle.json"))

    environment = environment_of(tmp_path, "latency", also_absent=ABSENT)

    def answers(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    path = str(tmp_path / "mine.onnx")
    for uri in ("models:/tencost-graph-myriad-vpu@champion", str(additive)):
        words = ("network=onnx", f"network.path={path}", "hardware=myriad-vpu", f"model_uri={uri}")
        told = json.loads(answers("-m", "tencost.cli", "graphs", "latency", *words, "--json"))
        assert told["ms"] > 0
        assert bool(told["costliest"]) == (uri == str(additive))
        script = (
            "import sys, tencost; uri, path = sys.argv[1:]; "
            "model = tencost.load_graph_model(uri); "
            "print(model.predict_ms(tencost.graphs_of(path), 'myriad-vpu')[0]); "
            f"assert not {ABSENT!r} & set(sys.modules)"
        )
        assert float(answers("-c", script, uri, path)) == pytest.approx(told["ms"])
