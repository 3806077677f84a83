from __future__ import annotations

from types import SimpleNamespace

import pytest

from tencost.tune.task_scheduler import CAP, FAITH, HALF, SecondsScheduler, Turn, promise

pytestmark = pytest.mark.tvm


class Tuning:
    """Tasks whose rounds take made-up seconds and gain made-up shares, behind the scheduler's eyes and clock."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        seconds: list[float],
        gains: list[list[float]],
        min_gain: float = 0.0,
    ) -> None:
        self.now = 0.0
        self.seconds, self.gains = seconds, gains
        self.latency_s = [1.0 for _ in seconds]
        self.programs = [0 for _ in seconds]
        self.tasks_ = [SimpleNamespace(is_terminated=False) for _ in seconds]
        monkeypatch.setattr("tencost.tune.task_scheduler.time.monotonic", lambda: self.now)
        self.scheduler = SecondsScheduler._cls(
            [1.0] * len(seconds),
            lambda place: self.latency_s[place],
            lambda place: self.programs[place],
            min_gain,
        )
        self.scheduler._outer = lambda: self

    def touch_task(self, place: int) -> None:
        self.now += self.seconds[place]
        self.programs[place] += 16
        self.latency_s[place] *= 1 - (self.gains[place].pop(0) if self.gains[place] else 0.0)

    def turns(self, count: int) -> list[int]:
        return [int(self.scheduler.next_task_id()) for _ in range(count)]


def promised(*gains: float, seconds: float = 10.0) -> float:
    return promise([Turn(16, seconds, 1.0, 1.0 - gain) for gain in gains])


def test_a_promise_is_of_what_was_gained_and_what_it_cost() -> None:
    assert promised() == 0.0
    assert promised(0.05) > promised(0.01) > promised(0.0)
    assert promised(0.05, seconds=5.0) == 2 * promised(0.05)
    assert promised(0.9) == promised(2 * CAP)


def test_faith_halves_while_a_task_stands_still() -> None:
    assert HALF == 16
    one, two = promised(0.0, 0.0), promised(0.0, 0.0, 0.0)
    assert two == one / 2 == FAITH / 10 / 8


def test_every_task_has_a_turn_then_the_one_that_gains_most_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow_and_fast = Tuning(monkeypatch, [40.0, 2.0, 2.0], [[0.05] * 9, [0.05] * 9, []])
    assert slow_and_fast.turns(3) == [0, 1, 2]
    assert set(slow_and_fast.turns(5)) == {1}


def test_a_task_that_stands_still_gives_its_turns_away(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = Tuning(monkeypatch, [2.0, 10.0], [[0.1], [0.03] * 20])
    turns = tuning.turns(14)
    assert turns[:2] == [0, 1]
    assert turns[-3:] == [1, 1, 1]
    assert 0 in turns[2:]  # its first gain was worth another try


def test_the_run_ends_when_no_task_promises_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = Tuning(monkeypatch, [10.0, 10.0], [[0.1], [0.1]], min_gain=0.001)
    turns = tuning.turns(40)
    assert -1 in turns
    assert 8 < turns.index(-1) < 30
    assert tuning.scheduler.settled
    for_ever = Tuning(monkeypatch, [10.0, 10.0], [[0.1], [0.1]], min_gain=0.0)
    assert -1 not in for_ever.turns(40)
    assert not for_ever.scheduler.settled


def test_finished_tasks_have_no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = Tuning(monkeypatch, [2.0, 2.0], [[], []])
    tuning.tasks_[0].is_terminated = True
    assert tuning.turns(3) == [1, 1, 1]
    tuning.tasks_[1].is_terminated = True
    assert tuning.turns(1) == [-1]
    assert not tuning.scheduler.settled
