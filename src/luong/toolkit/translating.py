"""A trained model at work: lines in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from luong.seq2seq import Seq2Seq, greedy
from luong.seq2seq.model import UNKNOWN
from luong.toolkit import batches
from luong.toolkit.config import Config
from luong.toolkit.errors import ToolkitError
from luong.toolkit.vocabulary import Vocabulary


class Translation(NamedTuple):
    """What the model made of one line."""

    text: str
    source: list[str]  # the pieces of the source
    target: list[str]  # the pieces of the output
    weights: Tensor  # (target, source): what was attended when each piece was predicted
    unseen: list[str]  # pieces of the source that training had not seen
    score: float  # log-probability
    finished: bool  # False: cut at the length limit


class Translator:
    """A model and its vocabularies."""

    def __init__(self, model: Seq2Seq, source: Vocabulary, target: Vocabulary) -> None:
        self.model = model
        self.source, self.target = source, target

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @classmethod
    def load(cls, folder: Path) -> Translator:
        """The best model of a run. Nothing is unpickled."""
        files = ("config.yaml", "source.json", "target.json", "model.safetensors")
        for name in files:
            if not (folder / name).is_file():
                raise ToolkitError(f"{folder}: not the folder of a trained model: no {name} in it")
        config = Config.load(folder / "config.yaml")
        source = Vocabulary.load(folder / "source.json")
        target = Vocabulary.load(folder / "target.json")
        model = build_model(config, source, target)
        try:
            model.load_state_dict(load_file(folder / "model.safetensors"))
        except (SafetensorError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise ToolkitError(
                f"{folder / 'model.safetensors'}: not the weights of the model of config.yaml "
                f"({reason})"
            ) from error
        return cls(model.eval(), source, target)

    def translate(self, lines: Sequence[str], batch_size: int = 256) -> list[Translation]:
        """A translation of each line, in order. A blank line gives a blank one."""
        symbols = self.source.encode(lines)
        filled = [i for i, row in enumerate(symbols) if len(row) > 1]
        filled.sort(key=lambda i: len(symbols[i]))
        results = [Translation("", [], [], torch.zeros(0, 0), [], 0.0, True)] * len(lines)
        for start in range(0, len(filled), batch_size):
            chunk = filled[start : start + batch_size]
            done = self._batch([lines[i] for i in chunk], [symbols[i] for i in chunk])
            for i, translation in zip(chunk, done, strict=True):
                results[i] = translation
        return results

    def _batch(self, lines: list[str], symbols: list[list[int]]) -> Iterator[Translation]:
        source, lengths = (x.to(self.device) for x in batches.sources(symbols))
        hypotheses = greedy(self.model, source, lengths)
        for line, row, hypothesis in zip(lines, symbols, hypotheses, strict=True):
            pieces = self.source.split(line)
            yield Translation(
                text=self.target.decode(hypothesis.symbols),
                source=pieces,
                target=[self.target.names[symbol] for symbol in hypothesis.symbols],
                weights=hypothesis.weights,
                unseen=[piece for piece, s in zip(pieces, row[:-1], strict=True) if s == UNKNOWN],
                score=hypothesis.score,
                finished=hypothesis.finished,
            )


def build_model(config: Config, source: Sized, target: Sized) -> Seq2Seq:
    """The model of a config for two vocabularies, with fresh weights."""
    return Seq2Seq(len(source), len(target), **asdict(config.model))
