"""Attention in columns: Q (d_k x n), K (d_k x m), V (d_v x m), one vector a column, no batch.

    Attention(Q, K, V) = V Softmax(f(Q, K)),    f(Q, K) of shape m x n

with the softmax over each column, so that each column of Softmax(f(Q, K)) sums to 1:

    dot-product            f(Q, K) = KᵀQ
    scaled dot-product     f(Q, K) = KᵀQ / √d_k
    Luong general          f(Q, K) = KᵀWQ

Each attention function returns a matrix d_v x n. They are the operators of the package with rows
and columns exchanged: `dot_product_attention(Q, K, V)` is
`luong.dot_attention(Q.T, K.T, V.T).context.T`. All matrices have one floating dtype and one device;
else, and for shapes that do not fit, TypeError or ValueError names the argument.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from luong import _check, _functions
from luong._attention import attention as _attention


def softmax(X: Tensor) -> Tensor:
    """Return exp(X_ij) / Σ_i exp(X_ij), so that each column sums to 1.

    Args:
        X: a matrix m x n.

    Returns:
        A matrix m x n.

    Example:
        >>> luong.columns.softmax(torch.zeros(2, 3))
        tensor([[0.5000, 0.5000, 0.5000],
                [0.5000, 0.5000, 0.5000]])
    """
    return torch.softmax(X, dim=0)


def score(q: Tensor, k: Tensor, W: Tensor | None = None) -> Tensor:
    """Return kᵀq, or kᵀWq, for one query and one key.

    Args:
        q: a vector of size d_q.
        k: a vector of size d_k; without W, d_k is d_q.
        W: a matrix d_k x d_q. Default: none.

    Returns:
        A tensor without dimensions.

    Example:
        >>> luong.columns.score(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
        tensor(11.)
    """
    _check.floating(q=q, k=k)
    _check.dimensions("q", q, 1, "(d_q,)")
    _check.dimensions("k", k, 1, "(d_k,)")
    if W is not None:
        _check.parameter("W", W, (k.shape[0], q.shape[0]), "(d_k, d_q)")
        q = W @ q
    _check.width("k", k, q.shape[0], "like q,")
    return k @ q


def attention(Q: Tensor, K: Tensor, V: Tensor, f: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return V Softmax(f(Q, K)) for any score function f.

    Args:
        Q: queries, d_k x n.
        K: keys, d_k x m.
        V: values, d_v x m.
        f: a function that takes Q and K to a matrix m x n.

    Returns:
        A matrix d_v x n: column i is what query i attends to.

    Example:
        >>> Q, K, V = torch.zeros(2, 1), torch.randn(2, 4), torch.tensor([[1.0, 2.0, 3.0, 6.0]])
        >>> luong.columns.attention(Q, K, V, lambda Q, K: K.mT @ Q)
        tensor([[3.]])
    """
    if not callable(f):
        raise TypeError(f"f: expected a function of (Q, K), got {type(f).__name__}")
    return _attention(
        *_rows(Q=Q, K=K, V=V), score=lambda query, key: f(query.mT, key.mT).mT
    ).context.mT


def dot_product_attention(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    """Return V Softmax(KᵀQ).

    Args:
        Q: queries, d_k x n.
        K: keys, d_k x m.
        V: values, d_v x m.

    Returns:
        A matrix d_v x n: column i is what query i attends to.

    Example:
        >>> Q, K, V = torch.zeros(2, 1), torch.randn(2, 4), torch.tensor([[1.0, 2.0, 3.0, 6.0]])
        >>> luong.columns.dot_product_attention(Q, K, V)
        tensor([[3.]])
    """
    return _functions.dot_attention(*_rows(Q=Q, K=K, V=V)).context.mT


def scaled_dot_product_attention(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    """Return V Softmax(KᵀQ / √d_k).

    Args:
        Q: queries, d_k x n.
        K: keys, d_k x m.
        V: values, d_v x m.

    Returns:
        A matrix d_v x n: column i is what query i attends to.

    Example:
        >>> Q, K, V = torch.zeros(2, 1), torch.randn(2, 4), torch.tensor([[1.0, 2.0, 3.0, 6.0]])
        >>> luong.columns.scaled_dot_product_attention(Q, K, V)
        tensor([[3.]])
    """
    return _functions.scaled_dot_attention(*_rows(Q=Q, K=K, V=V)).context.mT


def general_attention(Q: Tensor, K: Tensor, V: Tensor, W: Tensor) -> Tensor:
    """Return V Softmax(KᵀWQ).

    Args:
        Q: queries, d_q x n.
        K: keys, d_k x m.
        V: values, d_v x m.
        W: a matrix d_k x d_q.

    Returns:
        A matrix d_v x n: column i is what query i attends to.

    Example:
        >>> Q, K, V = torch.zeros(2, 1), torch.randn(2, 4), torch.tensor([[1.0, 2.0, 3.0, 6.0]])
        >>> luong.columns.general_attention(Q, K, V, torch.eye(2))
        tensor([[3.]])
    """
    q, k, v = _rows(Q=Q, K=K, V=V)
    return _functions.general_attention(q, k, v, W).context.mT


def concat_attention(Q: Tensor, K: Tensor, V: Tensor, W: Tensor, v: Tensor) -> Tensor:
    """Return V Softmax(f(Q, K)) with f_ji = vᵀ tanh(W [q_i; k_j]).

    Args:
        Q: queries, d_q x n.
        K: keys, d_k x m.
        V: values, d_v x m.
        W: a matrix d_a x (d_q + d_k): first the columns that meet q, then those of k.
        v: a vector of size d_a.

    Returns:
        A matrix d_v x n: column i is what query i attends to.

    Example:
        >>> Q, K, V = torch.zeros(2, 1), torch.randn(2, 4), torch.tensor([[1.0, 2.0, 3.0, 6.0]])
        >>> luong.columns.concat_attention(Q, K * 0, V, torch.ones(5, 4), torch.ones(5))
        tensor([[3.]])
    """
    q, k, value = _rows(Q=Q, K=K, V=V)
    return _functions.concat_attention(q, k, value, W, v).context.mT


def _rows(**matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    for name, matrix in matrices.items():
        if not isinstance(matrix, Tensor) or matrix.ndim != 2:
            got = _check.shape(matrix) if isinstance(matrix, Tensor) else type(matrix).__name__
            raise ValueError(f"{name}: expected a matrix of column vectors, got {got}")
    q, k, v = matrices.values()
    return q.mT, k.mT, v.mT
