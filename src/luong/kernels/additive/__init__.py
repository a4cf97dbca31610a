"""Additive attention, score v · tanh(query + key), for queries and keys already projected.

`choose` of dispatch.py picks among the backends: compiled.py (numba), blocks.py (torch), plain.py.
Half types are computed in float32.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from luong import _check
from luong._mask import Memory
from luong.kernels import band, dense
from luong.kernels.additive import blocks, plain, windows
from luong.kernels.batch import flatten
from luong.kernels.dispatch import choose

State = tuple[Tensor, ...]
PROCESS = os.getpid()  # noted before any fork: see threads.py


def prepare(memory: Memory, backend: str | None) -> Memory:
    """The memory with all that the backend wants to know about its (projected) keys."""
    if memory.key.dtype in dense.HALF:
        memory = memory._replace(wide=(memory.key.float(), memory.value.float()))
    key, value = memory.wide or (memory.key, memory.value)
    if key.numel() == 0 or choose("additive", backend, _given(key, memory.mask)) != "numba":
        return memory
    from luong.kernels.additive import operators

    _, (_, flat, _, mask) = flatten(key, key, key, memory.mask)
    state = operators.prepare(flat.detach(), mask)
    learns = torch.is_grad_enabled() and (key.requires_grad or value.requires_grad)
    if learns and not torch.compiler.is_compiling() and key.shape[:-1] == value.shape[:-1]:
        *_, value, _ = flatten(key, key, value, memory.mask)[1]
        state = (*state, operators.source(flat, value, state))
    return memory._replace(state=state)


def scores(
    query: Tensor,
    key: Tensor,
    v: Tensor,
    *,
    backend: str | None,
    mask: Tensor | None = None,
    state: State | None = None,
) -> Tensor:
    """Scores (*batch, n, m), in float32 for half types; anything where `mask` is False."""
    query, key, v = _wide(query), _wide(key), _wide(v)
    if _check.autocast(query):
        with torch.autocast(query.device.type, enabled=False):
            return scores(query, key, v, backend=backend, mask=mask, state=state)
    chosen = choose("additive", backend, _given(query, key, v, mask))
    if chosen == "reference" or 0 in (query.numel(), key.numel()):
        return plain.scores(query, key, v)
    batch, (query, key, _, mask) = flatten(query, key, key, mask)
    if chosen == "numba":
        from luong.kernels.additive import operators

        found: Tensor = operators.score(query, key, v, mask, *_state(key, mask, state))
    else:
        found = blocks.scores(query, key, v)
    return found.reshape(*batch, *found.shape[-2:])


def window(
    query: Tensor,
    key: Tensor,
    v: Tensor,
    index: Tensor,
    *,
    backend: str | None,
    state: State | None = None,
) -> Tensor:
    """Scores (*batch, n, w) with the keys at `index`: see `luong.kernels.band`."""
    query, key, v = _wide(query), _wide(key), _wide(v)
    if _check.autocast(query):
        with torch.autocast(query.device.type, enabled=False):
            return window(query, key, v, index, backend=backend, state=state)
    chosen = choose("window", backend, [query, key, v, index])
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], index.shape[:-2])
    if chosen == "reference" or 0 in (query.numel(), key.numel(), index.numel()):
        return windows.formula(query, key, v, index.expand(*batch, *index.shape[-2:]))
    n = query.shape[-2]
    _, (query, key, index) = band.common(query, key, index)
    if chosen == "numba":
        found = windows.compiled(query, key, v, index, _state(key, None, state)[0])
    else:
        found = windows.blocked(query, key, v, index)
    return found.reshape(*batch, n, found.shape[-1])


def attend(
    query: Tensor,
    memory: Memory,
    v: Tensor,
    *,
    backend: str | None,
    dropout: float,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """softmax(v · tanh(query + key)) value, and the weights if asked for."""
    if _check.autocast(query):
        with torch.autocast(query.device.type, enabled=False):
            return attend(
                query, memory, v, backend=backend, dropout=dropout, need_weights=need_weights
            )
    key, value = memory.wide or (_wide(memory.key), _wide(memory.value))
    mask, state, dtype = memory.mask, memory.state, memory.value.dtype
    if need_weights or dropout:
        found = scores(query, key, v, backend=backend, mask=mask, state=state)
        return dense.attend(found, memory, dropout=dropout, need_weights=need_weights)
    query, v = _wide(query), _wide(v)
    chosen = choose("additive", backend, _given(query, key, value, v, mask))
    if chosen == "reference" or 0 in (query.numel(), key.numel(), value.numel()):
        return plain.attend(query, key, value, v, mask).to(dtype), None
    batch, (query, key, value, mask) = flatten(query, key, value, mask)
    if chosen == "numba":
        from luong.kernels.additive import operators

        context = operators.attend(query, key, value, v, mask, *_state(key, mask, state))
    else:
        context = blocks.attend(query, key, value, v, mask)
    return context.reshape(*batch, *context.shape[-2:]).to(dtype), None


def _state(key: Tensor, mask: Tensor | None, state: State | None) -> tuple[State, Tensor | None]:
    """What `prepare` found, if it is about these keys and not about a broadcast of them."""
    from luong.kernels.additive import operators

    if state is not None and state[0].shape[0] == key.shape[0]:
        return state[:5], state[5] if len(state) > 5 else None
    return operators.prepare(key.detach(), mask), None


def _wide(x: Tensor) -> Tensor:
    return dense.wide(x)


def _given(*tensors: Tensor | None) -> list[Tensor]:
    return [x for x in tensors if x is not None]
