"""Additive scores within a window: v · tanh(query[i] + key[first[i] + k]), (b, n, w)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from luong.kernels import windowed
from luong.kernels.additive import plain
from luong.kernels.dispatch import plain_backward


def formula(query: Tensor, key: Tensor, v: Tensor, key_positions: Tensor) -> Tensor:
    """Return scores (*batch, n, w) by the formula, with all keys side by side."""
    return torch.tanh(query.unsqueeze(-2) + windowed.rows(key, key_positions)) @ v


def blocked(query: Tensor, key: Tensor, v: Tensor, key_positions: Tensor) -> Tensor:
    """Return the same scores by blocks of queries, which the backward pass computes again."""
    return windowed.apply(_Blocks, query, key, v, key_positions[..., 0], key_positions.shape[-1])


def compiled(
    query: Tensor, key: Tensor, v: Tensor, key_positions: Tensor, terms: Sequence[Tensor]
) -> Tensor:
    """Return the same scores by compiled kernels; `terms` are those of `compiled.prepare`."""
    return windowed.apply(
        _Compiled, query, key, v, key_positions[..., 0], key_positions.shape[-1], *terms
    )


def _again(first: Tensor, w: int, query: Tensor, key: Tensor, v: Tensor) -> Tensor:
    return formula(query, key, v, windowed.neighbours(first, w))


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, v: Tensor, first: Tensor, w: int) -> Tensor:
        ctx.save_for_backward(query, key, v, first)
        ctx.w = w
        out = query.new_empty(*query.shape[:2], w)
        for part, key_positions in windowed.blocks(first, w, key):
            out[:, part] = formula(query[:, part], key, v, key_positions)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key, v, first = ctx.saved_tensors
        if plain_backward(grad):
            function = functools.partial(_again, first, ctx.w)
            return *plain.derivative(function, grad, query, key, v), None, None
        found = [torch.zeros_like(x) for x in (query, key, v)]
        start = key.shape[1] * torch.arange(key.shape[0], device=key.device)[:, None, None]
        for part, key_positions in windowed.blocks(first, ctx.w, key):
            tanh = torch.tanh(query[:, part, None] + windowed.rows(key, key_positions))
            g = grad[:, part, :, None]
            found[2] += (g * tanh).sum((0, 1, 2))
            inner = g * (v * (1 - tanh * tanh))
            found[0][:, part] = inner.sum(-2)
            found[1].view(-1, key.shape[-1]).index_add_(
                0, (key_positions + start).flatten(), inner.flatten(0, 2)
            )
        return *found, None, None


class _Compiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, v: Tensor, first: Tensor, w: int, *terms: Tensor
    ) -> Tensor:
        from luong.kernels.additive import compiled

        ctx.save_for_backward(query, key, v, first, *terms)
        ctx.w = w
        return compiled.windowed_score(query, key, v, first, w, terms)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        from luong.kernels.additive import compiled

        query, key, v, first, *terms = ctx.saved_tensors
        nothing = [None] * (2 + len(terms))
        if plain_backward(grad) or not compiled.finite(v):
            function = functools.partial(_again, first, ctx.w)
            return *plain.derivative(function, grad, query, key, v), *nothing
        return *compiled.windowed_score_backward(grad, query, key, v, first, terms), *nothing
