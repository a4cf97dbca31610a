"""Score functions as modules, which hold their parameters; `Attention` is made of them.

Equation numbers are those of Luong, Pham & Manning (2015), arXiv:1508.04025.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from luong import _check, _formulas, _parameter
from luong._comparison import (
    AdditiveComparison,
    Comparison,
    DotComparison,
    GivenScores,
    LocationComparison,
)
from luong._memory import Memory
from luong.kernels import additive, dense

ScoreFunction = Callable[[Tensor, Tensor], Tensor]


class Score(nn.Module, ABC):
    """The base class of score functions with parameters.

    `score(query, key)` returns scores (*batch, n, m) for query (*batch, n, d_q) and key
    (*batch, m, d_k), in the dtype of query. `Attention` calls the methods below instead, which
    work on keys that were prepared before. docs/adding.md shows how to write a new score.

    Attributes:
        max_length: key positions from here on are never attended to. None: no such limit.
    """

    max_length: int | None = None

    @abstractmethod
    def prepare(self, memory: Memory) -> Memory:
        """Return the memory with its keys prepared: what depends on the source only, done once."""

    @abstractmethod
    def prepare_once(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return query and key prepared for a single call, in the way that costs least.

        Args:
            query: (*batch, n, d_q).
            key: (*batch, m, d_k), as they came.

        Returns:
            The query and the prepared keys, for `compare`.
        """

    @abstractmethod
    def compare(self, query: Tensor, memory: Memory) -> Comparison:
        """Return the comparison of the queries with the keys, which computes their scores.

        Args:
            query: (*batch, n, d_q).
            memory: a memory with prepared keys.
        """

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Return scores (*batch, n, m) of query (*batch, n, d_q) and key (*batch, m, d_k)."""
        query, key = _formulas.check_pair(query=query, key=key)
        prepared_query, prepared = self.prepare_once(query, key)
        return self.compare(prepared_query, Memory(prepared, prepared)).scores().to(query.dtype)


class _Unprepared(Score):
    """The base class of scores that take queries and keys as they are."""

    @final
    def prepare(self, memory: Memory) -> Memory:
        return memory

    @final
    def prepare_once(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return query, key


@final
class Dot(_Unprepared):
    """The score kᵀq. It has no parameters, and needs queries and keys of one size.

    Example:
        >>> luong.Dot()(torch.ones(1, 4), torch.ones(2, 4))
        tensor([[4., 4.]])

    Source:
        Luong, Pham & Manning (2015), eq. 8, dot.
    """

    def compare(self, query: Tensor, memory: Memory) -> Comparison:
        return _dot(query, memory, 1.0)


@final
class ScaledDot(_Unprepared):
    """The score scale · kᵀq. It has no parameters, and needs queries and keys of one size.

    Args:
        scale: a factor on every score. Default: 1/√d_k.

    Example:
        >>> luong.ScaledDot()(torch.ones(1, 4), torch.ones(2, 4))
        tensor([[2., 2.]])

    Source:
        Vaswani et al. (2017), eq. 1.
    """

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale

    def compare(self, query: Tensor, memory: Memory) -> Comparison:
        return _dot(query, memory, _formulas.default_scale(memory.key, self.scale))

    def extra_repr(self) -> str:
        return f"scale={self.scale}"


@final
class General(Score):
    """The score kᵀWq, bilinear in query and key.

    Prepared keys are Wᵀk, so that a decoder step has nothing to project.

    Args:
        query_size: d_q.
        key_size: d_k.

    Attributes:
        weight: W (key_size, query_size); starts uniform in ±1/√query_size, as PyTorch's Linear.

    Raises:
        ValueError: a size is not a positive whole number.

    Example:
        >>> luong.General(query_size=4, key_size=3)(torch.randn(5, 4), torch.randn(7, 3)).shape
        torch.Size([5, 7])

    Source:
        Luong, Pham & Manning (2015), eq. 8, general.
    """

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        _check.integer("query_size", query_size, 1)
        _check.integer("key_size", key_size, 1)
        self.weight = _parameter.uniform(key_size, query_size)

    def prepare(self, memory: Memory) -> Memory:
        _check.width("key", memory.key, self.weight.shape[0], "the key_size of this General,")
        return memory._replace(key=memory.key @ _parameter.like("key", memory.key, self.weight))

    def prepare_once(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        _check.width("query", query, self.weight.shape[1], "the query_size of this General,")
        _check.width("key", key, self.weight.shape[0], "the key_size of this General,")
        return _formulas.project_general(query, key, _parameter.like("query", query, self.weight))

    def compare(self, query: Tensor, memory: Memory) -> Comparison:
        return _dot(query, memory, 1.0)

    def extra_repr(self) -> str:
        return f"query_size={self.weight.shape[1]}, key_size={self.weight.shape[0]}"


@final
class Concat(Score):
    """The score vᵀ tanh(W [q; k] + bias), also known as additive or Bahdanau attention.

    Prepared keys are W_k k, where W_k is the half of W that meets the key.

    Args:
        query_size: d_q.
        key_size: d_k.
        hidden_size: d_a, the size of v.
        bias: whether there is a bias. Default: False, as in the paper.
        simplified: leave keys as they are, as the paper did (footnote 15); d_k is then d_a.
            Default: False.
        backend: "numba" (CPU), "torch" or "reference". Default: the first of them that can take the
            call, see `luong.explain`.

    Attributes:
        weight: W (hidden_size, query_size + key_size): first the columns that meet q, then those of
            k. With `simplified`, (hidden_size, query_size). Starts uniform in ±1/√columns.
        v: (hidden_size,); starts uniform in ±1/√hidden_size.
        bias: (hidden_size,), starts at 0, or None.

    Raises:
        ValueError: a size is not a positive whole number, or `simplified` with d_k other than d_a.

    Example:
        >>> score = luong.Concat(query_size=4, key_size=3, hidden_size=6)
        >>> score(torch.randn(5, 4), torch.randn(7, 3)).shape
        torch.Size([5, 7])

    Source:
        Luong, Pham & Manning (2015), eq. 8, concat; Bahdanau et al. (2015), A.1.2.
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
        _check.integer("query_size", query_size, 1)
        _check.integer("key_size", key_size, 1)
        _check.integer("hidden_size", hidden_size, 1)
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
        _, key = self.prepare_once(memory.key, memory.key)
        return additive.prepare(memory._replace(key=key), self.backend)

    def prepare_once(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        _check.width("key", key, self.key_size, "the key_size of this Concat,")
        if self.simplified:
            return query, key
        return query, key @ _parameter.like("key", key, self.weight[:, self.query_size :]).mT

    def compare(self, query: Tensor, memory: Memory) -> Comparison:
        _check.width("query", query, self.query_size, "the query_size of this Concat,")
        weight = _parameter.like("query", query, self.weight[:, : self.query_size])
        query = nn.functional.linear(query, weight, self.bias)
        return AdditiveComparison(query, memory, self.v, self.backend)

    def extra_repr(self) -> str:
        return (
            f"query_size={self.query_size}, key_size={self.key_size}, "
            f"hidden_size={self.v.shape[0]}, bias={self.bias is not None}, "
            f"simplified={self.simplified}"
        )


@final
class Location(_Unprepared):
    """The score (W q)_j at key position j, which does not look at the keys.

    Args:
        query_size: d_q.
        max_length: rows of W. Positions from there on get weight 0.

    Attributes:
        weight: W (max_length, query_size); starts uniform in ±1/√query_size.

    Raises:
        ValueError: a size is not a positive whole number.

    Example:
        >>> luong.Location(query_size=4, max_length=9)(torch.randn(5, 4), torch.randn(7, 3)).shape
        torch.Size([5, 7])

    Source:
        Luong, Pham & Manning (2015), eq. 7 and footnote 6.
    """

    def __init__(self, query_size: int, max_length: int) -> None:
        super().__init__()
        _check.integer("query_size", query_size, 1)
        self.max_length = _check.integer("max_length", max_length, 1)
        self.weight = _parameter.uniform(max_length, query_size)

    def compare(self, query: Tensor, memory: Memory) -> Comparison:
        return LocationComparison(query, memory, _parameter.like("query", query, self.weight))

    def extra_repr(self) -> str:
        return f"query_size={self.weight.shape[1]}, max_length={self.max_length}"


@final
class Scaled(Score):
    """The score g · score(q, k): any score times a learned factor g, an inverse temperature.

    A larger g makes the weights sharper. It is not in the paper.

    Args:
        score: a `Score`, or a function of query and key that returns scores (*batch, n, m).

    Attributes:
        gain: g, a tensor without dimensions; starts at 1.

    Raises:
        TypeError: score is neither.

    Example:
        >>> luong.Scaled(luong.Dot())(torch.ones(1, 4), torch.ones(2, 4)).detach()
        tensor([[4., 4.]])
    """

    def __init__(self, score: Score | ScoreFunction) -> None:
        super().__init__()
        self.score = as_score(score)
        self.max_length = self.score.max_length
        self.gain = nn.Parameter(torch.ones(()))

    def prepare(self, memory: Memory) -> Memory:
        return self.score.prepare(memory)

    def prepare_once(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self.score.prepare_once(query, key)

    def compare(self, query: Tensor, memory: Memory) -> Comparison:
        gain = _parameter.like("query", query, self.gain)
        return self.score.compare(query, memory).times(gain)


@final
class _Function(_Unprepared):
    """The score of any function of (query, key) that returns scores (*batch, n, m)."""

    def __init__(self, function: ScoreFunction) -> None:
        super().__init__()
        self.function = function

    def compare(self, query: Tensor, memory: Memory) -> Comparison:
        key = memory.key
        scores = self.function(query, key)
        batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        expected = (*batch, query.shape[-2], key.shape[-2])
        if not isinstance(scores, Tensor) or tuple(scores.shape) != expected:
            got = _check.shape(scores) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(
                f"score: expected scores of shape (*batch, n, m) = {expected}, got {got}"
            )
        return GivenScores(dense.upcast(scores), memory)


def as_score(score: Score | ScoreFunction) -> Score:
    """Return `score` itself, or a plain function made into a `Score`."""
    if isinstance(score, Score):
        return score
    if not callable(score):
        raise TypeError(f"score: expected a Score or a function, got {type(score).__name__}")
    return _Function(score)


def _dot(query: Tensor, memory: Memory, scale: float) -> DotComparison:
    _formulas.same_width(query, memory.key)
    return DotComparison(query, memory, scale)
