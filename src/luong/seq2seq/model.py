"""The model of Luong, Pham & Manning (2015), sections 2 and 3: one layer, global attention.

    h_t   = LSTM(y_{t-1}, h_{t-1})
    c_t   = Attention(h_t, encoder states)
    h~_t  = tanh(W_c [c_t; h_t])            (eq. 5)
    p(y_t | y_<t, x) = softmax(W_s h~_t)    (eq. 6)

The encoder is bidirectional and reads the end-of-sentence symbol, which is not attended. Nothing of
h~ goes back into the decoder (no input feeding), so that all steps of a known target run at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from luong._attention import Attention, AttentionalState
from luong._mask import Memory
from luong._score import Concat, Dot, General, ScaledDot, Score

PAD, START, END, UNKNOWN = range(4)


class State(NamedTuple):
    """What the decoder carries from step to step, for each of the hypotheses of each sentence."""

    layers: tuple[Tensor, ...]  # (layers, batch, hypotheses, hidden) each: the LSTM's h and c
    position: int = 0  # of the symbol that is predicted next

    def select(self, sentences: Tensor) -> State:
        """The sentences of these rows of the batch: integers, or a bool per row."""
        return self._replace(layers=tuple(x[:, sentences] for x in self.layers))

    def reorder(self, parents: Tensor) -> State:
        """Of each sentence the hypotheses `parents` (batch, any number), again or not at all."""
        rows = torch.arange(len(parents), device=parents.device)[:, None]
        return self._replace(layers=tuple(x[:, rows, parents] for x in self.layers))


class Step(NamedTuple):
    """What the decoder makes of symbols: n of a sentence in a row, or one of each hypothesis."""

    logits: Tensor  # (batch, n or hypotheses, target symbols)
    state: State
    weights: Tensor | None  # (batch, n or hypotheses, m)


def make_score(name: str, size: int) -> Score:
    """The score `name` between vectors of one `size`."""
    scores: dict[str, Callable[[], Score]] = {
        "dot": Dot,
        "scaled_dot": ScaledDot,
        "general": lambda: General(size, size),
        "concat": lambda: Concat(size, size, size),
    }
    if name not in scores:
        raise ValueError(f"score: expected one of {', '.join(scores)}, got {name!r}")
    return scores[name]()


class Encoder(nn.Module):
    """Bidirectional LSTM; each direction has half of `hidden_size`."""

    def __init__(self, symbols: int, embedding_size: int, hidden_size: int, dropout: float) -> None:
        super().__init__()
        if hidden_size % 2:
            raise ValueError(f"hidden_size: expected an even number, got {hidden_size}")
        self.embedding = nn.Embedding(symbols, embedding_size, padding_idx=PAD)
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(embedding_size, hidden_size // 2, batch_first=True, bidirectional=True)
        self.bridge = nn.ModuleList(nn.Linear(hidden_size, hidden_size) for _ in range(2))

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, State]:
        """States (batch, m, hidden), and the decoder's first state, through a learned bridge.

        source (batch, m + 1) holds symbols, END and padding; `lengths` (batch,) does not count END.
        """
        embedded = self.dropout(self.embedding(source))
        packed = pack_padded_sequence(
            embedded, lengths.cpu() + 1, batch_first=True, enforce_sorted=False
        )
        states, last = self.lstm(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])
        hidden, cell = (
            bridge(both.transpose(0, 1).flatten(1))[None, :, None]
            for bridge, both in zip(self.bridge, last, strict=True)
        )
        return states[:, :-1], State((torch.tanh(hidden), cell))


class Decoder(nn.Module):
    """LSTM, attention on its states, and the attentional state h~ that predicts the next symbol."""

    def __init__(
        self, symbols: int, embedding_size: int, hidden_size: int, score: str, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedding_size, padding_idx=PAD)
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(embedding_size, hidden_size, batch_first=True)
        self.attention = Attention(make_score(score, hidden_size))
        self.attentional = AttentionalState(hidden_size, hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, symbols, bias=False)

    def forward(
        self, previous: Tensor, state: State, memory: Memory, *, need_weights: bool = False
    ) -> Step:
        """Read the symbols `previous` (batch, n) of one hypothesis; predict the one after each."""
        hidden, layers = self._recur(previous, state.layers)
        logits, weights = self._predict(hidden, memory, need_weights)
        return Step(logits, State(layers, state.position + previous.shape[1]), weights)

    def step(
        self, previous: Tensor, state: State, memory: Memory, *, need_weights: bool = False
    ) -> Step:
        """Read one symbol of each hypothesis, `previous` (batch, hypotheses); predict the next.

        Hypotheses share the memory of their sentence: they ride on the query axis.
        """
        flat = tuple(x.flatten(1, 2).unsqueeze(2) for x in state.layers)
        hidden, layers = self._recur(previous.reshape(-1, 1), flat)
        logits, weights = self._predict(hidden.view(*previous.shape, -1), memory, need_weights)
        layers = tuple(x.squeeze(2).unflatten(1, previous.shape) for x in layers)
        return Step(logits, State(layers, state.position + 1), weights)

    def _recur(self, previous: Tensor, layers: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
        """States (rows, n, hidden), and the last one as in `State`, one hypothesis a row."""
        last = tuple(x.squeeze(2).contiguous() for x in layers)
        hidden, last = self.lstm(self.dropout(self.embedding(previous)), last)
        return self.dropout(hidden), tuple(x.unsqueeze(2) for x in last)

    def _predict(
        self, hidden: Tensor, memory: Memory, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        context, weights = self.attention.attend(hidden, memory, need_weights=need_weights)
        return self.output(self.dropout(self.attentional(context, hidden))), weights


class Seq2Seq(nn.Module):
    """Encoder and decoder. Symbols are integers, the first four being PAD, START, END, UNKNOWN."""

    def __init__(
        self,
        source_symbols: int,
        target_symbols: int,
        *,
        embedding_size: int = 128,
        hidden_size: int = 256,
        score: str = "general",
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(source_symbols, embedding_size, hidden_size, dropout)
        self.decoder = Decoder(target_symbols, embedding_size, hidden_size, score, dropout)

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Memory, State]:
        """What the decoder needs of the source: see `Encoder.forward`."""
        states, first = self.encoder(source, lengths)
        return self.decoder.attention.prepare(states, lengths=lengths), first

    def forward(self, source: Tensor, lengths: Tensor, previous: Tensor) -> Tensor:
        """Logits (batch, n, target symbols) of the symbols after each of `previous` (batch, n)."""
        memory, state = self.encode(source, lengths)
        logits: Tensor = self.decoder(previous, state, memory).logits
        return logits
