"""Products with a few neighbouring rows each: what a window needs of keys and values.

Query i meets the rows first[i], ..., first[i] + w - 1 of x:

    dots(query, x)[i, k]     = query[i] · x[first[i] + k]                     (b, n, w)
    sums(weights, x)[i]      = Σ_k weights[i, k] x[first[i] + k]              (b, n, d)
    spread(weights, rows)[j] = Σ weights[i, k] rows[i] over first[i] + k = j  (b, m, d)

Each is linear in both of its tensors, and its derivatives are the other two: so all have every
derivative, and keep nothing but their inputs. `index` (*batch, n, w) holds the positions, each row
consecutive and within 0..m-1. (Where sizes are symbols, in a compiled graph, rows may be cut off at
m - 1: positions past the sentence, which nobody attends to.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from luong.kernels.batch import flatten
from luong.kernels.dispatch import choose, transformed

_BLOCK = 1 << 19  # elements that the torch backend gathers at a time


def dots(query: Tensor, x: Tensor, index: Tensor) -> Tensor:
    """query (*batch, n, d), x (*batch, m, d) -> (*batch, n, w)."""
    return _by("dots", query, x, index)


def sums(weights: Tensor, x: Tensor, index: Tensor) -> Tensor:
    """weights (*batch, n, w), x (*batch, m, d) -> (*batch, n, d)."""
    return _by("sums", weights, x, index)


def rows(x: Tensor, index: Tensor) -> Tensor:
    """x[index]: x (*batch, m, d) -> (*batch, n, w, d)."""
    *batch, n, w = index.shape
    b, (m, d) = math.prod(batch), x.shape[-2:]
    x, index = x.expand(*batch, m, d).reshape(b * m, d), index.reshape(b, n * w)
    start = m * torch.arange(b, device=index.device)[:, None]
    return x.index_select(0, (index + start).flatten()).view(*batch, n, w, d)


def plain_dots(query: Tensor, x: Tensor, index: Tensor) -> Tensor:
    """The formula, with all rows side by side."""
    return (query.unsqueeze(-2) * rows(x, index)).sum(-1)


def plain_sums(weights: Tensor, x: Tensor, index: Tensor) -> Tensor:
    return (weights.unsqueeze(-1) * rows(x, index)).sum(-2)


def neighbours(first: Tensor, w: int) -> Tensor:
    """first, first + 1, ...: (*batch, n) -> (*batch, n, w)."""
    return first.unsqueeze(-1) + torch.arange(w, device=first.device)


def common(left: Tensor, x: Tensor, index: Tensor) -> tuple[torch.Size, list[Tensor]]:
    """The batch shape of all three, and each with it as one dimension.

    Queries that share x become queries of one batch row.
    """
    batch = torch.broadcast_shapes(left.shape[:-2], x.shape[:-2], index.shape[:-2])
    if math.prod(x.shape[:-2]) == 1:
        n = left.shape[-2]
        left, index = (y.expand(*batch, n, y.shape[-1]) for y in (left, index))
        return batch, [y.reshape(1, -1, y.shape[-1]) for y in (left, x, index)]
    _, (left, x, index, _) = flatten(left, x, index, None)
    return batch, [left, x, index]


def apply(function: Any, *inputs: Any) -> Tensor:
    """function.apply, which has no types."""
    found: Tensor = function.apply(*inputs)
    return found


def _by(name: str, left: Tensor, x: Tensor, index: Tensor) -> Tensor:
    backend = choose("window", None, [left, x, index])
    if backend == "reference" or 0 in (left.numel(), x.numel(), index.numel()):
        batch = torch.broadcast_shapes(left.shape[:-2], x.shape[:-2], index.shape[:-2])
        formula = plain_dots if name == "dots" else plain_sums
        return formula(left, x, index.expand(*batch, *index.shape[-2:]))
    n = left.shape[-2]
    batch, (left, x, index) = common(left, x, index)
    size = index.shape[-1] if name == "dots" else x.shape[-1]
    found = apply(_Product, name, left, x, index[..., 0], size, backend)
    return found.reshape(*batch, n, found.shape[-1])


class _Product(torch.autograd.Function):
    """One of the three formulas, by its name; `size` is the one that its tensors do not have."""

    @staticmethod
    def forward(
        ctx: Any, name: str, left: Tensor, x: Tensor, first: Tensor, size: int, backend: str
    ) -> Tensor:
        ctx.save_for_backward(left, x, first)
        ctx.name, ctx.backend = name, backend
        return _run(name, left, x, first, size, backend)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        left, x, first = ctx.saved_tensors
        of_left, of_x = {
            "dots": (("sums", grad, x), ("spread", grad, left)),
            "sums": (("dots", grad, x), ("spread", left, grad)),
            "spread": (("dots", x, grad), ("sums", left, grad)),
        }[ctx.name]

        def derivative(name: str, left: Tensor, x: Tensor, like: Tensor) -> Tensor:
            size = like.shape[1 if name == "spread" else 2]
            if transformed(grad):
                return _plain(name, left, x, first, size)
            return apply(_Product, name, left, x, first, size, ctx.backend)

        _, left_wanted, x_wanted, *_ = ctx.needs_input_grad
        return (
            None,
            derivative(*of_left, left) if left_wanted else None,
            derivative(*of_x, x) if x_wanted else None,
            *[None] * 3,
        )


def _plain(name: str, left: Tensor, x: Tensor, first: Tensor, size: int) -> Tensor:
    index = neighbours(first, size if name == "dots" else left.shape[-1])
    if name != "spread":
        return plain_dots(left, x, index) if name == "dots" else plain_sums(left, x, index)
    b, n, w = index.shape
    each = (left.unsqueeze(-1) * x.unsqueeze(-2)).reshape(b, n * w, -1)
    index = index.flatten(1).unsqueeze(-1).expand_as(each)
    return each.new_zeros(b, size, each.shape[2]).scatter_add(1, index, each)


def _run(name: str, left: Tensor, x: Tensor, first: Tensor, size: int, backend: str) -> Tensor:
    """The formula `name` of (b, ...) tensors."""
    if backend == "numba":
        from luong.kernels.band import compiled

        return compiled.run(name, left, x, first, size)
    if name == "sums":
        return _bags(left, x, first)
    left, x = (y.clone() if y.is_inference() else y for y in (left, x))  # autograd refuses those
    with torch.inference_mode(False), torch.enable_grad():
        if name == "dots":
            wanted = x.new_zeros(*left.shape[:2], size, requires_grad=True)
            found = torch.autograd.grad(_bags(wanted, x, first), wanted, left)
        else:
            wanted = x.new_zeros(x.shape[0], size, x.shape[2], requires_grad=True)
            found = torch.autograd.grad(_bags(left, wanted, first), wanted, x)
    return found[0]


def _bags(weights: Tensor, x: Tensor, first: Tensor) -> Tensor:
    """`sums` by PyTorch's own kernel for them, whose derivatives are `dots` and `spread`."""
    (b, m, d), w = x.shape, weights.shape[-1]
    index = neighbours(first + m * torch.arange(b, device=first.device)[:, None], w)
    found: Tensor = F.embedding_bag(
        index.flatten(0, 1),
        x.reshape(b * m, d),
        per_sample_weights=weights.reshape(-1, w),
        mode="sum",
    )
    return found.view(b, -1, d)


def blocks(first: Tensor, w: int, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """A few queries after the other, with the positions of each."""
    b, n = first.shape
    step = max(1, _BLOCK // max(1, b * w * x.shape[-1]))
    for start in range(0, n, step):
        part = slice(start, min(n, start + step))
        yield part, neighbours(first[:, part], w)
