"""Attention with any score, in a window or without one, and the steps that all operators share."""

from __future__ import annotations

import torch
from torch import Tensor

from luong import _check, _mask, _memory, _score, _windowed
from luong._comparison import Comparison
from luong._memory import Attended, Memory
from luong._score import Score, ScoreFunction
from luong._window import Window
from luong._windowed import WindowedKeys


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score | ScoreFunction,
    window: Window | None = None,
    position: int | Tensor = 0,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> Attended:
    """Attend with any score function, in a window or without one.

    A local window costs n · (2D + 1) scores, and memory in proportion, if the score is a `Score`; a
    plain function computes all n · m scores.

    Args:
        query: (*batch, n, d_q), a floating dtype.
        key: (*batch, m, d_k), in the dtype and on the device of query.
        value: (*batch, m, d_v).
        score: a function of query and key that returns scores (*batch, n, m), or a `Score` such as
            `luong.General(...)`, which goes its own, faster way. A function sees zeros at padded
            keys and at queries that may attend to nothing.
        window: a `Window` such as `luong.LocalMonotonic(10)`: the keys that each query may attend
            to. Default: every key.
        position: the target position of the first query, the next one having 1 more; or integers
            that broadcast to (*batch, n). Windows need it. Default: 0.
        mask: bool, broadcasts to (*batch, n, m). True: the query may attend to the key. Default: it
            may attend to every key.
        lengths: integers (*batch). Only the first `lengths` keys of a sentence exist; the rest
            is padding. Default: all m exist.
        dropout: the probability, from 0 to below 1, that a weight is dropped; the others
            are multiplied by 1 / (1 - dropout). It is always applied. Default: 0.
        need_weights: whether to return the weights too. Default: False.

    Returns:
        `Attended`: context (*batch, n, d_v), and weights (*batch, n, m) before dropout, or None
        without `need_weights`. A query that may attend to nothing gets zeros.

    Raises:
        TypeError: an argument of another kind or dtype.
        ValueError: shapes, devices, lengths or a dropout that do not fit. The message names the
            argument, what was expected and what came.

    Example:
        >>> query, key = torch.randn(4, 5), torch.randn(6, 5)
        >>> luong.attention(query, key, key, score=lambda q, k: -torch.cdist(q, k)).context.shape
        torch.Size([4, 5])

    Source:
        Luong, Pham & Manning (2015), sections 3.1 and 3.2.
    """
    score = _score.as_score(score)
    query, key, value = _check.floating(query=query, key=key, value=value)
    query, memory = enter(query, key, value, mask, lengths, max_length=score.max_length)
    query, memory, keys = place(window, query, memory, position)
    query, key = score.prepare_once(query, memory.key)
    comparison = score.compare(query, memory._replace(key=key))
    return finish(comparison, keys, dropout=dropout, need_weights=need_weights)


def enter(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    max_length: int | None = None,
) -> tuple[Tensor, Memory]:
    """Check shapes; zero keys that no query may attend to, and queries that may attend to none."""
    _check.rows("query", query, "(*batch, n, d_q)")
    batch = check_source(key, value, query=query)
    memory = _mask.prepare(
        key,
        value,
        mask=mask,
        lengths=lengths,
        batch=batch,
        queries=query.shape[-2],
        max_length=max_length,
    )
    return _mask.fill(query, _memory.known(memory).empty), memory


def check_source(key: Tensor, value: Tensor, **query: Tensor) -> torch.Size:
    """Check that keys and values belong together, and return the batch shape of all tensors."""
    _check.rows("key", key, "(*batch, m, d_k)")
    _check.rows("value", value, "(*batch, m, d_v)")
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"value: expected m = {key.shape[-2]} rows like key, got shape {_check.shape(value)}"
        )
    return _check.batch(**query, key=key, value=value)


def place(
    window: Window | None, query: Tensor, memory: Memory, position: int | Tensor
) -> tuple[Tensor, Memory, WindowedKeys | None]:
    """Place the window of each query on the keys: see `_windowed.place`."""
    if window is None:
        return query, memory, None
    if not isinstance(window, Window):
        raise TypeError(f"window: expected a Window or None, got {type(window).__name__}")
    batch = torch.broadcast_shapes(query.shape[:-2], memory.key.shape[:-2], memory.value.shape[:-2])
    return _windowed.place(window, query, memory, position, batch)


def finish(
    comparison: Comparison, keys: WindowedKeys | None, *, dropout: float, need_weights: bool
) -> Attended:
    """Return the result of attention to all keys, or to the `keys` of a window."""
    if keys is None:
        return comparison.attended(dropout=dropout, need_weights=need_weights)
    found = _windowed.attend_window(comparison, keys, dropout=dropout)
    if not need_weights:
        return Attended(found.context, None)
    m = comparison.memory.key.shape[-2]
    return Attended(found.context, _windowed.all_weights(found, keys.key_positions, m))
