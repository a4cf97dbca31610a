"""Queries compared with the keys of a memory: one call's scores, before they are computed.

A `Score` returns a `Comparison` for each call. What is asked of it decides how it is computed: all
scores, the scores within a window, or only the context, for which a kernel may never hold scores.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, final

import torch
from torch import Tensor, nn

from luong import _formulas
from luong._memory import Attended, Memory, known
from luong.kernels import additive, dense, dot, windowed


class Comparison(Protocol):
    """Queries (*batch, n, d) and a memory, with the formula of their scores.

    Scores are in float32 where queries are of a half type.
    """

    @property
    def memory(self) -> Memory:
        """The memory, with keys that the score has prepared."""

    def scores(self) -> Tensor:
        """Return all scores (*batch, n, m)."""

    def window_scores(self, key_positions: Tensor) -> Tensor:
        """Return the scores (*batch, n, w) of the keys at `key_positions` (*batch, n, w).

        The positions of a query are consecutive.
        """

    def attended(self, *, dropout: float, need_weights: bool) -> Attended:
        """Return the context and, where they are needed, the weights before dropout."""

    def times(self, factor: Tensor) -> Comparison:
        """Return the same with each score multiplied by `factor`, a tensor without dimensions.

        It is applied where that costs least. In half types no product is rounded.
        """


@final
class DotComparison(NamedTuple):
    """The scores scale · kᵀq."""

    query: Tensor
    memory: Memory
    scale: float

    def scores(self) -> Tensor:
        return dot.scores(self.query, self.memory.key, self.scale)

    def window_scores(self, key_positions: Tensor) -> Tensor:
        query = dense.upcast(self.query)
        query = query if self.scale == 1.0 else query * self.scale
        return windowed.dots(query, dense.upcast(self.memory.key), key_positions)

    def attended(self, *, dropout: float, need_weights: bool) -> Attended:
        if self.query.dtype != self.memory.key.dtype:  # the kernel would round what `times` upcast
            return dense.attention(
                self.scores(), self.memory, dropout=dropout, need_weights=need_weights
            )
        return dot.attention(
            self.query, self.memory, scale=self.scale, dropout=dropout, need_weights=need_weights
        )

    def times(self, factor: Tensor) -> DotComparison:
        return DotComparison(dense.upcast(self.query) * factor, self.memory, self.scale)


@final
class AdditiveComparison(NamedTuple):
    """The scores vᵀ tanh(q + k) of projected queries and keys."""

    query: Tensor
    memory: Memory
    v: Tensor
    backend: str | None

    def scores(self) -> Tensor:
        return additive.scores(self.query, self.memory.key, self.v, backend=self.backend)

    def window_scores(self, key_positions: Tensor) -> Tensor:
        return additive.windowed_scores(
            self.query,
            self.memory.key,
            self.v,
            key_positions,
            backend=self.backend,
            terms=known(self.memory).key_terms,
        )

    def attended(self, *, dropout: float, need_weights: bool) -> Attended:
        return additive.attention(
            self.query,
            self.memory,
            self.v,
            backend=self.backend,
            dropout=dropout,
            need_weights=need_weights,
        )

    def times(self, factor: Tensor) -> AdditiveComparison:
        v = dense.upcast(self.v) * factor
        return AdditiveComparison(self.query, self.memory, v, self.backend)


@final
class LocationComparison(NamedTuple):
    """The scores (W q)_j, with the matrix W as `weight`; keys from its last row on get -inf."""

    query: Tensor
    memory: Memory
    weight: Tensor

    def scores(self) -> Tensor:
        return _formulas.location(self.query, self.weight, self.memory.key.shape[-2])

    def window_scores(self, key_positions: Tensor) -> Tensor:
        weight, rows, m = self.weight, self.weight.shape[0], self.memory.key.shape[-2]
        if torch.compiler.is_compiling() or rows < m:  # a row for every position
            weight = nn.functional.pad(weight, (0, 0, 0, m))
        scores = windowed.dots(dense.upcast(self.query), dense.upcast(weight), key_positions)
        return torch.where(key_positions < rows, scores, float("-inf"))

    def attended(self, *, dropout: float, need_weights: bool) -> Attended:
        return dense.attention(
            self.scores(), self.memory, dropout=dropout, need_weights=need_weights
        )

    def times(self, factor: Tensor) -> LocationComparison:
        return LocationComparison(dense.upcast(self.query) * factor, self.memory, self.weight)


@final
class GivenScores(NamedTuple):
    """Scores (*batch, n, m) that were computed before, by any formula."""

    given: Tensor
    memory: Memory

    def scores(self) -> Tensor:
        return self.given

    def window_scores(self, key_positions: Tensor) -> Tensor:
        batch = torch.broadcast_shapes(self.given.shape[:-2], key_positions.shape[:-2])
        scores, at = (x.expand(*batch, *x.shape[-2:]) for x in (self.given, key_positions))
        return scores.gather(-1, at)

    def attended(self, *, dropout: float, need_weights: bool) -> Attended:
        return dense.attention(self.given, self.memory, dropout=dropout, need_weights=need_weights)

    def times(self, factor: Tensor) -> GivenScores:
        return GivenScores(dense.upcast(self.given) * factor, self.memory)
