"""Attention within a window: scores, softmax and sums over the few keys that each query may see.

Nothing here is of size n x m: queries x width is the largest array, beside inputs and outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from luong import _check
from luong._mask import Memory, fill, positions
from luong._score import Score, Weighed
from luong._window import Interval, Window
from luong.kernels import band, dense


class Windowed(NamedTuple):
    """Attention within a window, with its weights as they are computed."""

    context: Tensor  # (*batch, n, d_v)
    weights: Tensor  # (*batch, n, w), w = min(2D + 1, m): of the keys start, start + 1, ...
    start: Tensor  # (*batch, n), whole


def interval(
    window: Window, query: Tensor, memory: Memory, position: int | Tensor, batch: torch.Size
) -> Interval:
    """The keys of each query."""
    n, m = query.shape[-2], memory.key.shape[-2]
    length: Tensor | int = m if memory.lengths is None else memory.lengths.squeeze(-1)
    return window.interval(query, _positions(position, n, batch, query.device), length)


def attend(
    score: Score,
    query: Tensor,
    memory: Memory,
    keys: Interval,
    *,
    dropout: float,
    need_weights: bool,
) -> Weighed:
    """Context and, if asked for, weights (*batch, n, m), with the keys of each query in `keys`."""
    if keys.width is None:
        query, memory = _masked(query, memory, keys)
        return score.attend(query, memory, dropout=dropout, need_weights=need_weights)
    context, weights, start = windowed(score, query, memory, keys, dropout=dropout)
    if not need_weights:
        return context, None
    m, index = memory.key.shape[-2], _index(start, weights.shape[-1], memory)
    batch = torch.broadcast_shapes(context.shape[:-2], weights.shape[:-2], index.shape[:-2])
    weights, index = (x.expand(*batch, *x.shape[-2:]) for x in (weights, index))
    wide = weights.new_zeros(*batch, weights.shape[-2], m)
    return context, wide.scatter_add(-1, index, weights)


def windowed(
    score: Score, query: Tensor, memory: Memory, keys: Interval, *, dropout: float
) -> Windowed:
    """The same with weights of the window alone."""
    if keys.width is None:
        raise ValueError("window: this one has no width: ask attend for all weights")
    m = memory.key.shape[-2]
    if torch.compiler.is_compiling():  # sizes may be symbols
        width, start = keys.width, keys.first.clamp(min=0)
    else:
        width = min(keys.width, m)
        start = keys.first.clamp(min=0).clamp(max=m - width)
    index = start.unsqueeze(-1) + positions(width, start.device)
    live = (index >= keys.first.unsqueeze(-1)) & (index <= keys.last.unsqueeze(-1))
    index = _index(start, width, memory)
    if memory.mask is not None:
        live = live & _at(memory.mask, index)
    empty = ~live.any(-1, keepdim=True)
    scores = score.window(fill(query, empty), memory, index)
    gaussian = keys.gaussian
    if gaussian is not None and gaussian.renormalize:
        scores = scores + gaussian.log(index)
    weights = dense.softmax(scores, live, empty)
    if gaussian is not None and not gaussian.renormalize:
        weights = weights * torch.where(live, gaussian.log(index).exp(), 0)
    value = memory.value
    context = band.sums(dense.drop(weights, dropout), dense.wide(value), index)
    return Windowed(context.to(value.dtype), weights.to(value.dtype), start)


def _index(start: Tensor, width: int, memory: Memory) -> Tensor:
    """Positions (*batch, n, width), within the source."""
    index = start.unsqueeze(-1) + positions(width, start.device)
    return index.clamp(max=memory.key.shape[-2] - 1) if torch.compiler.is_compiling() else index


def _at(mask: Tensor, index: Tensor) -> Tensor:
    """The mask (*batch, n or 1, m) at `index`."""
    n, m = index.shape[-2], mask.shape[-1]
    batch = torch.broadcast_shapes(mask.shape[:-2], index.shape[:-2])
    return mask.expand(*batch, n, m).gather(-1, index.expand(*batch, *index.shape[-2:]))


def _masked(query: Tensor, memory: Memory, keys: Interval) -> tuple[Tensor, Memory]:
    """An interval without a width is a mask."""
    index = positions(memory.key.shape[-2], query.device)
    mask = (index >= keys.first.unsqueeze(-1)) & (index <= keys.last.unsqueeze(-1))
    mask = mask if memory.mask is None else mask & memory.mask
    empty = ~mask.any(-1, keepdim=True)
    return fill(query, empty), memory._replace(mask=mask, empty=empty)


def _positions(position: int | Tensor, n: int, batch: torch.Size, device: torch.device) -> Tensor:
    """The position of each query: broadcasts to (*batch, n)."""
    if not isinstance(position, Tensor):
        if isinstance(position, bool) or not isinstance(position, (int, torch.SymInt)):
            raise TypeError(
                f"position: expected a whole number or an integer tensor, got "
                f"{type(position).__name__}"
            )
        if not torch.compiler.is_compiling() and position < 0:
            raise ValueError(f"position: expected 0 or more, got {position}")
        return position + positions(n, device)
    if position.is_floating_point() or position.is_complex() or position.dtype == torch.bool:
        raise TypeError(f"position: expected an integer tensor, got {position.dtype}")
    if position.device != device:
        raise ValueError(f"position: expected device {device} like query, got {position.device}")
    expected = (*batch, n)
    if position.ndim > len(expected) or any(
        have not in (1, want)
        for have, want in zip(reversed(position.shape), reversed(expected), strict=False)
    ):
        raise ValueError(
            f"position: expected a shape that broadcasts to (*batch, n) = {expected}, "
            f"got {_check.shape(position)}"
        )
    return (
        position.long().expand(*position.shape[:-1], n)
        if position.ndim
        else position.long().expand(n)
    )
