"""The model of Luong, Pham & Manning (2015), sections 2 and 3.

h_t   = LSTM([y_{t-1}; h~_{t-1}], h_{t-1})    stacked; h~ with input feeding only
c_t   = Attention(h_t, encoder states)
h~_t  = tanh(W_c [c_t; h_t])                  (eq. 5)
p(y_t | y_<t, x) = softmax(W_s h~_t)          (eq. 6)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from luong._memory import Memory
from luong._modules import Attention
from luong._score import Concat, Dot, General, Location, Scaled, ScaledDot, Score
from luong._window import LocalMonotonic, LocalPredictive, Window
from luong.seq2seq.decoder import Decoder
from luong.seq2seq.decoder import DecoderState as DecoderState
from luong.seq2seq.decoder import Predicted as Predicted
from luong.seq2seq.encoder import Bridge, Encoder
from luong.seq2seq.symbols import END as END
from luong.seq2seq.symbols import PAD as PAD
from luong.seq2seq.symbols import START as START
from luong.seq2seq.symbols import UNKNOWN as UNKNOWN

T = TypeVar("T")


class Seq2Seq(nn.Module):
    """Encoder and decoder. Symbols are integers, the first four being PAD, START, END, UNKNOWN.

    The encoder reads the source's END, which is not attended unless `attend_end`. Positions are
    those of the source as it stands, also where it is read backwards (`reverse_source`).

    Args:
        source_symbols, target_symbols: sizes of the vocabularies.
        embedding_size: size of an embedded symbol, on both sides.
        hidden_size: size of h_t and h~_t.
        encoder_size: size of an encoder state, both directions together; None: hidden_size.
        encoder_layers, decoder_layers: numbers of layers.
        cell: "lstm" or "gru".
        bidirectional: whether the encoder reads in both directions, each with half of encoder_size.
        reverse_source: whether the encoder reads the last symbol first.
        bridge: whether the decoder starts from the encoder's last states; else it starts from zeros
            and knows the source through attention only.
        attend_end: whether the source's END is attended, and counted as a position.
        score: "dot", "scaled_dot", "general", "concat" or "location"; "none": nothing is attended,
            c_t is zero (the paper's baseline, which has no h~_t, predicts from h_t itself).
        learned_scale: whether the score gets a learned factor (`luong.Scaled`).
        location_length: positions that the score "location" knows; later ones are not attended.
        window: "global", "local_m" or "local_p".
        half_width: the D of a local window, in source positions.
        input_feeding: whether h~ is joined to the next input.
        tied_embeddings: whether W_s is the matrix of the target embeddings.
        dropout: probability, on vertical connections.
        init_range: all weights and biases start uniform in ±init_range (0.1 in the paper); None: as
            PyTorch's layers do.

    Raises ValueError for sizes that do not go together and for names that are not in these lists.
    """

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
        bridge: bool = True,
        attend_end: bool = False,
        score: str = "general",
        learned_scale: bool = False,
        location_length: int = 100,
        window: str = "global",
        half_width: int | None = None,
        input_feeding: bool = False,
        tied_embeddings: bool = False,
        dropout: float = 0.1,
        init_range: float | None = None,
    ) -> None:
        super().__init__()
        memory_size = hidden_size if encoder_size is None else encoder_size
        self.attend_end = attend_end
        self.attends = score != "none"
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
        matched = min(encoder_layers, decoder_layers) if bridge else 0
        self.bridge = Bridge(
            memory_size,
            hidden_size,
            layers=matched,
            more=decoder_layers - matched,
            learned=bidirectional or memory_size != hidden_size,
            cell=cell,
        )
        chosen = make_score(score, hidden_size, memory_size, location_length)
        self.decoder = Decoder(
            hidden_size,
            memory_size,
            attention=Attention(
                Scaled(chosen) if learned_scale else chosen,
                window=make_window(window, hidden_size, half_width),
            ),
            embedding=nn.Embedding(target_symbols, embedding_size, padding_idx=PAD),
            cell=cell,
            layers=decoder_layers,
            input_feeding=input_feeding,
            tied_embeddings=tied_embeddings,
            dropout=dropout,
        )
        if init_range is not None:
            self._start_uniform(init_range)

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Memory, DecoderState]:
        """Return the memory of the source for the decoder, and the decoder's first state.

        source (batch, m + 1) holds symbols, END and padding; `lengths` (batch,) does not count END.
        """
        states, last = self.encoder(source, lengths)
        if self.attend_end:
            lengths = lengths + 1
        else:
            states = states[:, :-1]
        if not self.attends:
            lengths = torch.zeros_like(lengths)
        memory = self.decoder.attention.prepare(states, lengths=lengths)
        return memory, self.decoder.first(self.bridge(last))

    def forward(self, source: Tensor, lengths: Tensor, previous: Tensor) -> Tensor:
        """Return the logits (batch, n, target symbols) of the symbol after each of `previous`."""
        memory, state = self.encode(source, lengths)
        logits: Tensor = self.decoder(previous, state, memory).logits
        return logits

    @torch.no_grad()
    def _start_uniform(self, limit: float) -> None:
        for parameter in self.parameters():
            if parameter.ndim:  # a learned scale still starts at 1
                parameter.uniform_(-limit, limit)
        for side in (self.encoder, self.decoder):
            side.embedding.weight[PAD] = 0


def make_score(name: str, query_size: int, key_size: int, location_length: int) -> Score:
    """Return the score of that name."""
    if name in ("none", "dot", "scaled_dot") and query_size != key_size:
        raise ValueError(
            f"encoder_size: expected hidden_size = {query_size} with the score {name}, "
            f"got {key_size}"
        )
    scores: dict[str, Callable[[], Score]] = {
        "none": ScaledDot,  # of nothing
        "dot": Dot,
        "scaled_dot": ScaledDot,
        "general": lambda: General(query_size, key_size),
        "concat": lambda: Concat(query_size, key_size, query_size),
        "location": lambda: Location(query_size, location_length),
    }
    return choose("score", name, scores)()


def make_window(name: str, query_size: int, half_width: int | None) -> Window | None:
    """Return the window of that name; None for "global"."""
    width = cast(int, half_width)  # a local window refuses None
    windows: dict[str, Callable[[], Window | None]] = {
        "global": lambda: None,
        "local_m": lambda: LocalMonotonic(width),
        "local_p": lambda: LocalPredictive(query_size, query_size, width),
    }
    return choose("window", name, windows)()


def choose(argument: str, name: str, among: Mapping[str, T]) -> T:
    """Return the one of that name; the error for another name lists all."""
    if name not in among:
        raise ValueError(f"{argument}: expected one of {', '.join(among)}, got {name!r}")
    return among[name]
