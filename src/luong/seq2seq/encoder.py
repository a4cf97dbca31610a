"""The encoder, and the bridge from its last states to the decoder's first state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from luong._mask import positions
from luong.seq2seq.dropout import Dropout
from luong.seq2seq.recurrent import LayerState, Stack, read
from luong.seq2seq.symbols import PAD


class Encoder(nn.Module):
    """Stacked recurrent layers over a source that ends with END.

    With `bidirectional`, each direction has half of `hidden_size`. With `reverse`, the symbols are
    read from the last to the first, then END (Sutskever et al. 2014); states are in source order
    nevertheless. Dropout is on the inputs of every layer, not in time (Zaremba et al. 2014).

    Args:
        symbols: size of the source vocabulary.
        embedding_size: size of an embedded symbol.
        hidden_size: size of a state, both directions together.
        cell: "lstm" or "gru".
        layers: number of layers.
        bidirectional: whether to read in both directions.
        reverse: whether to read the last symbol first.
        dropout: probability of dropout.

    Raises:
        ValueError: for an unknown cell, and for an odd `hidden_size` in two directions.

    Example:
        >>> from luong.seq2seq import END, Encoder
        >>> shape = dict(cell="gru", layers=2, bidirectional=True, reverse=False, dropout=0.0)
        >>> encoder = Encoder(30, 8, 16, **shape)
        >>> source, lengths = torch.tensor([[4, 5, END], [6, END, 0]]), torch.tensor([2, 1])
        >>> states, last = encoder(source, lengths)
        >>> states.shape, [[x.shape for x in layer] for layer in last]
        (torch.Size([2, 3, 16]), [[torch.Size([2, 16])], [torch.Size([2, 16])]])
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
        self.layers = Stack(cell, layers, embedding_size, hidden_size, bidirectional=bidirectional)

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, list[LayerState]]:
        """Return the states (batch, m + 1, hidden) of the top layer, and the last of each layer.

        source (batch, m + 1) holds symbols, END and padding; `lengths` (batch,) does not count END.
        Last states are (batch, hidden).
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
    """Return the position that each step of a reversed source reads; END stays last.

    This order is its own inverse.
    """
    position, end = positions(m, lengths.device), lengths[:, None]
    return torch.where(position < end, end - 1 - position, position)


class Bridge(nn.Module):
    """Maps the encoder's last states to the decoder's first; layers are matched from the top.

    A state of one direction, and of the decoder's size, is taken as it is, as in the paper. Others
    go through a map of their layer (`learned`): tanh(W h + b), and W c + b of LSTM cells. The
    lowest `more` layers of the decoder have no counterpart and start from zeros; the remaining
    layers of the encoder are not used.

    Args:
        encoder_size: size of an encoder state.
        hidden_size: size of a decoder state.
        cell: "lstm" or "gru", on both sides.
        layers: number of layers that are matched; with 0 the decoder starts from zeros.
        more: number of layers that the decoder has beyond those.
        learned: whether states go through a map; needed where the sizes differ.

    Example:
        >>> from luong.seq2seq import Bridge
        >>> bridge = Bridge(8, 16, cell="lstm", layers=1, more=1, learned=True)
        >>> [x.shape for x in bridge([(torch.zeros(2, 8), torch.zeros(2, 8))])]
        [torch.Size([2, 2, 16]), torch.Size([2, 2, 16])]
    """

    def __init__(
        self,
        encoder_size: int,
        hidden_size: int,
        *,
        cell: str,
        layers: int,
        more: int,
        learned: bool,
    ) -> None:
        super().__init__()
        self.hidden_size, self.more = hidden_size, more
        tensors = 2 if cell == "lstm" else 1
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Linear(encoder_size, hidden_size) for _ in range(tensors * learned))
            for _ in range(layers)
        )

    def forward(self, last: list[LayerState]) -> LayerState:
        """Return tensors (layers, batch, hidden_size), from (batch, encoder_size) of each layer."""
        matched = last[len(last) - len(self.layers) :]
        states = [_map(maps, state) for maps, state in zip(self.layers, matched, strict=True)]
        zeros = [tuple(x.new_zeros(x.shape[0], self.hidden_size) for x in last[0])] * self.more
        return tuple(torch.stack(kind) for kind in zip(*zeros, *states, strict=True))


def _map(maps: nn.Module, state: LayerState) -> LayerState:
    if not isinstance(maps, nn.ModuleList) or not len(maps):
        return state
    hidden, *cell = (each(x) for each, x in zip(maps, state, strict=True))
    return torch.tanh(hidden), *cell
