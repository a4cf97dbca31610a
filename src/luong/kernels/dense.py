"""Softmax over given scores, and the weighted sum: the path that every score can take."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from luong import _check
from luong._mask import fill
from luong._memory import Memory, known

HALF = (torch.float16, torch.bfloat16)


def upcast(x: Tensor) -> Tensor:
    """Return x, in float32 where it is of a half type."""
    return x.float() if x.dtype in HALF else x


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right; for half types with inputs and sums in float32, also under autocast."""
    if left.dtype not in HALF and right.dtype not in HALF:
        return left @ right
    with uncast(left):
        return left.float() @ right.float()


def uncast(x: Tensor) -> AbstractContextManager[Any]:
    """No autocast, for operations on tensors like x."""
    off = _check.autocast(x)
    return torch.autocast(x.device.type, enabled=False) if off else nullcontext()


def attend(
    scores: Tensor, memory: Memory, *, dropout: float, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """Context and, if asked for, weights (before dropout), from scores (*batch, n, m).

    Scores, and so the softmax, are in float32 at least. A row with nothing to attend becomes zeros.
    """
    value = memory.value
    weights = softmax(scores, memory.mask, known(memory).empty)
    context = product(drop(weights, dropout), value).to(value.dtype)
    if not need_weights:
        return context, None
    weights = weights.expand(*context.shape[:-1], weights.shape[-1])  # value may have more batch
    return context, weights.to(value.dtype)


def softmax(scores: Tensor, mask: Tensor | None, empty: Tensor | None) -> Tensor:
    """Over the last dimension, where `mask` is True; zeros in rows that are empty."""
    if mask is not None:
        scores = torch.where(mask, scores, float("-inf"))
    scores = fill(scores, empty)  # a row of -inf alone would give NaN
    return fill(torch.softmax(scores, -1), empty)


def drop(weights: Tensor, dropout: float) -> Tensor:
    return F.dropout(weights, _check.probability("dropout", dropout)) if dropout else weights
