"""The standard streams: UTF-8 in any locale, safe for a terminal, and safe when they fail."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from importlib.util import find_spec
from typing import Any, TextIO, cast

from luong.toolkit.errors import ToolkitError

# C0, DEL and C1; what ends lines, or turns the direction of writing
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_CONTROL_IN_LINES = re.compile(f"(?![\t\n]){_CONTROL.pattern}")


def printable(text: str, controls: re.Pattern[str] = _CONTROL) -> str:
    """Return `text` with control characters escaped as Python writes them: `\\x1b`."""
    return controls.sub(lambda match: repr(match[0])[1:-1], text)


def typed(prompt: str) -> Iterator[str]:
    """Yield each line that is typed at the terminal, until the input ends.

    The prompt stands on stderr where stdout is a file or a pipe, which holds results only.
    """
    sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
    if find_spec("readline"):
        import readline  # noqa: F401  (gives `input` its editing and history)
    ask = input if sys.stdout.isatty() else _ask
    with suppress(EOFError):
        while True:
            yield ask(prompt)
    print(file=sys.stderr)


def _ask(prompt: str) -> str:
    print(prompt, end="", file=sys.stderr, flush=True)
    if line := sys.stdin.readline():
        return line.removesuffix("\n")
    raise EOFError


@contextmanager
def guarded() -> Iterator[None]:
    """Make stdout and stderr UTF-8 in any locale, and handle their failures in the block."""
    for name, flags in (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:  # closed: of these, using the first two fails
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.open(os.devnull, flags), mode))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        cast(Any, stream).reconfigure(encoding="utf-8", errors="backslashreplace")
    results, messages = cast(TextIO, Results(sys.stdout)), cast(TextIO, Messages(sys.stderr))
    with redirect_stdout(results), redirect_stderr(messages):
        yield


class Results:
    """A stdout that names its errors, and escapes control characters on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._shown = stream, stream.isatty()

    def write(self, text: str) -> int:
        with self._naming():
            return self._stream.write(printable(text, _CONTROL_IN_LINES) if self._shown else text)

    def flush(self) -> None:
        with self._naming():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            _drop(self._stream)
            if isinstance(error, BrokenPipeError):  # the reader has gone: nobody to tell
                raise
            raise ToolkitError(f"stdout: {error.strerror}") from error


class Messages:
    """A stderr whose failures stop nothing: the program goes on without it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            _drop(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            _drop(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _drop(stream: TextIO) -> None:
    """Let all that is still written to a stream that has failed vanish."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
