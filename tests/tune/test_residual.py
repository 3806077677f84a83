from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xgboost
from hypothesis import given
from hypothesis import strategies as st

from tencost.errors import BundleError, TuneError
from tencost.features.rows.ragged import Ragged
from tencost.tune.residual import Residual, aggregate, squash


def learnt(seed: int = 0, num: int = 40) -> tuple[Residual, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((num, 6)).astype(np.float32)
    base = rng.uniform(0.2, 0.8, num)
    latency = np.exp(features[:, 0].astype(np.float64)) * 1e-3
    residual = Residual()
    residual.add("a", features, base, latency)
    return residual, features, base, latency


@given(st.lists(st.floats(-1.0, 1.5), min_size=2, max_size=30))
def test_squash_keeps_the_order_and_the_range(values: list[float]) -> None:
    array = np.array(values)
    squashed = squash(array)
    assert ((squashed > 0) & (squashed <= 1)).all()
    order = np.argsort(array, kind="stable")
    assert (np.diff(squashed[order]) >= 0).all()
    inside = (array >= 0.02) & (array <= 0.98)
    np.testing.assert_array_equal(squashed[inside], array[inside])


def test_it_corrects_the_order_of_a_base_that_knows_nothing() -> None:
    residual, features, base, latency = learnt()
    assert residual.apply(features, base) is base
    for _ in range(20):
        residual.add("a", features, base, latency)
    assert residual.fit()
    before = np.corrcoef(np.argsort(np.argsort(base)), np.argsort(np.argsort(-latency)))[0, 1]
    scores = residual.apply(features, base)
    after = np.corrcoef(np.argsort(np.argsort(scores)), np.argsort(np.argsort(-latency)))[0, 1]
    assert after > max(0.5, before + 0.3)


def test_too_few_programs_teach_nothing() -> None:
    residual, features, base, _ = learnt(num=3)
    assert not residual.fit()
    assert not residual.trained
    assert residual.weight == 0
    assert residual.apply(features, base) is base
    assert not Residual().fit()


def test_a_group_whose_programs_all_failed_teaches_nothing() -> None:
    residual, features, base, _ = learnt()
    assert residual.fit()
    alone = residual.apply(features, base)
    residual.add("failed", features, base, np.full(len(base), np.nan))
    assert residual.fit()
    np.testing.assert_array_equal(residual.apply(features, base), alone)


def test_failures_are_worse_than_the_slowest() -> None:
    residual, features, base, latency = learnt()
    broken = features[:, 1] > 0.8
    latency = np.where(broken, np.nan, 1e-3)
    residual = Residual()
    for _ in range(30):
        residual.add("a", features, base, latency)
    residual.fit()
    scores = residual.apply(features, np.full(len(base), 0.5))
    assert scores[broken].mean() < scores[~broken].mean()


def test_scores_do_not_depend_on_the_batch() -> None:
    residual, features, base, _ = learnt()
    residual.fit()
    together = residual.apply(features, base)
    alone = [residual.apply(features[i : i + 1], base[i : i + 1])[0] for i in range(len(base))]
    np.testing.assert_array_equal(together, alone)


def test_state_round_trip(tmp_path: Path) -> None:
    residual, features, base, latency = learnt()
    residual.fit()
    residual.save(tmp_path / "state")
    loaded, _ = Residual.load(tmp_path / "state")
    assert len(loaded) == len(residual)
    assert loaded.weight == residual.weight
    np.testing.assert_array_equal(loaded.apply(features, base), residual.apply(features, base))
    for one in (residual, loaded):
        one.add("a", features, base, latency * 2)
        one.fit()
    np.testing.assert_array_equal(loaded.apply(features, base), residual.apply(features, base))


def test_an_untrained_state_round_trips(tmp_path: Path) -> None:
    Residual().save(tmp_path / "state")
    assert len(Residual.load(tmp_path / "state")[0]) == 0


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04K\x01."])
def test_what_is_no_state_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(TuneError, match="state of a tencost cost model"):
        Residual.load(tmp_path / "state")


def test_pickles_in_a_state_are_refused(tmp_path: Path) -> None:
    Residual().save(tmp_path / "state")
    with np.load(tmp_path / "state") as found:
        arrays = dict(found)
    arrays["base"] = np.array([{"an": "object"}], dtype=object)
    with (tmp_path / "evil").open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(TuneError, match="allow_pickle"):
        Residual.load(tmp_path / "evil")


def test_another_version_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "state").open("wb") as file:
        np.savez(file, version=np.int64(99))
    with pytest.raises(TuneError, match="version 1, found 99"):
        Residual.load(tmp_path / "state")


def test_a_correction_is_not_applied_by_another_xgboost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    residual, *_ = learnt()
    residual.fit()
    residual.save(tmp_path / "state")
    monkeypatch.setattr(xgboost, "__version__", "3.0.5")
    with pytest.raises(BundleError, match=r"expected XGBoost .* found 3\.0\.5"):
        Residual.load(tmp_path / "state")


def test_aggregate_by_hand() -> None:
    rows = Ragged(np.array([[1, 5], [3, 2], [-1, -1]], np.float32), np.array([0, 2, 2, 3]))
    expected = [[4, 7, 3, 5, 2], [0, 0, 0, 0, 0], [-1, -1, -1, -1, 1]]
    np.testing.assert_array_equal(aggregate(rows), np.array(expected, np.float32))
