from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tencost.config import Config
from tencost.errors import RegistryError
from tencost.measure import stage, steering
from tencost.measure.collection import Collection

pytestmark = pytest.mark.tvm


def evolved_by(root: Path) -> set[str]:
    collection = Collection(root / "measured" / "small")
    found = set()
    for task in collection.tasks(0.0):
        origin = collection.origin(task)
        assert origin is not None
        found |= {text for text in origin.origins if text != "random"}
    return found


def test_without_records_the_search_is_blind_and_says_so(
    small_root: Path, configured: Callable[..., Config], capfd: pytest.CaptureFixture[str]
) -> None:
    stage.programs(configured("measure.programs=12", "measure.evolved_share=0.5"), small_root)
    assert evolved_by(small_root) == {"evolved: mutation alone"}
    assert "mutated blindly" in " ".join(capfd.readouterr().err.split())


def test_a_model_is_fitted_to_what_was_measured(
    small_root: Path, configured: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "MIN_RECORDS", 10)
    stage.run(configured("measure.pack=false"), small_root)
    stage.programs(configured("measure.programs=12", "measure.evolved_share=0.5"), small_root)
    assert evolved_by(small_root) == {"evolved: xgb on tiles of 12 records"}


def test_a_registered_model_steers(
    small_root: Path, configured: Callable[..., Config], make_bundle: Callable[[str], Path]
) -> None:
    bundle = str(make_bundle("xgb"))
    cfg = configured("measure.programs=10", "measure.evolved_share=0.4", f"model_uri={bundle}")
    stage.programs(cfg, small_root)
    assert evolved_by(small_root) == {"evolved: xgb"}
    unknown = "model_uri=models:/nothing@champion"
    with pytest.raises(RegistryError):
        stage.programs(
            configured("measure.programs=20", "measure.evolved_share=0.4", unknown), small_root
        )


def test_a_steered_search_finds_what_the_model_likes(small_root: Path) -> None:
    """The evolved programs score higher with the model that steered than random ones do."""
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

    from tencost.config import FeaturesConfig
    from tencost.features.extractor import make_extractor, spec_for
    from tencost.measure.programs import ProgramSpace
    from tencost.workers.hardware import detect_host

    spec = spec_for(FeaturesConfig(name="tiles", kind="tiles"))
    extractor = make_extractor(spec)
    column = spec.columns.index("tile_vector_bits") if "tile_vector_bits" in spec.columns else 5

    def liking(rows: object) -> np.ndarray:
        values = np.asarray([rows[index][0, column] for index in range(len(rows))])  # type: ignore[index,arg-type]
        return np.asarray(1.0 / (1.0 + np.exp(-values)), np.float64)

    task = Collection(small_root / "measured" / "small").tasks(0.0)[-1]
    model = steering.ScoringModel(extractor, liking)
    space = ProgramSpace(
        task.mod_json, detect_host().target, 5, population=64, generations=2, model=model
    )
    known: set[int] = set()
    scores = [
        np.mean(liking(extractor.extract(None, [MeasureCandidate(one, []) for one in sample])))
        for sample in (space.random(24, known).schedules, space.evolved(12, known).schedules)
    ]
    assert scores[1] > scores[0]
