"""Compiled kernels for the formulas of `luong.kernels.windowed`. Each does tasks start..stop."""

from __future__ import annotations

from luong.kernels.elementary import add_times, dot
from luong.kernels.jit import exact, fast_inline

CHUNK = 64  # features of a task of `spread`


@fast_inline
def _add_four(out, a, b, c, d, wa, wb, wc, wd):
    """Add four rows, each times its weight, to out."""
    for e in range(len(out)):
        out[e] += (wa * a[e] + wb * b[e]) + (wc * c[e] + wd * d[e])


@exact
def dots(query, x, first, out, start, stop):
    """Write dots; a task is a query."""
    n, w = out.shape[1], out.shape[2]
    for task in range(start, stop):
        b, i = task // n, task % n
        for k in range(w):
            out[b, i, k] = dot(query[b, i], x[b, first[b, i] + k])


@exact
def sums(weights, x, first, out, start, stop):
    """Write sums; a task is a query."""
    n, w = weights.shape[1], weights.shape[2]
    for task in range(start, stop):
        b, i = task // n, task % n
        row, j = out[b, i], first[b, i]
        row[:] = 0
        for k in range(0, w - w % 4, 4):
            _add_four(
                row,
                x[b, j + k],
                x[b, j + k + 1],
                x[b, j + k + 2],
                x[b, j + k + 3],
                weights[b, i, k],
                weights[b, i, k + 1],
                weights[b, i, k + 2],
                weights[b, i, k + 3],
            )
        for k in range(w - w % 4, w):
            add_times(row, weights[b, i, k], x[b, j + k])


@exact
def spread(weights, rows, first, out, start, stop):
    """Add `spread` to out, which begins with zeros.

    A task is a chunk of features of a batch row: no two tasks write to the same place.
    """
    n, w, d = weights.shape[1], weights.shape[2], out.shape[2]
    chunks = (d + CHUNK - 1) // CHUNK
    for task in range(start, stop):
        b, c = task // chunks, task % chunks * CHUNK
        for i in range(n):
            row, j = rows[b, i, c : c + CHUNK], first[b, i]
            for k in range(w):
                add_times(out[b, j + k, c : c + CHUNK], weights[b, i, k], row)
