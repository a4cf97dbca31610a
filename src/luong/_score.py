"""Score functions f(Q, K), and the modules that hold their parameters.

Shapes, here and everywhere: query (*batch, n, d_q), key (*batch, m, d_k), scores (*batch, n, m).
Equation numbers are those of Luong, Pham & Manning (2015), arXiv:1508.04025.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from luong import _check
from luong._mask import Memory, positions
from luong.kernels import additive, dense, dot

ScoreFunction = Callable[[Tensor, Tensor], Tensor]
Weighed = tuple[Tensor, "Tensor | None"]


# Functions on tensors


def dot_score(query: Tensor, key: Tensor) -> Tensor:
    """score(q, k) = kᵀq (eq. 8, dot). Needs d_q == d_k."""
    return scaled_dot_score(query, key, scale=1.0)


def scaled_dot_score(query: Tensor, key: Tensor, *, scale: float | None = None) -> Tensor:
    """score(q, k) = scale · kᵀq, by default with scale = 1/√d_k. Needs d_q == d_k."""
    query, key = _pair(query=query, key=key)
    same_width(query, key)
    return dot.scores(query, key, default_scale(key, scale)).to(query.dtype)


def general_score(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """score(q, k) = kᵀWq (eq. 8, general), with weight W of shape (d_k, d_q)."""
    query, key, weight = _pair(query=query, key=key, weight=weight)
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
    query, key, weight, v, *_ = _pair(query=query, key=key, weight=weight, v=v, **extra)
    query, key = project_concat(query, key, weight, v, bias, simplified)
    return additive.scores(query, key, v, backend=backend).to(query.dtype)


def additive_score(query: Tensor, key: Tensor, v: Tensor, *, backend: str | None = None) -> Tensor:
    """score(q, k) = vᵀ tanh(q + k), for queries and keys already projected to d_a; v (d_a,).

    `backend`: "numba", "torch", "reference", or None for the first of them that can.
    """
    query, key, v = _pair(query=query, key=key, v=v)
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


def _pair(*, query: Tensor, key: Tensor, **more: Tensor) -> list[Tensor]:
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


# Modules


class Score(nn.Module, ABC):
    """A score function with its parameters: `score(query, key)` is (*batch, n, m).

    `Attention` works by the steps below. `gain` is a factor on every score, which each score
    applies where it is cheapest: see `Scaled`.
    """

    max_length: int | None = None  # key positions from here on are never attended

    @abstractmethod
    def prepare(self, memory: Memory) -> Memory:
        """The memory with all that depends on its keys alone done, once per source."""

    @abstractmethod
    def pair(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """`query` and prepared keys for keys that are used this once, however is cheapest."""

    @abstractmethod
    def scores(self, query: Tensor, prepared: Tensor, gain: Tensor | None = None) -> Tensor:
        """Scores (*batch, n, m) against prepared keys, in float32 for half types."""

    @abstractmethod
    def attend(
        self,
        query: Tensor,
        memory: Memory,
        *,
        gain: Tensor | None = None,
        dropout: float = 0.0,
        need_weights: bool = False,
    ) -> Weighed:
        """Context (*batch, n, d_v), and weights (*batch, n, m) or None."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, key = _pair(query=query, key=key)
        return self.scores(*self.pair(query, key)).to(query.dtype)


class _Product(Score):
    """A score that is a dot product once the keys are prepared."""

    scale: float | None = 1.0

    @final
    def scores(self, query: Tensor, prepared: Tensor, gain: Tensor | None = None) -> Tensor:
        same_width(query, prepared)
        return dot.scores(_times(query, gain), prepared, default_scale(prepared, self.scale))

    @final
    def attend(
        self,
        query: Tensor,
        memory: Memory,
        *,
        gain: Tensor | None = None,
        dropout: float = 0.0,
        need_weights: bool = False,
    ) -> Weighed:
        if gain is not None and query.dtype in dense.HALF:  # the product is not to be rounded
            scores = self.scores(query, memory.key, gain)
            return dense.attend(scores, memory, dropout=dropout, need_weights=need_weights)
        same_width(query, memory.key)
        return dot.attend(
            _times(query, gain),
            memory,
            scale=default_scale(memory.key, self.scale),
            dropout=dropout,
            need_weights=need_weights,
        )


class _Plain(Score):
    """A score that goes the dense way: all scores, then softmax and the weighted sum."""

    @final
    def attend(
        self,
        query: Tensor,
        memory: Memory,
        *,
        gain: Tensor | None = None,
        dropout: float = 0.0,
        need_weights: bool = False,
    ) -> Weighed:
        scores = self.scores(query, memory.key, gain)
        return dense.attend(scores, memory, dropout=dropout, need_weights=need_weights)


@final
class Dot(_Product):
    """kᵀq (eq. 8, dot). Needs d_q == d_k; no parameters."""

    def prepare(self, memory: Memory) -> Memory:
        return memory

    def pair(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return query, key


@final
class ScaledDot(_Product):
    """scale · kᵀq, by default with scale = 1/√d_k. Needs d_q == d_k; no parameters."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale

    def prepare(self, memory: Memory) -> Memory:
        return memory

    def pair(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return query, key

    def extra_repr(self) -> str:
        return f"scale={self.scale}"


@final
class General(_Product):
    """kᵀWq (eq. 8, general), with `weight` W of shape (key_size, query_size).

    Prepared keys are Wᵀk, so that a decoder step has nothing to project. W starts uniform in
    ±1/√query_size, as PyTorch's Linear does.
    """

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        _check.size("query_size", query_size)
        _check.size("key_size", key_size)
        self.weight = uniform(key_size, query_size)

    def prepare(self, memory: Memory) -> Memory:
        _check.width("key", memory.key, self.weight.shape[0], "the key_size of this General,")
        return memory._replace(key=memory.key @ like("key", memory.key, self.weight))

    def pair(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        _check.width("query", query, self.weight.shape[1], "the query_size of this General,")
        _check.width("key", key, self.weight.shape[0], "the key_size of this General,")
        return project_general(query, key, like("query", query, self.weight))

    def extra_repr(self) -> str:
        return f"query_size={self.weight.shape[1]}, key_size={self.weight.shape[0]}"


@final
class Concat(Score):
    """vᵀ tanh(W [q; k] + bias) (eq. 8, concat).

    `weight` (hidden_size, query_size + key_size) in the order [q; k], `v` (hidden_size,), `bias`
    (hidden_size,) or None. With `simplified`, `weight` is (hidden_size, query_size) and keys, of
    size hidden_size, are added as they are (the paper's footnote 15). Prepared keys are W_k k.
    weight and v start uniform in ±1/√(columns of weight) and ±1/√hidden_size, bias at 0. `backend`
    as in `additive_score`.
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        bias: bool = False,
        simplified: bool = False,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        _check.size("query_size", query_size)
        _check.size("key_size", key_size)
        _check.size("hidden_size", hidden_size)
        if simplified and key_size != hidden_size:
            raise ValueError(
                f"key_size: expected hidden_size = {hidden_size} with simplified=True, "
                f"got {key_size}"
            )
        self.query_size, self.key_size = query_size, key_size
        self.simplified, self.backend = simplified, backend
        self.weight = uniform(hidden_size, query_size + (0 if simplified else key_size))
        self.v = uniform(hidden_size)
        self.bias = nn.Parameter(torch.zeros(hidden_size)) if bias else None

    def prepare(self, memory: Memory) -> Memory:
        _, key = self.pair(memory.key, memory.key)
        return additive.prepare(memory._replace(key=key), self.backend)

    def pair(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        _check.width("key", key, self.key_size, "the key_size of this Concat,")
        if self.simplified:
            return query, key
        return query, key @ like("key", key, self.weight[:, self.query_size :]).mT

    def scores(self, query: Tensor, prepared: Tensor, gain: Tensor | None = None) -> Tensor:
        v = _times(self.v, gain)
        return additive.scores(self._project(query), prepared, v, backend=self.backend)

    def attend(
        self,
        query: Tensor,
        memory: Memory,
        *,
        gain: Tensor | None = None,
        dropout: float = 0.0,
        need_weights: bool = False,
    ) -> Weighed:
        return additive.attend(
            self._project(query),
            memory,
            _times(self.v, gain),
            backend=self.backend,
            dropout=dropout,
            need_weights=need_weights,
        )

    def _project(self, query: Tensor) -> Tensor:
        _check.width("query", query, self.query_size, "the query_size of this Concat,")
        weight = like("query", query, self.weight[:, : self.query_size])
        return nn.functional.linear(query, weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"query_size={self.query_size}, key_size={self.key_size}, "
            f"hidden_size={self.v.shape[0]}, bias={self.bias is not None}, "
            f"simplified={self.simplified}"
        )


@final
class Location(_Plain):
    """(W q)_j at key position j (eq. 7): keys count, but are not looked at.

    `weight` W is (max_length, query_size), starting uniform in ±1/√query_size. Positions from
    max_length on get weight 0 (footnote 6).
    """

    def __init__(self, query_size: int, max_length: int) -> None:
        super().__init__()
        _check.size("query_size", query_size)
        self.max_length = _check.size("max_length", max_length)
        self.weight = uniform(max_length, query_size)

    def prepare(self, memory: Memory) -> Memory:
        return memory

    def pair(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return query, key

    def scores(self, query: Tensor, prepared: Tensor, gain: Tensor | None = None) -> Tensor:
        weight = like("query", query, self.weight)
        return location(_times(query, gain), weight, prepared.shape[-2])

    def extra_repr(self) -> str:
        return f"query_size={self.weight.shape[1]}, max_length={self.max_length}"


@final
class Scaled(Score):
    """g · score(q, k): any score, with a learned multiplier g (`gain`), initially 1.

    An inverse temperature: a larger g makes the weights sharper.
    """

    def __init__(self, score: Score | ScoreFunction) -> None:
        super().__init__()
        self.score = as_score(score)
        self.max_length = self.score.max_length
        self.gain = nn.Parameter(torch.ones(()))

    def prepare(self, memory: Memory) -> Memory:
        return self.score.prepare(memory)

    def pair(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self.score.pair(query, key)

    def scores(self, query: Tensor, prepared: Tensor, gain: Tensor | None = None) -> Tensor:
        return self.score.scores(query, prepared, _times(self.gain, gain))

    def attend(
        self,
        query: Tensor,
        memory: Memory,
        *,
        gain: Tensor | None = None,
        dropout: float = 0.0,
        need_weights: bool = False,
    ) -> Weighed:
        return self.score.attend(
            query,
            memory,
            gain=_times(self.gain, gain),
            dropout=dropout,
            need_weights=need_weights,
        )


@final
class _Function(_Plain):
    """Any function of (query, key) that returns scores (*batch, n, m)."""

    def __init__(self, function: ScoreFunction) -> None:
        super().__init__()
        self.function = function

    def prepare(self, memory: Memory) -> Memory:
        return memory

    def pair(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return query, key

    def scores(self, query: Tensor, prepared: Tensor, gain: Tensor | None = None) -> Tensor:
        scores = self.function(query, prepared)
        batch = torch.broadcast_shapes(query.shape[:-2], prepared.shape[:-2])
        expected = (*batch, query.shape[-2], prepared.shape[-2])
        if not isinstance(scores, Tensor) or tuple(scores.shape) != expected:
            got = _check.shape(scores) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(
                f"score: expected scores of shape (*batch, n, m) = {expected}, got {got}"
            )
        return _times(scores.float() if scores.dtype in dense.HALF else scores, gain)


def as_score(score: Score | ScoreFunction) -> Score:
    """`score` itself, or a plain function made into a `Score`."""
    if isinstance(score, Score):
        return score
    if not callable(score):
        raise TypeError(f"score: expected a Score or a function, got {type(score).__name__}")
    return _Function(score)


def uniform(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).uniform_(-1, 1) / math.sqrt(shape[-1]))


def _times(x: Tensor, gain: Tensor | None) -> Tensor:
    """x · gain, in float32 for half types."""
    if gain is None:
        return x
    return (x.float() if x.dtype in dense.HALF else x) * gain


def like(name: str, x: Tensor, weight: Tensor) -> Tensor:
    """`weight`, checked to be on the device and of the dtype of its input."""
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(
            f"{name}: expected {weight.dtype} like the module's weights, got {x.dtype} "
            "(dtypes may differ under torch.autocast only)"
        )
    if x.device != weight.device:
        raise ValueError(f"{name}: expected device {weight.device} of the module, got {x.device}")
    return weight
