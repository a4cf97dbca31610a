"""The attention functions, and the module made of a score and dropout.

Shapes: query (*batch, n, d_q), key (*batch, m, d_k), value (*batch, m, d_v). Each function returns
`Attended(context, weights)`: context (*batch, n, d_v), and weights (*batch, n, m) with
`need_weights=True`, else None. Batch dimensions broadcast.

mask: bool, True where a query may attend, (*batch, n, m); any dimension may be 1.
lengths: integers, (*batch); any dimension may be 1. Keys from there on are padding.
dropout: the probability of dropping a weight; the others grow by 1/(1 - dropout). The functions
always apply it, `Attention` in training only. Returned weights are those before dropout.

A query with nothing to attend gives zeros, and zero gradients. A key that no query of its batch row
may attend may hold anything, NaN included. Half types: scores, softmax and sums in float32.
Equation numbers are those of Luong, Pham & Manning (2015), arXiv:1508.04025.

Raises TypeError for a wrong kind or dtype, ValueError for a wrong shape, device or value.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from luong import _check, _formulas, _local, _mask, _memory, _parameter, _score
from luong._local import Band, Windowed
from luong._memory import Memory
from luong._score import Score, ScoreFunction
from luong._window import Window
from luong.kernels import additive, dense, dot


class Attended(NamedTuple):
    """What attention returns."""

    context: Tensor  # (*batch, n, d_v)
    weights: Tensor | None  # (*batch, n, m)


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
    """softmax(query keyᵀ) value: score kᵀq (eq. 8, dot). Needs d_q == d_k."""
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
    """softmax(scale · query keyᵀ) value, by default with scale = 1/√d_k. Needs d_q == d_k.

    Vaswani et al. (2017), eq. 1. Differs from PyTorch's `scaled_dot_product_attention` in taking
    `lengths`, in what empty rows and hidden NaN give, in returning weights on request, and in
    having second derivatives.
    """
    query, key, value = _check.floating(query=query, key=key, value=value)
    query, memory = _enter(query, key, value, mask, lengths)
    _formulas.same_width(query, memory.key)
    scale = _formulas.default_scale(memory.key, scale)
    return Attended(
        *dot.attend(query, memory, scale=scale, dropout=dropout, need_weights=need_weights)
    )


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
    """softmax(query Wᵀ keyᵀ) value: score kᵀWq (eq. 8, general), weight W (d_k, d_q).

    W is applied to the side with fewer rows, in the inputs' dtype.
    """
    query, key, value, weight = _check.floating(query=query, key=key, value=value, weight=weight)
    query, memory = _enter(query, key, value, mask, lengths)
    query, key = _formulas.project_general(query, memory.key, weight)
    memory = memory._replace(key=key)
    return Attended(
        *dot.attend(query, memory, scale=1.0, dropout=dropout, need_weights=need_weights)
    )


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
    """Score vᵀ tanh(W [q; k] + bias) (eq. 8, concat): Bahdanau's additive attention.

    weight W (d_a, d_q + d_k), in the order [q; k]; v (d_a,); bias (d_a,). With `simplified`, the
    form of the paper's footnote 15, W is (d_a, d_q) and keys, of size d_a, are added as they are.
    `backend` as in `additive_attention`.
    """
    extra = {} if bias is None else {"bias": bias}
    query, key, value, weight, v, *_ = _check.floating(
        query=query, key=key, value=value, weight=weight, v=v, **extra
    )
    query, memory = _enter(query, key, value, mask, lengths)
    query, key = _formulas.project_concat(query, memory.key, weight, v, bias, simplified)
    memory = memory._replace(key=key)
    return Attended(
        *additive.attend(
            query, memory, v, backend=backend, dropout=dropout, need_weights=need_weights
        )
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
    """Score vᵀ tanh(q + k), for queries and keys already projected to d_a; v (d_a,).

    `backend`: "numba" (CPU), "torch", "reference", or None for the first of them that can take the
    call: `luong.explain("additive", query, key, value, v)` tells which, and why.
    """
    query, key, value, v = _check.floating(query=query, key=key, value=value, v=v)
    query, memory = _enter(query, key, value, mask, lengths)
    _formulas.check_additive(query, memory.key, v)
    return Attended(
        *additive.attend(
            query, memory, v, backend=backend, dropout=dropout, need_weights=need_weights
        )
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
    """Score (W q)_j at position j (eq. 7): looks at the query alone. weight W (m_max, d_q).

    Positions from m_max on get weight 0 (footnote 6), and the softmax is over the others.
    """
    query, value, weight = _check.floating(query=query, value=value, weight=weight)
    _formulas.check_table(weight)
    query, memory = _enter(query, value, value, mask, lengths, max_length=weight.shape[0])
    scores = _formulas.location(query, weight, value.shape[-2])
    return Attended(*dense.attend(scores, memory, dropout=dropout, need_weights=need_weights))


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score | ScoreFunction,
    window: Window | None = None,
    position: int | Tensor = 0,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> Attended:
    """softmax(score(query, key)) value, for any function `score(query, key) -> (*batch, n, m)`.

    A `Score` (`luong.General(...)`) goes its own, fastest way. What a plain function is given has
    zeros at padded keys and at queries with nothing to attend.

    `window` (`luong.LocalMonotonic(10)`) says which keys each query may see; `position` is that of
    the first query in the target (then 1 more each), or an integer tensor that broadcasts to
    (*batch, n). A window costs n · (2D + 1) scores, and memory in proportion; with a plain function
    as score, all n · m scores.
    """
    score = _score.as_score(score)
    query, key, value = _check.floating(query=query, key=key, value=value)
    query, memory = _enter(query, key, value, mask, lengths, max_length=score.max_length)
    query, memory, band = _place(window, query, memory, position)
    query, key = score.pair(query, memory.key)
    memory = memory._replace(key=key)
    return _attend(score, query, memory, band, dropout=dropout, need_weights=need_weights)


def _place(
    window: Window | None, query: Tensor, memory: Memory, position: int | Tensor
) -> tuple[Tensor, Memory, Band | None]:
    if window is None:
        return query, memory, None
    if not isinstance(window, Window):
        raise TypeError(f"window: expected a Window or None, got {type(window).__name__}")
    batch = torch.broadcast_shapes(query.shape[:-2], memory.key.shape[:-2], memory.value.shape[:-2])
    return _local.place(window, query, memory, position, batch)


def _attend(
    score: Score,
    query: Tensor,
    memory: Memory,
    band: Band | None,
    *,
    dropout: float,
    need_weights: bool,
) -> Attended:
    if band is None:
        return Attended(*score.attend(query, memory, dropout=dropout, need_weights=need_weights))
    found = _local.attend(score, query, memory, band, dropout=dropout, need_weights=need_weights)
    return Attended(*found)


def _enter(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    max_length: int | None = None,
) -> tuple[Tensor, Memory]:
    """Check shapes; zero what cannot be attended and what cannot attend."""
    _check.rows("query", query, "(*batch, n, d_q)")
    batch = _check_source(key, value, query=query)
    memory = _mask.prepare(
        key,
        value,
        mask=mask,
        lengths=lengths,
        batch=batch,
        queries=query.shape[-2],
        max_length=max_length,
    )
    return _mask.fill(query, _memory.known(memory).empty), memory


def _check_source(key: Tensor, value: Tensor, **query: Tensor) -> torch.Size:
    _check.rows("key", key, "(*batch, m, d_k)")
    _check.rows("value", value, "(*batch, m, d_v)")
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"value: expected m = {key.shape[-2]} rows like key, got shape {_check.shape(value)}"
        )
    return _check.batch(**query, key=key, value=value)


class Attention(nn.Module):
    """Attention with a score, a window (their parameters within) and dropout on the weights.

        attention = luong.Attention(
            luong.General(query_size=512, key_size=256),
            window=luong.LocalPredictive(query_size=512, hidden_size=128, half_width=10),
        )
        context, weights = attention(query, key, value, lengths=lengths, need_weights=True)

    In a decoder loop, what depends on the source alone is done once:

        memory = attention.prepare(key, value, lengths=lengths)
        context, _ = attention.attend(query, memory, position=t)

    Arguments, results and errors are those of the functions of this module.
    """

    def __init__(
        self,
        score: Score | ScoreFunction,
        *,
        window: Window | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.score = _score.as_score(score)
        if not isinstance(window, Window | None):
            raise TypeError(f"window: expected a Window or None, got {type(window).__name__}")
        self.window = window
        self.dropout = _check.probability("dropout", dropout)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        lengths: Tensor | None = None,
        position: int | Tensor = 0,
        need_weights: bool = False,
    ) -> Attended:
        """Attend to `value` (None: to `key`)."""
        return attention(
            query,
            key,
            key if value is None else value,
            score=self.score,
            window=self.window,
            position=position,
            mask=mask,
            lengths=lengths,
            dropout=self._dropout(),
            need_weights=need_weights,
        )

    def prepare(
        self,
        key: Tensor,
        value: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Memory:
        """All that depends on the source alone, for any number of calls of `attend`."""
        given = {"key": key, "value": value, "mask": mask, "lengths": lengths}
        if value is None:
            (key,) = _check.floating(key=key)
            value = key
        else:
            key, value = _check.floating(key=key, value=value)
        memory = _mask.prepare(
            key,
            value,
            mask=mask,
            lengths=lengths,
            batch=_check_source(key, value),
            queries=None,
            max_length=self.score.max_length,
        )
        return _memory.made_of(self.score.prepare(memory), given)

    def attend(
        self,
        query: Tensor,
        memory: Memory,
        *,
        position: int | Tensor = 0,
        need_weights: bool = False,
    ) -> Attended:
        """Attend from `query` (*batch, n, d_q): one decoder step (n = 1) or many.

        Several hypotheses at one target position t may ride on the query axis, with position a
        tensor of one t: (*batch, 1) or (1,).
        """
        query, memory = _step(query, memory)
        query, memory, band = _place(self.window, query, memory, position)
        return _attend(
            self.score, query, memory, band, dropout=self._dropout(), need_weights=need_weights
        )

    def attend_window(
        self, query: Tensor, memory: Memory, *, position: int | Tensor = 0
    ) -> Windowed:
        """`attend` within a window, with the weights of the window alone: (*batch, n, 2D + 1).

        Where the source has fewer than 2D + 1 positions, that many. Nothing is of size n x m.
        """
        if self.window is None:
            raise ValueError("window: this attention has none: ask attend for all weights")
        query, memory, band = _place(self.window, *_step(query, memory), position)
        if band is None:
            raise ValueError("window: this one has no width: ask attend for all weights")
        found = _local.windowed(self.score, query, memory, band, dropout=self._dropout())
        rows = found.context.shape[:-1]
        weights = found.weights.expand(*rows, found.weights.shape[-1])
        return found._replace(weights=weights, start=found.start.expand(rows))

    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}"


def _step(query: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
    """The arguments of `attend`, checked; zeros for queries with nothing to attend."""
    if not isinstance(memory, Memory):
        raise TypeError(f"memory: expected what prepare returns, got {type(memory).__name__}")
    memory = _mask.current(memory, query, memory.key, memory.value)
    key, value, query = _check.floating(key=memory.key, value=memory.value, query=query)
    _check.rows("query", query, "(*batch, n, d_q)")
    _check.batch(key=key, value=value, query=query)
    if memory.mask is not None and memory.mask.shape[-2] not in (1, query.shape[-2]):
        raise ValueError(
            f"query: expected n = {memory.mask.shape[-2]} rows, like the mask of this memory, "
            f"got shape {_check.shape(query)}"
        )
    if key is not memory.key or value is not memory.value:  # cast by autocast
        memory = memory._replace(key=key, value=value)
    return _mask.fill(query, _memory.known(memory).empty), memory


class AttentionalState(nn.Module):
    """h~ = tanh(W_c [c; h]) (eq. 5): context and query, in this order, joined and projected.

    `weight` W_c is (output_size, context_size + query_size), without a bias, starting uniform in
    ±1/√(context_size + query_size). OpenNMT and fairseq have it inside their "Luong attention".
    """

    def __init__(self, context_size: int, query_size: int, output_size: int) -> None:
        super().__init__()
        width = _check.size("context_size", context_size) + _check.size("query_size", query_size)
        _check.size("output_size", output_size)
        self.context_size, self.query_size = context_size, query_size
        self.weight = _parameter.uniform(output_size, width)

    def forward(self, context: Tensor, query: Tensor) -> Tensor:
        """context (..., context_size), query (..., query_size) -> (..., output_size)."""
        context, query = _check.floating(context=context, query=query)
        _check.width("context", context, self.context_size, "the context_size,")
        _check.width("query", query, self.query_size, "the query_size,")
        weight = _parameter.like("context", context, self.weight)
        return torch.tanh(nn.functional.linear(torch.cat([context, query], -1), weight))

    def extra_repr(self) -> str:
        return (
            f"context_size={self.context_size}, query_size={self.query_size}, "
            f"output_size={self.weight.shape[0]}"
        )
