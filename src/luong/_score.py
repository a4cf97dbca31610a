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
from luong._memory import Memory, known
from luong.kernels import additive, dense, dot, windowed

ScoreFunction = Callable[[Tensor, Tensor], Tensor]
Weighed = tuple[Tensor, "Tensor | None"]


class Score(nn.Module, ABC):
    """The base class of score functions with parameters.

    `score(query, key)` returns scores (*batch, n, m) for query (*batch, n, d_q) and key
    (*batch, m, d_k), in the dtype of query. `Attention` calls the methods below instead, which
    work on keys that were prepared once. `gain` is a factor on every score, which each score
    applies where it is cheapest: see `Scaled`.

    Attributes:
        max_length: key positions from here on are never attended to. None: no such limit.
    """

    max_length: int | None = None

    @abstractmethod
    def prepare(self, memory: Memory) -> Memory:
        """Return the memory with its keys prepared: what depends on the source only, done once."""

    @abstractmethod
    def pair(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return query and key, prepared in the cheapest way for keys that are used only once.

        Args:
            query: (*batch, n, d_q).
            key: (*batch, m, d_k), as they came.

        Returns:
            The query and the prepared keys, for `scores` and `attend`.
        """

    @abstractmethod
    def scores(self, query: Tensor, prepared: Tensor, gain: Tensor | None = None) -> Tensor:
        """Return scores (*batch, n, m) against prepared keys, in float32 for half types."""

    @abstractmethod
    def window_scores(
        self, query: Tensor, memory: Memory, key_positions: Tensor, gain: Tensor | None = None
    ) -> Tensor:
        """Return scores (*batch, n, w) against the prepared keys at the positions `key_positions`.

        Args:
            query: (*batch, n, d_q).
            memory: a memory with prepared keys.
            key_positions: key positions (*batch, n, w), consecutive in each row.
            gain: a factor on every score. Default: none.

        Returns:
            Scores (*batch, n, w), in float32 for half types.
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
        """Return the context (*batch, n, d_v), and weights (*batch, n, m) or None.

        Args:
            query: (*batch, n, d_q).
            memory: a memory with prepared keys.
            gain: a factor on every score. Default: none.
            dropout: the probability that a weight is dropped. Default: 0.
            need_weights: whether to return the weights too. Default: False.
        """

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Return scores (*batch, n, m) of query (*batch, n, d_q) and key (*batch, m, d_k)."""
        query, key = _formulas.pair(query=query, key=key)
        return self.scores(*self.pair(query, key)).to(query.dtype)


class _Product(Score):
    """The base class of scores that are a dot product once the keys are prepared."""

    scale: float | None = 1.0

    @final
    def scores(self, query: Tensor, prepared: Tensor, gain: Tensor | None = None) -> Tensor:
        _formulas.same_width(query, prepared)
        return dot.scores(
            _times(query, gain), prepared, _formulas.default_scale(prepared, self.scale)
        )

    @final
    def window_scores(
        self, query: Tensor, memory: Memory, key_positions: Tensor, gain: Tensor | None = None
    ) -> Tensor:
        _formulas.same_width(query, memory.key)
        scale = _formulas.default_scale(memory.key, self.scale)
        query = dense.upcast(_times(query, gain))
        return windowed.dots(
            query if scale == 1.0 else query * scale, dense.upcast(memory.key), key_positions
        )

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
    """The base class of scores that compute all n x m scores, then softmax and weighted sum."""

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
    """The score kᵀq. It has no parameters, and needs queries and keys of one size.

    Example:
        >>> luong.Dot()(torch.ones(1, 4), torch.ones(2, 4))
        tensor([[4., 4.]])

    Source:
        Luong, Pham & Manning (2015), eq. 8, dot.
    """

    def prepare(self, memory: Memory) -> Memory:
        return memory

    def pair(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return query, key


@final
class ScaledDot(_Product):
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

    def prepare(self, memory: Memory) -> Memory:
        return memory

    def pair(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return query, key

    def extra_repr(self) -> str:
        return f"scale={self.scale}"


@final
class General(_Product):
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

    def window_scores(
        self, query: Tensor, memory: Memory, key_positions: Tensor, gain: Tensor | None = None
    ) -> Tensor:
        return additive.windowed_scores(
            self._project(query),
            memory.key,
            _times(self.v, gain),
            key_positions,
            backend=self.backend,
            terms=known(memory).key_terms,
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

    def window_scores(
        self, query: Tensor, memory: Memory, key_positions: Tensor, gain: Tensor | None = None
    ) -> Tensor:
        weight = _parameter.like("query", query, self.weight)
        m, known = memory.key.shape[-2], weight.shape[0]
        if torch.compiler.is_compiling() or known < m:  # a row for every position
            weight = nn.functional.pad(weight, (0, 0, 0, m))
        scores = windowed.dots(
            dense.upcast(_times(query, gain)), dense.upcast(weight), key_positions
        )
        return torch.where(key_positions < known, scores, float("-inf"))

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

    def pair(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self.score.pair(query, key)

    def scores(self, query: Tensor, prepared: Tensor, gain: Tensor | None = None) -> Tensor:
        return self.score.scores(query, prepared, self._times(query, gain))

    def window_scores(
        self, query: Tensor, memory: Memory, key_positions: Tensor, gain: Tensor | None = None
    ) -> Tensor:
        return self.score.window_scores(query, memory, key_positions, self._times(query, gain))

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
            gain=self._times(query, gain),
            dropout=dropout,
            need_weights=need_weights,
        )

    def _times(self, query: Tensor, gain: Tensor | None) -> Tensor:
        """The product of both gains."""
        return _times(_parameter.like("query", query, self.gain), gain)


@final
class _Function(_Plain):
    """The score of any function of (query, key) that returns scores (*batch, n, m)."""

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
        return _times(dense.upcast(scores), gain)

    def window_scores(
        self, query: Tensor, memory: Memory, key_positions: Tensor, gain: Tensor | None = None
    ) -> Tensor:
        """Pick from the scores of all pairs: a plain function gives nothing less."""
        scores = self.scores(query, memory.key, gain)
        batch = torch.broadcast_shapes(scores.shape[:-2], key_positions.shape[:-2])
        scores, key_positions = (x.expand(*batch, *x.shape[-2:]) for x in (scores, key_positions))
        return scores.gather(-1, key_positions)


def as_score(score: Score | ScoreFunction) -> Score:
    """Return `score` itself, or a plain function made into a `Score`."""
    if isinstance(score, Score):
        return score
    if not callable(score):
        raise TypeError(f"score: expected a Score or a function, got {type(score).__name__}")
    return _Function(score)


def _times(x: Tensor, gain: Tensor | None) -> Tensor:
    """Return x · gain, in float32 for half types."""
    if gain is None:
        return x
    return dense.upcast(x) * gain
