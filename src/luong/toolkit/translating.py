"""A trained model, or several together, at work: lines in, lines out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, overload

import torch
from torch import Tensor

from luong.seq2seq import Seq2Seq
from luong.seq2seq.model import PAD, UNKNOWN
from luong.seq2seq.search import Decoding, Hypothesis, decode, mean_log_probs
from luong.toolkit import batches, forking, weights
from luong.toolkit.batches import Example
from luong.toolkit.config import Config
from luong.toolkit.errors import ToolkitError
from luong.toolkit.places import Places, written
from luong.toolkit.vocabulary import Vocabulary

MAX_SOURCE = 1000  # pieces of a line
_FILES = ("config.yaml", "source.json", "target.json", "model.safetensors")
_CELLS = 1 << 26  # numbers in the largest tensor of a batch: a quarter of a gigabyte


class Translation(NamedTuple):
    """What the model made of one line."""

    text: str
    source: list[str]  # the pieces of the source that were read
    target: list[str]  # the pieces of the output
    weights: Tensor  # (target, source): what was attended when each piece was predicted
    unseen: list[str]  # pieces of the source that training had not seen
    score: float  # log-probability
    finished: bool  # False: cut at the length limit
    dropped: int = 0  # pieces of the source past the longest that is read
    places: tuple[Places, Places] | None = None  # of the pieces; None: each is a word of its own

    @property
    def tokens(self) -> list[str]:
        """The pieces of the output."""
        return self.target

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """(source, target) positions: the word of each piece with that which it attended most.

        Words are those of `str.split`; where a side is read in characters, they are its characters.
        """
        links = [(j, i) for i, j in enumerate(strongest(self.weights)) if j is not None]
        if self.places is None:
            return links
        source, target = (side.of for side in self.places)
        return list(dict.fromkeys((source[j], target[i]) for j, i in links if source and target))


class Score(NamedTuple):
    """How probable a given target is."""

    score: float  # log-probability: the sum of `steps`
    steps: list[float]  # of each piece of the target, and of its end


class Translator:
    """A model and its vocabularies; with more models of the same vocabularies, an ensemble.

    Its methods change nothing, so that threads may share it, and processes that are forked.
    """

    def __init__(
        self, model: Seq2Seq, source: Vocabulary, target: Vocabulary, others: Sequence[Seq2Seq] = ()
    ) -> None:
        self.model = model
        self.models = [model, *others]
        self.source, self.target = source, target
        forking.prepare()

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @classmethod
    def load(
        cls,
        folder: Path,
        *others: Path,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Translator:
        """The best model of a run, or of several that predict together. Nothing is unpickled."""
        for name, run in ((name, run) for run in (folder, *others) for name in _FILES):
            if not (run / name).is_file():
                raise ToolkitError(f"{run}: not the folder of a trained model: no {name} in it")
        source = Vocabulary.load(folder / "source.json")
        target = Vocabulary.load(folder / "target.json")
        for other in others:
            _check_vocabularies(folder, other)
        first, *rest = (
            _load_model(run, source, target).to(device, dtype).eval() for run in (folder, *others)
        )
        return cls(first, source, target, rest)

    @overload
    def translate(
        self,
        lines: Sequence[str],
        *,
        beam: int = 1,
        n_best: None = None,
        length_penalty: float = 0.0,
        batch_size: int = 256,
    ) -> list[Translation]: ...

    @overload
    def translate(
        self,
        lines: Sequence[str],
        *,
        beam: int = 1,
        n_best: int,
        length_penalty: float = 0.0,
        batch_size: int = 256,
    ) -> list[list[Translation]]: ...

    def translate(
        self,
        lines: Sequence[str],
        *,
        beam: int = 1,
        n_best: int | None = None,
        length_penalty: float = 0.0,
        batch_size: int = 256,
    ) -> list[Translation] | list[list[Translation]]:
        """The translation of each line, in order; with `n_best`, a list of the best of each line.

        A blank line gives a blank one. `Decoding` tells what the settings mean, `search` has more.
        """
        decoding = Decoding(beam=beam, n_best=n_best or 1, length_penalty=length_penalty)
        found = self.search(lines, decoding, batch_size=batch_size)
        return found if n_best else [best for best, *_ in found]

    def search(
        self,
        lines: Sequence[str],
        decoding: Decoding,
        *,
        prefix: str = "",
        replace_unknown: Mapping[str, str] | None = None,
        max_source: int = MAX_SOURCE,
        first: int = 0,
        batch_size: int = 256,
    ) -> list[list[Translation]]:
        """The outputs of each line, best first, in the order of the lines.

        prefix: what every output begins with.
        replace_unknown: put, for each unknown symbol of an output, the source word that it attended
            most, as it was written, or what this dictionary has for it.
        max_source: pieces of a line that are read; the rest is dropped.
        first: the number of the first line, which sampling counts from.
        """
        symbols = self.source.encode(lines)
        dropped = [max(0, len(row) - 1 - max_source) for row in symbols]
        symbols = [row[: min(len(row) - 1, max_source)] + row[-1:] for row in symbols]
        forced = self._forced(prefix)
        filled = [i for i, line in enumerate(lines) if line.strip() and len(symbols[i]) > 1]
        filled.sort(key=lambda i: len(symbols[i]))
        blank = Translation("", [], [], torch.zeros(0, 0, device="cpu"), [], 0.0, True)
        results = [[blank]] * len(lines)
        for chunk in _chunks(filled, symbols, decoding, batch_size):
            source, lengths = (
                x.to(self.device) for x in batches.sources([symbols[i] for i in chunk])
            )
            outputs = decode(
                self.models,
                source,
                lengths,
                decoding,
                prefix=forced.expand(len(chunk), -1),
                numbers=[first + i for i in chunk],
            )
            for i, hypotheses in zip(chunk, outputs, strict=True):
                results[i] = [
                    self._translation(lines[i], symbols[i], dropped[i], found, replace_unknown)
                    for found in hypotheses
                ]
        return results

    @torch.inference_mode()
    def score(
        self, sources: Sequence[str], targets: Sequence[str], *, batch_size: int = 256
    ) -> list[Score]:
        """The log-probability of each target, given its source."""
        sides = (self.source.encode(sources), self.target.encode(targets))
        examples = [Example(*pair) for pair in zip(*sides, strict=True)]
        order = sorted(range(len(examples)), key=lambda i: len(examples[i].target))
        scores = dict[int, Score]()
        while order:
            longest = len(examples[order[-1]].target) * len(self.target)
            size = min(batch_size, max(1, _CELLS // longest))
            order, chunk = order[:-size], order[-size:]
            batch = batches.collate([examples[i] for i in chunk]).to(self.device)
            log_probs = mean_log_probs(
                [model(batch.source, batch.lengths, batch.previous) for model in self.models]
            )
            steps = log_probs.gather(-1, batch.target[..., None]).squeeze(-1).double()
            for i, row, target in zip(chunk, steps.tolist(), batch.target.tolist(), strict=True):
                kept = [step for step, symbol in zip(row, target, strict=True) if symbol != PAD]
                scores[i] = Score(sum(kept), kept)
        return [scores[i] for i in range(len(examples))]

    def _forced(self, prefix: str) -> Tensor:
        """The symbols of a prefix (1, any)."""
        (row,) = self.target.encode([prefix])
        if UNKNOWN in row:
            pieces = zip(self.target.split(prefix), row, strict=False)
            unseen = " ".join(piece for piece, symbol in pieces if symbol == UNKNOWN)
            raise ToolkitError(f"prefix: never seen in training: {unseen}")
        return torch.tensor([row[:-1]], dtype=torch.long, device=self.device)

    def _translation(
        self,
        line: str,
        symbols: list[int],
        dropped: int,
        found: Hypothesis,
        replace_unknown: Mapping[str, str] | None,
    ) -> Translation:
        pieces = self.source.split(line)[: len(symbols) - 1]
        (places,) = self.source.places([line])
        target = [self.target.names[symbol] for symbol in found.symbols]
        text = self.target.decode(found.symbols)
        if replace_unknown is not None and UNKNOWN in found.symbols:
            target = self._replaced(line, places, target, found, replace_unknown)
            text = self.target.join(target)
        return Translation(
            text=text,
            source=pieces,
            target=target,
            weights=found.weights,
            unseen=[piece for piece, s in zip(pieces, symbols, strict=False) if s == UNKNOWN],
            score=found.score,
            finished=found.finished,
            dropped=dropped,
            places=(places, self.target.places_of(target)),
        )

    def _replaced(
        self,
        line: str,
        places: Places,
        target: list[str],
        found: Hypothesis,
        dictionary: Mapping[str, str],
    ) -> list[str]:
        """`target` with source words, as they were written, for what is unknown."""
        words = written(line, places, characters=self.source.reads_characters)
        raw = [None if j is None else words[j] for j in strongest(found.weights)]
        return [
            piece if word is None or symbol != UNKNOWN else dictionary.get(word, word)
            for word, symbol, piece in zip(raw, found.symbols, target, strict=True)
        ]


def strongest(weights: Tensor) -> list[int | None]:
    """The position of largest weight in each row of `weights` (n, m); None in a row of zeros."""
    if not weights.shape[1]:
        return [None] * len(weights)
    best = weights.max(1)
    return [
        j if weight > 0 else None
        for weight, j in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def default_device() -> str:
    """The GPU of this process where there is one, else the CPU."""
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"


def _chunks(
    order: list[int], symbols: Sequence[list[int]], decoding: Decoding, batch_size: int
) -> Iterator[list[int]]:
    """Batches of lines in this order, of bounded memory: the weights of all steps are its most."""
    while order:
        m = len(symbols[order[-1]])
        cells = m * (decoding.max_ratio * m + decoding.max_extra) * decoding.width
        size = min(batch_size, max(1, int(_CELLS // cells)))
        order, chunk = order[:-size], order[-size:]
        yield chunk


def _check_vocabularies(folder: Path, other: Path) -> None:
    for side in ("source", "target"):
        ours, theirs = ((run / f"{side}.json").read_bytes() for run in (folder, other))
        if ours != theirs and json.loads(ours) != json.loads(theirs):
            raise ToolkitError(
                f"{other}: its {side} vocabulary is not that of {folder}, as in an ensemble it "
                "should be"
            )


def _load_model(folder: Path, source: Vocabulary, target: Vocabulary) -> Seq2Seq:
    config = Config.of_run(folder)
    with torch.device("meta"):  # no memory, before the file is known to hold these weights
        model = build_model(config, source, target)
    weights.load(folder / "model.safetensors", model, weights.meaning(config, source, target))
    return model


def build_model(config: Config, source: Sized, target: Sized) -> Seq2Seq:
    """The model of a config for two vocabularies, with fresh weights."""
    return Seq2Seq(len(source), len(target), **asdict(config.model))
