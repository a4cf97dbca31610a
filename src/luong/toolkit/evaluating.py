"""How good a model is, on pairs that it did not see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from luong.seq2seq.model import PAD
from luong.toolkit import batches
from luong.toolkit.batches import Example
from luong.toolkit.corpus import Pair
from luong.toolkit.errors import ToolkitError
from luong.toolkit.measures import Answer, Measurement, Text, measure
from luong.toolkit.measures import perplexity as perplexity_of
from luong.toolkit.translating import Translator
from luong.toolkit.vocabulary import Vocabulary


class Evaluation(NamedTuple):
    """Measures in per cent, over distinct sources with one output each: see `measures.measure`."""

    sources: int
    wer: float
    per: float
    exact: float
    bleu: float


class Bucket(NamedTuple):
    """The sources of a range of lengths."""

    shortest: int
    longest: int
    rows: np.ndarray[tuple[int], np.dtype[np.bool_]]  # (sources,)


def evaluate(translator: Translator, pairs: Sequence[Pair], **options: int) -> Evaluation:
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
    return bool(translator.source.separator)


def answers(translator: Translator, pairs: Iterable[Pair], **options: int) -> list[Answer]:
    """What the model puts out for each distinct source of `pairs`, beside all its references."""
    references = group(translator.target, pairs)
    outputs = translator.translate(list(references), **options)
    return [
        Answer(
            Text(source, translator.source.split(source)), Text(output.text, output.target), texts
        )
        for (source, texts), output in zip(references.items(), outputs, strict=True)
    ]


def given(
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    sources: Sequence[str] | None = None,
) -> list[Answer]:
    """Outputs that came from elsewhere, beside one or more references each; a piece is a word.

    With `sources`, equal ones are one, with the references of all. Without, the first reference
    stands for the source.
    """
    found: dict[object, Answer] = {}
    for k, (output, lines) in enumerate(zip(outputs, references, strict=True)):
        source = sources[k] if sources else lines[0]
        answer = Answer(_words(source), _words(output), [*map(_words, lines)])
        before = found.setdefault(source if sources else k, answer)
        if before.output != answer.output:
            raise ToolkitError(
                f"output {k + 1}: {output[:80]!r}, but for the same source, {source[:80]!r}, "
                f"an earlier one is {before.output.line[:80]!r}"
            )
        if before is not answer:
            found[source] = before._replace(references=[*before.references, *answer.references])
    return list(found.values())


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


def by_length(found: Sequence[Answer], count: int) -> Iterator[Bucket]:
    """About `count` ranges of source length, in pieces, with about as many sources in each."""
    lengths = np.array([len(answer.source.pieces) for answer in found])
    edges = np.unique(np.quantile(lengths, np.arange(1, count + 1) / count, method="lower"))
    for low, high in zip([-1, *edges[:-1]], edges, strict=True):
        rows = (lengths > low) & (lengths <= high)
        if rows.any():
            yield Bucket(int(lengths[rows].min()), int(lengths[rows].max()), rows)


def _words(line: str) -> Text:
    return Text(line, line.split())
