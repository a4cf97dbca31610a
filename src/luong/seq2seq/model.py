"""The model of Luong, Pham & Manning (2015), sections 2 and 3.

h_t   = LSTM([y_{t-1}; h~_{t-1}], h_{t-1})    stacked; h~ with input feeding only
c_t   = Attention(h_t, encoder states)
h~_t  = tanh(W_c [c_t; h_t])                  (eq. 5)
p(y_t | y_<t, x) = softmax(W_s h~_t)          (eq. 6)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from luong._memory import Memory
from luong.seq2seq.decoder import Decoder
from luong.seq2seq.decoder import DecoderState as DecoderState
from luong.seq2seq.decoder import Predicted as Predicted
from luong.seq2seq.encoder import Bridge, Encoder
from luong.seq2seq.symbols import END as END
from luong.seq2seq.symbols import PAD as PAD
from luong.seq2seq.symbols import START as START
from luong.seq2seq.symbols import UNKNOWN as UNKNOWN


class Seq2Seq(nn.Module):
    """Encoder, bridge and decoder. `build` makes them from settings; you can also pass your own.

    Symbols are integers, the first four being PAD, START, END, UNKNOWN. The encoder reads the
    source's END, which is not attended unless `attend_end`. Positions count from the start
    of the source, even if it is read backwards.

    Args:
        encoder: reads a source into states, one for each symbol and one for END.
        bridge: makes the decoder's first state from the encoder's last.
        decoder: attends to the states, and predicts the target symbol by symbol.
        attend_end: whether the source's END is attended, and counted as a position.
        attends: False: nothing is attended, and c_t is zero. (The paper's baseline predicts from
            h_t itself, without h~_t.)

    Source:
        Luong, Pham & Manning (2015), "Effective Approaches to Attention-based Neural Machine
        Translation", sections 2 and 3. The bridge's learned maps are not in the paper.

    Example:
        >>> from luong.seq2seq import END, START, Settings, build
        >>> model = build(Settings(embedding_size=8, hidden_size=16), 30, 40)
        >>> source, lengths = torch.tensor([[4, 5, END], [6, END, 0]]), torch.tensor([2, 1])
        >>> previous = torch.tensor([[START, 7, 8, 9], [START, 7, 0, 0]])
        >>> model(source, lengths, previous).shape  # (batch, n, target symbols)
        torch.Size([2, 4, 40])
    """

    def __init__(
        self,
        encoder: Encoder,
        bridge: Bridge,
        decoder: Decoder,
        *,
        attend_end: bool = False,
        attends: bool = True,
    ) -> None:
        super().__init__()
        self.attend_end = attend_end
        self.attends = attends
        self.encoder = encoder
        self.bridge = bridge
        self.decoder = decoder

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
