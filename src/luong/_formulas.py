"""Score functions f(Q, K) on tensors.

Shapes, here and everywhere: query (*batch, n, d_q), key (*batch, m, d_k), scores (*batch, n, m).
Equation numbers are those of Luong, Pham & Manning (2015), arXiv:1508.04025.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from luong import _check
from luong._mask import positions
from luong.kernels import additive, dense, dot


def dot_score(query: Tensor, key: Tensor) -> Tensor:
    """score(q, k) = kᵀq (eq. 8, dot). Needs d_q == d_k."""
    return scaled_dot_score(query, key, scale=1.0)


def scaled_dot_score(query: Tensor, key: Tensor, *, scale: float | None = None) -> Tensor:
    """score(q, k) = scale · kᵀq, by default with scale = 1/√d_k. Needs d_q == d_k."""
    query, key = pair(query=query, key=key)
    same_width(query, key)
    return dot.scores(query, key, default_scale(key, scale)).to(query.dtype)


def general_score(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """score(q, k) = kᵀWq (eq. 8, general), with weight W of shape (d_k, d_q)."""
    query, key, weight = pair(query=query, key=key, weight=weight)
    query, key = project_general(query, key, weight)
    return dot.scores(query, key, 1.0).to(query.dtype)


def concat_score(
    query: Tensor,
    key: Tensor,
    weight: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    *,
    simplified: bool = False,
    backend: str | None = None,
) -> Tensor:
    """score(q, k) = vᵀ tanh(W [q; k] + bias) (eq. 8, concat).

    weight (d_a, d_q + d_k), in the order [q; k]; v (d_a,); bias (d_a,). `simplified` is the form
    of the paper's footnote 15: the half of W that meets k is the identity, so that weight is
    (d_a, d_q) and d_k must be d_a. `backend` as in `additive_score`.
    """
    extra = {} if bias is None else {"bias": bias}
    query, key, weight, v, *_ = pair(query=query, key=key, weight=weight, v=v, **extra)
    query, key = project_concat(query, key, weight, v, bias, simplified)
    return additive.scores(query, key, v, backend=backend).to(query.dtype)


def additive_score(query: Tensor, key: Tensor, v: Tensor, *, backend: str | None = None) -> Tensor:
    """score(q, k) = vᵀ tanh(q + k), for queries and keys already projected to d_a; v (d_a,).

    `backend`: "numba", "torch", "reference", or None for the first of them that can.
    """
    query, key, v = pair(query=query, key=key, v=v)
    check_additive(query, key, v)
    return additive.scores(query, key, v, backend=backend).to(query.dtype)


def location_score(query: Tensor, weight: Tensor, *, length: int) -> Tensor:
    """score(q, ·) at key position j = (W q)_j (eq. 7): looks at the query alone.

    weight (m_max, d_q). The result is (*batch, n, length); positions from m_max on get -inf, that
    is, weight 0 (footnote 6).
    """
    query, weight = _check.floating(query=query, weight=weight)
    _check.rows("query", query, "(*batch, n, d_q)")
    if not isinstance(length, int) or length < 0:
        raise ValueError(f"length: expected a whole number, 0 or more, got {length!r}")
    return location(query, weight, length).to(query.dtype)


# What functions and modules share


def project_general(query: Tensor, key: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(Wq, k) or (q, Wᵀk): W on the side that has fewer rows (compiled, where that would be a guard
    on sizes, on the query)."""
    expected = (key.shape[-1], query.shape[-1])
    _check.parameter("weight", weight, expected, "(d_k, d_q)")
    if torch.compiler.is_compiling() or query.shape[-2] <= key.shape[-2]:
        return query @ weight.mT, key
    return query, key @ weight


def project_concat(
    query: Tensor,
    key: Tensor,
    weight: Tensor,
    v: Tensor,
    bias: Tensor | None,
    simplified: bool,
) -> tuple[Tensor, Tensor]:
    """W [q; k] + bias = (W_q q + bias) + W_k k: the two parts."""
    _check.dimensions("v", v, 1, "(d_a,)")
    d_a, d_q, d_k = v.shape[-1], query.shape[-1], key.shape[-1]
    if simplified:
        _check.parameter("weight", weight, (d_a, d_q), "(d_a, d_q)")
        _check.width("key", key, d_a, "the size of v, as simplified=True leaves keys as they are,")
    else:
        _check.parameter("weight", weight, (d_a, d_q + d_k), "(d_a, d_q + d_k)")
    if bias is not None:
        _check.parameter("bias", bias, (d_a,), "(d_a,)")
    projected = nn.functional.linear(query, weight[:, :d_q], bias)
    return projected, key if simplified else key @ weight[:, d_q:].mT


def check_additive(query: Tensor, key: Tensor, v: Tensor) -> None:
    """Projected queries and keys have the size of v."""
    _check.dimensions("v", v, 1, "(d_a,)")
    _check.width("query", query, v.shape[0], "the size of v,")
    _check.width("key", key, v.shape[0], "the size of v,")


def check_table(weight: Tensor) -> None:
    """The W of location has a row for one position at least."""
    if weight.ndim != 2 or weight.shape[0] == 0:
        raise ValueError(
            f"weight: expected shape (m_max, d_q), m_max at least 1, got {_check.shape(weight)}"
        )


def default_scale(key: Tensor, scale: float | None) -> float:
    """`scale`, or 1/√d_k."""
    if scale is not None:
        if not isinstance(scale, (int, float)):
            raise TypeError(f"scale: expected a number or None, got {type(scale).__name__}")
        return scale
    return 1.0 / math.sqrt(max(key.shape[-1], 1))


def same_width(query: Tensor, key: Tensor) -> None:
    """A dot product needs d_q == d_k."""
    _check.width("key", key, query.shape[-1], "like query,")


def pair(*, query: Tensor, key: Tensor, **more: Tensor) -> list[Tensor]:
    """The tensors, checked to be what a score function takes."""
    tensors = _check.floating(query=query, key=key, **more)
    _check.rows("query", query, "(*batch, n, d_q)")
    _check.rows("key", key, "(*batch, m, d_k)")
    _check.batch(query=query, key=key)
    return tensors


def location(query: Tensor, weight: Tensor, length: int) -> Tensor:
    """The first `length` positions' scores, -inf past the end of the table."""
    check_table(weight)
    _check.width("query", query, weight.shape[1], "the d_q of weight,")
    index = positions(length, query.device)
    scores = dense.product(query, weight[index.clamp(max=weight.shape[0] - 1)].mT)
    return torch.where(index < weight.shape[0], scores, float("-inf"))
