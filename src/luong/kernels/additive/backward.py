"""Compiled: gradients of the scores. A task is a chunk of features of one source.

With I = 1 / (B + p), h = g (B - p) I = g tanh and u = g p B I^2 = g (1 - tanh^2) / 4, which does
not cancel. Scratch holds a row per key (beta, B, the sum of u) and one for four queries (p - kappa,
p and the sum of u four times each, then the sum of h). Distances inside a scratch row are
constants: LLVM then vectorises without alias checks, which it gives up on for so many arrays.
"""

from __future__ import annotations

from luong.kernels.additive.elementary import (
    as_,
    exact,
    fast_inline,
    inline,
    limits,
    scratch,
    tanh,
)
from luong.kernels.additive.forward import transform

CHUNK = 64


@inline
def _copy(x, out):
    for e in range(len(x)):
        out[e] = x[e]
    for e in range(len(x), len(out)):
        out[e] = as_(0, out[e])


@inline
def _add(x, y, out):
    for e in range(len(x)):
        out[e] = x[e] + y[e]


@inline
def _scale(v, x, out):
    """out = 4 v x"""
    four = as_(4, v[0])
    for e in range(len(out)):
        out[e] = v[e] * (four * x[e])


@inline
def _scale_add(v, x, out):
    four = as_(4, v[0])
    for e in range(len(out)):
        out[e] += v[e] * (four * x[e])


_P, _U, _H = 4 * CHUNK, 8 * CHUNK, 12 * CHUNK


@inline
def _four_rows(q, k, g0, g1, g2, g3):
    one = as_(1, g0)
    for e in range(CHUNK):
        beta, b = k[e], k[CHUNK + e]
        p0, p1, p2, p3 = q[_P + e], q[_P + 64 + e], q[_P + 128 + e], q[_P + 192 + e]
        i0, i1, i2, i3 = one / (b + p0), one / (b + p1), one / (b + p2), one / (b + p3)
        h0, h1, h2, h3 = g0 * i0, g1 * i1, g2 * i2, g3 * i3
        q[_H + e] += (
            h0 * (beta - q[e])
            + h1 * (beta - q[64 + e])
            + h2 * (beta - q[128 + e])
            + h3 * (beta - q[192 + e])
        )
        u0, u1, u2, u3 = (
            h0 * p0 * (b * i0),
            h1 * p1 * (b * i1),
            h2 * p2 * (b * i2),
            h3 * p3 * (b * i3),
        )
        q[_U + e] += u0
        q[_U + 64 + e] += u1
        q[_U + 128 + e] += u2
        q[_U + 192 + e] += u3
        k[2 * CHUNK + e] += (u0 + u1) + (u2 + u3)


@inline
def _one_row(q, k, g):
    one = as_(1, g)
    for e in range(CHUNK):
        beta, b, p = k[e], k[CHUNK + e], q[_P + e]
        i = one / (b + p)
        h = g * i
        u = h * p * (b * i)
        q[_H + e] += h * (beta - q[e])
        q[_U + e] += u
        k[2 * CHUNK + e] += u


@inline
def _plain_row(a, b, g, q, k):
    for e in range(len(a)):
        t, slope = tanh(a[e] + b[e])
        u = g * (slope * as_(0.25, g))
        q[_H + e] += g * t
        q[_U + e] += u
        k[2 * CHUNK + e] += u


@inline
def _only_row(q, kappa, beta, g, v, out):
    """The only query: the key's gradient is complete, and no scratch row is needed."""
    one, four = as_(1, g), as_(4, g)
    for e in range(len(out)):
        b, p = beta[e] + kappa[e], q[_P + e]
        i = one / (b + p)
        h = g * i
        u = h * p * (b * i)
        q[_H + e] += h * (beta[e] - q[e])
        q[_U + e] += u
        out[e] = v[e] * (four * u)


@fast_inline
def _far(row, limit):
    """Something is beyond the limit, or not finite."""
    far = False
    for e in range(len(row)):
        far |= not abs(row[e]) <= limit
    return far


@exact
def gradients(a, b, v, beta, frame, direct, keys, count, first, g, ga, gb, gv, start, stop):
    """Gradients from g (batch, q, m) = dL/dscore, 0 where not attended.

    A task is a chunk of features of one source: no two tasks write to the same place.
    Writes rows first, first + 1, ... of ga; writes gb where first is 0, else adds; adds to gv
    (batch, d).
    """
    q, d = g.shape[1], a.shape[2]
    chunks = (d + CHUNK - 1) // CHUNK
    limit, none = limits(v[0])[2], as_(0, v[0])
    queries, sources = scratch(1, 13 * CHUNK, a)[0], scratch(g.shape[2], 3 * CHUNK, a)
    for task in range(start, stop):
        i, c = task // chunks, task % chunks * CHUNK
        size, live = min(CHUNK, d - c), keys[i, : count[i]]
        queries[:] = none
        vc = v[c : c + size]
        kappa, centre = frame[i, 0], frame[i, 1]
        if q == 1 and first == 0 and not (direct[i] or _far(a[i, 0, c : c + size], limit)):
            row, kc = a[i, 0, c : c + size], kappa[c : c + CHUNK]
            transform(row, limit, kc, centre[c:], none, queries[:CHUNK], queries[_P : _P + CHUNK])
            for j in live:
                _only_row(
                    queries, kc, beta[i, j, c : c + size], g[i, 0, j], vc, gb[i, j, c : c + size]
                )
            for j in keys[i, count[i] :]:
                gb[i, j, c : c + size] = none
            _scale(vc, queries[_U:], ga[i, 0, c : c + size])
            _add(gv[i, c : c + size], queries[_H:], gv[i, c : c + size])
            continue
        for t in range(len(live)):
            row, j = sources[t], live[t]
            _copy(beta[i, j, c : c + size], row[:CHUNK])
            _add(row[:CHUNK], kappa[c : c + CHUNK], row[CHUNK : 2 * CHUNK])
            row[2 * CHUNK :] = none
        r = 0
        while r < q:
            # A row that takes the plain path stays by itself: 0 times NaN is not 0.
            rows, plain = 4 if r + 4 <= q else 1, direct[i]
            for k in range(rows):
                if direct[i] or _far(a[i, first + r + k, c : c + size], limit):
                    rows, plain = (1, True) if k == 0 else (1, plain)
            queries[_U:_H] = none
            if not plain:
                for k in range(rows):
                    minus = queries[k * CHUNK : (k + 1) * CHUNK]
                    p = queries[_P + k * CHUNK : _P + (k + 1) * CHUNK]
                    transform(
                        a[i, first + r + k, c : c + size],
                        limit,
                        kappa[c:],
                        centre[c:],
                        none,
                        minus,
                        p,
                    )
            if rows == 4:
                for t in range(len(live)):
                    j = live[t]
                    g0, g1, g2, g3 = g[i, r, j], g[i, r + 1, j], g[i, r + 2, j], g[i, r + 3, j]
                    if g0 != 0 or g1 != 0 or g2 != 0 or g3 != 0:
                        _four_rows(queries, sources[t], g0, g1, g2, g3)
            else:
                for t in range(len(live)):
                    gt = g[i, r, live[t]]
                    if gt != 0 and plain:
                        query, key = a[i, first + r, c : c + size], b[i, live[t], c : c + size]
                        _plain_row(query, key, gt, queries, sources[t])
                    elif gt != 0:
                        _one_row(queries, sources[t], gt)
            for k in range(rows):
                _scale(vc, queries[_U + k * CHUNK :], ga[i, first + r + k, c : c + size])
            r += rows
        for t in range(len(live)):
            if first == 0:
                _scale(vc, sources[t, 2 * CHUNK :], gb[i, live[t], c : c + size])
            else:
                _scale_add(vc, sources[t, 2 * CHUNK :], gb[i, live[t], c : c + size])
        if first == 0:
            for j in keys[i, count[i] :]:
                gb[i, j, c : c + size] = none
        _add(gv[i, c : c + size], queries[_H:], gv[i, c : c + size])
