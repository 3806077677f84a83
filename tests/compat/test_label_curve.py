"""Labels against per cent of a native model: on made-up devices, and as a command's run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made_devices import CONFIG, SPEC, made_pool, made_source, programs
from tencost.adapt.choice import diverse
from tencost.adapt.fitting import SourceModel
from tencost.adapt.pool import LabelPool
from tencost.compat.curves import label_curve, label_curve_report, label_curve_stage
from tencost.config import AdaptMode
from tencost.evaluate.metrics import Coverage
from tencost.evaluate.truth import Truth, TruthTask
from tencost.features.rows.ragged import Ragged
from tencost.models.programs.families.xgb import XgbConfig, XgbRanker
from tencost.register import registry
from toy_project import make_toy_project, toy_config, train_toy

TOY_XGB = XgbConfig(family="xgb", reads=["toy"], num_rounds=20, num_models=1, min_child_weight=0.0)


@pytest.fixture(scope="module")
def source() -> SourceModel:
    return made_source()


@pytest.fixture(scope="module")
def pool(source: SourceModel) -> LabelPool:
    return made_pool(source)


def made_up_truth(seed: int) -> tuple[Truth, Ragged]:
    features, seconds, group = programs(seed, 6, second=2.0)
    names = np.asarray([f"r{i:04d}" for i in range(len(group))])
    tasks = tuple(
        TruthTask("net", f"w{task}", 1.0, np.flatnonzero(group == task)) for task in range(6)
    )
    return Truth(
        names, names, seconds, tasks, {"net": Coverage(6, 6, 1.0, len(group), 0)}
    ), features


def test_a_curve_rises_to_what_a_native_model_reaches(
    source: SourceModel, pool: LabelPool, tmp_path: Path
) -> None:
    test = made_up_truth(5)
    points = []
    for seed in (0, 1):
        own = pool.labelled(np.arange(len(pool)))
        ranker = XgbRanker(CONFIG, SPEC)
        ranker.fit(own, own, seed=seed, log=lambda *_: None)
        figures = label_curve.judged(ranker, *test)
        points.append(label_curve.Point(label_curve.NATIVE, len(own), seed, figures))
        points += label_curve.curve(
            pool,
            source,
            test,
            [0, 50, 10_000],
            [AdaptMode.residual, AdaptMode.scratch],
            lambda pool, _, count, seed: diverse(pool, pool.features.values, count, 4, seed),
            seed,
        )
    found = label_curve.summarized(points)
    assert [(one.mode, one.labels) for one in found if one.mode != "scratch"] == [
        ("native", 640),
        ("residual", 0),
        ("residual", 50),
        ("residual", 640),
    ]
    assert {one.labels for one in found if one.mode == "scratch"} == {50, 640}
    share = {one.labels: one.share["pairwise"].mean for one in found if one.mode == "residual"}
    assert share[0] < share[50] < share[640]
    assert share[640] > 97
    text = label_curve_report.markdown(found)
    assert text.count("\n") == 2 + len(found)
    assert "| native | 640 |" in text
    label_curve_report.write_csv(found, tmp_path / "curve.csv")
    assert len((tmp_path / "curve.csv").read_text().splitlines()) == 1 + len(found)
    label_curve_report.plot(found, tmp_path / "curve.png", "old to new")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_curve_is_a_table_a_plot_and_a_run(
    tmp_path: Path, mlflow_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    make_toy_project(tmp_path, mlflow_database)
    cfg, root = toy_config(), tmp_path
    cfg = replace(
        cfg,
        model_uri=str(train_toy(root, "xgb", TOY_XGB, hardware="old-1c")),
        seeds=[0, 1],
        adapt=replace(cfg.adapt, counts=[0, 12, 500]),
    )
    folder = label_curve_stage.run(cfg, root)
    assert sorted(path.name for path in folder.iterdir()) == ["curve.csv", "curve.md", "curve.png"]
    text = (folder / "curve.md").read_text()
    assert "| native | 24 |" in text
    assert "| scratch | 36 |" in text
    client = registry.connect(f"sqlite:///{root}/mlruns/mlflow.db")
    experiment = client.get_experiment_by_name("tencost")
    (run,) = client.search_runs([experiment.experiment_id], "tags.`tencost.stage` = 'adapt curve'")
    history = client.get_metric_history(run.info.run_id, "adapt/residual/pairwise")
    assert sorted(item.step for item in history) == [0, 12, 36]
    assert {item.path for item in client.list_artifacts(run.info.run_id, "adapt")} == {
        f"adapt/curve.{kind}" for kind in ("csv", "md", "png")
    }
