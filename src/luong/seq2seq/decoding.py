"""The settings of decoding, and the range of each. Nothing here needs PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral, Real

_CELLS = 1 << 27  # attention weights that the search of a sentence may keep: half a gigabyte


@dataclass(frozen=True)
class Range:
    """The numbers that a setting takes.

    least, most: the smallest number and the largest one.
    whole: only whole numbers are taken.
    open: the smallest number itself is not taken.
    """

    least: float
    most: float
    whole: bool = False
    open: bool = False

    def __str__(self) -> str:
        if self.open:
            return f"above {self.least:,}, up to {self.most:,}"
        return f"{self.least:,} to {self.most:,}"

    def check(self, name: str, value: object) -> None:
        """Raise ValueError, with the name of the setting, unless the range holds `value`."""
        kind = Integral if self.whole else Real
        if isinstance(value, bool) or not isinstance(value, kind):
            what = "a whole number" if self.whole else "a number"
            raise ValueError(f"{name}: expected {what}, {self}, got {value!r}")
        # a whole number may be too large for a float; NaN is in no range
        number = int(value) if isinstance(value, Integral) else float(value)
        if not self.least <= number <= self.most or (self.open and number == self.least):
            raise ValueError(f"{name}: expected {self}, got {value}")

    def read(self, text: str) -> float:
        """Return the number that `text` stands for; ValueError for no number of the range."""
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            what = "a whole number" if self.whole else "a number"
            raise ValueError(f"expected {what}, {self}, got {text[:80]!r}") from None
        try:
            self.check("", value)
        except ValueError:
            raise ValueError(f"expected {self}, got {text[:80]}") from None
        return value


# With any numbers of these ranges the search of a sentence fits into memory.
RANGES = {
    "beam": Range(1, 1000, whole=True),
    "n_best": Range(1, 1000, whole=True),
    "length_penalty": Range(0, 20),
    "min_ratio": Range(0, 100),
    "min_extra": Range(0, 10_000, whole=True),
    "max_ratio": Range(0, 100),
    "max_extra": Range(0, 10_000, whole=True),
    "no_repeat_ngram": Range(0, 100, whole=True),
    "temperature": Range(0.01, 100),
    "top_k": Range(0, 1_000_000, whole=True),
    "top_p": Range(0, 1, open=True),
    "seed": Range(0, 2**32 - 1, whole=True),
}


@dataclass(frozen=True)
class Sampling:
    """Draw outputs instead of searching for the best.

    Every step draws from softmax(log p / temperature) over the `top_k` most probable symbols, and
    of these from the fewest that together hold the share `top_p` of the probability.

    Args:
        temperature: below 1, probable symbols are drawn more often.
        top_k: the number of symbols; 0: all.
        top_p: the share of the probability, above 0 and up to 1.
        seed: the draws of a sentence depend only on it and on the number of the sentence.

    Raises:
        ValueError: for a number outside its range in `RANGES`.

    Example:
        >>> from luong.seq2seq import Sampling
        >>> Sampling(top_p=1.5)
        Traceback (most recent call last):
        ValueError: top_p: expected above 0, up to 1, got 1.5

    Source:
        Holtzman et al. (2020), "The Curious Case of Neural Text Degeneration", for `top_p`.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1

    def __post_init__(self) -> None:
        _check_ranges(self)


@dataclass(frozen=True)
class Decoding:
    """The way to find the outputs of a sentence: greedy search, beam search, or sampling.

    `decode` takes it, and every method of a `Translator` that finds outputs.

    Args:
        beam: open hypotheses of a sentence. 1 is greedy search.
        n_best: outputs of a sentence, best first: at most `beam`, or the number of samples.
        length_penalty: α. Outputs are ranked by log-probability / nᵅ, where n counts the symbols
            and END; 0, the paper's, ranks by probability. It changes ranks, never scores.
        min_ratio: a source of length m gives at least min_ratio · m + min_extra symbols.
        min_extra: see `min_ratio`.
        max_ratio: an output that has not ended after max_ratio · m + max_extra symbols is cut; or
            sooner, where more would not fit into memory: see `limit`.
        max_extra: see `max_ratio`.
        no_repeat_ngram: if N is above 0, no N symbols in a row occur twice in an output. Where that
            leaves no symbol, the output ends, even if it has fewer symbols than asked for.
        sampling: draw outputs, instead of searching for the best.

    Raises:
        ValueError: for a number outside its range in `RANGES`, and for settings that contradict
            each other.

    Example:
        >>> from luong.seq2seq import Decoding, Sampling
        >>> Decoding(beam=5, n_best=3).width
        5
        >>> Decoding(n_best=3, sampling=Sampling(temperature=0.7)).width
        3
        >>> Decoding(beam=2, n_best=3)
        Traceback (most recent call last):
        ValueError: n_best: expected at most the beam, 2, got 3
    """

    beam: int = 1
    n_best: int = 1
    length_penalty: float = 0.0
    min_ratio: float = 0.0
    min_extra: int = 0
    max_ratio: float = 2.0
    max_extra: int = 10
    no_repeat_ngram: int = 0
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        _check_ranges(self)
        if self.sampling and self.beam != 1:
            raise ValueError(f"beam: expected 1 where outputs are drawn, got {self.beam}")
        if not self.sampling and self.n_best > self.beam:
            raise ValueError(f"n_best: expected at most the beam, {self.beam}, got {self.n_best}")
        if not (self.max_ratio or self.max_extra):
            raise ValueError("max_extra: expected at least 1 where max_ratio is 0, got 0")

    @property
    def width(self) -> int:
        """The number of open hypotheses of a sentence."""
        return self.n_best if self.sampling else self.beam

    def limit(self, length: int) -> int:
        """Return the number of symbols after which an output is cut, for a source of this length.

        It is max_ratio · length + max_extra, but never more than lets the attention weights of
        all open hypotheses, symbols · length · width numbers, fit into half a gigabyte.
        """
        asked = int(self.max_ratio * length + self.max_extra)
        return min(asked, max(1, _CELLS // (max(1, length) * self.width)))


def _check_ranges(settings: Sampling | Decoding) -> None:
    for field in fields(settings):
        if field.name in RANGES:
            RANGES[field.name].check(field.name, getattr(settings, field.name))
