"""A model fitted once more on every record: what stays aside, and whether anything does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tencost.train.bundle import load_bundle, read_info
from tencost.train.data import Data
from tencost.train.families.blend import BlendConfig
from tencost.train.families.mlp import MlpConfig
from tencost.train.families.xgb import XgbConfig
from tencost.train.refit import refit, stops_early


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
    found = read_info(refit(Data(toy_config, toy_project), twin, tmp_path / "again"))
    assert found.refit["records"] == records
    assert ("valid" in found.refit["parts"]) is (patience == 0)
    assert found.refit["networks"] == ["held_out", "seen"]
    assert (found.calibration, found.seed) == (twin.info.calibration, 3)
    assert twin.info.refit == {}
    assert "refit" not in (twin.folder / "bundle.json").read_text()
    assert load_bundle(tmp_path / "again").info == found
