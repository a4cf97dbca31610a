"""The reasons for training to stop before its end: Ctrl-C, SIGTERM, SIGHUP, a time limit."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from luong.toolkit.errors import UsageError

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
if hasattr(signal, "SIGHUP"):  # SIGHUP: the terminal was closed; Windows has no such signal
    NAMES[signal.SIGHUP] = "SIGHUP"


class Stopped(Exception):
    """Training has stopped, with nothing lost. `status` is the exit status of the command."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


class Stop:
    """Signals and the end of the time limit, noted inside its `with`.

    The first signal is noted or, inside `at_once`, raises `Stopped`; the second has its usual
    effect.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._at_once = False
        self._signal: int | None = None
        self._end = None if seconds is None else time.monotonic() + seconds
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():  # other threads get no signals
            self._before = {
                number: signal.signal(number, self._note)
                for number in NAMES
                if not _ignored(number)
            }
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def votes(self) -> list[float]:
        """Return 1 for each reason to stop that this process has, 0 for the others."""
        over = self._end is not None and time.monotonic() >= self._end
        return [float(over), *(float(self._signal == number) for number in NAMES)]

    @staticmethod
    def reason(votes: list[float]) -> Stopped | None:
        """Return a reason that any process has."""
        numbers = [number for vote, number in zip(votes, (None, *NAMES), strict=True) if vote]
        return _stopped(numbers[0]) if numbers else None

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let signals stop training at once in the block, in which nothing can be lost."""
        if self._signal is not None:
            raise _stopped(self._signal)
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _note(self, number: int, _: FrameType | None) -> None:
        self._signal = number
        self._restore()
        if self._at_once:
            raise _stopped(number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _ignored(number: int) -> bool:
    """Return whether a signal was ignored before, as nohup ignores the end of the terminal."""
    return NAMES[signal.Signals(number)] == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN


def _stopped(number: int | None) -> Stopped:
    if number is None:
        return Stopped("time limit", 0)
    return Stopped(NAMES[signal.Signals(number)], 128 + number)


def duration(text: str) -> float:
    """Return seconds of `2h30m`, `90m`, `45s` or `1d`."""
    match = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text)
    seconds = 0
    for value, unit in zip(match.groups(0) if match else (), (86400, 3600, 60, 1), strict=False):
        seconds += int(value) * unit
    if not seconds:
        raise UsageError(f"--max-time: expected a time such as 2h30m, 90m or 45s, got {text!r}")
    return float(seconds)
