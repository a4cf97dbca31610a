"""The report of `luong check` on a corpus: its bad lines, and a summary of the good ones."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from luong.toolkit.choices import SPECIAL
from luong.toolkit.corpora import Table, parse
from luong.toolkit.errors import ToolkitError
from luong.toolkit.reading import Problem
from luong.toolkit.standard import printable
from luong.toolkit.text import corpus
from luong.toolkit.text.lines import Pair

_SPECIAL = frozenset(SPECIAL)
_HINT = " (two files whose lines belong together are one corpus: SOURCE,TARGET)"


class Lengths(NamedTuple):
    """The lengths of the lines of one side, in characters or in words, which white space
    separates.
    """

    median: int
    percentile_95: int
    longest: int
    distinct: int  # characters or words


class Mention(NamedTuple):
    """Good lines of one side with something in them that is seldom meant."""

    lines: int
    first: int  # the number of the first one


MENTIONS = {
    "reserved": f"{', '.join(SPECIAL)} or ▁, which vocabularies keep for themselves",
    "carriage_return": "a CR inside, where only LF or CR LF ends a line",
    "composed": "letters with marks as one character (NFC)",
    "decomposed": "letters with marks as several (NFD)",
}


@dataclass
class Report:
    """One corpus, as it stands in its files: nothing is normalised."""

    name: str
    pairs: int  # good ones
    bad_lines: int
    problems: list[Problem]  # of the first bad lines; one of two files may have two
    error: str | None  # what ended the reading
    repeated: int  # pairs that are there before
    equal: int  # pairs with the same text on both sides
    lengths: dict[str, dict[str, Lengths]]  # by side, then "characters" or "words"
    mentions: dict[str, dict[str, Mention]]  # by side, then as `MENTIONS` has them


class Overlap(NamedTuple):
    """The numbers of distinct pairs and sources of a corpus that are in another one."""

    name: str
    other: str
    pairs: int
    sources: int


class Hashes(NamedTuple):
    """The hashes of distinct pairs and sources, sorted: enough to compare corpora, in 8 bytes
    each.
    """

    pairs: NDArray[np.int64]
    sources: NDArray[np.int64]


@dataclass
class _Side:
    characters: array[int] = field(default_factory=lambda: array("l"))
    words: array[int] = field(default_factory=lambda: array("l"))
    distinct_characters: set[str] = field(default_factory=set)
    distinct_words: set[str] = field(default_factory=set)
    seen: dict[str, Mention] = field(default_factory=dict)

    def add(self, text: str, number: int) -> None:
        words = text.split()
        self.characters.append(len(text))
        self.words.append(len(words))
        self.distinct_characters.update(text)
        self.distinct_words.update(words)
        for kind in _found(text, words):
            lines, first = self.seen.get(kind, (0, number))
            self.seen[kind] = Mention(lines + 1, first)

    def mentions(self) -> dict[str, Mention]:
        """Return what to mention; forms of letters are mentioned where both are there."""
        forms = {"composed", "decomposed"}
        return {
            kind: mention
            for kind, mention in self.seen.items()
            if kind not in forms or forms <= self.seen.keys()
        }

    def lengths(self) -> dict[str, Lengths]:
        return {
            "characters": _lengths(self.characters, self.distinct_characters),
            "words": _lengths(self.words, self.distinct_words),
        }


def check(name: str, max_length: int, limit: int) -> tuple[Report, Hashes]:
    """Read a corpus to its end, and keep what is wrong with the first `limit` bad lines."""
    source, target = _Side(), _Side()
    pairs, sources = array("q"), array("q")
    problems, bad, equal, error = list[Problem](), 0, 0, None
    try:
        table = isinstance(known := parse(name), Table)
        items = _progress(corpus.scan(known, max_length), name)
        for number, item in enumerate(items, 1):  # a line of a file each
            if isinstance(item, Pair):
                source.add(item.source, number)
                target.add(item.target, number)
                pairs.append(hash(item))
                sources.append(hash(item.source))
                equal += item.source == item.target
            else:
                bad += 1
                problems += item if bad <= limit else []
        if not pairs:
            error = f"{name}: no pairs in it" + (_HINT if bad and table else "")
    except ToolkitError as ended:
        error = str(ended)
    hashes = Hashes(np.unique(np.array(pairs)), np.unique(np.array(sources)))
    lengths = {"source": source.lengths(), "target": target.lengths()} if pairs else {}
    mentions = {"source": source.mentions(), "target": target.mentions()}
    repeated = len(pairs) - len(hashes.pairs)
    found = Report(name, len(pairs), bad, problems, error, repeated, equal, lengths, mentions)
    return found, hashes


def overlaps(corpora: Sequence[tuple[str, Hashes]]) -> list[Overlap]:
    """Return the pairs and sources that each corpus shares with those before it."""
    shared = [
        Overlap(
            name,
            other,
            len(np.intersect1d(mine.pairs, theirs.pairs, assume_unique=True)),
            len(np.intersect1d(mine.sources, theirs.sources, assume_unique=True)),
        )
        for (other, theirs), (name, mine) in combinations(corpora, 2)
    ]
    return [overlap for overlap in shared if overlap.sources]


def _found(text: str, words: Sequence[str]) -> Iterator[str]:
    """Return which of `MENTIONS` occur in a text."""
    if "▁" in text or ("<" in text and not _SPECIAL.isdisjoint(words)):
        yield "reserved"
    if "\r" in text:
        yield "carriage_return"
    if not text.isascii():
        if len(normalize("NFC", text)) < len(text):
            yield "decomposed"
        if len(normalize("NFD", text)) > len(text):
            yield "composed"


def _lengths(lengths: array[int], distinct: set[str]) -> Lengths:
    ranked = np.sort(np.array(lengths))
    median, percentile = (int(ranked[round(p * (len(ranked) - 1))]) for p in (0.5, 0.95))
    return Lengths(median, percentile, int(ranked[-1]), len(distinct))


def _progress(items: Iterable[Pair | list[Problem]], name: str) -> Iterable[Pair | list[Problem]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    description = TextColumn("{task.description}", markup=False)
    columns = description, BarColumn(), TimeElapsedColumn()
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bar:
        yield from bar.track(items, description=printable(name))
