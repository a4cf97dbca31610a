"""The evaluation of a model on pairs that it did not see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from luong.seq2seq.decoding import Decoding
from luong.seq2seq.model import UNKNOWN
from luong.toolkit.choices import DEFAULT_METRICS, METRICS, SPECIAL, Lines
from luong.toolkit.inference.measures import Answer, Measurement, Text, check_tokenizer, measure
from luong.toolkit.inference.measures import perplexity as perplexity_of
from luong.toolkit.inference.translator import Translator
from luong.toolkit.text.lines import Pair
from luong.toolkit.text.vocabulary import Vocabulary


class Evaluation(NamedTuple):
    """The outputs of a model for each distinct source, and their measures."""

    answers: list[Answer]
    measurements: list[Measurement]


def evaluate(
    translator: Translator,
    pairs: Sequence[Pair],
    decoding: Decoding | None = None,
    metrics: Sequence[str] | None = None,
    *,
    lines: Lines | None = None,
    tokenize: str | None = None,
    lowercase: bool = False,
    replace_unknown: Mapping[str, str] | None = None,
    batch_size: int = 256,
) -> Evaluation:
    """Translate the sources of `pairs` and compare with their targets.

    The arguments are those of `Translator.evaluate`.
    """
    lines = lines or ("sentences" if of_sentences(translator) else "words")
    if lines not in DEFAULT_METRICS:
        raise ValueError(f"lines: expected one of {', '.join(DEFAULT_METRICS)}, got {lines!r}")
    names = DEFAULT_METRICS[lines] if metrics is None else metrics
    for name in names:
        if name not in METRICS:
            raise ValueError(f"metrics: expected some of {', '.join(METRICS)}, got {name!r}")
    check_tokenizer(tokenize)
    if not pairs:
        raise ValueError("sources: expected at least one, got none")
    found = answers(
        translator, pairs, decoding, replace_unknown=replace_unknown, batch_size=batch_size
    )
    sentences = lines == "sentences"
    return Evaluation(
        found,
        [
            perplexity(translator, pairs, batch_size)
            if name == "perplexity"
            else measure(name, found, sentences=sentences, tokenize=tokenize, lowercase=lowercase)
            for name in names
        ],
    )


def of_sentences(translator: Translator) -> bool:
    """Return whether sources are sentences; sources read in characters are words."""
    return " " not in translator.source.split("a b")


def answers(
    translator: Translator,
    pairs: Iterable[Pair],
    decoding: Decoding | None = None,
    *,
    replace_unknown: Mapping[str, str] | None = None,
    batch_size: int = 256,
) -> list[Answer]:
    """Return the output for each distinct source of `pairs`, with all its references."""
    references = group(translator.target, pairs)
    found = translator.translate(
        list(references), decoding, replace_unknown=replace_unknown, batch_size=batch_size
    )
    texts = [Text(best.text, best.target) for best in found]
    return beside(translator, references, dict(zip(references, texts, strict=True)))


def beside(
    translator: Translator,
    references: Mapping[str, Sequence[Text]],
    outputs: Mapping[str, Text],
) -> list[Answer]:
    """Return the output for each source, with its references."""
    return [
        Answer(
            Text(source, translator.source.split(source)),
            _split_again(translator.target, outputs[source]),
            texts,
        )
        for source, texts in references.items()
    ]


def _split_again(vocabulary: Vocabulary, output: Text) -> Text:
    """Return the output split like references, since a model may join other pieces."""
    if SPECIAL[UNKNOWN] in output.pieces:  # that is no text
        return output
    return output._replace(pieces=vocabulary.split(output.line))


def group(vocabulary: Vocabulary, pairs: Iterable[Pair]) -> dict[str, list[Text]]:
    """Return the references of each source."""
    references: dict[str, list[Text]] = {}
    for source, target in pairs:
        references.setdefault(source, []).append(Text(target, vocabulary.split(target)))
    return references


def perplexity(translator: Translator, pairs: Sequence[Pair], batch_size: int = 256) -> Measurement:
    """Return the perplexity of the targets, by distinct source in order of appearance."""
    sources, targets = zip(*pairs, strict=True)
    losses = dict.fromkeys(sources, (0.0, 0))
    scores = translator.score(sources, targets, batch_size=batch_size)
    for source, found in zip(sources, scores, strict=True):
        loss, symbols = losses[source]
        losses[source] = loss - found.score, symbols + len(found.steps)
    return perplexity_of(losses.values())
