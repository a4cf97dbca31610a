"""The numba backend of additive attention with derivatives: as PyTorch sees it.

In eager mode a call goes by an autograd function, which costs half of what an operator does. What
torch.compile makes holds operators. Arguments and results are those of compiled.py.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from luong._torch_private import after_backward, backward_pass, will_run
from luong.kernels.additive import compiled, plain
from luong.kernels.dispatch import plain_backward

State = Sequence[Tensor]


def prepare(key: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    """The state of a source."""
    run = prepare_op if torch.compiler.is_compiling() else compiled.prepare
    found: tuple[Tensor, ...] = run(key, mask)
    return found


def score(
    query: Tensor, key: Tensor, v: Tensor, mask: Tensor | None, state: State, source: Tensor | None
) -> Tensor:
    """Scores (b, n, m). `source` is None or what `source` made of these keys."""
    if torch.compiler.is_compiling():
        found: Tensor = score_op(query, key, v, mask, list(state))
    else:
        found = _Score.apply(query, key, v, mask, state, source)  # type: ignore[no-untyped-call]
    return found


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    v: Tensor,
    mask: Tensor | None,
    state: State,
    source: Tensor | None,
) -> Tensor:
    """Context (b, n, d_v)."""
    if torch.compiler.is_compiling():
        found: Tensor = attend_op(query, key, value, v, mask, list(state))[0]
    else:
        found = _Attend.apply(  # type: ignore[no-untyped-call]
            query, key, value, v, mask, state, source
        )
    return found


def source(key: Tensor, value: Tensor, state: State) -> Tensor:
    """What stands for a memory's keys and values in decoder steps."""
    found: Tensor = _Source.apply(key, value, state)  # type: ignore[no-untyped-call]
    return found


# Operators


_operator = functools.partial(torch.library.custom_op, mutates_args=())
prepare_op = _operator("luong::additive_prepare")(compiled.prepare)
score_op = _operator("luong::additive_score")(compiled.score)
score_backward_op = _operator("luong::additive_score_backward")(compiled.score_backward)
attend_op = _operator("luong::additive_attend")(compiled.attend)
attend_backward_op = _operator("luong::additive_attend_backward")(compiled.attend_backward)


@prepare_op.register_fake
def _(key: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    b, m, d = key.shape
    width, chunks = compiled.widths(d)
    return (
        key.new_empty(b, m, width),
        key.new_empty(b, 2, chunks),
        key.new_empty(b, dtype=torch.bool),
        key.new_empty(b, m, dtype=torch.long),
        key.new_empty(b, dtype=torch.long),
    )


@score_op.register_fake
def _(query: Tensor, key: Tensor, v: Tensor, mask: Tensor | None, state: State) -> Tensor:
    return query.new_empty(*query.shape[:2], key.shape[1])


@score_backward_op.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in (query, key, v))


@attend_op.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    (b, n, d), m = query.shape, key.shape[1]
    kept = compiled.kept_rows(n, m, d)
    return query.new_empty(b, n, value.shape[2]), query.new_empty(b, kept, m)


@attend_backward_op.register_fake
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
    if plain_backward(grad):
        grads = _plain_score_backward(grad, query, key, v, mask)
    else:
        grads = score_backward_op(grad, query, key, v, mask, state)
    return *grads, None, [None] * len(state)


def _plain_score_backward(
    grad: Tensor, query: Tensor, key: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[Tensor | None, ...]:
    grad = grad if mask is None else torch.where(mask, grad, 0)
    return plain.derivative(plain.scores, grad, query, key, v)


def _keep_attend(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, v, mask, state = inputs
    ctx.save_for_backward(query, key, value, v, mask, output[1], *state)
    ctx.mark_non_differentiable(output[1])


@torch.autocast("cpu", enabled=False)  # type: ignore[untyped-decorator]
def _attend_backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    query, key, value, v, mask, kept, *state = ctx.saved_tensors
    if plain_backward(grad):
        grads = _plain_attend_backward(grad, query, key, value, v, mask)
    else:
        grads = attend_backward_op(grad, query, key, value, v, mask, kept, state)
    return *grads, None, [None] * len(state)


def _plain_attend_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[Tensor | None, ...]:
    function = functools.partial(plain.attend, mask=mask)
    return plain.derivative(function, grad, query, key, value, v)


score_op.register_autograd(_score_backward, setup_context=_keep_score)
attend_op.register_autograd(_attend_backward, setup_context=_keep_attend)


# Autograd functions


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        v: Tensor,
        mask: Tensor | None,
        state: State,
        source: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(query, key, v, mask, *state)
        ctx.source = _source_of(source, query)
        return compiled.score(query, key, v, mask, state)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key, v, mask, *state = ctx.saved_tensors
        if plain_backward(grad):
            grads = _plain_score_backward(grad, query, key, v, mask)
        elif not _leaves(ctx, v, state):
            grads = compiled.score_backward(grad, query, key, v, mask, state)
        else:
            grad = grad if mask is None else torch.where(mask, grad, 0)
            d_query, d_v = compiled.step_backward(grad, query, key, v, state)
            _leave(ctx, query, v, grad)
            grads = d_query, None, d_v
        return *grads, None, None, None


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        v: Tensor,
        mask: Tensor | None,
        state: State,
        source: Tensor | None,
    ) -> Tensor:
        context, kept = compiled.attend(query, key, value, v, mask, state)
        ctx.save_for_backward(query, key, value, v, mask, kept, *state)
        ctx.source = _source_of(source, query)
        return context

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key, value, v, mask, kept, *state = ctx.saved_tensors
        if plain_backward(grad):
            grads = _plain_attend_backward(grad, query, key, value, v, mask)
        elif not _leaves(ctx, v, state):
            grads = compiled.attend_backward(grad, query, key, value, v, mask, kept, state)
        else:
            d_scores = torch.bmm(grad, value.mT)
            compiled.through_softmax(kept, d_scores, mask)
            d_query, d_v = compiled.step_backward(d_scores, query, key, v, state)
            _leave(ctx, query, v, d_scores, kept, grad)
            grads = d_query, None, None, d_v
        return *grads, None, None, None


# What decoder steps leave to their source


class Step(NamedTuple):
    """What the gradients of key and value can be computed from, once for all steps."""

    query: Tensor
    v: Tensor
    d_scores: Tensor
    weights: Tensor | None = None
    grad: Tensor | None = None


class _Source(torch.autograd.Function):
    """The keys and values of a memory; its output, empty, stands for them in decoder steps.

    A step that computed its own gradients of key and value would fill, and PyTorch add up, m x d
    numbers for each. Steps leave theirs to the source, whose backward pass comes after those of all
    steps, and computes them as those of one call with so many queries.
    """

    @staticmethod
    def forward(ctx: Any, key: Tensor, value: Tensor, state: State) -> Tensor:
        ctx.save_for_backward(key, *state)
        ctx.left = WeakValueDictionary()  # by backward pass, several of which may be under way
        return key.new_empty(key.shape[0], 0)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        key, *state = ctx.saved_tensors
        left = ctx.left.get(backward_pass(), _Left())
        steps = list(left)
        left.clear()
        d_key = d_value = None
        for _, same in itertools.groupby(steps, lambda step: step.v.data_ptr()):
            group = list(same)
            d_scores = torch.cat([step.d_scores for step in group], 1)
            query = torch.cat([step.query for step in group], 1)
            found = compiled.score_backward(d_scores, query, key, group[0].v, None, state)[1]
            d_key = found if d_key is None else d_key.add_(found)
        weights = [step.weights for step in steps if step.weights is not None]
        if weights and ctx.needs_input_grad[1]:
            grads = torch.cat([step.grad for step in steps if step.grad is not None], 1)
            d_value = torch.bmm(torch.cat(weights, 1).mT, grads)
        return d_key, d_value, None


class _Left(list[Step]):
    """The steps that one backward pass has left to a source."""


def _source_of(source: Tensor | None, query: Tensor) -> Any:
    """The node to which a step leaves gradients; None if it is to compute all of them itself.

    Another node may have come between: FSDP puts one on all that goes into a module.
    """
    node = None if source is None or query.shape[1] > 1 else source.grad_fn
    return node if hasattr(node, "left") else None


def _leaves(ctx: Any, v: Tensor, state: State) -> bool:
    """Whether a step is to leave the gradients of key and value to its source."""
    return ctx.source is not None and compiled.finite(v) and not compiled.any_direct(state)


def _leave(ctx: Any, *step: Any) -> None:
    """Leave a step to its source, unless nobody asks this pass for gradients of the source."""
    if not will_run(ctx.source):
        return
    left = ctx.source.left.get(backward_pass())
    if left is None:
        left = ctx.source.left[backward_pass()] = _Left()
        # the source has a weak reference: what it never fetches goes with the pass that owns it,
        # however that ends
        after_backward(left.clear)
    left.append(Step(*step))
