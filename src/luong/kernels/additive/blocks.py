"""The torch backend: PyTorch's own operations, block of queries by block of queries.

A block is computed again in the backward pass, so that nothing of size n x m x d is kept. On the
CPU tanh(a + b) is (B - p) / (B + p), p = e^{-2a}, B = e^{2b}, where that is in range: (n + m)·d
exponentials instead of n·m·d. Other devices have a fast tanh.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from luong._mask import surely
from luong.kernels.additive import plain

_BLOCK = 1 << 21  # elements of n x m x d in a block


def scores(query: Tensor, key: Tensor, v: Tensor) -> Tensor:
    """Scores (b, n, m)."""
    factored = _in_range(query, key)
    return torch.cat(
        [
            checkpoint(_scores, rows, key, v, factored, use_reentrant=False)
            for rows in query.split(_rows(key), -2)
        ],
        -2,
    )


def attend(query: Tensor, key: Tensor, value: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Context (b, n, d_v); a row that may attend to nothing gives zeros."""
    factored, size = _in_range(query, key), _rows(key)
    blocks = query.split(size, -2)
    masks = [mask] * len(blocks)
    if mask is not None and mask.shape[-2] > 1:
        masks = list(mask.split(size, -2))
    return torch.cat(
        [
            checkpoint(_attend, rows, key, value, v, part, factored, use_reentrant=False)
            for rows, part in zip(blocks, masks, strict=True)
        ],
        -2,
    )


def _rows(key: Tensor) -> int:
    """Queries in a block."""
    return max(1, _BLOCK // key.numel())


def _in_range(query: Tensor, key: Tensor) -> bool:
    """Whether the quotient neither overflows nor costs precision; False where nobody may look."""
    limit = 12.0 if key.dtype == torch.float32 else 150.0
    return surely(key.abs() <= limit) and surely(query.abs() <= limit)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, v: Tensor, mask: Tensor | None, factored: bool
) -> Tensor:
    return plain.weigh(_scores(query, key, v, factored), value, mask)


def _scores(query: Tensor, key: Tensor, v: Tensor, factored: bool) -> Tensor:
    if not factored:
        return plain.scores(query, key, v)
    small = key.abs().amax(-2, keepdim=True) <= 0.5  # a feature of a source: B - 1 and p - 1
    b = torch.where(small, torch.expm1(2 * key), torch.exp(2 * key))[:, None]
    p = torch.where(small, torch.expm1(-2 * query), torch.exp(-2 * query))[:, :, None]
    return ((b - p) / (b + (p + 2 * small[:, None]))) @ v
