from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luong.seq2seq.model import END, UNKNOWN
from luong.toolkit.config import Side
from luong.toolkit.errors import ToolkitError
from luong.toolkit.vocabulary import SPECIAL, Vocabulary

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


@pytest.mark.parametrize("level", ["characters", "words"])
def test_a_file_holds_all_of_it(tmp_path: Path, level: str) -> None:
    built = Vocabulary.build(Side(level, lowercase=True, normalization="NFD"), ["É x", "<unk>"])
    built.save(tmp_path / "v.json")
    loaded = Vocabulary.load(tmp_path / "v.json")
    assert loaded.names == built.names
    assert loaded.encode(["É ×x"]) == built.encode(["É ×x"])
    assert loaded.decode([4, 5]) == built.decode([4, 5])


@pytest.mark.parametrize("content", ["", "{}", '{"model": {"type": "WordLevel"}}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "v.json").write_text(content)
    with pytest.raises(ToolkitError, match=r"v\.json: not a vocabulary"):
        Vocabulary.load(tmp_path / "v.json")
