"""Dot-product attention on PyTorch's own matrix products and fused kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from luong._mask import fill
from luong._memory import Attended, Memory, known
from luong.kernels import dense
from luong.kernels.batch import flatten
from luong.kernels.dispatch import forward_mode, plain_backward

_SMALL = 1 << 20  # elements of n x m x d


def scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Return scale · query keyᵀ (*batch, n, m), in float32 for half types."""
    if scale == 1.0:
        return dense.product(query, key.mT)
    if key.shape[-2] < query.shape[-1]:  # the smaller array takes the multiplication
        return dense.product(query, key.mT) * scale
    if query.dtype in dense.HALF:
        query = query.float()
    return dense.product(query * scale, key.mT)


def attention(
    query: Tensor, memory: Memory, *, scale: float, dropout: float, need_weights: bool
) -> Attended:
    """Return softmax(scale · query keyᵀ) value."""
    found = known(memory)
    if found.step is not None:
        logits = _step_scores(query, memory.key.mT, found.step.bias, scale)
        return dense.weigh(logits, memory.value, dropout=dropout, need_weights=need_weights)
    key, value, mask, empty = memory.key, memory.value, memory.mask, found.empty
    if (
        need_weights
        or dropout
        or forward_mode()
        or _learns_in_a_graph(query, key, value)
        or 0 in (query.numel(), key.numel(), value.numel())
    ):
        logits = scores(query, key, scale)
        return dense.attention(logits, memory, dropout=dropout, need_weights=need_weights)
    if mask is not None and empty is not None:
        mask = mask | empty  # an empty row may attend to anything: it is zeroed below
    batch, tensors = flatten(query, key, value, mask)
    context = _context(*tensors, scale=scale)
    return Attended(fill(context.reshape(*batch, *context.shape[-2:]), empty), None)


def _step_scores(query: Tensor, key: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Return scale · query key + bias, in one operation where that is possible."""
    if bias is not None:
        return torch.baddbmm(bias, query, key, alpha=scale)
    return torch.bmm(query if scale == 1.0 else query * scale, key)


def _learns_in_a_graph(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether compiled code would take the fused kernel's backward pass in a half type.

    All scores at once are exact there (see `_blocked_backward`), and on the CPU faster.
    """
    if not torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return False
    half = query.dtype in dense.HALF and query.device.type == "cpu"
    return half and _differentiated(query, key, value)


def _differentiated(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _plain_is_better(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether a call takes no gradients, or is too small to repay an autograd function."""
    return not _differentiated(query, key, value) or query.numel() * key.shape[-2] < _SMALL


def _fused_is_better(query: Tensor, value: Tensor) -> bool:
    """Return whether the weights would be larger than the inputs."""
    (n, d_k), (m, d_v) = query.shape[-2:], value.shape[-2:]
    return n * m > n * d_k + m * d_v


def _context(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scale: float
) -> Tensor:
    """Return the context (b, n, d_v) of query (b, n, d_k), key (b, m, d_k), value (b, m, d_v).

    Two matrix products are faster on the CPU while the weights are no larger than the inputs. Where
    they are larger, PyTorch's fused kernel computes it, whose memory is linear in n and m.
    """
    d_k, d_v = query.shape[-1], value.shape[-1]
    # A choice by size would add a guard to a compiled graph, or prevent an export.
    compiling = torch.compiler.is_compiling()
    fused = compiling or query.dtype in dense.HALF or _fused_is_better(query, value)
    if fused and d_k < d_v:  # the fused kernel needs d_k == d_v; added zeros change no score
        query, key = F.pad(query, (0, d_v - d_k)), F.pad(key, (0, d_v - d_k))
    elif fused and d_v < d_k:
        value = F.pad(value, (0, d_k - d_v))
    if compiling:
        context = _sdpa(query, key, value, mask, scale)
    elif not fused and _plain_is_better(query, key, value):
        context, _ = _products(query, key, value, mask, scale)
    else:
        context, _ = _Context.apply(query, key, value, mask, scale, fused)  # type: ignore[no-untyped-call]
    return context[..., :d_v] if fused and d_v < d_k else context


class _Context(torch.autograd.Function):
    """softmax(scale · query keyᵀ) value with two derivatives, which PyTorch's fused kernel lacks.

    If the backward pass is to be differentiated itself, it is the plain formula's; else, as a rule,
    it is the counterpart of the forward pass. The second output is kept for that: the weights, or
    the log-sum-exp of the fused kernel.
    """

    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, fused: bool
    ) -> tuple[Tensor, Tensor]:
        return (_fused if fused else _products)(query, key, value, mask, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        query, key, value, mask, ctx.scale, ctx.fused = inputs
        ctx.save_for_backward(query, key, value, mask, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
        query, key, value, mask, context, kept = ctx.saved_tensors
        if plain_backward(grad):
            grads = _plain_backward(grad, query, key, value, mask, ctx.scale)
        elif ctx.fused and grad.dtype in dense.HALF and grad.device.type == "cpu":
            grads = _blocked_backward(grad, query, key, value, mask, ctx.scale)
        elif ctx.fused:
            grads = _fused_backward(grad, query, key, value, mask, context, kept, ctx.scale)
        else:
            grads = _products_backward(grad, query, key, value, kept, ctx.scale)
        return *grads, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        """Flatten one more batch dimension into the batch."""

        def flat(x: Tensor, dim: int | None) -> Tensor:
            x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            return x.flatten(0, 1)

        tensors = [
            x if x is None else flat(x, dim) for x, dim in zip(inputs[:4], in_dims[:4], strict=True)
        ]
        outputs = _Context.apply(*tensors, *inputs[4:])  # type: ignore[no-untyped-call]
        return tuple(x.unflatten(0, (info.batch_size, -1)) for x in outputs), (0, 0)


def _products(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    weights = _weights(query, key, mask, scale)
    return torch.bmm(weights, value), weights


def _weights(query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    logits = torch.bmm(query, key.mT)
    if scale != 1.0:
        logits = logits * scale
    if mask is not None:
        logits = torch.where(mask, logits, float("-inf"))
    return dense.flush(torch.softmax(logits, -1))


def _products_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, weights: Tensor, scale: float
) -> tuple[Tensor, ...]:
    d_scores = torch.bmm(grad, value.mT).mul_(weights)
    d_scores.addcmul_(weights, d_scores.sum(-1, keepdim=True), value=-1).mul_(scale)
    d_scores = F.hardshrink(d_scores, dense.LARGEST_DENORMAL[d_scores.dtype])  # as `flush` does
    d_value = torch.bmm(weights.mT, grad)
    return torch.bmm(d_scores, key), torch.bmm(d_scores.mT, query), d_value


def _blocked_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, ...]:
    """Return the gradients, block of queries by block, with scores and weights in float32.

    Memory is linear in n and m.

    The fused kernel's own backward pass has weights e^(score - log-sum-exp), from scores that it
    computes again. Where scores are in the millions, the two round apart by more than 1. Here
    weights sum to 1 whatever the rounding.
    """
    (b, n, _), m, dtype = query.shape, key.shape[1], query.dtype
    step = max(1, _SMALL // (b * m))
    key, value, d_queries = key.float(), value.float(), []
    d_key, d_value = torch.zeros_like(key), torch.zeros_like(value)
    with dense.uncast(grad):
        for first in range(0, n, step):
            rows = slice(first, first + step)
            some, own = query[:, rows].float(), grad[:, rows].float()
            part = mask if mask is None or mask.shape[1] == 1 else mask[:, rows]
            weights = _weights(some, key, part, scale)
            d_query, *found = _products_backward(own, some, key, value, weights, scale)
            d_queries.append(d_query.to(dtype))
            d_key += found[0]
            d_value += found[1]
    return torch.cat(d_queries, 1), d_key.to(dtype), d_value.to(dtype)


def _fused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    if query.device.type != "cpu":
        context = _sdpa(query, key, value, mask, scale)
        return context, context.new_empty(context.shape[0], 0)
    # the operator behind scaled_dot_product_attention, called by its name for its log-sum-exp
    context, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *_heads(query, key, value), attn_mask=_bias(mask, query), scale=scale
    )
    return context[:, 0], logsumexp


def _fused_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    context: Tensor,
    logsumexp: Tensor,
    scale: float,
) -> tuple[Tensor, ...]:
    if query.device.type != "cpu":  # only the kernel's own autograd node knows what it kept
        with torch.enable_grad():
            query, key, value = (x.detach().requires_grad_() for x in (query, key, value))
            context = _sdpa(query, key, value, mask, scale)
            return torch.autograd.grad(context, (query, key, value), grad)
    grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *_heads(grad, query, key, value, context),
        logsumexp,
        0.0,
        False,
        attn_mask=_bias(mask, query),
        scale=scale,
    )
    return tuple(x[:, 0] for x in grads)


def _plain_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, ...]:
    logits = scores(query, key, scale)
    if mask is not None:
        logits = torch.where(mask, logits, float("-inf"))
    weights = dense.flush(torch.softmax(logits, -1))
    d_weights = dense.product(grad, value.mT)
    d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdim=True)) * scale
    d_query = dense.product(d_scores, key).to(query.dtype)
    d_key = dense.product(d_scores.mT, query).to(key.dtype)
    return d_query, d_key, dense.product(weights.mT, grad).to(value.dtype)


def _sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    mask = None if mask is None else mask[:, None]
    query, key, value = (x[:, None] for x in (query, key, value))  # its fused kernels want heads
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)[:, 0]


def _heads(*tensors: Tensor) -> list[Tensor]:
    return [(x if x.stride(-1) == 1 else x.contiguous())[:, None] for x in tensors]


def _bias(mask: Tensor | None, like: Tensor) -> Tensor | None:
    if mask is None:
        return None
    return like.new_zeros(mask.shape).masked_fill_(~mask, float("-inf"))[:, None]
