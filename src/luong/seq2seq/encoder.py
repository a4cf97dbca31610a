"""The encoder, and the bridge from its last states to the decoder's first."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from luong._mask import positions
from luong.seq2seq.dropout import Dropout
from luong.seq2seq.recurrent import LayerState, make_layers, read
from luong.seq2seq.symbols import PAD


class Encoder(nn.Module):
    """Stacked recurrent layers over a source that ends with END.

    With `bidirectional`, each direction has half of `hidden_size`. With `reverse`, the symbols are
    read from the last to the first, then END (Sutskever et al. 2014); states come in source order
    all the same. Dropout is on the inputs of every layer, not in time (Zaremba et al. 2014).
    """

    def __init__(
        self,
        symbols: int,
        embedding_size: int,
        hidden_size: int,
        *,
        cell: str,
        layers: int,
        bidirectional: bool,
        reverse: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.reverse = reverse
        self.embedding = nn.Embedding(symbols, embedding_size, padding_idx=PAD)
        self.dropout = Dropout(dropout)
        self.layers = make_layers(
            cell, layers, embedding_size, hidden_size, bidirectional=bidirectional
        )

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, list[LayerState]]:
        """States of the top layer (batch, m + 1, hidden), and the last of each layer (batch, hidden).

        source (batch, m + 1) holds symbols, END and padding; `lengths` (batch,) does not count END.
        """
        order = _reading(lengths, source.shape[1]) if self.reverse else None
        states = self.embedding(source if order is None else source.gather(1, order))
        last = []
        for layer in self.layers:
            states, state = read(layer, self.dropout(states), lengths + 1)
            last.append(state)
        if order is not None:
            states = states.gather(1, order[..., None].expand_as(states))
        return states, last


def _reading(lengths: Tensor, m: int) -> Tensor:
    """The position read at each step, backwards; END stays last. It is its own inverse."""
    position, end = positions(m, lengths.device), lengths[:, None]
    return torch.where(position < end, end - 1 - position, position)


class Bridge(nn.Module):
    """The decoder's first state from the encoder's last, layers matched from the top.

    As it is from one direction of the decoder's size, as in the paper; else through learned maps, a
    layer's own: tanh(W h + b), and W c + b of LSTM cells. Layers of the decoder without a
    counterpart start from zeros; the encoder's have no say.
    """

    def __init__(
        self, encoder_size: int, hidden_size: int, *, matched: int, missing: int, maps: int
    ) -> None:
        """`maps` is the number of maps of a layer: 0, or the number of its state's tensors."""
        super().__init__()
        self.matched, self.missing = matched, missing
        self.maps = nn.ModuleList(
            nn.ModuleList(nn.Linear(encoder_size, hidden_size) for _ in range(maps))
            for _ in range(matched)
        )

    def forward(self, last: list[LayerState]) -> LayerState:
        """Tensors (layers, batch, hidden), from the encoder's (batch, encoder_size)."""
        states = [
            _through(maps, state)
            for maps, state in zip(self.maps, last[-self.matched :], strict=True)
        ]
        zeros = [tuple(torch.zeros_like(x) for x in states[0])] * self.missing
        return tuple(torch.stack(kind) for kind in zip(*zeros, *states, strict=True))


def _through(maps: nn.ModuleList, state: LayerState) -> LayerState:
    if not maps:
        return state
    hidden, *cell = (each(x) for each, x in zip(maps, state, strict=True))
    return torch.tanh(hidden), *cell
