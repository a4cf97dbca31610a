"""Attention in columns: Q (d_k x n), K (d_k x m), V (d_v x m), one vector a column, no batch.

    Attention(Q, K, V) = V Softmax(f(Q, K)),    f(Q, K) of shape m x n

with the softmax over each column, so that each column of Softmax(f(Q, K)) sums to 1:

    dot-product            f(Q, K) = KᵀQ
    scaled dot-product     f(Q, K) = KᵀQ / √d_k
    Luong general          f(Q, K) = KᵀWQ

Each function returns a matrix of shape d_v x n. These are the operators of the package seen
sideways: `luong.dot_attention(Q.T, K.T, V.T).context.T`, and so on.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from luong import _attention, _check


def softmax(X: Tensor) -> Tensor:
    """exp(X_ij) / Σ_i exp(X_ij): each column of the result sums to 1."""
    return torch.softmax(X, dim=0)


def score(q: Tensor, k: Tensor, W: Tensor | None = None) -> Tensor:
    """kᵀq, or kᵀWq with W of shape d_k x d_q, for single vectors q (d_q) and k (d_k)."""
    _check.floating(q=q, k=k)
    _check.dimensions("q", q, 1, "(d_q,)")
    _check.dimensions("k", k, 1, "(d_k,)")
    if W is not None:
        _check.parameter("W", W, (k.shape[0], q.shape[0]), "(d_k, d_q)")
        q = W @ q
    _check.width("k", k, q.shape[0], "like q,")
    return k @ q


def attention(Q: Tensor, K: Tensor, V: Tensor, f: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """V Softmax(f(Q, K)), for any f that takes Q, K to an m x n matrix."""
    if not callable(f):
        raise TypeError(f"f: expected a function of (Q, K), got {type(f).__name__}")
    return _attention.attention(
        *_rows(Q=Q, K=K, V=V), score=lambda query, key: f(query.mT, key.mT).mT
    ).context.mT


def dot_product_attention(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    """V Softmax(KᵀQ)."""
    return _attention.dot_attention(*_rows(Q=Q, K=K, V=V)).context.mT


def scaled_dot_product_attention(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    """V Softmax(KᵀQ / √d_k)."""
    return _attention.scaled_dot_attention(*_rows(Q=Q, K=K, V=V)).context.mT


def general_attention(Q: Tensor, K: Tensor, V: Tensor, W: Tensor) -> Tensor:
    """V Softmax(KᵀWQ), W of shape d_k x d_q, the d_q being Q's."""
    q, k, v = _rows(Q=Q, K=K, V=V)
    return _attention.general_attention(q, k, v, W).context.mT


def concat_attention(Q: Tensor, K: Tensor, V: Tensor, W: Tensor, v: Tensor) -> Tensor:
    """V Softmax(f(Q, K)) with f_ji = vᵀ tanh(W [q_i; k_j]), W of shape d_a x (d_q + d_k)."""
    q, k, value = _rows(Q=Q, K=K, V=V)
    return _attention.concat_attention(q, k, value, W, v).context.mT


def _rows(**matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    for name, matrix in matrices.items():
        if not isinstance(matrix, Tensor) or matrix.ndim != 2:
            got = _check.shape(matrix) if isinstance(matrix, Tensor) else type(matrix).__name__
            raise ValueError(f"{name}: expected a matrix of column vectors, got {got}")
    q, k, v = matrices.values()
    return q.mT, k.mT, v.mT
