"""Compiled: additive scores of neighbouring keys, and their gradients. See forward, backward."""

from __future__ import annotations

from luong.kernels.additive.backward import _add, _far, _scale
from luong.kernels.additive.elementary import as_, exact, inline, limits, scratch, tanh
from luong.kernels.additive.forward import _plain, _two_keys, transform

CHUNK = 64


@exact
def score(a, b, v, scale, beta, frame, direct, first, out, start, stop):
    """Scores (b, n, w) of each query with keys first, first + 1, ...; a task is a query."""
    n, w, width = out.shape[1], out.shape[2], beta.shape[2]
    limit, one = limits(v[0])[1], as_(1, v[0])
    memory = scratch(2, width, a)
    numerator, plus = memory[0], memory[1]
    for task in range(start, stop):
        i, r = task // n, task % n
        j = first[i, r]
        if direct[i]:
            for k in range(w):
                out[i, r, k] = _plain(a[i, r], b[i, j + k], v) * scale
            continue
        transform(a[i, r], limit, frame[i, 0], frame[i, 1], one, numerator, plus)
        for e in range(width):
            numerator[e] *= v[e]
        for k in range(0, w, 2):
            other = min(k + 1, w - 1)
            s0, s1 = _two_keys(beta[i, j + k], beta[i, j + other], v, numerator, plus)
            out[i, r, k] = s0 * scale
            out[i, r, other] = s1 * scale


@inline
def _row(minus, p, u_sum, h_sum, kappa, beta, g, out):
    """One key: out += u, the sum of u and of h (see backward.py)."""
    one = as_(1, g)
    for e in range(len(out)):
        b = beta[e] + kappa[e]
        i = one / (b + p[e])
        h = g * i
        u = h * p[e] * (b * i)
        h_sum[e] += h * (beta[e] - minus[e])
        u_sum[e] += u
        out[e] += u


@inline
def _plain_row(a, b, g, u_sum, h_sum, out):
    for e in range(len(a)):
        t, slope = tanh(a[e] + b[e])
        u = g * (slope * as_(0.25, g))
        h_sum[e] += g * t
        u_sum[e] += u
        out[e] += u


@exact
def gradients(a, b, v, beta, frame, direct, first, g, ga, gb, gv, start, stop):
    """A task is a chunk of features of one source. gb holds zeros and is added to, as is gv."""
    n, w, d = g.shape[1], g.shape[2], a.shape[2]
    chunks = (d + CHUNK - 1) // CHUNK
    limit, none = limits(v[0])[2], as_(0, v[0])
    memory = scratch(4, CHUNK, a)
    minus, p, u_sum, h_sum = memory[0], memory[1], memory[2], memory[3]
    for task in range(start, stop):
        i, c = task // chunks, task % chunks * CHUNK
        size = min(CHUNK, d - c)
        vc, kappa, centre = v[c : c + size], frame[i, 0, c:], frame[i, 1, c:]
        h_sum[:] = none
        for r in range(n):
            row, j = a[i, r, c : c + size], first[i, r]
            u_sum[:] = none
            plain = direct[i] or _far(row, limit)
            if not plain:
                transform(row, limit, kappa, centre, none, minus, p)
            for k in range(w):
                gk, out = g[i, r, k], gb[i, j + k, c : c + size]
                if gk == 0:  # not attended, or of no weight: what its key holds is not looked at
                    continue
                if plain:
                    _plain_row(row, b[i, j + k, c : c + size], gk, u_sum, h_sum, out)
                else:
                    _row(minus, p, u_sum, h_sum, kappa, beta[i, j + k, c : c + size], gk, out)
            _scale(vc, u_sum, ga[i, r, c : c + size])
        for j in range(b.shape[1]):
            _scale(vc, gb[i, j, c : c + size], gb[i, j, c : c + size])
        _add(gv[i, c : c + size], h_sum, gv[i, c : c + size])
