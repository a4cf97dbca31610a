"""What an output may be: limits of length, prefixes, symbols that do not repeat."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from luong.seq2seq import Decoding, Sampling, decode
from luong.seq2seq.model import END, PAD, START, UNKNOWN
from searching import (
    WORDS,
    enumerate_all,
    make,
    probability,
    repeats,
    same,
    source,
)


def test_outputs_are_cut_at_the_limit_of_each_sentence_and_say_so() -> None:
    model = make(3, targets=13)
    model.decoder.output.weight.data[END] = 0
    model.decoder.output.weight.data[END, 0] = -20  # END hardly ever
    rows = ("abcde", "a", "", "ccc")
    decoding = Decoding(beam=3, n_best=3, max_ratio=1.5, max_extra=1)
    found = decode([model], *source(*rows), decoding)
    cut = [f for row in found for f in row if not f.finished]
    assert len(cut) > 6
    for row, outputs in zip(rows, found, strict=True):
        assert [f.finished for f in outputs] == sorted((f.finished for f in outputs), reverse=True)
        for f in outputs:
            limit = int(1.5 * len(row)) + 1
            assert len(f.symbols) < limit if f.finished else len(f.symbols) == limit
            assert f.weights.shape == (len(f.symbols), len(row))


def test_a_limit_of_nothing_is_an_empty_output_that_is_cut() -> None:
    for rows in (("a", ""), ("",)):
        found = decode([make()], *source(*rows), Decoding(beam=2, max_ratio=3, max_extra=0))
        assert (found[-1][0].symbols, found[-1][0].score, found[-1][0].finished) == ([], 0, False)
        assert 0 < len(found[0][0].symbols) <= 3 or rows == ("",)


def test_an_output_has_as_many_symbols_as_are_asked_for() -> None:
    model = make(1, targets=13)
    rows = ("abcde", "", "ed")
    decoding = Decoding(beam=4, n_best=4, min_ratio=1.2, min_extra=1, max_ratio=3, max_extra=5)
    for row, outputs in zip(rows, decode([model], *source(*rows), decoding), strict=True):
        assert min(len(f.symbols) for f in outputs) >= math.ceil(1.2 * len(row)) + 1


@pytest.mark.parametrize("prefixes", [([4, 6], [UNKNOWN], []), ([5], [5, 5, 5], [4])])
def test_a_prefix_is_kept_and_continued_in_the_best_way(prefixes: list[list[int]]) -> None:
    model = make(2)
    rows = ("ab", "", "e")
    longest = max(map(len, prefixes))
    prefix = torch.tensor([p + [PAD] * (longest - len(p)) for p in prefixes])
    decoding = Decoding(beam=100, n_best=4, max_ratio=0, max_extra=3)
    found = decode([model], *source(*rows), decoding, prefix=prefix)
    for row, start, outputs in zip(rows, prefixes, found, strict=True):
        limit = max(3, len(start) + 1)  # END may follow, whatever the limit
        ranked = enumerate_all([model], row, limit, max(int(len(row) > 0), len(start)), 0.0)
        same(outputs, [e for e in ranked if list(e.symbols[: len(start)]) == start][:4])


@pytest.mark.parametrize("symbol", [START, END])
def test_a_prefix_of_control_symbols_is_refused(symbol: int) -> None:
    with pytest.raises(ValueError, match="prefix: expected no START and no END"):
        decode([make()], *source("a"), Decoding(), prefix=torch.tensor([[symbol]]))


@pytest.mark.parametrize(
    ("seeds", "rows", "limit", "n"),
    [
        ([1], ("e",), 4, 1),
        ([1], ("e",), 4, 2),
        ([1], ("e",), 4, 3),
        ([0, 3], ("ab", ""), 3, 1),
        ([0, 3], ("ab", ""), 3, 2),
    ],
)
def test_no_ngram_occurs_twice_and_what_remains_is_the_best(
    seeds: list[int], rows: tuple[str, ...], limit: int, n: int
) -> None:
    models = [make(seed) for seed in seeds]
    decoding = Decoding(beam=300, n_best=20, max_ratio=0, max_extra=limit, no_repeat_ngram=n)
    for row, outputs in zip(rows, decode(models, *source(*rows), decoding), strict=True):
        everything = enumerate_all(models, row, limit, int(len(row) > 0), 0.0)
        same(outputs, [e for e in everything if not repeats(e.symbols, n)][:20])


def test_a_prefix_may_repeat_itself_and_is_not_repeated() -> None:
    prefix = torch.tensor([[4, 5, 4, 5], [6, 6, PAD, PAD]])
    decoding = Decoding(beam=100, n_best=20, max_ratio=0, max_extra=6, no_repeat_ngram=2)
    found = decode([make(2)], *source("ab", "e"), decoding, prefix=prefix)
    for row, start in zip(found, ([4, 5, 4, 5], [6, 6]), strict=True):
        assert len(row) > 5
        for f in row:
            symbols = f.symbols
            assert symbols[: len(start)] == start
            ngrams = [tuple(symbols[i : i + 2]) for i in range(len(symbols) - 1)]
            said = len(start) - 1  # n-grams within the prefix
            assert not set(ngrams[:said]) & set(ngrams[said:])
            assert len(set(ngrams[said:])) == len(ngrams[said:])


def test_samples_repeat_no_ngram() -> None:
    model = make(1)
    sampling = Sampling(temperature=5.0)
    free = Decoding(n_best=200, max_ratio=0, max_extra=6, sampling=sampling)
    blocked = replace(free, no_repeat_ngram=2)
    assert any(repeats(f.symbols, 2) for f in decode([model], *source("ab"), free)[0])
    for f in decode([model], *source("ab"), blocked)[0]:
        assert not repeats(f.symbols, 2)
        assert f.score == pytest.approx(probability([model], "ab", f.symbols, f.finished), abs=1e-9)


@pytest.mark.parametrize("sampling", [None, Sampling()])
def test_an_output_that_can_only_repeat_ends(sampling: Sampling | None) -> None:
    decoding = Decoding(min_extra=9, no_repeat_ngram=1, sampling=sampling)
    ((found,),) = decode([make(1)], *source("abc"), decoding)
    assert sorted(found.symbols) == sorted(WORDS)
    assert found.finished
