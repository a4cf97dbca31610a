"""The parser of command lines, and messages at the terminal."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from luong.toolkit.errors import ToolkitError, UsageError
from luong.toolkit.standard import printable

if TYPE_CHECKING:
    from luong.toolkit.inference.translator import Translation


_WORD = "\0"  # begins what is no option; no argument of a process holds it
_WIDTH = 79  # of a description; other texts keep their lines, or fill the terminal


def say(text: str) -> None:
    """Print a message on stderr, in one line."""
    print(f"luong: {printable(text)}", file=sys.stderr)


class Parser(argparse.ArgumentParser):
    """The parser of a verb; what it refuses becomes the one line that people see."""

    def __init__(self, verb: str, description: str, epilog: str | None = None) -> None:
        super().__init__(
            prog=f"luong {verb}",
            description=textwrap.fill(description, _WIDTH),
            epilog=epilog,
            formatter_class=_Help,
            allow_abbrev=False,
        )
        self.register("type", None, _word)
        self.register("type", Path, lambda text: Path(_word(text)))
        self.register("type", int, _whole_number)
        self.register("type", float, _number)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Read options and words in any order; after `--` are words only, with a "-" or without."""
        place = [*argv, "--"].index("--")
        words = [_WORD + word for word in argv[place + 1 :]]
        return self.parse_intermixed_args([*argv[:place], *words])

    def error(self, message: str) -> NoReturn:
        raise UsageError(_word(message.removeprefix("argument ")))


def _word(text: str) -> str:
    return text.replace(_WORD, "")


def _whole_number(text: str) -> int:
    with suppress(ValueError):
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")


def _number(text: str) -> float:
    with suppress(ValueError):
        return float(text)
    raise argparse.ArgumentTypeError(f"expected a number, got {text!r}")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help that names the default of an option, unless its text does so itself."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text, taken = action.help or "", action.default
        quiet = taken is None or taken is False or taken in ("", [], argparse.SUPPRESS)
        return text if quiet or "default" in text else f"{text} (default: %(default)s)"


def checked(text: str) -> str:
    """Return `text`, if it came as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolkitError(f"not valid UTF-8: {text!r}") from error
    return text


def report(translation: Translation, where: str) -> None:
    if translation.dropped:
        read = len(translation.source)
        say(f"{where}: cut to {read:,} of {read + translation.dropped:,} source symbols")
    if translation.unseen:
        say(f"{where}: never seen in training: {' '.join(dict.fromkeys(translation.unseen))}")
    if not translation.finished:
        say(f"{where}: the output was cut at {len(translation.target)} symbols")
