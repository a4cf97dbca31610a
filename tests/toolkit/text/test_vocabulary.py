from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luong.seq2seq.model import END, UNKNOWN
from luong.toolkit.choices import SPECIAL
from luong.toolkit.config import Side
from luong.toolkit.errors import ToolkitError
from luong.toolkit.text.vocabulary import Vocabulary

CHARACTERS = Side(level="characters", normalization="none")
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))


@given(st.lists(TEXT, min_size=1, max_size=5))
def test_what_was_seen_comes_back_character_by_character(lines: list[str]) -> None:
    vocabulary = Vocabulary.build(CHARACTERS, lines)
    assert len(vocabulary) == len(SPECIAL) + len(set("".join(lines)))
    for line, symbols in zip(lines, vocabulary.encode(lines), strict=True):
        assert symbols[-1] == END
        assert len(symbols) == len(line) + 1
        assert vocabulary.decode(symbols[:-1]) == line
        assert vocabulary.split(line) == list(line)


def test_words_are_split_at_white_space() -> None:
    vocabulary = Vocabulary.build(Side(level="words"), ["AH  T", " T EH"])
    assert vocabulary.names == [*SPECIAL, "T", "AH", "EH"]  # frequent first, then by name
    assert vocabulary.encode(["EH T"]) == [[6, 4, END]]
    assert vocabulary.decode([6, 4]) == "EH T"


def test_unseen_symbols_are_unknown_and_stay_readable() -> None:
    vocabulary = Vocabulary.build(CHARACTERS, ["ab"])
    assert vocabulary.encode(["aéb"]) == [[4, UNKNOWN, 5, END]]
    assert vocabulary.split("aéb") == ["a", "é", "b"]


def test_names_of_special_symbols_in_a_text_mean_nothing_special() -> None:
    vocabulary = Vocabulary.build(Side(level="words"), ["a </s> b <pad> <s>"])
    (symbols,) = vocabulary.encode(["a </s> b <pad> <s>"])
    assert symbols == [4, UNKNOWN, 5, UNKNOWN, UNKNOWN, END]
    assert Vocabulary.build(CHARACTERS, ["<pad>"]).split("<pad>") == list("<pad>")


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_normalisation(form: str) -> None:
    text = "한é"
    vocabulary = Vocabulary.build(Side("characters", normalization=form), [text])
    assert vocabulary.split(text) == list(unicodedata.normalize(form, text))
    decomposed, composed = (unicodedata.normalize(f, text) for f in ("NFD", "NFC"))
    assert vocabulary.encode([decomposed]) == vocabulary.encode([composed])


def test_lower_case() -> None:
    vocabulary = Vocabulary.build(Side("characters", lowercase=True), ["Ab"])
    assert vocabulary.encode(["AB"]) == vocabulary.encode(["ab"]) == [[4, 5, END]]


def test_a_limit_keeps_the_most_frequent() -> None:
    lines = ["c b a", "c b", "c", "d"]
    assert Vocabulary.build(Side(vocabulary_size=6), lines).names == [*SPECIAL, "c", "b"]
    frequent = Vocabulary.build(Side(min_frequency=2), lines)
    assert frequent.names == [*SPECIAL, "c", "b"]
    assert frequent.encode(["a c d"]) == [[UNKNOWN, 4, UNKNOWN, END]]
    both = Side("characters", vocabulary_size=6, min_frequency=3)
    assert Vocabulary.build(both, ["aaabbbccdd"]).names == [*SPECIAL, "a", "b"]


SENTENCES = [f"the {a} {b} the {a}er" for a in ("low", "new", "wid") for b in ("est", "er", "한국")]


@pytest.mark.parametrize("level", ["bpe", "unigram"])
def test_subwords_come_back_as_text(level: str, tmp_path: Path) -> None:
    side = Side(level, vocabulary_size=40)
    built = Vocabulary.build(side, SENTENCES)
    assert len(SPECIAL) < len(built) <= 40
    built.save(tmp_path / "v.json")
    for vocabulary in (built, Vocabulary.load(tmp_path / "v.json", side)):
        for line, symbols in zip(SENTENCES, vocabulary.encode(SENTENCES), strict=True):
            assert (
                vocabulary.decode(symbols[:-1]) == vocabulary.join(vocabulary.split(line)) == line
            )
            assert [vocabulary.names[s] for s in symbols[:-1]] == vocabulary.split(line)
            assert len(symbols) - 1 < len(line)  # pieces longer than characters were learnt
            assert UNKNOWN not in symbols


@pytest.mark.parametrize("level", ["bpe", "unigram"])
def test_white_space_of_any_kind_parts_subwords(level: str) -> None:
    vocabulary = Vocabulary.build(Side(level, vocabulary_size=40), SENTENCES)
    one, other = vocabulary.encode(["the low", " \tthe\u2028 \u3000low\xa0"])
    assert one == other
    assert vocabulary.encode([" "]) == [[END]]
    assert vocabulary.split(" ") == []
    assert vocabulary.decode([]) == ""


@pytest.mark.parametrize("level", ["bpe", "unigram"])
@pytest.mark.parametrize("line", ["the qéq low", "</s> <pad> low", "\U0001f600", "e\u0301 É low"])
def test_pieces_and_symbols_of_a_line_correspond(level: str, line: str) -> None:
    side = Side(level, vocabulary_size=40, lowercase=True)
    vocabulary = Vocabulary.build(side, [*SENTENCES, "<s> </s> <s> </s>"])
    (symbols,) = vocabulary.encode([line])
    pieces = vocabulary.split(line)
    assert len(pieces) == len(symbols) - 1
    assert UNKNOWN in symbols
    assert not {0, 1, 2} & set(symbols[:-1])
    for piece, symbol in zip(pieces, symbols[:-1], strict=True):
        assert piece in line if symbol == UNKNOWN else piece == vocabulary.names[symbol]


@pytest.mark.parametrize("text", [["a<b", "s>c", "/b"], ["a <s> b s<s>", "</s> <s>"] * 9])
@pytest.mark.parametrize("level", ["bpe", "unigram"])
def test_subwords_take_no_text_for_special_symbols(level: str, text: list[str]) -> None:
    vocabulary = Vocabulary.build(Side(level, vocabulary_size=30), text)
    for line in ("<s>", "a</s>b", "s<s>s"):
        (symbols,) = vocabulary.encode([line])
        assert UNKNOWN not in symbols
        assert vocabulary.decode(symbols[:-1]) == vocabulary.join(vocabulary.split(line)) == line


def test_bpe_leaves_room_for_merges_in_a_large_alphabet() -> None:
    lines = ["".join(chr(0x4E00 + i) for i in range(500)), *["\u4e01\u4e02"] * 9]
    vocabulary = Vocabulary.build(Side("bpe", vocabulary_size=100), lines)
    assert len(vocabulary) <= 100
    assert vocabulary.split("\u4e01\u4e02") == ["▁\u4e01\u4e02"]


def test_a_vocabulary_that_cannot_be_is_refused() -> None:
    with pytest.raises(ToolkitError, match=r"vocabulary_size: no unigram .* 6 symbols.*not large"):
        Vocabulary.build(Side("unigram", vocabulary_size=6), SENTENCES)


@pytest.mark.parametrize("level", ["characters", "words", "bpe", "unigram"])
def test_an_error_of_the_corpus_stays_what_it_is(level: str) -> None:
    def lines() -> Iterator[str]:
        yield "good"
        raise ToolkitError("x:2: bad")

    with pytest.raises(ToolkitError, match=r"^x:2: bad$"):
        Vocabulary.build(Side(level), lines())


@pytest.mark.parametrize("level", ["characters", "words"])
def test_a_file_holds_all_of_it(tmp_path: Path, level: str) -> None:
    side = Side(level, lowercase=True, normalization="NFD")
    built = Vocabulary.build(side, ["É x", "<unk>"])
    built.save(tmp_path / "v.json")
    loaded = Vocabulary.load(tmp_path / "v.json", side)
    assert loaded.names == built.names
    assert loaded.encode(["É ×x"]) == built.encode(["É ×x"])
    assert loaded.decode([4, 5]) == built.decode([4, 5])


def test_a_file_that_cannot_be_written_is_an_ordinary_error(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        Vocabulary.build(CHARACTERS, ["a"]).save(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", '{"model": {"type": "WordLevel"}}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "v.json").write_text(content)
    with pytest.raises(ToolkitError, match=r"v\.json: not a vocabulary"):
        Vocabulary.load(tmp_path / "v.json", CHARACTERS)
