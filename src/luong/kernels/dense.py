"""Attention from given scores, the path that works for every score."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from luong import _check
from luong._mask import fill
from luong._memory import Attended, Memory, known

HALF = (torch.float16, torch.bfloat16)
LARGEST_DENORMAL = {torch.float32: 2.0**-126 - 2.0**-149, torch.float64: 2.0**-1022 - 2.0**-1074}


def upcast(x: Tensor) -> Tensor:
    """Return x, in float32 where it is of a half type."""
    return x.float() if x.dtype in HALF else x


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right; half types in float32, inputs and sums, also under autocast."""
    if left.dtype in HALF or right.dtype in HALF:
        left, right = left.float(), right.float()
    with uncast(left):
        return left @ right


def uncast(x: Tensor) -> AbstractContextManager[Any]:
    """Switch autocast off for operations on tensors like x."""
    off = _check.autocast(x)
    return torch.autocast(x.device.type, enabled=False) if off else nullcontext()


def attention(scores: Tensor, memory: Memory, *, dropout: float, need_weights: bool) -> Attended:
    """Return softmax(scores) value, from scores (*batch, n, m) in float32 at least.

    Weights are those before dropout. A query with nothing to attend gets zeros.
    """
    value = memory.value
    weights = softmax(scores, memory.mask, known(memory).empty)
    context = product(drop(weights, dropout), value).to(value.dtype)
    if not need_weights:
        return Attended(context, None)
    weights = weights.expand(*context.shape[:-1], weights.shape[-1])  # value may have more batch
    return Attended(context, weights.to(value.dtype))


def step(scores: Tensor, memory: Memory, *, dropout: float, need_weights: bool) -> Attended:
    """Return the same for a memory that is ready for steps, in fewer operations."""
    found = known(memory).step
    assert found is not None
    if found.bias is not None:
        scores = scores + found.bias
    return weigh(scores, memory.value, dropout=dropout, need_weights=need_weights)


def weigh(scores: Tensor, value: Tensor, *, dropout: float, need_weights: bool) -> Attended:
    """Return softmax(scores) value, of (b, n, m) and (b, m, d_v) with -inf where masked."""
    weights = flush(torch.softmax(scores, -1))
    context = torch.bmm(drop(weights, dropout), value)
    return Attended(context, weights if need_weights else None)


def softmax(scores: Tensor, mask: Tensor | None, empty: Tensor | None) -> Tensor:
    """Return the softmax over the keys where `mask` is True, and zeros in rows that are empty."""
    if mask is not None:
        scores = torch.where(mask, scores, float("-inf"))
    scores = fill(scores, empty)  # a row of nothing but -inf would give NaN
    return fill(flush(torch.softmax(scores, -1)), empty)


def flush(weights: Tensor) -> Tensor:
    """Return weights with 0 in place of denormal ones, by which some processors multiply slowly.

    A product with a denormal number can take a hundred cycles on an Intel processor, and the
    softmax of scores that differ by 88 or more is one. In an export it stays as it is.
    """
    if torch.compiler.is_exporting():
        return weights
    return torch.threshold(weights, LARGEST_DENORMAL[weights.dtype], 0.0)


def drop(weights: Tensor, dropout: float) -> Tensor:
    return F.dropout(weights, _check.probability("dropout", dropout)) if dropout else weights
