"""What makes a round fast must not change what it says: keys, memory, threads, drafts."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tencost.features.rows.ragged import Ragged
from tencost.models.programs.bundle import load_bundle
from tencost.models.programs.bundle.calibration import Calibration

pytestmark = pytest.mark.tvm

Make = Callable[[str], Path]


class Summed:
    """Scores that the tile structure explains: fewer bytes and iterations are better."""

    family = "xgb"

    def predict(self, features: Ragged) -> Any:
        return -features.segment_sum().astype(np.float64).sum(axis=1) / 100


class Arbitrary:
    """Scores that nothing explains, the same for the same rows."""

    family = "xgb"

    def predict(self, features: Ragged) -> Any:
        told = [blake2b(features[at].tobytes(), digest_size=4) for at in range(len(features))]
        return np.array([int.from_bytes(one.digest(), "little") / 2**32 for one in told])


@pytest.fixture
def make_model(make_bundle: Make) -> Callable[..., Any]:
    from tencost.features.extractor import make_extractor
    from tencost.tune.cost_model import TencostModel

    def make(ranker: Any, *, draft: bool) -> Any:
        bundle = load_bundle(make_bundle("xgb"))
        info = dataclasses.replace(bundle.info, calibration=Calibration(center=-10.0, scale=3.0))
        told = dataclasses.replace(bundle, ranker=ranker, info=info)
        return TencostModel(told, make_extractor(info.feature_spec, {}), draft=draft)

    return make


@pytest.fixture(scope="module")
def many(matmul: Any, target: dict[str, Any], cpu_intrinsics: None) -> list[Any]:
    """320 random programs of the matmul, all different; the same whichever tests ran before."""
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    from tencost.programs.trace.instructions import trace_key

    context = ms.TuneContext(
        mod=matmul,
        target=Target(target),
        space_generator="post-order-apply",
        search_strategy="replay-trace",
        task_name="matmul",
        rand_state=1,
        num_threads=1,
    )
    context.pre_tuning(400, 400, context.generate_design_space())
    made = list(context.generate_measure_candidates())
    context.post_tuning()
    distinct = list({trace_key(one): one for one in made}.values())[:320]
    assert len(distinct) == 320
    return distinct


def in_full(model: Any, context: Any, candidates: list[Any]) -> Any:
    """Which candidates were scored in full."""
    cache, keys = model._inst._cache, model._inst._keys(context, candidates)
    return np.array([key in cache for key in keys])


def test_two_traces_of_one_module_keep_their_own_tiles(context: Any, candidates: list[Any]) -> None:
    from tvm.s_tir import meta_schedule as ms
    from tvm_ffi import structural_equal

    from tencost.config import FeaturesConfig
    from tencost.features.extractor import make_extractor, spec_for
    from tencost.features.kinds import tiles
    from tencost.programs.trace.instructions import trace_key
    from tencost.tune.cost_model import scratch_cost_model

    kind = "per_store_tiles"
    spec = spec_for(FeaturesConfig(name=kind, kind=kind))
    one = candidates[0]
    longer = one.sch.copy()
    block = longer.get_sblock("root")
    longer.annotate(block, "note", 1)
    longer.unannotate(block, "note")
    other = ms.MeasureCandidate(longer, one.args_info)
    assert structural_equal(one.sch.mod, other.sch.mod)
    assert trace_key(one) != trace_key(other)
    extracted = make_extractor(spec, {}).extract(context, [one, other])
    for pair in ([one, other], [other, one], [other]):
        tiles._remembered.clear()
        model = scratch_cost_model(spec)
        rows = model._inst._scored(context, pair)[0]
        for at, candidate in enumerate(pair):
            np.testing.assert_array_equal(rows[at], extracted[0 if candidate is one else 1])
    assert not np.array_equal(extracted[0], extracted[1])


def test_equal_programs_have_equal_keys(context: Any, candidates: list[Any]) -> None:
    from tvm.s_tir import Schedule

    from tencost.programs.trace.instructions import trace_key

    again = Schedule(context.mod)
    candidates[0].sch.trace.apply_to_schedule(again, remove_postproc=False)
    replayed = type("Replayed", (), {"sch": again})
    assert trace_key(replayed) == trace_key(candidates[0])
    assert len({trace_key(one) for one in candidates[:8]}) > 1


def test_remembered_instructions_read_as_fresh_ones(candidates: list[Any]) -> None:
    from tencost.programs.trace import instructions as traces

    warm = [traces.trace_values(one.sch.trace) for one in candidates]
    cold = []
    for one in candidates:
        traces._instructions.clear()
        cold.append(traces.trace_values(one.sch.trace))
    assert warm == cold
    kinds = {type(value) for _, decisions in warm for value in decisions[0]}
    assert kinds <= {int, list}


def test_scores_are_the_same_whatever_is_remembered(
    make_model: Callable[..., Any], context: Any, many: list[Any]
) -> None:
    model = make_model(Summed(), draft=False)
    cold = model.predict(context, many)
    np.testing.assert_array_equal(model.predict(context, many[::-1])[::-1], cold)
    half = make_model(Summed(), draft=False)
    half.predict(context, many[:100])
    np.testing.assert_array_equal(half.predict(context, many), cold)
    assert in_full(model, context, many).all()


def test_more_threads_read_the_same_rows(
    make_model: Callable[..., Any],
    context: Any,
    candidates: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = make_model(Summed(), draft=False).predict(context, candidates)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    model = make_model(Summed(), draft=False)
    assert int(model._inst._completed(context).num_threads) == 2
    np.testing.assert_array_equal(model.predict(context, candidates), alone)


def test_a_draft_keeps_the_best_and_guesses_the_rest(
    make_model: Callable[..., Any], context: Any, many: list[Any]
) -> None:
    exact = make_model(Summed(), draft=False).predict(context, many)
    model = make_model(Summed(), draft=True)
    scores = model.predict(context, many)
    full = in_full(model, context, many)
    assert 128 < full.sum() < 0.7 * len(many)
    np.testing.assert_array_equal(scores[full], exact[full])
    assert ((scores > 0) & (scores <= 1)).all()
    best = np.argsort(-scores, kind="stable")[:16]
    assert full[best].all(), "what is proposed was scored in full"
    assert exact[best].mean() > np.quantile(exact, 0.9)
    assert np.corrcoef(scores[~full], exact[~full])[0, 1] > 0.5
    again = make_model(Summed(), draft=True)
    np.testing.assert_array_equal(again.predict(context, many), scores)


def test_a_second_batch_needs_fewer_in_full(
    make_model: Callable[..., Any], context: Any, many: list[Any]
) -> None:
    model = make_model(Summed(), draft=True)
    model.predict(context, many[:160])
    before = in_full(model, context, many[:160]).sum()
    model.predict(context, many[160:])
    later = in_full(model, context, many[160:]).sum()
    assert before >= 128
    assert 0.3 * 160 <= later < 0.4 * 160


def test_few_candidates_are_not_guessed(
    make_model: Callable[..., Any], context: Any, many: list[Any]
) -> None:
    exact = make_model(Summed(), draft=False).predict(context, many)
    model = make_model(Summed(), draft=True)
    model.predict(context, many)
    guessed = np.flatnonzero(~in_full(model, context, many))[:3]
    for at in guessed:
        assert model.predict(context, [many[at]])[0] == exact[at]


def test_a_draft_that_cannot_tell_costs_nothing_but_time(
    make_model: Callable[..., Any], context: Any, many: list[Any]
) -> None:
    exact = make_model(Arbitrary(), draft=False).predict(context, many)
    model = make_model(Arbitrary(), draft=True)
    np.testing.assert_array_equal(model.predict(context, many), exact)
    assert in_full(model, context, many).all()


def test_guesses_stay_below_what_was_chosen() -> None:
    from tencost.models.draft_model import chosen

    guesses = np.linspace(0.1, 0.9, 200)[np.random.default_rng(1).permutation(200)]
    picked = chosen(guesses, np.random.default_rng(0))
    rest = np.setdiff1d(np.arange(200), picked)
    favourites = np.sort(guesses)[-60:]
    assert len(picked) == 60 + 7
    assert set(favourites) <= set(guesses[picked])
    assert guesses[rest].max() < favourites[0]
    np.testing.assert_array_equal(picked, chosen(guesses, np.random.default_rng(0)))
