"""Pretrained against from scratch, on a problem of which the right answer is known: a column tells the speed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from tencost.compat.counters import report
from tencost.compat.counters.pretraining import (
    ARMS,
    FROZEN,
    PRETRAINED,
    SCRATCH,
    Settings,
    Share,
    batches_of,
    gain,
    pretrained,
    pretraining,
    summarize_shares,
)
from tencost.compat.counters.pretraining_stage import run
from tencost.config import Config
from tencost.errors import ConfigError, TrainError
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.models.programs.families.mlp import MlpConfig, MlpRanker
from tencost.models.programs.ranker import Samples
from tencost.tracking.runs import setup

SPEC = FeatureSpec(name="toy", kind="trace", columns=("speed", "noise"))
CONFIG = MlpConfig(
    family="mlp",
    hidden=16,
    epochs=25,
    dropout=0.0,
    beside="nothing",
    learning_rate=3e-3,
    tasks_per_batch=1,
)
SMALL = Settings(batch=16, top=8, epochs=10, seeds=(0, 1))


def samples(groups: int, size: int, seed: int, *, turned: bool = False) -> Samples:
    """Programs of one row each; the first column is the speed, or its opposite."""
    generator = np.random.default_rng(seed)
    speed = generator.uniform(0.05, 1.0, groups * size)
    told = 1.0 - speed if turned else speed
    rows = np.stack([told, generator.uniform(size=len(speed))], axis=1).astype(np.float32)
    group = np.repeat(np.arange(groups), size)
    fastest = np.array([speed[group == one].max() for one in range(groups)])[group]
    return Samples(
        Ragged(rows, np.arange(len(rows) + 1, dtype=np.int64)),
        (speed / fastest).astype(np.float32),
        group,
        1e-3 / speed,
        np.array([f"{seed}-{index:05d}" for index in range(len(rows))]),
    )


def shares_of(
    asked: Samples, settings: Settings = SMALL, config: MlpConfig = CONFIG
) -> list[Share]:
    return list(pretraining(config, SPEC, samples(6, 32, 1), samples(2, 32, 2), asked, settings))


@pytest.fixture(scope="module")
def shares() -> list[Share]:
    return shares_of(samples(3, 70, 3))


def mean(shares: list[Share], arm: str, *steps: int) -> float:
    return float(np.mean([one.top for one in shares if one.arm == arm and one.step in steps]))


def test_from_scratch_begins_at_chance_and_pretrained_ahead(shares: list[Share]) -> None:
    first = [one.top for one in shares if one.arm == SCRATCH and one.step == 0]
    assert first == pytest.approx([SMALL.chance] * 6)
    assert mean(shares, PRETRAINED, 0) > 0.9
    assert mean(shares, FROZEN, 0) == mean(shares, PRETRAINED, 0)
    assert mean(shares, SCRATCH, 3) > 0.8


def test_every_batch_of_every_workload_counts_once(shares: list[Share]) -> None:
    assert len(shares) == 2 * 3 * 4 * len(ARMS)  # seeds, workloads, batches of 16 in 70 programs
    assert len({(one.seed, one.group, one.step, one.arm) for one in shares}) == len(shares)
    assert all(0.0 <= one.top <= 1.0 for one in shares)


def test_where_others_were_the_opposite_pretraining_misleads_until_it_learns() -> None:
    """What is told is what holds: a model that was taught the wrong end begins below chance, and recovers."""
    found = shares_of(samples(2, 96, 5, turned=True), replace(SMALL, seeds=(0,), epochs=40))
    assert mean(found, PRETRAINED, 0) < 0.2
    assert mean(found, FROZEN, 5) < 0.2
    assert mean(found, PRETRAINED, 5) > 0.6
    assert gain(found, PRETRAINED, SCRATCH, later=False).mean < 0


def test_a_batch_is_scored_before_it_is_seen() -> None:
    """Other times in the last batch change its own share and none before it."""
    asked = samples(1, 48, 7)
    one = replace(SMALL, seeds=(0,))
    last = batches_of(asked, one, 0)[0][-1]
    latency = asked.latency_s.copy()
    latency[last] = latency[last][::-1]
    changed = replace(asked, latency_s=latency)
    before, after = shares_of(asked, one), shares_of(changed, one)
    assert [one.top for one in before if one.step < 2] == [one.top for one in after if one.step < 2]
    assert [one.top for one in before if one.step == 2] != [
        one.top for one in after if one.step == 2
    ]


def test_it_repeats() -> None:
    asked = samples(1, 32, 9)
    one = replace(SMALL, seeds=(3,))
    assert shares_of(asked, one) == shares_of(asked, one)


def test_the_frozen_network_is_the_families() -> None:
    """What it begins with scores as the trained ranker does."""
    asked = samples(1, 32, 9)
    ranker = MlpRanker(CONFIG, SPEC)
    ranker.fit(samples(6, 32, 1), samples(2, 32, 2), seed=0, log=lambda *_: None)
    start = pretrained(CONFIG, SPEC, samples(6, 32, 1), samples(2, 32, 2), 0)
    from tencost.compat.counters.pretraining import _Learner

    found = _Learner(CONFIG, SPEC, start, 0).predict(asked.features)
    wanted = ranker.predict(asked.features)
    assert np.array_equal(np.argsort(found), np.argsort(wanted))
    np.testing.assert_allclose(found / found.std(), wanted / wanted.std(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("beside", ["summary", "constants", "nothing"])
def test_whatever_is_read_beside_the_rows(beside: str) -> None:
    config = replace(CONFIG, beside=beside, epochs=5)
    found = shares_of(samples(1, 32, 9), replace(SMALL, seeds=(0,), epochs=2), config)
    assert len(found) == 2 * len(ARMS)


def test_failures_are_slowest() -> None:
    asked = samples(1, 32, 9)
    latency = asked.latency_s.copy()
    fast = np.argsort(latency)[:4]
    latency[fast] = np.nan
    found = shares_of(replace(asked, latency_s=latency), replace(SMALL, seeds=(0,)))
    assert mean(found, FROZEN, 0, 1) < mean(
        shares_of(asked, replace(SMALL, seeds=(0,))), FROZEN, 0, 1
    )


def test_too_few_programs_for_two_batches() -> None:
    with pytest.raises(TrainError, match="at least 32 programs in the test part, found at most 31"):
        shares_of(samples(3, 31, 3))


def test_batches_are_whole_and_disjoint() -> None:
    asked = samples(2, 70, 3)
    for seed in (0, 1):
        found = batches_of(asked, SMALL, seed)
        for group, batches in found.items():
            rows = np.concatenate(batches)
            assert [len(batch) for batch in batches] == [16] * 4
            assert len(set(rows.tolist())) == 64
            assert set(asked.group[rows].tolist()) == {group}
    first, other = (np.concatenate(batches_of(asked, SMALL, seed)[0]) for seed in (0, 1))
    assert first.tolist() != other.tolist()


def test_the_summary_by_hand() -> None:
    made = [
        Share(seed, 0, step, arm, top)
        for seed, arm, tops in (
            (0, SCRATCH, (0.5, 0.6)), (0, PRETRAINED, (0.8, 0.7)),
            (1, SCRATCH, (0.5, 0.8)), (1, PRETRAINED, (0.9, 0.7)),
        )
        for step, top in enumerate(tops)
    ]  # fmt: skip
    scratch, before = summarize_shares(made)
    assert scratch.every.mean == pytest.approx(0.6)
    assert scratch.later.mean == pytest.approx(0.7)
    assert [step.mean for step in before.steps] == pytest.approx([0.85, 0.7])
    assert before.every.num_seeds == 2
    assert gain(made, PRETRAINED, SCRATCH, later=False).mean == pytest.approx(0.175)
    assert gain(made, PRETRAINED, SCRATCH, later=True).mean == pytest.approx(0.0)
    differences = [("difference", gain(made, PRETRAINED, SCRATCH, later=False))]
    text = report.pretraining_grid([scratch, before], SMALL, differences).markdown()
    assert "chance 0.50" in text
    assert "| difference | +0.175 ± " in text


def test_the_command(toy_project: Path, toy_config: Config) -> None:
    """From the project's tables to a report with a plot, which are an MLflow run's artifacts, too."""
    from mlflow import MlflowClient

    toy_config.model = replace(CONFIG, reads=["toy"], epochs=10)
    toy_config.model_name = "mlp"
    toy_config.seeds = [0, 1]
    found = {one.arm: one for one in run(toy_config, toy_project, batch=4, top=2, epochs=2)}
    assert found[SCRATCH].steps[0].mean == pytest.approx(0.5)
    assert len(found[PRETRAINED].steps) == 3
    folder = toy_project / "data" / "reports" / "profiles" / "pretraining-toy"
    names = ["pretraining.md", "pretraining.png", "shares.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    text = (folder / "pretraining.md").read_text()
    assert "toy, toy-1c, toy, held out by by_network: 6 batches of 2 workloads" in text
    assert "| task1 w1 | 3 |" in text
    values = orjson.loads((folder / "shares.json").read_bytes())
    assert len(values["shares"]) == 2 * 2 * 3 * len(ARMS)
    client = MlflowClient(tracking_uri=setup(toy_project))
    (done,) = client.search_runs(["1"], "tags.`tencost.stage` = 'profiles pretraining'")
    listed = client.list_artifacts(done.info.run_id, "reports/pretraining")
    assert [item.path for item in listed] == [f"reports/pretraining/{name}" for name in names]
    history = client.get_metric_history(done.info.run_id, f"pretraining/{PRETRAINED}/top")
    assert [one.step for one in history] == [0, 1, 2]
    assert done.info.status == "FINISHED"


def test_another_family_and_odd_sizes_are_refused(toy_project: Path, toy_config: Config) -> None:
    with pytest.raises(ConfigError, match="expected model=mlp"):
        run(toy_config, toy_project)
    toy_config.model = replace(CONFIG, reads=["toy"])
    with pytest.raises(ConfigError, match="--top below --batch, found 8 of 8"):
        run(toy_config, toy_project, batch=8, top=8)
    with pytest.raises(TrainError, match="--batch 4 --top 2"):
        run(toy_config, toy_project)
