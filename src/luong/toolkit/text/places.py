"""The word or character of a line that each piece, as a model reads or writes it, belongs to."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Places(NamedTuple):
    """The word (or character) of a line that each of its pieces belongs to, by position from 0.

    Words are those of `str.split`, however the vocabulary splits the line. A line without words
    has no places.
    """

    of: Sequence[int]
    total: int  # words (or characters) of the line


def find(line: str, starts: Iterable[int], *, characters: bool) -> Places:
    """Return the places of the pieces that start at these offsets of `line`.

    A piece that starts with white space belongs to the word behind it.
    """
    ends = range(1, len(line) + 1) if characters else [m.end() for m in re.finditer(r"\S+", line)]
    last = len(ends) - 1
    found = [min(bisect_right(ends, start), last) for start in starts] if ends else []
    return Places(found, len(ends))


def written(line: str, places: Places, *, characters: bool) -> list[str]:
    """Return the word of each piece as it stands in `line`, or its character with its marks."""
    if not characters:
        words = line.split()
        return [words[place] for place in places.of]
    starts = [*sorted(set(places.of)), len(line)]
    return [line[place : starts[bisect_right(starts, place)]] for place in places.of]
