"""How good a model is, on pairs that it did not see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from luong.seq2seq.model import UNKNOWN
from luong.seq2seq.search import Decoding
from luong.toolkit.corpus import Pair
from luong.toolkit.measures import Answer, Measurement, Text, measure
from luong.toolkit.measures import perplexity as perplexity_of
from luong.toolkit.translating import Translator
from luong.toolkit.vocabulary import SPECIAL, Vocabulary


class Evaluation(NamedTuple):
    """Measures in per cent, over distinct sources with one output each: see `measures.measure`."""

    sources: int
    wer: float
    per: float
    exact: float
    bleu: float


def evaluate(translator: Translator, pairs: Sequence[Pair], **options: Any) -> Evaluation:
    """Translate the sources of `pairs` and compare with their targets.

    `options` are those of `answers`.
    """
    found = answers(translator, pairs, **options)
    return Evaluation(
        len(found),
        *(
            measure(name, found, sentences=of_sentences(translator)).of()
            for name in Evaluation._fields[1:]
        ),
    )


def of_sentences(translator: Translator) -> bool:
    """Whether sources are sentences, in words; if they are spelt in characters, each is a word."""
    return " " not in translator.source.split("a b")


def answers(
    translator: Translator,
    pairs: Iterable[Pair],
    *,
    beam: int = 1,
    length_penalty: float = 0.0,
    **options: Any,
) -> list[Answer]:
    """What the model puts out for each distinct source of `pairs`, beside all its references.

    `beam` and `length_penalty` are those of `Decoding`, `options` those of `Translator.search`.
    """
    references = group(translator.target, pairs)
    decoding = Decoding(beam=beam, length_penalty=length_penalty)
    found = translator.search(list(references), decoding, **options)
    texts = [Text(best.text, best.target) for best, *_ in found]
    return beside(translator, references, dict(zip(references, texts, strict=True)))


def beside(
    translator: Translator,
    references: Mapping[str, Sequence[Text]],
    outputs: Mapping[str, Text],
) -> list[Answer]:
    """The output for each source beside its references."""
    return [
        Answer(
            Text(source, translator.source.split(source)),
            _split_again(translator.target, outputs[source]),
            texts,
        )
        for source, texts in references.items()
    ]


def _split_again(vocabulary: Vocabulary, output: Text) -> Text:
    """As references are split: a model may put the same text in other pieces."""
    if SPECIAL[UNKNOWN] in output.pieces:  # that is no text
        return output
    return output._replace(pieces=vocabulary.split(output.line))


def group(vocabulary: Vocabulary, pairs: Iterable[Pair]) -> dict[str, list[Text]]:
    """The references of each source."""
    references: dict[str, list[Text]] = {}
    for source, target in pairs:
        references.setdefault(source, []).append(Text(target, vocabulary.split(target)))
    return references


def perplexity(translator: Translator, pairs: Sequence[Pair], batch_size: int = 256) -> Measurement:
    """The perplexity of the targets, as a measure of the distinct sources, in their order."""
    sources, targets = zip(*pairs, strict=True)
    losses = dict.fromkeys(sources, (0.0, 0))
    scores = translator.score(sources, targets, batch_size=batch_size)
    for source, found in zip(sources, scores, strict=True):
        loss, symbols = losses[source]
        losses[source] = loss - found.score, symbols + len(found.steps)
    return perplexity_of(losses.values())
