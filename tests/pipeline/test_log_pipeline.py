"""Logs of Ansor, AutoTVM and T4 through the stages: records, features, splits, a trained model, a leaderboard."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from tencost.config import Config
from tencost.config.composition import compose
from tencost.evaluate import stage as evaluate
from tencost.features import stage as features
from tencost.records import stage as records
from tencost.records.fetch import stage as fetch
from tencost.splits import stage as splits
from tencost.store.tables import load_records, load_tasks, load_workloads
from tencost.train import programs as train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn_figures")]

CONF = Path(__file__).resolve().parents[2] / "conf"


def write_ansor(folder: Path) -> None:
    """Write logs of twelve layers whose time falls with the threads and rises with the work of each."""
    chance = random.Random(0)
    folder.mkdir(parents=True)
    for layer in range(12):
        size = 64 << (layer % 6)
        name = f"layer{'abcdefghijkl'[layer]}"
        lines = []
        for number in range(30):
            threads, points = 2 ** chance.randint(0, 7), chance.randint(1, 16)
            cost = 1e-6 * size * (points + 3) / threads * chance.uniform(0.95, 1.05)
            steps = [
                ["SP", 2, 0, size * 16, [threads, points], 1],
                ["AN", 2, 1, 6],
                ["PR", 2, 0, f"auto_unroll_max_step${number}"],
            ]
            key = json.dumps([name, size, size, 3])
            task = [
                key,
                "cuda -keys=cuda,gpu",
                [80, 16, 64, 49152, 2147483647, 1024, 8, 32],
                "",
                0,
                [],
            ]
            lines.append(
                json.dumps(
                    {"i": [task, [[], steps]], "r": [[cost], 0, 1.0, 1637575039], "v": "v0.6"}
                )
            )
        (folder / f"{name}.json").write_text("\n".join(lines) + "\n")


def write_autotvm(folder: Path) -> None:
    folder.mkdir(parents=True)
    for layer in range(10):
        size = 32 << layer
        lines = []
        for number in range(20):
            tensors = [["TENSOR", [size, 64], "float32"], ["TENSOR", [64, 64], "float32"]]
            entity = [["tile_x", "sp", [-1, number + 1]], ["unroll", "ot", number % 2]]
            lines.append(
                json.dumps(
                    {
                        "input": [
                            "cuda -keys=cuda,gpu",
                            f"dense_{'abcdefghij'[layer]}.gpu",
                            tensors,
                            {},
                        ],
                        "config": {"index": number, "code_hash": None, "entity": entity},
                        "result": [[1e-4 * (number + 1)], 0, 1.0, 1649992289.5],
                        "version": 0.2,
                        "tvm_version": "0.8.0",
                    }
                )
            )
        (folder / f"{layer}.log").write_text("\n".join(lines) + "\n")


def write_t4(folder: Path) -> None:
    """Write T4 results of two GPUs: twelve kernels, faster with more threads, and by far with the layout NCHW."""
    for gpu, factor in (("a100", 1.0), ("a4000", 2.0)):
        place = folder / "measure_records" / gpu
        place.mkdir(parents=True)
        for kernel in range(12):
            results = []
            for number in range(24):
                threads, layout = 32 << number % 4, ("NHWC", "NCHW", "CHWN")[number // 4 % 3]
                time = (
                    factor
                    * (kernel + 1)
                    * (3 if layout != "NCHW" else 1)
                    * (1 + 64 / threads + number // 12)
                )
                configuration = {"threads": threads, "layout": layout, "use_padding": number // 12}
                results.append(
                    {
                        "configuration": configuration,
                        "times": {"compilation": 900.0, "runtimes": [time, time * 1.01]},
                        "invalidity": "correct" if number else "runtime",
                        "correctness": 1,
                    }
                )
            document = {"metadata": {"timeunit": "milliseconds"}, "results": results}
            name = f"kernel{'abcdefghijkl'[kernel]}_T4.json"
            (place / name).write_text(json.dumps(document, indent=1))


def configured(root: Path, *words: str) -> Config:
    cfg, _ = compose(
        [
            "experiment=roller_v100",
            "dataset.name=logs",
            f"dataset.source={root / 'logs'}",
            "split.test_fraction=0.3",
            *words,
        ]
    )
    return cfg


def through_the_stages(root: Path, cfg: Config) -> None:
    for stage in (fetch, records, features, splits, train, evaluate):
        stage.run(cfg, root)


def scored(root: Path, cfg: Config) -> dict[str, float]:
    """Return the means of the metrics in the leaderboard's row of xgb."""
    path = root / cfg.paths.reports / "logs" / cfg.hardware.name / "leaderboard.json"
    (row,) = [item for item in json.loads(path.read_text())["rows"] if item["family"] == "xgb"]
    return {name: value["mean"] for name, value in row["metrics"].items()}


@pytest.fixture
def root(tmp_path: Path, mlflow_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(CONF.parent)
    (tmp_path / "mlruns").mkdir()
    shutil.copy(mlflow_database, tmp_path / "mlruns")
    return tmp_path


@pytest.mark.parametrize("kind", ["ansor_tiles", "ansor_steps"])
def test_ansor_logs_train_a_model_that_ranks_held_out_layers(root: Path, kind: str) -> None:
    write_ansor(root / "logs")
    cfg = configured(root, "model=xgb", f"features={kind}", "model.num_rounds=40")
    through_the_stages(root, cfg)
    source = root / cfg.paths.records / "logs"
    assert load_records(source).height == 360
    assert load_tasks(source)["network"].unique().to_list() == ["logs"]
    about = json.loads(load_workloads(source)["mod_json"][0])
    assert about["workload"].startswith("auto_scheduler.layer")
    metrics = scored(root, cfg)
    assert metrics["pairwise"] > 0.8
    assert metrics["top5"] > 0.5


def test_autotvm_logs_train_a_model_on_their_knobs(root: Path) -> None:
    write_autotvm(root / "logs")
    cfg = configured(root, "model=xgb", "features=configuration", "model.num_rounds=40")
    through_the_stages(root, cfg)
    assert scored(root, cfg)["pairwise"] > 0.8


def test_t4_results_of_two_gpus_train_a_model_each(root: Path) -> None:
    """A layout is a text: its code separates the fast one from the others on kernels that were held out."""
    write_t4(root / "logs")
    for gpu in ("a100", "a4000"):
        words = [f"hardware.name={gpu}", "model=xgb", "features=configuration"]
        cfg = configured(root, *words, "model.num_rounds=40")
        through_the_stages(root, cfg)
        assert scored(root, cfg)["pairwise"] > 0.9
    records = load_records(root / cfg.paths.records / "logs")
    assert records["hardware"].value_counts().sort("hardware").rows() == [
        ("a100", 288),
        ("a4000", 288),
    ]
