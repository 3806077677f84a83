"""How a command is asked to end: two signals, one wish, and SIGINT that is ignored stays so."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from tencost import signals


@pytest.fixture(autouse=True)
def handlers_come_back() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    after = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")]
)
def test_both_raise_the_same_and_one_is_named(number: signal.Signals, name: str) -> None:
    with pytest.raises(KeyboardInterrupt), signals.listening():
        signal.raise_signal(number)
    assert signals.name() == name
    assert signals.terminated() is (number == signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_are_handled_the_same(number: signal.Signals) -> None:
    heard: list[str] = []
    with signals.listening():
        with signals.handled(lambda: heard.append(signals.name())):
            signal.raise_signal(number)
            signal.raise_signal(number)
        assert len(heard) == 2
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_where_sigint_is_ignored_it_stays_so_and_is_not_named() -> None:
    heard: list[str] = []
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals.listening(), signals.handled(lambda: heard.append(signals.name())):
            signal.raise_signal(signal.SIGINT)
            assert signals.name() == "SIGTERM"
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == ["SIGTERM"]


def test_a_handler_of_others_is_left_alone() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with signals.listening():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_another_thread_changes_nothing() -> None:
    found: list[object] = []

    def look() -> None:
        with signals.listening(), signals.handled(lambda: None):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]


def test_a_second_command_begins_anew() -> None:
    with pytest.raises(KeyboardInterrupt), signals.listening():
        signal.raise_signal(signal.SIGTERM)
    with signals.listening():
        assert not signals.terminated()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("released", [True, False])
def test_what_is_held_back_comes_afterwards(number: signal.Signals, released: bool) -> None:
    def work() -> None:
        with signals.hold_signals() as release:
            signal.raise_signal(number)
            reached.append("first")
            if released:
                release()
                reached.append("second")

    reached: list[str] = []
    with signals.listening():
        with pytest.raises(KeyboardInterrupt):
            work()
        assert reached == ["first"]
        with signals.hold_signals() as release:
            release()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    assert signals.terminated() is (number == signal.SIGTERM)
