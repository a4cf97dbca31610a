"""Score functions on tensors: how well each key matches each query.

Equation and footnote numbers are those of Luong, Pham & Manning (2015), arXiv:1508.04025.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from luong import _check
from luong._mask import positions
from luong.kernels import additive, dense, dot


def dot_score(query: Tensor, key: Tensor) -> Tensor:
    """Return the dot products kᵀq of all queries and keys.

    Args:
        query: (*batch, n, d_q), a floating dtype.
        key: (*batch, m, d_k), d_k = d_q, dtype and device of query.

    Returns:
        Scores (*batch, n, m), in the dtype of query. Half types are computed in float32.

    Raises:
        TypeError, ValueError: dtypes, devices or shapes that do not fit; the message names the
            argument, what was expected and what came.

    Example:
        >>> query, key = torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> luong.dot_score(query, key)
        tensor([[1., 3., 5.],
                [2., 4., 6.]])

    Source:
        Luong, Pham & Manning (2015), eq. 8, dot.
    """
    return scaled_dot_score(query, key, scale=1.0)


def scaled_dot_score(query: Tensor, key: Tensor, *, scale: float | None = None) -> Tensor:
    """Return scale · kᵀq for all queries and keys.

    Args:
        query: (*batch, n, d_q), a floating dtype.
        key: (*batch, m, d_k), d_k = d_q, dtype and device of query.
        scale: a factor on every score. Default: 1/√d_k.

    Returns:
        Scores (*batch, n, m), in the dtype of query. Half types are computed in float32.

    Raises:
        TypeError, ValueError: dtypes, devices or shapes that do not fit; the message names the
            argument, what was expected and what came.

    Example:
        >>> luong.scaled_dot_score(torch.ones(1, 4), torch.ones(3, 4))
        tensor([[2., 2., 2.]])

    Source:
        Vaswani et al. (2017), eq. 1.
    """
    query, key = check_pair(query=query, key=key)
    same_width(query, key)
    return dot.scores(query, key, default_scale(key, scale)).to(query.dtype)


def general_score(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """Return the bilinear scores kᵀWq of all queries and keys.

    Args:
        query: (*batch, n, d_q), a floating dtype.
        key: (*batch, m, d_k), dtype and device of query.
        weight: the matrix W (d_k, d_q). It is applied to the side with fewer rows.

    Returns:
        Scores (*batch, n, m), in the dtype of query. Half types are computed in float32.

    Raises:
        TypeError, ValueError: dtypes, devices or shapes that do not fit; the message names the
            argument, what was expected and what came.

    Example:
        >>> weight = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]])  # d_k = 2, d_q = 3
        >>> luong.general_score(torch.ones(1, 3), torch.eye(2), weight)
        tensor([[3., 1.]])

    Source:
        Luong, Pham & Manning (2015), eq. 8, general.
    """
    query, key, weight = check_pair(query=query, key=key, weight=weight)
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
    """Return the scores vᵀ tanh(W [q; k] + bias) of all queries and keys.

    Args:
        query: (*batch, n, d_q), a floating dtype.
        key: (*batch, m, d_k), dtype and device of query.
        weight: the matrix W (d_a, d_q + d_k): first the columns that meet q, then those of k.
        v: (d_a,).
        bias: (d_a,). Default: none.
        simplified: leave keys as they are, as the paper did (footnote 15). Then W is (d_a, d_q),
            and d_k is d_a. Default: False.
        backend: "numba" (CPU), "torch" or "reference". Default: the first of them that can take the
            call, see `luong.explain`.

    Returns:
        Scores (*batch, n, m), in the dtype of query. Half types are computed in float32.

    Raises:
        TypeError, ValueError: dtypes, devices or shapes that do not fit; the message names the
            argument, what was expected and what came.

    Example:
        >>> query, key, weight = torch.zeros(1, 2), torch.zeros(3, 2), torch.ones(5, 4)
        >>> luong.concat_score(query, key, weight, torch.ones(5)).shape
        torch.Size([1, 3])

    Source:
        Luong, Pham & Manning (2015), eq. 8, concat, which has no bias; Bahdanau et al. (2015),
        A.1.2.
    """
    extra = {} if bias is None else {"bias": bias}
    query, key, weight, v, *_ = check_pair(query=query, key=key, weight=weight, v=v, **extra)
    query, key = project_concat(query, key, weight, v, bias, simplified)
    return additive.scores(query, key, v, backend=backend).to(query.dtype)


def additive_score(query: Tensor, key: Tensor, v: Tensor, *, backend: str | None = None) -> Tensor:
    """Return the scores vᵀ tanh(q + k) of all queries and keys, already projected.

    The n x m x d_a array of tanh values is never built, and memory is linear in n and m beside the
    scores (docs/additive.md).

    Args:
        query: (*batch, n, d_a), a floating dtype.
        key: (*batch, m, d_a), dtype and device of query.
        v: (d_a,).
        backend: "numba" (CPU), "torch" or "reference". Default: the first of them that can take the
            call, see `luong.explain`.

    Returns:
        Scores (*batch, n, m), in the dtype of query. Half types are computed in float32.

    Raises:
        TypeError, ValueError: dtypes, devices or shapes that do not fit; the message names the
            argument, what was expected and what came.

    Example:
        >>> luong.additive_score(torch.zeros(1, 5), torch.zeros(3, 5), torch.ones(5))
        tensor([[0., 0., 0.]])

    Source:
        Bahdanau et al. (2015), A.1.2, after the projections W_a s and U_a h.
    """
    query, key, v = check_pair(query=query, key=key, v=v)
    check_additive(query, key, v)
    return additive.scores(query, key, v, backend=backend).to(query.dtype)


def location_score(query: Tensor, weight: Tensor, *, length: int) -> Tensor:
    """Return the scores (W q)_j, which depend on the query and the position j only.

    Args:
        query: (*batch, n, d_q), a floating dtype.
        weight: the matrix W (m_max, d_q), a row for each position.
        length: the number m of positions to score, 0 or more.

    Returns:
        Scores (*batch, n, m), in the dtype of query. Positions from m_max on get -inf, so that
        their weight is 0.

    Raises:
        TypeError, ValueError: dtypes, devices or shapes that do not fit; the message names the
            argument, what was expected and what came.

    Example:
        >>> luong.location_score(torch.ones(1, 2), torch.eye(2), length=3)
        tensor([[1., 1., -inf]])

    Source:
        Luong, Pham & Manning (2015), eq. 7 and footnote 6.
    """
    query, weight = _check.floating(query=query, weight=weight)
    _check.rows("query", query, "(*batch, n, d_q)")
    _check.integer("length", length, 0)
    return location(query, weight, length).to(query.dtype)


# Steps that the functions and the modules share


def project_general(query: Tensor, key: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return (Wq, k) or (q, Wᵀk), with W on the side that has fewer rows.

    In compiled code it is on the query: a choice would be a guard on sizes there.
    """
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
    """Return the two parts of W [q; k] + bias: W_q q + bias, and W_k k."""
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
    """Check that projected queries and keys have the size of v."""
    _check.dimensions("v", v, 1, "(d_a,)")
    _check.width("query", query, v.shape[0], "the size of v,")
    _check.width("key", key, v.shape[0], "the size of v,")


def check_table(weight: Tensor) -> None:
    """Check that the W of location has a row for one position at least."""
    if weight.ndim != 2 or weight.shape[0] == 0:
        raise ValueError(
            f"weight: expected shape (m_max, d_q), m_max at least 1, got {_check.shape(weight)}"
        )


def default_scale(key: Tensor, scale: float | None) -> float:
    """Return `scale`, or 1/√d_k for None."""
    if scale is not None:
        if not isinstance(scale, (int, float)):
            raise TypeError(f"scale: expected a number or None, got {type(scale).__name__}")
        return scale
    return 1.0 / math.sqrt(max(key.shape[-1], 1))


def same_width(query: Tensor, key: Tensor) -> None:
    """Check that d_q is d_k, as a dot product needs."""
    _check.width("key", key, query.shape[-1], "like query,")


def check_pair(*, query: Tensor, key: Tensor, **more: Tensor) -> list[Tensor]:
    """Return the tensors, checked to be what a score function takes."""
    tensors = _check.floating(query=query, key=key, **more)
    _check.rows("query", query, "(*batch, n, d_q)")
    _check.rows("key", key, "(*batch, m, d_k)")
    _check.batch(query=query, key=key)
    return tensors


def location(query: Tensor, weight: Tensor, length: int) -> Tensor:
    """Return the scores of the first `length` positions, -inf from the last row of W on."""
    check_table(weight)
    _check.width("query", query, weight.shape[1], "the d_q of weight,")
    index = positions(length, query.device)
    scores = dense.product(query, weight.index_select(0, index.clamp(max=weight.shape[0] - 1)).mT)
    return torch.where(index < weight.shape[0], scores, float("-inf"))
