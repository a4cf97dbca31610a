"""Score functions with their parameters, as modules: what `Attention` is made of.

Equation numbers are those of Luong, Pham & Manning (2015), arXiv:1508.04025.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from luong import _check, _formulas, _parameter
from luong._memory import Memory, known
from luong.kernels import additive, band, dense, dot

ScoreFunction = Callable[[Tensor, Tensor], Tensor]
Weighed = tuple[Tensor, "Tensor | None"]


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
    def window(
        self, query: Tensor, memory: Memory, index: Tensor, gain: Tensor | None = None
    ) -> Tensor:
        """Scores (*batch, n, w) against the prepared keys at the positions `index`.

        index (*batch, n, w), each row consecutive. In float32 for half types.
        """

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
        query, key = _formulas.pair(query=query, key=key)
        return self.scores(*self.pair(query, key)).to(query.dtype)


class _Product(Score):
    """A score that is a dot product once the keys are prepared."""

    scale: float | None = 1.0

    @final
    def scores(self, query: Tensor, prepared: Tensor, gain: Tensor | None = None) -> Tensor:
        _formulas.same_width(query, prepared)
        return dot.scores(
            _times(query, gain), prepared, _formulas.default_scale(prepared, self.scale)
        )

    @final
    def window(
        self, query: Tensor, memory: Memory, index: Tensor, gain: Tensor | None = None
    ) -> Tensor:
        _formulas.same_width(query, memory.key)
        scale = _formulas.default_scale(memory.key, self.scale)
        query = dense.wide(_times(query, gain))
        return band.dots(query if scale == 1.0 else query * scale, dense.wide(memory.key), index)

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
        _formulas.same_width(query, memory.key)
        return dot.attend(
            _times(query, gain),
            memory,
            scale=_formulas.default_scale(memory.key, self.scale),
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
        self.weight = _parameter.uniform(key_size, query_size)

    def prepare(self, memory: Memory) -> Memory:
        _check.width("key", memory.key, self.weight.shape[0], "the key_size of this General,")
        return memory._replace(key=memory.key @ _parameter.like("key", memory.key, self.weight))

    def pair(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        _check.width("query", query, self.weight.shape[1], "the query_size of this General,")
        _check.width("key", key, self.weight.shape[0], "the key_size of this General,")
        return _formulas.project_general(query, key, _parameter.like("query", query, self.weight))

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
        self.weight = _parameter.uniform(hidden_size, query_size + (0 if simplified else key_size))
        self.v = _parameter.uniform(hidden_size)
        self.bias = nn.Parameter(torch.zeros(hidden_size)) if bias else None

    def prepare(self, memory: Memory) -> Memory:
        _, key = self.pair(memory.key, memory.key)
        return additive.prepare(memory._replace(key=key), self.backend)

    def pair(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        _check.width("key", key, self.key_size, "the key_size of this Concat,")
        if self.simplified:
            return query, key
        return query, key @ _parameter.like("key", key, self.weight[:, self.query_size :]).mT

    def scores(self, query: Tensor, prepared: Tensor, gain: Tensor | None = None) -> Tensor:
        v = _times(self.v, gain)
        return additive.scores(self._project(query), prepared, v, backend=self.backend)

    def window(
        self, query: Tensor, memory: Memory, index: Tensor, gain: Tensor | None = None
    ) -> Tensor:
        return additive.window(
            self._project(query),
            memory.key,
            _times(self.v, gain),
            index,
            backend=self.backend,
            state=known(memory).state,
        )

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
        weight = _parameter.like("query", query, self.weight[:, : self.query_size])
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
        self.weight = _parameter.uniform(max_length, query_size)

    def prepare(self, memory: Memory) -> Memory:
        return memory

    def pair(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return query, key

    def scores(self, query: Tensor, prepared: Tensor, gain: Tensor | None = None) -> Tensor:
        weight = _parameter.like("query", query, self.weight)
        return _formulas.location(_times(query, gain), weight, prepared.shape[-2])

    def window(
        self, query: Tensor, memory: Memory, index: Tensor, gain: Tensor | None = None
    ) -> Tensor:
        weight = _parameter.like("query", query, self.weight)
        m, known = memory.key.shape[-2], weight.shape[0]
        if torch.compiler.is_compiling() or known < m:  # a row for every position
            weight = nn.functional.pad(weight, (0, 0, 0, m))
        scores = band.dots(dense.wide(_times(query, gain)), dense.wide(weight), index)
        return torch.where(index < known, scores, float("-inf"))

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

    def window(
        self, query: Tensor, memory: Memory, index: Tensor, gain: Tensor | None = None
    ) -> Tensor:
        return self.score.window(query, memory, index, _times(self.gain, gain))

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
        return _times(dense.wide(scores), gain)

    def window(
        self, query: Tensor, memory: Memory, index: Tensor, gain: Tensor | None = None
    ) -> Tensor:
        """Out of the scores of all pairs, which is all that a plain function can give."""
        scores = self.scores(query, memory.key, gain)
        batch = torch.broadcast_shapes(scores.shape[:-2], index.shape[:-2])
        scores, index = (x.expand(*batch, *x.shape[-2:]) for x in (scores, index))
        return scores.gather(-1, index)


def as_score(score: Score | ScoreFunction) -> Score:
    """`score` itself, or a plain function made into a `Score`."""
    if isinstance(score, Score):
        return score
    if not callable(score):
        raise TypeError(f"score: expected a Score or a function, got {type(score).__name__}")
    return _Function(score)


def _times(x: Tensor, gain: Tensor | None) -> Tensor:
    """x · gain, in float32 for half types."""
    if gain is None:
        return x
    return dense.wide(x) * gain
