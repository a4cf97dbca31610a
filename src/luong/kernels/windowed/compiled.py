"""The numba backend of products with neighbouring rows."""

from __future__ import annotations

from torch import Tensor

from luong.kernels.arrays import array
from luong.kernels.threads import each
from luong.kernels.windowed import loops


def run(name: str, left: Tensor, x: Tensor, first: Tensor, size: int) -> Tensor:
    """Return dots, sums or spread of `left` (b, n, ...), `x` (b, m or n, d), `first` (b, n)."""
    b, n, w = left.shape[0], first.shape[1], size if name == "dots" else left.shape[-1]
    d = x.shape[-1]
    if name == "spread":
        out, tasks, cost = x.new_zeros(b, size, d), b * -(-d // loops.CHUNK), n * w * loops.CHUNK
    else:
        out, tasks, cost = x.new_empty(b, n, size), b * n, w * d
    arrays = map(array, (left, x, first, out))
    each(getattr(loops, name), *arrays, tasks=tasks, cost=max(1, cost))
    return out
