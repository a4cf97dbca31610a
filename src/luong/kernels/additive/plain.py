"""The reference backend: the formula itself, all of whose derivatives PyTorch has."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from luong import reference
from luong._memory import Memory
from luong.kernels import dense

scores = reference.additive_score


def context(query: Tensor, key: Tensor, value: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Return the context (*batch, n, d_v); a query with nothing to attend gets zeros."""
    return weigh(scores(query, key, v), value, mask)


def weigh(scores: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Return the softmax of scores, times the values."""
    return dense.attention(scores, Memory(value, value, mask), dropout=0.0, need_weights=False)[0]


def derivative(
    function: Callable[..., Tensor], grad: Tensor, *tensors: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of `function` at `tensors`, with a graph if grad mode is on."""
    graph = torch.is_grad_enabled()
    with torch.enable_grad(), dense.uncast(grad):
        inputs = [x.view_as(x) for x in tensors]  # two arguments may be one tensor
        wanted = [x for x in inputs if x.requires_grad]
        found = function(*inputs)
        grads = iter(torch.autograd.grad(found, wanted, grad, create_graph=graph))
    return tuple(next(grads) if x.requires_grad else None for x in inputs)


def score_gradients(
    grad: Tensor, query: Tensor, key: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and v, without a graph, from that of the scores."""
    tanh = torch.tanh(query[:, :, None] + key[:, None])
    inner = grad[..., None] * v * (1 - tanh * tanh)
    return inner.sum(2), inner.sum(1), (grad[..., None] * tanh).sum((0, 1, 2))


def context_gradients(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of query, key, value and v from that of the context."""
    live = grad.new_ones((), dtype=torch.bool) if mask is None else mask
    weights = torch.where(live, scores(query, key, v), float("-inf")).softmax(-1)
    weights = torch.where(live, weights, 0)
    d_weights = torch.where(live, grad @ value.mT, 0)
    d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdim=True))
    d_query, d_key, d_v = score_gradients(torch.where(live, d_scores, 0), query, key, v)
    return d_query, d_key, weights.mT @ grad, d_v
