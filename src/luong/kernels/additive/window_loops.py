"""Compiled: additive scores of neighbouring keys, and their gradients: see forward, backward."""

from __future__ import annotations

from luong.kernels.additive import backward, forward
from luong.kernels.additive.elementary import as_, exact, inline, limits, scratch

CHUNK, _M, _U, _Z, _H = backward.CHUNK, backward._M, backward._U, backward._Z, backward._H


@exact
def score(a, b, v, scale, beta, frame, direct, first, out, start, stop):
    """Scores (b, n, w) of each query with keys first, first + 1, ...; a task is a query."""
    n, w, width = out.shape[1], out.shape[2], beta.shape[2]
    limit = limits(v[0])[1]
    memory = scratch(2, width, a)
    numerator, plus = memory[0], memory[1]
    for task in range(start, stop):
        i, r = task // n, task % n
        j = first[i, r]
        if direct[i]:
            for k in range(w):
                out[i, r, k] = forward._plain(a[i, r], b[i, j + k], v) * scale
            continue
        forward._query(a[i, r], limit, frame[i, 0], frame[i, 1], numerator, plus)
        for e in range(width):
            numerator[e] *= v[e]
        for k in range(0, w, 2):
            other = min(k + 1, w - 1)
            s0, s1 = forward._two_keys(beta[i, j + k], beta[i, j + other], v, numerator, plus)
            out[i, r, k] = s0 * scale
            out[i, r, other] = s1 * scale


@inline
def _row(q, kappa, beta, g, out):
    """One key of a query: out is its sum of z p."""
    unit = limits(g)[3]
    for e in range(len(out)):
        c, k, p = unit * beta[e], unit * kappa[e], q[e]
        b = c + k
        z = g / ((b + p) * (b + p))
        q[_U + e] += z * b
        q[_Z + e] += z
        q[_H + e] += z * (c * (b + k))
        out[e] += z * p


@inline
def _finish_key(v, kappa, beta, plain, out):
    """The gradient of a key from its sum; where it is plain, B is 1."""
    unit, four = limits(v[0])[3], as_(4, v[0])
    for e in range(len(out)):
        b = as_(1, unit) if plain else unit * (beta[e] + kappa[e])
        out[e] = v[e] * ((four * b) * out[e])


@exact
def gradients(a, b, v, beta, frame, direct, first, g, unit, ga, gb, gv, start, stop):
    """From g (b, n, w) = dL/dscore, 0 where not attended. A task: 64 features of a source.

    Writes ga; gb and gv hold zeros. g is divided by `unit`, a power of two, which v has been
    multiplied by.
    """
    n, w, d = g.shape[1], g.shape[2], a.shape[2]
    chunks = (d + CHUNK - 1) // CHUNK
    inverse, none = as_(1, unit) / unit, as_(0, unit)
    q, row = scratch(1, 17 * CHUNK, a)[0], scratch(1, 3 * CHUNK, a)[0]
    for task in range(start, stop):
        i, c = task // chunks, task % chunks * CHUNK
        end = min(d, c + CHUNK)
        vc, kappa, centre = v[c:end], frame[i, 0, c:end], frame[i, 1, c:end]
        q[_H:] = none
        for r in range(n):
            query, total = a[i, r, c:end], none
            q[_U:_H] = none
            if direct[i]:
                q[:CHUNK] = as_(1, unit)
                q[_M : _M + CHUNK] = none
            else:
                backward._query(query, kappa, centre, q)
            for k in range(w):
                gk, j = g[i, r, k] * inverse, first[i, r] + k
                if gk == 0:  # not attended: what the key holds is not looked at
                    continue
                total += gk
                out = gb[i, j, c:end]
                if direct[i]:
                    row[:] = none
                    backward._plain_row(query, b[i, j, c:end], gk, q, row)
                    for e in range(len(out)):
                        out[e] += row[2 * CHUNK + e]
                else:
                    _row(q, kappa, beta[i, j, c:end], gk, out)
            backward._finish_query(q, vc, ga[i, r, c:end])
            backward._finish_v(q, total, q[_H:])
        for j in range(b.shape[1]):
            _finish_key(vc, kappa, beta[i, j, c:end], direct[i], gb[i, j, c:end])
        backward._add(unit, q[_H:], gv[i, c:end])
