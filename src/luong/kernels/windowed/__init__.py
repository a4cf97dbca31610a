"""Products of each query with a few neighbouring rows of keys or values, for windows.

Query i meets the rows first[i], ..., first[i] + w - 1 of x:

    dots(query, x)[i, k]     = query[i] · x[first[i] + k]                     (b, n, w)
    sums(weights, x)[i]      = Σ_k weights[i, k] x[first[i] + k]              (b, n, d)
    spread(weights, rows)[j] = Σ weights[i, k] rows[i] over first[i] + k = j  (b, m, d)

Each is linear in both of its tensors, and its derivatives are the other two. So all of them have
derivatives of any order, and keep only their inputs. `key_positions` (*batch, n, w) are the numbers
of the rows that each query meets: consecutive, within 0..m-1. (In a compiled graph with symbolic
sizes they may stop at m - 1: such positions lie past the sentence, and are not attended to.)
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


def dots(query: Tensor, x: Tensor, key_positions: Tensor) -> Tensor:
    """Return `dots` (*batch, n, w) of query (*batch, n, d) and x (*batch, m, d)."""
    return _by("dots", query, x, key_positions)


def sums(weights: Tensor, x: Tensor, key_positions: Tensor) -> Tensor:
    """Return `sums` (*batch, n, d) of weights (*batch, n, w) and x (*batch, m, d)."""
    return _by("sums", weights, x, key_positions)


def rows(x: Tensor, key_positions: Tensor) -> Tensor:
    """Return the rows x[key_positions] (*batch, n, w, d) of x (*batch, m, d)."""
    *batch, n, w = key_positions.shape
    b, (m, d) = math.prod(batch), x.shape[-2:]
    x, key_positions = x.expand(*batch, m, d).reshape(b * m, d), key_positions.reshape(b, n * w)
    start = m * torch.arange(b, device=key_positions.device)[:, None]
    return x.index_select(0, (key_positions + start).flatten()).view(*batch, n, w, d)


def plain_dots(query: Tensor, x: Tensor, key_positions: Tensor) -> Tensor:
    """Return `dots` by the formula, with all rows side by side."""
    return (query.unsqueeze(-2) * rows(x, key_positions)).sum(-1)


def plain_sums(weights: Tensor, x: Tensor, key_positions: Tensor) -> Tensor:
    return (weights.unsqueeze(-1) * rows(x, key_positions)).sum(-2)


def neighbours(first: Tensor, w: int) -> Tensor:
    """Return first, first + 1, ... (*batch, n, w) for `first` (*batch, n)."""
    return first.unsqueeze(-1) + torch.arange(w, device=first.device)


def common(left: Tensor, x: Tensor, key_positions: Tensor) -> tuple[torch.Size, list[Tensor]]:
    """Return the batch shape of all three, and each of them with one batch dimension.

    Queries that share x become queries of one batch row.
    """
    batch = torch.broadcast_shapes(left.shape[:-2], x.shape[:-2], key_positions.shape[:-2])
    if math.prod(x.shape[:-2]) == 1:
        n = left.shape[-2]
        left, key_positions = (y.expand(*batch, n, y.shape[-1]) for y in (left, key_positions))
        return batch, [y.reshape(1, -1, y.shape[-1]) for y in (left, x, key_positions)]
    _, (left, x, key_positions, _) = flatten(left, x, key_positions, None)
    return batch, [left, x, key_positions]


def apply(function: Any, *inputs: Any) -> Tensor:
    """Call function.apply, whose types PyTorch does not declare."""
    found: Tensor = function.apply(*inputs)
    return found


def _by(name: str, left: Tensor, x: Tensor, key_positions: Tensor) -> Tensor:
    backend = choose("windowed", None, [left, x, key_positions])
    if backend == "reference" or 0 in (left.numel(), x.numel(), key_positions.numel()):
        batch = torch.broadcast_shapes(left.shape[:-2], x.shape[:-2], key_positions.shape[:-2])
        formula = plain_dots if name == "dots" else plain_sums
        return formula(left, x, key_positions.expand(*batch, *key_positions.shape[-2:]))
    n = left.shape[-2]
    batch, (left, x, key_positions) = common(left, x, key_positions)
    size = key_positions.shape[-1] if name == "dots" else x.shape[-1]
    found = apply(_Product, name, left, x, key_positions[..., 0], size, backend)
    return found.reshape(*batch, n, found.shape[-1])


class _Product(torch.autograd.Function):
    """A product by its name; `size` is the dimension of the result that no input has."""

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
    key_positions = neighbours(first, size if name == "dots" else left.shape[-1])
    if name != "spread":
        return (
            plain_dots(left, x, key_positions)
            if name == "dots"
            else plain_sums(left, x, key_positions)
        )
    b, n, w = key_positions.shape
    each = (left.unsqueeze(-1) * x.unsqueeze(-2)).reshape(b, n * w, -1)
    key_positions = key_positions.flatten(1).unsqueeze(-1).expand_as(each)
    return each.new_zeros(b, size, each.shape[2]).scatter_add(1, key_positions, each)


def _run(name: str, left: Tensor, x: Tensor, first: Tensor, size: int, backend: str) -> Tensor:
    """Return the product `name` of (b, ...) tensors."""
    if backend == "numba":
        from luong.kernels.windowed import compiled

        return compiled.run(name, left, x, first, size)
    if name == "sums":
        return _bags(left, x, first)
    left, x = (y.clone() if y.is_inference() else y for y in (left, x))  # autograd refuses them
    with torch.inference_mode(False), torch.enable_grad():
        if name == "dots":
            wanted = x.new_zeros(*left.shape[:2], size, requires_grad=True)
            found = torch.autograd.grad(_bags(wanted, x, first), wanted, left)
        else:
            wanted = x.new_zeros(x.shape[0], size, x.shape[2], requires_grad=True)
            found = torch.autograd.grad(_bags(left, wanted, first), wanted, x)
    return found[0]


def _bags(weights: Tensor, x: Tensor, first: Tensor) -> Tensor:
    """Return `sums` by PyTorch's own kernel, whose derivatives are `dots` and `spread`."""
    (b, m, d), w = x.shape, weights.shape[-1]
    key_positions = neighbours(first + m * torch.arange(b, device=first.device)[:, None], w)
    found: Tensor = F.embedding_bag(
        key_positions.flatten(0, 1),
        x.reshape(b * m, d),
        per_sample_weights=weights.reshape(-1, w),
        mode="sum",
    )
    return found.view(b, -1, d)


def blocks(first: Tensor, w: int, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield blocks of queries: the rows of each, and the key positions of its queries."""
    b, n = first.shape
    step = max(1, _BLOCK // max(1, b * w * x.shape[-1]))
    for start in range(0, n, step):
        part = slice(start, min(n, start + step))
        yield part, neighbours(first[:, part], w)
