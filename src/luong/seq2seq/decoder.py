"""The decoder: all steps of a known target, or the next step of the hypotheses of a search."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luong._memory import Memory
from luong._modules import Attention, AttentionalState
from luong.seq2seq.dropout import Dropout
from luong.seq2seq.recurrent import LayerState, Stack, advance, run
from luong.seq2seq.symbols import PAD


class State(NamedTuple):
    """What the decoder carries from step to step, for each of the hypotheses of each sentence."""

    layers: tuple[Tensor, ...]  # (layers, batch, hypotheses, hidden): h and, of LSTM cells, c
    position: int = 0  # of the symbol that is predicted next
    attentional: Tensor | None = None  # (batch, hypotheses, hidden): the h~ to feed, if any

    def select(self, sentences: Tensor) -> State:
        """The sentences of these rows of the batch: integers, or a bool per row."""
        fed = None if self.attentional is None else self.attentional[sentences]
        return State(tuple(x[:, sentences] for x in self.layers), self.position, fed)

    def reorder(self, parents: Tensor) -> State:
        """Of each sentence the hypotheses `parents` (batch, any number), again or not at all."""
        rows = torch.arange(len(parents), device=parents.device)[:, None]
        fed = None if self.attentional is None else self.attentional[rows, parents]
        return State(tuple(x[:, rows, parents] for x in self.layers), self.position, fed)


class Step(NamedTuple):
    """What the decoder makes of symbols: n of a sentence in a row, or one of each hypothesis."""

    logits: Tensor  # (batch, n or hypotheses, target symbols)
    state: State
    weights: Tensor | None  # (batch, n or hypotheses, m); row i was attended to predict symbol i


# h~ and weights (batch, hypotheses · n, ...) from h (rows, n, hidden) of steps `position` and on
_Attend = Callable[[Tensor, int], tuple[Tensor, "Tensor | None"]]


class Decoder(nn.Module):
    """Stacked recurrent layers, attention from the top one, and h~, which predicts the next symbol.

    With `input_feeding` h~ is joined to the next input (section 3.3); that of step 0 is zero. With
    `tied_embeddings` the output matrix W_s is that of the embeddings. Dropout is on the inputs of
    every layer, on the query and on what predicts, not in time: h~ is fed whole.
    """

    def __init__(
        self,
        symbols: int,
        embedding_size: int,
        hidden_size: int,
        memory_size: int,
        *,
        attention: Attention,
        cell: str,
        layers: int,
        input_feeding: bool,
        tied_embeddings: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        if tied_embeddings and embedding_size != hidden_size:
            raise ValueError(
                "tied_embeddings: expected embedding_size = hidden_size, "
                f"got {embedding_size} and {hidden_size}"
            )
        self.input_feeding = input_feeding
        self.embedding = nn.Embedding(symbols, embedding_size, padding_idx=PAD)
        self.dropout = Dropout(dropout)
        bottom = embedding_size + hidden_size if input_feeding else embedding_size
        self.layers = Stack(cell, layers, bottom, hidden_size)
        self.attention = attention
        self.attentional = AttentionalState(memory_size, hidden_size, hidden_size)
        self.output = None if tied_embeddings else nn.Linear(hidden_size, symbols, bias=False)

    def first(self, layers: LayerState) -> State:
        """The state before step 0, of one hypothesis, from tensors (layers, batch, hidden)."""
        fed = torch.zeros_like(layers[0][0]).unsqueeze(1) if self.input_feeding else None
        return State(tuple(x.unsqueeze(2) for x in layers), attentional=fed)

    def forward(
        self,
        previous: Tensor,
        state: State,
        memory: Memory,
        *,
        need_weights: bool = False,
        given: Tensor | None = None,
    ) -> Step:
        """Read the symbols `previous` (batch, n) of one hypothesis; predict the one after each.

        With the symbols that come after them `given` (batch, n), weights are what is attended a
        posteriori: p(s | y_t) ∝ a_t(s) p(y_t | c_t = value s), if a_t(s) is the probability that
        y_t comes from position s alone (after Shankar and Sarawagi, Posterior Attention Models for
        Sequence to Sequence Learning, 2019, who train with it). Rows of zeros stay.
        """
        return self._run(previous[:, None], state, memory, need_weights, given)

    def step(
        self, previous: Tensor, state: State, memory: Memory, *, need_weights: bool = False
    ) -> Step:
        """Read one symbol of each hypothesis, `previous` (batch, hypotheses); predict the next.

        Hypotheses share the memory of their sentence: they ride on the query axis.
        """
        return self._run(previous[..., None], state, memory, need_weights)

    def _run(
        self,
        previous: Tensor,
        state: State,
        memory: Memory,
        need_weights: bool,
        given: Tensor | None = None,
    ) -> Step:
        """previous (batch, hypotheses, n), where hypotheses or n is 1."""
        batch, hypotheses, n = previous.shape

        def attend(hidden: Tensor, position: int) -> tuple[Tensor, Tensor | None]:
            query = self.dropout(hidden).reshape(batch, -1, hidden.shape[-1])
            at = position if hypotheses == 1 else query.new_tensor([position], dtype=torch.long)
            context, weights = self.attention.attend(
                query, memory, position=at, need_weights=need_weights or given is not None
            )
            if weights is not None and given is not None:
                start = position - state.position
                symbols = given[:, start : start + hidden.shape[1]]
                weights = self._posterior(weights, query, memory, symbols)
            return self.attentional(context, query), weights

        embedded = self.dropout(self.embedding(previous.flatten(0, 1)))
        layers = [
            tuple(x.flatten(0, 1) for x in layer) for layer in zip(*state.layers, strict=True)
        ]
        if state.attentional is None:
            attentional, weights = self._at_once(embedded, layers, state.position, attend)
        else:
            attentional, weights = self._in_turn(
                embedded, layers, state.position, state.attentional, attend
            )
        last = State(
            tuple(
                torch.stack(kind).unflatten(1, (batch, hypotheses))
                for kind in zip(*layers, strict=True)
            ),
            state.position + n,
            None if state.attentional is None else attentional[:, -hypotheses:],
        )
        return Step(self._predict(attentional), last, weights)

    def _predict(self, attentional: Tensor) -> Tensor:
        """The logits W_s h~."""
        output = self.embedding if self.output is None else self.output
        return F.linear(self.dropout(attentional), output.weight)

    def _posterior(self, weights: Tensor, query: Tensor, memory: Memory, symbols: Tensor) -> Tensor:
        """Weights (batch, n, m) given the symbols (batch, n), one step at a time."""
        m = weights.shape[-1]
        found = []
        steps = zip(weights.unbind(1), query.unbind(1), symbols.unbind(1), strict=True)
        for prior, h, symbol in steps:
            each = self.attentional(memory.value, h[:, None].expand(-1, m, -1))
            logits = self._predict(each)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            said = logits.gather(-1, symbol[:, None, None].expand(-1, m, 1)).squeeze(-1)
            likelihood = said - logits.logsumexp(-1)
            posterior = torch.softmax(prior.log() + likelihood, -1)
            nothing = (prior == 0).all(-1, keepdim=True)
            found.append(posterior.masked_fill(nothing, 0).to(weights.dtype))
        return torch.stack(found, 1)

    def _at_once(
        self, embedded: Tensor, layers: list[LayerState], position: int, attend: _Attend
    ) -> tuple[Tensor, Tensor | None]:
        """h~ and weights of all steps of embedded (rows, n, embedding); `layers` moves on."""
        hidden = embedded
        for i, layer in enumerate(self.layers):
            hidden, layers[i] = run(layer, self.dropout(hidden) if i else hidden, layers[i])
        return attend(hidden, position)

    def _in_turn(
        self,
        embedded: Tensor,
        layers: list[LayerState],
        position: int,
        attentional: Tensor,
        attend: _Attend,
    ) -> tuple[Tensor, Tensor | None]:
        """The same where a step waits for the h~ of the last; what does not is done before."""
        bottom, *above = self.layers
        (weight, _, bias, _), *_ = bottom.all_weights
        own, feeding = weight.tensor_split([embedded.shape[-1]], 1)
        known = F.linear(embedded.transpose(0, 1), own, bias)
        steps, attended = [], []
        for t, gates in enumerate(known.unbind()):
            gates = torch.addmm(gates, attentional.flatten(0, 1), feeding.t())
            layers[0] = advance(bottom, gates, layers[0])
            for i, layer in enumerate(above, 1):
                (weight, _, bias, _), *_ = layer.all_weights
                gates = F.linear(self.dropout(layers[i - 1][0]), weight, bias)
                layers[i] = advance(layer, gates, layers[i])
            attentional, weights = attend(layers[-1][0][:, None], position + t)
            steps.append(attentional)
            attended += [] if weights is None else [weights]
        return torch.cat(steps, 1), torch.cat(attended, 1) if attended else None
