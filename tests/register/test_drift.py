"""Drift of model versions: correlations out of a store, the truth table of the verdict, the command."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tencost import cli
from tencost.errors import RecordError, RegistryError
from tencost.evaluate.interval import Difference
from tencost.register import drift_report
from tencost.register.drift import (
    Action,
    DriftRule,
    Ranking,
    TuningRun,
    VersionHistory,
    histories,
    mean_over,
    verdict,
)
from tencost.store.record_store import RecordStore
from tencost.store.schema import NetworkWeight, Provenance, Record, Source
from tencost.store.status import Status

MODEL = "models:/tencost-toy/1"
Batch = Sequence[tuple[float | None, float | None]]
"""(score, latency in seconds) of each program; None: without a score, failed."""


def records(run: str, number: int, batch: Batch, **changes: Any) -> list[Record]:
    """Return a round's records as `tencost tune` writes them."""
    about = {
        "chosen_by": MODEL,
        "run": run,
        "round": number,
        "batch": len(batch),
        "arm": "residual",
    }
    about |= changes.pop("about", {})
    values: dict[str, Any] = {"hardware": "toy-1c", "network": "net", "tvm": "0.27.0", "at": 1e9}
    values |= changes
    found = []
    for index, (score, latency) in enumerate(batch):
        name = f"{values['hardware']}-{about['chosen_by']}-{run}-{number}-{index}"
        found.append(
            Record(
                record_id=name,
                program_id=name,
                workload_id="w",
                task_name="task",
                networks=(NetworkWeight(values["network"], 1),),
                hardware=values["hardware"],
                target={"kind": "llvm"},
                program_format="metaschedule_trace",
                program="[[],[]]",
                run_secs=() if latency is None else (latency, latency, latency),
                status=Status.run_error if latency is None else Status.ok,
                error="",
                source=Source("tune", "f", index + 1),
                provenance=Provenance(
                    timestamp=values["at"] + number,
                    engine_version=values["tvm"],
                    additional_info={key: value for key, value in about.items() if value},
                ),
                extra=None if score is None else {"score": score},
            )
        )
    return found


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore(str(tmp_path / "data" / "store"))


GOOD: Batch = [(0.9, 1e-3), (0.5, 2e-3), (0.4, 3e-3), (0.1, 4e-3)]


def test_correlations_are_scipys_also_with_ties_and_failures(store: RecordStore) -> None:
    generator = np.random.default_rng(0)
    expected, written = [], []
    for number in range(1, 6):
        scores = generator.choice([0.1, 0.2, 0.3, 0.4], 9)
        latency = generator.choice([1e-3, 2e-3, 3e-3], 9)
        failed = generator.uniform(size=9) < 0.2
        speed = np.where(failed, 0.0, 1 / latency)
        expected.append(stats.spearmanr(scores, speed).statistic)
        batch = [
            (float(score), None if bad else float(seconds))
            for score, seconds, bad in zip(scores, latency, failed, strict=True)
        ]
        written += records("a", number, batch)
    store.write(written)
    (history,) = histories(store)
    (run,) = history.runs
    assert [item.spearman for item in run.rankings] == pytest.approx(expected)
    assert {item.programs for item in run.rankings} == {9}
    assert run.programs == run.measured == 45


def test_rounds_that_say_nothing_are_left_out(store: RecordStore) -> None:
    store.write(records("a", 1, GOOD[:2]))
    store.write(records("a", 2, [(0.5, 1e-3), (0.5, 2e-3), (0.5, 3e-3)]))
    store.write(records("a", 3, [(0.1, None), (0.2, None), (0.3, None)]))
    store.write(records("a", 4, GOOD))
    (history,) = histories(store)
    (ranking,) = history.runs[0].rankings
    assert ranking == Ranking(ranking.spearman, 4)
    assert ranking.spearman == pytest.approx(1.0)
    assert history.runs[0].programs == 12


def test_runs_of_versions_and_hardware_are_kept_apart_in_order_of_time(store: RecordStore) -> None:
    store.write(records("late", 1, GOOD, at=2e9, network="other"))
    store.write(records("early", 1, GOOD, at=1e9))
    store.write(records("x", 1, GOOD, about={"chosen_by": "models:/tencost-toy/10"}))
    store.write(records("x", 1, GOOD, about={"chosen_by": "models:/tencost-toy/2"}))
    store.write(records("x", 1, GOOD, about={"chosen_by": "models:/tencost-toybox/1"}))
    store.write(records("y", 1, GOOD, hardware="other-1c"))
    store.write(records("z", 1, GOOD, about={"chosen_by": "scratch"}))
    found = histories(store)
    assert [(item.version, item.hardware) for item in found] == [
        (MODEL, "other-1c"),
        (MODEL, "toy-1c"),
        ("models:/tencost-toy/2", "toy-1c"),
        ("models:/tencost-toy/10", "toy-1c"),
        ("models:/tencost-toybox/1", "toy-1c"),
    ]
    assert [(run.run, run.network) for run in found[1].runs] == [
        ("early", "net"),
        ("late", "other"),
    ]
    assert len(histories(store, "tencost-toy")) == 4
    assert {item.version for item in histories(store, MODEL)} == {MODEL}
    assert histories(store, "tencost-to") == []


def test_records_from_before_there_were_scores(store: RecordStore) -> None:
    old = {"run": None, "round": None, "batch": None, "arm": None}
    store.write(records("", 0, [(None, 1e-3)] * 5, about=old))
    (history,) = histories(store)
    assert (history.runs, history.unscored) == ((), 5)
    store.write(records("a", 1, [*GOOD, (None, 1e-3)]))  # one that did not build
    (history,) = histories(store)
    assert (history.runs[0].programs, history.unscored) == (4, 6)
    drift = verdict(history)
    assert drift.action is Action.too_little
    assert "6 records have no scores" in drift.reasons[0]


def test_programs_that_the_store_had_before_are_counted_as_measured(store: RecordStore) -> None:
    store.write(records("a", 1, GOOD, about={"batch": 6}))
    run = histories(store)[0].runs[0]
    assert (run.programs, run.measured) == (4, 6)


def test_the_mean_weighs_programs_and_its_interval_repeats() -> None:
    rankings = [Ranking(1.0, 30), Ranking(0.0, 10), Ranking(-1.0, 10)]
    estimate = mean_over(rankings)
    assert estimate is not None
    assert estimate.mean == pytest.approx(0.4)
    assert estimate.low is not None
    assert estimate.high is not None
    assert -1.0 <= estimate.low < 0.4 < estimate.high <= 1.0
    assert mean_over(rankings) == estimate
    assert mean_over(rankings[:1]) == Difference(1.0, math.nan, math.nan, 0)
    assert mean_over([]) is None


def tuning(mean: float, spread: float = 0.05, rounds: int = 10, **changes: Any) -> TuningRun:
    """Return a run whose rounds are `mean` ± `spread`."""
    values = [mean + (spread if index % 2 else -spread) for index in range(rounds)]
    given: dict[str, Any] = {
        "run": "r", "started": None, "network": "net", "tvm": "0.27.0", "measured": 8 * rounds,
        "programs": 8 * rounds, "rankings": tuple(Ranking(value, 8) for value in values),
    }  # fmt: skip
    return TuningRun(**{**given, **changes})


def told(*runs: TuningRun, trained_on: str | None = "0.27.0", unscored: int = 0) -> VersionHistory:
    return VersionHistory(
        version=MODEL, hardware="toy-1c", trained_on=trained_on, runs=runs, unscored=unscored
    )


GOOD_RUN, BAD_RUN, UNSURE_RUN = tuning(0.5), tuning(0.02), tuning(0.02, spread=0.6)
ELSEWHERE = tuning(0.2, network="elsewhere")


@pytest.mark.parametrize(
    ("history", "action", "why"),
    [
        (told(), Action.too_little, "0 rounds"),
        (told(tuning(0.5, rounds=7)), Action.too_little, "7 rounds with scores"),
        (told(tuning(0.5, rounds=4), tuning(0.5, rounds=4)), Action.keep, "last 2 runs, floor"),
        (told(GOOD_RUN), Action.keep, "better than a random order"),
        (told(BAD_RUN), Action.retrain, "surely below the floor"),
        (told(tuning(-0.3)), Action.retrain, "worse than a random order"),
        (told(UNSURE_RUN), Action.watch, "below the floor of 0.1, but not surely"),
        (told(tuning(0.2, spread=0.9)), Action.watch, "cannot be told from a random order"),
        # Bad first, good in the last three: the last ones count.
        (told(BAD_RUN, GOOD_RUN, GOOD_RUN, GOOD_RUN), Action.keep, "+0.48"),
        # A drop within the margin, beyond it, beyond it but unsure.
        (told(GOOD_RUN, *[tuning(0.4)] * 3), Action.keep, "-0.10"),
        (told(GOOD_RUN, *[tuning(0.3)] * 3), Action.retrain, "-0.20"),
        (told(tuning(0.5, 0.9), *[tuning(0.3, 0.5)] * 3), Action.watch, "but not surely"),
        (told(tuning(0.5, rounds=4), *[tuning(0.3)] * 3), Action.watch, "but not surely"),
        # A lower correlation on another network is no drop; on the shared one it is.
        (told(GOOD_RUN, *[ELSEWHERE] * 3), Action.watch, "of other networks"),
        (told(GOOD_RUN, ELSEWHERE, ELSEWHERE, GOOD_RUN), Action.keep, "on net"),
        (told(GOOD_RUN, ELSEWHERE, tuning(0.2), tuning(0.2)), Action.retrain, "first run on net"),
        # Another TVM.
        (told(tuning(0.5, tvm="0.28.0")), Action.retrain, "tuned with TVM 0.28.0"),
        (told(tuning(0.5, tvm="0.27.1")), Action.watch, "trained with 0.27.0"),
        (told(tuning(0.5, rounds=1, tvm="0.28.0")), Action.retrain, "1 round with"),
        (told(tuning(0.5, tvm=None)), Action.keep, "floor"),
        (told(GOOD_RUN, trained_on=None), Action.keep, "floor"),
    ],
)  # fmt: skip
def test_truth_table(history: VersionHistory, action: Action, why: str) -> None:
    drift = verdict(history)
    assert drift.action is action, drift
    assert any(why in reason for reason in drift.reasons), drift


def test_the_rule_can_be_changed() -> None:
    history = told(tuning(0.2), tuning(0.15))
    assert verdict(history).action is Action.keep
    assert verdict(history, DriftRule(floor=0.3)).action is Action.retrain
    assert verdict(history, DriftRule(min_rounds=30)).action is Action.too_little
    assert verdict(history, DriftRule(last_runs=1, margin=0.01)).action is Action.retrain


@pytest.fixture
def filled(store: RecordStore) -> RecordStore:
    worse = list(zip([0.5, 0.9, 0.4, 0.1], [seconds for _, seconds in GOOD], strict=True))
    rounds = [(run, at, number) for run, at in (("a", 1e9), ("b", 1.1e9)) for number in range(1, 7)]
    store.write(
        record
        for run, at, number in rounds
        for record in records(run, number, GOOD if number % 2 else worse, at=at)
    )
    return store


def test_the_command_shows_runs_verdict_and_what_is_next(
    filled: RecordStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "plots" / "drift.png"
    drift_report.run(tmp_path, model="tencost-toy", plot=plot)
    out = capsys.readouterr().out
    assert "models:/tencost-toy/1 on toy-1c" in out
    assert out.index("2001-09-09 01:46") < out.index("2004-11-09 11:33")
    assert "+0.90" in out
    assert "\nkeep\n" in out
    assert "next: nothing" in out
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_json_says_the_same(filled: RecordStore, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["register", "drift", "--json", "--store", filled.uri])
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["version"], found["action"]) == (MODEL, "keep")
    assert [run["rounds"] for run in found["runs"]] == [6, 6]
    assert found["runs"][0]["spearman"]["mean"] == pytest.approx(0.9)
    assert found["recent"]["low"] <= 0.9 <= found["recent"]["high"]


def test_a_model_to_retrain_names_the_command_with_the_store(
    store: RecordStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backwards = list(zip([0.1, 0.4, 0.5, 0.9], [seconds for _, seconds in GOOD], strict=True))
    for number in range(1, 9):
        store.write(records("a", number, backwards))
    drift_report.run(tmp_path / "elsewhere", store_uri=store.uri)
    out = " ".join(capsys.readouterr().out.split())
    assert "retrain: worse than a random order" in out
    assert f"next: tencost register drift tencost-toy --store {store.uri} --add-to" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--frobnicate"], "found '--frobnicate'"),
        (["one", "two"], "found 'two'"),
        (["--store"], "expected a value after --store, found none"),
        (["--plot", ""], "--plot FILE.png: expected FILE.png, found nothing"),
        (["--plot", "--json"], "expected a value after --plot, found the option --json"),
        (["--json", "--add-to", "there"], "one of --json and --add-to"),
    ],
)
def test_mistakes_are_told(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["register", "drift", *words])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_model_that_never_tuned_is_said_so(filled: RecordStore, tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="found those of models:/tencost-toy/1"):
        drift_report.run(tmp_path, model="tencost-nobody")


def test_without_a_store_or_tuning_runs(store: RecordStore, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="expected a record store"):
        drift_report.run(tmp_path)
    store.write(records("a", 1, GOOD, about={"chosen_by": None}))
    with pytest.raises(RegistryError, match="found none"):
        drift_report.run(tmp_path)


@pytest.mark.parametrize(
    ("history", "rule", "action", "why"),
    [
        # What is exactly at a limit is not below it.
        (told(tuning(0.5, 0.0)), DriftRule(floor=0.5), Action.keep, "floor 0.5"),
        (told(tuning(0.5, 0.0)), DriftRule(floor=0.51), Action.retrain, "surely below"),
        (told(tuning(0.0, 0.0)), DriftRule(floor=0.0), Action.watch, "cannot be told from a random order"),
        (told(tuning(0.5, rounds=8)), DriftRule(), Action.keep, "better than"),
        (told(tuning(0.12, 0.0)), DriftRule(), Action.keep, "floor 0.1"),
        (told(tuning(0.08, 0.0)), DriftRule(), Action.retrain, "floor of 0.1"),
        (told(tuning(0.5, 0.0), *[tuning(0.25, 0.0)] * 3), DriftRule(margin=0.25), Action.keep, "-0.25"),
        (told(tuning(0.5), *[tuning(0.34)] * 3), DriftRule(), Action.retrain, "tolerated -0.15"),
        (told(tuning(0.5), *[tuning(0.36)] * 3), DriftRule(), Action.keep, "tolerated -0.15"),
        (
            told(tuning(0.5, rounds=1)),
            DriftRule(),
            Action.too_little,
            "1 round with scores in the latest runs, 8 are needed",
        ),
        # Of the first runs, too, only those on the same network.
        (told(ELSEWHERE, GOOD_RUN, *[tuning(0.3)] * 3), DriftRule(), Action.retrain, "first run on net"),
        # Eight rounds on each side are enough to be sure.
        (told(tuning(0.5, rounds=8), *[tuning(0.3, rounds=4)] * 3), DriftRule(), Action.retrain, "-0.20"),
        (
            told(tuning(0.5, rounds=8), *[tuning(0.3, rounds=2)] * 2, tuning(0.3, rounds=4)),
            DriftRule(),
            Action.retrain,
            "-0.20",
        ),
        # The first three with the last three, and what is between them counts for neither.
        (
            told(*[tuning(0.5)] * 3, *[tuning(-0.9)] * 2, *[tuning(0.5)] * 3),
            DriftRule(),
            Action.keep,
            "+0.00 [-0.02, +0.02] against the first 3 runs",
        ),
        (told(*[tuning(0.5)] * 5), DriftRule(), Action.keep, "against the first 2 runs on net"),
        (told(*[tuning(0.5)] * 9), DriftRule(), Action.keep, "against the first 3 runs on net"),
        (told(*[tuning(0.5)] * 9), DriftRule(), Action.keep, "over the last 3 runs"),
    ],
)  # fmt: skip
def test_what_the_verdict_tolerates_in_figures(
    history: VersionHistory, rule: DriftRule, action: Action, why: str
) -> None:
    drift = verdict(history, rule)
    assert drift.action is action, drift
    assert any(why in reason for reason in drift.reasons), drift


def test_a_run_without_rounds_is_none_of_the_latest() -> None:
    silent = tuning(0.0, rounds=0, rankings=(), tvm=None)
    drift = verdict(told(GOOD_RUN, silent, silent, silent))
    assert drift.action is Action.keep
    assert drift.recent is not None
    assert drift.recent.mean == pytest.approx(0.5)
    assert "over the last run," in drift.reasons[0]
    assert len(drift.reasons) == 2, "there is no earlier run to compare with"


def test_the_last_run_that_says_its_tvm_is_compared() -> None:
    later = [tuning(0.5, tvm="0.28.0"), tuning(0.5, tvm=None)]
    assert verdict(told(tuning(0.5, tvm="0.27.0"), *later)).action is Action.retrain
    assert verdict(told(tuning(0.5, tvm="0.28.0"), GOOD_RUN)).action is Action.keep


def test_the_interval_is_that_of_95_percent() -> None:
    """Of a mean of 100 rounds, half of them 0, half of them 1: 0.5 ± 1.96 * 0.05."""
    estimate = mean_over([Ranking(float(number % 2), 8) for number in range(100)])
    assert estimate is not None
    assert estimate.low == pytest.approx(0.402, abs=0.01)
    assert estimate.high == pytest.approx(0.598, abs=0.01)
    two = mean_over([Ranking(0.0, 8), Ranking(1.0, 8)])
    assert two is not None
    assert (two.mean, two.low, two.high) == (0.5, 0.0, 1.0)


def test_what_a_store_says_of_a_run(store: RecordStore) -> None:
    """Runs that began at the same time are in order of their names; three programs are a round."""
    store.write(records("b", 1, GOOD, about={"batch": 3}, tvm="0.27.1"))
    store.write(records("a", 1, GOOD[:3], network="other"))
    store.write(records("a", 2, GOOD[:2], network="other", tvm="0.27.2"))
    (history,) = histories(store)
    assert [run.run for run in history.runs] == ["a", "b"]
    first, second = history.runs
    assert (first.started, first.network, first.tvm) == (1e9 + 1, "other", "0.27.2")
    assert [one.programs for one in first.rankings] == [3]
    assert (first.programs, first.measured) == (5, 5)
    assert (second.programs, second.measured, second.tvm) == (4, 4, "0.27.1")
    assert (history.trained_on, history.unscored) == ("0.27.2", 0)
    assert first.estimate == Difference(1.0, math.nan, math.nan, 0)


def test_runs_are_in_order_of_time_whatever_their_names(store: RecordStore) -> None:
    """The latest are judged."""
    for run, at in (("b", 3e9), ("c", 1e9), ("a", 2e9)):
        store.write(records(run, 1, GOOD, at=at))
    assert [run.run for run in histories(store)[0].runs] == ["c", "a", "b"]


def test_the_model_s_tvm_is_what_the_records_say(store: RecordStore) -> None:
    store.write(records("a", 1, GOOD, tvm="0.28.0"))
    store.write(records("a", 2, GOOD, tvm="0.28.0", about={"model_tvm": "0.26.0"}))
    store.write(records("f", 1, GOOD, about={"chosen_by": "bundles/seed2"}, tvm=None))
    store.write(records("f", 1, GOOD, about={"chosen_by": "bundles/10"}))
    found = {item.version: item for item in histories(store)}
    assert list(found) == ["bundles/10", "bundles/seed2", MODEL]
    assert found[MODEL].trained_on == "0.26.0"
    assert verdict(found[MODEL]).action is Action.retrain
    assert found["bundles/seed2"].trained_on is None
    assert found["bundles/seed2"].runs[0].tvm is None
