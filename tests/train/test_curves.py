from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.image import imread

from tencost.tracking.runs import MetricPoint
from tencost.train.fit.curves import mean_curves, plot_curves


def curve(name: str, *values: float) -> list[MetricPoint]:
    return [MetricPoint(name, value, step) for step, value in enumerate(values, 1)]


def test_a_mean_is_of_the_seeds_that_reached_the_step() -> None:
    curves = [curve("a", 1.0, 2.0), curve("a", 3.0)]
    assert mean_curves(curves) == [MetricPoint("a", 2.0, 1), MetricPoint("a", 2.0, 2)]


def test_each_figure_has_a_panel_whoever_logged_it(tmp_path: Path) -> None:
    seeds = [
        [*curve("train/loss", 3.0, 2.0, 1.0), *curve("train/valid_pairwise_model1", 0.6, 0.7)],
        [*curve("train/loss", 4.0, 2.5), *curve("train/valid_pairwise", 0.5, 0.8)],
    ]
    path = plot_curves(seeds, "xgb · tiles · \N{GREEK SMALL LETTER LAMDA}-1c", tmp_path)
    assert path == tmp_path / "learning_curves.png"
    height, width = imread(path).shape[:2]
    assert width > 1.8 * height  # two panels beside each other, not three


@pytest.mark.parametrize("seeds", [[], [[]], [curve("train/loss", 1.0)]])
def test_nothing_is_drawn_of_what_is_no_curve(
    seeds: list[list[MetricPoint]], tmp_path: Path
) -> None:
    assert plot_curves(seeds, "random", tmp_path) is None
    assert not list(tmp_path.iterdir())
