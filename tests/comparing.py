"""Derivatives of any order, and the comparison of results in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor


def probe(x: Tensor) -> Tensor:
    """Fixed numbers of the shape of x, to make one number of many."""
    return torch.cos(torch.arange(x.numel(), dtype=torch.float64)).reshape(x.shape).to(x.dtype)


def combine(results: Sequence[Tensor | None]) -> Tensor:
    return reduce(add, [(x * probe(x)).sum() for x in results if x is not None])


def derivatives(
    call: Callable[..., Sequence[Tensor | None]],
    tensors: Sequence[Tensor],
    order: int = 1,
    **options: Any,
) -> list[Tensor]:
    """Results, the gradients of their combination, and so on up to `order`."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    level = [x for x in call(*leaves, **options) if x is not None]
    found = list(level)
    for i in range(order):
        level = [
            *torch.autograd.grad(
                combine(level),
                leaves,
                create_graph=i + 1 < order,
                allow_unused=True,
                materialize_grads=True,
            )
        ]
        found += level
    return [x.detach() for x in found]


def assert_near(actual: Tensor, expected: Tensor, tolerance: float = 1e-13) -> None:
    """Same shape and dtype, and within `tolerance` of the largest number expected."""
    bound = tolerance * float(expected.detach().abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=bound)


def assert_all_near(
    actual: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-13
) -> None:
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert_near(one, other, tolerance)
