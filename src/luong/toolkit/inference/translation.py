"""The results of a model for a line: a translation, a score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from luong.seq2seq.search import Hypothesis
from luong.seq2seq.symbols import UNKNOWN
from luong.toolkit.text.places import Places, written
from luong.toolkit.text.vocabulary import Vocabulary


class Translation(NamedTuple):
    """A translation of one line by a model."""

    text: str
    source: list[str]  # the pieces of the source that were read
    target: list[str]  # the pieces of the output
    weights: Tensor  # (target, source), on the CPU: attention when each piece was predicted
    unseen: list[str]  # pieces of the source that are not in the vocabulary
    score: float  # log-probability
    finished: bool  # False: cut at the length limit
    dropped: int = 0  # pieces of the source past the longest that is read
    places: tuple[Places, Places] | None = None  # of the pieces; None: each is a word of its own

    @property
    def tokens(self) -> list[str]:
        """The pieces of the output."""
        return self.target

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """(source, target) positions: each piece's word and the word that it attended most.

        Words are those of `str.split`; where a side is read in characters, they are its characters.
        """
        links = [(j, i) for i, j in enumerate(strongest(self.weights)) if j is not None]
        if self.places is None:
            return links
        source, target = (side.of for side in self.places)
        return list(dict.fromkeys((source[j], target[i]) for j, i in links if source and target))

    def __repr__(self) -> str:
        cut = "" if self.finished else ", cut"
        return f"<Translation {self.text!r}, score {self.score:.4f}{cut}>"


class Score(NamedTuple):
    """The log-probability of a given target."""

    score: float  # log-probability: the sum of `steps`
    steps: list[float]  # of each piece of the target, and of its end


def strongest(weights: Tensor) -> list[int | None]:
    """Return the position of largest weight in each row of (n, m); None in rows of zeros."""
    if not weights.shape[1]:
        return [None] * len(weights)
    best = weights.max(1)
    return [
        j if weight > 0 else None
        for weight, j in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def translated(
    line: str,
    symbols: list[int],
    dropped: int,
    found: Hypothesis,
    source: Vocabulary,
    target: Vocabulary,
    replace_unknown: Mapping[str, str] | None,
) -> Translation:
    """Return the hypothesis that was found for a line, as text.

    `symbols` are those of the line that were read, and END; `dropped` the number of the others.
    """
    pieces = source.split(line)[: len(symbols) - 1]
    (places,) = source.places([line])
    names = [target.names[symbol] for symbol in found.symbols]
    text = target.decode(found.symbols)
    if replace_unknown is not None and UNKNOWN in found.symbols:
        names = _replaced(line, places, names, found, source, replace_unknown)
        text = target.join(names)
    return Translation(
        text=text,
        source=pieces,
        target=names,
        weights=found.weights.cpu(),
        unseen=[piece for piece, s in zip(pieces, symbols, strict=False) if s == UNKNOWN],
        score=found.score,
        finished=found.finished,
        dropped=dropped,
        places=(places, target.places_of(names)),
    )


def _replaced(
    line: str,
    places: Places,
    names: list[str],
    found: Hypothesis,
    source: Vocabulary,
    dictionary: Mapping[str, str],
) -> list[str]:
    """Return `names` with unknown ones replaced by source words, as these were written."""
    words = written(line, places, characters=source.reads_characters)
    raw = [None if j is None else words[j] for j in strongest(found.weights)]
    return [
        piece if word is None or symbol != UNKNOWN else dictionary.get(word, word)
        for word, symbol, piece in zip(raw, found.symbols, names, strict=True)
    ]
