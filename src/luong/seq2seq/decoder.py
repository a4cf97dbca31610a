"""The decoder, which computes all steps of a known target, or the next step of a search."""

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


class DecoderState(NamedTuple):
    """The state that the decoder carries from step to step, for each hypothesis of a sentence."""

    layers: tuple[Tensor, ...]  # (layers, batch, hypotheses, hidden): h and, of LSTM cells, c
    position: int = 0  # of the symbol that is predicted next
    attentional: Tensor | None = None  # (batch, hypotheses, hidden): the h~ to feed, if any

    def select(self, sentences: Tensor) -> DecoderState:
        """Return the states of some sentences: `sentences` holds row numbers, or a bool per row."""
        fed = None if self.attentional is None else self.attentional[sentences]
        return DecoderState(tuple(x[:, sentences] for x in self.layers), self.position, fed)

    def reorder(self, parents: Tensor) -> DecoderState:
        """Return the states of the hypotheses `parents` (batch, any number) of each sentence.

        A hypothesis may be among them more than once, or not at all.
        """
        rows = torch.arange(len(parents), device=parents.device)[:, None]
        fed = None if self.attentional is None else self.attentional[rows, parents]
        return DecoderState(tuple(x[:, rows, parents] for x in self.layers), self.position, fed)


class Predicted(NamedTuple):
    """The result of reading n successive symbols of a sentence, or one of each hypothesis."""

    logits: Tensor  # (batch, n or hypotheses, target symbols)
    state: DecoderState
    weights: Tensor | None  # (batch, n or hypotheses, m); row i was attended to predict symbol i


# from h (rows, n, hidden) of the steps from `position` on to h~ and weights (batch, hypotheses · n,
# ...)
_ToAttentional = Callable[[Tensor, int], tuple[Tensor, "Tensor | None"]]


class Decoder(nn.Module):
    """Stacked recurrent layers, attention from the top one, and h~, which predicts the next symbol.

    With `input_feeding` h~ is joined to the next input (section 3.3); that of step 0 is zero. With
    `tied_embeddings` the output matrix W_s is that of the embeddings. Dropout is on the inputs of
    every layer, on the query and on the h~ that predicts, not in time: the h~ that is fed has none.

    Args:
        hidden_size: size of a state h, which is the query, and of h~.
        memory_size: size of an encoder state, which is key and value.
        embedding: of the target symbols.
        attention: of any score, in any window.
        cell: "lstm" or "gru".
        layers: number of layers.
        input_feeding: whether h~ is joined to the next input.
        tied_embeddings: whether W_s is the matrix of the embeddings.
        dropout: probability of dropout.

    Raises:
        ValueError: for an unknown cell, and for tied embeddings whose size is not `hidden_size`.

    Example:
        >>> from luong.seq2seq import START, Decoder
        >>> attention = luong.Attention(luong.General(query_size=16, key_size=8))
        >>> embedding = torch.nn.Embedding(40, 8)
        >>> shape = dict(cell="gru", layers=1, input_feeding=False, tied_embeddings=False)
        >>> decoder = Decoder(16, 8, embedding=embedding, attention=attention, dropout=0.0, **shape)
        >>> memory = attention.prepare(torch.randn(2, 7, 8))
        >>> state = decoder.first((torch.zeros(1, 2, 16),))
        >>> decoder(torch.tensor([[START, 7, 8], [START, 9, 9]]), state, memory).logits.shape
        torch.Size([2, 3, 40])
    """

    def __init__(
        self,
        hidden_size: int,
        memory_size: int,
        *,
        embedding: nn.Embedding,
        attention: Attention,
        cell: str,
        layers: int,
        input_feeding: bool,
        tied_embeddings: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        symbols, embedding_size = embedding.num_embeddings, embedding.embedding_dim
        if tied_embeddings and embedding_size != hidden_size:
            raise ValueError(
                "tied_embeddings: expected embedding_size = hidden_size, "
                f"got {embedding_size} and {hidden_size}"
            )
        self.input_feeding = input_feeding
        self.embedding = embedding
        self.dropout = Dropout(dropout)
        bottom = embedding_size + hidden_size if input_feeding else embedding_size
        self.layers = Stack(cell, layers, bottom, hidden_size)
        self.attention = attention
        self.attentional = AttentionalState(memory_size, hidden_size, hidden_size)
        self.output = None if tied_embeddings else nn.Linear(hidden_size, symbols, bias=False)

    def first(self, layers: LayerState) -> DecoderState:
        """Return the first state of one hypothesis from tensors (layers, batch, hidden)."""
        fed = torch.zeros_like(layers[0][0]).unsqueeze(1) if self.input_feeding else None
        return DecoderState(tuple(x.unsqueeze(2) for x in layers), attentional=fed)

    def forward(
        self,
        previous: Tensor,
        state: DecoderState,
        memory: Memory,
        *,
        need_weights: bool = False,
        given: Tensor | None = None,
    ) -> Predicted:
        """Read the symbols `previous` (batch, n) of one hypothesis; predict the one after each.

        With `given` (batch, n), the symbols that do come after them, the weights are those a
        posteriori: p(s | y_t) ∝ a_t(s) p(y_t | c_t = value s), if a_t(s) is the probability that
        y_t comes from position s only (after Shankar and Sarawagi, Posterior Attention Models for
        Sequence to Sequence Learning, 2019, who train with it). Rows of zeros stay zeros.
        """
        return self._run(previous[:, None], state, memory, need_weights, given)

    def step(
        self, previous: Tensor, state: DecoderState, memory: Memory, *, need_weights: bool = False
    ) -> Predicted:
        """Read one symbol of each hypothesis, `previous` (batch, hypotheses); predict the next.

        Hypotheses share the memory of their sentence: they stand on the query axis.
        """
        return self._run(previous[..., None], state, memory, need_weights)

    def _run(
        self,
        previous: Tensor,
        state: DecoderState,
        memory: Memory,
        need_weights: bool,
        given: Tensor | None = None,
    ) -> Predicted:
        """Read `previous` (batch, hypotheses, n), where hypotheses or n is 1."""
        batch, hypotheses, n = previous.shape

        def to_attentional(hidden: Tensor, position: int) -> tuple[Tensor, Tensor | None]:
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
            attentional, weights = self._at_once(embedded, layers, state.position, to_attentional)
        else:
            attentional, weights = self._in_turn(
                embedded, layers, state.position, state.attentional, to_attentional
            )
        last = DecoderState(
            tuple(
                torch.stack(kind).unflatten(1, (batch, hypotheses))
                for kind in zip(*layers, strict=True)
            ),
            state.position + n,
            None if state.attentional is None else attentional[:, -hypotheses:],
        )
        return Predicted(self._predict(attentional), last, weights)

    def _predict(self, attentional: Tensor) -> Tensor:
        """Return the logits W_s h~."""
        output = self.embedding if self.output is None else self.output
        return F.linear(self.dropout(attentional), output.weight)

    def _posterior(self, weights: Tensor, query: Tensor, memory: Memory, symbols: Tensor) -> Tensor:
        """Return the weights (batch, n, m) given the symbols (batch, n), one step at a time."""
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
        self,
        embedded: Tensor,
        layers: list[LayerState],
        position: int,
        to_attentional: _ToAttentional,
    ) -> tuple[Tensor, Tensor | None]:
        """Return h~ and weights of all steps of `embedded` (rows, n, size); `layers` moves on."""
        hidden = embedded
        for i, layer in enumerate(self.layers):
            hidden, layers[i] = run(layer, self.dropout(hidden) if i else hidden, layers[i])
        return to_attentional(hidden, position)

    def _in_turn(
        self,
        embedded: Tensor,
        layers: list[LayerState],
        position: int,
        attentional: Tensor,
        to_attentional: _ToAttentional,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the same if each step needs the h~ of the one before.

        The part of the bottom layer's gates that does not need it is computed in advance.
        """
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
            attentional, weights = to_attentional(layers[-1][0][:, None], position + t)
            steps.append(attentional)
            attended += [] if weights is None else [weights]
        return torch.cat(steps, 1), torch.cat(attended, 1) if attended else None
