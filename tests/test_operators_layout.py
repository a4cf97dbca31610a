"""Every operator on tensors of size zero, and of any layout in memory."""

from typing import Any

import pytest
import torch

from comparing import assert_all_near, assert_near, derivatives, probe
from operator_cases import (
    cases,
    masking,
)


@pytest.mark.parametrize("sizes", [{"batch": (0,)}, {"n": 0}, {"m": 0}, {"d_v": 0}], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@cases
def test_zero_sizes(case, sizes, masked):
    tensors = case.inputs(**sizes)
    batch, n, m = tensors[0].shape[0], tensors[0].shape[1], tensors[1].shape[1]
    given: dict[str, Any] = {"need_weights": True}
    if masked:
        given["mask"] = torch.ones(batch, n, m, dtype=torch.bool)
        given["lengths"] = torch.full((batch,), min(m, 2))
    context, weights, *gradients = derivatives(case.call, tensors, 2, **given)
    assert context.shape == (batch, n, tensors[2].shape[-1])
    assert weights.shape == (batch, n, m)
    assert_all_near([context, weights], case.oracle(*tensors, **masks_of(given)))
    assert all(x.isfinite().all() for x in gradients)
    assert_near(case.call(*tensors, **masks_of(given)).context, context)


def masks_of(given):
    return {name: x for name, x in given.items() if name != "need_weights"}


LAYOUTS = {
    "transposed": lambda x: x.mT.contiguous().mT if x.ndim > 1 else x,
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2] if x.ndim else x,
    "batch_last": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0) if x.ndim > 1 else x,
    "expanded": lambda x: x[:1].expand_as(x) if x.ndim > 2 else x,
    "expanded_width": lambda x: x[..., :1].expand_as(x) if x.ndim > 2 else x,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", [1, 2])
@cases
def test_layout_in_memory_changes_nothing(case, layout, order):
    tensors, given = case.inputs(), masking(case, "both")
    move = LAYOUTS[layout]
    assert not move(tensors[0]).is_contiguous()

    def moved(*x):
        return case.call(*map(move, x), **given)

    def copied(*x):
        return case.call(*(move(y).contiguous() for y in x), **given)

    assert_all_near(derivatives(moved, tensors, order), derivatives(copied, tensors, order), 1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
@cases
def test_layout_of_the_incoming_gradient_changes_nothing(case, layout):
    leaves = [x.requires_grad_() for x in case.inputs()]
    context = case.call(*leaves, **masking(case, "both")).context
    given = LAYOUTS[layout](probe(context))
    assert not given.is_contiguous()
    how = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    actual = torch.autograd.grad(context, leaves, given, **how)
    expected = torch.autograd.grad(context, leaves, given.contiguous(), **how)
    assert_all_near(actual, expected, 1e-12)
