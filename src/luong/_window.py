"""Windows: which keys a query may look at (Luong, Pham & Manning 2015, section 3.2).

Positions count from 0. S is the number of source positions that may be attended: `lengths` where
they are given, else m. A mask hides keys, but never moves a window.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from luong import _check, _parameter
from luong.kernels import dense


class Gaussian(NamedTuple):
    """exp(-(s - centre)² / 2σ²) at key position s."""

    centre: Tensor  # (*batch, n), real
    sigma: float
    renormalize: bool  # whether the weights still sum to 1 with it

    def log(self, index: Tensor) -> Tensor:
        """The logarithm of its factors at `index` (*batch, n, w)."""
        distance = (index - self.centre.unsqueeze(-1)) / self.sigma
        return -0.5 * distance * distance


class Interval(NamedTuple):
    """The keys first, ..., last of each query; none of them past the end of the sentence."""

    first: Tensor  # (*batch, n), whole; may lie before the sentence
    last: Tensor  # (*batch, n), whole; may lie before first: then there are none
    width: int | None  # the most keys that a query can have; None: m
    gaussian: Gaussian | None = None  # which only an interval with a width can have


class Window(nn.Module, ABC):
    """Which keys each query may attend to."""

    @abstractmethod
    def interval(self, query: Tensor, position: Tensor, length: Tensor | int) -> Interval:
        """query (*batch, n, d_q); position and length broadcast to (*batch, n)."""


@final
class LocalMonotonic(Window):
    """local-m: the keys p_t - D, ..., p_t + D that lie in the sentence, p_t = min(t, S - 1).

    D = half_width, t is the query's `position`. Softmax is over these keys. The paper has p_t = t,
    and leaves open what a target longer than its source attends to: here, the source's end.
    D = 0 takes one key, D >= S - 1 all of them (global attention).
    """

    def __init__(self, half_width: int) -> None:
        super().__init__()
        self.half_width = _check.whole("half_width", half_width, 0)

    def interval(self, query: Tensor, position: Tensor, length: Tensor | int) -> Interval:
        return _around(_at_most(position, length), self.half_width, length)

    def extra_repr(self) -> str:
        return f"half_width={self.half_width}"


@final
class LocalPredictive(Window):
    """local-p (eqs. 9 and 10): a window around a predicted position, weighted by a Gaussian.

        p_t = S · sigmoid(vᵀ tanh(W h_t)),    D = half_width, σ = D / 2
        keys c - D, ..., c + D that lie in the sentence, c = min(⌊p_t⌋, S - 1)
        weight of key s = softmax over these keys · exp(-(s - p_t)² / 2σ²)

    As in the paper and its authors' code the weights then sum to less than 1; with `renormalize`
    they are divided by their sum. p_t learns through the Gaussian; the window moves in jumps.
    `weight` W is (hidden_size, query_size), `v` (hidden_size,); they start uniform in
    ±1/√query_size and ±1/√hidden_size. In half types p_t is computed in float32 from tanh on.
    `position` plays no part.
    """

    def __init__(
        self, query_size: int, hidden_size: int, half_width: int, renormalize: bool = False
    ) -> None:
        super().__init__()
        _check.size("query_size", query_size)
        _check.size("hidden_size", hidden_size)
        self.half_width = _check.whole("half_width", half_width, 1)
        self.renormalize = renormalize
        self.weight = _parameter.uniform(hidden_size, query_size)
        self.v = _parameter.uniform(hidden_size)

    def centre(self, query: Tensor, length: Tensor | int) -> Tensor:
        """p_t (*batch, n), from 0 to S."""
        _check.width(
            "query", query, self.weight.shape[1], "the query_size of this LocalPredictive,"
        )
        weight = _parameter.like("query", query, self.weight)
        hidden = torch.tanh(nn.functional.linear(query, weight))
        return length * torch.sigmoid(dense.product(hidden, self.v.unsqueeze(-1)).squeeze(-1))

    def interval(self, query: Tensor, position: Tensor, length: Tensor | int) -> Interval:
        centre = self.centre(query, length)
        found = _around(_at_most(centre.detach().floor().long(), length), self.half_width, length)
        return found._replace(gaussian=Gaussian(centre, self.half_width / 2, self.renormalize))

    def extra_repr(self) -> str:
        hidden, query = self.weight.shape
        return (
            f"query_size={query}, hidden_size={hidden}, half_width={self.half_width}, "
            f"renormalize={self.renormalize}"
        )


@final
class Causal(Window):
    """The keys 0, ..., t: none after the query's own `position`. Not in the paper.

    All scores are computed, so that its cost is that of attention without a window.
    """

    def interval(self, query: Tensor, position: Tensor, length: Tensor | int) -> Interval:
        last = _at_most(position, length)
        return Interval(torch.zeros_like(last), last, None)


def _around(centre: Tensor, half_width: int, length: Tensor | int) -> Interval:
    last = _at_most(centre + half_width, length)
    return Interval(centre - half_width, last, 2 * half_width + 1)


def _at_most(position: Tensor, length: Tensor | int) -> Tensor:
    """`position`, at most S - 1."""
    return torch.clamp(position, max=length - 1)
