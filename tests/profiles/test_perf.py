"""Counters of a CPU: what a host allows is counted, what it does not is explained."""

from __future__ import annotations

import errno
import math
import mmap
import platform
import time

import pytest

from tencost.errors import ProfileError
from tencost.tune.roofline import perf

needs_linux = pytest.mark.skipif(platform.system() != "Linux", reason="perf_event_open is Linux's")


def need(*events: str) -> None:
    usable = perf.usable()
    for event in events:
        if usable[event]:
            pytest.skip(usable[event])


def test_counts_are_scaled_by_the_time_that_they_were_on() -> None:
    assert perf.scaled(100, 1000, 1000) == perf.Count(100.0, 1.0)
    assert perf.scaled(100, 1000, 250) == perf.Count(400.0, 0.25)
    never = perf.scaled(0, 1000, 0)
    assert math.isnan(never.value)
    assert never.share == 0.0


@needs_linux
def test_every_event_works_or_says_why_not() -> None:
    for event, why in perf.usable().items():
        if why:
            assert event in why or "perf_event_open" in why
            with pytest.raises(ProfileError, match=event):
                perf.count(lambda: None, [event])
        else:
            assert perf.count(lambda: None, [event])[event].value >= 0
    assert bool(perf.available()) == any(perf.usable()[name] for name in ("cycles", "instructions"))


@needs_linux
def test_touched_pages_are_faults() -> None:
    need("page-faults")
    pages = 512

    def touch() -> None:
        with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
            for page in range(pages):
                memory[page * mmap.PAGESIZE] = 1

    quiet = perf.count(lambda: None, ["page-faults"])["page-faults"].value
    assert perf.count(touch, ["page-faults"])["page-faults"].value >= quiet + pages / 2


@needs_linux
def test_time_on_a_cpu_is_not_time_asleep() -> None:
    need("task-clock", "context-switches")
    asleep = perf.count(lambda: time.sleep(0.05), ["task-clock", "context-switches"])
    busy = perf.count(lambda: sum(range(2_000_000)), ["task-clock"])
    assert asleep["task-clock"].value < busy["task-clock"].value
    assert asleep["context-switches"].value >= 1


@needs_linux
def test_twice_the_work_is_twice_the_instructions() -> None:
    need("instructions", "cycles")
    once = perf.count(lambda: sum(range(1_000_000)), ["instructions"])["instructions"].value
    twice = perf.count(lambda: sum(range(2_000_000)), ["instructions"])["instructions"].value
    assert 1.5 < twice / once < 2.5


def test_reasons_say_what_to_do() -> None:
    assert "perf_event_paranoid" in perf._told("cycles", errno.EACCES)
    assert "virtual machine" in perf._told("cycles", errno.ENOENT)
    assert "virtual machine" in perf._told("cycles", errno.EOPNOTSUPP)
    assert "CONFIG_PERF_EVENTS" in perf._told("cycles", errno.ENOSYS)
    with pytest.raises(ProfileError, match="expected events of cycles"):
        perf.count(lambda: None, ["flops"])
