"""Additive attention, score v · tanh(query + key), on queries and keys already projected.

`choose` of dispatch.py picks among the backends: compiled.py (numba), blocks.py (torch), plain.py.
Half types are computed in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from luong import _check
from luong._memory import Attended, Memory, known, remember
from luong.kernels import dense
from luong.kernels.additive import blocks, plain, windowed
from luong.kernels.batch import flatten
from luong.kernels.dispatch import choose, elements, is_small, plain_now
from luong.kernels.windowed import common

if TYPE_CHECKING:  # this module imports numba
    from luong.kernels.additive.step_gradients import StepGradients

Terms = tuple[Tensor, ...]  # see KeyTerms in compiled.py


def prepare(memory: Memory, backend: str | None) -> Memory:
    """Return the memory with all that the backend computes from its projected keys in advance."""
    (key, value, mask, lengths, _), empty = memory, known(memory).empty
    upcast = (key.float(), value.float()) if key.dtype in dense.HALF else None
    key, value = upcast or (key, value)
    if key.numel() == 0 or choose("additive", backend, _given(key, mask)) != "numba":
        return remember(*memory[:2], mask, lengths, empty=empty, upcast=upcast)
    from luong.kernels.additive import operators

    _, (_, flat, _, flat_mask) = flatten(key, key, key, mask)
    terms, steps = operators.prepare(flat.detach(), flat_mask), None
    if key.shape[:-1] == value.shape[:-1]:
        *_, flat_value, _ = flatten(key, key, value, mask)[1]
        steps = operators.step_gradients(flat, flat_value, terms)
    return remember(
        *memory[:2],
        mask,
        lengths,
        empty=empty,
        upcast=upcast,
        key_terms=terms,
        step_gradients=steps,
    )


def scores(
    query: Tensor,
    key: Tensor,
    v: Tensor,
    *,
    backend: str | None,
    mask: Tensor | None = None,
    terms: Terms | None = None,
    steps: StepGradients | None = None,
) -> Tensor:
    """Return scores (*batch, n, m), float32 for half types; undefined where `mask` is False."""
    query, key, v = map(dense.upcast, (query, key, v))
    if _check.autocast(query):
        with torch.autocast(query.device.type, enabled=False):
            return scores(query, key, v, backend=backend, mask=mask, terms=terms, steps=steps)
    chosen = choose("additive", backend, _given(query, key, v, mask), elements(query, key))
    if chosen == "reference" or 0 in (query.numel(), key.numel()):
        return plain.scores(query, key, v)
    batch, (query, key, _, mask) = flatten(query, key, key, mask)
    if chosen == "numba":
        from luong.kernels.additive import operators

        found: Tensor = operators.score(query, key, v, mask, *_known(key, mask, terms, steps))
    else:
        found = blocks.scores(query, key, v)
    return found.reshape(*batch, *found.shape[-2:])


def windowed_scores(
    query: Tensor,
    key: Tensor,
    v: Tensor,
    key_positions: Tensor,
    *,
    backend: str | None,
    terms: Terms | None = None,
) -> Tensor:
    """Return scores (*batch, n, w) with the keys at `key_positions`: see kernels/windowed."""
    query, key, v = map(dense.upcast, (query, key, v))
    if _check.autocast(query):
        with torch.autocast(query.device.type, enabled=False):
            return windowed_scores(query, key, v, key_positions, backend=backend, terms=terms)
    chosen = choose("windowed", backend, [query, key, v, key_positions])
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], key_positions.shape[:-2])
    if chosen == "reference" or 0 in (query.numel(), key.numel(), key_positions.numel()):
        return windowed.formula(
            query, key, v, key_positions.expand(*batch, *key_positions.shape[-2:])
        )
    n = query.shape[-2]
    _, (query, key, key_positions) = common(query, key, key_positions)
    if chosen == "numba":
        found = windowed.compiled(query, key, v, key_positions, _known(key, None, terms, None)[0])
    else:
        found = windowed.blocked(query, key, v, key_positions)
    return found.reshape(*batch, n, found.shape[-1])


def attention(
    query: Tensor,
    memory: Memory,
    v: Tensor,
    *,
    backend: str | None,
    dropout: float,
    need_weights: bool,
) -> Attended:
    """Return softmax(v · tanh(query + key)) value, and the weights if asked for."""
    found = known(memory)
    terms, steps = found.key_terms, found.step_gradients
    if found.step is not None:
        if backend is None and v.dtype == query.dtype and is_small(elements(query, memory.key)):
            logits = plain.scores(query, memory.key, v)
            return dense.step(logits, memory, dropout=dropout, need_weights=need_weights)
        if terms is not None and not dropout and _plain(v, query.dtype):
            return _step(query, memory, v, terms, steps, need_weights)
    if _check.autocast(query):
        with torch.autocast(query.device.type, enabled=False):
            return attention(
                query, memory, v, backend=backend, dropout=dropout, need_weights=need_weights
            )
    mask, dtype = memory.mask, memory.value.dtype
    key, value = found.upcast or (dense.upcast(memory.key), dense.upcast(memory.value))
    if need_weights or dropout:
        logits = scores(
            query,
            key,
            v,
            backend=backend,
            mask=mask,
            terms=terms,
            steps=steps,
        )
        return dense.attention(logits, memory, dropout=dropout, need_weights=need_weights)
    query, v = dense.upcast(query), dense.upcast(v)
    chosen = choose("additive", backend, _given(query, key, value, v, mask), elements(query, key))
    if chosen == "reference" or 0 in (query.numel(), key.numel(), value.numel()):
        return Attended(plain.context(query, key, value, v, mask).to(dtype), None)
    batch, (query, key, value, mask) = flatten(query, key, value, mask)
    if chosen == "numba":
        from luong.kernels.additive import operators

        of_keys = _known(key, mask, terms, steps)
        context = operators.context(query, key, value, v, mask, *of_keys)
    else:
        context = blocks.context(query, key, value, v, mask)
    return Attended(context.reshape(*batch, *context.shape[-2:]).to(dtype), None)


def _step(
    query: Tensor,
    memory: Memory,
    v: Tensor,
    terms: Terms,
    steps: StepGradients | None,
    need_weights: bool,
) -> Attended:
    """Return what `attention` does, for a few queries that need no more checks."""
    from luong.kernels.additive import operators

    key, value, mask, *_ = memory
    if not need_weights:
        return Attended(operators.context(query, key, value, v, mask, terms, steps), None)
    scores = operators.score(query, key, v, mask, terms, steps)
    return dense.attention(scores, memory, dropout=0.0, need_weights=True)


def _plain(v: Tensor, dtype: torch.dtype) -> bool:
    """Return whether numba's kernels can take v now, beside a memory that is ready for steps."""
    return type(v) in (Tensor, nn.Parameter) and v.dtype == dtype and plain_now()


def _known(
    key: Tensor, mask: Tensor | None, terms: Terms | None, steps: StepGradients | None
) -> tuple[Terms, StepGradients | None]:
    """Return the results of `prepare`; compute them anew if its keys were broadcast."""
    from luong.kernels.additive import operators

    if terms is not None and terms[0].shape[0] == key.shape[0]:
        return terms, steps
    return operators.prepare(key.detach(), mask), None


def _given(*tensors: Tensor | None) -> list[Tensor]:
    return [x for x in tensors if x is not None]
