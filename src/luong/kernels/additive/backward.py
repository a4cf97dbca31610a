"""Compiled kernels for the gradients of scores. A task is a chunk of features of one source.

With D = B + p and z = g / D^2, for every query and key,

    g (1 - tanh^2) = 4 z B p        g tanh = z (B^2 - kappa^2) - z (p^2 - kappa^2),

so that three sums make up all gradients: of z B over the keys, of z p over the queries, of z over
either. Factors that depend only on the query or only on the key are multiplied in after summing:
the loop holds one division, and three multiply-adds and a quarter. Nothing cancels, as
B^2 - kappa^2 is computed as beta (B + kappa). B and p are scaled by a constant, which keeps D^2 in
range.

Terms and sums of a query or a key stand in one scratch row, at constant distances: LLVM then
vectorises without alias checks, which it gives up on where there are many arrays.
"""

from __future__ import annotations

from luong.kernels.elementary import (
    add_times,
    as_,
    clamp,
    dot,
    flush,
    limits,
    reduce,
    scratch,
    tanh,
)
from luong.kernels.jit import exact, fast_inline, inline

CHUNK = 64  # features of a task

# Offsets in the scratch row of four queries, which begins with p of each.
SQUARE = 4 * CHUNK  # p^2 - kappa^2 of each
SUM_ZB = 8 * CHUNK  # the sums of z B over the keys
SUM_Z = 12 * CHUNK  # the sums of z
SUM_V = 16 * CHUNK  # the sum for v, over all queries
QUERIES = 17 * CHUNK  # its length
# A single query uses the places that hold p of the other three.
_KAPPA, _V = CHUNK, 2 * CHUNK

# Offsets in the scratch row of a key, which begins with B.
KEY_SQUARE = CHUNK  # B^2 - kappa^2
KEY_SUM = 2 * CHUNK  # the sum of z p over the queries
KEY = 3 * CHUNK  # its length


@fast_inline
def _has_nan(row):
    found = False
    for e in range(len(row)):
        found |= row[e] != row[e]
    return found


@inline
def query_terms(a, kappa, centre, q):
    """Write p and p^2 - kappa^2, scaled, of a query.

    Where tanh is 1 to rounding, p is 0 or so large that z is 0: its slope counts as 0.
    """
    limit, shrink, huge = limits(q[0]).query, limits(q[0]).shrink, limits(q[0]).huge
    for e in range(len(a)):
        x, k = a[e] + centre[e], shrink * kappa[e]
        y = clamp(x, limit)
        s, y = reduce(-(y + y))
        s *= shrink
        minus, plus = s * y + (s - k), s * y + (s + k)
        q[e] = huge if x < -limit else (s - s if x > limit else s * y + s)
        q[SQUARE + e] = -(k * k) if x > limit else minus * plus
    for e in range(len(a), CHUNK):
        q[e] = as_(1, limit)
        q[SQUARE + e] = as_(0, limit)


@inline
def _key_terms(beta, kappa, row):
    """Write B and B^2 - kappa^2, scaled, of a key, and set its sum to 0."""
    shrink, none = limits(row[0]).shrink, as_(0, row[0])
    for e in range(len(beta)):
        b, k = shrink * beta[e], shrink * kappa[e]
        row[e] = b + k
        row[KEY_SQUARE + e] = b * (b + (k + k))
        row[KEY_SUM + e] = none
    for e in range(len(beta), CHUNK):
        row[e] = none
        row[KEY_SQUARE + e] = none
        row[KEY_SUM + e] = none


@inline
def _four_rows(q, k, g0, g1, g2, g3):
    """Add the terms of four queries and a key to their sums."""
    for e in range(CHUNK):
        b = k[e]
        p0, p1, p2, p3 = q[e], q[CHUNK + e], q[2 * CHUNK + e], q[3 * CHUNK + e]
        d0, d1, d2, d3 = b + p0, b + p1, b + p2, b + p3
        z0, z1, z2, z3 = g0 / (d0 * d0), g1 / (d1 * d1), g2 / (d2 * d2), g3 / (d3 * d3)
        q[SUM_ZB + e] += z0 * b
        q[SUM_ZB + CHUNK + e] += z1 * b
        q[SUM_ZB + 2 * CHUNK + e] += z2 * b
        q[SUM_ZB + 3 * CHUNK + e] += z3 * b
        q[SUM_Z + e] += z0
        q[SUM_Z + CHUNK + e] += z1
        q[SUM_Z + 2 * CHUNK + e] += z2
        q[SUM_Z + 3 * CHUNK + e] += z3
        k[KEY_SUM + e] += (z0 * p0 + z1 * p1) + (z2 * p2 + z3 * p3)
        q[SUM_V + e] += k[KEY_SQUARE + e] * ((z0 + z1) + (z2 + z3))


@inline
def _one_row(q, k, g):
    """Add the terms of one query and a key to their sums."""
    for e in range(CHUNK):
        b, p = k[e], q[e]
        z = g / ((b + p) * (b + p))
        q[SUM_ZB + e] += z * b
        q[SUM_Z + e] += z
        k[KEY_SUM + e] += z * p
        q[SUM_V + e] += k[KEY_SQUARE + e] * z


@inline
def _only_row(q, beta, g, out):
    """Add the terms of the only query and a key, and write the gradient of the key.

    That gradient is complete, so that the key needs no scratch row.
    """
    shrink, four = limits(g).shrink, as_(4, g)
    for e in range(len(out)):
        c, k, p = shrink * beta[e], q[_KAPPA + e], q[e]
        b = c + k
        z = g / ((b + p) * (b + p))
        q[SUM_ZB + e] += z * b
        q[SUM_Z + e] += z
        q[SUM_V + e] += z * (c * (b + k))
        out[e] = q[_V + e] * ((four * b) * (z * p))


@inline
def plain_row(a, b, g, q, k):
    """Add the same terms, with a tanh for each feature. Here p and B are 1."""
    for e in range(len(a)):
        t, slope = tanh(a[e] + b[e])
        u = g * (slope * as_(0.25, g))
        q[SUM_V + e] += g * t
        q[SUM_ZB + e] += u
        k[KEY_SUM + e] += u


@inline
def finish_query(q, v, out):
    """Write the gradient of the first query of q."""
    four = as_(4, v[0])
    for e in range(len(out)):
        out[e] = v[e] * ((four * q[e]) * q[SUM_ZB + e])


@inline
def finish_v(q, total, h):
    """Add the query's part of v's gradient: -z (p^2 - kappa^2), and -g where tanh is -1."""
    huge = limits(total).huge
    for e in range(CHUNK):
        rest = q[SQUARE + e] * q[SUM_Z + e]
        h[e] -= total if q[e] == huge else rest


@inline
def _finish_key(k, v, add, out):
    """Write the gradient of a key, or add it."""
    four = as_(4, v[0])
    for e in range(len(out)):
        u = v[e] * ((four * k[e]) * k[KEY_SUM + e])
        out[e] = out[e] + u if add else u


@inline
def _prepare_keys(beta, kappa, c, end, live, direct, keys):
    """Fill the scratch rows of the keys that may be attended; B is 1 where `direct`."""
    for t in range(len(live)):
        if direct:
            keys[t] = as_(0, kappa[0])
            keys[t, :CHUNK] = as_(1, kappa[0])
        else:
            _key_terms(beta[live[t], c:end], kappa, keys[t])


@inline
def _prepare_queries(a, kappa, centre, c, end, direct, queries):
    """Fill the scratch row of up to four queries, without sums; p is 1 where `direct`."""
    queries[SUM_ZB:SUM_V] = as_(0, kappa[0])
    for k in range(len(a)):
        if direct:
            queries[:CHUNK] = as_(1, kappa[0])
            queries[SQUARE : SQUARE + CHUNK] = as_(0, kappa[0])
        else:
            query_terms(a[k, c:end], kappa, centre, queries[k * CHUNK :])


@inline
def _add_up_four(g, inverse, live, queries, keys):
    """Add the terms of four queries and all keys; return the sum of g of each query."""
    s0 = s1 = s2 = s3 = as_(0, inverse)
    for t in range(len(live)):
        j = live[t]
        g0, g1 = g[0, j] * inverse, g[1, j] * inverse
        g2, g3 = g[2, j] * inverse, g[3, j] * inverse
        if g0 != 0 or g1 != 0 or g2 != 0 or g3 != 0:
            _four_rows(queries, keys[t], g0, g1, g2, g3)
            s0 += g0
            s1 += g1
            s2 += g2
            s3 += g3
    return s0, s1, s2, s3


@inline
def _add_up_one(a, b, c, end, g, inverse, live, direct, queries, keys):
    """Add the terms of one query and all keys; return the sum of its g."""
    total = as_(0, inverse)
    for t in range(len(live)):
        gt = g[live[t]] * inverse
        total += gt
        if gt != 0 and direct:
            plain_row(a, b[live[t], c:end], gt, queries, keys[t])
        elif gt != 0:
            _one_row(queries, keys[t], gt)
    return total


@exact
def gradients(a, b, v, beta, frame, direct, keys, count, first, g, unit, ga, gb, gv, start, stop):
    """Compute gradients from g (batch, q, m) = dL/dscore, which is 0 where not attended.

    A task is a chunk of features of one source: no two tasks write to the same place.
    Rows first, first + 1, ... of ga are written; gb is written if first is 0, else added to; gv
    (batch, d) is added to. g is divided by `unit`, a power of two by which v has been multiplied.
    Chunks are cut out of rows, never out of arrays: of these, numba would not know that a row is
    contiguous, and loops would take longer.
    """
    q, d = g.shape[1], a.shape[2]
    chunks = (d + CHUNK - 1) // CHUNK
    inverse, none = as_(1, unit) / unit, as_(0, unit)
    queries, sources = scratch(1, QUERIES, a)[0], scratch(g.shape[2], KEY, a)
    for task in range(start, stop):
        i, c = task // chunks, task % chunks * CHUNK
        end, live = min(d, c + CHUNK), keys[i, : count[i]]
        kappa, centre, vc = frame[i, 0, c:end], frame[i, 1, c:end], v[c:end]
        queries[SUM_V:] = none
        _prepare_keys(beta[i], kappa, c, end, live, direct[i], sources)
        r = 0
        while r < q:
            # A row that holds NaN is computed separately: 0 times NaN is not 0.
            rows = 4 if r + 4 <= q and not direct[i] else 1
            for k in range(rows):
                if _has_nan(a[i, first + r + k, c:end]):
                    rows = 1
            tile = a[i, first + r : first + r + rows]
            _prepare_queries(tile, kappa, centre, c, end, direct[i], queries)
            if rows == 4:
                totals = _add_up_four(g[i, r : r + 4], inverse, live, queries, sources)
            else:
                only, gr = tile[0, c:end], g[i, r]
                total = _add_up_one(
                    only, b[i], c, end, gr, inverse, live, direct[i], queries, sources
                )
                totals = (total, none, none, none)
            for k in range(rows):
                sums = queries[k * CHUNK :]
                finish_query(sums, vc, ga[i, first + r + k, c:end])
                finish_v(sums, totals[k], queries[SUM_V:])
            r += rows
        for t in range(len(live)):
            _finish_key(sources[t], vc, first > 0, gb[i, live[t], c:end])
        if first == 0:
            for j in keys[i, count[i] :]:
                gb[i, j, c:end] = none
        add_times(gv[i, c:end], unit, queries[SUM_V:])


@exact
def step(a, v, beta, frame, keys, count, g, unit, ga, gb, gv, start, stop):
    """Compute the same for a single query, where no source is `direct`.

    A task is a source. Keys get no gradients if gb has no rows.
    """
    d = a.shape[2]
    chunks = (d + CHUNK - 1) // CHUNK
    inverse, none, wanted = as_(1, unit) / unit, as_(0, unit), gb.shape[1] > 0
    shrink = limits(unit).shrink
    queries, unused = scratch(chunks, QUERIES, a), scratch(1, CHUNK, a)[0]
    for i in range(start, stop):
        total = none
        for x in range(chunks):
            c = x * CHUNK
            q, end = queries[x], min(d, c + CHUNK)
            query_terms(a[i, 0, c:end], frame[i, 0, c:end], frame[i, 1, c:end], q)
            q[SUM_ZB:] = none
            for e in range(end - c):
                q[_KAPPA + e] = shrink * frame[i, 0, c + e]
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
            finish_query(q, v[c:end], ga[i, 0, c:end])
            finish_v(q, total, q[SUM_V:])
            add_times(gv[i, c:end], unit, q[SUM_V:])


@exact
def through_softmax(weights, grad, masked, start, stop):
    """Turn dL/dweight into dL/dscore, in place; a task is a row.

    The result is 0 where masked, whatever else the row holds.
    """
    for r in range(start, stop):
        w, g = weights[r], grad[r]
        total = dot(w, g)
        for j in range(len(g)):
            u = flush((g[j] - total) * w[j])
            g[j] = as_(0, u) if masked and w[j] == 0 else u
