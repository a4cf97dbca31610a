"""Positions are those of the words that `str.split` gives, however a vocabulary cuts a line."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import eye

from luong.toolkit.config import Side
from luong.toolkit.inference.translator import Translation
from luong.toolkit.text.places import Places, find, written
from luong.toolkit.text.vocabulary import Vocabulary

LINES = ["the cat sat", "on the mat ▁", "한국어 é ﬁ"]
ODD = "ab▁ \t\u00a0\u0085\u200b\u2028\u3000\ufeff\u0301\u0323éﬁ¨İΣ한\u1112\u1161\u11ab😀"
SEPARATORS = "\x1c\x1d\x1e\x1f"  # split by Python only
LEVELS = ("words", "bpe", "unigram", "characters")
FORMS = ("none", "NFC", "NFD")
TEXT = st.text(st.sampled_from(ODD) | st.characters(exclude_categories=["Cs"]), max_size=12)


@cache
def vocabulary(level: str, form: str, lowercase: bool) -> Vocabulary:
    side = Side(level, normalization=form, lowercase=lowercase)
    return Vocabulary.build(side, LINES)


VOCABULARIES = st.builds(vocabulary, st.sampled_from(LEVELS), st.sampled_from(FORMS), st.booleans())


@given(VOCABULARIES, TEXT | st.text(st.sampled_from(ODD + SEPARATORS)))
def test_places_follow_the_line(vocabulary: Vocabulary, line: str) -> None:
    (places,) = vocabulary.places([line])
    total = len(line) if vocabulary.reads_characters else len(line.split())
    assert places.total == total
    assert list(places.of) == sorted(places.of)
    assert all(0 <= place < total for place in places.of)
    if total:
        assert (
            len(places.of) == len(vocabulary.split(line)) == len(vocabulary.encode([line])[0]) - 1
        )
    raw = written(line, places, characters=vocabulary.reads_characters)
    assert all(text in line for text in raw)


@given(
    st.builds(vocabulary, st.sampled_from(LEVELS[:-1]), st.sampled_from(FORMS), st.booleans())
    | st.builds(vocabulary, st.just("characters"), st.just("none"), st.booleans()),
    TEXT,
)
def test_a_piece_is_where_its_word_is(vocabulary: Vocabulary, line: str) -> None:
    """The pieces of a line are those of its words, one word after the other."""
    line = line.translate(dict.fromkeys(map(ord, SEPARATORS)))
    units = list(line) if vocabulary.reads_characters else line.split()
    expected = [k for k, unit in enumerate(units) for _ in vocabulary.encode([unit])[0][:-1]]
    (places,) = vocabulary.places([line])
    assert list(places.of) == expected


@given(VOCABULARIES, TEXT)
def test_places_of_what_is_written(vocabulary: Vocabulary, line: str) -> None:
    """Pieces that a line was cut into and joined again are where the new line has them."""
    pieces = vocabulary.split(line)
    text = vocabulary.join(pieces)
    places = vocabulary.places_of(pieces)
    assert places.total == (len(text) if vocabulary.reads_characters else len(text.split()))
    assert all(0 <= place < places.total for place in places.of)
    assert list(places.of) == sorted(places.of)


@pytest.mark.parametrize("level", ["bpe", "unigram"])
def test_a_word_that_is_the_mark_of_words(level: str) -> None:
    """`▁` in a text is a word, or a part of one, like any other."""
    line = "the ▁cat ▁ sat"
    (places,) = vocabulary(level, "none", False).places([line])
    assert places.total == 4
    assert set(places.of) == {0, 1, 2, 3}


def test_by_hand() -> None:
    assert find(" ab c", [0, 1, 2, 3, 4], characters=False) == Places([0, 0, 0, 1, 1], 2)
    assert find("ab  ", [0, 2, 3], characters=False) == Places([0, 0, 0], 1)
    assert find("  ", [0, 1], characters=False) == Places([], 0)
    assert find(" b", [0, 0, 1], characters=True) == Places([0, 0, 1], 2)
    assert written(" ab  c", Places([0, 0, 1], 2), characters=False) == ["ab", "ab", "c"]
    accented = "xe\u0301y"
    assert written(accented, Places([0, 1, 3], 4), characters=True) == ["x", "e\u0301", "y"]
    assert written("é", Places([0, 0], 1), characters=True) == ["é", "é"]
    subwords = vocabulary("bpe", "none", False)
    assert subwords.places_of(["▁the", "▁", "c", "at", "▁sat"]) == Places([0, 1, 1, 1, 2], 3)
    assert subwords.places_of([]) == Places([], 0)
    assert vocabulary("words", "none", False).places_of(["a", "b c", "d"]) == Places([0, 1, 3], 4)
    assert vocabulary("characters", "none", False).places_of(["a", "bc"]) == Places([0, 1], 3)


def test_a_translation_links_words() -> None:
    weights = eye(3, 4)[[0, 2, 2]]
    places = Places([0, 0, 1, 2], 3), Places([0, 1, 1], 2)
    pieces = ["▁a", "b", "▁c", "▁d"]
    found = Translation("x yz", pieces, ["▁x", "▁y", "z"], weights, [], 0.0, True, places=places)
    assert found.alignment == [(0, 0), (1, 1)]
    nothing = found._replace(places=(Places([], 0), places[1]))
    assert nothing.alignment == []
