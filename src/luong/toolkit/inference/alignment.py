"""Word alignment by forced decoding: the source word that the model attends to for each target.

At step t the decoder reads y_(t-1), attends with weights a_t, and predicts y_t. Which of the two
words a_t belongs to depends on the model. Luong et al. (2015, footnote 14) gave a_t to the
word that was read where the score is content-based, to the one predicted where it is location.
Here it belongs to the word predicted, whatever the score, unless another step is asked for: the
alignment error rates show that models attend to the word that they are about to predict. Only
`rows` depends on this. "posterior" means the weights of the predicted word, once it is known: see
`Decoder.forward`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import islice, tee
from typing import NamedTuple

import torch
from torch import Tensor

from luong._modules import Attention
from luong._score import Location, Scaled
from luong.seq2seq.model import START
from luong.toolkit.choices import BATCH_SIZE, STEPS, THRESHOLD
from luong.toolkit.choices import StepName as StepName
from luong.toolkit.errors import ToolkitError
from luong.toolkit.inference.links import AGREED, JOINS, PRODUCT, WAYS, Link, join
from luong.toolkit.inference.translation import strongest
from luong.toolkit.inference.translator import Translator
from luong.toolkit.text import batches
from luong.toolkit.text.batches import Example
from luong.toolkit.text.lines import Pair
from luong.toolkit.text.places import Places

_POOL = 4096  # pairs that are read ahead, so that pairs of similar length go together
_BLOCK = 256  # target steps that are computed at a time
_CELLS = 1 << 23  # numbers at a time: weights, or logits of each source position
_MOST = 1 << 27  # weights of one pair: half a gigabyte


class Weighed(NamedTuple):
    """The weights of a pair, and the word (or character) that each piece of it belongs to."""

    weights: Tensor  # (n, m)
    source: Places  # of each of m pieces
    target: Places  # of each of n pieces

    def links(self, threshold: float | None) -> set[Link]:
        """Return the links between words, which are linked if any of their pieces are."""
        found = linked(self.weights, threshold)
        return {(self.source.of[i], self.target.of[j]) for j, row in enumerate(found) for i in row}

    def words(self) -> Tensor:
        """Return weights of words (target, source): sums over source, means over target pieces."""
        of_source, of_target = (
            torch.eye(side.total, dtype=self.weights.dtype, device=self.weights.device)[[*side.of]]
            for side in (self.source, self.target)
        )
        return (of_target / of_target.sum(0).clamp(min=1)).T @ self.weights @ of_source


def rows(steps: Tensor, count: int, step: StepName, attention: Attention) -> Tensor:
    """Return the weights (count, m) of `count` target symbols, chosen from those of all steps.

    The first step reads START and predicts the first symbol; the one after the last symbol's reads
    it and predicts end-of-sentence. "predicted" and "posterior" give each symbol the step that
    predicted it, "read" the one that read it, and "paper" one of the two, by the kind of score.
    """
    if step == "paper":
        score = attention.score
        while isinstance(score, Scaled):
            score = score.score
        step = "predicted" if isinstance(score, Location) else "read"
    first = 1 if step == "read" else 0
    return steps[first : first + count]


def linked(weights: Tensor, threshold: float | None = None) -> list[list[int]]:
    """Return the source positions that each row of `weights` (n, m) links to.

    It is the position of largest weight (the first of equals), as in the paper's section 5.4; with
    a threshold, every position of at least that weight. A row of zeros links to nothing.
    """
    if threshold is None:
        return [[] if i is None else [i] for i in strongest(weights)]
    found: list[list[int]] = [[] for _ in weights]
    for j, i in ((weights >= threshold) & (weights > 0)).nonzero().tolist():
        found[j].append(i)
    return found


def links_of(
    translator: Translator,
    pairs: Iterable[Pair],
    *,
    reverse: Translator | None = None,
    how: str | None = None,
    step: StepName = "predicted",
    threshold: float | None = None,
    batch_size: int = 64,
) -> Iterator[Set[Link]]:
    """Return the links of each pair, by one model or by two: see `align` and `align_both`."""
    if step not in STEPS:
        raise ValueError(f"step: expected one of {', '.join(STEPS)}, got {step!r}")
    if how is not None and how not in WAYS:
        raise ValueError(f"join: expected one of {', '.join(WAYS)}, got {how!r}")
    if how is not None and reverse is None:
        raise ValueError("join: expected only with reverse, which is not given")
    if threshold is not None:
        THRESHOLD.check("threshold", threshold)
    BATCH_SIZE.check("batch_size", batch_size)
    if reverse is None:
        return align(translator, pairs, step=step, threshold=threshold, batch_size=batch_size)
    return align_both(
        translator,
        reverse,
        pairs,
        how=how or JOINS[-1],
        step=step,
        threshold=threshold,
        batch_size=batch_size,
    )


def align(
    translator: Translator,
    pairs: Iterable[Pair],
    *,
    step: StepName = "predicted",
    threshold: float | None = None,
    batch_size: int = 64,
) -> Iterator[set[Link]]:
    """Yield the links of each pair, in order, in bounded memory.

    Links are between words, as `str.split` gives them, which are linked if any of their pieces are;
    or between characters, if the model reads those.
    """
    for pair in weigh(translator, pairs, step=step, batch_size=batch_size):
        yield pair.links(threshold)


def align_both(
    forward: Translator,
    reverse: Translator,
    pairs: Iterable[Pair],
    *,
    how: str,
    step: StepName = "predicted",
    threshold: float | None = None,
    batch_size: int = 64,
) -> Iterator[Set[Link]]:
    """Yield the links of `forward` joined with those of `reverse`, a model of the other direction.

    `how` is one of `links.WAYS`. With "product" two words are linked where the weights of both
    directions agree: where √(a_ij b_ji) is at least the threshold, `AGREED` if it is None. (Liang,
    Taskar and Klein, Alignment by Agreement, 2006, compare the product itself with a threshold.)
    """
    pairs, ahead, behind = tee(pairs, 3)
    flipped = (Pair(pair.target, pair.source) for pair in behind)
    both = zip(
        weigh(forward, ahead, step=step, batch_size=batch_size),
        weigh(reverse, flipped, step=step, batch_size=batch_size),
        strict=True,
    )
    for number, (there, back) in enumerate(both, 1):
        _check_places(there, back, number)
        if how == PRODUCT:
            product = there.words() * back.words().T
            n, m = product.shape
            agreed = Weighed(product.sqrt(), Places(range(m), m), Places(range(n), n))
            yield agreed.links(AGREED if threshold is None else threshold)
        else:
            yield join(there.links(threshold), {(i, j) for j, i in back.links(threshold)}, how)


def weigh(
    translator: Translator,
    pairs: Iterable[Pair],
    *,
    step: StepName = "predicted",
    batch_size: int = 64,
) -> Iterator[Weighed]:
    """Yield the weights of each pair, in order, in bounded memory."""
    attention = translator.model.decoder.attention
    stream, done = iter(pairs), 0
    while pool := list(islice(stream, _POOL)):
        examples = batches.examples(pool, translator.source, translator.target)
        sources = translator.source.places([pair.source for pair in pool])
        targets = translator.target.places([pair.target for pair in pool])
        width = max(_BLOCK, len(translator.target) if step == "posterior" else 0)
        for part in _parts(examples, done + 1):
            found: dict[int, list[Tensor]] = {k: [] for k in part}  # by pair
            for chunk in _chunks(examples, part, batch_size, width):
                for weights in blocks(translator, [examples[k] for k in chunk], step):
                    for k, some in zip(chunk, weights, strict=True):
                        found[k].append(some)
            for k, steps in found.items():
                n, m = len(targets[k].of), len(sources[k].of)
                own = torch.zeros(n, m, device="cpu")
                if steps and n and m:
                    own = rows(torch.cat(steps), n, step, attention)
                yield Weighed(own, sources[k], targets[k])
        done += len(pool)


def attended(translator: Translator, example: Example, step: StepName = "predicted") -> Tensor:
    """Return the weights (n, m) of each target word of a pair that has no empty side."""
    steps = torch.cat([part for (part,) in blocks(translator, [example], step)])
    return rows(steps, len(example.target) - 1, step, translator.model.decoder.attention)


@torch.inference_mode()
def blocks(
    translator: Translator, examples: Sequence[Example], step: StepName = "predicted"
) -> Iterator[list[Tensor]]:
    """Yield the weights (steps, m) of each pair, unpadded, computed in bounded memory."""
    model, device = translator.model.eval(), translator.device
    source, lengths = (x.to(device) for x in batches.sources([e.source for e in examples]))
    previous = batches.pad([[START, *e.target[:-1]] for e in examples]).to(device)
    target = batches.pad([e.target for e in examples]).to(device) if step == "posterior" else None
    memory, state = model.encode(source, lengths)
    width = max(1, min(_BLOCK, _CELLS // source.numel()))
    for start in range(0, previous.shape[1], width):
        some = slice(start, start + width)
        given = None if target is None else target[:, some]
        done = model.decoder(previous[:, some], state, memory, need_weights=True, given=given)
        state = done.state
        exact = torch.promote_types(done.weights.dtype, torch.float32)
        yield [
            weights[: max(0, len(e.target) - start), : len(e.source) - 1]
            for weights, e in zip(done.weights.to(exact).cpu(), examples, strict=True)
        ]


def _parts(examples: Sequence[Example], first: int = 1) -> Iterator[list[int]]:
    """Yield runs of successive pairs, by their places, whose weights fit into memory together.

    first: the number of the first pair, for errors.
    """
    part, cells = list[int](), 0
    for k, example in enumerate(examples):
        own = len(example.source) * len(example.target)
        if part and cells + own > _CELLS:
            yield part
            part, cells = [], 0
        if own > _MOST:
            raise ToolkitError(
                f"pair {first + k}: too long to align: {len(example.source) - 1:,} x "
                f"{len(example.target) - 1:,} symbols"
            )
        part.append(k)
        cells += own
    if part:
        yield part


def _chunks(
    examples: Sequence[Example], part: Sequence[int], size: int, width: int
) -> Iterator[list[int]]:
    """Yield pairs of similar length, by their places; skip those with an empty side.

    A chunk takes at most `width` numbers for each source position.
    """
    filled = [k for k in part if len(examples[k].source) > 1 and len(examples[k].target) > 1]
    filled.sort(key=lambda k: (len(examples[k].source), len(examples[k].target)))
    while filled:
        longest = len(examples[filled[-1]].source)
        count = max(1, min(size, _CELLS // (width * longest)))
        yield filled[-count:]
        del filled[-count:]


def _check_places(there: Weighed, back: Weighed, number: int) -> None:
    for side, one, other in (
        ("source", there.source, back.target),
        ("target", there.target, back.source),
    ):
        if one.total != other.total:
            raise ToolkitError(
                f"pair {number}: the two models split its {side} differently, into {one.total} and "
                f"{other.total} characters or words"
            )
