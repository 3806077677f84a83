"""A model fitted once more on every record: what stays aside, and whether anything does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tencost.models.programs.bundle import load_bundle, read_info
from tencost.models.programs.families.blend import BlendConfig, BlendRanker
from tencost.models.programs.families.mlp import MlpConfig
from tencost.models.programs.families.xgb import XgbConfig
from tencost.train.data import Data
from tencost.train.fit import seeds
from tencost.train.fit.refit import fit_all_parts, stops_early


def test_who_stops_early() -> None:
    assert not stops_early(XgbConfig(family="xgb"))
    assert stops_early(XgbConfig(family="xgb", early_stopping_rounds=10))
    assert stops_early(MlpConfig(family="mlp", patience=3))
    members: list[dict[str, Any]] = [{"family": "xgb"}, {"family": "mlp"}]
    assert not stops_early(BlendConfig(family="blend", members=members))
    members[1]["patience"] = 3
    assert stops_early(BlendConfig(family="blend", members=members))


@pytest.mark.parametrize(("patience", "records"), [(0, 60), (10, 48)])
def test_the_validation_part_stays_aside_where_it_ends_the_training(
    toy_project: Path,
    toy_config: Any,
    train_toy: Callable[..., Path],
    tmp_path: Path,
    patience: int,
    records: int,
) -> None:
    """60 records: 24 of the test side, 24 to train on and 12 to validate."""
    settings = XgbConfig(family="xgb", reads=["toy"], num_rounds=20, early_stopping_rounds=patience)
    twin = load_bundle(train_toy("xgb", settings, (3,)) / "seed3")
    found = read_info(fit_all_parts(Data(toy_config, toy_project), twin, tmp_path / "again"))
    assert found.refit["records"] == records
    assert ("valid" in found.refit["parts"]) is (patience == 0)
    assert found.refit["networks"] == ["held_out", "seen"]
    assert (found.calibration, found.seed) == (twin.info.calibration, 3)
    assert twin.info.refit == {}
    assert "refit" not in (twin.folder / "bundle.json").read_text()
    assert load_bundle(tmp_path / "again").info == found


def test_members_of_a_blend_are_fitted_side_by_side_to_the_same_scores(
    toy_project: Path,
    toy_config: Any,
    train_toy: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = [{"family": "xgb", "num_rounds": 10}, {"family": "mlp", "hidden": 8, "epochs": 3}]
    settings = BlendConfig(family="blend", reads=["toy"], members=members)
    twin = load_bundle(train_toy("blend", settings, (3,)) / "seed3")
    data = Data(toy_config, toy_project)
    here = read_info(fit_all_parts(data, twin, tmp_path / "here"))

    def fitted_here(*_: object) -> None:
        raise AssertionError("fitted in this process")

    monkeypatch.setattr(seeds, "MANY_PROGRAMS", 60)
    monkeypatch.setattr(seeds, "_fit", fitted_here)
    toy_config.jobs = 2
    assert read_info(fit_all_parts(data, twin, tmp_path / "workers")).files == here.files
    whole = BlendRanker(settings, twin.info.feature_spec)
    learnt = data.samples(["toy-1c"], "train")
    assert here.refit["records"] > len(learnt)
    whole.fit(*(data.samples(["toy-1c"], part) for part in ("train", "valid")), seed=3, log=print)
    watched = data.samples(["toy-1c"], "valid").features
    assert whole.predict(watched).tolist() == twin.ranker.predict(watched).tolist()
