"""The `Translator`: a trained model, or an ensemble, that turns lines into lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from luong.seq2seq import Seq2Seq, build
from luong.seq2seq.decoding import Decoding
from luong.seq2seq.model import UNKNOWN
from luong.seq2seq.search import decode
from luong.toolkit.choices import BATCH_SIZE, SOURCE_LENGTH, Lines, StepName
from luong.toolkit.config import Config
from luong.toolkit.errors import ToolkitError
from luong.toolkit.inference import forking, links, weights
from luong.toolkit.inference.arguments import pairs_of, strings
from luong.toolkit.inference.translation import Score as Score
from luong.toolkit.inference.translation import Translation as Translation
from luong.toolkit.inference.translation import translated
from luong.toolkit.text import batches
from luong.toolkit.text.vocabulary import Vocabulary

MAX_SOURCE = 1000  # pieces of a line
_FILES = ("config.yaml", "source.json", "target.json", "model.safetensors")


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

    def __repr__(self) -> str:
        sizes = [f"{len(self.source):,} source and {len(self.target):,} target symbols"]
        if len(self.models) > 1:
            sizes.append(f"an ensemble of {len(self.models)}")
        return f"<Translator {shape(self.model)}; {'; '.join([*sizes, str(self.device)])}>"

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def numbers(self) -> int:
        """The approximate count of numbers in a step: logits, states, gates. It bounds batches."""
        sizes = (layer.hidden_size for m in self.models for layer in [*m.decoder.layers][:1])
        return sum(len(self.target) + 16 * size for size in sizes)

    @classmethod
    def load(
        cls,
        folder: Path,
        *others: Path,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Translator:
        """Return the best model of a run, or of several that predict together. Nothing is
        unpickled.
        """
        for name, run in ((name, run) for run in (folder, *others) for name in _FILES):
            if not (run / name).is_file():
                raise ToolkitError(f"{run}: not the folder of a trained model: no {name} in it")
        runs = [_Run.read(each) for each in (folder, *others)]
        for other in runs[1:]:
            runs[0].require_same_vocabularies(other)
        first, *rest = (run.model().to(device, dtype).eval() for run in runs)
        return cls(first, runs[0].source, runs[0].target, rest)

    def translate(
        self,
        lines: Iterable[str],
        decoding: Decoding | None = None,
        *,
        prefix: str = "",
        replace_unknown: Mapping[str, str] | None = None,
        batch_size: int = 256,
    ) -> list[Translation]:
        """Return the best translation of each line, in order; a blank line gives a blank one.

        Args:
            lines: a list of strings.
            decoding: how to find an output, as `luong.seq2seq.Decoding(beam=5)`; None: by greedy
                search. For several outputs of a line see `search`.
            prefix: what every output begins with.
            replace_unknown: put, for each unknown symbol of an output, the source word that it
                attended most, as it was written, or what this dictionary has for it.
            batch_size: lines at a time, at most.

        Raises:
            ValueError: for an `n_best` above 1, and a number out of its range.
            TypeError: for lines that are no list of strings.
            ToolkitError: for a prefix that training has not seen.
        """
        if decoding and decoding.n_best > 1:
            raise ValueError(
                f"n_best: expected 1, got {decoding.n_best}; for several outputs of a line call "
                "`search`"
            )
        found = self.search(
            lines, decoding, prefix=prefix, replace_unknown=replace_unknown, batch_size=batch_size
        )
        return [best for (best,) in found]

    def search(
        self,
        lines: Iterable[str],
        decoding: Decoding | None = None,
        *,
        prefix: str = "",
        replace_unknown: Mapping[str, str] | None = None,
        max_source: int = MAX_SOURCE,
        first: int = 0,
        batch_size: int = 256,
    ) -> list[list[Translation]]:
        """Return the `n_best` outputs of each line, best first, in the order of the lines.

        There are fewer outputs where the search finds no more, and one for a blank line.

        Args:
            lines, decoding, prefix, replace_unknown, batch_size: as in `translate`.
            max_source: pieces of a line that are read; the rest is dropped.
            first: the number of the first line, which sampling counts from.
        """
        decoding = decoding or Decoding()
        lines = strings("lines", lines)
        BATCH_SIZE.check("batch_size", batch_size)
        SOURCE_LENGTH.check("max_source", max_source)
        symbols = self.source.encode(lines)
        dropped = [max(0, len(row) - 1 - max_source) for row in symbols]
        symbols = [row[: min(len(row) - 1, max_source)] + row[-1:] for row in symbols]
        forced = self._forced(prefix)
        filled = [i for i, line in enumerate(lines) if line.strip() and len(symbols[i]) > 1]
        filled.sort(key=lambda i: len(symbols[i]))
        blank = Translation("", [], [], torch.zeros(0, 0, device="cpu"), [], 0.0, True)
        results = [[blank]] * len(lines)
        for chunk in _chunks(filled, symbols, decoding, batch_size, self.numbers):
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
                line, read, rest = lines[i], symbols[i], dropped[i]
                results[i] = [
                    translated(line, read, rest, found, self.source, self.target, replace_unknown)
                    for found in hypotheses
                ]
        return results

    def score(
        self, sources: Iterable[str], targets: Iterable[str], *, batch_size: int = 256
    ) -> list[Score]:
        """Return the log-probability of each target, given its source."""
        from luong.toolkit.inference import scoring

        return scoring.score(self, pairs_of(sources, targets), batch_size=batch_size)

    def align(
        self,
        sources: Iterable[str],
        targets: Iterable[str],
        *,
        step: StepName = "predicted",
        threshold: float | None = None,
        reverse: Translator | None = None,
        join: str | None = None,
        batch_size: int = 64,
    ) -> list[list[tuple[int, int]]]:
        """Return the links (source, target) of each pair, from 0, ordered by target, as `luong
        align` has.

        Args:
            sources, targets: lists of strings of the same length.
            step: whose weights a target word gets, one of `choices.STEPS`.
            threshold: link all source words of at least this weight, above 0, up to 1; None: the
                one of largest weight.
            reverse: a model of the other direction, to join with.
            join: how to join, one of `links.WAYS`; the default is "grow-diag-final-and".
            batch_size: pairs at a time, at most.
        """
        from luong.toolkit.inference import alignment

        pairs = pairs_of(sources, targets)
        found = alignment.links_of(
            self,
            pairs,
            reverse=reverse,
            how=join,
            step=step,
            threshold=threshold,
            batch_size=batch_size,
        )
        return [links.ordered(each) for each in found]

    def evaluate(
        self,
        sources: Iterable[str],
        targets: Iterable[str],
        decoding: Decoding | None = None,
        *,
        metrics: Iterable[str] | None = None,
        lines: Lines | None = None,
        tokenize: str | None = None,
        lowercase: bool = False,
        replace_unknown: Mapping[str, str] | None = None,
        batch_size: int = 256,
    ) -> dict[str, float]:
        """Translate each distinct source and measure the outputs, as `luong evaluate` does.

        Args:
            sources, targets: lists of strings of the same length; the targets of equal sources
                are references of one, and the closest counts.
            metrics: names among `choices.METRICS`. The default depends on `lines`: wer and per, or
                bleu, chrf and ter.
            lines: what a source is, "words" or "sentences"; None: as the model reads them.
            tokenize: sacreBLEU's tokenizer, for bleu; None: 13a.
            lowercase: bleu, chrf and ter without regard to case.
            decoding, replace_unknown, batch_size: as in `translate`.

        Returns the value of each measure; all but bleu, chrf, ter and perplexity are in per cent.
        """
        from luong.toolkit.inference import evaluation

        pairs = pairs_of(sources, targets)
        found = evaluation.evaluate(
            self,
            pairs,
            decoding,
            None if metrics is None else strings("metrics", metrics),
            lines=lines,
            tokenize=tokenize,
            lowercase=lowercase,
            replace_unknown=replace_unknown,
            batch_size=batch_size,
        )
        return {measurement.name: measurement.of() for measurement in found.measurements}

    def _forced(self, prefix: str) -> Tensor:
        """Return the symbols of a prefix (1, any)."""
        (row,) = self.target.encode([prefix])
        if UNKNOWN in row:
            pieces = zip(self.target.split(prefix), row, strict=False)
            unseen = " ".join(piece for piece, symbol in pieces if symbol == UNKNOWN)
            raise ToolkitError(f"prefix: never seen in training: {unseen}")
        return torch.tensor([row[:-1]], dtype=torch.long, device=self.device)


def _chunks(
    order: list[int], symbols: Sequence[list[int]], decoding: Decoding, size: int, numbers: int
) -> Iterator[list[int]]:
    """Yield batches of lines in this order, of at most `size` lines and of bounded memory.

    A hypothesis takes the weights of all its steps, and `numbers` more.
    """
    while order:
        m = len(symbols[order[-1]])
        cells = max(m * decoding.limit(m), numbers) * decoding.width
        count = min(size, max(1, batches.CELLS // cells))
        order, chunk = order[:-count], order[-count:]
        yield chunk


class _Run(NamedTuple):
    """The content of the folder of a run, without the weights."""

    folder: Path
    config: Config
    source: Vocabulary
    target: Vocabulary

    @classmethod
    def read(cls, folder: Path) -> _Run:
        config = Config.of_run(folder)
        source = Vocabulary.load(folder / "source.json", config.data.source)
        target = Vocabulary.load(folder / "target.json", config.data.target)
        return cls(folder, config, source, target)

    def require_same_vocabularies(self, other: _Run) -> None:
        for side in ("source", "target"):
            ours, theirs = (getattr(run, side).tokenizer.to_str() for run in (self, other))
            if ours != theirs:
                raise ToolkitError(
                    f"{other.folder}: its {side} vocabulary is not that of {self.folder}, as in an "
                    "ensemble it should be"
                )

    def model(self) -> Seq2Seq:
        with torch.device("meta"):  # no memory, before the file is known to hold these weights
            model = build_model(self.config, self.source, self.target)
        meaning = weights.meaning(self.config, self.source, self.target)
        weights.load(self.folder / "model.safetensors", model, meaning)
        return model


def shape(model: Seq2Seq) -> str:
    """Return the kind and the sizes of a model, in a line."""
    attention, layers = model.decoder.attention, [*model.decoder.layers]
    score = type(attention.score).__name__ if model.attends else "no attention"
    window = "" if attention.window is None else f", {type(attention.window).__name__}"
    cell, size = type(layers[0]).__name__, layers[0].hidden_size
    return f"{score}{window}; {cell} {len(model.encoder.layers)}+{len(layers)} x {size}"


def build_model(config: Config, source: Sized, target: Sized) -> Seq2Seq:
    """Return the model of a config for two vocabularies, with fresh weights."""
    return build(config.model, len(source), len(target))
