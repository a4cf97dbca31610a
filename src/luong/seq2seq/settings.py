"""The settings of a model. Nothing here needs PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Cell = Literal["lstm", "gru"]
ScoreName = Literal["none", "dot", "scaled_dot", "general", "concat", "location"]
WindowName = Literal["global", "local_m", "local_p"]


@dataclass(frozen=True)
class Settings:
    """The shape of the model (Luong et al. 2015, sections 2 and 3).

    Args:
        embedding_size: size of the embedding of a symbol.
        hidden_size: size of a decoder state.
        encoder_size: size of an encoder state, both directions together; null is hidden_size.
        encoder_layers: layers of the encoder, from 1 to 4.
        decoder_layers: layers of the decoder, from 1 to 4.
        cell: the recurrent cell of encoder and decoder.
        bidirectional: whether the encoder reads in both directions, each with half of encoder_size.
        reverse_source: whether the encoder reads the last symbol first.
        bridge: whether the decoder starts from the encoder's last states; otherwise it starts from
            zeros, and knows the source only by attention.
        attend_end: whether the decoder may attend to the end of the source.
        score: the score function of attention; none: a model without attention, for comparison.
        learned_scale: whether the score is multiplied by a learned factor, initially 1.
        location_length: for score location: number of source positions that can be attended to.
        window: the part of the source that is attended to; local_m moves on with the target,
            local_p predicts its centre.
        half_width: for local windows: number of positions on each side of the centre.
        input_feeding: whether the attentional state is joined to the next input.
        tied_embeddings: whether the output matrix is that of the target embeddings.
        dropout: probability of dropout, on the inputs of all layers, on queries and on attentional
            states.
        init_range: weights start uniform in plus or minus this (0.1 in the paper); null: as PyTorch
            starts its layers.

    Raises:
        ValueError: for a cell, score or window of another name. `build` refuses sizes that do not
            go together.

    Example:
        >>> from luong.seq2seq import Settings
        >>> Settings(hidden_size=64, score="concat").memory_size
        64
        >>> Settings(window="local")
        Traceback (most recent call last):
        ValueError: window: expected one of global, local_m, local_p, got 'local'
    """

    embedding_size: int = 128
    hidden_size: int = 256
    encoder_size: int | None = None
    encoder_layers: int = 1
    decoder_layers: int = 1
    cell: Cell = "lstm"
    bidirectional: bool = True
    reverse_source: bool = False
    bridge: bool = True
    attend_end: bool = False
    score: ScoreName = "general"
    learned_scale: bool = False
    location_length: int = 100
    window: WindowName = "global"
    half_width: int | None = None
    input_feeding: bool = False
    tied_embeddings: bool = False
    dropout: float = 0.1
    init_range: float | None = None

    def __post_init__(self) -> None:
        for name, names in (("cell", Cell), ("score", ScoreName), ("window", WindowName)):
            value, known = getattr(self, name), get_args(names)
            if value not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}")

    @property
    def memory_size(self) -> int:
        """The size of an encoder state."""
        return self.hidden_size if self.encoder_size is None else self.encoder_size
