"""Search, against enumeration, and against a search that is written plainly for one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from luong._memory import Memory
from luong.seq2seq import Decoding, Sampling, Seq2Seq, decode
from luong.seq2seq.model import END, PAD, START, DecoderState, Predicted
from searching import (
    TARGETS,
    Entry,
    allowed,
    enumerate_all,
    forced,
    make,
    probability,
    same,
    source,
)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_wide_beam_finds_the_best_of_all_outputs(seed: int, penalty: float) -> None:
    model = make(seed)
    rows = ("abc", "", "e")
    decoding = Decoding(
        beam=100, n_best=20, length_penalty=penalty, max_ratio=0.5, max_extra=2, min_ratio=0.5
    )
    found = decode([model], *source(*rows), decoding)
    for row, outputs in zip(rows, found, strict=True):
        limit, least = len(row) // 2 + 2, math.ceil(len(row) / 2)
        same(outputs, enumerate_all([model], row, limit, least, penalty)[:20])


def test_a_beam_may_hold_all_that_there_is() -> None:
    model = make(3)
    everything = enumerate_all([model], "a", 2, 1, 0.0)
    found = decode([model], *source("a"), Decoding(beam=500, n_best=500, max_ratio=0, max_extra=2))[
        0
    ]
    same(found, everything)  # 4 of one symbol, and 16 that are cut after two
    assert len(found) == 20


def plain(model: Seq2Seq, row: str, decoding: Decoding) -> list[Entry]:
    """Beam search with lists, to the limit: nothing stops early."""
    limit = int(decoding.max_ratio * len(row) + decoding.max_extra)
    least = max(math.ceil(decoding.min_ratio * len(row) + decoding.min_extra), int(len(row) > 0))
    beam: list[Entry] = [Entry((), False, 0.0)]
    done: list[Entry] = []
    for step in range(limit):
        candidates = [
            Entry(
                entry.symbols if symbol == END else (*entry.symbols, symbol),
                symbol == END,
                entry.score + log_probs[symbol],
            )
            for entry in beam
            for log_probs in [forced([model], row, entry.symbols)[0][-1].tolist()]
            for symbol in allowed(entry.symbols, decoding.no_repeat_ngram, step >= least)
        ]
        candidates.sort(key=lambda entry: entry.score, reverse=True)
        done += [entry for entry in candidates[: decoding.beam] if entry.finished]
        beam = [entry for entry in candidates if not entry.finished][: decoding.beam]
    done += beam
    done.sort(key=lambda entry: entry.rank(decoding.length_penalty), reverse=True)
    return done[: decoding.n_best]


class Scripted:
    """A model whose probabilities depend on the position alone."""

    def __init__(self, *steps: dict[int, float]) -> None:
        probs = torch.full((len(steps), TARGETS), 1e-30, dtype=torch.float64)
        for row, step in zip(probs, steps, strict=True):
            for symbol, p in step.items():
                row[symbol] = p
        self.logits = probs.log()
        self.decoder = self

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Memory, DecoderState]:
        memory = torch.zeros(len(lengths), source.shape[1] - 1, 1)
        return Memory(memory, memory), DecoderState((torch.zeros(1, len(lengths), 1, 1),))

    def step(
        self, previous: Tensor, state: DecoderState, memory: Memory, *, need_weights: bool
    ) -> Predicted:
        logits = self.logits[state.position].expand(*previous.shape, -1)
        weights = torch.zeros(*previous.shape, memory.key.shape[1])
        return Predicted(logits, state._replace(position=state.position + 1), weights)


@pytest.mark.parametrize(("penalty", "length"), [(0.0, 0), (0.5, 9), (1.0, 9)])
def test_a_long_output_may_win_long_after_a_short_one_ended(penalty: float, length: int) -> None:
    sure = [{4: 1 - 1e-12}] * 8
    model: Any = Scripted({END: 0.51, 4: 0.49}, *sure, {END: 1 - 1e-12})
    decoding = Decoding(beam=2, length_penalty=penalty, max_ratio=0, max_extra=10)
    ((found,),) = decode([model], *source(""), decoding)
    assert len(found.symbols) == length


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    beam=st.integers(1, 6),
    n_best=st.integers(1, 6),
    penalty=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    least=st.integers(0, 2),
    extra=st.integers(3, 5),
    ngram=st.integers(0, 3),
    rows=st.lists(st.text("abcde", max_size=3), min_size=1, max_size=4),
)
def test_stopping_early_and_leaving_the_batch_lose_nothing(
    seed: int,
    beam: int,
    n_best: int,
    penalty: float,
    least: int,
    extra: int,
    ngram: int,
    rows: list[str],
) -> None:
    model = make(seed)
    decoding = Decoding(
        beam=beam,
        n_best=min(n_best, beam),
        length_penalty=penalty,
        min_extra=least,
        max_ratio=1,
        max_extra=extra,
        no_repeat_ngram=ngram,
    )
    for row, found in zip(rows, decode([model], *source(*rows), decoding), strict=True):
        same(found, plain(model, row, decoding))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    beam=st.sampled_from([1, 2, 5, 40]),
    sample=st.booleans(),
    rows=st.lists(st.text("abcde", max_size=9), min_size=2, max_size=12),
    data=st.data(),
)
def test_company_order_and_padding_change_nothing(
    seed: int, beam: int, sample: bool, rows: list[str], data: st.DataObject
) -> None:
    model = make(seed, targets=13)
    decoding = Decoding(beam=beam, n_best=min(beam, 3), length_penalty=0.5)
    if sample:
        decoding = Decoding(n_best=4, sampling=Sampling(temperature=1.3, top_p=0.9))
    order = data.draw(st.permutations(range(len(rows))))
    together = decode(
        [model], *source(*(rows[i] for i in order)), decoding, numbers=[i + 5 for i in order]
    )
    for i, found in zip(order, together, strict=True):
        (alone,) = decode([model], *source(rows[i]), decoding, numbers=[i + 5])
        same(found, [Entry(tuple(a.symbols), a.finished, a.score) for a in alone])
        for one, other in zip(found, alone, strict=True):
            torch.testing.assert_close(one.weights, other.weights, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_outputs_are_distinct_and_their_scores_and_weights_those_of_forced_decoding(
    seed: int,
) -> None:
    model = make(seed, targets=13)
    rows = ("abcde", "", "ed", "bbb")
    for row, outputs in zip(
        rows, decode([model], *source(*rows), Decoding(beam=7, n_best=7)), strict=True
    ):
        assert len({(tuple(f.symbols), f.finished) for f in outputs}) == 7
        assert [f.score for f in outputs] == sorted((f.score for f in outputs), reverse=True)
        for found in outputs:
            expected = probability([model], row, found.symbols, found.finished)
            assert found.score == pytest.approx(expected, abs=1e-9)
            weights = forced([model], row, found.symbols)[1]
            torch.testing.assert_close(found.weights, weights[:-1])


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_the_best_is_the_same_however_many_are_asked_for(penalty: float) -> None:
    model = make(5, targets=13)
    rows = ("abcde", "", "ed", "bbb", "c")
    lists = [
        decode([model], *source(*rows), Decoding(beam=5, n_best=n_best, length_penalty=penalty))
        for n_best in (1, 3, 5)
    ]
    for one, three, five in zip(*lists, strict=True):
        assert [f.symbols for f in one] == [f.symbols for f in five[:1]]
        assert [f.symbols for f in three] == [f.symbols for f in five[:3]]


@pytest.mark.parametrize("seed", range(5))
def test_greedy_is_the_most_probable_symbol_at_every_step(seed: int) -> None:
    model = make(seed, targets=13)
    rows = ("abcde", "ed", "", "bbb")
    for row, (found,) in zip(rows, decode([model], *source(*rows), Decoding()), strict=True):
        chosen: list[int] = []
        while END not in chosen and len(chosen) < 2 * len(row) + 10:
            log_probs = forced([model], row, chosen)[0][-1].clone()
            log_probs[[PAD, START]] = -math.inf
            if not chosen and row:
                log_probs[END] = -math.inf
            chosen.append(int(log_probs.argmax()))
        assert found.finished == (chosen[-1] == END)
        assert found.symbols == [symbol for symbol in chosen if symbol != END]


def test_no_sentences() -> None:
    symbols, lengths = source("abc")
    assert decode([make()], symbols[:0], lengths[:0], Decoding()) == []


@pytest.mark.parametrize("seeds", [(0, 3), (1, 2, 4)])
def test_an_ensemble_is_the_mean_of_its_models_probabilities(seeds: Sequence[int]) -> None:
    models = [make(seed) for seed in seeds]
    rows = ("abc", "", "e")
    decoding = Decoding(beam=100, n_best=10, length_penalty=0.5, max_ratio=0.5, max_extra=2)
    for row, outputs in zip(rows, decode(models, *source(*rows), decoding), strict=True):
        limit = len(row) // 2 + 2
        same(outputs, enumerate_all(models, row, limit, int(len(row) > 0), 0.5)[:10])
        for found in outputs:
            weights = forced(models, row, found.symbols)[1]
            torch.testing.assert_close(found.weights, weights[:-1])


@pytest.mark.parametrize("beam", [1, 4])
def test_the_memory_is_copied_only_when_many_have_left(
    beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(7, targets=13)
    sizes, steps = [], []
    select, step = Memory.select, model.decoder.step

    def counted(memory: Memory, index: Tensor) -> Memory:
        sizes.append((memory.value.shape[0], len(index)))
        return select(memory, index)

    def stepped(previous: Tensor, *rest: object, **options: object) -> object:
        steps.append(previous.shape)
        return step(previous, *rest, **options)

    monkeypatch.setattr(Memory, "select", counted)
    monkeypatch.setattr(model.decoder, "step", stepped)
    rows = ["abcde"[: 1 + i % 5] * (1 + i // 10) for i in range(40)]
    found = decode([model], *source(*rows), Decoding(beam=beam))
    assert sizes
    assert all(after <= 0.75 * before for before, after in sizes)
    assert {rows for rows, _ in steps} == {40, *(after for _, after in sizes)}
    assert max(width for _, width in steps) == beam
    longest = max(len(f.symbols) + f.finished for row in found for f in row)
    assert longest <= len(steps) <= 2 * 20 + 10
