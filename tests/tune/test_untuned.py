"""What tasks take untuned: timed once, kept with the session, and preferred to a program that is slower."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import te, topi
from tvm.ir import save_json
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tencost.config import GraphChoice
from tencost.errors import TuneError
from tencost.networks.network import NetworkTask
from tencost.store.ids import workload_id
from tencost.store.status import Status, Timing
from tencost.tune.deploy import better_than_rules, layout_note
from tencost.tune.session import time_untuned
from tencost.tune.workfolder import open_folder, read_untuned_times

pytestmark = pytest.mark.tvm
TARGET = {"kind": "llvm", "num-cores": 1}


@pytest.fixture
def task() -> NetworkTask:
    a = te.placeholder((16, 32), name="a")
    mod = tvm.IRModule({"main": te.create_prim_func([a, topi.nn.softmax(a)])})
    return NetworkTask("softmax", mod, 1, 100.0, None)


class Clock:
    """Times by what is compiled: 3 s with leave to reorder sums, which is by rule, else 5 s; some fail."""

    def __init__(self, *failing: str) -> None:
        self.asked: list[str] = []
        self._failing = failing

    def __call__(self, _mod: Any, limit_s: float, target: dict[str, Any]) -> Timing:
        by_rule = bool(target.get("fast-math-reassoc"))
        self.asked.append("rule" if by_rule else "default")
        if self.asked[-1] in self._failing:
            return Timing(Status.run_error, (), "it fell over")
        return Timing(Status.ok, (3.0,) if by_rule else (5.0,))


def time_it(
    path: Path, task: NetworkTask, clock: Clock, target: dict[str, Any] = TARGET
) -> dict[str, float]:
    with open_folder(path, "one", "local", target) as folder:
        time_untuned([("w", task)], target, 7.0, folder, clock, lambda _done: None)
        return folder.untuned_s


def test_a_task_is_timed_once_by_rule(tmp_path: Path, task: NetworkTask) -> None:
    clock = Clock()
    assert time_it(tmp_path, task, clock) == {"w": 3.0}
    assert time_it(tmp_path, task, clock) == {"w": 3.0}
    assert clock.asked == ["rule"]
    assert read_untuned_times(tmp_path) == {"w": 3.0}


def test_where_there_are_no_rules_the_default_schedule_is_timed(
    tmp_path: Path, task: NetworkTask
) -> None:
    clock = Clock()
    assert time_it(tmp_path, task, clock, {"kind": "c"}) == {"w": 5.0}
    assert clock.asked == ["default"]


def test_times_of_other_rules_are_taken_anew(tmp_path: Path, task: NetworkTask) -> None:
    time_it(tmp_path, task, Clock())
    session = tmp_path / "session.json"
    values = json.loads(session.read_text())
    session.write_text(json.dumps({**values, "rules": "others", "untuned_s": {"w": 4.0}}))
    assert read_untuned_times(tmp_path) == {}
    again = Clock()
    assert time_it(tmp_path, task, again) == {"w": 3.0}
    assert again.asked == ["rule"]


@pytest.mark.parametrize(
    ("failing", "taken"), [(("rule",), 5.0), (("rule", "default"), math.inf)], ids=["rule", "both"]
)
def test_what_cannot_be_timed_by_rule_is_timed_by_default_and_else_any_program_is_better(
    tmp_path: Path, task: NetworkTask, failing: tuple[str, ...], taken: float
) -> None:
    clock = Clock(*failing)
    assert time_it(tmp_path, task, clock) == {"w": taken}
    assert clock.asked == ["rule", "default"]
    assert read_untuned_times(tmp_path) == {"w": taken}
    assert time_it(tmp_path, task, Clock()) == {"w": taken}, "it is not tried again"


@pytest.mark.parametrize("is_stopped", [True, False])
def test_what_takes_longer_than_the_limit_hides_no_program(
    tmp_path: Path, task: NetworkTask, is_stopped: bool
) -> None:
    """A program of 6 s is better than one by rule that was stopped after 5 s; nobody knows by how much."""
    asked = []

    def slow(_mod: Any, limit_s: float, target: dict[str, Any]) -> Timing:
        asked.append((limit_s, target))
        return Timing(Status.run_timeout, ()) if is_stopped else Timing(Status.ok, (7.5,))

    with open_folder(tmp_path, "one", "local", TARGET) as folder:
        time_untuned([("w", task)], TARGET, 7.0, folder, slow, lambda _done: None)
        assert folder.untuned_s == {"w": math.inf}
    assert len(asked) == 1, "the default schedule would take longer still"


@pytest.mark.parametrize(
    ("kept", "read"),
    [
        ({"untuned_s": {"w": 3.0, "v": -1.0, "u": math.nan}}, {"w": 3.0}),
        ({"rule_s": {"w": 3.0, "v": math.inf}, "baseline_s": {"w": 9.0, "v": 9.0}}, {"w": 3.0}),
        ({"baseline_s": {"w": 9.0}}, {}),
    ],
    ids=["times that are none", "times by rule and default schedules", "default schedules alone"],
)
def test_folders_of_earlier_releases_are_read(
    tmp_path: Path, task: NetworkTask, kept: dict[str, Any], read: dict[str, float]
) -> None:
    time_it(tmp_path, task, Clock())
    session = tmp_path / "session.json"
    values = json.loads(session.read_text())
    del values["untuned_s"]
    session.write_text(json.dumps(values | kept))
    assert read_untuned_times(tmp_path) == read
    clock = Clock()
    assert time_it(tmp_path, task, clock) == {"w": 3.0}
    assert clock.asked == ([] if read else ["rule"])


def test_where_there_are_no_rules_default_schedules_are_what_is_untuned(
    tmp_path: Path, task: NetworkTask
) -> None:
    target = {"kind": "c"}
    time_it(tmp_path, task, Clock(), target)
    session = tmp_path / "session.json"
    values = json.loads(session.read_text()) | {"rules": "others"}
    assert time_it(tmp_path, task, (clock := Clock()), target) == {"w": 5.0}
    del values["untuned_s"]
    session.write_text(json.dumps(values | {"baseline_s": {"w": 9.0}, "rule_s": {}}))
    assert time_it(tmp_path, task, clock, target) == {"w": 9.0}
    assert clock.asked == []


@pytest.mark.parametrize("text", ["", "[]", '{"untuned_s": {}}', '{"target": {"kind": "llvm"}}'])
def test_what_is_no_session_has_no_times(tmp_path: Path, text: str) -> None:
    assert read_untuned_times(tmp_path / "nowhere") == {}
    (tmp_path / "session.json").write_text(text)
    assert read_untuned_times(tmp_path) == {}


def test_a_number_beyond_all_floats_is_no_time(tmp_path: Path, task: NetworkTask) -> None:
    time_it(tmp_path, task, Clock())
    session = tmp_path / "session.json"
    values = json.loads(session.read_text()) | {"untuned_s": {"w": 10**400}}
    session.write_text(json.dumps(values))
    assert read_untuned_times(tmp_path) == {}
    with pytest.raises(TuneError, match="expected a tuning session"):
        time_it(tmp_path, task, Clock())


@pytest.mark.parametrize(
    ("untuned_s", "is_kept"),
    [(0.5, False), (2.0, True), (1.0, False), (1.01, False), (math.inf, True), (None, True)],
)
def test_a_program_that_is_slower_than_by_rule_is_not_used(
    task: NetworkTask, untuned_s: float | None, is_kept: bool
) -> None:
    target = tvm.target.Target(TARGET)
    database = ms.database.MemoryDatabase()
    workload = database.commit_workload(task.mod)
    for seconds in (1.0, 4.0):
        schedule = Schedule(task.mod)
        schedule.unroll(schedule.get_loops(schedule.get_sblock("T_softmax_norm"))[-1])
        record = ms.database.TuningRecord(schedule.trace, workload, [seconds], target)
        database.commit_tuning_record(record)
    known = {} if untuned_s is None else {workload_id(str(save_json(task.mod))): untuned_s}
    kept = better_than_rules(database, [task], TARGET, known)
    found = kept.query_tuning_record(task.mod, target, "main")
    assert (found is not None) is is_kept
    if is_kept:
        assert [float(one) for one in found.run_secs] == [1.0]


def test_channels_first_are_told_of_where_that_can_be_changed(task: NetworkTask) -> None:
    x, w = te.placeholder((1, 4, 8, 8), name="x"), te.placeholder((4, 4, 3, 3), name="w")
    function = te.create_prim_func([x, w, topi.nn.conv2d_nchw(x, w, 1, 1, 1)])
    conv = NetworkTask("conv2d", tvm.IRModule({"main": function}), 1, 1.0, None)
    assert "1 convolutions" in layout_note(GraphChoice.as_is, [conv, task], TARGET)
    assert "network.graph=channels_last" in layout_note(GraphChoice.as_is, [conv], TARGET)
    assert layout_note(GraphChoice.as_is, [task], TARGET) == ""
    assert layout_note(GraphChoice.channels_last, [conv], TARGET) == ""
    assert layout_note(GraphChoice.as_is, [conv], {"kind": "cuda"}) == ""
