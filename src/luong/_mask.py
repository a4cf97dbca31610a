"""Masks and lengths. Only this module knows that True means "attend"."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from luong import _check, _memory, _torch_private
from luong._memory import Memory, Prepared

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


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
        lengths = lengths.to(torch.long, copy=True)[..., None, None]
    given = mask is not None
    if lengths is not None and shortest < m:
        mask = _join(mask, positions(m, key.device) < lengths)
    if max_length is not None and (torch.compiler.is_compiling() or max_length < m):
        mask = _join(mask, positions(m, key.device).expand(1, m) < max_length)
    if mask is None:
        return _memory.remember(key, value, None, lengths, empty=None)
    used = _used(mask)
    if not (given and surely(used)):
        key, value = _clean(used, key, value)
    elif surely(mask):
        return _memory.remember(key, value, None, lengths, empty=None)
    empty = None
    if given or shortest == 0:
        empty = ~mask.any(-1, keepdim=True)
        empty = None if surely(~empty) else empty
    return _memory.remember(key, value, mask, lengths, empty=empty)


def current(memory: Memory, *learning: Tensor) -> Memory:
    """Return `memory`, or one prepared again where a part was replaced or changed in place.

    Where gradients of `learning` are taken, a change in place is an error, as it is for tensors
    that PyTorch saves.
    """
    found = memory.prepared
    if found is None or (found.about(memory) and not _changed(found, learning)):
        return memory
    key, value, mask = memory.key, memory.value, memory.mask
    if mask is None:
        return _memory.remember(key, value, None, memory.lengths, empty=None)
    key, value = _clean(_used(mask), key, value)
    empty = ~mask.any(-1, keepdim=True)
    return _memory.remember(key, value, mask, memory.lengths, empty=empty)


def _changed(found: Prepared, learning: Sequence[Tensor]) -> bool:
    """Return whether a part of a memory was changed in place; raise where gradients are taken."""
    if torch.compiler.is_compiling():
        return False
    changed = found.changed()
    if torch.is_grad_enabled() and any(x.requires_grad for x in learning):
        changed += [each.name for each in found.given if each.changed()]
        if changed:
            raise RuntimeError(
                f"{changed[0]}: changed in place after prepare, while gradients are taken; "
                "change a copy, or prepare again"
            )
    return bool(changed)


def _used(mask: Tensor) -> Tensor:
    """Return whether some query may attend to each position: (*batch, m, 1)."""
    return mask.mT if mask.shape[-2] == 1 else mask.any(-2).unsqueeze(-1)


def _clean(used: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return key and value with zeros at the positions that no query may attend to."""
    clean = torch.where(used, key, 0)
    return clean, clean if value is key else torch.where(used, value, 0)


def fill(rows: Tensor, empty: Tensor | None) -> Tensor:
    """Return queries, or their results, with zeros where a query may attend to nothing."""
    return rows if empty is None else torch.where(empty, 0, rows)


def positions(m: int, device: torch.device) -> Tensor:
    """Return the positions 0, 1, ..., m - 1."""
    return torch.arange(m, device=device)


def surely(condition: Tensor) -> bool:
    """Return whether all of `condition` is known to hold."""
    return _values(condition.all()) == [True]


def _values(tensor: Tensor) -> list[int] | None:
    """Return the values of a tensor, or None where they cannot be had without waiting.

    None comes back while operations are compiled, exported or recorded, under vmap, and for tensors
    on an accelerator.
    """
    if torch.compiler.is_compiling() or tensor.device.type != "cpu":
        return None
    if _torch_private.recorded():
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
    if not _check.broadcasts_to(mask.shape, expected):
        raise ValueError(
            f"mask: expected a shape that broadcasts to {_spelt(batch, queries, m)}, "
            f"got {_check.shape(mask)}"
        )


def _spelt(batch: torch.Size, queries: int | None, m: int) -> str:
    sizes = (*batch, "n" if queries is None else queries, m)
    return f"(*batch, n, m) = ({', '.join(map(str, sizes))})"


def _check_lengths(lengths: Tensor, batch: torch.Size, m: int, device: torch.device) -> int:
    """Check `lengths`, and return the shortest; 0 where their values cannot be looked at."""
    if not isinstance(lengths, Tensor) or lengths.dtype not in _INTEGERS:
        got = lengths.dtype if isinstance(lengths, Tensor) else type(lengths).__name__
        raise TypeError(f"lengths: expected an integer tensor, got {got}")
    if lengths.device != device:
        raise ValueError(f"lengths: expected device {device} like key, got {lengths.device}")
    if not _check.broadcasts_to(lengths.shape, batch):
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
