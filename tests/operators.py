"""The operators in one table, which the tests cross with masks, dtypes, shapes and transforms.

A `Formula` is an operator as it is written on paper, with the library's function, module and
reference for it. Windows are in it as modules only; test_windows.py crosses them with every score.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import luong
import windows
from luong import reference


class Sizes(NamedTuple):
    n: int
    m: int
    d_q: int
    d_k: int
    d_v: int
    d_a: int


DENSE = Sizes(n=5, m=7, d_q=11, d_k=13, d_v=17, d_a=19)  # weights smaller than the inputs
FUSED = Sizes(n=11, m=13, d_q=5, d_k=3, d_v=3, d_a=2)  # and larger: PyTorch's fused kernel
TALL = Sizes(n=7, m=5, d_q=11, d_k=13, d_v=17, d_a=19)  # more queries than keys
TALL_FUSED = Sizes(n=13, m=11, d_q=3, d_k=5, d_v=3, d_a=2)
NAMED = Sizes(n=5, m=6, d_q=7, d_k=3, d_v=2, d_a=4)  # for backends that are asked for by name

Shapes = dict[str, tuple[int, ...]]


class Formula(NamedTuple):
    score: Callable[..., float]  # (q, k, j, *parameters): one query, and one key at position j
    scores: Callable[..., Tensor]  # luong's (query, key, *parameters)
    function: Callable[..., luong.Attended] | None  # luong's (query, key, value, *parameters, ...)
    reference: Callable[..., tuple[Tensor, Tensor]]  # the same of luong.reference
    reference_scores: Callable[..., Tensor] | None = None  # its scores; None: not within windows
    module: Callable[[Sizes], Any] | None = None  # what `Attention` takes as its score
    parameters: Callable[[Sizes], Shapes] = lambda s: {}
    widths: Callable[[Sizes], tuple[int, int]] = lambda s: (s.d_q, s.d_k)
    sizes: tuple[Sizes, ...] = (DENSE,)
    window: windows.Local | None = None
    backend: str | None = None  # of the window


def _square(s: Sizes) -> tuple[int, int]:
    return s.d_k, s.d_k


def _projected(s: Sizes) -> tuple[int, int]:
    return s.d_a, s.d_a


def _distance(query: Tensor, key: Tensor) -> Tensor:
    return -(query[..., :, None, :] - key[..., None, :, :]).square().sum(-1)


def _located(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    scores = luong.location_score(query, weight, length=key.shape[-2])
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    return scores.expand(*batch, *scores.shape[-2:])


def _scaled(inner: Callable[..., Tensor]) -> Callable[..., Any]:
    """Attention with scores g · inner(query, key, *parameters), from a plain function."""

    def function(query, key, value, g, *parameters, **options):
        def score(query, key):
            return g * inner(query, key, *parameters)

        return luong.attention(query, key, value, score=score, **options)

    return function


def _scaled_reference(inner: Callable[..., Tensor]) -> Callable[..., Any]:
    def function(query, key, value, g, *parameters, **options):
        def score(query, key):
            return g * inner(query, key, *parameters)

        return reference.attention(query, key, value, score, **options)

    return function


def _by(backend: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` by this backend, where it can take the call (under vmap it cannot)."""

    def call(*tensors, **options):
        masks = [x for x in options.values() if isinstance(x, Tensor)]
        reasons = luong.explain("additive", *tensors, *masks)[backend]
        return function(*tensors, backend=None if reasons else backend, **options)

    return call


def _g(inner: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda query, key, g, *parameters: g * inner(query, key, *parameters)


def _simplified(query: Tensor, key: Tensor, weight: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return reference.concat_score(query, key, weight, v, bias, simplified=True)


def _reference_location(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    return reference.location_score(query, weight, key.shape[-2])


FORMULAS = {
    "dot": Formula(
        score=lambda q, k, j: k @ q,
        scores=luong.dot_score,
        function=luong.dot_attention,
        reference=reference.dot_attention,
        reference_scores=reference.dot_score,
        module=lambda s: luong.Dot(),
        widths=_square,
        sizes=(DENSE, FUSED),
    ),
    "scaled_dot": Formula(
        score=lambda q, k, j: k @ q / math.sqrt(len(k)),
        scores=luong.scaled_dot_score,
        function=luong.scaled_dot_attention,
        reference=reference.scaled_dot_attention,
        reference_scores=reference.scaled_dot_score,
        module=lambda s: luong.ScaledDot(),
        widths=_square,
        sizes=(DENSE, FUSED),
    ),
    "scale": Formula(
        score=lambda q, k, j: k @ q * 0.7,
        scores=lambda q, k: luong.scaled_dot_score(q, k, scale=0.7),
        function=lambda *tensors, **o: luong.scaled_dot_attention(*tensors, scale=0.7, **o),
        reference=lambda q, k, x, **o: reference.scaled_dot_attention(q, k, x, scale=0.7, **o),
        module=lambda s: luong.ScaledDot(scale=0.7),
        widths=_square,
        sizes=(DENSE, FUSED),
    ),
    "general": Formula(
        score=lambda q, k, j, W: k @ W @ q,
        scores=luong.general_score,
        function=luong.general_attention,
        reference=reference.general_attention,
        reference_scores=reference.general_score,
        module=lambda s: luong.General(s.d_q, s.d_k),
        parameters=lambda s: {"weight": (s.d_k, s.d_q)},
        sizes=(DENSE, FUSED, TALL, TALL_FUSED),
    ),
    "concat": Formula(
        score=lambda q, k, j, W, v: v @ np.tanh(W @ np.concatenate([q, k])),
        scores=luong.concat_score,
        function=luong.concat_attention,
        reference=reference.concat_attention,
        reference_scores=reference.concat_score,
        module=lambda s: luong.Concat(s.d_q, s.d_k, s.d_a),
        parameters=lambda s: {"weight": (s.d_a, s.d_q + s.d_k), "v": (s.d_a,)},
    ),
    "concat_bias": Formula(
        score=lambda q, k, j, W, v, b: v @ np.tanh(W @ np.concatenate([q, k]) + b),
        scores=luong.concat_score,
        function=luong.concat_attention,
        reference=reference.concat_attention,
        reference_scores=reference.concat_score,
        module=lambda s: luong.Concat(s.d_q, s.d_k, s.d_a, bias=True),
        parameters=lambda s: {"weight": (s.d_a, s.d_q + s.d_k), "v": (s.d_a,), "bias": (s.d_a,)},
    ),
    "concat_simplified": Formula(
        score=lambda q, k, j, W, v, b: v @ np.tanh(W @ q + k + b),
        scores=lambda *tensors: luong.concat_score(*tensors, simplified=True),
        function=lambda *tensors, **o: luong.concat_attention(*tensors, simplified=True, **o),
        reference=lambda q, k, x, W, v, b, **o: reference.concat_attention(
            q, k, x, W, v, b, simplified=True, **o
        ),
        reference_scores=_simplified,
        module=lambda s: luong.Concat(s.d_q, s.d_a, s.d_a, bias=True, simplified=True),
        parameters=lambda s: {"weight": (s.d_a, s.d_q), "v": (s.d_a,), "bias": (s.d_a,)},
        widths=lambda s: (s.d_q, s.d_a),
    ),
    "additive": Formula(
        score=lambda q, k, j, v: v @ np.tanh(q + k),
        scores=luong.additive_score,
        function=luong.additive_attention,
        reference=reference.additive_attention,
        parameters=lambda s: {"v": (s.d_a,)},
        widths=_projected,
    ),
    "location": Formula(  # more positions than the table has
        score=lambda q, k, j, W: W[j] @ q if j < len(W) else -math.inf,
        scores=_located,
        function=lambda q, k, v, W, **o: luong.location_attention(q, v, W, **o),
        reference=lambda q, k, v, W, **o: reference.location_attention(q, v, W, **o),
        reference_scores=_reference_location,
        module=lambda s: luong.Location(s.d_q, s.m - 2),
        parameters=lambda s: {"weight": (s.m - 2, s.d_q)},
    ),
    "location_long": Formula(  # fewer
        score=lambda q, k, j, W: W[j] @ q,
        scores=_located,
        function=lambda q, k, v, W, **o: luong.location_attention(q, v, W, **o),
        reference=lambda q, k, v, W, **o: reference.location_attention(q, v, W, **o),
        reference_scores=_reference_location,
        module=lambda s: luong.Location(s.d_q, s.m + 4),
        parameters=lambda s: {"weight": (s.m + 4, s.d_q)},
    ),
    "distance": Formula(  # any function of queries and keys
        score=lambda q, k, j: -((q - k) ** 2).sum(),
        scores=_distance,
        function=lambda *tensors, **o: luong.attention(*tensors, score=_distance, **o),
        reference=lambda q, k, x, **o: reference.attention(q, k, x, _distance, **o),
        reference_scores=_distance,
        module=lambda s: _distance,
        widths=_square,
    ),
    "g_dot": Formula(
        score=lambda q, k, j, g: g * (k @ q),
        scores=lambda q, k, g: g * luong.dot_score(q, k),
        function=_scaled(luong.dot_score),
        reference=_scaled_reference(reference.dot_score),
        reference_scores=_g(reference.dot_score),
        module=lambda s: luong.Scaled(luong.Dot()),
        parameters=lambda s: {"gain": ()},
        widths=_square,
        sizes=(DENSE, FUSED),
    ),
    "g_general": Formula(
        score=lambda q, k, j, g, W: g * (k @ W @ q),
        scores=lambda q, k, g, W: g * luong.general_score(q, k, W),
        function=_scaled(luong.general_score),
        reference=_scaled_reference(reference.general_score),
        reference_scores=_g(reference.general_score),
        module=lambda s: luong.Scaled(luong.General(s.d_q, s.d_k)),
        parameters=lambda s: {"gain": (), "score.weight": (s.d_k, s.d_q)},
        sizes=(DENSE, FUSED, TALL),
    ),
    "g_concat": Formula(
        score=lambda q, k, j, g, W, v, b: g * (v @ np.tanh(W @ np.concatenate([q, k]) + b)),
        scores=lambda q, k, g, *rest: g * luong.concat_score(q, k, *rest),
        function=_scaled(luong.concat_score),
        reference=_scaled_reference(reference.concat_score),
        reference_scores=_g(reference.concat_score),
        module=lambda s: luong.Scaled(luong.Concat(s.d_q, s.d_k, s.d_a, bias=True)),
        parameters=lambda s: {
            "gain": (),
            "score.weight": (s.d_a, s.d_q + s.d_k),
            "score.v": (s.d_a,),
            "score.bias": (s.d_a,),
        },
    ),
    "g_g_location": Formula(  # two multipliers, one around the other
        score=lambda q, k, j, g, h, W: g * h * (W[j] @ q),
        scores=lambda q, k, g, h, W: g * h * _located(q, k, W),
        function=_scaled(lambda q, k, h, W: h * _located(q, k, W)),
        reference=_scaled_reference(
            lambda q, k, h, W: h * reference.location_score(q, W, k.shape[-2])
        ),
        reference_scores=_g(_g(_reference_location)),
        module=lambda s: luong.Scaled(luong.Scaled(luong.Location(s.d_q, s.m))),
        parameters=lambda s: {"gain": (), "score.gain": (), "score.score.weight": (s.m, s.d_q)},
    ),
}


for _backend in ("torch", "reference"):
    for _name in ("additive", "concat_bias"):
        _formula = FORMULAS[_name]
        FORMULAS[f"{_backend}-{_name}"] = _formula._replace(
            scores=_by(_backend, _formula.scores),
            function=_by(_backend, _formula.function),
            reference_scores=None,
            module=None,
            sizes=(NAMED,),
        )


REFERENCE_SCORES = {
    name: formula.reference_scores for name, formula in FORMULAS.items() if formula.reference_scores
}


def windowed(
    name: str, window: windows.Local, backend: str | None = None, sizes: Sizes = DENSE
) -> Formula:
    """The formula `name` within a window."""
    formula = FORMULAS[name]
    known = None
    if "location" in name:
        known = lambda *parameters: len(parameters[-1])  # noqa: E731
    return formula._replace(
        function=None,
        reference=window.reference(formula.reference_scores, known),
        sizes=(sizes,),
        window=window,
        backend=backend,
    )


FORMULAS |= {
    "dot_local_m": windowed("dot", windows.monotonic(2)),
    "general_local_p": windowed("general", windows.predictive(2)),
    "concat_bias_local_m": windowed("concat_bias", windows.monotonic(1)),
    "concat_local_p": windowed("concat", windows.predictive(2)),
    "location_local_p_renormalized": windowed("location", windows.predictive(2, True)),
    "distance_local_m": windowed("distance", windows.monotonic(2)),
    "g_general_local_p_renormalized": windowed("g_general", windows.predictive(2, True)),
    "dot_causal": windowed("dot", windows.causal()),
    "torch-general_local_p": windowed("general", windows.predictive(1), "torch", NAMED),
    "torch-concat_bias_local_m": windowed("concat_bias", windows.monotonic(2), "torch", NAMED),
    "reference-concat_local_p": windowed("concat", windows.predictive(1), "reference", NAMED),
}
