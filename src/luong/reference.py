"""Every operator again, in plain lines: start reading here. Slow, and the standard for the rest.

Rows are vectors: query (*batch, n, d_q), key (*batch, m, d_k), value (*batch, m, d_v); scores and
weights (*batch, n, m); context (*batch, n, d_v). `mask` is bool, True where a query may attend to
a key; `lengths` counts the keys of each sentence. Equation numbers: Luong, Pham & Manning (2015).
No argument is checked here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]


def dot_score(query: Tensor, key: Tensor) -> Tensor:
    """kᵀq (eq. 8)."""
    return query @ key.mT


def scaled_dot_score(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    """kᵀq · scale, which is 1/√d_k where not given."""
    return query @ key.mT * (1 / math.sqrt(key.shape[-1]) if scale is None else scale)


def general_score(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """kᵀWq (eq. 8), W (d_k, d_q)."""
    return query @ weight.mT @ key.mT


def concat_score(
    query: Tensor,
    key: Tensor,
    weight: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    simplified: bool = False,
) -> Tensor:
    """vᵀ tanh(W [q; k] + bias) (eq. 8), W (d_a, d_q + d_k)."""
    d_q = query.shape[-1]
    query = query @ weight[:, :d_q].mT
    if bias is not None:
        query = query + bias
    return additive_score(query, key if simplified else key @ weight[:, d_q:].mT, v)


def additive_score(query: Tensor, key: Tensor, v: Tensor) -> Tensor:
    """vᵀ tanh(q + k), for projected queries and keys."""
    return torch.tanh(query[..., :, None, :] + key[..., None, :, :]) @ v


def location_score(query: Tensor, weight: Tensor, length: int) -> Tensor:
    """(Wq)_j at position j (eq. 7), W (m_max, d_q); positions without a row of W get -inf."""
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
    """softmax(score(query, key)) value and the weights; a row with nothing to attend is zero."""
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    pairs = torch.ones(*batch, query.shape[-2], key.shape[-2], dtype=torch.bool)
    if mask is not None:
        pairs = pairs & mask
    if lengths is not None:
        pairs = pairs & (torch.arange(key.shape[-2]) < lengths[..., None, None])
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
    return attention(query, key, value, dot_score, mask, lengths)


def scaled_dot_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None = None,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Pair:
    return attention(query, key, value, lambda q, k: scaled_dot_score(q, k, scale), mask, lengths)


def general_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weight: Tensor,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Pair:
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
    return attention(query, key, value, lambda q, k: additive_score(q, k, v), mask, lengths)


def location_attention(
    query: Tensor,
    value: Tensor,
    weight: Tensor,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Pair:
    m = value.shape[-2]
    known = (torch.arange(m) < weight.shape[0]).expand(1, m)
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
    """Attention to the keys within half_width of ⌊centre⌋ (*batch, n), inside the sentence.

    With `gaussian`, times exp(-(s - centre)² / 2σ²), σ = half_width / 2 (eq. 10).
    """
    m = key.shape[-2]
    s, last = torch.arange(m), m - 1 if lengths is None else lengths[..., None] - 1
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
    """local-m: p_t = t, for queries from `position` on."""
    return (position + torch.arange(query.shape[-2])).to(query.dtype).expand(query.shape[:-1])


def predicted_centre(
    query: Tensor, weight: Tensor, v: Tensor, m: int, lengths: Tensor | None = None
) -> Tensor:
    """local-p: p_t = S · sigmoid(vᵀ tanh(W h_t)) (eq. 9), W (hidden, d_q), v (hidden,)."""
    length = m if lengths is None else lengths[..., None]
    return length * torch.sigmoid(torch.tanh(query @ weight.mT) @ v)
