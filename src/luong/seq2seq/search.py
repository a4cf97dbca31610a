"""Decoding: the most probable target symbols, found step by step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from luong.seq2seq.model import END, PAD, START, Seq2Seq


class Hypothesis(NamedTuple):
    """An output for one source."""

    symbols: list[int]  # without END
    score: float  # log-probability, END included where there is one
    weights: Tensor  # (n, m): row i is what was attended when symbol i was predicted
    finished: bool  # False: cut at the length limit


@torch.inference_mode()
def greedy(
    model: Seq2Seq,
    source: Tensor,
    lengths: Tensor,
    *,
    max_ratio: float = 2.0,
    max_extra: int = 10,
) -> list[Hypothesis]:
    """The most probable symbol at every step.

    source and lengths as in `Seq2Seq.encode`. A sentence of length m ends by END, or is cut at
    max_ratio · m + max_extra symbols, whatever its batch mates. END cannot be the first symbol
    unless the source is empty; PAD and START never come.
    """
    if not len(lengths):
        return []
    memory, state = model.encode(source, lengths)
    limits = (max_ratio * lengths).long() + max_extra
    previous = source.new_full((source.shape[0], 1), START)
    score = torch.zeros(source.shape[0], device=source.device)
    finished = torch.zeros(source.shape[0], dtype=torch.bool, device=source.device)
    symbols: list[Tensor] = []
    weights: list[Tensor] = []
    for step in range(int(limits.max())):
        logits, state, attended = model.decoder.step(previous, state, memory, need_weights=True)
        log_probs = torch.log_softmax(logits[:, 0].float(), -1)
        log_probs[:, [PAD, START]] = float("-inf")
        if step == 0:
            log_probs[lengths > 0, END] = float("-inf")
        best, choice = log_probs.max(-1)
        open_ = ~finished & (step < limits)
        score += best.where(open_, 0.0)
        symbols.append(choice.where(open_, PAD))
        assert attended is not None
        weights.append(attended[:, 0])
        finished |= open_ & (choice == END)
        if bool((finished | (step + 1 >= limits)).all()):
            break
        previous = choice.unsqueeze(1)
    return [
        _hypothesis(*row)
        for row in zip(
            torch.stack(symbols, 1).tolist(),
            score.tolist(),
            torch.stack(weights, 1),
            lengths.tolist(),
            finished.tolist(),
            strict=True,
        )
    ]


def _hypothesis(
    symbols: list[int], score: float, weights: Tensor, length: int, finished: bool
) -> Hypothesis:
    kept = [symbol for symbol in symbols if symbol not in (PAD, END)]
    return Hypothesis(kept, score, weights[: len(kept), :length].clone(), finished)
