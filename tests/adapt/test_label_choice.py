"""Choosing, correcting and judging, on a made-up device: what one model has wrong on another hardware can be learnt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made_devices import CONFIG, PER_TASK, SPEC, made_pool, made_source, samples
from tencost.adapt.choice import diverse, uncertain
from tencost.adapt.fitting import (
    LEAST_TASKS,
    MANY,
    Adapted,
    HeldOutMetric,
    SourceModel,
    adapt,
    committee,
    correction,
    gains,
    judge_held_out,
)
from tencost.adapt.pool import LabelPool
from tencost.config import AdaptMode
from tencost.errors import TrainError
from tencost.evaluate.interval import Interval
from tencost.features.rows.ragged import Ragged
from tencost.models.programs.bundle import plain_config
from tencost.models.programs.families.blend import BlendConfig, BlendRanker
from tencost.models.programs.families.random import RandomConfig, RandomRanker
from tencost.models.programs.families.xgb import XgbRanker
from tencost.models.programs.ranker.losses import RankingMetrics


@pytest.fixture(scope="module")
def source() -> SourceModel:
    return made_source()


@pytest.fixture(scope="module")
def pool(source: SourceModel) -> LabelPool:
    return made_pool(source)


def pairwise(model: Adapted) -> float:
    test = samples(2, 12, second=2.0)
    found = RankingMetrics(test.label, test.group)(model.ranker.predict(test.features))
    return found["pairwise"]


def test_a_hundred_labels_correct_what_differs(source: SourceModel, pool: LabelPool) -> None:
    chosen = diverse(pool, pool.features.values, 100, 8, seed=0)
    labels = pool.labelled(chosen)
    before = pairwise(adapt(source, AdaptMode.zero_shot, labels, 0))
    after = pairwise(adapt(source, AdaptMode.residual, labels, 0))
    assert before < 0.7
    assert after > before + 0.1
    assert pairwise(adapt(source, AdaptMode.fine_tune, labels, 0)) > before + 0.05
    figures = judge_held_out(source, AdaptMode.residual, labels, 0)
    assert figures["pairwise"].after > figures["pairwise"].before + 0.05
    assert figures["pairwise"].gain.low > 0
    assert gains(figures)


@pytest.mark.parametrize("mode", [AdaptMode.residual, AdaptMode.fine_tune, AdaptMode.scratch])
def test_ten_labels_teach_trees_that_split(
    mode: AdaptMode, source: SourceModel, pool: LabelPool
) -> None:
    labels = pool.labelled(diverse(pool, pool.features.values, 10, 5, seed=0))
    ranker = adapt(source, mode, labels, 0).ranker
    scores = ranker.predict(pool.features)
    if mode is AdaptMode.scratch:
        assert len(np.unique(scores)) > 1
    else:
        scaled = pool.score / source.spread
        learnt = scores / scores.std() - scaled / scaled.std()
        assert learnt.std() > 1e-3, "more than the model as it was"


def test_labels_at_random_gain_nothing(source: SourceModel) -> None:
    labels = samples(3, 12, second=0.0)
    order = np.random.default_rng(0).permuted(labels.label.reshape(-1, PER_TASK), axis=1)
    figures = judge_held_out(source, AdaptMode.residual, replace(labels, label=order.ravel()), 0)
    assert figures["pairwise"].gain.low <= 0
    assert not gains(figures)


def test_labels_that_agree_with_the_model_leave_its_order(
    source: SourceModel, pool: LabelPool
) -> None:
    chosen = diverse(pool, pool.features.values, 60, 4, seed=0)
    labels = pool.labelled(chosen)
    said = 0.5 + 0.1 * source.ranker.predict(labels.features)
    agreeing = replace(labels, label=said.astype(np.float32))
    adapted = adapt(source, AdaptMode.residual, agreeing, 0).ranker.predict(pool.features)
    assert np.corrcoef(adapted, pool.score)[0, 1] > 0.999


def test_few_labels_give_trees_other_leaves_and_many_a_model_beside(
    source: SourceModel, pool: LabelPool
) -> None:
    few = adapt(source, AdaptMode.residual, pool.labelled(np.arange(64)), 0)
    assert few.config.family == "xgb"
    assert few.ranker.importance() == source.ranker.importance(), "the same splits"


def test_a_blend_s_trees_get_leaves_that_correct_the_whole(pool: LabelPool, tmp_path: Path) -> None:
    members = [plain_config(replace(CONFIG, num_rounds=rounds)) for rounds in (40, 20)]
    config = BlendConfig(family="blend", reads=["toy"], members=members)
    blend = BlendRanker(config, SPEC)
    known = samples(0, 30, second=0.0)
    blend.fit(known, known, seed=0, log=lambda *_: None)
    chosen = diverse(pool, pool.features.values, 100, 8, seed=0)
    adapted = blend.revalued(pool.labelled(chosen))
    test = samples(2, 12, second=2.0)
    before, after = (
        RankingMetrics(test.label, test.group)(ranker.predict(test.features))["pairwise"]
        for ranker in (blend, adapted)
    )
    assert after > before + 0.1
    others = [ranker.members[1].predict(test.features) for ranker in (blend, adapted)]
    assert np.array_equal(others[0], others[1]), "one member corrects the whole"
    adapted.save(tmp_path)
    loaded = BlendRanker(config, SPEC)
    loaded.load(tmp_path)
    assert np.array_equal(loaded.predict(test.features), adapted.predict(test.features))


def test_trees_that_tell_nothing_apart_get_a_correction_beside_them(
    source: SourceModel, pool: LabelPool
) -> None:
    labels = pool.labelled(diverse(pool, pool.features.values, 60, 4, seed=0))
    known = samples(0, 30, second=0.0)
    for settings in (replace(CONFIG, min_child_weight=1e9), replace(CONFIG, num_rounds=1)):
        single = XgbRanker(settings, SPEC)
        single.fit(known, known, seed=0, log=lambda *_: None)
        other = SourceModel(single, source.info, 1.0)
        adapted = adapt(other, AdaptMode.residual, labels, 0)
        assert np.isfinite(adapted.ranker.predict(pool.features)).all()
        assert pairwise(adapted) > 0.6
    values = labels.features.values.copy()
    values[:] = values[0]
    alike = replace(labels, features=Ragged(values, labels.features.offsets))
    assert np.isfinite(
        adapt(source, AdaptMode.residual, alike, 0).ranker.predict(pool.features)
    ).all()


def test_a_blend_without_trees_gets_a_correction_and_no_further_trees(
    source: SourceModel, pool: LabelPool
) -> None:
    member = {"family": "mlp", "hidden": 8, "epochs": 3}
    blend = BlendRanker(BlendConfig(family="blend", reads=["toy"], members=[member, member]), SPEC)
    known = samples(0, 30, second=0.0)
    blend.fit(known, known, seed=0, log=lambda *_: None)
    config = BlendConfig(family="blend", reads=["toy"], members=[member, member])
    info = replace(source.info, family="blend", model_config=plain_config(config))
    other = SourceModel(blend, info, 1.0)
    labels = pool.labelled(diverse(pool, pool.features.values, 100, 8, seed=0))
    adapted = adapt(other, AdaptMode.residual, labels, 0)
    assert adapted.config.family == "corrected"
    assert pairwise(adapted) > pairwise(Adapted(config, blend)) + 0.1
    with pytest.raises(TrainError, match="adapt=residual"):
        adapt(other, AdaptMode.fine_tune, labels, 0)


def test_labels_that_are_no_numbers_are_refused(source: SourceModel, pool: LabelPool) -> None:
    labels = pool.labelled(np.arange(32))
    label = labels.label.copy()
    label[3] = np.nan
    with pytest.raises(TrainError, match="labels that are numbers"):
        adapt(source, AdaptMode.residual, replace(labels, label=label), 0)


@pytest.mark.parametrize(
    ("pairwise_gain", "top1_gain", "registered"),
    [(0.03, 0.0, True), (0.03, -0.01, False), (0.009, 0.05, False), (0.01, 0.0, False)],
)
def test_better_by_half_of_the_interval_and_no_slower_at_first(
    pairwise_gain: float, top1_gain: float, registered: bool
) -> None:
    figures = {
        name: HeldOutMetric(0.8, 0.8 + gain, Interval(gain, 0.02, 12))
        for name, gain in (("pairwise", pairwise_gain), ("top1", top1_gain))
    }
    assert gains(figures) is registered


def test_two_tasks_show_nothing(source: SourceModel) -> None:
    labels = samples(3, LEAST_TASKS - 1, second=2.0)
    assert judge_held_out(source, AdaptMode.residual, labels, 0) == {}
    assert not gains({})


def test_the_model_that_is_adapted_stays_as_it_is(source: SourceModel, pool: LabelPool) -> None:
    labels = pool.labelled(diverse(pool, pool.features.values, 60, 4, seed=0))
    for mode in AdaptMode:
        adapt(source, mode, labels, 0)
        assert np.array_equal(source.ranker.predict(pool.features), pool.score), mode


def test_a_task_s_own_speed_does_not_count(source: SourceModel, pool: LabelPool) -> None:
    chosen = diverse(pool, pool.features.values, 60, 4, seed=0)
    slower = replace(pool, latency_s=pool.latency_s * (1.0 + pool.group))
    here, there = (
        adapt(source, AdaptMode.residual, one.labelled(chosen), 0).ranker.predict(pool.features)
        for one in (pool, slower)
    )
    assert here == pytest.approx(there, abs=1e-5)


def test_without_labels_the_model_is_as_it_was(source: SourceModel, pool: LabelPool) -> None:
    none = pool.labelled(np.zeros(0, np.int64))
    assert adapt(source, AdaptMode.residual, none, 0).ranker is source.ranker
    one_each = pool.labelled(np.arange(0, len(pool), PER_TASK))
    assert adapt(source, AdaptMode.residual, one_each, 0).ranker is source.ranker
    alike = replace(pool.labelled(np.arange(32)), label=np.ones(32, np.float32))
    assert adapt(source, AdaptMode.residual, alike, 0).ranker is source.ranker
    with pytest.raises(TrainError, match="no task with two"):
        adapt(source, AdaptMode.scratch, one_each, 0)


def test_a_family_that_cannot_go_on_learning_says_so(source: SourceModel, pool: LabelPool) -> None:
    config = RandomConfig(family="random")
    info = replace(source.info, family="random", model_config=plain_config(config))
    other = SourceModel(RandomRanker(config, SPEC), info, 1.0)
    labels = pool.labelled(np.arange(32))
    with pytest.raises(TrainError, match="adapt=residual"):
        adapt(other, AdaptMode.fine_tune, labels, 0)


def test_failed_programs_are_labels_and_failed_tasks_are_none(
    source: SourceModel, pool: LabelPool
) -> None:
    chosen = np.arange(3 * PER_TASK)
    seconds = pool.latency_s[chosen].copy()
    seconds[:PER_TASK] = np.nan
    seconds[PER_TASK] = np.nan
    labels = pool.labelled(chosen, seconds)
    assert len(labels) == 2 * PER_TASK
    assert labels.label[0] == 0.0
    assert sorted(set(labels.group.tolist())) == [0, 1]
    assert np.isfinite(
        adapt(source, AdaptMode.residual, labels, 0).ranker.predict(pool.features)
    ).all()


def test_many_labels_get_a_large_correction(source: SourceModel, pool: LabelPool) -> None:
    labels = pool.labelled(np.arange(len(pool)))
    few = correction(source, labels)
    many = labels.take(np.resize(np.arange(len(labels)), MANY))
    assert correction(source, many).max_depth > few.max_depth
    assert few.base["family"] == "xgb"


def test_the_choice_is_of_many_tasks_and_grows_by_adding(pool: LabelPool) -> None:
    hundred = diverse(pool, pool.features.values, 100, 4, seed=3)
    assert len(set(hundred.tolist())) == 100
    assert len(set(pool.group[hundred].tolist())) == 25
    assert np.array_equal(diverse(pool, pool.features.values, 40, 4, seed=3), hundred[:40])
    for task in set(pool.group[hundred].tolist()):
        own = np.flatnonzero(pool.group == task)
        assert own[np.argmax(pool.score[own])] in hundred, "the best by the model is among them"
    every = diverse(pool, pool.features.values, len(pool), 4, seed=3)
    assert sorted(every.tolist()) == list(range(len(pool)))


def test_a_task_with_one_program_comes_last(pool: LabelPool) -> None:
    keep = np.concatenate([[0], np.arange(PER_TASK, len(pool))])
    alone = LabelPool(
        pool.program_id[keep],
        pool.workload_id[keep],
        pool.group[keep],
        pool.features.take(keep),
        pool.score[keep],
        pool.latency_s[keep],
        pool.spread,
    )
    chosen = diverse(alone, alone.features.values, 39 * 4 + 1, 4, seed=0)
    assert chosen[-1] == 0


def test_what_is_disputed_comes_next(pool: LabelPool) -> None:
    taken = np.flatnonzero(pool.group == 5)[:4]
    opinions = [pool.score.copy(), pool.score.copy()]
    disputed = pool.group == 11
    opinions[1][disputed] = -opinions[1][disputed]
    further = uncertain(pool, opinions, taken, 8, 8, seed=0)
    assert set(pool.group[further].tolist()) == {11}
    same = uncertain(pool, [pool.score + 3.0, pool.score], taken, 20, 4, seed=0)
    assert not set(same.tolist()) & set(taken.tolist())


def test_a_committee_disagrees(source: SourceModel, pool: LabelPool) -> None:
    labels = pool.labelled(diverse(pool, pool.features.values, 60, 4, seed=0))
    opinions = committee(source, labels, pool.features, 0)
    assert len(opinions) > 1
    assert not np.array_equal(opinions[0], opinions[1])
