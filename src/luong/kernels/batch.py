"""Flatten batch dimensions into the single one that kernels take."""

from __future__ import annotations

import torch
from torch import Tensor


def flatten(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[torch.Size, tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """Return the common batch shape, and each tensor as (b, rows, columns)."""
    shapes = [x.shape[:-2] for x in (query, key, value, mask) if x is not None]
    batch = shapes[0]
    if any(shape != batch for shape in shapes):
        batch = torch.Size(torch.broadcast_shapes(*shapes))
    elif len(batch) == 1:
        return batch, (query, key, value, mask)

    def flat(x: Tensor) -> Tensor:
        return x.expand(*batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:])

    return batch, (flat(query), flat(key), flat(value), None if mask is None else flat(mask))
