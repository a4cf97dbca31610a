"""The paper's windows once more, as plain numbers: one query at a time, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import luong
from luong import reference


class Local(NamedTuple):
    """A window: the library's module, and what its formulas need to know."""

    make: Callable[[int], luong.Window]  # d_q -> the module
    half_width: int | None = None  # None: Causal
    predictive: bool = False
    renormalize: bool = False

    @property
    def normalised(self) -> bool:
        """Whether the weights of a query sum to 1."""
        return self.renormalize or not self.predictive

    def parameters(self, d_q: int) -> dict[str, tuple[int, ...]]:
        return {"weight": (HIDDEN, d_q), "v": (HIDDEN,)} if self.predictive else {}

    def centre(self, query: np.ndarray, t: int, length: int, *parameters: np.ndarray) -> float:
        """p_t: eq. 9, or t itself, held at the last word."""
        if not self.predictive:
            return min(t, length - 1)
        W, v = parameters
        return length / (1 + math.exp(-v @ np.tanh(W @ query)))

    def keys(self, p: float, length: int) -> Iterable[int]:
        """The key positions that may be looked at."""
        if self.half_width is None:
            return range(int(p) + 1)
        middle = min(math.floor(p), length - 1)
        return range(max(0, middle - self.half_width), min(length, middle + self.half_width + 1))

    def weights(
        self,
        score: Callable[[int], float],
        live: np.ndarray,
        query: np.ndarray,
        t: int,
        length: int,
        *parameters: np.ndarray,
    ) -> dict[int, float]:
        """The weights of one query by key position (eqs. 7 and 10)."""
        p = self.centre(query, t, length, *parameters)
        found = softmax({j: score(j) for j in self.keys(p, length) if live[j]})
        if self.predictive:
            assert self.half_width is not None
            sigma = self.half_width / 2
            found = {j: a * math.exp(-((j - p) ** 2) / (2 * sigma**2)) for j, a in found.items()}
        if self.renormalize:
            total = sum(found.values())
            found = {j: a / total for j, a in found.items()}
        return found

    def reference(self, score: Callable[..., Tensor], known: Callable[..., int] | None = None):
        """`luong.reference` with this window; `known` is how many positions a score knows."""

        def call(query, key, value, *parameters, mask=None, lengths=None, position=0):
            own, found = (2 if self.predictive else 0), list(parameters)
            window, rest = found[len(found) - own :], found[: len(found) - own]
            m = key.shape[-2]
            keys, steps = (torch.arange(x.shape[-2], device=x.device) for x in (key, query))
            inside = (keys >= 0).unsqueeze(0)
            if known is not None:
                inside = inside & (keys < known(*rest))
            inside = inside if mask is None else inside & mask

            def scores(query, key):
                return score(query, key, *rest)

            if self.half_width is None:
                t = position + steps if isinstance(position, int) else position
                inside = inside & (keys <= t[..., None])
                return reference.attention(query, key, value, scores, inside, lengths)
            if self.predictive:
                weight, v = window
                centre = reference.predicted_centre(query, weight, v, m, lengths)
            elif isinstance(position, int):
                centre = reference.monotonic_centre(query, position)
            else:
                centre = position.to(query.dtype).expand(query.shape[:-1])
            return reference.local_attention(
                query,
                key,
                value,
                scores,
                centre,
                self.half_width,
                self.predictive,
                self.renormalize,
                inside,
                lengths,
            )

        return call


HIDDEN = 3  # hidden_size of the predicted centre


def softmax(scores: dict[int, float]) -> dict[int, float]:
    """Over the keys with a finite score."""
    scores = {j: score for j, score in scores.items() if score > -math.inf}
    top = max(scores.values(), default=0.0)
    total = sum(math.exp(score - top) for score in scores.values())
    return {j: math.exp(score - top) / total for j, score in scores.items()}


def monotonic(half_width: int) -> Local:
    return Local(lambda d_q: luong.LocalMonotonic(half_width), half_width)


def predictive(half_width: int, renormalize: bool = False) -> Local:
    def make(d_q: int) -> luong.Window:
        return luong.LocalPredictive(d_q, HIDDEN, half_width, renormalize=renormalize)

    return Local(make, half_width, True, renormalize)


def causal() -> Local:
    return Local(lambda d_q: luong.Causal())
