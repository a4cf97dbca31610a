"""The torch backend: PyTorch's own operations, on one block of queries at a time.

A block is computed again in the backward pass, so that nothing of size n x m x d is kept. On the
CPU tanh(a + b) is (B - p) / (B + p), p = e^{-2a}, B = e^{2b}, where that is in range: (n + m)·d
exponentials instead of n·m·d. Other devices have a fast tanh.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from luong._mask import surely
from luong.kernels import dense
from luong.kernels.additive import plain
from luong.kernels.dispatch import plain_backward

_BLOCK = 1 << 21  # elements of n x m x d in a block


def scores(query: Tensor, key: Tensor, v: Tensor) -> Tensor:
    """Return scores (b, n, m)."""
    function = functools.partial(_scores, factored=_in_range(query, key))
    return _by_blocks(lambda query, mask, *rest: function(query, *rest), query, None, key, v)


def context(query: Tensor, key: Tensor, value: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Return the context (b, n, d_v); a query with nothing to attend gets zeros."""
    function = functools.partial(_block_context, factored=_in_range(query, key))
    return _by_blocks(function, query, mask, key, v, value)


Function = Callable[..., Tensor]


def _by_blocks(function: Function, query: Tensor, mask: Tensor | None, *rest: Tensor) -> Tensor:
    found: Tensor = _Blocks.apply(function, query, mask, *rest)  # type: ignore[no-untyped-call]
    return found


class _Blocks(torch.autograd.Function):
    """Compute function(query, mask, *rest) by blocks of queries; `rest` starts with the key."""

    @staticmethod
    def forward(
        ctx: Any, function: Function, query: Tensor, mask: Tensor | None, *rest: Tensor
    ) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(query, mask, *rest)
        out = None
        for rows, part in _parts(query, mask, rest[0]):
            found = function(query[:, rows], part, *rest)
            if out is None:
                out = found.new_empty(*query.shape[:2], found.shape[2])
            out[:, rows] = found
        assert out is not None  # there is at least one query
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, mask, *rest = ctx.saved_tensors
        if plain_backward(grad):  # all at once
            function = functools.partial(_swapped, ctx.function, mask)
            d_query, *d_rest = plain.derivative(function, grad, query, *rest)
            return None, d_query, None, *d_rest
        d_query, totals = torch.empty_like(query), [torch.zeros_like(x) for x in rest]
        for rows, part in _parts(query, mask, rest[0]):
            with torch.enable_grad(), dense.uncast(grad):
                inputs = [x.detach().requires_grad_() for x in (query[:, rows], *rest)]
                found = ctx.function(inputs[0], part, *inputs[1:])
            d_query[:, rows], *more = torch.autograd.grad(found, inputs, grad[:, rows])
            for total, x in zip(totals, more, strict=True):
                total.add_(x)
        return None, d_query, None, *totals


def _swapped(function: Function, mask: Tensor | None, query: Tensor, *rest: Tensor) -> Tensor:
    return function(query, mask, *rest)


def _parts(
    query: Tensor, mask: Tensor | None, key: Tensor
) -> Iterator[tuple[slice, Tensor | None]]:
    n, step = query.shape[1], max(1, _BLOCK // key.numel())
    for first in range(0, n, step):
        rows = slice(first, min(n, first + step))
        yield rows, mask if mask is None or mask.shape[1] == 1 else mask[:, rows]


def _in_range(query: Tensor, key: Tensor) -> bool:
    """Return whether the quotient is in range and precise; False if values cannot be read."""
    limit = 12.0 if key.dtype == torch.float32 else 150.0
    return surely(key.abs() <= limit) and surely(query.abs() <= limit)


def _block_context(
    query: Tensor, mask: Tensor | None, key: Tensor, v: Tensor, value: Tensor, *, factored: bool
) -> Tensor:
    return plain.weigh(_scores(query, key, v, factored=factored), value, mask)


def _scores(query: Tensor, key: Tensor, v: Tensor, *, factored: bool) -> Tensor:
    if not factored:
        return plain.scores(query, key, v)
    tanh: Tensor = _Tanh.apply(query, key)  # type: ignore[no-untyped-call]
    return tanh @ v


class _Tanh(torch.autograd.Function):
    """Compute tanh(query + key) (b, n, m, d) as (B - p) / (B + p), slope 4 B p / (B + p)^2.

    The slope that autograd would derive, 1 - tanh^2, cancels where tanh is near 1.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor) -> Tensor:
        ctx.save_for_backward(query, key)
        low, high = key.amin(-2, keepdim=True), key.amax(-2, keepdim=True)
        near = high - low <= 1  # such a feature is counted from its middle: B - 1, p - 1
        centre = torch.where(near, low + (high - low) / 2, 0)
        key, query = 2 * (key - centre), -2 * (query + centre)
        b = torch.where(near, key.expm1(), key.exp())[:, None]
        p = torch.where(near, query.expm1(), query.exp())[:, :, None]
        return (b - p).div_(b + (p + 2 * near[:, None]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key = ctx.saved_tensors
        b, p = torch.exp(2 * key)[:, None], torch.exp(-2 * query)[:, :, None]
        inverse = 1 / (b + p)
        both = grad * ((b * inverse) * (p * inverse) * 4)
        return both.sum(2), both.sum(1)
