"""The names of corpora, as settings and options give them: a table, two files, or a dictionary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from luong.toolkit.errors import ToolkitError

Part = Literal["train", "dev", "test"]
_DICTIONARY = "cmudict:"


@dataclass(frozen=True)
class Table:
    """A file of lines source<TAB>target."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class Parallel:
    """Two files whose lines belong together."""

    source: Path
    target: Path

    def __str__(self) -> str:
        return f"{self.source},{self.target}"


@dataclass(frozen=True)
class Dictionary:
    """A part of the CMU Pronouncing Dictionary."""

    part: Part

    def __str__(self) -> str:
        return f"{_DICTIONARY}{self.part}"


Corpus = Table | Parallel | Dictionary


def parse(name: str) -> Corpus:
    """Return the corpus of this name: FILE, SOURCE,TARGET, or cmudict:PART."""
    if name.startswith(_DICTIONARY):
        part = name.removeprefix(_DICTIONARY)
        if part not in get_args(Part):
            raise ToolkitError(f"{name}: expected cmudict:train, cmudict:dev or cmudict:test")
        return Dictionary(cast("Part", part))
    if Path(name).exists() or "," not in name:
        return Table(Path(name))
    sides = name.split(",")
    if len(sides) != 2 or not all(sides):
        raise ToolkitError(f"{name}: expected FILE or SOURCE,TARGET, and no comma in a name")
    return Parallel(*map(Path, sides))


def located(name: str) -> str:
    """Return a name of the same corpus whose files are found from any folder.

    A name that says nothing, or would no longer do so with its folder, stays as it is.
    """
    try:
        corpus = parse(name)
    except ToolkitError:
        return name
    match corpus:
        case Table(path):
            return str(path.absolute())
        case Parallel(source, target):
            absolute = Parallel(source.absolute(), target.absolute())
            return str(absolute) if str(absolute).count(",") == 1 else name
        case Dictionary():
            return name
