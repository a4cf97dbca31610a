"""What every verb needs at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from luong.toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from luong.toolkit.translating import Translation


def say(text: str) -> None:
    print(f"luong: {text}", file=sys.stderr)


def parser(verb: str, description: str, **options: Any) -> ArgumentParser:
    from jsonargparse import ArgumentParser

    return ArgumentParser(
        prog=f"luong {verb}", description=description, exit_on_error=False, **options
    )


def options_first(parser: ArgumentParser, argv: Sequence[str]) -> list[str]:
    """`argv` reordered: argparse wants positionals that repeat together, people do not."""
    options, others, rest = list[str](), list[str](), list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*options, word, *others, *rest]
        if not word.startswith("-"):
            others.append(word)
            continue
        options.append(word)
        action = parser._option_string_actions.get(word)
        if rest and action is not None and action.nargs != 0:
            options.append(rest.pop(0))
    return [*options, *others]


def checked(text: str) -> str:
    """`text`, if it came as UTF-8."""
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
