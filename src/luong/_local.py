"""Attention within a window: scores, softmax and sums over the few keys that each query may see.

Nothing here is of size n x m: queries x width is the largest array, beside inputs and outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from luong import _check
from luong._mask import fill, positions
from luong._memory import Memory, within
from luong._score import Score, Weighed
from luong._window import Gaussian, Interval, Window
from luong.kernels import dense
from luong.kernels.band import sums


class Windowed(NamedTuple):
    """The result of attention within a local window, with the weights of the window only.

    Attributes:
        context: (*batch, n, d_v), the weighted sum of the values for each query.
        weights: (*batch, n, w), of the keys start, start + 1, ...; w is 2D + 1, or m where that is
            less. They are 0 for keys of these that lie outside the window.
        start: (*batch, n), integers: the position of the first of the w keys.
    """

    context: Tensor
    weights: Tensor
    start: Tensor


class Band(NamedTuple):
    """The w keys, side by side, among which each query finds those that it may see."""

    start: Tensor  # (*batch, n), whole
    keys: Tensor  # (*batch, n, w): start, start + 1, ...
    live: Tensor  # bool (*batch, n, w), True: attend
    empty: Tensor  # bool (*batch, n, 1), True: nothing to attend
    gaussian: Gaussian | None


def place(
    window: Window, query: Tensor, memory: Memory, position: int | Tensor, batch: torch.Size
) -> tuple[Tensor, Memory, Band | None]:
    """What each query may see, and zeros for the queries that see nothing.

    That is a band or, where the window has no width, one more mask in the memory.
    """
    n, m = query.shape[-2], memory.key.shape[-2]
    length: Tensor | int = m if memory.lengths is None else memory.lengths.squeeze(-1)
    keys = window.interval(query, _positions(position, n, batch, query.device), length)
    if keys.width is not None:
        band = _band(keys, keys.width, memory.mask, m)
        return fill(query, band.empty), memory, band
    index = positions(m, query.device)
    mask = (index >= keys.first.unsqueeze(-1)) & (index <= keys.last.unsqueeze(-1))
    mask = mask if memory.mask is None else mask & memory.mask
    empty = ~mask.any(-1, keepdim=True)
    return fill(query, empty), within(memory, mask, empty), None


def attend(
    score: Score, query: Tensor, memory: Memory, band: Band, *, dropout: float, need_weights: bool
) -> Weighed:
    """Context and, if asked for, weights (*batch, n, m)."""
    context, weights, _ = windowed(score, query, memory, band, dropout=dropout)
    if not need_weights:
        return context, None
    m, index = memory.key.shape[-2], band.keys
    batch = torch.broadcast_shapes(context.shape[:-2], weights.shape[:-2], index.shape[:-2])
    weights, index = (x.expand(*batch, *x.shape[-2:]) for x in (weights, index))
    wide = weights.new_zeros(*batch, weights.shape[-2], m)
    return context, wide.scatter_add(-1, index, weights)


def windowed(
    score: Score, query: Tensor, memory: Memory, band: Band, *, dropout: float
) -> Windowed:
    """The same with the weights of the band alone."""
    scores = score.window(query, memory, band.keys)
    if band.gaussian is not None and band.gaussian.renormalize:
        scores = scores + band.gaussian.log(band.keys)
    weights = dense.softmax(scores, band.live, band.empty)
    if band.gaussian is not None and not band.gaussian.renormalize:
        weights = weights * torch.where(band.live, band.gaussian.log(band.keys).exp(), 0)
    value = memory.value
    context = sums(dense.drop(weights, dropout), dense.wide(value), band.keys)
    return Windowed(context.to(value.dtype), weights.to(value.dtype), band.start)


def _band(keys: Interval, width: int, mask: Tensor | None, m: int) -> Band:
    compiling = torch.compiler.is_compiling() and m != 0  # then sizes may be symbols, but for 0
    start = keys.first.clamp(min=0)
    if not compiling:
        width = min(width, m)
        start = start.clamp(max=m - width)
    index = start.unsqueeze(-1) + positions(width, start.device)
    live = (index >= keys.first.unsqueeze(-1)) & (index <= keys.last.unsqueeze(-1))
    if compiling:
        index = index.clamp(max=m - 1)
    if mask is not None:
        live = live & _at(mask, index)
    return Band(start, index, live, ~live.any(-1, keepdim=True), keys.gaussian)


def _at(mask: Tensor, index: Tensor) -> Tensor:
    """The mask (*batch, n or 1, m) at `index`."""
    n, m = index.shape[-2], mask.shape[-1]
    batch = torch.broadcast_shapes(mask.shape[:-2], index.shape[:-2])
    return mask.expand(*batch, n, m).gather(-1, index.expand(*batch, *index.shape[-2:]))


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
