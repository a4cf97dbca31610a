r"""The gradients that decoder steps leave to their memory.

A decoder attends to one memory step by step. If each step computed its own gradients of key and
value, each would fill m x d numbers, and PyTorch would add them up. Instead, a step computes the
gradients of its query and of v, and leaves the gradients of its m scores to the memory. From these
the memory computes those of key and value once for all steps, as for one call with all queries.

PyTorch has to be told to visit the memory after the steps. For that the memory has a token: a
tensor without numbers, made from key and value, which each step takes as one more input.

    forward:            key   value              backward:        d_key   d_value
                          \   /                                      \   /
                         [memory]                                  [memory]
                             |                                         ^
                           token                          steps of this pass, all at once
                   __________|__________                    ___________|____________
                  |          |          |                  ^           ^            ^
    query 1 -> [step 1]   [step 2]   [step 3]           [step 1]    [step 2]     [step 3]
                  |          |          |                  ^           ^            ^
               context    context    context               d_context   d_context    d_context

PyTorch visits [memory] when it has visited all the steps of a pass. A pass is one call of backward,
and the list of its steps belongs to that pass:

* Several passes may be under way, in threads, or one within a hook of another. Each has a list.
* A pass that is asked for other gradients only does not visit [memory]. No step leaves anything.
* A pass may fail, and its list must go with it. PyTorch, which is asked to clear the list when the
  pass ends, is the only one to hold it; the memory has a weak reference.

A step has to compute all its gradients itself if it has several queries, if v is not finite, or if
the keys are out of the range of the kernels (`direct`). A pass that is to be differentiated again
is computed by PyTorch's own operations only.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, final
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from luong._torch_private import after_backward, backward_pass, will_run
from luong.kernels.additive import compiled


class Step(NamedTuple):
    """A decoder step: the tensors from which the gradients of key and value are computed."""

    query: Tensor
    v: Tensor
    d_scores: Tensor
    weights: Tensor | None = None  # None if the step returned its scores
    d_context: Tensor | None = None


class _Steps(list[Step]):
    """The steps of one backward pass. (A plain list cannot be weakly referenced.)"""


@final
class StepGradients:
    """The place where the steps of a memory leave gradients.

    Attributes:
        token: the tensor without numbers that each step takes as an input.
    """

    def __init__(self, key: Tensor, value: Tensor, terms: Sequence[Tensor]) -> None:
        self._passes: WeakValueDictionary[int, _Steps] = WeakValueDictionary()
        self.token: Tensor = _Memory.apply(  # type: ignore[no-untyped-call]
            key, value, terms, self._passes
        )

    def leave(self, step: Step) -> None:
        """Leave a step to the memory, unless this pass does not ask for the memory's gradients."""
        if not will_run(self.token.grad_fn):
            return
        steps = self._passes.get(backward_pass())
        if steps is None:
            steps = self._passes[backward_pass()] = _Steps()
            after_backward(steps.clear)
        steps.append(step)


class _Memory(torch.autograd.Function):
    """Make the token from key and value; backward, compute their gradients from the steps."""

    @staticmethod
    def forward(
        ctx: Any,
        key: Tensor,
        value: Tensor,
        terms: Sequence[Tensor],
        passes: WeakValueDictionary[int, _Steps],
    ) -> Tensor:
        ctx.save_for_backward(key, *terms)
        ctx.passes = passes
        return key.new_empty(key.shape[0], 0)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        key, *terms = ctx.saved_tensors
        left = ctx.passes.get(backward_pass(), _Steps())
        steps = list(left)
        left.clear()
        d_value = _value_gradient(steps) if ctx.needs_input_grad[1] else None
        return _key_gradient(steps, key, terms), d_value, None, None


def _key_gradient(steps: list[Step], key: Tensor, terms: Sequence[Tensor]) -> Tensor | None:
    """Compute the gradient of the keys, by one call with all queries for each v."""
    d_key = None
    for _, same in itertools.groupby(steps, lambda step: step.v.data_ptr()):
        group = list(same)
        d_scores = torch.cat([step.d_scores for step in group], 1)
        query = torch.cat([step.query for step in group], 1)
        found = compiled.score_backward(d_scores, query, key, group[0].v, None, terms)[1]
        d_key = found if d_key is None else d_key.add_(found)
    return d_key


def _value_gradient(steps: list[Step]) -> Tensor | None:
    weights = [step.weights for step in steps if step.weights is not None]
    d_contexts = [step.d_context for step in steps if step.d_context is not None]
    return torch.bmm(torch.cat(weights, 1).mT, torch.cat(d_contexts, 1)) if weights else None
