"""Outputs that are drawn."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from torch import Tensor

from luong.seq2seq import Decoding, Sampling, decode
from luong.seq2seq.model import END
from searching import (
    TARGETS,
    WORDS,
    forced,
    make,
    probability,
    source,
)


def shaped(log_probs: Tensor, sampling: Sampling) -> list[float]:
    """What is drawn from, symbol by symbol, with loops."""
    allowed = {s: float(log_probs[s]) / sampling.temperature for s in (*WORDS, END)}
    total = sum(math.exp(x) for x in allowed.values())
    ranked = sorted(((math.exp(x) / total, s) for s, x in allowed.items()), reverse=True)
    ranked = ranked[: sampling.top_k or None]
    rest = sum(p for p, _ in ranked)
    kept, mass = dict[int, float](), 0.0
    for p, symbol in ranked:
        if mass >= sampling.top_p:
            break
        kept[symbol] = p
        mass += p / rest
    return [kept.get(symbol, 0.0) / sum(kept.values()) for symbol in range(TARGETS)]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=2.5, seed=3),
        Sampling(temperature=0.5, seed=4),
        Sampling(top_k=3, seed=5),
        Sampling(top_p=0.7, seed=6),
        Sampling(temperature=2.0, top_k=4, top_p=0.8, seed=7),
    ],
)
def test_samples_are_as_frequent_as_they_should_be(sampling: Sampling) -> None:
    model = make(1)
    decoding = Decoding(n_best=50, max_ratio=0, max_extra=2, sampling=sampling)
    rows = [""] * 200  # an empty source: END may come first
    found = [f for row in decode([model], *source(*rows), decoding) for f in row]
    assert len(found) == 10_000
    counts = Counter((tuple(f.symbols), f.finished) for f in found)
    first = shaped(forced([model], "", [])[0][0], sampling)
    expected: dict[tuple[tuple[int, ...], bool], float] = {((), True): first[END]}
    for a in WORDS:
        second = shaped(forced([model], "", [a])[0][1], sampling)
        expected |= {((a,), True): first[a] * second[END]}
        expected |= {((a, b), False): first[a] * second[b] for b in WORDS}
    assert sum(expected.values()) == pytest.approx(1)
    assert all(expected[key] > 0 for key in counts)
    likely = {key: 10_000 * p for key, p in expected.items() if 10_000 * p >= 5}
    chi_square = sum((counts[key] - n) ** 2 / n for key, n in likely.items())
    freedom = len(likely) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)  # four standard deviations
    for f in found[:50]:  # the model's probability, not that of the draw
        assert f.score == pytest.approx(probability([model], "", f.symbols, f.finished), abs=1e-9)


def test_the_seed_and_the_number_of_a_sentence_determine_its_samples() -> None:
    def drawn(seed: int, numbers: list[int]) -> list[list[list[int]]]:
        decoding = Decoding(n_best=5, sampling=Sampling(seed=seed))
        rows = source(*(["abc"] * len(numbers)))
        return [
            [f.symbols for f in row]
            for row in decode([make(4, targets=13)], *rows, decoding, numbers=numbers)
        ]

    one, two = drawn(1, [0, 1])
    assert drawn(1, [1, 7, 0])[::2] == [two, one]
    assert one != two
    assert drawn(2, [0]) != [one]
