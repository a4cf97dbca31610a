"""Rules for the symbols that a search may choose, and random numbers to draw samples by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from luong.seq2seq.decoding import Decoding
from luong.seq2seq.symbols import END, PAD, START

NEVER = float("-inf")


class Rules(NamedTuple):
    """The symbols that a search may choose at a step. Tensors are (batch, ...)."""

    decoding: Decoding
    longest: int  # steps of any sentence
    earliest: Tensor  # the first step at which END may come
    limits: Tensor  # steps
    prefix: Tensor  # (batch, any)
    noise: Tensor | None  # (batch, steps, samples): uniform in [0, 1)
    past: Tensor | None  # (batch, hypotheses, any): all symbols so far, where none may repeat

    @classmethod
    def make(
        cls,
        decoding: Decoding,
        lengths: Tensor,
        prefix: Tensor | None,
        numbers: Sequence[int] | None,
    ) -> Rules:
        prefix = lengths.new_empty(len(lengths), 0) if prefix is None else prefix
        if bool(((prefix == START) | (prefix == END)).any()):
            raise ValueError("prefix: expected no START and no END in it")
        earliest = (decoding.min_ratio * lengths.double() + decoding.min_extra).ceil().long()
        limits = lengths.new_tensor([decoding.limit(m) for m in lengths.tolist()])
        limits = limits.maximum((prefix != PAD).sum(1) + (prefix != PAD).any(1))
        longest = int(limits.max())
        noise = None
        if decoding.sampling:
            shape = (longest, decoding.width)
            keys = range(len(lengths)) if numbers is None else numbers
            noise = torch.stack([_noise(decoding.sampling.seed, key, shape) for key in keys])
            noise = noise.to(lengths.device)
        earliest = earliest.maximum((lengths > 0).long())
        past = lengths.new_empty(len(lengths), 1, 0) if decoding.no_repeat_ngram else None
        return cls(decoding, longest, earliest, limits, prefix, noise, past)

    def select(self, rows: Tensor) -> Rules:
        return self._replace(
            earliest=self.earliest[rows],
            limits=self.limits[rows],
            prefix=self.prefix[rows],
            noise=None if self.noise is None else self.noise[rows],
            past=None if self.past is None else self.past[rows],
        )

    def after(self, parents: Tensor, symbols: Tensor) -> Rules:
        """Return the rules after hypotheses `parents` were extended by `symbols` (batch, any)."""
        if self.past is None:
            return self
        rows = torch.arange(len(parents), device=parents.device)[:, None]
        return self._replace(past=torch.cat([self.past[rows, parents], symbols[..., None]], -1))

    def forbid(self, log_probs: Tensor, step: int) -> None:
        """Set forbidden symbols to -inf, in place. The others keep their probability."""
        log_probs[..., [PAD, START]] = NEVER
        end = log_probs[..., END].clone()
        log_probs[..., END].masked_fill_((step < self.earliest)[:, None], NEVER)
        free = torch.ones_like(self.earliest, dtype=torch.bool)
        if step < self.prefix.shape[1]:
            forced = self.prefix[:, step, None]
            free = (forced == PAD).squeeze(1)
            others = torch.arange(log_probs.shape[-1], device=forced.device) != forced
            log_probs.masked_fill_((others & (forced != PAD))[:, None], NEVER)
        if self.past is not None:
            repeating = _completing(self.past, self.decoding.no_repeat_ngram)
            # PAD, which is always forbidden, fills unused places
            log_probs.scatter_(-1, repeating.where(free[:, None, None], PAD), NEVER)
            nothing = log_probs.isneginf().all(-1)
            log_probs[..., END] = end.where(nothing, log_probs[..., END])


def _completing(past: Tensor, n: int) -> Tensor:
    """Return the symbols (..., t - n + 1) that would make the last n of `past` (..., t) come twice.

    They are the symbols after the earlier places of the last n - 1 symbols, PAD at other places.
    """
    if past.shape[-1] < n:
        return past[..., :0]
    ngrams = past.unfold(-1, n, 1)
    last = past[..., past.shape[-1] - n + 1 :]
    same = torch.ones_like(ngrams[..., 0], dtype=torch.bool)
    for i in range(n - 1):
        same &= ngrams[..., i] == last[..., i, None]
    return ngrams[..., n - 1].where(same, PAD)


def _noise(seed: int, number: int, shape: tuple[int, int]) -> Tensor:
    return torch.from_numpy(np.random.Generator(np.random.PCG64([seed, number])).random(shape))
