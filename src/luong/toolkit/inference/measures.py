"""Measures of outputs against references, each as numbers per source whose sum gives the score.

So one method gives the score of a corpus, of the sources of some length, or of a bootstrap sample.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from luong.toolkit.errors import ToolkitError, UsageError

Numbers = NDArray[np.float64]

EDIT_RATES = ("wer", "per", "cer", "exact")
SACREBLEU = ("bleu", "chrf", "ter")

_PACKAGES = {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"}
_SPACELESS = {  # scripts that are written without spaces between words
    "kana": re.compile("[\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f]"),
    "han": re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"),
    "thai, lao, burmese, khmer": re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]"),
}
_LONGEST_WORD = (
    5  # letters between two spaces, on average, if text of these scripts was split into words
)


class Text(NamedTuple):
    line: str
    pieces: Sequence[str]  # as the target's vocabulary splits it


class Answer(NamedTuple):
    """The output for a source, and its references."""

    source: Text
    output: Text
    references: Sequence[Text]  # one or more


class Bucket(NamedTuple):
    """The sources of a range of lengths."""

    shortest: int
    longest: int
    rows: NDArray[np.bool_]  # (sources,)


class Measurement(NamedTuple):
    """A measure of a corpus: `score` of the sum of `numbers` over its sources."""

    name: str
    numbers: Numbers  # (sources, k)
    score: Callable[[Numbers], float]  # of k numbers
    signature: str | None = None  # sacreBLEU's

    def of(self, rows: Any = slice(None)) -> float:
        """Return the score of these sources: all, a mask, or indices with repetitions."""
        return self.score(self.numbers[rows].sum(0))

    def interval(self, samples: int, seed: int, level: float = 0.95) -> tuple[float, float]:
        """Return a bootstrap confidence interval of the score: percentiles over samples of sources.

        Every measure of a corpus sees the same samples for the same seed.
        """
        rng, count = np.random.default_rng(seed), len(self.numbers)
        scores = [self.of(rng.integers(count, size=count)) for _ in range(samples)]
        tail = 50 * (1 - level)
        low, high = np.percentile(scores, [tail, 100 - tail])
        return float(low), float(high)


def given(
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    sources: Sequence[str] | None = None,
) -> list[Answer]:
    """Return outputs of another program with their references; pieces are words.

    With `sources`, equal ones are one, with the references of all. Without, the first reference
    stands for the source.
    """
    found: dict[object, Answer] = {}
    for k, (output, lines) in enumerate(zip(outputs, references, strict=True)):
        source = sources[k] if sources else lines[0]
        answer = Answer(_words(source), _words(output), [*map(_words, lines)])
        before = found.setdefault(source if sources else k, answer)
        if before.output != answer.output:
            raise ToolkitError(
                f"output {k + 1}: {output[:80]!r}, but for the same source, {source[:80]!r}, "
                f"an earlier one is {before.output.line[:80]!r}"
            )
        if before is not answer:
            found[source] = before._replace(references=[*before.references, *answer.references])
    return list(found.values())


def by_length(found: Sequence[Answer], count: int) -> Iterator[Bucket]:
    """Return about `count` ranges of source length, in pieces, with about equally many sources."""
    lengths = np.array([len(answer.source.pieces) for answer in found])
    edges = np.unique(np.quantile(lengths, np.arange(1, count + 1) / count, method="lower"))
    for low, high in zip([-1, *edges[:-1]], edges, strict=True):
        rows = (lengths > low) & (lengths <= high)
        if rows.any():
            yield Bucket(int(lengths[rows].min()), int(lengths[rows].max()), rows)


def measure(
    name: str,
    answers: Sequence[Answer],
    *,
    sentences: bool = False,
    tokenize: str | None = None,
    lowercase: bool = False,
) -> Measurement:
    """Return the measure `name`, one of `EDIT_RATES` or `SACREBLEU`, in per cent.

    wer: where a source is a word, the share of outputs that equal no reference; where it is a
        sentence, edits in words (between white space) over the words of the closest reference.
    per: edits in pieces over the pieces of the closest reference (phoneme error rate).
    cer: the same in characters.
    exact: the share of outputs whose pieces equal a reference's.
    bleu, chrf, ter: sacreBLEU's, with its `tokenize` (only for BLEU) and `lowercase`.

    An edit is an insertion, deletion or substitution. Of equally close references the shortest
    counts.
    """
    if name in SACREBLEU:
        return _sacrebleu(name, answers, tokenize, lowercase)
    units: dict[str, Callable[[Text], Sequence[str]]] = {
        "wer": (lambda text: text.line.split()) if sentences else (lambda text: text.pieces),
        "per": lambda text: text.pieces,
        "cer": lambda text: text.line,
        "exact": lambda text: text.pieces,
    }
    edits = np.array([_closest(answer, units[name]) for answer in answers], dtype=np.float64)
    if name == "exact" or (name == "wer" and not sentences):
        right = edits[:, 0] == 0
        counted = right if name == "exact" else ~right
        edits = np.stack([counted, np.ones(len(edits))], 1)
    return Measurement(name, edits, _percentage)


def check_tokenizer(name: str | None) -> None:
    """Refuse a tokenizer that sacreBLEU does not know, or whose package is not installed."""
    if name is None:
        return
    if name not in BLEU.TOKENIZERS:
        known = ", ".join(sorted(BLEU.TOKENIZERS))
        raise UsageError(f"--tokenize: expected one of {known}, got {name!r}")
    try:
        BLEU(tokenize=name)
    except (ImportError, RuntimeError) as error:  # sacreBLEU may raise either
        package = _PACKAGES.get(name, "sentencepiece")
        raise ToolkitError(f"--tokenize {name} needs a package: pip install {package!r}") from error
    except OSError as error:
        reason = f"its model, which sacreBLEU downloads, cannot be had ({error})"
        raise ToolkitError(f"--tokenize {name}: {reason}") from error


def fitting_tokenizer(lines: Iterable[str]) -> str | None:
    """Return the tokenizer of BLEU for scripts without spaces between words, else None."""
    counts, words = dict.fromkeys(_SPACELESS, 0), 0
    letters = 0
    for line in lines:
        for word in line.split():
            found = {kind: len(pattern.findall(word)) for kind, pattern in _SPACELESS.items()}
            words += any(found.values())
            letters += sum(map(str.isalpha, word))
            for kind, count in found.items():
                counts[kind] += count
    total = sum(counts.values())
    if total <= letters / 2 or total <= _LONGEST_WORD * words:
        return None
    if counts["kana"] > total / 20:
        return "ja-mecab"
    return "zh" if counts["han"] > total / 2 else "char"


def perplexity(losses: Iterable[tuple[float, int]]) -> Measurement:
    """Return exp of the mean negative log-probability of reference symbols and END.

    `losses` has, for each source, the sum over its references and their number of symbols.
    """
    numbers = np.array(list(losses), dtype=np.float64)
    return Measurement("perplexity", numbers, lambda sums: float(np.exp(sums[0] / sums[1])))


def _words(line: str) -> Text:
    return Text(line, line.split())


def _closest(answer: Answer, units: Callable[[Text], Sequence[str]]) -> tuple[int, int]:
    """Return the edits to the closest reference, and its length."""
    output = units(answer.output)
    references = map(units, answer.references)
    return min((Levenshtein.distance(output, other), len(other)) for other in references)


def _percentage(sums: Numbers) -> float:
    return float(100 * sums[0] / max(sums[1], 1))


def _sacrebleu(
    name: str, answers: Sequence[Answer], tokenize: str | None, lowercase: bool
) -> Measurement:
    metric = _metric(name, tokenize, lowercase)
    most = max(len(answer.references) for answer in answers)
    streams = [
        [answer.references[k].line if k < len(answer.references) else None for answer in answers]
        for k in range(most)
    ]
    # what its own bootstrap is made of: there is no public way to a sentence's statistics
    numbers = metric._extract_corpus_statistics([a.output.line for a in answers], streams)
    return Measurement(
        name,
        np.array(numbers, dtype=np.float64),
        lambda sums: float(metric._compute_score_from_stats(sums.tolist()).score),
        str(metric.get_signature()),
    )


def _metric(name: str, tokenize: str | None, lowercase: bool) -> Any:
    check_tokenizer(tokenize)
    match name:
        case "bleu":
            return BLEU(lowercase=lowercase, tokenize=tokenize, force=True)
        case "chrf":
            return CHRF(lowercase=lowercase)
        case _:
            return TER(case_sensitive=not lowercase)
