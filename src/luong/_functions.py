"""The attention functions of one score each: softmax(score) value, on tensors.

Batch dimensions broadcast. A query that may attend to nothing gets zeros, and zero gradients. A key
that no query of its sentence may attend to may hold anything, NaN included. Half types: scores,
softmax and sums in float32. docs/operators.md tells more.

Equation numbers are those of Luong, Pham & Manning (2015), arXiv:1508.04025.
"""

from __future__ import annotations

from torch import Tensor

from luong import _check, _formulas
from luong._attention import enter
from luong._memory import Attended
from luong.kernels import additive, dense, dot


def dot_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> Attended:
    """Attend with the score kᵀq: softmax(query keyᵀ) value.

    Args:
        query: (*batch, n, d_q), a floating dtype.
        key: (*batch, m, d_k), d_k = d_q, in the dtype and on the device of query.
        value: (*batch, m, d_v).
        mask: bool, broadcasts to (*batch, n, m). True: the query may attend to the key. Default: it
            may attend to every key.
        lengths: integers (*batch). Only the first `lengths` keys of a sentence exist; the rest
            is padding. Default: all m exist.
        dropout: the probability, from 0 to below 1, that a weight is dropped; the others
            are multiplied by 1 / (1 - dropout). It is always applied. Default: 0.
        need_weights: whether to return the weights too. Default: False.

    Returns:
        `Attended`: context (*batch, n, d_v), and weights (*batch, n, m) before dropout, or None
        without `need_weights`. A query that may attend to nothing gets zeros.

    Raises:
        TypeError: an argument of another kind or dtype.
        ValueError: shapes, devices, lengths or a dropout that do not fit. The message names the
            argument, what was expected and what came.

    Example:
        >>> query, key = torch.zeros(1, 2), torch.randn(3, 2)
        >>> value = torch.tensor([[1.0], [2.0], [6.0]])
        >>> luong.dot_attention(query, key, value).context
        tensor([[3.]])
        >>> short = torch.tensor(2)
        >>> luong.dot_attention(query, key, value, lengths=short, need_weights=True).weights
        tensor([[0.5000, 0.5000, 0.0000]])

    Source:
        Luong, Pham & Manning (2015), eq. 8, dot.
    """
    return scaled_dot_attention(
        query,
        key,
        value,
        scale=1.0,
        mask=mask,
        lengths=lengths,
        dropout=dropout,
        need_weights=need_weights,
    )


def scaled_dot_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> Attended:
    """Attend with the score scale · kᵀq: softmax(scale · query keyᵀ) value.

    Args:
        query: (*batch, n, d_q), a floating dtype.
        key: (*batch, m, d_k), d_k = d_q, in the dtype and on the device of query.
        value: (*batch, m, d_v).
        scale: a factor on every score. Default: 1/√d_k.
        mask: bool, broadcasts to (*batch, n, m). True: the query may attend to the key. Default: it
            may attend to every key.
        lengths: integers (*batch). Only the first `lengths` keys of a sentence exist; the rest
            is padding. Default: all m exist.
        dropout: the probability, from 0 to below 1, that a weight is dropped; the others
            are multiplied by 1 / (1 - dropout). It is always applied. Default: 0.
        need_weights: whether to return the weights too. Default: False.

    Returns:
        `Attended`: context (*batch, n, d_v), and weights (*batch, n, m) before dropout, or None
        without `need_weights`. A query that may attend to nothing gets zeros.

    Raises:
        TypeError: an argument of another kind or dtype.
        ValueError: shapes, devices, lengths or a dropout that do not fit. The message names the
            argument, what was expected and what came.

    Example:
        >>> query, key, value = torch.zeros(4, 8), torch.randn(6, 8), torch.randn(6, 3)
        >>> luong.scaled_dot_attention(query, key, value).context.shape
        torch.Size([4, 3])

    Source:
        Vaswani et al. (2017), eq. 1. PyTorch's `scaled_dot_product_attention` has no `lengths`,
        returns no weights, and has no second derivatives on the CPU.
    """
    query, key, value = _check.floating(query=query, key=key, value=value)
    query, memory = enter(query, key, value, mask, lengths)
    _formulas.same_width(query, memory.key)
    scale = _formulas.default_scale(memory.key, scale)
    return dot.attention(query, memory, scale=scale, dropout=dropout, need_weights=need_weights)


def general_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weight: Tensor,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> Attended:
    """Attend with the score kᵀWq: softmax(query Wᵀ keyᵀ) value.

    Args:
        query: (*batch, n, d_q), a floating dtype.
        key: (*batch, m, d_k), in the dtype and on the device of query.
        value: (*batch, m, d_v).
        weight: the matrix W (d_k, d_q). It is applied to the side with fewer rows.
        mask: bool, broadcasts to (*batch, n, m). True: the query may attend to the key. Default: it
            may attend to every key.
        lengths: integers (*batch). Only the first `lengths` keys of a sentence exist; the rest
            is padding. Default: all m exist.
        dropout: the probability, from 0 to below 1, that a weight is dropped; the others
            are multiplied by 1 / (1 - dropout). It is always applied. Default: 0.
        need_weights: whether to return the weights too. Default: False.

    Returns:
        `Attended`: context (*batch, n, d_v), and weights (*batch, n, m) before dropout, or None
        without `need_weights`. A query that may attend to nothing gets zeros.

    Raises:
        TypeError: an argument of another kind or dtype.
        ValueError: shapes, devices, lengths or a dropout that do not fit. The message names the
            argument, what was expected and what came.

    Example:
        >>> query, key, weight = torch.randn(4, 5), torch.randn(6, 8), torch.randn(8, 5)
        >>> luong.general_attention(query, key, key, weight).context.shape
        torch.Size([4, 8])

    Source:
        Luong, Pham & Manning (2015), eq. 8, general.
    """
    query, key, value, weight = _check.floating(query=query, key=key, value=value, weight=weight)
    query, memory = enter(query, key, value, mask, lengths)
    query, key = _formulas.project_general(query, memory.key, weight)
    memory = memory._replace(key=key)
    return dot.attention(query, memory, scale=1.0, dropout=dropout, need_weights=need_weights)


def concat_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weight: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    *,
    simplified: bool = False,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    dropout: float = 0.0,
    need_weights: bool = False,
    backend: str | None = None,
) -> Attended:
    """Attend with the score vᵀ tanh(W [q; k] + bias), also known as additive or Bahdanau.

    The n x m x d_a array of tanh values is never built (docs/additive.md).

    Args:
        query: (*batch, n, d_q), a floating dtype.
        key: (*batch, m, d_k), in the dtype and on the device of query.
        value: (*batch, m, d_v).
        weight: the matrix W (d_a, d_q + d_k): first the columns that meet q, then those of k.
        v: (d_a,).
        bias: (d_a,). Default: none.
        simplified: leave keys as they are, as the paper did (footnote 15). Then W is (d_a, d_q),
            and d_k is d_a. Default: False.
        mask: bool, broadcasts to (*batch, n, m). True: the query may attend to the key. Default: it
            may attend to every key.
        lengths: integers (*batch). Only the first `lengths` keys of a sentence exist; the rest
            is padding. Default: all m exist.
        dropout: the probability, from 0 to below 1, that a weight is dropped; the others
            are multiplied by 1 / (1 - dropout). It is always applied. Default: 0.
        need_weights: whether to return the weights too. Default: False.
        backend: "numba" (CPU), "torch" or "reference". Default: the first of them that can take the
            call, see `luong.explain`.

    Returns:
        `Attended`: context (*batch, n, d_v), and weights (*batch, n, m) before dropout, or None
        without `need_weights`. A query that may attend to nothing gets zeros.

    Raises:
        TypeError: an argument of another kind or dtype.
        ValueError: shapes, devices, lengths or a dropout that do not fit. The message names the
            argument, what was expected and what came.

    Example:
        >>> query, key, weight = torch.randn(4, 5), torch.randn(6, 8), torch.randn(7, 13)
        >>> luong.concat_attention(query, key, key, weight, torch.randn(7)).context.shape
        torch.Size([4, 8])

    Source:
        Luong, Pham & Manning (2015), eq. 8, concat, which has no bias; Bahdanau et al. (2015),
        A.1.2.
    """
    extra = {} if bias is None else {"bias": bias}
    query, key, value, weight, v, *_ = _check.floating(
        query=query, key=key, value=value, weight=weight, v=v, **extra
    )
    query, memory = enter(query, key, value, mask, lengths)
    query, key = _formulas.project_concat(query, memory.key, weight, v, bias, simplified)
    memory = memory._replace(key=key)
    return additive.attention(
        query, memory, v, backend=backend, dropout=dropout, need_weights=need_weights
    )


def additive_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    dropout: float = 0.0,
    need_weights: bool = False,
    backend: str | None = None,
) -> Attended:
    """Attend with the score vᵀ tanh(q + k), for queries and keys already projected.

    The n x m x d_a array of tanh values is never built (docs/additive.md).

    Args:
        query: (*batch, n, d_a), a floating dtype.
        key: (*batch, m, d_a), in the dtype and on the device of query.
        value: (*batch, m, d_v).
        v: (d_a,).
        mask: bool, broadcasts to (*batch, n, m). True: the query may attend to the key. Default: it
            may attend to every key.
        lengths: integers (*batch). Only the first `lengths` keys of a sentence exist; the rest
            is padding. Default: all m exist.
        dropout: the probability, from 0 to below 1, that a weight is dropped; the others
            are multiplied by 1 / (1 - dropout). It is always applied. Default: 0.
        need_weights: whether to return the weights too. Default: False.
        backend: "numba" (CPU), "torch" or "reference". Default: the first of them that can take the
            call, see `luong.explain`.

    Returns:
        `Attended`: context (*batch, n, d_v), and weights (*batch, n, m) before dropout, or None
        without `need_weights`. A query that may attend to nothing gets zeros.

    Raises:
        TypeError: an argument of another kind or dtype.
        ValueError: shapes, devices, lengths or a dropout that do not fit. The message names the
            argument, what was expected and what came.

    Example:
        >>> query, key, value = torch.randn(4, 7), torch.randn(6, 7), torch.randn(6, 3)
        >>> luong.additive_attention(query, key, value, torch.randn(7)).context.shape
        torch.Size([4, 3])

    Source:
        Bahdanau et al. (2015), A.1.2, after the projections W_a s and U_a h.
    """
    query, key, value, v = _check.floating(query=query, key=key, value=value, v=v)
    query, memory = enter(query, key, value, mask, lengths)
    _formulas.check_additive(query, memory.key, v)
    return additive.attention(
        query, memory, v, backend=backend, dropout=dropout, need_weights=need_weights
    )


def location_attention(
    query: Tensor,
    value: Tensor,
    weight: Tensor,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> Attended:
    """Attend with the score (W q)_j at position j, which does not look at the keys.

    The softmax is over the positions that have a row of W; from m_max on, weights are 0.

    Args:
        query: (*batch, n, d_q), a floating dtype.
        value: (*batch, m, d_v).
        weight: the matrix W (m_max, d_q), a row for each position.
        mask: bool, broadcasts to (*batch, n, m). True: the query may attend to the key. Default: it
            may attend to every key.
        lengths: integers (*batch). Only the first `lengths` keys of a sentence exist; the rest
            is padding. Default: all m exist.
        dropout: the probability, from 0 to below 1, that a weight is dropped; the others
            are multiplied by 1 / (1 - dropout). It is always applied. Default: 0.
        need_weights: whether to return the weights too. Default: False.

    Returns:
        `Attended`: context (*batch, n, d_v), and weights (*batch, n, m) before dropout, or None
        without `need_weights`. A query that may attend to nothing gets zeros.

    Raises:
        TypeError: an argument of another kind or dtype.
        ValueError: shapes, devices, lengths or a dropout that do not fit. The message names the
            argument, what was expected and what came.

    Example:
        >>> query, value = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0], [2.0], [9.0]])
        >>> luong.location_attention(query, value, torch.zeros(2, 2)).context
        tensor([[1.5000]])

    Source:
        Luong, Pham & Manning (2015), eq. 7 and footnote 6.
    """
    query, value, weight = _check.floating(query=query, value=value, weight=weight)
    _formulas.check_table(weight)
    query, memory = enter(query, value, value, mask, lengths, max_length=weight.shape[0])
    scores = _formulas.location(query, weight, value.shape[-2])
    return dense.attention(scores, memory, dropout=dropout, need_weights=need_weights)
