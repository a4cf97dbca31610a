"""Compiled: the keys' exponentials, scores, softmax. Each kernel does tasks start..stop of a list.

With p = exp(-2a) and B = exp(2b), computed once per query and once per key,

    tanh(a + b) = (B - p) / (B + p),

so that the loop over n x m x d holds additions, multiply-adds and half a division: two features
share one. Stored are B - kappa and p - kappa, kappa = 1 where the keys of a source are near each
other in a feature, which is then counted from their middle: the numerator does not cancel.
"""

from __future__ import annotations

import numpy as np

from luong.kernels.additive.elementary import (
    as_,
    clamp,
    exact,
    exp,
    fast_inline,
    inline,
    limits,
    reduce,
    scratch,
    tanh,
)

PAD = 32  # features are padded to whole pairs of vectors of 16


@fast_inline
def _widen(row, low, high, odd):
    """Take row into minima and maxima; odd becomes NaN where row is not finite."""
    for e in range(len(row)):
        low[e] = row[e] if row[e] < low[e] else low[e]
        high[e] = row[e] if row[e] > high[e] else high[e]
        odd += row[e] - row[e]
    return odd


@exact
def prepare(b, keys, count, beta, frame, direct, start, stop):
    """beta = exp(2(b - centre)) - kappa, by feature of a source: frame is (kappa, centre).

    Where all keys lie within 1 of each other, kappa is 1 and centre their middle, so that nothing
    cancels; else both are 0. `direct` is set where there the quotient could overflow, and for what
    is not finite.
    """
    d, zero = b.shape[2], beta.dtype.type(0)
    for i in range(start, stop):
        low, high = np.full(d, np.inf, b.dtype), np.full(d, -np.inf, b.dtype)
        for j in keys[i, : count[i]]:
            if _widen(b[i, j], low, high, zero) != 0:
                direct[i] = True
        frame[i, 0] = 1
        frame[i, 1] = 0
        for e in range(d if count[i] else 0):
            limit, one = limits(low[e])[0], as_(1, low[e])
            near = high[e] - low[e] <= one
            if max(-low[e], high[e]) > limit and not near:
                direct[i] = True
            frame[i, 0, e] = one if near else zero
            frame[i, 1, e] = low[e] + (high[e] - low[e]) * as_(0.5, one) if near else zero
        kappa, centre = frame[i, 0], frame[i, 1]
        for j in keys[i, : count[i]]:
            row, out = b[i, j], beta[i, j]
            for e in range(d):
                x = clamp(row[e] - centre[e], limits(row[e])[0])
                s, y = reduce(x + x)
                out[e] = s * y + (s - kappa[e])
            out[d:] = 0
        for j in keys[i, count[i] :]:  # read by nobody, but the same every time
            beta[i, j] = 0


@inline
def _query(a, limit, kappa, centre, minus, plus):
    """minus = p - kappa, plus = p + kappa: B - p = beta - minus, B + p = beta + plus."""
    for e in range(len(a)):
        x = clamp(a[e] + centre[e], limit)
        s, y = reduce(-(x + x))
        minus[e] = s * y + (s - kappa[e])
        plus[e] = s * y + (s + kappa[e])
    for e in range(len(a), len(minus)):
        minus[e] = as_(0, limit)
        plus[e] = as_(2, limit)


@fast_inline
def _four_queries(beta, v, w, plus):
    """Scores of four queries (w = v minus) with one key."""
    h = len(v) // 2
    s0 = s1 = s2 = s3 = as_(0, v[0])
    for e in range(h):
        f = e + h
        t, u = v[e] * beta[e], v[f] * beta[f]
        x, y = beta[e] + plus[0, e], beta[f] + plus[0, f]
        s0 += ((t - w[0, e]) * y + (u - w[0, f]) * x) / (x * y)
        x, y = beta[e] + plus[1, e], beta[f] + plus[1, f]
        s1 += ((t - w[1, e]) * y + (u - w[1, f]) * x) / (x * y)
        x, y = beta[e] + plus[2, e], beta[f] + plus[2, f]
        s2 += ((t - w[2, e]) * y + (u - w[2, f]) * x) / (x * y)
        x, y = beta[e] + plus[3, e], beta[f] + plus[3, f]
        s3 += ((t - w[3, e]) * y + (u - w[3, f]) * x) / (x * y)
    return s0, s1, s2, s3


@fast_inline
def _two_keys(b0, b1, v, w, plus):
    """Scores of one query with two keys."""
    h = len(v) // 2
    s0 = s1 = as_(0, v[0])
    for e in range(h):
        f = e + h
        x, y = b0[e] + plus[e], b0[f] + plus[f]
        s0 += ((v[e] * b0[e] - w[e]) * y + (v[f] * b0[f] - w[f]) * x) / (x * y)
        x, y = b1[e] + plus[e], b1[f] + plus[f]
        s1 += ((v[e] * b1[e] - w[e]) * y + (v[f] * b1[f] - w[f]) * x) / (x * y)
    return s0, s1


@fast_inline
def _plain(a, b, v):
    s = as_(0, v[0])
    for e in range(len(a)):
        s += v[e] * tanh(a[e] + b[e])[0]
    return s


@exact
def _softmax(row, top):
    """In place; -inf is a position that is not attended."""
    for j in range(len(row)):
        row[j] = exp(row[j] - top)
    total = _sum(row)
    for j in range(len(row)):  # a zero stays one even where the total is NaN
        row[j] = row[j] / total if row[j] != 0 else row[j]


@fast_inline
def _sum(row):
    total = as_(0, row[0])
    for j in range(len(row)):
        total += row[j]
    return total


@inline
def _put(out, top, r, j, score):
    out[r, j] = score
    if score > top[r]:
        top[r] = score


@exact
def score(
    a,
    b,
    v,
    scale,
    beta,
    frame,
    direct,
    keys,
    count,
    mask,
    strides,
    first,
    out,
    softmax,
    start,
    stop,
):
    """Scores or weights of queries first, first + 1, ... in out (batch, q, m); a task is four."""
    q = out.shape[1]
    width = beta.shape[2]
    tiles = (q + 3) // 4
    limit = limits(v[0])[1]
    w, plus, top = scratch(4, width, a), scratch(4, width, a), np.empty(4, a.dtype)
    for task in range(start, stop):
        i, r = task // tiles, task % tiles * 4
        rows, live = min(4, q - r), keys[i, : count[i]]
        tile = out[i, r : r + rows]
        seen = mask[i * strides[0] + (first + r) * strides[1] :]
        tile[:] = -np.inf
        top[:] = -np.inf
        if direct[i]:
            for k in range(rows):
                for j in live:
                    if seen[k * strides[1] + j * strides[2]]:
                        _put(tile, top, k, j, _plain(a[i, first + r + k], b[i, j], v) * scale)
        else:
            for k in range(rows):
                _query(a[i, first + r + k], limit, frame[i, 0], frame[i, 1], w[k], plus[k])
                for e in range(width):
                    w[k, e] *= v[e]
            if rows == 4:
                for j in live:
                    at = j * strides[2]
                    m0, m1 = seen[at], seen[at + strides[1]]
                    m2, m3 = seen[at + 2 * strides[1]], seen[at + 3 * strides[1]]
                    if m0 or m1 or m2 or m3:
                        s0, s1, s2, s3 = _four_queries(beta[i, j], v, w, plus)
                        if m0:
                            _put(tile, top, 0, j, s0 * scale)
                        if m1:
                            _put(tile, top, 1, j, s1 * scale)
                        if m2:
                            _put(tile, top, 2, j, s2 * scale)
                        if m3:
                            _put(tile, top, 3, j, s3 * scale)
            else:
                for k in range(rows):
                    for t in range(0, len(live), 2):
                        j0, j1 = live[t], live[min(t + 1, len(live) - 1)]
                        m0 = seen[k * strides[1] + j0 * strides[2]]
                        m1 = seen[k * strides[1] + j1 * strides[2]]
                        if m0 or m1:
                            s0, s1 = _two_keys(beta[i, j0], beta[i, j1], v, w[k], plus[k])
                            if m0:
                                _put(tile, top, k, j0, s0 * scale)
                            if m1:
                                _put(tile, top, k, j1, s1 * scale)
        if softmax:
            for k in range(rows):
                if top[k] > -np.inf:
                    _softmax(tile[k], top[k])
                else:  # nothing attended: zeros; nothing but NaN and -inf attended: NaN
                    tile[k] = 0
                    for j in live:
                        if seen[k * strides[1] + j * strides[2]]:
                            tile[k, j] = np.nan
