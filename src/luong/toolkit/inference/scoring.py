"""The log-probability of given targets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from luong.seq2seq.model import PAD
from luong.seq2seq.search import mean_log_probs
from luong.toolkit.choices import BATCH_SIZE
from luong.toolkit.inference.translation import Score
from luong.toolkit.inference.translator import Translator
from luong.toolkit.text import batches
from luong.toolkit.text.batches import Batch, Example
from luong.toolkit.text.lines import Pair


@torch.inference_mode()
def score(translator: Translator, pairs: Sequence[Pair], *, batch_size: int) -> list[Score]:
    """Return the log-probability of the target of each pair, given its source."""
    BATCH_SIZE.check("batch_size", batch_size)
    examples = batches.examples(pairs, translator.source, translator.target)
    order = sorted(range(len(examples)), key=lambda i: len(examples[i].target))
    scores = dict[int, Score]()
    while order:
        size = _fitting(examples, order, translator.numbers, batch_size)
        order, chunk = order[:-size], order[-size:]
        batch = batches.collate([examples[i] for i in chunk]).to(translator.device)
        steps = _steps(translator, batch).double()
        for i, row, target in zip(chunk, steps.tolist(), batch.target.tolist(), strict=True):
            kept = [step for step, symbol in zip(row, target, strict=True) if symbol != PAD]
            scores[i] = Score(sum(kept), kept)
    return [scores[i] for i in range(len(examples))]


def _fitting(
    examples: Sequence[Example], order: Sequence[int], numbers: int, batch_size: int
) -> int:
    """Return the size of the next batch, from the end of `order`: bounded by batch_size, memory."""
    longest = len(examples[order[-1]].target)
    most = min(batch_size, len(order))
    for count in range(most):
        longest = max(longest, len(examples[order[-1 - count]].source))
        if count and (count + 1) * longest * numbers > batches.CELLS:
            return count
    return most


def _steps(translator: Translator, batch: Batch) -> Tensor:
    """Return the log-probability of each target symbol (batch, n), in bounded memory."""
    models = translator.models
    encoded = [model.encode(batch.source, batch.lengths) for model in models]
    states = [state for _, state in encoded]
    numbers = max(translator.numbers, batch.source.shape[1])
    width = max(1, batches.CELLS // (numbers * len(batch.source)))
    found = []
    for start in range(0, batch.target.shape[1], width):
        some = slice(start, start + width)
        done = [
            model.decoder(batch.previous[:, some], state, memory)
            for model, state, (memory, _) in zip(models, states, encoded, strict=True)
        ]
        states = [step.state for step in done]
        log_probs = mean_log_probs([step.logits for step in done])
        found.append(log_probs.gather(-1, batch.target[:, some, None]).squeeze(-1))
    return torch.cat(found, 1)
