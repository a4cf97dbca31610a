"""Every operator in plain lines: start reading here.

These functions are slow, and they are the standard for all operators in the tests. Vectors are
rows: query (*batch, n, d_q), key (*batch, m, d_k), value (*batch, m, d_v). No argument is checked.
The attention functions return a pair of tensors and take, beside the arguments of their score:

    mask: bool, broadcasts to (*batch, n, m). True: the query may attend to the key.
    lengths: integers (*batch). Only the first `lengths` keys of a sentence exist.

Equation and footnote numbers are those of Luong, Pham & Manning (2015), arXiv:1508.04025.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]


def dot_score(query: Tensor, key: Tensor) -> Tensor:
    """Return the dot products kᵀq of all pairs (eq. 8, dot).

    Args:
        query: (*batch, n, d).
        key: (*batch, m, d).

    Returns:
        Scores (*batch, n, m).
    """
    return query @ key.mT


def scaled_dot_score(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    """Return scale · kᵀq for all pairs (Vaswani et al. 2017, eq. 1).

    Args:
        query: (*batch, n, d).
        key: (*batch, m, d).
        scale: a factor on every score; None is 1/√d.

    Returns:
        Scores (*batch, n, m).
    """
    return query @ key.mT * (1 / math.sqrt(key.shape[-1]) if scale is None else scale)


def general_score(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """Return the bilinear scores kᵀWq of all pairs (eq. 8, general).

    Args:
        query: (*batch, n, d_q).
        key: (*batch, m, d_k).
        weight: the matrix W (d_k, d_q).

    Returns:
        Scores (*batch, n, m).
    """
    return query @ weight.mT @ key.mT


def concat_score(
    query: Tensor,
    key: Tensor,
    weight: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    simplified: bool = False,
) -> Tensor:
    """Return the scores vᵀ tanh(W [q; k] + bias) of all pairs (eq. 8, concat).

    Args:
        query: (*batch, n, d_q).
        key: (*batch, m, d_k).
        weight: the matrix W (d_a, d_q + d_k): first the columns that meet q, then those of k.
        v: (d_a,).
        bias: (d_a,), or None for no bias.
        simplified: leave keys as they are (footnote 15); then W is (d_a, d_q), and d_k is d_a.

    Returns:
        Scores (*batch, n, m).
    """
    d_q = query.shape[-1]
    query = query @ weight[:, :d_q].mT
    if bias is not None:
        query = query + bias
    return additive_score(query, key if simplified else key @ weight[:, d_q:].mT, v)


def additive_score(query: Tensor, key: Tensor, v: Tensor) -> Tensor:
    """Return the scores vᵀ tanh(q + k) of all pairs, for queries and keys already projected.

    Args:
        query: (*batch, n, d_a).
        key: (*batch, m, d_a).
        v: (d_a,).

    Returns:
        Scores (*batch, n, m).
    """
    return torch.tanh(query[..., :, None, :] + key[..., None, :, :]) @ v


def location_score(query: Tensor, weight: Tensor, length: int) -> Tensor:
    """Return the scores (W q)_j, which depend on the query and the position j only (eq. 7).

    Args:
        query: (*batch, n, d_q).
        weight: the matrix W (m_max, d_q), a row for each position.
        length: the number m of positions to score.

    Returns:
        Scores (*batch, n, m). Positions without a row of W get -inf, so that their weight is 0
        (footnote 6).
    """
    scores = query @ weight.mT
    missing = scores.new_full((*scores.shape[:-1], max(0, length - weight.shape[0])), -math.inf)
    return torch.cat([scores, missing], -1)[..., :length]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score: Callable[[Tensor, Tensor], Tensor],
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Pair:
    """Return softmax(score(query, key)) value, and the weights, for any score function.

    A query that may attend to nothing gets zeros. Keys and values that nothing may attend to may
    hold anything, NaN included.

    Args:
        query: (*batch, n, d_q).
        key: (*batch, m, d_k).
        value: (*batch, m, d_v).
        score: a function of query and key that returns scores (*batch, n, m).
        mask: bool, broadcasts to (*batch, n, m). True: the query may attend to the key.
        lengths: integers (*batch). Only the first `lengths` keys of a sentence exist.

    Returns:
        The context (*batch, n, d_v) and the weights (*batch, n, m).
    """
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    pairs = query.new_ones(*batch, query.shape[-2], key.shape[-2], dtype=torch.bool)
    if mask is not None:
        pairs = pairs & mask
    if lengths is not None:
        pairs = pairs & (torch.arange(key.shape[-2], device=key.device) < lengths[..., None, None])
    query = torch.where(pairs.any(-1)[..., None], query, 0)  # what is in no pair may hold anything
    key = torch.where(pairs.any(-2)[..., None], key, 0)
    value = torch.where(pairs.any(-2)[..., None], value, 0)
    scores = torch.where(pairs, score(query, key), -math.inf)
    weights = torch.where(pairs, torch.softmax(scores, -1), 0)
    return weights @ value, weights


def dot_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Pair:
    """Return softmax(score) value, and the weights, with the score kᵀq (eq. 8, dot).

    Args:
        query: (*batch, n, d).
        key: (*batch, m, d).
        value: (*batch, m, d_v).
        mask: bool, broadcasts to (*batch, n, m). True: the query may attend to the key.
        lengths: integers (*batch). Only the first `lengths` keys of a sentence exist.

    Returns:
        The context (*batch, n, d_v) and the weights (*batch, n, m).
    """
    return attention(query, key, value, dot_score, mask, lengths)


def scaled_dot_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None = None,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Pair:
    """Return softmax(score) value, and the weights, with the score scale · kᵀq.

    Args:
        query: (*batch, n, d).
        key: (*batch, m, d).
        value: (*batch, m, d_v).
        scale: a factor on every score; None is 1/√d.
        mask: bool, broadcasts to (*batch, n, m). True: the query may attend to the key.
        lengths: integers (*batch). Only the first `lengths` keys of a sentence exist.

    Returns:
        The context (*batch, n, d_v) and the weights (*batch, n, m).
    """
    return attention(query, key, value, lambda q, k: scaled_dot_score(q, k, scale), mask, lengths)


def general_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weight: Tensor,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Pair:
    """Return softmax(score) value, and the weights, with the score kᵀWq (eq. 8, general).

    Args:
        query: (*batch, n, d_q).
        key: (*batch, m, d_k).
        value: (*batch, m, d_v).
        weight: the matrix W (d_k, d_q).
        mask: bool, broadcasts to (*batch, n, m). True: the query may attend to the key.
        lengths: integers (*batch). Only the first `lengths` keys of a sentence exist.

    Returns:
        The context (*batch, n, d_v) and the weights (*batch, n, m).
    """
    return attention(query, key, value, lambda q, k: general_score(q, k, weight), mask, lengths)


def concat_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weight: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    simplified: bool = False,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Pair:
    """Return softmax(score) value, and the weights, with the score vᵀ tanh(W [q; k] + bias).

    Args:
        query: (*batch, n, d_q).
        key: (*batch, m, d_k).
        value: (*batch, m, d_v).
        weight: the matrix W (d_a, d_q + d_k): first the columns that meet q, then those of k.
        v: (d_a,).
        bias: (d_a,), or None for no bias.
        simplified: leave keys as they are (footnote 15); then W is (d_a, d_q), and d_k is d_a.
        mask: bool, broadcasts to (*batch, n, m). True: the query may attend to the key.
        lengths: integers (*batch). Only the first `lengths` keys of a sentence exist.

    Returns:
        The context (*batch, n, d_v) and the weights (*batch, n, m).
    """

    def score(query: Tensor, key: Tensor) -> Tensor:
        return concat_score(query, key, weight, v, bias, simplified)

    return attention(query, key, value, score, mask, lengths)


def additive_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Pair:
    """Return softmax(score) value, and the weights, with the score vᵀ tanh(q + k).

    Args:
        query: (*batch, n, d_a).
        key: (*batch, m, d_a).
        value: (*batch, m, d_v).
        v: (d_a,).
        mask: bool, broadcasts to (*batch, n, m). True: the query may attend to the key.
        lengths: integers (*batch). Only the first `lengths` keys of a sentence exist.

    Returns:
        The context (*batch, n, d_v) and the weights (*batch, n, m).
    """
    return attention(query, key, value, lambda q, k: additive_score(q, k, v), mask, lengths)


def location_attention(
    query: Tensor,
    value: Tensor,
    weight: Tensor,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Pair:
    """Return softmax(score) value, and the weights, with the score (W q)_j (eq. 7).

    The softmax is over the positions that have a row of W; the rest gets weight 0 (footnote 6).

    Args:
        query: (*batch, n, d_q).
        value: (*batch, m, d_v).
        weight: the matrix W (m_max, d_q), a row for each position.
        mask: bool, broadcasts to (*batch, n, m). True: the query may attend to the key.
        lengths: integers (*batch). Only the first `lengths` keys of a sentence exist.

    Returns:
        The context (*batch, n, d_v) and the weights (*batch, n, m).
    """
    m = value.shape[-2]
    known = (torch.arange(m, device=value.device) < weight.shape[0]).expand(1, m)
    known = known if mask is None else known & mask
    return attention(query, value, value, lambda q, _: location_score(q, weight, m), known, lengths)


def local_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score: Callable[[Tensor, Tensor], Tensor],
    centre: Tensor,
    half_width: int,
    gaussian: bool = False,
    renormalize: bool = False,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Pair:
    """Return the context and the weights of attention within a window (section 3.2).

    Query i attends to the keys s with |s - ⌊centre_i⌋| <= half_width that lie in the sentence. A
    centre behind the last key counts as the last key.

    Args:
        query: (*batch, n, d_q).
        key: (*batch, m, d_k).
        value: (*batch, m, d_v).
        score: a function of query and key that returns scores (*batch, n, m).
        centre: real positions (*batch, n), from 0.
        half_width: the D of the paper, in positions.
        gaussian: multiply each weight by exp(-(s - centre)² / 2σ²), σ = half_width / 2 (eq. 10).
        renormalize: divide the weights of a query by their sum. The paper does not.
        mask: bool, broadcasts to (*batch, n, m). True: the query may attend to the key.
        lengths: integers (*batch). Only the first `lengths` keys of a sentence exist.

    Returns:
        The context (*batch, n, d_v) and the weights (*batch, n, m), 0 outside the window.
    """
    m = key.shape[-2]
    s = torch.arange(m, device=key.device)
    last = m - 1 if lengths is None else lengths[..., None] - 1
    middle = torch.clamp(centre.floor(), max=last)[..., None]
    inside = (s - middle).abs() <= half_width
    inside = inside if mask is None else inside & mask
    _, weights = attention(query, key, value, score, inside, lengths)
    if gaussian:
        distance = (s - centre[..., None]) / (half_width / 2)
        weights = weights * torch.exp(-0.5 * distance**2)
    if renormalize:
        total = weights.sum(-1, keepdim=True)
        weights = weights / torch.where(total > 0, total, 1)
    value = torch.where((weights != 0).any(-2)[..., None], value, 0)
    return weights @ value, weights


def monotonic_centre(query: Tensor, position: Tensor | int = 0) -> Tensor:
    """Return the centres of local-m, p_t = t (section 3.2).

    Args:
        query: (*batch, n, d_q).
        position: the target position t of the first query, or one for each batch row.

    Returns:
        Centres (*batch, n).
    """
    positions = position + torch.arange(query.shape[-2], device=query.device)
    return positions.to(query.dtype).expand(query.shape[:-1])


def predicted_centre(
    query: Tensor, weight: Tensor, v: Tensor, m: int, lengths: Tensor | None = None
) -> Tensor:
    """Return the centres of local-p, p_t = S · sigmoid(vᵀ tanh(W h_t)) (eq. 9).

    Args:
        query: h_t (*batch, n, d_q).
        weight: the matrix W (hidden, d_q).
        v: (hidden,).
        m: the number of keys, which is S where `lengths` is not given.
        lengths: S for each sentence, integers (*batch).

    Returns:
        Centres (*batch, n), from 0 to S.
    """
    length = m if lengths is None else lengths[..., None]
    return length * torch.sigmoid(torch.tanh(query @ weight.mT) @ v)
