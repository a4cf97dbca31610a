"""Lines of one file, or of two side by side. Every error names file and line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple, TypeVar

from luong.toolkit.errors import ToolkitError
from luong.toolkit.reading import MAX_BYTES, Problem, blocks, decoded, split

_LONGEST = 1 << 24  # bytes of a line, whatever max_length allows


class Pair(NamedTuple):
    source: str
    target: str


Line = TypeVar("Line", str, str | Problem)


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, which end at "\\n" or "\\r\\n" only, without a leading
    BOM.
    """
    for line in checked(path, None):
        if isinstance(line, Problem):
            raise ToolkitError(str(line))
        yield line


def pairs(source: Path, target: Path) -> Iterator[Pair]:
    """Yield line i of one file with line i of the other, without checks."""
    both = zip_longest(lines(source), lines(target))
    return (Pair(*sides) for sides in even(both, source, target))


def read_pairs(source: Path, target: Path) -> list[Pair]:
    """Return all of `pairs`; refuse an empty corpus."""
    found = list(pairs(source, target))
    if not found:
        raise ToolkitError(f"{source}: no lines in it")
    return found


def checked(path: Path, max_length: int | None) -> Iterator[str | Problem]:
    """Yield each line of a file, or the reason why it cannot be read."""
    limit, reason = MAX_BYTES, f"is longer than {MAX_BYTES:,} bytes"
    if max_length is not None:
        limit, reason = 4 * (2 * max_length + 1) + 5, too_long(max_length)  # TAB, BOM, "\r"
    if limit > _LONGEST:
        limit, reason = _LONGEST, f"is longer than {_LONGEST:,} bytes"
    for number, line in enumerate(chain.from_iterable(split(blocks(path), limit)), 1):
        if len(line) > limit:
            yield Problem(f"{path}:{number}", reason)
        else:
            yield decoded(line, str(path), number)


def too_long(max_length: int) -> str:
    """Return the reason to refuse a text of more than `max_length` characters."""
    return f"is longer than {max_length:,} characters (max_length)"


def even(
    both: Iterator[tuple[Line | None, Line | None]], source: Path, target: Path
) -> Iterator[tuple[Line, Line]]:
    """Yield the lines of two files; refuse files of unequal length."""
    for number, (left, right) in enumerate(both, 1):
        if left is not None and right is not None:
            yield left, right
            continue
        longest = number + sum(1 for _ in both)
        counts = (number - 1, longest) if left is None else (longest, number - 1)
        require_even({str(source): counts[0], str(target): counts[1]})


def require_even(counts: dict[str, int]) -> None:
    """Refuse files, given by name, whose number of lines differs from the first one's."""
    (first, count), *others = counts.items()
    for other, n in others:
        if n != count:
            raise ToolkitError(
                f"{first if count < n else other}:{min(count, n) + 1}: there is no such line: "
                f"{first} has {count:,} line{'' if count == 1 else 's'}, {other} has {n:,}; "
                "they should agree"
            )
