"""Dot-product attention on PyTorch's own matrix products and fused kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from luong._mask import Memory, fill
from luong.kernels import dense


def scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """scale · query keyᵀ, (*batch, n, m); in float32 for half types."""
    if scale == 1.0:
        return dense.product(query, key.mT)
    if key.shape[-2] < query.shape[-1]:  # the smaller array takes the multiplication
        return dense.product(query, key.mT) * scale
    if query.dtype in dense.HALF:
        query = query.float()
    return dense.product(query * scale, key.mT)


def attend(
    query: Tensor, memory: Memory, *, scale: float, dropout: float, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """softmax(scale · query keyᵀ) value.

    Plain products while the weights are no larger than the inputs (they are the faster there, on
    the CPU, and keep every derivative); PyTorch's fused kernel beyond, in linear memory.
    """
    key, value, mask, empty = memory
    if need_weights or dropout or not _fused_is_better(query, key, value):
        logits = scores(query, key, scale)
        return dense.attend(logits, memory, dropout=dropout, need_weights=need_weights)
    if mask is not None and empty is not None:
        mask = mask | empty  # an empty row may attend to anything: it is zeroed below
    context = _fused(query, key, value, mask, scale)
    return fill(context, empty), None


def _fused_is_better(query: Tensor, key: Tensor, value: Tensor) -> bool:
    if query.shape[-1] != value.shape[-1]:
        return False
    if torch.compiler.is_compiling():  # a choice by size would become a guard, or bar the export
        return True
    if 0 in (query.numel(), key.numel()):
        return False
    n, m, d = query.shape[-2], key.shape[-2], query.shape[-1]
    return query.dtype in dense.HALF or n * m > (n + m) * d


def _fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    if mask is not None:
        batch = torch.broadcast_shapes(batch, mask.shape[:-2])
        mask = mask.expand(*batch, *mask.shape[-2:]).reshape(-1, 1, *mask.shape[-2:])
    query, key, value = (
        x.expand(*batch, *x.shape[-2:]).reshape(-1, 1, *x.shape[-2:]) for x in (query, key, value)
    )
    if torch.compiler.is_compiling():
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    else:
        context = _Fused.apply(query, key, value, mask, scale)[0]  # type: ignore[no-untyped-call]
    return context.reshape(*batch, *context.shape[-2:])


class _Fused(torch.autograd.Function):
    """`scaled_dot_product_attention`, (b, 1, n, d), with a derivative of its derivative.

    PyTorch's kernel has none. Where a graph of the backward pass is wanted, that pass is the plain
    formula; where not (the ordinary case), it is PyTorch's kernel.
    """

    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        if query.device.type != "cpu":
            context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
            return context, context.new_empty(0)
        query, key, value = (_unit_stride(x) for x in (query, key, value))
        # the operator behind scaled_dot_product_attention, called by name for its log-sum-exp
        context, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=_bias(mask, query), scale=scale
        )
        return context, logsumexp

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        query, key, value, mask, ctx.scale = inputs
        ctx.save_for_backward(query, key, value, mask, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
        query, key, value, mask, context, logsumexp = ctx.saved_tensors
        if torch.is_grad_enabled():
            grads = _plain_backward(grad, query, key, value, mask, ctx.scale)
        elif query.device.type != "cpu":
            grads = _recomputed_backward(grad, query, key, value, mask, ctx.scale)
        else:
            query, key, value = (_unit_stride(x) for x in (query, key, value))
            grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad.contiguous(),
                query,
                key,
                value,
                context,
                logsumexp,
                0.0,
                False,
                attn_mask=_bias(mask, query),
                scale=ctx.scale,
            )
        return *grads, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        size = info.batch_size
        *tensors, scale = inputs
        flat = [
            None
            if x is None
            else (x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)
            for x, dim in zip(tensors, in_dims[:-1], strict=True)
        ]
        outputs = _Fused.apply(*flat, scale)  # type: ignore[no-untyped-call]
        return tuple(x.unflatten(0, (size, -1)) for x in outputs), (0, 0)


def _unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _bias(mask: Tensor | None, like: Tensor) -> Tensor | None:
    if mask is None:
        return None
    return torch.zeros(mask.shape, dtype=like.dtype).masked_fill_(~mask, float("-inf"))


def _plain_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, ...]:
    logits = scores(query, key, scale)
    if mask is not None:
        logits = logits.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(logits, -1)
    d_weights = dense.product(grad, value.mT)
    d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdim=True)) * scale
    d_query = dense.product(d_scores, key).to(query.dtype)
    d_key = dense.product(d_scores.mT, query).to(key.dtype)
    return d_query, d_key, dense.product(weights.mT, grad).to(value.dtype)


def _recomputed_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        query, key, value = (x.detach().requires_grad_() for x in (query, key, value))
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
        return torch.autograd.grad(context, (query, key, value), grad)
