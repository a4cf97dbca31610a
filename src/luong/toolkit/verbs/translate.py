"""luong translate"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import cast

from luong.toolkit import terminal
from luong.toolkit.errors import ToolkitError


def run(argv: Sequence[str]) -> None:
    """luong translate MODEL [TEXT ...] [< lines]"""
    parser = terminal.parser(
        "translate", "A line out for every line in, in order; a blank line for a blank one."
    )
    parser.add_argument("model", type=Path, help="the folder of a trained model")
    parser.add_argument("text", nargs="*", help="what to translate; without it, lines of stdin")
    arguments = parser.parse_args(list(argv))

    from luong.toolkit.translating import Translator

    translator = Translator.load(arguments.model)
    if arguments.text:
        named = [(repr(text), terminal.checked(text)) for text in arguments.text]
        incoming: Iterable[list[tuple[str, str]]] = [named]
    else:
        incoming = _incoming(cast(BufferedReader, sys.stdin.buffer))
    for chunk in incoming:
        names, lines = zip(*chunk, strict=True)
        for name, translation in zip(names, translator.translate(lines), strict=True):
            terminal.report(translation, name)
            print(translation.text)
        sys.stdout.flush()


def _incoming(stream: BufferedReader) -> Iterator[list[tuple[str, str]]]:
    """Lines after their names, as many at a time as are there: none waits for a batch to fill."""
    first, rest = 1, b""
    while chunk := stream.read1(1 << 16):
        *complete, rest = (rest + chunk).split(b"\n")
        yield from _decoded(complete, first)
        first += len(complete)
    yield from _decoded([rest] if rest else [], first)


def _decoded(lines: Iterable[bytes], first: int) -> Iterator[list[tuple[str, str]]]:
    """All `lines` at once; those before a bad one are not lost with it."""
    from luong.toolkit.corpus import numbered

    named: list[tuple[str, str]] = []
    refused: ToolkitError | None = None
    try:
        for line in numbered(lines, "stdin", first):
            named.append(line)  # noqa: PERF402  (keeps what came before an error)
    except ToolkitError as error:
        refused = error
    if named:
        yield named
    if refused:
        raise refused
