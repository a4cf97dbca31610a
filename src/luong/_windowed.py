"""Attention within a window: scores, softmax and sums over the few keys near each query's centre.

No array here is of size n x m, unless all weights are asked for: n x w numbers are the most.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from luong import _check
from luong._comparison import Comparison
from luong._mask import fill, positions
from luong._memory import Memory, masked
from luong._window import Gaussian, KeyRange, Window
from luong.kernels import dense
from luong.kernels.windowed import sums


class AttendedWindow(NamedTuple):
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


class WindowedKeys(NamedTuple):
    """The w neighbouring keys among which each query finds those that it may attend to."""

    start: Tensor  # integers (*batch, n)
    key_positions: Tensor  # (*batch, n, w): start, start + 1, ...
    live: Tensor  # bool (*batch, n, w), True: attend
    empty: Tensor  # bool (*batch, n, 1), True: nothing to attend
    gaussian: Gaussian | None


def place(
    window: Window, query: Tensor, memory: Memory, position: int | Tensor, batch: torch.Size
) -> tuple[Tensor, Memory, WindowedKeys | None]:
    """Find the keys that each query may attend to, and zero the queries that may attend to none.

    A window without a width gives None, and the memory gets one more mask instead.
    """
    n, m = query.shape[-2], memory.key.shape[-2]
    length: Tensor | int = m if memory.lengths is None else memory.lengths.squeeze(-1)
    target = _target_positions(position, n, batch, query.device)
    keys = window.key_range(query, target, length)
    if keys.width is not None:
        found = _windowed_keys(keys, keys.width, memory.mask, m)
        return fill(query, found.empty), memory, found
    mask = keys.holds(positions(m, query.device))
    mask = mask if memory.mask is None else mask & memory.mask
    empty = ~mask.any(-1, keepdim=True)
    return fill(query, empty), masked(memory, mask, empty), None


def attend_window(comparison: Comparison, keys: WindowedKeys, *, dropout: float) -> AttendedWindow:
    """Return the context, and the weights of the windowed keys only."""
    scores = comparison.window_scores(keys.key_positions)
    gaussian = keys.gaussian
    if gaussian is not None and gaussian.renormalize:
        scores = scores + gaussian.log(keys.key_positions)
    weights = dense.softmax(scores, keys.live, keys.empty)
    if gaussian is not None and not gaussian.renormalize:
        factors = torch.where(keys.live, gaussian.log(keys.key_positions).exp(), 0)
        weights = dense.flush(weights * factors)
    value = comparison.memory.value
    context = sums(dense.drop(weights, dropout), dense.upcast(value), keys.key_positions)
    return AttendedWindow(context.to(value.dtype), weights.to(value.dtype), keys.start)


def all_weights(found: AttendedWindow, key_positions: Tensor, m: int) -> Tensor:
    """Return the weights (*batch, n, m) of all keys, 0 outside the window."""
    context, weights, _ = found
    batch = torch.broadcast_shapes(context.shape[:-2], weights.shape[:-2], key_positions.shape[:-2])
    weights, key_positions = (x.expand(*batch, *x.shape[-2:]) for x in (weights, key_positions))
    zeros = weights.new_zeros(*batch, weights.shape[-2], m)
    return zeros.scatter_add(-1, key_positions, weights)


def _windowed_keys(keys: KeyRange, width: int, mask: Tensor | None, m: int) -> WindowedKeys:
    compiling = torch.compiler.is_compiling() and m != 0  # then sizes may be symbols, but for 0
    start = keys.first.clamp(min=0)
    if not compiling:
        width = min(width, m)
        start = start.clamp(max=m - width)
    key_positions = start.unsqueeze(-1) + positions(width, start.device)
    live = keys.holds(key_positions)
    if compiling:
        key_positions = key_positions.clamp(max=m - 1)
    if mask is not None:
        live = live & _mask_at(mask, key_positions)
    empty = ~live.any(-1, keepdim=True)
    return WindowedKeys(start, key_positions, live, empty, keys.gaussian)


def _mask_at(mask: Tensor, key_positions: Tensor) -> Tensor:
    """Return the mask (*batch, n or 1, m) at these positions (*batch, n, w)."""
    n, m = key_positions.shape[-2], mask.shape[-1]
    batch = torch.broadcast_shapes(mask.shape[:-2], key_positions.shape[:-2])
    key_positions = key_positions.expand(*batch, *key_positions.shape[-2:])
    return mask.expand(*batch, n, m).gather(-1, key_positions)


def _target_positions(
    position: int | Tensor, n: int, batch: torch.Size, device: torch.device
) -> Tensor:
    """Return the target position of each query, which broadcasts to (*batch, n)."""
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
    if not _check.broadcasts_to(position.shape, expected):
        raise ValueError(
            f"position: expected a shape that broadcasts to (*batch, n) = {expected}, "
            f"got {_check.shape(position)}"
        )
    return (
        position.long().expand(*position.shape[:-1], n)
        if position.ndim
        else position.long().expand(n)
    )
