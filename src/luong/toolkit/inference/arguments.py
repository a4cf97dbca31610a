"""Checks of the arguments of the methods of a `Translator`."""

from __future__ import annotations

from collections.abc import Iterable

from luong.toolkit.text.lines import Pair


def strings(name: str, lines: Iterable[str]) -> list[str]:
    """Return `lines` as a list; raise TypeError unless it holds strings, and is not one itself."""
    if isinstance(lines, str):  # a string is a sequence of characters too
        raise TypeError(f"{name}: expected a list of strings; for one line, give [{lines[:80]!r}]")
    lines = list(lines)
    for i, line in enumerate(lines):
        if not isinstance(line, str):
            raise TypeError(f"{name}: expected a list of strings, but number {i} is {line!r}")
    return lines


def pairs_of(sources: Iterable[str], targets: Iterable[str]) -> list[Pair]:
    """Return each source with its target; raise ValueError unless their numbers are equal."""
    sides = strings("sources", sources), strings("targets", targets)
    counts = [len(side) for side in sides]
    if counts[0] != counts[1]:
        raise ValueError(f"targets: expected {counts[0]:,}, as many as sources, got {counts[1]:,}")
    return [Pair(*pair) for pair in zip(*sides, strict=True)]
