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
    lengths: Tensor | None = None  # (*batch, 1, 1): keys of each sentence. None: m
    state: tuple[Tensor, ...] | None = None  # (batch, ...): what a kernel knows about the keys
    wide: tuple[Tensor, Tensor] | None = None  # key and value in float32, where it computes in that

    def select(self, index: Tensor) -> Memory:
        """The rows `index` of the first batch dimension: integers, or a bool per row.

        For sentences that leave a batch. (Hypotheses of one sentence need no copy of its memory:
        let them ride on the query axis.)
        """
        sides = (self.key, self.value) if self.mask is None else (self.key, self.value, self.mask)
        rank = max(x.ndim for x in sides)
        rows = max(x.shape[0] for x in sides if x.ndim == rank)
        if rank < 3:
            raise ValueError(
                f"select: this memory has no batch, its value is {_check.shape(self.value)}"
            )

        def rows_of(x: Tensor) -> Tensor:  # what is broadcast over this dimension stays as it is
            return x if x.ndim < rank or x.shape[0] != rows else x[index]

        return Memory(
            rows_of(self.key),
            rows_of(self.value),
            None if self.mask is None else rows_of(self.mask),
            None if self.empty is None else rows_of(self.empty),
            None if self.lengths is None else rows_of(self.lengths),
            tuple(x[index] for x in self.state)
            if self.state is not None and rank == 3 and self.state[0].shape[0] == rows
            else None,  # `attend` makes it again
            None if self.wide is None else (rows_of(self.wide[0]), rows_of(self.wide[1])),
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
    shortest = m  # of all lengths; 0 where that cannot be known
    if mask is not None:
        _check_mask(mask, batch, queries, m, key.device)
        mask = mask.expand(*mask.shape[:-1], m)
    if lengths is not None:
        shortest = _check_lengths(lengths, batch, m, key.device)
        lengths = lengths.long()[..., None, None]
    given = mask is not None
    if lengths is not None and shortest < m:
        mask = _join(mask, positions(m, key.device) < lengths)
    if max_length is not None and (torch.compiler.is_compiling() or max_length < m):
        mask = _join(mask, positions(m, key.device).expand(1, m) < max_length)
    if mask is None:
        return Memory(key, value, lengths=lengths)
    used = mask.mT if mask.shape[-2] == 1 else mask.any(-2).unsqueeze(-1)
    if not (given and surely(used)):
        same = value is key
        key = torch.where(used, key, 0)
        value = key if same else torch.where(used, value, 0)
    elif surely(mask):
        return Memory(key, value, lengths=lengths)
    empty = None
    if given or shortest == 0:
        empty = ~mask.any(-1, keepdim=True)
        empty = None if surely(~empty) else empty
    return Memory(key, value, mask, empty, lengths)


def fill(rows: Tensor, empty: Tensor | None) -> Tensor:
    """Queries, or their results, with zeros where there is nothing to attend."""
    return rows if empty is None else torch.where(empty, 0, rows)


def positions(m: int, device: torch.device) -> Tensor:
    """0, 1, ..., m - 1."""
    return torch.arange(m, device=device)


def surely(condition: Tensor) -> bool:
    """Whether all of `condition` is known to hold."""
    return _values(condition.all()) == [True]


def _values(tensor: Tensor) -> list[int] | None:
    """The values of a tensor, None where they cannot be had at once.

    That is: while compiling, exporting or tracing, under vmap, and on an accelerator, for which one
    would have to wait.
    """
    if torch.compiler.is_compiling() or tensor.device.type != "cpu":
        return None
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return None
    try:
        values: list[int] = tensor.flatten().tolist()
    except RuntimeError:  # vmap and fake tensors have no values
        return None
    return values


def _join(mask: Tensor | None, other: Tensor) -> Tensor:
    return other if mask is None else mask & other


def _check_mask(
    mask: Tensor, batch: torch.Size, queries: int | None, m: int, device: torch.device
) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask: expected a bool tensor, True where attended, got {got}")
    if mask.device != device:
        raise ValueError(f"mask: expected device {device} like key, got {mask.device}")
    expected = (*batch, mask.shape[-2] if queries is None else queries, m)
    if mask.ndim != len(expected):
        hint = "; use lengths=, or mask[:, None]" if mask.ndim == 2 else ""
        raise ValueError(
            f"mask: expected {len(expected)} dimensions, {_spelt(batch, queries, m)}, "
            f"got shape {_check.shape(mask)}{hint}"
        )
    if any(have not in (1, want) for have, want in zip(mask.shape, expected, strict=True)):
        raise ValueError(
            f"mask: expected a shape that broadcasts to {_spelt(batch, queries, m)}, "
            f"got {_check.shape(mask)}"
        )


def _spelt(batch: torch.Size, queries: int | None, m: int) -> str:
    sizes = (*batch, "n" if queries is None else queries, m)
    return f"(*batch, n, m) = ({', '.join(map(str, sizes))})"


def _check_lengths(lengths: Tensor, batch: torch.Size, m: int, device: torch.device) -> int:
    """The shortest length, 0 where values cannot be looked at."""
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
    values = _values(lengths)
    if values is None:
        return 0
    for value in (min(values, default=0), max(values, default=0)):
        if not 0 <= value <= m:
            raise ValueError(f"lengths: expected values from 0 to m = {m}, got {value}")
    return min(values, default=m)
