"""Transforms and second derivatives of additive attention."""

import pytest
import torch
from torch.func import grad, vmap

import luong
from additive_cases import backends, inputs, normal
from comparing import assert_all_near, combine, derivatives
from luong import reference

LENGTHS = torch.tensor([7, 2, 0])


def a_context(*tensors, lengths=LENGTHS):
    return luong.additive_attention(*tensors, lengths=lengths).context


CALLS = {
    "scores": (lambda q, k, x, v: luong.additive_score(q, k, v)),
    "attention": a_context,
}
calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@calls
def test_func_grad_equals_backward(call):
    tensors = inputs()
    _, *expected = derivatives(lambda *x: [call(*x)], tensors)
    actual = grad(lambda *x: combine([call(*x)]), argnums=(0, 1, 2, 3))(*tensors)
    assert_all_near(actual, expected, 1e-13)


def test_vmap_also_over_v_and_of_grad():
    query, key, value, v = inputs()

    def one(query, key, value, v, length):
        return a_context(query, key, value, v, lengths=length)

    vs = torch.stack([v, 2 * v, -v])
    expected = [a_context(query, key, value, x) for x in vs]
    over_v = vmap(lambda v: a_context(query, key, value, v))
    assert_all_near(over_v(vs), expected)
    over_all = vmap(one)
    each = [one(*row) for row in zip(query, key, value, vs, LENGTHS, strict=True)]
    assert_all_near(over_all(query, key, value, vs, LENGTHS), each)
    slopes = vmap(grad(lambda *x: one(*x).sum(), argnums=(0, 1, 2, 3)))(
        query, key, value, vs, LENGTHS
    )
    for i, row in enumerate(zip(query, key, value, vs, strict=True)):
        leaves = [x.clone().requires_grad_() for x in row]
        own = torch.autograd.grad(a_context(*leaves, lengths=LENGTHS[i]).sum(), leaves)
        assert_all_near([x[i] for x in slopes], own, 1e-13)


@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
@calls
@backends
def test_first_and_second_derivatives(backend, call, check):
    tensors = [x.requires_grad_() for x in inputs(2, 3, 4, 2)]

    def function(query, key, value, v):
        if call is CALLS["scores"]:
            return luong.additive_score(query, key, v, backend=backend)
        given = {"lengths": torch.tensor([3, 2, 0]), "backend": backend}
        return luong.additive_attention(query, key, value, v, **given).context

    assert check(function, tensors)


@backends
def test_gradients_of_one_tensor_in_several_places_add_up(backend):
    x, v = normal(3, 7, 19), inputs()[3]

    def one(x, v):
        return luong.additive_attention(x, x, x, v, backend=backend)

    def score(x, v):
        return [luong.additive_score(x, x, v, backend=backend)]

    def plain(x, v):
        return reference.additive_attention(x, x, x, v)[:1]

    def plain_score(x, v):
        return [reference.additive_score(x, x, v)]

    for ours, theirs in ((one, plain), (score, plain_score)):
        actual, expected = (derivatives(f, (x, v), 2) for f in (ours, theirs))
        assert_all_near(actual, expected, 1e-12)
