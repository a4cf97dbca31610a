"""Pairs of lines, from files and from the CMU dictionary. Every error names file and line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import cast

from luong.toolkit.corpora import Corpus, Dictionary, Parallel, Table, parse
from luong.toolkit.errors import ToolkitError
from luong.toolkit.reading import Problem
from luong.toolkit.text import cmudict
from luong.toolkit.text.lines import Pair, checked, even, too_long


def refuse(problems: list[Problem]) -> None:
    """Raise the first problem of a line as an error: the rule for bad lines, unless another is
    given.
    """
    raise ToolkitError(str(problems[0]))


def read(name: str) -> list[Pair]:
    """Return the pairs of a corpus as `Data` describes it: one or more, no side empty."""
    return list(pairs(parse(name)))


def pairs(
    corpus: Corpus,
    max_length: int | None = None,
    on_bad_line: Callable[[list[Problem]], None] = refuse,
) -> Iterator[Pair]:
    """Yield the same pairs as a stream, and leave bad lines to `on_bad_line`."""
    good = bad = 0
    for item in scan(corpus, max_length):
        if isinstance(item, Pair):
            good += 1
            yield item
        else:
            bad += 1
            on_bad_line(item)
    if not good:
        raise ToolkitError(f"{corpus}: no pairs in it" + (f", {bad:,} bad lines" if bad else ""))


def scan(corpus: Corpus, max_length: int | None = None) -> Iterator[Pair | list[Problem]]:
    """Yield each pair of a corpus, or all that is wrong with it.

    An error ends it: a file that cannot be read, or two files of unequal length.
    """
    match corpus:
        case Table(path):
            yield from _table(path, max_length)
        case Parallel(source, target):
            yield from _parallel(source, target, max_length)
        case Dictionary(part):
            yield from cmudict.pairs(part)


def files(corpus: Corpus) -> list[Path]:
    """Return the files that a corpus is read from."""
    match corpus:
        case Table(path):
            return [path]
        case Parallel(source, target):
            return [source, target]
        case Dictionary():
            return cmudict.files()


def _table(path: Path, max_length: int | None) -> Iterator[Pair | list[Problem]]:
    for number, line in enumerate(checked(path, max_length), 1):
        if isinstance(line, Problem):
            yield [line]
        else:
            yield _split(line, f"{path}:{number}", max_length)


def _split(line: str, where: str, max_length: int | None) -> Pair | list[Problem]:
    source, _, target = line.partition("\t")
    if not (source.strip() and target.strip()) or "\t" in target:
        shown = repr(line[:80])
        return [Problem(where, f"expected source<TAB>target, neither empty, got {shown}")]
    problems = [Problem(where, f"source {reason}") for reason in _wrong(source, max_length)]
    problems += [Problem(where, f"target {reason}") for reason in _wrong(target, max_length)]
    return problems or Pair(source, target)


def _parallel(source: Path, target: Path, max_length: int | None) -> Iterator[Pair | list[Problem]]:
    if source == target and source.is_fifo():
        raise ToolkitError(f"{source}: a pipe cannot be both sides")
    both = zip_longest(checked(source, max_length), checked(target, max_length))
    for number, sides in enumerate(even(both, source, target), 1):
        problems = list[Problem]()
        for path, side in zip((source, target), sides, strict=True):
            if isinstance(side, Problem):
                problems.append(side)
            else:
                where = f"{path}:{number}"
                problems += [Problem(where, reason) for reason in _wrong(side, max_length)]
        yield problems or Pair(*cast("tuple[str, str]", sides))


def _wrong(text: str, max_length: int | None) -> list[str]:
    """Return the reasons why one side of a pair is bad."""
    reasons = []
    if max_length is not None and len(text) > max_length:
        reasons.append(too_long(max_length))
    if "\0" in text:
        reasons.append(f"holds NUL (character {text.index(chr(0)) + 1})")
    if not text or text.isspace():
        reasons.append("is empty")
    return reasons
