"""The reference backend: the formula itself, every derivative of which PyTorch knows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from luong import reference
from luong._mask import Memory
from luong.kernels import dense

scores = reference.additive_score


def attend(query: Tensor, key: Tensor, value: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Context of projected queries and keys; a row that may attend to nothing gives zeros."""
    return weigh(scores(query, key, v), value, mask)


def weigh(scores: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax, and the sum of values."""
    empty = None if mask is None else ~mask.any(-1, keepdim=True)
    memory = Memory(value, value, mask, empty)
    return dense.attend(scores, memory, dropout=0.0, need_weights=False)[0]


def derivative(
    function: Callable[..., Tensor], grad: Tensor, *tensors: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradient of `function` at `tensors`, as something that can be differentiated again."""
    inputs = [x.view_as(x) for x in tensors]  # two arguments may be one tensor
    wanted = [x for x in inputs if x.requires_grad]
    grads = iter(torch.autograd.grad(function(*inputs), wanted, grad, create_graph=True))
    return tuple(next(grads) if x.requires_grad else None for x in inputs)
