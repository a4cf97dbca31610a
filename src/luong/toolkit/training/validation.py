"""The measures of a model while it is trained, on pairs from which it does not learn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luong.seq2seq.model import PAD
from luong.toolkit.inference import evaluation
from luong.toolkit.inference.measures import measure
from luong.toolkit.inference.translator import Translator
from luong.toolkit.text import batches
from luong.toolkit.text.batches import Batch
from luong.toolkit.text.lines import Pair
from luong.toolkit.training import processes

_ROWS = 128  # in a batch
MEASURES = {  # the measures of each metric, by their names in metrics.csv
    "per": ("per", "wer"),
    "wer": ("per", "wer"),
    "exact": ("exact",),
    "bleu": ("bleu",),
    "loss": (),
}
_MORE_IS_BETTER = ("exact", "bleu")


def validate(translator: Translator, pairs: Sequence[Pair], metric: str) -> dict[str, float]:
    """Return cross-entropy per target symbol and the measures of `metric`; processes share work."""
    training = translator.model.training
    translator.model.eval()
    try:
        values = {"loss": _loss(translator, pairs)}
        return values | (_measured(translator, pairs, metric) if MEASURES[metric] else {})
    finally:
        translator.model.train(training)


def key(values: dict[str, float], metric: str) -> list[float]:
    """Return a key for sorting: less is better; where the metric is the same, the loss decides."""
    sign = -1 if metric in _MORE_IS_BETTER else 1
    return [sign * values[metric], values["loss"]]


def cross_entropy(model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy summed over the target symbols of a batch, END included."""
    logits = model(batch.source, batch.lengths, batch.previous)
    return F.cross_entropy(
        logits.flatten(0, 1).float(),
        batch.target.flatten(),
        ignore_index=PAD,
        label_smoothing=smoothing,
        reduction="sum",
    )


@torch.inference_mode()
def _loss(translator: Translator, pairs: Sequence[Pair]) -> float:
    data = batches.examples(pairs, translator.source, translator.target)
    order = batches.by_length(np.array([(len(e.source), len(e.target)) for e in data]))
    chunks = [order[i : i + _ROWS] for i in range(0, len(order), _ROWS)]
    loss, symbols = 0.0, 0
    for chunk in processes.mine(chunks):
        batch = batches.collate([data[i] for i in chunk]).to(translator.device)
        loss += cross_entropy(translator.model, batch).item()
        symbols += sum(len(data[i].target) for i in chunk)
    loss, count = processes.total([loss, symbols])
    return loss / count


def _measured(translator: Translator, pairs: Sequence[Pair], metric: str) -> dict[str, float]:
    share = set(processes.mine(sorted({pair.source for pair in pairs}, key=lambda s: (len(s), s))))
    answers = evaluation.answers(translator, [pair for pair in pairs if pair.source in share])
    found = processes.gather(answers)
    sentences = evaluation.of_sentences(translator)
    return {name: measure(name, found, sentences=sentences).of() for name in MEASURES[metric]}
