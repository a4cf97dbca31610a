"""Build a model from its settings. Only this module maps names to scores and windows."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from luong._modules import Attention
from luong._score import Concat, Dot, General, Location, Scaled, ScaledDot, Score
from luong._window import LocalMonotonic, LocalPredictive, Window
from luong.seq2seq.decoder import Decoder
from luong.seq2seq.encoder import Bridge, Encoder
from luong.seq2seq.model import Seq2Seq
from luong.seq2seq.settings import Settings
from luong.seq2seq.symbols import PAD


def build(settings: Settings, source_symbols: int, target_symbols: int) -> Seq2Seq:
    """Return a new model. Parameters are drawn in one order: the same seed gives the same model.

    Args:
        settings: the shape of the model. The toolkit has limits for sizes and layers; here each may
            be any number from 1 on.
        source_symbols: size of the source vocabulary, the four reserved symbols included.
        target_symbols: size of the target vocabulary, the four reserved symbols included.

    Returns:
        The model, in training mode, on the default device and in the default dtype.

    Raises:
        ValueError: for sizes that do not go together, such as an odd encoder in two directions.

    Example:
        >>> from luong.seq2seq import Settings, build
        >>> model = build(Settings(hidden_size=64, window="local_p", half_width=2), 30, 40)
        >>> model.decoder.attention.window.half_width
        2
    """
    encoder = Encoder(
        source_symbols,
        settings.embedding_size,
        settings.memory_size,
        cell=settings.cell,
        layers=settings.encoder_layers,
        bidirectional=settings.bidirectional,
        reverse=settings.reverse_source,
        dropout=settings.dropout,
    )
    bridge = _bridge(settings)
    attention = Attention(_score(settings), window=_window(settings))
    decoder = Decoder(
        settings.hidden_size,
        settings.memory_size,
        embedding=nn.Embedding(target_symbols, settings.embedding_size, padding_idx=PAD),
        attention=attention,
        cell=settings.cell,
        layers=settings.decoder_layers,
        input_feeding=settings.input_feeding,
        tied_embeddings=settings.tied_embeddings,
        dropout=settings.dropout,
    )
    model = Seq2Seq(
        encoder, bridge, decoder, attend_end=settings.attend_end, attends=settings.score != "none"
    )
    if settings.init_range is not None:
        _start_uniform(model, settings.init_range)
    return model


def _bridge(settings: Settings) -> Bridge:
    fewer = min(settings.encoder_layers, settings.decoder_layers)
    matched = fewer if settings.bridge else 0
    return Bridge(
        settings.memory_size,
        settings.hidden_size,
        cell=settings.cell,
        layers=matched,
        more=settings.decoder_layers - matched,
        learned=settings.bidirectional or settings.memory_size != settings.hidden_size,
    )


def _score(settings: Settings) -> Score:
    query_size, key_size = settings.hidden_size, settings.memory_size
    if settings.score in ("none", "dot", "scaled_dot") and query_size != key_size:
        raise ValueError(
            f"encoder_size: expected hidden_size = {query_size} with the score {settings.score}, "
            f"got {key_size}"
        )
    score = _named_score(settings, query_size, key_size)
    return Scaled(score) if settings.learned_scale else score


def _named_score(settings: Settings, query_size: int, key_size: int) -> Score:
    match settings.score:  # mypy reports a name that is missing here
        case "none":
            return ScaledDot()  # of nothing
        case "dot":
            return Dot()
        case "scaled_dot":
            return ScaledDot()
        case "general":
            return General(query_size, key_size)
        case "concat":
            return Concat(query_size, key_size, query_size)
        case "location":
            return Location(query_size, settings.location_length)


def _window(settings: Settings) -> Window | None:
    size, width = settings.hidden_size, cast(int, settings.half_width)  # None is refused there
    match settings.window:
        case "global":
            return None
        case "local_m":
            return LocalMonotonic(width)
        case "local_p":
            return LocalPredictive(size, size, width)


@torch.no_grad()
def _start_uniform(model: Seq2Seq, limit: float) -> None:
    for parameter in model.parameters():
        if parameter.ndim:  # a learned scale still starts at 1
            parameter.uniform_(-limit, limit)
    for side in (model.encoder, model.decoder):
        side.embedding.weight[PAD] = 0
