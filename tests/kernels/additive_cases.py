"""Inputs of additive attention, its true results, and what its results are held to."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

import luong
from rounding import assert_rounded, wide

backends = pytest.mark.parametrize("backend", ["numba", "torch"])
every_backend = pytest.mark.parametrize("backend", ["numba", "torch", "reference"])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])

INF, NAN = float("inf"), float("nan")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def inputs(n=5, m=7, d=19, d_v=3, batch=3, dtype=torch.float64, seed=0) -> list[Tensor]:
    """query, key, value, v; sum |v| is about 2."""
    shapes = ((batch, n, d), (batch, m, d), (batch, m, d_v), (d,))
    found = [normal(*shape, seed=seed + i, dtype=dtype) for i, shape in enumerate(shapes)]
    return [*found[:3], found[3] * (2 / found[3].abs().sum())]


# Exactness: rounding.py has the rule. What is true is in numpy's long double.


def eager_score(query: Tensor, key: Tensor, v: Tensor) -> Tensor:
    return (torch.tanh(query[:, :, None] + key[:, None]) * v).sum(-1)


def true_scores(a, b, v, g):
    """Scores and gradients of query, key and v from g = dL/dscore; and the scale of each."""
    x = a[:, :, None] + b[:, None]
    t = np.tanh(x)
    u = g[..., None] * v * (4 * np.exp(-2 * abs(x)) / (1 + np.exp(-2 * abs(x))) ** 2)
    h = g[..., None] * t
    true = (t * v).sum(-1), u.sum(2), u.sum(1), h.sum((0, 1, 2))
    u, h = abs(u), abs(h)
    return true, (abs(v).sum(), u.sum(2), u.sum(1), h.sum((0, 1, 2)))


def true_attention(a, b, value, v, live, grad):
    """The context and the gradients of query, key, value and v; and the scale of each."""
    s = np.where(live, (np.tanh(a[:, :, None] + b[:, None]) * v).sum(-1), -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)

    def back(grad, value, sign):
        dp = grad @ value.swapaxes(1, 2)
        return p * (dp - sign * (p * dp).sum(-1, keepdims=True))

    (_, da, db, dv), _ = true_scores(a, b, v, back(grad, value, 1))
    _, (_, sa, sb, sv) = true_scores(a, b, v, back(abs(grad), abs(value), -1))
    turned = p.swapaxes(1, 2)
    scales = (p @ abs(value), sa, sb, turned @ abs(grad), sv)
    return (p @ value, da, db, turned @ grad, dv), scales


def gradients(function, tensors, given) -> list[Tensor]:
    """The result of the function and its gradients, from `given`."""
    leaves = [x.clone().requires_grad_() for x in tensors]
    result = function(*leaves)
    return [result.detach(), *torch.autograd.grad(result, leaves, given)]


def assert_scores_rounded(query, key, v, backend, where="", g_scale=1.0) -> None:
    given = normal(query.shape[0], query.shape[1], key.shape[1], seed=9, dtype=v.dtype) * g_scale
    ours = gradients(lambda *x: luong.additive_score(*x, backend=backend), (query, key, v), given)
    plain = gradients(eager_score, (query, key, v), given)
    true, scales = true_scores(*map(wide, (query, key, v, given)))
    assert_rounded(ours, plain, true, scales, where)


def assert_attention_rounded(query, key, value, v, backend, lengths=None, where="") -> None:
    live = torch.ones(query.shape[0], query.shape[1], key.shape[1], dtype=torch.bool)
    if lengths is not None:
        live &= torch.arange(key.shape[1]) < lengths[:, None, None]
    given = normal(*query.shape[:2], value.shape[2], seed=9, dtype=v.dtype)

    def ours(*x):
        return luong.additive_attention(*x, lengths=lengths, backend=backend).context

    def plain(query, key, value, v):
        return eager_score(query, key, v).masked_fill(~live, -INF).softmax(-1) @ value

    x = query, key, value, v
    q, k, s, w = (wide(each) for each in x)
    true, scales = true_attention(q, k, s, w, live.numpy(), wide(given))
    assert_rounded(gradients(ours, x, given), gradients(plain, x, given), true, scales, where)


SHAPES = ((1, 1, 1), (1, 7, 2), (7, 1, 33), (5, 11, 64), (6, 9, 131), (4, 3, 1))  # n, m, d
HUGE = {torch.float32: 1e30, torch.float64: 1e300}
DENORMAL = {torch.float32: 1e-40, torch.float64: 1e-310}


def run(code: str, *arguments: str, **environment: str) -> str:
    """What a fresh process prints; warnings are errors in it."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
