"""Word alignment, against a decoder that goes step by step, and by hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Literal

import pytest
import torch
from aligned_pairs import (
    PAIRS,
    WORDS,
    chance,
    examples_of,
    randomized,
    step_by_step,
    subwords,
    true_links,
)
from torch import Tensor

import luong
from luong.toolkit.config import Side
from luong.toolkit.errors import ToolkitError
from luong.toolkit.inference import alignment, links
from luong.toolkit.inference.links import Gold, Link
from luong.toolkit.inference.translator import Translator
from luong.toolkit.text import batches
from luong.toolkit.text.lines import Pair
from luong.toolkit.text.places import Places


@pytest.fixture(scope="module")
def translator(model: Path) -> Translator:
    return Translator.load(model)


@pytest.fixture(scope="module")
def untrained() -> Translator:
    """A model that attends sharply, by chance."""
    return chance(PAIRS, Side("characters"), Side("words"), seed=1)


def test_a_trained_model_finds_the_letters_of_a_sound(translator: Translator) -> None:
    scores = {}
    for step in ("predicted", "posterior", "read"):
        found = alignment.align(translator, PAIRS, step=step)
        gold = [Gold(true_links(word), true_links(word)) for word in WORDS]
        scores[step] = links.agreement(zip(found, gold, strict=True))
    assert scores["predicted"].precision > 90
    assert scores["posterior"].precision > 90
    assert scores["read"].precision < 50


@pytest.mark.parametrize("step", ["predicted", "read"])
@pytest.mark.parametrize("threshold", [None, 0.3])
def test_links_are_those_of_one_pair_at_a_time(
    untrained: Translator, step: alignment.StepName, threshold: float | None
) -> None:
    found = list(alignment.align(untrained, PAIRS, step=step, threshold=threshold, batch_size=7))
    assert len(found) == len(PAIRS)
    for pair, some in zip(PAIRS, found, strict=True):
        expected = set[Link]()
        sounds = pair.target.split()
        weights = step_by_step(untrained, pair) if sounds else torch.zeros(1, 0)
        for j in range(len(sounds)):
            row = weights[j + 1 if step == "read" else j].tolist()
            for i, weight in enumerate(row):
                if weight >= threshold if threshold else weight == max(row):
                    expected.add((i, j))
        assert some == expected


@pytest.mark.parametrize("step", ["predicted", "posterior"])
def test_the_order_and_the_company_do_not_matter(
    untrained: Translator, step: alignment.StepName
) -> None:
    expected = list(alignment.align(untrained, PAIRS, step=step, batch_size=1))
    for size in (7, 64):
        assert list(alignment.align(untrained, PAIRS, step=step, batch_size=size)) == expected
        backwards = alignment.align(untrained, PAIRS[::-1], step=step, batch_size=size)
        assert list(backwards)[::-1] == expected


@pytest.mark.parametrize("block", [1, 3])
def test_long_pairs_go_by_blocks(
    untrained: Translator, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    pair = PAIRS[5]
    (example,) = examples_of(untrained, [pair])
    expected = list(alignment.align(untrained, PAIRS))
    monkeypatch.setattr(alignment, "_BLOCK", block)
    parts = [part for (part,) in alignment.blocks(untrained, [example])]
    assert {len(part) for part in parts[:-1]} == {block}
    torch.testing.assert_close(torch.cat(parts), step_by_step(untrained, pair))
    assert list(alignment.align(untrained, PAIRS)) == expected


def test_weights_come_without_padding(untrained: Translator) -> None:
    examples = examples_of(untrained, PAIRS[:4])
    (parts,) = alignment.blocks(untrained, examples)
    for pair, weights in zip(PAIRS, parts, strict=False):
        assert weights.shape == (len(pair.target.split()) + 1, len(pair.source))
        torch.testing.assert_close(weights, step_by_step(untrained, pair))


def test_few_weights_at_a_time(untrained: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(alignment.align(untrained, PAIRS))
    shapes: list[int] = []

    def watched(
        translator: Translator, examples: list[batches.Example], step: alignment.StepName
    ) -> Iterator[list[Tensor]]:
        for weights in blocks(translator, examples, step):
            shapes.append(len(weights) * max(map(len, weights)) * weights[-1].shape[1])
            yield weights

    blocks = alignment.blocks
    monkeypatch.setattr(alignment, "blocks", watched)
    monkeypatch.setattr(alignment, "_CELLS", 40)
    assert list(alignment.align(untrained, PAIRS)) == expected
    assert max(shapes) <= 40


def test_few_weights_are_held(untrained: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = examples_of(untrained, PAIRS)
    cells = [len(example.source) * len(example.target) for example in examples]
    limit = max(cells) - 1  # one pair alone is more
    monkeypatch.setattr(alignment, "_CELLS", limit)
    parts = list(alignment._parts(examples))
    assert [k for part in parts for k in part] == list(range(len(PAIRS)))
    assert all(len(part) == 1 or sum(cells[k] for k in part) <= limit for part in parts)
    assert len(parts) < len(PAIRS)


def test_pairs_are_read_as_they_are_needed(
    untrained: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignment, "_POOL", 4)
    taken = 0

    def endless() -> Iterator[Pair]:
        nonlocal taken
        while True:
            taken += 1
            yield PAIRS[taken % len(PAIRS)]

    found = alignment.align(untrained, endless())
    for _ in range(6):
        next(found)
    assert taken == 8


def test_a_pair_that_is_too_long_is_refused_after_those_before_it(
    untrained: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignment, "_CELLS", 50)
    monkeypatch.setattr(alignment, "_MOST", 100)
    found = alignment.align(
        untrained, [Pair("abc", "a b c"), Pair("ab" * 10, "a b c d e"), PAIRS[0]]
    )
    assert next(found)
    with pytest.raises(ToolkitError, match=r"^pair 2: too long to align: 20 x 5 symbols$"):
        next(found)


def test_rows_of_a_picture(untrained: Translator) -> None:
    (example,) = examples_of(untrained, PAIRS[3:4])
    steps = step_by_step(untrained, PAIRS[3])
    for step, expected in (("predicted", steps[:-1]), ("read", steps[1:]), ("paper", steps[1:])):
        torch.testing.assert_close(alignment.attended(untrained, example, step), expected)


def test_the_papers_choice_depends_on_the_score() -> None:
    location = luong.Location(query_size=3, max_length=4)
    steps = torch.tensor([[0.0], [1.0], [2.0]])
    for score, expected in (
        (luong.Dot(), steps[1:]),
        (luong.Scaled(luong.Dot()), steps[1:]),
        (location, steps[:-1]),
        (luong.Scaled(luong.Scaled(location)), steps[:-1]),
    ):
        assert torch.equal(alignment.rows(steps, 2, "paper", luong.Attention(score)), expected)


def test_links_are_between_words_where_words_are_split() -> None:
    pair = Pair("aba ccab bac", "xyx zz")
    translator = randomized(subwords([pair.source, "ab"]), subwords([pair.target, "yx"]), seed=3)
    pieces = [
        vocabulary.tokenizer.encode(line, add_special_tokens=False).tokens
        for vocabulary, line in zip((translator.source, translator.target), pair, strict=True)
    ]
    words = [
        [number - 1 for number in accumulate(int(piece[0] == "▁") for piece in side)]
        for side in pieces
    ]
    assert len(pieces[0]) > 3 == len(set(words[0]))
    assert len(pieces[1]) > 2 == len(set(words[1]))
    best = step_by_step(translator, pair)[:-1].argmax(-1).tolist()
    (found,) = alignment.align(translator, [pair])
    assert found == {(words[0][i], words[1][j]) for j, i in enumerate(best)}


@pytest.mark.parametrize("level", ["words", "bpe", "unigram"])
def test_links_are_between_words_of_the_line_whatever_is_in_it(
    level: Literal["words", "bpe", "unigram"],
) -> None:
    pairs = [Pair("a ▁b ▁ c", "x y"), Pair("¨a\u3000ﬁ", "▁ ▁x"), Pair("\x1c", "x")]
    side = Side(level, normalization="NFD")
    translator = chance(pairs, side, side, seed=3)
    for pair, some in zip(pairs, alignment.align(translator, pairs, threshold=1e-9), strict=True):
        sources, targets = (range(len(side.split())) for side in pair)
        assert {i for i, _ in some} == set(sources)
        assert {j for _, j in some} == (set(targets) if sources else set())


def test_linked_by_hand() -> None:
    weights = torch.tensor([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4], [0.0, 0.0, 0.0]])
    assert alignment.linked(weights) == [[1], [0], []]
    assert alignment.linked(weights, threshold=0.3) == [[1, 2], [0, 2], []]
    assert alignment.linked(weights, threshold=0.5) == [[1], [], []]
    assert alignment.linked(torch.zeros(2, 0)) == [[], []]


@pytest.mark.parametrize("how", links.JOINS)
def test_both_directions(untrained: Translator, how: str) -> None:
    flipped = [Pair(pair.target, pair.source) for pair in PAIRS]
    reverse = chance(flipped, Side("words"), Side("characters"), seed=2)
    there = list(alignment.align(untrained, PAIRS))
    back = [{(j, i) for i, j in some} for some in alignment.align(reverse, flipped)]
    assert there != back
    expected = [links.join(a, b, how) for a, b in zip(there, back, strict=True)]
    assert list(alignment.align_both(untrained, reverse, PAIRS, how=how)) == expected


@pytest.mark.parametrize("threshold", [None, 0.3])
def test_directions_that_agree(untrained: Translator, threshold: float | None) -> None:
    flipped = [Pair(pair.target, pair.source) for pair in PAIRS]
    reverse = chance(flipped, Side("words"), Side("characters"), seed=2)
    both = alignment.align_both(untrained, reverse, PAIRS, how="product", threshold=threshold)
    found = list(both)
    for pair, other, some in zip(PAIRS, flipped, found, strict=True):
        expected = set[Link]()
        if pair.source and pair.target:
            there = step_by_step(untrained, pair).tolist()
            back = step_by_step(reverse, other).tolist()
            for i in range(len(pair.source)):
                for j in range(len(pair.target.split())):
                    if (there[j][i] * back[i][j]) ** 0.5 >= (threshold or 0.15):
                        expected.add((i, j))
        assert some == expected
    assert 0 < sum(map(len, found)) < sum(len(p.source) * len(p.target.split()) for p in PAIRS)


def test_weights_of_words_by_hand() -> None:
    weights = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.0, 1.0, 0.0]])
    places = Places([0, 1, 1], 2), Places([0, 0, 1], 2)
    words = alignment.Weighed(weights, *places).words()
    torch.testing.assert_close(words, torch.tensor([[0.3, 0.7], [0.0, 1.0]]))
    gaps = Places([0, 3, 3], 4), Places([1, 1, 2], 3)  # words that have no piece
    expected = torch.tensor([[0, 0, 0, 0], [0.3, 0, 0, 0.7], [0, 0, 0, 1.0]])
    torch.testing.assert_close(alignment.Weighed(weights, *gaps).words(), expected)
    for source, target in (([], [0, 0]), ([0, 1], []), ([], [])):
        empty = torch.zeros(len(target), len(source))
        shape = (len(set(target)), len(set(source)))
        pair = alignment.Weighed(empty, Places(source, shape[1]), Places(target, shape[0]))
        assert pair.words().shape == shape


def test_directions_that_split_differently(untrained: Translator) -> None:
    flipped = [Pair(pair.target, pair.source) for pair in PAIRS]
    reverse = chance(flipped, Side("words"), Side("words"), seed=2)
    with pytest.raises(
        ToolkitError, match=r"pair 1: .* split its source differently, into 3 and 1 characters"
    ):
        list(alignment.align_both(untrained, reverse, PAIRS, how="union"))
