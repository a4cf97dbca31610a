"""What the benchmarks of additive attention compare: ours, and what stands against it.

query (batch, n, d) and key (batch, m, d) are projected already; value (batch, m, d); v (d,).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

import luong
from timing import Function, check

Size = tuple[int, int, int, int]  # batch, n, m, d
Contest = dict[str, tuple[Function, list[Tensor]]]  # whom to time, and on what


def inputs(size: Size, seed: int = 0) -> list[Tensor]:
    """query, key, value and v."""
    batch, n, m, d = size
    torch.manual_seed(seed)
    query, key, value = (torch.randn(batch, rows, d) for rows in (n, m, m))
    return [x.requires_grad_() for x in (query, key, value, torch.randn(d) / d**0.5)]


def eager_score(query: Tensor, key: Tensor, v: Tensor) -> Tensor:
    """The formula, in its faster spelling."""
    return torch.tanh(query[:, :, None] + key[:, None]) @ v


def eager(query: Tensor, key: Tensor, value: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(eager_score(query, key, v), -1) @ value


def ours(query: Tensor, key: Tensor, value: Tensor, v: Tensor) -> Tensor:
    return luong.additive_attention(query, key, value, v).context


def dot(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Dot-product attention at the same size: another function, and the price to reach."""
    return F.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None])[:, 0]


def compiled(function: Function) -> tuple[Function | None, str]:
    """torch.compile of a function and "", or None and why there is none."""
    torch._dynamo.reset()
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(8))
    except Exception as problem:  # no C++ compiler, as a rule
        return None, str(problem).strip().splitlines()[0]
    return torch.compile(function, dynamic=False), ""


def eager_steps(queries: Tensor, key: Tensor, value: Tensor, weight: Tensor, v: Tensor) -> Tensor:
    """A decoder loop over queries (steps, batch, 1, d), keys projected once; weight (d, 2 d)."""
    d = queries.shape[-1]
    key = key @ weight[:, d:].mT
    return torch.stack([eager(query @ weight[:, :d].mT, key, value, v) for query in queries])


def our_steps(attention: luong.Attention, queries: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same, through a prepared memory."""
    memory = attention.prepare(key, value)
    return torch.stack([attention.attend(query, memory).context for query in queries])


def verify(size: Size) -> None:
    """Stop unless ours is as near to float64 as the eager formula is.

    Outputs and every gradient on a part of the inputs; on all of them, what a few queries get.
    """
    query, key, value, v = inputs(size)
    part = [x[:2, :96].detach().requires_grad_() for x in (query, key, value)]
    names = ("output", "d query", "d key", "d value", "d v")
    contests: tuple[tuple[str, Function, Function, list[Tensor]], ...] = (
        ("score", luong.additive_score, eager_score, [part[0], part[1], v]),
        ("attention", ours, eager, [*part, v]),
    )
    for name, mine, formula, tensors in contests:
        results = [differentiate(function, tensors) for function in (mine, formula)]
        results.append(differentiate(formula, [x.detach().double() for x in tensors]))
        labels = names if name == "attention" else (names[0], names[1], names[2], names[4])
        for label, own, other, exact in zip(labels, *results, strict=True):
            check(f"{name}, {label}", [own], [other], [exact], slack=1e-5)
    few = slice(0, size[1], max(1, size[1] // 8))
    whole = differentiate(ours, [query, key, value, v], rows=few)
    parts = [query[:1, few], key[:1], value[:1], v]
    rival = differentiate(eager, parts)
    truth = differentiate(eager, [x.detach().double() for x in parts])
    for label, index in (("output", 0), ("d query", 1)):
        own = whole[index][:1, few]
        check(f"all of it, {label}", [own], [rival[index]], [truth[index]], slack=1e-5)


def differentiate(
    function: Callable[..., Tensor], tensors: list[Tensor], rows: slice | None = None
) -> list[Tensor]:
    """Output and gradients, from a gradient that is the same whatever the dtype.

    With `rows`, it reaches only these queries of the first sentence.
    """
    tensors = [x.detach().requires_grad_() for x in tensors]
    output = function(*tensors)
    shape = output.shape if rows is None else output[:1, rows].shape
    torch.manual_seed(1)
    grad = torch.randn(shape).to(output.dtype)
    if rows is not None:
        spread = torch.zeros_like(output)
        spread[:1, rows] = grad
        grad = spread
    return [output.detach(), *torch.autograd.grad(output, tensors, grad)]
