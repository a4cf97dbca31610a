"""No weight is denormal: some processors take a hundred cycles for each product with such a number.

A single query meets scores from 0 down to where weights vanish, and the values are the identity, so
that the context shows the weights with which the values were multiplied.
"""

import math

import pytest
import torch

import luong
from luong.kernels import dot

M = 120
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])


def spread(dtype):
    """Return scores (m,) that end where e^score is below every denormal number."""
    info = torch.finfo(dtype)
    return torch.linspace(0, math.log(info.smallest_normal * info.eps) - 1, M, dtype=dtype)


def by_dot(scores, value, **options):
    return luong.dot_attention(scores.new_ones(1, 1), scores[:, None], value, **options)


def by_general(scores, value, **options):
    weight = scores.new_full((1, 1), 2.0)
    query, key = scores.new_full((1, 1), 0.5), scores[:, None]
    return luong.general_attention(query, key, value, weight, **options)


def by_location(scores, value, **options):
    return luong.location_attention(scores.new_ones(1, 1), value, scores[:, None], **options)


def by_function(scores, value, **options):
    query, key = scores.new_ones(1, 1), scores[:, None]
    return luong.attention(query, key, value, score=lambda q, k: q @ k.mT, **options)


def by_concat(backend):
    def attend(scores, value, **options):
        v = 1.1 * scores.abs().max()[None]  # tanh stays well below 1
        query, key = scores.new_zeros(1, 1), torch.atanh(scores / v)[:, None]
        return luong.additive_attention(query, key, value, v, backend=backend, **options)

    return attend


def by_window(renormalize):
    """All keys are within the window; their distance makes factors of e^-2 and more."""

    def attend(scores, value, **options):
        query, key = scores.new_ones(1, 1), scores[:, None]
        window = luong.LocalPredictive(1, 1, M // 2, renormalize=renormalize).to(scores.dtype)
        for x in window.parameters():  # then the centre is that of the keys
            torch.nn.init.zeros_(x)
        score = luong.Dot()
        return luong.attention(query, key, value, score=score, window=window, **options)

    return attend


def by_step(scores, value, **options):
    attention = luong.Attention(luong.Dot())
    memory = attention.prepare(scores[None, :, None], value[None])
    found = attention.attend(scores.new_ones(1, 1, 1), memory, **options)
    return luong.Attended(found.context[0], None if found.weights is None else found.weights[0])


WAYS = {
    "dot": by_dot,
    "general": by_general,
    "location": by_location,
    "function": by_function,
    "concat-numba": by_concat("numba"),
    "concat-torch": by_concat("torch"),
    "concat-reference": by_concat("reference"),
    "local-m": by_window(True),
    "local-p": by_window(False),
    "step": by_step,
}
ways = pytest.mark.parametrize("attend", WAYS.values(), ids=WAYS)


def assert_no_denormal(x, least):
    """Fail on a denormal number; the ordinary ones reach down to `least` at least."""
    size, normal = x.abs(), torch.finfo(x.dtype).smallest_normal
    assert not ((size > 0) & (size < normal)).any()
    assert (size >= normal).sum() > M / 2
    assert size[size > 0].min() < least


@ways
@dtypes
def test_no_weight_is_denormal(attend, dtype):
    scores, normal = spread(dtype), torch.finfo(dtype).smallest_normal
    exact = torch.softmax(scores.double(), -1) if dtype == torch.float32 else torch.exp(scores)
    assert ((exact > 0) & (exact < normal)).any()
    least = 1e5 * normal
    assert_no_denormal(attend(scores, torch.eye(M, dtype=dtype)).context, least)
    found = attend(scores, torch.eye(M, dtype=dtype), need_weights=True)
    assert_no_denormal(found.weights, least)
    assert_no_denormal(found.context, least)


@ways
@dtypes
def test_values_are_given_no_denormal_gradient_by_a_weight(attend, dtype):
    scores = spread(dtype).requires_grad_()
    value = torch.eye(M, dtype=dtype).requires_grad_()
    attend(scores, value).context.sum().backward()
    assert value.grad is not None
    assert_no_denormal(value.grad[:, 0], 1e5 * torch.finfo(dtype).smallest_normal)


@pytest.mark.parametrize("attend", [by_dot, by_concat("numba")], ids=["dot", "concat"])
@dtypes
def test_no_gradient_of_a_score_is_denormal(monkeypatch, attend, dtype):
    monkeypatch.setattr(dot, "_SMALL", 0)  # our own backward pass, for a call as small as this too
    scores = spread(dtype).requires_grad_()
    value = torch.linspace(1, 2, M, dtype=dtype)[:, None]
    attend(scores, value).context.sum().mul(1e-3).backward()
    exact = torch.softmax(scores.detach(), -1)
    normal = torch.finfo(dtype).smallest_normal
    assert ((1e-3 * exact < normal) & (exact >= normal)).any()
    assert_no_denormal(scores.grad, 1e5 * normal)
