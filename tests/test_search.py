"""Decoding, against enumeration, and against a search that is written plainly for one sentence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from luong._memory import Memory
from luong.seq2seq import Seq2Seq, Settings, build, greedy
from luong.seq2seq.model import END, PAD, START, UNKNOWN, DecoderState, Predicted
from luong.seq2seq.search import Decoding, Hypothesis, Sampling, decode

KINDS: tuple[dict[str, Any], ...] = (
    {"score": "dot", "input_feeding": True},
    {"score": "scaled_dot", "window": "local_m", "half_width": 1, "decoder_layers": 2},
    {"score": "general", "cell": "gru", "attend_end": True},
    {"score": "concat", "window": "local_p", "half_width": 1, "input_feeding": True},
    {"score": "location", "location_length": 4, "bidirectional": False, "reverse_source": True},
)
TARGETS = 7
WORDS = (UNKNOWN, 4, 5, 6)  # all that an output may hold


def make(seed: int = 0, targets: int = TARGETS) -> Seq2Seq:
    torch.manual_seed(seed)
    shape = Settings(embedding_size=5, hidden_size=6, **KINDS[seed % len(KINDS)])
    model = build(shape, 11, targets).double()
    for parameter in model.parameters():  # large weights: every part matters
        torch.nn.init.uniform_(parameter, -1.5, 1.5)
    return model.eval()


def source(*rows: str) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows), default=0) + 1
    symbols = [[ord(c) - ord("a") + 4 for c in row] + [END] for row in rows]
    padded = [row + [PAD] * (longest - len(row)) for row in symbols]
    return torch.tensor(padded), torch.tensor([len(row) for row in rows])


class Entry(NamedTuple):
    """An output as the oracles have it."""

    symbols: tuple[int, ...]
    finished: bool
    score: float

    def rank(self, penalty: float) -> tuple[bool, float]:
        length = len(self.symbols) + self.finished
        return self.finished, self.score / max(length, 1) ** penalty


@torch.no_grad()
def forced(models: Sequence[Seq2Seq], row: str, symbols: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Log-probabilities (n + 1, symbols) after each prefix of `symbols`, and weights (n + 1, m)."""
    previous = torch.tensor([[START, *symbols]])
    probs, weights = [], []
    for model in models:
        memory, state = model.encode(*source(row))
        step = model.decoder(previous, state, memory, need_weights=True)
        probs.append(torch.softmax(step.logits[0], -1))
        weights.append(step.weights[0, :, : len(row)])  # END may be attended as well
    return torch.stack(probs).mean(0).log(), torch.stack(weights).mean(0)


def probability(models: Sequence[Seq2Seq], row: str, symbols: Sequence[int], end: bool) -> float:
    log_probs, _ = forced(models, row, symbols)
    steps = [*symbols, END] if end else list(symbols)
    return math.fsum(float(log_probs[i, symbol]) for i, symbol in enumerate(steps))


def enumerate_all(
    models: Sequence[Seq2Seq], row: str, limit: int, least: int, penalty: float
) -> list[Entry]:
    """Every output of at most `limit` steps, best first."""
    entries = [
        Entry(symbols, end, probability(models, row, symbols, end))
        for n in range(limit + 1)
        for symbols in product(WORDS, repeat=n)
        for end in (True, False)
        if (least <= n < limit if end else n == limit)
    ]
    return sorted(entries, key=lambda entry: entry.rank(penalty), reverse=True)


def same(found: Sequence[Hypothesis], expected: Sequence[Entry]) -> None:
    assert [(tuple(f.symbols), f.finished) for f in found] == [(e[0], e[1]) for e in expected]
    assert [f.score for f in found] == pytest.approx([e.score for e in expected], abs=1e-9)


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


def repeats(symbols: Sequence[int], n: int) -> bool:
    """Whether n symbols in a row occur twice."""
    ngrams = [tuple(symbols[i : i + n]) for i in range(len(symbols) - n + 1)]
    return n > 0 and len(set(ngrams)) < len(ngrams)


def allowed(symbols: Sequence[int], n: int, end: bool) -> list[int]:
    """What may follow `symbols`; END where nothing else may."""
    words = [word for word in WORDS if not repeats([*symbols, word], n)]
    return [*words, END] if end or not words else words


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
    for row, found in zip(rows, greedy(model, *source(*rows)), strict=True):
        chosen: list[int] = []
        while END not in chosen and len(chosen) < 2 * len(row) + 10:
            log_probs = forced([model], row, chosen)[0][-1].clone()
            log_probs[[PAD, START]] = -math.inf
            if not chosen and row:
                log_probs[END] = -math.inf
            chosen.append(int(log_probs.argmax()))
        assert found.finished == (chosen[-1] == END)
        assert found.symbols == [symbol for symbol in chosen if symbol != END]


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


def test_no_sentences() -> None:
    symbols, lengths = source("abc")
    assert greedy(make(), symbols[:0], lengths[:0]) == []


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


def test_an_output_is_cut_where_its_weights_would_not_fit_into_memory() -> None:
    wide, narrow = Decoding(beam=1000), Decoding()
    assert [narrow.limit(m) for m in (0, 3, 1000)] == [10, 16, 2010]
    assert [wide.limit(m) for m in (3, 1000, 10_000)] == [16, 134, 13]
    assert Decoding(max_ratio=100, max_extra=10_000).limit(10_000) == 2**27 // 10_000


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam": 0}, "beam: expected 1 to 1,000, got 0"),
        ({"beam": 1_000_000}, "beam: expected 1 to 1,000, got 1000000"),
        ({"beam": 2.5}, "beam: expected a whole number, 1 to 1,000, got 2.5"),
        ({"beam": True}, "beam: expected a whole number, 1 to 1,000, got True"),
        ({"n_best": 0}, "n_best: expected 1 to 1,000, got 0"),
        ({"beam": 3, "n_best": 4}, "n_best: expected at most the beam, 3, got 4"),
        ({"length_penalty": -1.0}, "length_penalty: expected 0 to 20, got -1.0"),
        ({"length_penalty": math.nan}, "length_penalty: expected 0 to 20, got nan"),
        ({"length_penalty": math.inf}, "length_penalty: expected 0 to 20, got inf"),
        ({"length_penalty": 700}, "length_penalty: expected 0 to 20, got 700"),
        ({"length_penalty": "1"}, "length_penalty: expected a number, 0 to 20, got '1'"),
        ({"max_ratio": math.inf}, "max_ratio: expected 0 to 100, got inf"),
        ({"max_ratio": 1e30}, r"max_ratio: expected 0 to 100, got 1e\+30"),
        ({"max_ratio": 10**400}, "max_ratio: expected 0 to 100, got 10"),
        ({"max_ratio": 0, "max_extra": 0}, "max_extra: expected at least 1 where max_ratio is 0"),
        ({"max_extra": 2**63 - 1}, "max_extra: expected 0 to 10,000, got 9223372036854775807"),
        ({"min_extra": -1}, "min_extra: expected 0 to 10,000, got -1"),
        ({"min_ratio": math.nan}, "min_ratio: expected 0 to 100, got nan"),
        ({"no_repeat_ngram": -1}, "no_repeat_ngram: expected 0 to 100, got -1"),
        ({"beam": 2, "sampling": Sampling()}, "beam: expected 1 where outputs are drawn, got 2"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Decoding(), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, "temperature: expected 0.01 to 100, got 0.0"),
        ({"temperature": 1e-300}, "temperature: expected 0.01 to 100, got 1e-300"),
        ({"top_k": -1}, "top_k: expected 0 to 1,000,000, got -1"),
        ({"top_p": 0.0}, "top_p: expected above 0, up to 1, got 0.0"),
        ({"top_p": 1.1}, "top_p: expected above 0, up to 1, got 1.1"),
        ({"top_p": math.nan}, "top_p: expected above 0, up to 1, got nan"),
        ({"seed": -1}, "seed: expected 0 to 4,294,967,295, got -1"),
    ],
)
def test_sampling_that_makes_no_sense_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Sampling(), **settings)
