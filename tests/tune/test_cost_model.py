from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tencost.errors import BundleError, RegistryError
from tencost.features.rows.ragged import Ragged
from tencost.models.programs.bundle import load_bundle
from tencost.models.programs.bundle.calibration import LOWEST_SCORE, Calibration
from tencost.models.programs.ranker import Ranker
from tencost.tune.guard import Arm
from tencost.tune.residual import Residual, aggregate

pytestmark = pytest.mark.tvm

Make = Callable[[str], Path]


def results(latencies: list[float | None]) -> list[Any]:
    from tvm.s_tir.meta_schedule.runner import RunnerResult

    return [
        RunnerResult(None, "run_error: no") if s is None else RunnerResult([s], None)
        for s in latencies
    ]


@pytest.fixture
def model(make_bundle: Make) -> Any:
    from tencost.tune.cost_model import load_cost_model

    return load_cost_model(make_bundle("xgb"))


def with_extractor(model: Any, wrap: Callable[[Any], Any]) -> Any:
    model._inst._extractor = wrap(model._inst._extractor)
    return model


class Refusing:
    """An extractor that raises for some candidates, as TVM does for programs that it cannot lower."""

    def __init__(self, inner: Any, refused: list[Any]) -> None:
        self.spec = inner.spec
        self._inner = inner
        self._refused = refused

    def extract(self, context: Any, candidates: Any) -> Ragged:
        if any(candidate.same_as(bad) for candidate in candidates for bad in self._refused):
            raise RuntimeError("cannot lower")
        return self._inner.extract(context, candidates)


def test_contract_of_scores_over_every_family(
    family: str, make_bundle: Make, context: Any, candidates: list[Any]
) -> None:
    from tencost.tune.cost_model import load_cost_model

    scores = load_cost_model(make_bundle(family)).predict(context, candidates)
    assert scores.dtype == np.float64
    assert scores.shape == (len(candidates),)
    assert (scores > 0).all()
    assert (scores <= 1).all()
    fresh = load_cost_model(make_bundle(family))
    alone = [fresh.predict(context, [candidate])[0] for candidate in candidates[:6]]
    np.testing.assert_array_equal(alone, scores[:6])
    np.testing.assert_array_equal(fresh.predict(context, candidates), scores)


def test_a_whole_round_of_2560_candidates(model: Any, context: Any, candidates: list[Any]) -> None:
    many = candidates * (2560 // len(candidates))
    scores = model.predict(context, many)
    np.testing.assert_array_equal(scores, np.tile(scores[: len(candidates)], 80))


def test_no_candidates_no_scores(model: Any, context: Any) -> None:
    assert model._inst.predict(context, []).shape == (0,)  # TVM's own wrapper refuses an empty list


def test_an_all_negative_ranker_still_steers_the_search(
    make_bundle: Make, context: Any, candidates: list[Any]
) -> None:
    from tencost.features.extractor import make_extractor
    from tencost.tune.cost_model import TencostModel

    class Negative:
        family = "xgb"

        def predict(self, features: Ragged) -> Any:
            return -6.0 - features.segment_sum().astype(np.float64).sum(axis=1) / 1e3

    bundle = load_bundle(make_bundle("xgb"))
    info = dataclasses.replace(bundle.info, calibration=Calibration())
    negative = dataclasses.replace(bundle, ranker=cast(Ranker, Negative()), info=info)
    model = TencostModel(negative, make_extractor(info.feature_spec, {}))
    scores = model.predict(context, candidates)
    raw = Negative().predict(make_extractor(info.feature_spec, {}).extract(context, candidates))
    assert (raw < 0).all()
    assert (scores > 0).all()
    np.testing.assert_array_equal(np.argsort(scores, kind="stable"), np.argsort(raw, kind="stable"))
    assert len(np.unique(scores)) == len(np.unique(raw)) > 1
    assert scores.max() / scores.sum() < 0.9  # parents are drawn by share: no single one takes all


def test_a_model_that_is_wrong_about_everything_costs_one_round(
    model: Any, context: Any, candidates: list[Any]
) -> None:
    believed = model.predict(context, candidates)
    order = np.argsort(np.argsort(believed))
    latencies: list[float | None] = [
        float(1e-4 * (1 + rank)) for rank in order
    ]  # what it likes best is slowest
    half = len(candidates) // 2
    model.update(context, candidates[:half], results(latencies[:half]))
    first = model.history[-1]
    assert (first.arm, first.next_arm) == (Arm.residual, Arm.scratch)
    assert first.spearman < -0.8
    model.update(context, candidates[half:], results(latencies[half:]))
    second = model.history[-1]
    assert second.arm is Arm.scratch
    assert second.spearman == second.scratch_spearman > second.base_spearman
    assert second.scratch_spearman > 0.2, (
        "programs that no arm has seen are ranked by what was measured"
    )
    scores = model.predict(context, candidates)
    assert ((scores > 0) & (scores <= 1)).all()


def test_an_arm_that_has_learnt_nothing_does_not_rank(
    model: Any, context: Any, candidates: list[Any]
) -> None:
    few = candidates[:4]
    believed = model.predict(context, few)
    order = np.argsort(np.argsort(believed))
    slowest_first = results([float(1e-4 * (1 + rank)) for rank in order])
    model.update(context, few, slowest_first)
    assert model.history[-1].next_arm is Arm.scratch
    np.testing.assert_array_equal(model.predict(context, few), believed)
    model.update(context, few, slowest_first)
    assert model.history[-1].arm is Arm.residual


def test_a_frozen_model_ranks_alone(make_bundle: Make, context: Any, candidates: list[Any]) -> None:
    from tencost.tune.cost_model import load_cost_model

    model = load_cost_model(make_bundle("xgb"), frozen=True)
    believed = model.predict(context, candidates)
    model.update(context, candidates, results([1e-3 * (1 + score) for score in believed]))
    assert (model.history[-1].arm, model.history[-1].next_arm) == (Arm.registered, Arm.registered)
    np.testing.assert_array_equal(model.predict(context, candidates), believed)


def test_what_was_learnt_comes_back_for_all_arms(
    model: Any, context: Any, candidates: list[Any], tmp_path: Path
) -> None:
    model.update(context, candidates, results([1e-4 * (1 + n) for n in range(len(candidates))]))
    model.save(str(tmp_path / "state.npz"))
    before = model._inst._scratch.alone(aggregate(model._inst._scored(context, candidates)[0]))
    model._inst._scratch = Residual()
    model.load(str(tmp_path / "state.npz"))
    after = model._inst._scratch.alone(aggregate(model._inst._scored(context, candidates)[0]))
    np.testing.assert_array_equal(after, before)


def test_a_candidate_that_cannot_be_featurized_is_last_and_stops_nothing(
    model: Any, context: Any, candidates: list[Any]
) -> None:
    expected = model.predict(context, candidates)
    model._inst._cache.clear()
    bad = [candidates[3], candidates[17]]
    with_extractor(model, lambda inner: Refusing(inner, bad))
    scores = model.predict(context, candidates)
    good = np.setdiff1d(np.arange(len(candidates)), [3, 17])
    np.testing.assert_array_equal(scores[good], expected[good])
    assert (scores[[3, 17]] == LOWEST_SCORE).all()
    assert scores[good].min() > LOWEST_SCORE > 0
    model.update(context, candidates, results([1e-3] * len(candidates)))
    assert (model.predict(context, candidates)[[3, 17]] == LOWEST_SCORE).all()


def test_where_none_can_be_read_it_is_said_why(
    model: Any, context: Any, candidates: list[Any]
) -> None:
    with_extractor(model, lambda inner: Refusing(inner, candidates))
    with pytest.warns(UserWarning, match="could be read.*cannot lower"):
        scores = model.predict(context, candidates)
    assert (scores == LOWEST_SCORE).all()


def test_all_candidates_failing_teach_nothing(
    model: Any, context: Any, candidates: list[Any]
) -> None:
    before = model.predict(context, candidates)
    model.update(context, candidates, results([None] * len(candidates)))
    np.testing.assert_array_equal(model.predict(context, candidates), before)
    assert model.history[-1].num_failed == len(candidates)
    assert model.history[-1].spearman is None


def test_a_batch_that_did_not_build_is_no_round(model: Any, context: Any) -> None:
    model.update(context, [], [])
    assert model.history == []


def test_tvms_sentinel_of_a_failure_is_no_latency(
    model: Any, context: Any, candidates: list[Any]
) -> None:
    model.update(context, candidates, results([1e10] * len(candidates)))
    assert model.history[-1].num_failed == len(candidates)
    assert model.history[-1].residual_weight == 0


def test_update_learns_in_time_and_reports_what_was_predicted_before(
    model: Any, context: Any, candidates: list[Any]
) -> None:
    rounds: list[Any] = []
    model._inst.on_round = rounds.append
    before = model.predict(context, candidates)
    wanted = np.argsort(np.argsort(before))  # the model's favourites are the slowest
    latencies: list[float | None] = [float(1e-4 * (1 + rank)) for rank in wanted]
    latencies[5] = None
    started = time.perf_counter()
    model.update(context, candidates, results(latencies))
    assert time.perf_counter() - started < 2.0
    assert rounds == model.history
    assert rounds[0].task == "matmul"
    assert rounds[0].num_failed == 1
    assert rounds[0].spearman < -0.8
    assert rounds[0].kendall < -0.6
    assert rounds[0].base_spearman == rounds[0].spearman
    for _ in range(12):
        model.update(context, candidates, results(latencies))
    after = model.predict(context, candidates)
    assert model.history[-1].spearman > model.history[0].spearman
    assert (after > 0).all()
    assert (after <= 1).all()
    np.testing.assert_array_equal(
        after[:4], [model.predict(context, [c])[0] for c in candidates[:4]]
    )


def test_a_frozen_model_reports_and_does_not_learn(
    make_bundle: Make, context: Any, candidates: list[Any]
) -> None:
    from tencost.tune.cost_model import load_cost_model

    model = load_cost_model(make_bundle("xgb"), frozen=True)
    before = model.predict(context, candidates)
    model.update(context, candidates, results([1e-3 * (1 + i) for i in range(len(candidates))]))
    np.testing.assert_array_equal(model.predict(context, candidates), before)
    assert model.history[0].fit_seconds == 0
    assert model.history[0].spearman is not None


def test_what_was_learnt_is_saved_and_loaded(
    tmp_path: Path, make_bundle: Make, model: Any, context: Any, candidates: list[Any]
) -> None:
    from tencost.tune.cost_model import load_cost_model

    model.update(context, candidates, results([1e-3 * (1 + i) for i in range(len(candidates))]))
    model.save(str(tmp_path / "state.npz"))
    other = load_cost_model(make_bundle("xgb"))
    other.load(str(tmp_path / "state.npz"))
    np.testing.assert_array_equal(
        other.predict(context, candidates), model.predict(context, candidates)
    )


def test_a_model_from_scratch_learns_too(context: Any, candidates: list[Any]) -> None:
    from tencost.config import FeaturesConfig
    from tencost.features.extractor import spec_for
    from tencost.tune.cost_model import scratch_cost_model

    model = scratch_cost_model(spec_for(FeaturesConfig(name="per_store", kind="per_store")))
    assert (model.predict(context, candidates) == 0.5).all()
    latencies: list[float | None] = [1e-3 * (1 + i) for i in range(len(candidates))]
    model.update(context, candidates, results(latencies))
    model.update(context, candidates, results(latencies))
    assert model.history[1].spearman > 0.5


def test_another_target_kind_is_refused_by_name(make_bundle: Make) -> None:
    from tencost.tune.cost_model import load_cost_model

    with pytest.raises(BundleError, match="cuda"):
        load_cost_model(make_bundle("xgb"), target_kind="cuda")


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    from tencost.tune.cost_model import load_cost_model

    with pytest.raises(RegistryError, match="no-such-folder"):
        load_cost_model(tmp_path / "no-such-folder")


def test_it_steers_a_real_search(
    tmp_path: Path, model: Any, matmul: Any, target: dict[str, Any]
) -> None:
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    from tencost.workers.pool import WorkerPool
    from tencost.workers.runner import MeasureOptions, WarmBuilder, WarmRunner

    pool = WorkerPool(MeasureOptions(number=1, repeat=1, min_repeat_ms=0))
    try:
        database = ms.tune_tir(
            mod=matmul,
            target=Target(target),
            work_dir=str(tmp_path),
            max_trials_global=16,
            num_trials_per_iter=8,
            builder=WarmBuilder(),
            runner=WarmRunner(pool),
            cost_model=model,
            strategy=ms.search_strategy.EvolutionarySearch(
                population_size=16, init_min_unmeasured=8, genetic_num_iters=1
            ),
            num_tuning_cores=1,
            seed=1,
        )
    finally:
        pool.close()
    assert len(database) == 16
    assert [item.num_measured for item in model.history] == [8, 8]
    assert ms.tir_integration.compile_tir(database, matmul, Target(target)) is not None
