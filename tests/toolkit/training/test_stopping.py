from __future__ import annotations

import os
import signal

import pytest

from luong.toolkit.errors import UsageError
from luong.toolkit.training.stopping import Stop, Stopped, duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45s", 45), ("90m", 5400), ("2h30m", 9000), ("1d1s", 86401), ("1d2h3m4s", 93784)],
)
def test_duration(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "2h 30m", "1.5h", "30m2h", "-5m", "0s", "m"])
def test_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="--max-time: expected a time such as 2h30m"):
        duration(text)


def test_no_reason_to_stop() -> None:
    with Stop() as stop:
        assert Stop.reason(stop.votes()) is None
    with Stop(3600) as stop:
        assert Stop.reason(stop.votes()) is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noted_and_the_next_is_not(number: int) -> None:
    class Second(Exception):
        pass

    def second(*_: object) -> None:
        raise Second

    before = signal.signal(number, second)
    try:
        with Stop() as stop:
            os.kill(os.getpid(), number)
            reason = Stop.reason(stop.votes())
            assert reason is not None
            assert reason.status == 128 + number
            with pytest.raises(Second):
                os.kill(os.getpid(), number)
    finally:
        signal.signal(number, before)


def test_a_signal_of_another_process_counts() -> None:
    with Stop() as stop:
        votes = stop.votes()
    votes[1] += 1.0
    reason = Stop.reason(votes)
    assert reason is not None
    assert (str(reason), reason.status) == ("Ctrl-C", 130)


def test_at_once() -> None:
    with Stop() as stop, pytest.raises(Stopped, match="SIGTERM"), stop.at_once():
        os.kill(os.getpid(), signal.SIGTERM)
    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped, match="SIGTERM"), stop.at_once():
            raise AssertionError("what was noted before has to be heard")


def test_the_end_of_the_terminal_is_ignored_where_nohup_ignores_it() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stop() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert Stop.reason(stop.votes()) is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
