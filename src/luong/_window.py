"""Windows say which keys a query may attend to (Luong, Pham & Manning 2015, section 3.2).

Positions count from 0. S is the number of keys of the sentence: `lengths` where they are given,
else m. A mask hides keys, but never moves a window.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from luong import _check, _parameter
from luong.kernels import dense


class Gaussian(NamedTuple):
    """A factor exp(-(s - centre)² / 2σ²) on the weight of the key at position s."""

    centre: Tensor  # (*batch, n), real
    sigma: float  # σ, in positions
    renormalize: bool  # whether the weights are divided by their sum afterwards

    def log(self, key_positions: Tensor) -> Tensor:
        """Return the logarithm of the factors at `key_positions` (*batch, n, w)."""
        distance = (key_positions - self.centre.unsqueeze(-1)) / self.sigma
        return -0.5 * distance * distance


class KeyRange(NamedTuple):
    """The keys first, ..., last that each query may attend to; none lies past the sentence."""

    first: Tensor  # (*batch, n), integers; may lie before the sentence
    last: Tensor  # (*batch, n), integers; where it lies before first, there are no keys
    width: int | None  # the largest number of keys of a query; None: m
    gaussian: Gaussian | None = None  # only a range with a width may have one

    def holds(self, key_positions: Tensor) -> Tensor:
        """Return whether the range of each query holds these positions: bool (*batch, n, w)."""
        first, last = self.first.unsqueeze(-1), self.last.unsqueeze(-1)
        return (key_positions >= first) & (key_positions <= last)


class Window(nn.Module, ABC):
    """The base class of windows: which keys each query may attend to.

    A window is given to `luong.Attention` or `luong.attention`. To write your own, define
    `key_range`.
    """

    @abstractmethod
    def key_range(self, query: Tensor, position: Tensor, length: Tensor | int) -> KeyRange:
        """Return the keys that each query may attend to.

        Args:
            query: (*batch, n, d_q).
            position: target positions, integers that broadcast to (*batch, n).
            length: S, one number or integers that broadcast to (*batch, n).

        Returns:
            A `KeyRange`, which holds the first and the last key of each query.
        """


@final
class LocalMonotonic(Window):
    """The window of local-m: the keys at most D positions from the query's own.

        p_t = min(t, S - 1),    keys p_t - D, ..., p_t + D that lie in the sentence

    t is the `position` of the query. The softmax is over these keys. D = 0 takes one key; with
    D >= S - 1 all are taken (global attention).

    Args:
        half_width: D, in key positions, 0 or more.

    Raises:
        ValueError: half_width is not a whole number, 0 or more.

    Example:
        >>> attention = luong.Attention(luong.Dot(), window=luong.LocalMonotonic(half_width=1))
        >>> query, key = torch.zeros(2, 3), torch.zeros(5, 3)
        >>> attention(query, key, position=1, need_weights=True).weights
        tensor([[0.3333, 0.3333, 0.3333, 0.0000, 0.0000],
                [0.0000, 0.3333, 0.3333, 0.3333, 0.0000]])

    Source:
        Luong, Pham & Manning (2015), section 3.2. The paper has p_t = t, and does not say what a
        target that is longer than its source attends to; here it is the end of the source.
    """

    def __init__(self, half_width: int) -> None:
        super().__init__()
        self.half_width = _check.integer("half_width", half_width, 0)

    def key_range(self, query: Tensor, position: Tensor, length: Tensor | int) -> KeyRange:
        return _around(_at_most(position, length), self.half_width, length)

    def extra_repr(self) -> str:
        return f"half_width={self.half_width}"


@final
class LocalPredictive(Window):
    """The window of local-p: keys around a position that the query predicts, under a Gaussian.

        p_t = S · sigmoid(vᵀ tanh(W h_t)),    D = half_width, σ = D / 2
        keys c - D, ..., c + D that lie in the sentence, c = min(⌊p_t⌋, S - 1)
        weight of key s = softmax over these keys · exp(-(s - p_t)² / 2σ²)

    p_t learns through the Gaussian; the window itself moves in jumps, which have no gradient. The
    `position` of a query plays no part. In half types p_t is computed in float32 from tanh on.

    Args:
        query_size: d_q.
        hidden_size: rows of W. The paper has query_size.
        half_width: D, in key positions, 1 or more.
        renormalize: divide the weights of a query by their sum, which the Gaussian makes smaller
            than 1. Default: False, as in the paper and in its authors' code.

    Attributes:
        weight: W (hidden_size, query_size), starts uniform in ±1/√query_size.
        v: (hidden_size,), starts uniform in ±1/√hidden_size.

    Raises:
        ValueError: a size is not a positive whole number.

    Example:
        >>> window = luong.LocalPredictive(query_size=3, hidden_size=4, half_width=2)
        >>> attention = luong.Attention(luong.Dot(), window=window)
        >>> _, weights = attention(torch.zeros(1, 3), torch.zeros(9, 3), need_weights=True)
        >>> weights.detach()  # the query is zero: p_t = 9 · sigmoid(0) = 4.5
        tensor([[0.0000, 0.0000, 0.0088, 0.0649, 0.1765, 0.1765, 0.0649, 0.0000, 0.0000]])

    Source:
        Luong, Pham & Manning (2015), section 3.2, eqs. 9 and 10.
    """

    def __init__(
        self, query_size: int, hidden_size: int, half_width: int, renormalize: bool = False
    ) -> None:
        super().__init__()
        _check.integer("query_size", query_size, 1)
        _check.integer("hidden_size", hidden_size, 1)
        self.half_width = _check.integer("half_width", half_width, 1)
        self.renormalize = renormalize
        self.weight = _parameter.uniform(hidden_size, query_size)
        self.v = _parameter.uniform(hidden_size)

    def centre(self, query: Tensor, length: Tensor | int) -> Tensor:
        """Return the predicted positions p_t, from 0 to S.

        Args:
            query: h_t (*batch, n, query_size).
            length: S, one number or integers that broadcast to (*batch, n).

        Returns:
            Real positions (*batch, n).
        """
        _check.width(
            "query", query, self.weight.shape[1], "the query_size of this LocalPredictive,"
        )
        weight = _parameter.like("query", query, self.weight)
        hidden = torch.tanh(nn.functional.linear(query, weight))
        return length * torch.sigmoid(dense.product(hidden, self.v.unsqueeze(-1)).squeeze(-1))

    def key_range(self, query: Tensor, position: Tensor, length: Tensor | int) -> KeyRange:
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
    """The window of causal attention: the keys 0, ..., t, none after the query's own `position` t.

    All n x m scores are computed, so that it costs what attention without a window costs. It is not
    in the paper.

    Example:
        >>> attention = luong.Attention(luong.Dot(), window=luong.Causal())
        >>> attention(torch.zeros(2, 3), torch.zeros(2, 3), need_weights=True).weights
        tensor([[1.0000, 0.0000],
                [0.5000, 0.5000]])
    """

    def key_range(self, query: Tensor, position: Tensor, length: Tensor | int) -> KeyRange:
        last = _at_most(position, length)
        return KeyRange(torch.zeros_like(last), last, None)


def _around(centre: Tensor, half_width: int, length: Tensor | int) -> KeyRange:
    last = _at_most(centre + half_width, length)
    return KeyRange(centre - half_width, last, 2 * half_width + 1)


def _at_most(position: Tensor, length: Tensor | int) -> Tensor:
    """Return `position`, at most S - 1."""
    return torch.clamp(position, max=length - 1)
