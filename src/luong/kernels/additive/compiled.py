"""The numba backend of additive attention, which calls the kernels on tensors.

Shapes: query (b, n, d), key (b, m, d), projected; value (b, m, d_v); v (d,); mask bool (b, n or 1,
m). Only pairs that the mask allows are scored; the kernel also takes the softmax, one block of
queries at a time; products with the values are torch.bmm. Beyond inputs and outputs the
memory is that of the keys' exponentials, and of one block of weights. operators.py tells
PyTorch the derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from luong._mask import positions
from luong._memory import Terms
from luong.kernels.additive import backward, forward, plain, windowed_loops
from luong.kernels.arrays import array
from luong.kernels.threads import each

_BLOCK = 1 << 22  # number of weights in a block, if they are not kept


class KeyTerms(NamedTuple):
    """The terms of scores that depend only on the keys, for any number of queries."""

    beta: Tensor  # (b, m, d padded): e^{2 (key - centre)} - kappa
    frame: Tensor  # (b, 2, d padded to whole chunks): kappa and centre of each feature
    direct: Tensor  # (b,) bool: out of the quotient's range, or not finite: plain tanh
    order: Tensor  # (b, m): positions; those that some query may attend come first
    live: Tensor  # (b,): the number of those


def widths(d: int) -> tuple[int, int]:
    """Return the numbers of columns of beta and of frame."""
    return _up(max(d, 1), forward.PAD), _up(max(d, 1), backward.CHUNK)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def prepare(key: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the terms of keys, in the order of `KeyTerms`."""
    b, m, d = key.shape
    width, chunks = widths(d)
    beta, frame = key.new_empty(b, m, width), key.new_empty(b, 2, chunks)
    direct = key.new_zeros(b, dtype=torch.bool)
    if mask is None:
        order, live = positions(m, key.device).repeat(b, 1), key.new_full((b,), m, dtype=torch.long)
    else:
        used = mask.any(-2).expand(b, m)
        order = used.long().argsort(dim=1, descending=True, stable=True)
        live = used.sum(1)
    arrays = map(array, (key, order, live, beta, frame, direct))
    each(forward.prepare, *arrays, tasks=b, cost=8 * m * d)
    return beta, frame, direct, order, live


def score(
    query: Tensor, key: Tensor, v: Tensor, mask: Tensor | None, terms: Sequence[Tensor]
) -> Tensor:
    """Compute scores (b, n, m); -inf where masked."""
    out = query.new_empty(*query.shape[:2], key.shape[1])
    _scores(_call(query, key, v, mask, terms), 0, out, False)
    return out


def score_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    v: Tensor,
    mask: Tensor | None,
    terms: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of query, key and v."""
    if mask is not None:
        grad = torch.where(mask, grad, 0)
    if not finite(v):
        return plain.score_gradients(grad, query, key, v)
    out = _room(query, key)
    _gradients(_call(query, key, v, mask, terms), 0, grad, out)
    return out[0], out[1], out[2].sum(0)


def context_and_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    v: Tensor,
    mask: Tensor | None,
    terms: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """Compute the context (b, n, d_v), and return the weights (b, n, m) too if they may be kept."""
    (b, n, d), m = query.shape, key.shape[1]
    call, kept = _call(query, key, v, mask, terms), query.new_empty(b, kept_rows(n, m, d), m)
    if kept.shape[1]:
        _scores(call, 0, kept, True)
        return torch.bmm(kept, value), kept
    buffer, contexts = query.new_empty(0), []
    for rows in _blocks(b, n, m, d):
        size = b * (rows.stop - rows.start) * m
        if buffer.numel() < size:  # one for all: the allocator would scatter them
            buffer = query.new_empty(size)
        weights = buffer[:size].view(b, -1, m)
        _scores(call, rows.start, weights, True)
        contexts.append(torch.bmm(weights, value))
    return contexts[0] if len(contexts) == 1 else torch.cat(contexts, 1), kept


def context_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    v: Tensor,
    mask: Tensor | None,
    kept: Tensor,
    terms: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of query, key, value and v."""
    if not finite(v):
        return plain.context_gradients(grad, query, key, value, v, mask)
    (b, n, d), m = query.shape, key.shape[1]
    call, out, d_value = _call(query, key, v, mask, terms), _room(query, key), None
    buffers = query.new_empty(0)
    for rows in _blocks(b, n, m, d):
        size = b * (rows.stop - rows.start) * m
        if buffers.numel() < size:
            buffers = query.new_empty(1 if kept.shape[1] else 2, size)
        d_scores, weights = buffers[0, :size].view(b, -1, m), kept
        if not kept.shape[1]:
            weights = buffers[1, :size].view(b, -1, m)
            _scores(call, rows.start, weights, True)
        torch.bmm(grad[:, rows], value.mT, out=d_scores)
        through_softmax(weights, d_scores, mask)
        _gradients(call, rows.start, d_scores, out)
        if d_value is None:
            d_value = torch.bmm(weights.mT, grad[:, rows])
        else:
            d_value.baddbmm_(weights.mT, grad[:, rows])
    assert d_value is not None  # there is at least one query
    return out[0], out[1], d_value, out[2].sum(0)


def step_backward(
    d_scores: Tensor, query: Tensor, key: Tensor, v: Tensor, terms: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of a single query and of v, but not of the keys; none is `direct`."""
    out = _room(query, key[:, :0])
    _gradients(_call(query, key, v, None, terms), 0, d_scores, out)
    return out[0], out[2].sum(0)


def windowed_score(
    query: Tensor, key: Tensor, v: Tensor, first: Tensor, w: int, terms: Sequence[Tensor]
) -> Tensor:
    """Compute scores (b, n, w) with the keys first, first + 1, ... (b, n) of each query."""
    call, out = _call(query, key, v, None, terms), query.new_empty(*first.shape, w)
    each(
        windowed_loops.score,
        call.query,
        call.key,
        call.v,
        *call.terms[:3],
        array(first),
        array(out),
        tasks=first.numel(),
        cost=w * query.shape[2],
    )
    return out


def windowed_score_backward(
    grad: Tensor, query: Tensor, key: Tensor, v: Tensor, first: Tensor, terms: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of query, key and v from those of `windowed_score`."""
    call = _call(query, key, v, None, terms)
    unit = _power_of_two(max(abs(x.item()) for x in grad.aminmax()), call.v.dtype)
    d_query, d_key, d_v = _room(query, key)
    each(
        windowed_loops.gradients,
        call.query,
        call.key,
        call.v * unit,
        *call.terms[:3],
        array(first),
        array(grad),
        unit,
        *map(array, (d_query, d_key.zero_(), d_v)),
        tasks=query.shape[0] * -(-query.shape[2] // backward.CHUNK),
        cost=2 * first.shape[1] * grad.shape[2] * backward.CHUNK,
    )
    return d_query, d_key, d_v.sum(0)


def through_softmax(weights: Tensor, grad: Tensor, mask: Tensor | None) -> None:
    """Turn the gradients of the weights into those of the scores, in place."""
    b, n, m = grad.shape
    rows = (array(x.view(b * n, m)) for x in (weights, grad))
    each(backward.through_softmax, *rows, mask is not None, tasks=b * n, cost=m)


def finite(v: Tensor) -> bool:
    """Return whether v holds neither NaN nor infinity."""
    return bool(np.isfinite(array(v)).all())


def any_direct(terms: Sequence[Tensor]) -> bool:
    """Return whether some source takes the plain tanh."""
    return bool(KeyTerms(*terms).direct.any())


def kept_rows(n: int, m: int, d: int) -> int:
    """Return n, the rows of weights to keep, if all are at most twice the inputs; else 0."""
    return n if n * m <= 2 * (n + m) * d else 0


def _blocks(b: int, n: int, m: int, d: int) -> Iterator[slice]:
    """Yield the queries of each block."""
    step = n if kept_rows(n, m, d) else _up(max(1, _BLOCK // (b * m)), forward.TILE)
    return (slice(first, min(first + step, n)) for first in range(0, n, step))


class _Call(NamedTuple):
    """The arguments of a call in the form that kernels take."""

    query: Any
    key: Any
    v: Any
    mask: Any  # its memory and its strides: no copy, and one type for the compiler
    strides: tuple[int, ...]
    terms: Any  # a KeyTerms of arrays


_ALL: tuple[Any, tuple[int, ...]] = np.ones(1, np.bool_), (0, 0, 0)  # the mask of all pairs


def _call(
    query: Tensor, key: Tensor, v: Tensor, mask: Tensor | None, terms: Sequence[Tensor]
) -> _Call:
    if not isinstance(terms, Terms):
        terms = Terms(terms)
    if terms.arrays is None:
        terms.arrays = KeyTerms(*map(array, terms))
    memory, strides = _ALL
    if mask is not None and not terms.covers(mask):
        mask = mask.expand(query.shape[0], query.shape[1], key.shape[1])
        strides = mask.stride()
        extent = 1 + sum((x - 1) * y for x, y in zip(mask.shape, strides, strict=True))
        memory = array(mask.as_strided((extent,), (1,)))
    return _Call(array(query), array(key), array(v), memory, strides, terms.arrays)


def _scores(call: _Call, first: int, out: Tensor, softmax: bool) -> None:
    """Write scores or weights of queries first, first + 1, ... into out (b, rows, m)."""
    b, rows, m = out.shape
    each(
        forward.score,
        call.query,
        call.key,
        call.v,
        *call.terms,
        call.mask,
        call.strides,
        first,
        array(out),
        softmax,
        tasks=b * -(-rows // forward.TILE),
        cost=min(forward.TILE, rows) * m * call.query.shape[2],
    )


def _room(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return room for the gradients of query, key and, for each source, v."""
    (b, n, d), m = query.shape, key.shape[1]
    return query.new_empty(b, n, d), key.new_empty(b, m, d), query.new_zeros(b, d)


def _gradients(call: _Call, first: int, grad: Tensor, out: Sequence[Tensor]) -> None:
    """Compute gradients from grad = dL/dscore (b, rows, m) of queries first, first + 1, ...

    The kernel divides them by a power of two, which changes no digit, so that they are about 1 at
    most and no product with a quotient overflows.
    """
    b, rows, m = grad.shape
    unit = _power_of_two(max(abs(x.item()) for x in grad.aminmax()), call.v.dtype)
    terms, v, arrays = call.terms, call.v * unit, [array(x) for x in out]
    if call.query.shape[1] == 1 and not terms.direct.any():
        known = terms.beta, terms.frame, terms.order, terms.live
        given = call.query, v, *known, array(grad), unit, *arrays
        each(backward.step, *given, tasks=b, cost=2 * m * call.query.shape[2])
        return
    each(
        backward.gradients,
        call.query,
        call.key,
        v,
        *terms,
        first,
        array(grad),
        unit,
        *arrays,
        tasks=b * -(-call.query.shape[2] // backward.CHUNK),
        cost=2 * rows * m * backward.CHUNK,
    )


def _power_of_two(x: float, dtype: Any) -> Any:
    """Return a power of two near x whose inverse is finite; 1 if x is 0 or not finite."""
    most = np.finfo(dtype).maxexp - 28
    exponent = max(-most, min(math.frexp(x)[1], most)) if 0 < x < math.inf else 0
    return dtype.type(2.0**exponent)
