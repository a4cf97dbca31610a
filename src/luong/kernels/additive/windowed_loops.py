"""Compiled kernels for additive scores within a window, and their gradients.

The formulas are those of forward.py and backward.py.
"""

from __future__ import annotations

from luong.kernels.additive import backward, forward
from luong.kernels.additive.backward import CHUNK, SQUARE, SUM_V, SUM_Z, SUM_ZB
from luong.kernels.elementary import add_times, as_, limits, scratch
from luong.kernels.jit import exact, inline


@exact
def score(a, b, v, beta, frame, direct, first, out, start, stop):
    """Write scores (b, n, w) of each query with keys first, first + 1, ...; a task is a query."""
    n, w, width = out.shape[1], out.shape[2], beta.shape[2]
    limit = limits(v[0]).query
    v, scale, odd = forward.unit(v, width)
    memory = scratch(2, width, a)
    numerator, plus = memory[0], memory[1]
    for task in range(start, stop):
        i, r = task // n, task % n
        j = first[i, r]
        if direct[i] or odd:
            for k in range(w):
                out[i, r, k] = forward.score_plainly(a[i, r], b[i, j + k], v) * scale
            continue
        forward.query_terms(a[i, r], limit, frame[i, 0], frame[i, 1], numerator, plus)
        for e in range(width):
            numerator[e] *= v[e]
        for k in range(0, w, 2):
            other = min(k + 1, w - 1)
            s0, s1 = forward.score_two_keys(beta[i, j + k], beta[i, j + other], v, numerator, plus)
            out[i, r, k] = s0 * scale
            out[i, r, other] = s1 * scale


@inline
def _row(q, kappa, beta, g, out):
    """Add the terms of a query and a key; `out` is the sum of z p of the key."""
    shrink = limits(g).shrink
    for e in range(len(out)):
        c, k, p = shrink * beta[e], shrink * kappa[e], q[e]
        b = c + k
        z = g / ((b + p) * (b + p))
        q[SUM_ZB + e] += z * b
        q[SUM_Z + e] += z
        q[SUM_V + e] += z * (c * (b + k))
        out[e] += z * p


@inline
def _finish_key(v, kappa, beta, plain, out):
    """Turn the sum of a key into its gradient; B is 1 if the sum is that of `plain_row`."""
    shrink, four = limits(v[0]).shrink, as_(4, v[0])
    for e in range(len(out)):
        b = as_(1, shrink) if plain else shrink * (beta[e] + kappa[e])
        out[e] = v[e] * ((four * b) * out[e])


@exact
def gradients(a, b, v, beta, frame, direct, first, g, unit, ga, gb, gv, start, stop):
    """Compute gradients from g (b, n, w) = dL/dscore, which is 0 where not attended.

    A task is a chunk of features of one source. ga is written; gb and gv are added to, and begin
    with zeros. g is divided by `unit`, a power of two by which v has been multiplied.
    """
    n, w, d = g.shape[1], g.shape[2], a.shape[2]
    chunks = (d + CHUNK - 1) // CHUNK
    inverse, none = as_(1, unit) / unit, as_(0, unit)
    q, row = scratch(1, backward.QUERIES, a)[0], scratch(1, backward.KEY, a)[0]
    for task in range(start, stop):
        i, c = task // chunks, task % chunks * CHUNK
        end = min(d, c + CHUNK)
        vc, kappa, centre = v[c:end], frame[i, 0, c:end], frame[i, 1, c:end]
        q[SUM_V:] = none
        for r in range(n):
            query, total = a[i, r, c:end], none
            q[SUM_ZB:SUM_V] = none
            if direct[i]:
                q[:CHUNK] = as_(1, unit)
                q[SQUARE : SQUARE + CHUNK] = none
            else:
                backward.query_terms(query, kappa, centre, q)
            for k in range(w):
                gk, j = g[i, r, k] * inverse, first[i, r] + k
                if gk == 0:  # not attended: the key may hold anything
                    continue
                total += gk
                out = gb[i, j, c:end]
                if direct[i]:
                    row[:] = none
                    backward.plain_row(query, b[i, j, c:end], gk, q, row)
                    for e in range(len(out)):
                        out[e] += row[backward.KEY_SUM + e]
                else:
                    _row(q, kappa, beta[i, j, c:end], gk, out)
            backward.finish_query(q, vc, ga[i, r, c:end])
            backward.finish_v(q, total, q[SUM_V:])
        for j in range(b.shape[1]):
            _finish_key(vc, kappa, beta[i, j, c:end], direct[i], gb[i, j, c:end])
        add_times(gv[i, c:end], unit, q[SUM_V:])
