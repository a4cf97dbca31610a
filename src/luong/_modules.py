"""The attention functions as modules, which hold the parameters of a score and a window."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from luong import _check, _mask, _memory, _parameter, _score, _windowed
from luong._attention import attention, check_source, finish, place
from luong._memory import Attended, Memory
from luong._score import Score, ScoreFunction
from luong._window import Window
from luong._windowed import AttendedWindow


class Attention(nn.Module):
    """Attention as a module: a score, a window and dropout, with their parameters.

    Args:
        score: a `Score` such as `luong.General(...)`, or a function of query and key that returns
            scores (*batch, n, m).
        window: a `Window` such as `luong.LocalMonotonic(10)`. Default: every key is attended to.
        dropout: the probability, from 0 to below 1, that a weight is dropped in training.
            Default: 0.

    Raises:
        TypeError: a score or window of another kind.
        ValueError: a dropout out of range.

    Example:
        >>> attention = luong.Attention(luong.General(query_size=4, key_size=3))
        >>> query, key = torch.randn(2, 5, 4), torch.randn(2, 7, 3)
        >>> context, _ = attention(query, key, lengths=torch.tensor([7, 2]))
        >>> memory = attention.prepare(key, lengths=torch.tensor([7, 2]))  # a decoder: once,
        >>> step, _ = attention.attend(query[:, :1], memory, position=0)  # then step by step
        >>> context.shape, torch.allclose(step, context[:, :1], atol=1e-6)
        (torch.Size([2, 5, 3]), True)

    Source:
        Luong, Pham & Manning (2015), section 3.
    """

    def __init__(
        self,
        score: Score | ScoreFunction,
        *,
        window: Window | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.score = _score.as_score(score)
        if not isinstance(window, Window | None):
            raise TypeError(f"window: expected a Window or None, got {type(window).__name__}")
        self.window = window
        self.dropout = _check.probability("dropout", dropout)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        lengths: Tensor | None = None,
        position: int | Tensor = 0,
        need_weights: bool = False,
    ) -> Attended:
        """Attend from each query to the values of the keys.

        Args:
            query: (*batch, n, d_q), a floating dtype.
            key: (*batch, m, d_k), in the dtype and on the device of query.
            value: (*batch, m, d_v). Default: `key`.
            mask: bool, broadcasts to (*batch, n, m). True: the query may attend to the key.
                Default: it may attend to every key.
            lengths: integers (*batch). Only the first `lengths` keys of a sentence exist; the
                rest is padding. Default: all m exist.
            position: the target position of the first query, the next one having 1 more; or
                integers that broadcast to (*batch, n). Windows need it. Default: 0.
            need_weights: whether to return the weights too. Default: False.

        Returns:
            `Attended`: context (*batch, n, d_v), and weights (*batch, n, m) before dropout, or None
            without `need_weights`.

        Raises:
            TypeError, ValueError: as `luong.attention`.
        """
        return attention(
            query,
            key,
            key if value is None else value,
            score=self.score,
            window=self.window,
            position=position,
            mask=mask,
            lengths=lengths,
            dropout=self._dropout(),
            need_weights=need_weights,
        )

    def prepare(
        self,
        key: Tensor,
        value: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Memory:
        """Do once what depends on the source only, for any number of calls of `attend`.

        Args:
            key: (*batch, m, d_k), a floating dtype.
            value: (*batch, m, d_v). Default: `key`.
            mask: bool, broadcasts to (*batch, n, m). True: the query may attend to the key.
                Default: it may attend to every key.
            lengths: integers (*batch). Only the first `lengths` keys of a sentence exist; the
                rest is padding. Default: all m exist.

        Returns:
            A `Memory` of the projected keys, the values and the mask.

        Raises:
            TypeError, ValueError: as `luong.attention`.
        """
        given = {"key": key, "value": value, "mask": mask, "lengths": lengths}
        if value is None:
            (key,) = _check.floating(key=key)
            value = key
        else:
            key, value = _check.floating(key=key, value=value)
        memory = _mask.prepare(
            key,
            value,
            mask=mask,
            lengths=lengths,
            batch=check_source(key, value),
            queries=None,
            max_length=self.score.max_length,
        )
        return _memory.made_of(self.score.prepare(memory), given)

    def attend(
        self,
        query: Tensor,
        memory: Memory,
        *,
        position: int | Tensor = 0,
        need_weights: bool = False,
    ) -> Attended:
        """Attend from each query to a prepared source: one decoder step (n = 1) or many.

        Several hypotheses of a sentence at one target position t may stand on the query axis;
        `position` is then a tensor of one t, of shape (*batch, 1) or (1,).

        Args:
            query: (*batch, n, d_q), in the dtype and on the device of the memory.
            memory: what `prepare` returned.
            position: the target position of the first query, the next one having 1 more; or
                integers that broadcast to (*batch, n). Windows need it. Default: 0.
            need_weights: whether to return the weights too. Default: False.

        Returns:
            `Attended`: context (*batch, n, d_v), and weights (*batch, n, m) before dropout, or None
            without `need_weights`.

        Raises:
            TypeError, ValueError: arguments that do not fit.
            RuntimeError: a part of the memory was changed in place, and gradients are taken.
        """
        query, memory = _checked(query, memory)
        query, memory, keys = place(self.window, query, memory, position)
        comparison = self.score.compare(query, memory)
        return finish(comparison, keys, dropout=self._dropout(), need_weights=need_weights)

    def attend_window(
        self, query: Tensor, memory: Memory, *, position: int | Tensor = 0
    ) -> AttendedWindow:
        """Attend within a local window, and return the weights of the window only.

        Nothing of size n x m is made.

        Args:
            query: (*batch, n, d_q), in the dtype and on the device of the memory.
            memory: what `prepare` returned.
            position: the target position of the first query, the next one having 1 more; or
                integers that broadcast to (*batch, n). Default: 0.

        Returns:
            `AttendedWindow`: context (*batch, n, d_v), weights (*batch, n, w) of the keys start,
            ..., start + w - 1, and start (*batch, n). w is 2D + 1, or m where that is less.

        Raises:
            ValueError: this attention has no window, or one without a width.
        """
        if self.window is None:
            raise ValueError("window: this attention has none: ask attend for all weights")
        query, memory, keys = place(self.window, *_checked(query, memory), position)
        if keys is None:
            raise ValueError("window: this one has no width: ask attend for all weights")
        comparison = self.score.compare(query, memory)
        found = _windowed.attend_window(comparison, keys, dropout=self._dropout())
        rows = found.context.shape[:-1]
        weights = found.weights.expand(*rows, found.weights.shape[-1])
        return found._replace(weights=weights, start=found.start.expand(rows))

    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}"


def _checked(query: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
    """Return the arguments of `attend`, checked, with zeros in queries that attend to nothing."""
    if not isinstance(memory, Memory):
        raise TypeError(f"memory: expected what prepare returns, got {type(memory).__name__}")
    if memory.prepared is not None and memory.prepared.fits(query, memory):
        return query, memory
    memory = _memory.without_step(_mask.current(memory, query, memory.key, memory.value))
    key, value, query = _check.floating(key=memory.key, value=memory.value, query=query)
    _check.rows("query", query, "(*batch, n, d_q)")
    _check.batch(key=key, value=value, query=query)
    if memory.mask is not None and memory.mask.shape[-2] not in (1, query.shape[-2]):
        raise ValueError(
            f"query: expected n = {memory.mask.shape[-2]} rows, like the mask of this memory, "
            f"got shape {_check.shape(query)}"
        )
    if key is not memory.key or value is not memory.value:  # cast by autocast
        memory = memory._replace(key=key, value=value)
    return _mask.fill(query, _memory.known(memory).empty), memory


class AttentionalState(nn.Module):
    """The attentional state h̃ = tanh(W_c [c; h]) of a context c and a decoder state h.

    Args:
        context_size: size of c.
        query_size: size of h.
        output_size: size of h̃.

    Attributes:
        weight: W_c (output_size, context_size + query_size), without a bias; starts uniform in
            ±1/√(context_size + query_size).

    Raises:
        ValueError: a size is not a positive whole number.

    Example:
        >>> attentional = luong.AttentionalState(context_size=3, query_size=4, output_size=5)
        >>> attentional(torch.randn(2, 7, 3), torch.randn(2, 7, 4)).shape
        torch.Size([2, 7, 5])

    Source:
        Luong, Pham & Manning (2015), eq. 5. OpenNMT and fairseq have it inside their attention.
    """

    def __init__(self, context_size: int, query_size: int, output_size: int) -> None:
        super().__init__()
        width = _check.integer("context_size", context_size, 1) + _check.integer(
            "query_size", query_size, 1
        )
        _check.integer("output_size", output_size, 1)
        self.context_size, self.query_size = context_size, query_size
        self.weight = _parameter.uniform(output_size, width)

    def forward(self, context: Tensor, query: Tensor) -> Tensor:
        """Return h̃.

        Args:
            context: c (..., context_size), a floating dtype.
            query: h (..., query_size), with the same leading dimensions.

        Returns:
            h̃ (..., output_size).
        """
        context, query = _check.floating(context=context, query=query)
        _check.width("context", context, self.context_size, "the context_size,")
        _check.width("query", query, self.query_size, "the query_size,")
        weight = _parameter.like("context", context, self.weight)
        return torch.tanh(nn.functional.linear(torch.cat([context, query], -1), weight))

    def extra_repr(self) -> str:
        return (
            f"context_size={self.context_size}, query_size={self.query_size}, "
            f"output_size={self.weight.shape[0]}"
        )
