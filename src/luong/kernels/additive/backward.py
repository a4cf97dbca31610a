"""Compiled: gradients of the scores. A task is a chunk of features of one source.

With D = B + p and z = g / D^2, for every query and key,

    g (1 - tanh^2) = 4 z B p        g tanh = z (B^2 - kappa^2) - z (p^2 - kappa^2),

so that three sums make up all gradients: of z B over the keys, of z p over the queries, of z over
either. What depends on the query alone or the key alone is multiplied in after summing: the loop
holds one division, and three multiply-adds and a quarter. Nothing cancels, as B^2 - kappa^2 is
computed as beta (B + kappa). B and p are scaled by a constant, for the range of D^2.

Scratch holds a row per key (B, B^2 - kappa^2, the sum of z p) and one for four queries (p,
p^2 - kappa^2, the sums of z B and of z four times each, then the sum for v). Distances inside a
scratch row are constants: LLVM then vectorises without alias checks, which it gives up on for so
many arrays.
"""

from __future__ import annotations

from luong.kernels.additive.elementary import (
    as_,
    clamp,
    exact,
    fast_inline,
    inline,
    limits,
    reduce,
    scratch,
    tanh,
)

CHUNK = 64
_M, _U, _Z, _H = 4 * CHUNK, 8 * CHUNK, 12 * CHUNK, 16 * CHUNK


@fast_inline
def _has_nan(row):
    found = False
    for e in range(len(row)):
        found |= row[e] != row[e]
    return found


@inline
def _query(a, kappa, centre, q):
    """p and p^2 - kappa^2, scaled. Where tanh is 1 to rounding, p is 0 or so large that z is 0:
    its slope counts as 0."""
    _, limit, _, unit, huge = limits(q[0])
    for e in range(len(a)):
        x, k = a[e] + centre[e], unit * kappa[e]
        y = clamp(x, limit)
        s, y = reduce(-(y + y))
        s *= unit
        minus, plus = s * y + (s - k), s * y + (s + k)
        q[e] = huge if x < -limit else (s - s if x > limit else s * y + s)
        q[_M + e] = -(k * k) if x > limit else minus * plus
    for e in range(len(a), CHUNK):
        q[e] = as_(1, limit)
        q[_M + e] = as_(0, limit)


@inline
def _key(beta, kappa, row):
    """B and B^2 - kappa^2, scaled, and no sum yet."""
    unit, none = limits(row[0])[3], as_(0, row[0])
    for e in range(len(beta)):
        b, k = unit * beta[e], unit * kappa[e]
        row[e] = b + k
        row[CHUNK + e] = b * (b + (k + k))
        row[2 * CHUNK + e] = none
    for e in range(len(beta), CHUNK):
        row[e] = none
        row[CHUNK + e] = none
        row[2 * CHUNK + e] = none


@inline
def _four_rows(q, k, g0, g1, g2, g3):
    for e in range(CHUNK):
        b = k[e]
        p0, p1, p2, p3 = q[e], q[64 + e], q[128 + e], q[192 + e]
        d0, d1, d2, d3 = b + p0, b + p1, b + p2, b + p3
        z0, z1, z2, z3 = g0 / (d0 * d0), g1 / (d1 * d1), g2 / (d2 * d2), g3 / (d3 * d3)
        q[_U + e] += z0 * b
        q[_U + 64 + e] += z1 * b
        q[_U + 128 + e] += z2 * b
        q[_U + 192 + e] += z3 * b
        q[_Z + e] += z0
        q[_Z + 64 + e] += z1
        q[_Z + 128 + e] += z2
        q[_Z + 192 + e] += z3
        k[2 * CHUNK + e] += (z0 * p0 + z1 * p1) + (z2 * p2 + z3 * p3)
        q[_H + e] += k[CHUNK + e] * ((z0 + z1) + (z2 + z3))


@inline
def _one_row(q, k, g):
    for e in range(CHUNK):
        b, p = k[e], q[e]
        z = g / ((b + p) * (b + p))
        q[_U + e] += z * b
        q[_Z + e] += z
        k[2 * CHUNK + e] += z * p
        q[_H + e] += k[CHUNK + e] * z


_K, _V = CHUNK, 2 * CHUNK  # for a single query, these places of the others are free


@inline
def _only_row(q, beta, g, out):
    """The only query: the key's gradient is complete, and no scratch row is needed."""
    unit, four = limits(g)[3], as_(4, g)
    for e in range(len(out)):
        c, k, p = unit * beta[e], q[_K + e], q[e]
        b = c + k
        z = g / ((b + p) * (b + p))
        q[_U + e] += z * b
        q[_Z + e] += z
        q[_H + e] += z * (c * (b + k))
        out[e] = q[_V + e] * ((four * b) * (z * p))


@inline
def _plain_row(a, b, g, q, k):
    """The sums where p and B are set to 1."""
    for e in range(len(a)):
        t, slope = tanh(a[e] + b[e])
        u = g * (slope * as_(0.25, g))
        q[_H + e] += g * t
        q[_U + e] += u
        k[2 * CHUNK + e] += u


@inline
def _finish_query(q, v, out):
    """The gradient of the first query of q."""
    four = as_(4, v[0])
    for e in range(len(out)):
        out[e] = v[e] * ((four * q[e]) * q[_U + e])


@inline
def _finish_v(q, total, h):
    """The query's part of v's gradient: -z (p^2 - kappa^2); -g where tanh is -1."""
    huge = limits(total)[4]
    for e in range(CHUNK):
        rest = q[_M + e] * q[_Z + e]
        h[e] -= total if q[e] == huge else rest


@inline
def _finish_key(k, v, add, out):
    four = as_(4, v[0])
    for e in range(len(out)):
        u = v[e] * ((four * k[e]) * k[2 * CHUNK + e])
        out[e] = out[e] + u if add else u


@inline
def _add(unit, x, out):
    for e in range(len(out)):
        out[e] += unit * x[e]


@exact
def gradients(a, b, v, beta, frame, direct, keys, count, first, g, unit, ga, gb, gv, start, stop):
    """Gradients from g (batch, q, m) = dL/dscore, 0 where not attended.

    A task is a chunk of features of one source: no two tasks write to the same place.
    Writes rows first, first + 1, ... of ga; writes gb where first is 0, else adds; adds to gv
    (batch, d). g is divided by `unit`, a power of two, which v has been multiplied by.
    """
    q, d = g.shape[1], a.shape[2]
    chunks = (d + CHUNK - 1) // CHUNK
    inverse, none = as_(1, unit) / unit, as_(0, unit)
    queries, sources = scratch(1, 17 * CHUNK, a)[0], scratch(g.shape[2], 3 * CHUNK, a)
    for task in range(start, stop):
        i, c = task // chunks, task % chunks * CHUNK
        size, live = min(CHUNK, d - c), keys[i, : count[i]]
        vc, kappa, centre = v[c : c + size], frame[i, 0, c : c + size], frame[i, 1, c : c + size]
        queries[_U:] = none
        for t in range(len(live)):
            if direct[i]:
                sources[t] = none
                sources[t, :CHUNK] = as_(1, unit)
            else:
                _key(beta[i, live[t], c : c + size], kappa, sources[t])
        r = 0
        while r < q:
            # A row that holds NaN stays by itself: 0 times NaN is not 0.
            rows = 4 if r + 4 <= q and not direct[i] else 1
            for k in range(rows):
                if _has_nan(a[i, first + r + k, c : c + size]):
                    rows = 1
            queries[_U:_H] = none
            s0 = s1 = s2 = s3 = none
            for k in range(rows):
                if direct[i]:
                    queries[:CHUNK] = as_(1, unit)
                    queries[_M : _M + CHUNK] = none
                else:
                    mine = queries[k * CHUNK :]
                    _query(a[i, first + r + k, c : c + size], kappa, centre, mine)
            if rows == 4:
                for t in range(len(live)):
                    j = live[t]
                    g0, g1 = g[i, r, j] * inverse, g[i, r + 1, j] * inverse
                    g2, g3 = g[i, r + 2, j] * inverse, g[i, r + 3, j] * inverse
                    if g0 != 0 or g1 != 0 or g2 != 0 or g3 != 0:
                        _four_rows(queries, sources[t], g0, g1, g2, g3)
                        s0 += g0
                        s1 += g1
                        s2 += g2
                        s3 += g3
            else:
                for t in range(len(live)):
                    gt = g[i, r, live[t]] * inverse
                    s0 += gt
                    if gt != 0 and direct[i]:
                        query, key = a[i, first + r, c : c + size], b[i, live[t], c : c + size]
                        _plain_row(query, key, gt, queries, sources[t])
                    elif gt != 0:
                        _one_row(queries, sources[t], gt)
            totals = (s0, s1, s2, s3)
            for k in range(rows):
                mine = queries[k * CHUNK :]
                _finish_query(mine, vc, ga[i, first + r + k, c : c + size])
                _finish_v(mine, totals[k], queries[_H:])
            r += rows
        for t in range(len(live)):
            _finish_key(sources[t], vc, first > 0, gb[i, live[t], c : c + size])
        if first == 0:
            for j in keys[i, count[i] :]:
                gb[i, j, c : c + size] = none
        _add(unit, queries[_H:], gv[i, c : c + size])


@exact
def step(a, v, beta, frame, keys, count, g, unit, ga, gb, gv, start, stop):
    """The same for a single query and sources none of which is `direct`; a task is a source.

    Keys' gradients are left out where gb has no rows.
    """
    d = a.shape[2]
    chunks = (d + CHUNK - 1) // CHUNK
    inverse, none, wanted = as_(1, unit) / unit, as_(0, unit), gb.shape[1] > 0
    unit_b = limits(unit)[3]
    queries, unused = scratch(chunks, 17 * CHUNK, a), scratch(1, CHUNK, a)[0]
    for i in range(start, stop):
        total = none
        for x in range(chunks):
            c = x * CHUNK
            q, end = queries[x], min(d, c + CHUNK)
            _query(a[i, 0, c:end], frame[i, 0, c:end], frame[i, 1, c:end], q)
            q[_U:] = none
            for e in range(end - c):
                q[_K + e] = unit_b * frame[i, 0, c + e]
                q[_V + e] = v[c + e]
        for t in range(g.shape[2]):
            j = keys[i, t]
            gt = g[i, 0, j] * inverse if t < count[i] else none
            total += gt
            for x in range(chunks if gt != 0 else 0):
                c = x * CHUNK
                end = min(d, c + CHUNK)
                out = gb[i, j, c:end] if wanted else unused[: end - c]
                _only_row(queries[x], beta[i, j, c:end], gt, out)
            if wanted and gt == 0:
                gb[i, j] = none
        for x in range(chunks):
            c = x * CHUNK
            q, end = queries[x], min(d, c + CHUNK)
            _finish_query(q, v[c:end], ga[i, 0, c:end])
            _finish_v(q, total, q[_H:])
            _add(unit, q[_H:], gv[i, c:end])


@fast_inline
def _dot(x, y):
    total = as_(0, x[0])
    for j in range(len(x)):
        total += x[j] * y[j]
    return total


@exact
def through_softmax(weights, grad, masked, start, stop):
    """dL/dscore from dL/dweight, in place; 0 where masked, whatever the row holds. By rows."""
    for r in range(start, stop):
        w, g = weights[r], grad[r]
        total = _dot(w, g)
        for j in range(len(g)):
            u = (g[j] - total) * w[j]
            g[j] = as_(0, u) if masked and w[j] == 0 else u
