"""The numba backend of additive attention: tensors to kernels, and the operators that PyTorch sees.

Shapes: query (b, n, d), key (b, m, d), projected; value (b, m, d_v); v (d,); mask bool (b, n or 1,
m). Scores are computed for the pairs that the mask leaves; softmax follows in the kernel, block of
queries by block of queries; products with the values are torch.bmm. Beyond inputs and outputs the
memory is that of the keys' exponentials, and of one block of weights.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from luong.kernels.additive import backward, forward, plain, window_loops
from luong.kernels.additive.threads import each

_BLOCK = 1 << 22  # weights of one block, where they are not kept


class State(NamedTuple):
    """All that depends on the keys alone, for any number of queries."""

    beta: Tensor  # (b, m, d padded): e^{2 (key - centre)} - kappa
    frame: Tensor  # (b, 2, d padded to whole chunks): kappa and centre of each feature
    direct: Tensor  # (b,) bool: out of the quotient's range, or not finite: plain tanh
    order: Tensor  # (b, m): positions, first those that some query may attend
    live: Tensor  # (b,): how many those are


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _widths(d: int) -> tuple[int, int]:
    return _up(max(d, 1), forward.PAD), _up(max(d, 1), backward.CHUNK)


@torch.library.custom_op("luong::additive_prepare", mutates_args=())
def prepare(key: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The state of a source."""
    b, m, d = key.shape
    width, chunks = _widths(d)
    beta, frame = key.new_empty(b, m, width), key.new_empty(b, 2, chunks)
    direct = torch.zeros(b, dtype=torch.bool)
    if mask is None:
        order, live = torch.arange(m).repeat(b, 1), torch.full((b,), m)
    else:
        used = mask.any(-2).expand(b, m)
        order = used.long().argsort(dim=1, descending=True, stable=True)
        live = used.sum(1)
    arrays = (x.numpy() for x in (key.contiguous(), order, live, beta, frame, direct))
    each(forward.prepare, *arrays, tasks=b, cost=8 * m * d)
    return beta, frame, direct, order, live


@prepare.register_fake
def _(key: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    b, m, d = key.shape
    width, chunks = _widths(d)
    return (
        key.new_empty(b, m, width),
        key.new_empty(b, 2, chunks),
        key.new_empty(b, dtype=torch.bool),
        key.new_empty(b, m, dtype=torch.long),
        key.new_empty(b, dtype=torch.long),
    )


class _Source(NamedTuple):
    """A call's arguments as the kernels take them."""

    key: Tensor
    v: Tensor
    mask: Tensor | None
    state: State
    unit_v: Tensor  # (d padded,): v / scale
    scale: float  # max |v|: v = 1e30 is not to overflow inside the quotient


def _source(key: Tensor, v: Tensor, mask: Tensor | None, state: Sequence[Tensor]) -> _Source:
    given, scale = State(*state), v.abs().max().item()
    if not np.isfinite(scale):
        given, scale = given._replace(direct=torch.ones_like(given.direct)), 1.0
    scale = scale or 1.0
    unit_v = torch.nn.functional.pad(v / scale, (0, given.beta.shape[-1] - v.shape[0]))
    return _Source(key.contiguous(), v.contiguous(), mask, given, unit_v, scale)


def _memory_of(mask: Tensor | None, shape: tuple[int, int, int]) -> tuple[Any, tuple[int, ...]]:
    """The mask's memory and its strides: no copy, and one type for the compiler."""
    if mask is None:
        return np.ones(1, np.bool_), (0, 0, 0)
    mask = mask.expand(shape)
    strides = zip(mask.shape, mask.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in strides)
    return mask.as_strided((extent,), (1,)).numpy(), mask.stride()


def _scores(query: Tensor, source: _Source, first: int, out: Tensor, softmax: bool) -> None:
    """Scores or weights of queries first, first + 1, ... into out (b, rows, m)."""
    b, rows, m = out.shape
    state = source.state
    mask, strides = _memory_of(source.mask, (b, query.shape[1], m))
    arrays = [x.numpy() for x in (query, source.key, source.unit_v)]
    each(
        forward.score,
        *arrays,
        arrays[0].dtype.type(source.scale),
        *(x.numpy() for x in state),
        mask,
        strides,
        first,
        out.numpy(),
        softmax,
        tasks=b * -(-rows // 4),
        cost=min(4, rows) * m * query.shape[2],
    )


def _gradients(
    query: Tensor, source: _Source, first: int, grad: Tensor, out: Sequence[Tensor]
) -> None:
    """From grad = dL/dscore (b, rows, m) of queries first, ... into those of query, key, v by b.

    Overwrites grad. The kernel sees gradients of about 1 at most, a power of two away from the
    given ones, which changes no digit: their products with a quotient are not to overflow.
    """
    b, rows, m = grad.shape
    unit = _power_of_two(grad.abs().max().item())
    d_query, d_key, d_v = out
    d_v_unit = torch.zeros_like(d_v)
    each(
        backward.gradients,
        *(x.numpy() for x in (query, source.key, source.v * unit, *source.state)),
        first,
        *(x.numpy() for x in (grad.div_(unit), d_query, d_key, d_v_unit)),
        tasks=b * -(-query.shape[2] // backward.CHUNK),
        cost=2 * rows * m * backward.CHUNK,
    )
    d_v.add_(d_v_unit, alpha=unit)


def window_score(
    query: Tensor, key: Tensor, v: Tensor, first: Tensor, w: int, state: Sequence[Tensor]
) -> Tensor:
    """Scores (b, n, w) with the keys first, first + 1, ... (b, n) of each query."""
    query, source = query.contiguous(), _source(key, v, None, state)
    out = query.new_empty(*first.shape, w)
    arrays = [
        x.detach().numpy() for x in (query, source.key, source.unit_v, *source.state[:3], out)
    ]
    each(
        window_loops.score,
        *arrays[:3],
        arrays[0].dtype.type(source.scale),
        *arrays[3:6],
        first.contiguous().numpy(),
        arrays[6],
        tasks=first.numel(),
        cost=w * query.shape[2],
    )
    return out


def window_gradients(
    grad: Tensor, query: Tensor, key: Tensor, v: Tensor, first: Tensor, state: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and v from those of `window_score`."""
    query, source = query.contiguous(), _source(key, v, None, state)
    unit = _power_of_two(grad.abs().max().item())
    d_query, d_key = torch.empty_like(query), torch.zeros_like(source.key)
    d_v = query.new_zeros(query.shape[0], query.shape[2])
    given = (query, source.key, source.v * unit, *source.state[:3], first, grad / unit)
    each(
        window_loops.gradients,
        *(x.detach().contiguous().numpy() for x in (*given, d_query, d_key, d_v)),
        tasks=query.shape[0] * -(-query.shape[2] // window_loops.CHUNK),
        cost=2 * grad.shape[1] * grad.shape[2] * window_loops.CHUNK,
    )
    return d_query, d_key, d_v.sum(0) * unit


def _power_of_two(x: float) -> float:
    """One near x; 1 for 0 and for what is not finite."""
    return math.ldexp(1.0, math.frexp(x)[1]) if 0 < x < math.inf else 1.0


def _room(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For the gradients of query, key and (by source) v."""
    return (
        torch.empty_like(query),
        torch.empty_like(key),
        query.new_zeros(query.shape[0], query.shape[2]),
    )


@torch.library.custom_op("luong::additive_score", mutates_args=())
def score(
    query: Tensor, key: Tensor, v: Tensor, mask: Tensor | None, state: Sequence[Tensor]
) -> Tensor:
    """Scores (b, n, m); -inf where masked."""
    out = query.new_empty(*query.shape[:2], key.shape[1])
    _scores(query.contiguous(), _source(key, v, mask, state), 0, out, False)
    return out


@torch.library.custom_op("luong::additive_score_backward", mutates_args=())
def score_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    v: Tensor,
    mask: Tensor | None,
    state: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and v."""
    if mask is not None:
        grad = torch.where(mask, grad, 0)
    if not v.isfinite().all():
        return plain.score_gradients(grad, query, key, v)
    query, source = query.contiguous(), _source(key, v, mask, state)
    out = _room(query, source.key)
    _gradients(query, source, 0, grad.clone(memory_format=torch.contiguous_format), out)
    return out[0], out[1], out[2].sum(0)


@torch.library.custom_op("luong::additive_attend", mutates_args=())
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    v: Tensor,
    mask: Tensor | None,
    state: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """Context (b, n, d_v); and the weights (b, n, m) where they are small enough to be kept."""
    (b, n, d), m = query.shape, key.shape[1]
    query, source, step = query.contiguous(), _source(key, v, mask, state), _step(b, n, m, d)
    kept = query.new_empty(b, _rows_kept(n, m, d), m)
    if kept.shape[1]:
        _scores(query, source, 0, kept, True)
        return torch.bmm(kept, value), kept
    context = query.new_empty(b, n, value.shape[2])
    buffer = query.new_empty(b * min(step, n) * m)  # one for all: the allocator would scatter them
    for first in range(0, n, step):
        rows = min(step, n - first)
        weights = buffer[: b * rows * m].view(b, rows, m)
        _scores(query, source, first, weights, True)
        context[:, first : first + rows] = torch.bmm(weights, value)
    return context, kept


@torch.library.custom_op("luong::additive_attend_backward", mutates_args=())
def attend_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    v: Tensor,
    mask: Tensor | None,
    kept: Tensor,
    state: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value and v."""
    if not v.isfinite().all():
        return plain.attend_gradients(grad, query, key, value, v, mask)
    (b, n, d), m = query.shape, key.shape[1]
    query, source, step = query.contiguous(), _source(key, v, mask, state), _step(b, n, m, d)
    out, d_value = _room(query, source.key), value.new_zeros(value.shape)
    sizes = [min(step, n - first) for first in range(0, n, step)]
    buffers = query.new_empty(2, b * sizes[0] * m)
    first = 0
    for rows in sizes:
        weights, d_scores = (x[: b * rows * m].view(b, rows, m) for x in buffers)
        if kept.shape[1]:
            weights = kept
        else:
            _scores(query, source, first, weights, True)
        d_context = grad[:, first : first + rows]
        torch.bmm(d_context, value.mT, out=d_scores)
        d_scores.sub_((d_scores * weights).sum(-1, keepdim=True)).mul_(weights)
        if mask is not None:  # 0 times a NaN elsewhere in the row
            d_scores.masked_fill_(weights == 0, 0)
        _gradients(query, source, first, d_scores, out)
        d_value.baddbmm_(weights.mT, d_context)
        first += rows
    return out[0], out[1], d_value, out[2].sum(0)


def _rows_kept(n: int, m: int, d: int) -> int:
    """All n, where the weights are at most twice as large as query and key, else none."""
    return n if n * m <= 2 * (n + m) * d else 0


def _step(b: int, n: int, m: int, d: int) -> int:
    """How many queries at once."""
    return n if _rows_kept(n, m, d) else _up(max(1, _BLOCK // (b * m)), 4)


@score.register_fake
def _(
    query: Tensor, key: Tensor, v: Tensor, mask: Tensor | None, state: Sequence[Tensor]
) -> Tensor:
    return query.new_empty(*query.shape[:2], key.shape[1])


@score_backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in (query, key, v))


@attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    (b, n, d), m = query.shape, key.shape[1]
    return query.new_empty(b, n, value.shape[2]), query.new_empty(b, _rows_kept(n, m, d), m)


@attend_backward.register_fake
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, v: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in (query, key, value, v))


def _keep_score(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, key, v, mask, state = inputs
    ctx.save_for_backward(query, key, v, mask, *state)


@torch.autocast("cpu", enabled=False)  # type: ignore[untyped-decorator]
def _score_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    query, key, v, mask, *state = ctx.saved_tensors
    if torch.is_grad_enabled():  # a derivative of the derivative is wanted: the plain formula's
        grad = grad if mask is None else torch.where(mask, grad, 0)
        grads = plain.derivative(plain.scores, grad, query, key, v)
    else:
        grads = score_backward(grad, query, key, v, mask, state)
    return *grads, None, [None] * len(state)


def _keep_attend(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, v, mask, state = inputs
    ctx.save_for_backward(query, key, value, v, mask, output[1], *state)
    ctx.mark_non_differentiable(output[1])


@torch.autocast("cpu", enabled=False)  # type: ignore[untyped-decorator]
def _attend_backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    query, key, value, v, mask, kept, *state = ctx.saved_tensors
    if torch.is_grad_enabled():
        function = functools.partial(plain.attend, mask=mask)
        grads = plain.derivative(function, grad, query, key, value, v)
    else:
        grads = attend_backward(grad, query, key, value, v, mask, kept, state)
    return *grads, None, [None] * len(state)


score.register_autograd(_score_backward, setup_context=_keep_score)
attend.register_autograd(_attend_backward, setup_context=_keep_attend)
