"""Half types where the fused kernel is taken: float32 within, in the backward pass too."""

import pytest
import torch
from torch.nn import functional as F

import luong
from luong.kernels import dot
from rounding import assert_rounded

N = 60
half = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])


def plain(query, key, value, mask, scale):
    """The formula with all numbers but the result in `query`'s dtype or float32."""
    scores = torch.promote_types(query.dtype, torch.float32)
    query, key = query.to(scores), key.to(scores)
    weights = F.softmax((query @ key.mT * scale).masked_fill(~mask, -torch.inf), -1)
    return (weights.nan_to_num(0) @ value.to(scores)).to(value.dtype)


def gradients(function, tensors, grad):
    leaves = [x.clone().requires_grad_() for x in tensors]
    found = function(*leaves)
    return [found.detach(), *torch.autograd.grad(found, leaves, grad.to(found.dtype))]


def eager(query, key, value, **given):
    return luong.scaled_dot_attention(query, key, value, **given).context


def compiled(query, key, value, **given):
    torch._dynamo.reset()
    function = torch.compile(eager, fullgraph=True, backend="aot_eager")
    return function(query, key, value, **given)


def ours_and_plain(run, tensors, grad, mask, scale):
    ours = gradients(lambda *x: run(*x, mask=mask, scale=scale), tensors, grad)
    others = [
        gradients(lambda q, k, x: plain(q, k, x, mask, scale), [x.to(dtype) for x in tensors], grad)
        for dtype in (tensors[0].dtype, torch.float64)
    ]
    return ours, *others


@half
@pytest.mark.parametrize("size", [1, 30, 900])
@pytest.mark.parametrize(("d_k", "d_v", "scale"), [(16, 16, 1.0), (64, 64, 1.0), (7, 16, 0.3)])
def test_gradients_keep_to_float32_whatever_the_scores(dtype, size, d_k, d_v, scale):
    torch.manual_seed(0)
    query, key = ((size * torch.randn(2, N, d_k)).to(dtype) for _ in range(2))
    value, grad = torch.randn(2, N, d_v).to(dtype), torch.randn(2, N, d_v).to(dtype)
    for mask in (torch.ones(2, 1, N, dtype=torch.bool), torch.rand(2, N, N) < 0.5):
        mask[1, :, 40:] = False
        mask[0, 3:4] = False  # a query with nothing to attend, if it has a row of its own
        assert_rounded(*ours_and_plain(eager, [query, key, value], grad, mask, scale))


@half
def test_compiled_gradients_keep_to_float32(dtype):
    torch.manual_seed(0)
    tensors = [(size * torch.randn(2, N, 16)).to(dtype) for size in (900, 900, 1)]
    grad, mask = torch.randn(2, N, 16).to(dtype), torch.rand(2, N, N) < 0.5
    assert_rounded(*ours_and_plain(compiled, tensors, grad, mask, 1.0))


@half
def test_blocks_of_queries_are_as_good_as_all_at_once(monkeypatch, dtype):
    torch.manual_seed(0)
    tensors = [torch.randn(3, N, 16).to(dtype) for _ in range(3)]
    grad, mask = torch.randn(3, N, 16).to(dtype), torch.rand(3, N, N) < 0.7
    monkeypatch.setattr(dot, "_SMALL", 3 * N * 7)  # 7 queries at a time, then 4
    assert_rounded(*ours_and_plain(eager, tensors, grad, mask, 1.0))
    assert_rounded(*ours_and_plain(eager, tensors, grad, mask[:, :1], 1.0))


def test_a_backward_pass_under_autocast_keeps_to_float32():
    torch.manual_seed(0)
    tensors = [torch.randn(2, N, 16).bfloat16() for _ in range(3)]
    grad = torch.randn(2, N, 16).bfloat16()
    expected = gradients(eager, tensors, grad)
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(eager, tensors, grad)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
