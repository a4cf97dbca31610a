"""Compiled kernels for the keys' exponentials, scores and softmax. Each does tasks start..stop.

With p = exp(-2a) and B = exp(2b), computed once per query and once per key,

    tanh(a + b) = (B - p) / (B + p),

so that the loop over n x m x d holds additions, multiply-adds and half a division: two features
share one. Memory holds B - kappa and p - kappa. Where the keys of a source are near each other in a
feature, kappa is 1 and the feature is counted from their middle, so that the numerator does not
cancel; elsewhere kappa is 0.
"""

from __future__ import annotations

import numpy as np

from luong.kernels.elementary import as_, clamp, exp, flush, limits, reduce, scratch, tanh
from luong.kernels.jit import exact, fast_inline, inline

PAD = 32  # features are padded to whole pairs of vectors of 16
TILE = 4  # queries of a task, which are scored together


@fast_inline
def _widen(row, low, high, odd):
    """Update minima and maxima by a row; return `odd`, or NaN if the row is not finite."""
    for e in range(len(row)):
        low[e] = row[e] if row[e] < low[e] else low[e]
        high[e] = row[e] if row[e] > high[e] else high[e]
        odd += row[e] - row[e]
    return odd


@exact
def prepare(b, keys, count, beta, frame, direct, start, stop):
    """Write beta = exp(2(b - centre)) - kappa; a task is a source.

    `frame` receives kappa and centre of each feature. Where all keys lie within 1 of each other,
    kappa is 1 and centre their middle, so that nothing cancels; elsewhere both are 0. `direct` is
    set for a source whose quotient could overflow, or that is not finite.
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
            limit, one = limits(low[e]).key, as_(1, low[e])
            near = high[e] - low[e] <= one
            if max(-low[e], high[e]) > limit and not near:
                direct[i] = True
            frame[i, 0, e] = one if near else zero
            frame[i, 1, e] = low[e] + (high[e] - low[e]) * as_(0.5, one) if near else zero
        kappa, centre = frame[i, 0], frame[i, 1]
        for j in keys[i, : count[i]]:
            row, out = b[i, j], beta[i, j]
            for e in range(d):
                x = clamp(row[e] - centre[e], limits(row[e]).key)
                s, y = reduce(x + x)
                out[e] = s * y + (s - kappa[e])
            out[d:] = 0
        for j in keys[i, count[i] :]:  # never used, but the same every time
            beta[i, j] = 0


@inline
def unit(v, width):
    """Return v / scale, padded to `width`, the scale max |v|, and whether v is not finite.

    v = 1e30 is not to overflow inside the quotient. The scale is 1 where v is 0 or not finite.
    """
    row, scale, odd = scratch(1, width, v)[0], as_(0, v[0]), as_(0, v[0])
    for e in range(len(v)):
        odd += v[e] - v[e]
        scale = abs(v[e]) if abs(v[e]) > scale else scale
    if odd != 0 or scale == 0:
        scale = as_(1, v[0])
    for e in range(len(v)):
        row[e] = v[e] / scale
    row[len(v) :] = as_(0, v[0])
    return row, scale, odd != 0


@inline
def query_terms(a, limit, kappa, centre, minus, plus):
    """Write minus = p - kappa, plus = p + kappa: B - p = beta - minus, B + p = beta + plus."""
    for e in range(len(a)):
        x = clamp(a[e] + centre[e], limit)
        s, y = reduce(-(x + x))
        minus[e] = s * y + (s - kappa[e])
        plus[e] = s * y + (s + kappa[e])
    for e in range(len(a), len(minus)):
        minus[e] = as_(0, limit)
        plus[e] = as_(2, limit)


@fast_inline
def _score_four_queries(beta, v, w, plus):
    """Return the scores of four queries (w = v minus) with one key."""
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
def score_two_keys(b0, b1, v, w, plus):
    """Return the scores of one query (w = v minus) with two keys."""
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
def score_plainly(a, b, v):
    """Return the score of one query with one key, by a tanh for each feature."""
    s = as_(0, v[0])
    for e in range(len(a)):
        s += v[e] * tanh(a[e] + b[e])[0]
    return s


@exact
def _softmax(row, top):
    """Turn scores into weights, in place; -inf marks a position that is not attended."""
    for j in range(len(row)):
        row[j] = exp(row[j] - top)
    total = _sum(row)
    for j in range(len(row)):  # a zero stays zero even where the total is NaN
        row[j] = flush(row[j] / total) if row[j] != 0 else row[j]


@fast_inline
def _sum(row):
    total = as_(0, row[0])
    for j in range(len(row)):
        total += row[j]
    return total


@inline
def _put(out, top, r, j, score):
    """Write a score, and keep the largest of each row in `top`."""
    out[r, j] = score
    if score > top[r]:
        top[r] = score


@inline
def _score_each_plainly(a, b, v, scale, live, seen, strides, tile, top):
    """Score the queries of a tile with all keys, by a tanh for each feature."""
    for k in range(len(tile)):
        for j in live:
            if seen[k * strides[1] + j * strides[2]]:
                _put(tile, top, k, j, score_plainly(a[k], b[j], v) * scale)


@inline
def _score_all_four(beta, v, w, plus, scale, live, seen, strides, tile, top):
    """Score the four queries of a tile with all keys, one key at a time."""
    for j in live:
        at = j * strides[2]
        m0, m1 = seen[at], seen[at + strides[1]]
        m2, m3 = seen[at + 2 * strides[1]], seen[at + 3 * strides[1]]
        if m0 or m1 or m2 or m3:
            s0, s1, s2, s3 = _score_four_queries(beta[j], v, w, plus)
            if m0:
                _put(tile, top, 0, j, s0 * scale)
            if m1:
                _put(tile, top, 1, j, s1 * scale)
            if m2:
                _put(tile, top, 2, j, s2 * scale)
            if m3:
                _put(tile, top, 3, j, s3 * scale)


@inline
def _score_one_by_one(beta, v, w, plus, scale, live, seen, strides, tile, top):
    """Score the queries of a tile of fewer than four with all keys, two keys at a time."""
    for k in range(len(tile)):
        for t in range(0, len(live), 2):
            j0, j1 = live[t], live[min(t + 1, len(live) - 1)]
            m0 = seen[k * strides[1] + j0 * strides[2]]
            m1 = seen[k * strides[1] + j1 * strides[2]]
            if m0 or m1:
                s0, s1 = score_two_keys(beta[j0], beta[j1], v, w[k], plus[k])
                if m0:
                    _put(tile, top, k, j0, s0 * scale)
                if m1:
                    _put(tile, top, k, j1, s1 * scale)


@inline
def _softmax_each(live, seen, strides, tile, top):
    """Turn the scores of a tile into weights."""
    for k in range(len(tile)):
        if top[k] > -np.inf:
            _softmax(tile[k], top[k])
        else:  # nothing attended: zeros; only NaN and -inf attended: NaN
            tile[k] = 0
            for j in live:
                if seen[k * strides[1] + j * strides[2]]:
                    tile[k, j] = np.nan


@exact
def score(
    a,
    b,
    v,
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
    """Write scores or weights of queries first, first + 1, ... into out (batch, q, m).

    A task is a tile of queries.
    """
    q, width = out.shape[1], beta.shape[2]
    tiles = (q + TILE - 1) // TILE
    limit = limits(v[0]).query
    v, scale, odd = unit(v, width)
    w, plus, top = scratch(TILE, width, a), scratch(TILE, width, a), np.empty(TILE, a.dtype)
    for task in range(start, stop):
        i, r = task // tiles, task % tiles * TILE
        rows, live = min(TILE, q - r), keys[i, : count[i]]
        tile, queries = out[i, r : r + rows], a[i, first + r : first + r + rows]
        seen = mask[i * strides[0] + (first + r) * strides[1] :]
        tile[:] = -np.inf
        top[:] = -np.inf
        if direct[i] or odd:
            _score_each_plainly(queries, b[i], v, scale, live, seen, strides, tile, top)
        else:
            for k in range(rows):
                query_terms(queries[k], limit, frame[i, 0], frame[i, 1], w[k], plus[k])
                for e in range(width):
                    w[k, e] *= v[e]
            if rows == TILE:
                _score_all_four(beta[i], v, w, plus, scale, live, seen, strides, tile, top)
            else:
                _score_one_by_one(beta[i], v, w, plus, scale, live, seen, strides, tile, top)
        if softmax:
            _softmax_each(live, seen, strides, tile, top)
