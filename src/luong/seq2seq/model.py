"""The model of Luong, Pham & Manning (2015), sections 2 and 3.

    h_t   = stacked LSTM([y_{t-1}; h~_{t-1}], h_{t-1})    (h~ with input feeding only)
    c_t   = Attention(h_t, encoder states)
    h~_t  = tanh(W_c [c_t; h_t])            (eq. 5)
    p(y_t | y_<t, x) = softmax(W_s h~_t)    (eq. 6)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from luong._attention import Attention
from luong._mask import Memory
from luong._score import Concat, Dot, General, Location, Scaled, ScaledDot, Score
from luong.seq2seq.decoder import Decoder
from luong.seq2seq.decoder import State as State
from luong.seq2seq.decoder import Step as Step
from luong.seq2seq.encoder import Bridge, Encoder
from luong.seq2seq.symbols import END as END
from luong.seq2seq.symbols import PAD as PAD
from luong.seq2seq.symbols import START as START
from luong.seq2seq.symbols import UNKNOWN as UNKNOWN


class Seq2Seq(nn.Module):
    """x"""

    def __init__(
        self,
        source_symbols: int,
        target_symbols: int,
        *,
        embedding_size: int = 128,
        hidden_size: int = 256,
        encoder_size: int | None = None,
        encoder_layers: int = 1,
        decoder_layers: int = 1,
        cell: str = "lstm",
        bidirectional: bool = True,
        reverse_source: bool = False,
        attend_end: bool = False,
        score: str = "general",
        input_feeding: bool = False,
        tied_embeddings: bool = False,
        dropout: float = 0.1,
        init_range: float | None = None,
    ) -> None:
        super().__init__()
        memory_size = hidden_size if encoder_size is None else encoder_size
        self.attend_end = attend_end
        self.encoder = Encoder(
            source_symbols,
            embedding_size,
            memory_size,
            cell=cell,
            layers=encoder_layers,
            bidirectional=bidirectional,
            reverse=reverse_source,
            dropout=dropout,
        )
        self.bridge = Bridge(self.encoder, hidden_size, decoder_layers)
        self.decoder = Decoder(
            target_symbols,
            embedding_size,
            hidden_size,
            memory_size,
            cell=cell,
            layers=decoder_layers,
            attention=Attention(make_score(score, hidden_size, memory_size)),
            input_feeding=input_feeding,
            tied_embeddings=tied_embeddings,
            dropout=dropout,
        )

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Memory, State]:
        states, last = self.encoder(source, lengths)
        if self.attend_end:
            lengths = lengths + 1
        else:
            states = states[:, :-1]
        memory = self.decoder.attention.prepare(states, lengths=lengths)
        return memory, self.decoder.first(self.bridge(last))

    def forward(self, source: Tensor, lengths: Tensor, previous: Tensor) -> Tensor:
        """Logits (batch, n, target symbols) of the symbols after each of `previous` (batch, n)."""
        memory, state = self.encode(source, lengths)
        logits: Tensor = self.decoder(previous, state, memory).logits
        return logits


def make_score(name: str, query_size: int, key_size: int) -> Score:
    scores: dict[str, Callable[[], Score]] = {
        "dot": Dot,
        "scaled_dot": ScaledDot,
        "general": lambda: General(query_size, key_size),
        "concat": lambda: Concat(query_size, key_size, query_size),
    }
    return scores[name]()
