"""How good a model is, on pairs that it did not see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from luong.seq2seq.model import PAD, UNKNOWN
from luong.toolkit import batches
from luong.toolkit.batches import Example
from luong.toolkit.corpus import Pair
from luong.toolkit.measures import Answer, Measurement, Text, measure
from luong.toolkit.measures import perplexity as perplexity_of
from luong.toolkit.translating import Translation, Translator
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

    `options` are those of `Translator.translate`.
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


def answers(translator: Translator, pairs: Iterable[Pair], **options: Any) -> list[Answer]:
    """What the model puts out for each distinct source of `pairs`, beside all its references."""
    references = group(translator.target, pairs)
    outputs: list[Translation] = translator.translate(list(references), **options)
    texts = [Text(output.text, output.target) for output in outputs]
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


@torch.inference_mode()
def perplexity(translator: Translator, pairs: Sequence[Pair], batch_size: int = 64) -> Measurement:
    """The perplexity of the targets, as a measure of the distinct sources, in their order."""
    model = translator.model.eval()
    sources = translator.source.encode([pair.source for pair in pairs])
    targets = translator.target.encode([pair.target for pair in pairs])
    order = sorted(range(len(pairs)), key=lambda k: (len(sources[k]), len(targets[k])))
    losses = {pair.source: (0.0, 0) for pair in pairs}
    for start in range(0, len(order), batch_size):
        chunk = order[start : start + batch_size]
        batch = batches.collate([Example(sources[k], targets[k]) for k in chunk])
        batch = batch.to(translator.device)
        logits = model(batch.source, batch.lengths, batch.previous).float()
        each = F.cross_entropy(
            logits.transpose(1, 2), batch.target, ignore_index=PAD, reduction="none"
        )
        for k, loss in zip(chunk, each.double().sum(1).tolist(), strict=True):
            total, symbols = losses[pairs[k].source]
            losses[pairs[k].source] = total + loss, symbols + len(targets[k])
    return perplexity_of(losses.values())
