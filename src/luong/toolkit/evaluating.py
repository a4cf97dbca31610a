"""How good a model is, on pairs that it did not see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rapidfuzz.distance import Levenshtein

from luong.toolkit.corpus import Pair
from luong.toolkit.translating import Translator
from luong.toolkit.vocabulary import Vocabulary


class Evaluation(NamedTuple):
    """Error rates, in per cent, over distinct sources with one hypothesis each.

    A source may have several references. WER: the share of sources whose hypothesis equals none of
    them. PER: edits to the closest reference, summed, over the summed lengths of those references,
    in target symbols (phonemes). Of equally close references the shortest counts.
    """

    sources: int
    wer: float
    per: float


def evaluate(translator: Translator, pairs: Sequence[Pair]) -> Evaluation:
    """Translate the sources of `pairs` and compare with their targets."""
    references = group(translator.target, pairs)
    hypotheses = translator.translate(list(references))
    return error_rates(
        {source: h.target for source, h in zip(references, hypotheses, strict=True)}, references
    )


def group(vocabulary: Vocabulary, pairs: Sequence[Pair]) -> dict[str, list[list[str]]]:
    """The references of each source, in pieces."""
    references = defaultdict[str, list[list[str]]](list)
    for pair in pairs:
        references[pair.source].append(vocabulary.split(pair.target))
    return references


def error_rates(
    hypotheses: Mapping[str, list[str]], references: Mapping[str, list[list[str]]]
) -> Evaluation:
    """WER and PER of one hypothesis for each source."""
    closest = [
        min(
            (Levenshtein.distance(hypotheses[source], reference), len(reference)) for reference in r
        )
        for source, r in references.items()
    ]
    wrong = sum(edits > 0 for edits, _ in closest)
    edits, length = (sum(column) for column in zip(*closest, strict=True))
    return Evaluation(len(closest), 100 * wrong / len(closest), 100 * edits / max(length, 1))
