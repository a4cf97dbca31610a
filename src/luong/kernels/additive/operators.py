"""The numba backend of additive attention, with the derivatives that PyTorch calls.

In eager mode a call goes through an autograd function, which costs half as much as an operator.
Graphs of torch.compile hold operators. Arguments and results are those of compiled.py.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from luong import _memory
from luong.kernels.additive import compiled, plain
from luong.kernels.additive.step_gradients import Step, StepGradients
from luong.kernels.dispatch import plain_backward

Terms = Sequence[Tensor]  # of compiled.KeyTerms: operators of PyTorch take a list


def prepare(key: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    """Compute the terms of keys."""
    if torch.compiler.is_compiling():
        found: tuple[Tensor, ...] = prepare_op(key, mask)
        return found
    return _memory.Terms.of(compiled.prepare(key, mask), mask)


def step_gradients(key: Tensor, value: Tensor, terms: Terms) -> StepGradients | None:
    """Return the place for the gradients of key and value of decoder steps; None: no place."""
    if not _learns(key, value) or torch.compiler.is_compiling() or compiled.any_direct(terms):
        return None
    return StepGradients(key, value, terms)


def score(
    query: Tensor,
    key: Tensor,
    v: Tensor,
    mask: Tensor | None,
    terms: Terms,
    steps: StepGradients | None,
) -> Tensor:
    """Return scores (b, n, m); `steps` is None or belongs to these keys."""
    if torch.compiler.is_compiling():
        found: Tensor = score_op(query, key, v, mask, list(terms))
    elif not _learns(query, key, v):
        found = compiled.score(query, key, v, mask, terms)
    else:
        found = _DifferentiableScores.apply(  # type: ignore[no-untyped-call]
            query, key, v, mask, terms, *_for_steps(steps, query)
        )
    return found


def context(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    v: Tensor,
    mask: Tensor | None,
    terms: Terms,
    steps: StepGradients | None,
) -> Tensor:
    """Return the context (b, n, d_v)."""
    if torch.compiler.is_compiling():
        found: Tensor = context_op(query, key, value, v, mask, list(terms))[0]
    elif not _learns(query, key, value, v):
        found = compiled.context_and_weights(query, key, value, v, mask, terms)[0]
    else:
        found = _DifferentiableContext.apply(  # type: ignore[no-untyped-call]
            query, key, value, v, mask, terms, *_for_steps(steps, query)
        )
    return found


def _learns(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _for_steps(
    steps: StepGradients | None, query: Tensor
) -> tuple[Tensor | None, StepGradients | None]:
    """Return the token and the place for the gradients of a step; for many queries, None twice."""
    return (None, None) if steps is None or query.shape[1] > 1 else (steps.token, steps)


# Operators


_operator = functools.partial(torch.library.custom_op, mutates_args=())
prepare_op = _operator("luong::additive_prepare")(compiled.prepare)
score_op = _operator("luong::additive_score")(compiled.score)
score_backward_op = _operator("luong::additive_score_backward")(compiled.score_backward)
context_op = _operator("luong::additive_attend")(compiled.context_and_weights)
context_backward_op = _operator("luong::additive_attend_backward")(compiled.context_backward)


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
def _(query: Tensor, key: Tensor, v: Tensor, mask: Tensor | None, terms: Terms) -> Tensor:
    return query.new_empty(*query.shape[:2], key.shape[1])


@score_backward_op.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in (query, key, v))


@context_op.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    (b, n, d), m = query.shape, key.shape[1]
    kept = compiled.kept_rows(n, m, d)
    return query.new_empty(b, n, value.shape[2]), query.new_empty(b, kept, m)


@context_backward_op.register_fake
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, v: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in (query, key, value, v))


def _keep_score(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, key, v, mask, terms = inputs
    ctx.save_for_backward(query, key, v, mask, *terms)


@torch.autocast("cpu", enabled=False)  # type: ignore[untyped-decorator]
def _score_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    query, key, v, mask, *terms = ctx.saved_tensors
    if plain_backward(grad):
        grads = _plain_score_backward(grad, query, key, v, mask)
    else:
        grads = score_backward_op(grad, query, key, v, mask, terms)
    return *grads, None, [None] * len(terms)


def _plain_score_backward(
    grad: Tensor, query: Tensor, key: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[Tensor | None, ...]:
    grad = grad if mask is None else torch.where(mask, grad, 0)
    return plain.derivative(plain.scores, grad, query, key, v)


def _keep_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, v, mask, terms = inputs
    ctx.save_for_backward(query, key, value, v, mask, output[1], *terms)
    ctx.mark_non_differentiable(output[1])


@torch.autocast("cpu", enabled=False)  # type: ignore[untyped-decorator]
def _context_backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    query, key, value, v, mask, kept, *terms = ctx.saved_tensors
    if plain_backward(grad):
        grads = _plain_context_backward(grad, query, key, value, v, mask)
    else:
        grads = context_backward_op(grad, query, key, value, v, mask, kept, terms)
    return *grads, None, [None] * len(terms)


def _plain_context_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[Tensor | None, ...]:
    function = functools.partial(plain.context, mask=mask)
    return plain.derivative(function, grad, query, key, value, v)


score_op.register_autograd(_score_backward, setup_context=_keep_score)
context_op.register_autograd(_context_backward, setup_context=_keep_context)


# Autograd functions


class _DifferentiableScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        v: Tensor,
        mask: Tensor | None,
        terms: Terms,
        token: Tensor | None,
        steps: StepGradients | None,
    ) -> Tensor:
        ctx.save_for_backward(query, key, v, mask, *terms)
        ctx.steps = steps
        return compiled.score(query, key, v, mask, terms)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key, v, mask, *terms = ctx.saved_tensors
        if plain_backward(grad):
            grads = _plain_score_backward(grad, query, key, v, mask)
        elif ctx.steps is None or not compiled.finite(v):
            grads = compiled.score_backward(grad, query, key, v, mask, terms)
        else:
            grad = grad if mask is None else torch.where(mask, grad, 0)
            d_query, d_v = compiled.step_backward(grad, query, key, v, terms)
            ctx.steps.leave(Step(query, v, grad))
            grads = d_query, None, d_v
        return *grads, *[None] * 4


class _DifferentiableContext(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        v: Tensor,
        mask: Tensor | None,
        terms: Terms,
        token: Tensor | None,
        steps: StepGradients | None,
    ) -> Tensor:
        context, kept = compiled.context_and_weights(query, key, value, v, mask, terms)
        ctx.save_for_backward(query, key, value, v, mask, kept, *terms)
        ctx.steps = steps
        return context

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key, value, v, mask, kept, *terms = ctx.saved_tensors
        if plain_backward(grad):
            grads = _plain_context_backward(grad, query, key, value, v, mask)
        elif ctx.steps is None or not compiled.finite(v):
            grads = compiled.context_backward(grad, query, key, value, v, mask, kept, terms)
        else:
            d_scores = torch.bmm(grad, value.mT)
            compiled.through_softmax(kept, d_scores, mask)
            d_query, d_v = compiled.step_backward(d_scores, query, key, v, terms)
            ctx.steps.leave(Step(query, v, d_scores, kept, grad))
            grads = d_query, None, None, d_v
        return *grads, *[None] * 4
