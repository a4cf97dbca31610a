"""Masks and lengths: the one place that knows that True means "attend"."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from luong import _check

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Memory(NamedTuple):
    """What queries attend to: all positions that no query may attend are zeroed in it.

    `Attention.prepare` makes it once for a source, with keys as its score wants them; `attend`
    reads it at every decoder step and never changes it.
    """

    key: Tensor  # (*batch, m, ...)
    value: Tensor  # (*batch, m, d_v)
    mask: Tensor | None = None  # bool (*batch, n or 1, m), True: attend. None: every pair
    empty: Tensor | None = None  # bool (*batch, n or 1, 1), True: nothing to attend. None: no such

    def select(self, index: Tensor) -> Memory:
        """The rows `index` of the first batch dimension: integers, or a bool per row.

        For sentences that leave a batch. (Hypotheses of one sentence need no copy of its memory:
        let them ride on the query axis.)
        """
        if self.value.ndim < 3:
            raise ValueError(
                f"select: this memory has no batch, value is {_check.shape(self.value)}"
            )
        rank, rows = self.value.ndim, self.value.shape[0]

        def rows_of(x: Tensor) -> Tensor:  # what is broadcast over this dimension stays as it is
            return x if x.ndim < rank or x.shape[0] != rows else x[index]

        return Memory(
            rows_of(self.key),
            rows_of(self.value),
            None if self.mask is None else rows_of(self.mask),
            None if self.empty is None else rows_of(self.empty),
        )


def prepare(
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None,
    lengths: Tensor | None,
    batch: torch.Size,
    queries: int | None,
    max_length: int | None = None,
) -> Memory:
    """Check `mask` and `lengths`, join them, and zero the positions that nobody may attend.

    Zeroing makes NaN, infinities and stale memory behind the mask harmless, forward and backward.
    `queries` is n, None where it is not known yet; positions from `max_length` on are never live.
    """
    m = key.shape[-2]
    if mask is not None:
        _check_mask(mask, batch, queries, m, key.device)
    if lengths is not None:
        _check_lengths(lengths, batch, m, key.device)
        inside = positions(m, key.device) < lengths[..., None, None]
        mask = inside if mask is None else mask & inside
    if max_length is not None and max_length < m:
        inside = positions(m, key.device) < max_length
        mask = inside.expand(1, m) if mask is None else mask & inside
    if mask is None:
        return Memory(key, value, None, None)
    mask = mask.expand(*mask.shape[:-1], m)
    used = mask.any(-2)
    if not surely(used):
        unused = ~used.unsqueeze(-1)
        same = value is key
        key = key.masked_fill(unused, 0)
        value = key if same else value.masked_fill(unused, 0)
    elif surely(mask):
        return Memory(key, value, None, None)
    empty = ~mask.any(-1, keepdim=True)
    return Memory(key, value, mask, None if surely(~empty) else empty)


def fill(rows: Tensor, empty: Tensor | None) -> Tensor:
    """Queries, or their results, with zeros where there is nothing to attend."""
    return rows if empty is None else rows.masked_fill(empty, 0)


def positions(m: int, device: torch.device) -> Tensor:
    """0, 1, ..., m - 1."""
    return torch.arange(m, device=device)


def surely(condition: Tensor) -> bool:
    """Whether all of `condition` is known to hold, where looking at values costs nothing.

    Values are not looked at while compiling or exporting, under vmap, or on an accelerator (which
    would have to be waited for): the answer there is False, "do not rely on it".
    """
    if torch.compiler.is_compiling() or condition.device.type != "cpu":
        return False
    try:
        return bool(condition.all())
    except RuntimeError:  # vmap and fake tensors have no values
        return False


def _check_mask(
    mask: Tensor, batch: torch.Size, queries: int | None, m: int, device: torch.device
) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask: expected a bool tensor, True where attended, got {got}")
    if mask.device != device:
        raise ValueError(f"mask: expected device {device} like key, got {mask.device}")
    n = "n" if queries is None else str(queries)
    expected = f"({', '.join([*map(str, batch), n, str(m)])})"
    if mask.ndim != len(batch) + 2:
        hint = "; use lengths=, or mask[:, None]" if mask.ndim == 2 else ""
        raise ValueError(
            f"mask: expected {len(batch) + 2} dimensions, (*batch, n, m) = {expected}, "
            f"got shape {_check.shape(mask)}{hint}"
        )
    rows = mask.shape[-2] if queries is None else queries
    if not all(have in (1, want) for have, want in zip(mask.shape, (*batch, rows, m), strict=True)):
        raise ValueError(
            f"mask: expected a shape that broadcasts to (*batch, n, m) = {expected}, "
            f"got {_check.shape(mask)}"
        )


def _check_lengths(lengths: Tensor, batch: torch.Size, m: int, device: torch.device) -> None:
    if not isinstance(lengths, Tensor) or lengths.dtype not in _INTEGERS:
        got = lengths.dtype if isinstance(lengths, Tensor) else type(lengths).__name__
        raise TypeError(f"lengths: expected an integer tensor, got {got}")
    if lengths.device != device:
        raise ValueError(f"lengths: expected device {device} like key, got {lengths.device}")
    if lengths.ndim > len(batch) or not all(
        have in (1, want)
        for have, want in zip(reversed(lengths.shape), reversed(batch), strict=False)
    ):
        raise ValueError(
            f"lengths: expected a shape that broadcasts to the batch {tuple(batch)}, "
            f"got {_check.shape(lengths)}"
        )
    wrong = (lengths < 0) | (lengths > m)
    if surely(wrong.any()):
        raise ValueError(
            f"lengths: expected values from 0 to m = {m}, got {lengths[wrong][0].item()}"
        )
