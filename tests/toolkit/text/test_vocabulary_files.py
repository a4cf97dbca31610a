"""Files of vocabularies that strangers may have written: rebuilt from plain symbols, or refused."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from luong.toolkit.choices import SPECIAL
from luong.toolkit.config import Side
from luong.toolkit.errors import ToolkitError
from luong.toolkit.text import vocabulary as module
from luong.toolkit.text.vocabulary import Vocabulary

LEVELS = ("characters", "words", "bpe", "unigram")
LINES = [f"the {a} {b} the {a}er" for a in ("low", "new", "wid") for b in ("est", "er", "한국")]


def side(level: str) -> Side:
    size = 40 if level in ("bpe", "unigram") else None
    return Side(level, vocabulary_size=size, lowercase=level == "words")


def saved(folder: Path, level: str) -> Path:
    Vocabulary.build(side(level), LINES).save(folder / "v.json")
    return folder / "v.json"


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tree = json.loads(path.read_text(encoding="utf-8"))
    change(tree)
    path.write_text(json.dumps(tree), encoding="utf-8")


def refused(path: Path, level: str, message: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        Vocabulary.load(path, side(level))
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_loaded_would_be_saved_as_it_was(tmp_path: Path, level: str) -> None:
    built, path = Vocabulary.build(side(level), LINES), tmp_path / "v.json"
    built.save(path)
    loaded = Vocabulary.load(path, side(level))
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert loaded.digest == built.digest
    assert loaded.encode(LINES) == built.encode(LINES)


def test_the_library_does_not_read_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, "bpe")

    monkeypatch.setattr(module, "Tokenizer", lambda model: Tokenizer(model))  # and no way to read
    Vocabulary.load(path, side("bpe"))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("truncation", {"direction": "Left", "max_length": 1, "strategy": "LongestFirst"}),
        ("padding", {"strategy": {"Fixed": 10**9}, "pad_id": 0, "pad_token": "<pad>"}),
        ("added_tokens", [{"id": 4, "content": "the", "special": True}]),
        ("normalizer", None),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": "(a*)*"}, "content": "aa"}),
        ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}),
        ("post_processor", {"type": "ByteLevel"}),
        ("decoder", {"type": "Replace", "pattern": {"String": ""}, "content": "a" * 99}),
        ("version", "2.0"),
    ],
)
def test_only_what_the_settings_say_is_taken(
    tmp_path: Path, level: str, key: str, value: object
) -> None:
    path = saved(tmp_path, level)
    changed(path, lambda tree: tree.update({key: value}))
    refused(path, level, f"its {key} is not that of the settings in config.yaml")


@pytest.mark.parametrize(
    ("one", "other"),
    [("characters", "words"), ("bpe", "unigram"), ("words", "bpe"), ("unigram", "characters")],
)
def test_another_level_is_refused(tmp_path: Path, one: str, other: str) -> None:
    refused(saved(tmp_path, one), other, "")
    refused(saved(tmp_path, other), one, "")


def test_another_normalisation_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, "words")
    with pytest.raises(ToolkitError, match="its normalizer is not that of the settings"):
        Vocabulary.load(path, Side("words", lowercase=False))


@pytest.mark.parametrize("name", ["dropout", "fuse_unk", "byte_fallback", "end_of_word_suffix"])
def test_parts_of_a_model_are_those_of_the_settings(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path, "bpe")
    changed(path, lambda tree: tree["model"].update({name: 0.5}))
    refused(path, "bpe", "its model is not that of the settings in config.yaml")


def test_other_versions_may_leave_out_what_is_null(tmp_path: Path) -> None:
    path = saved(tmp_path, "bpe")
    changed(path, lambda tree: [tree["model"].pop("ignore_merges"), tree.pop("truncation")])
    changed(path, lambda tree: tree["model"].update(new=None))
    Vocabulary.load(path, side("bpe"))
    changed(path, lambda tree: tree.update(new=3))
    refused(path, "bpe", "its new is not that of the settings in config.yaml")


def vocab(change: Callable[[Any], object]) -> Callable[[dict[str, Any]], object]:
    return lambda tree: change(tree["model"]["vocab"])


@pytest.mark.parametrize(
    ("level", "change", "reason"),
    [
        ("words", vocab(lambda v: v.update(gap=10**6)), "symbols should be numbered from 0 on, wi"),
        ("words", vocab(lambda v: v.update(again=4)), "symbols should be numbered from 0 on, with"),
        ("words", vocab(lambda v: v.update(minus=-1)), "symbols should be numbered from 0 on, wit"),
        ("words", vocab(lambda v: v.update(half=4.5)), "the number of a symbol is none"),
        ("words", vocab(lambda v: v.update(flag=True)), "the number of a symbol is none"),
        ("words", vocab(lambda v: v.update({"a\nb": len(v)})), "no line of text has the symbol 'a"),
        ("words", vocab(lambda v: v.update({"\0": len(v)})), "no line of text has the symbol '\\x"),
        (
            "words",
            vocab(lambda v: v.update({"\ud800": len(v)})),
            "no line of text has the symbol '",
        ),
        ("words", vocab(lambda v: v.update({"": len(v)})), "no line of text has the symbol ''"),
        ("words", vocab(lambda v: v.update({"<pad>": 3, "<unk>": 0})), "the first symbols should "),
        ("words", vocab(lambda v: v.clear()), "the first symbols should be <pad> <s> </s> <unk>"),
        ("words", lambda t: t.update(model=3), "not one of words"),
        ("words", lambda t: t["model"].update(vocab=[]), "not one of words"),
        ("bpe", lambda t: t["model"].update(merges=[["q", "q"]]), "['q', 'q'] is no merge of its"),
        ("bpe", lambda t: t["model"].update(merges=["t h"]), "t h is no merge of its symbols"),
        ("bpe", lambda t: t["model"].update(merges=[["t", 3]]), "['t', 3] is no merge of its symb"),
        ("unigram", vocab(lambda v: v.append(["x", "y"])), "['x', 'y'] is no piece and its score"),
        ("unigram", vocab(lambda v: v.append(["x", 1e300])), "['x', 1e+300] is no piece and its s"),
        ("unigram", vocab(lambda v: v.append(["x" * 101, -1.0])), "['xxxxxxxxxxxxxxxxxxxxxxxxxxxx"),
        (
            "unigram",
            vocab(lambda v: v.extend([f"{i:099}", -1.0] for i in range(21000))),
            "its pieces have more than 2,000,000 characters together",
        ),
        ("unigram", vocab(lambda v: v.append(v[-1])), "a symbol is there twice"),
        ("unigram", lambda t: t["model"].update(unk_id=4), "not one of unigram"),
        ("unigram", vocab(lambda v: v.append(["", -1.0])), "no line of text has the symbol ''"),
        ("unigram", vocab(lambda v: v.pop(0)), "the first symbols should be <pad> <s> </s> <unk>"),
    ],
)
def test_symbols_that_cannot_be(
    tmp_path: Path, level: str, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    path = saved(tmp_path, level)
    changed(path, change)
    refused(path, level, f"not a vocabulary ({reason}")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_scores_are_finite(tmp_path: Path, text: str) -> None:
    path = saved(tmp_path, "unigram")
    changed(path, lambda tree: tree["model"]["vocab"].append(["x", "SCORE"]))
    path.write_text(path.read_text().replace('"SCORE"', text))
    refused(path, "unigram", "not a vocabulary (")


def test_a_merge_twice_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, "bpe")
    changed(path, lambda tree: tree["model"]["merges"].append(tree["model"]["merges"][0]))
    refused(path, "bpe", "not a vocabulary (a merge is there twice)")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a vocabulary (Expecting value"),
        (b"\xff", "not a vocabulary ('utf-8' codec"),
        (b"[" * 1_000_000, "not a vocabulary (nested too deeply)"),
        (b'{"a":' * 500_000, "not a vocabulary (nested too deeply)"),
        (b'{"a": 1, "a": 1}', "not a vocabulary ('a' is there twice)"),
        (b"9" * 10_000, "not a vocabulary ("),
        (b"3", "not a vocabulary (not one of words)"),
    ],
    ids=["empty", "binary", "deep", "deeper", "repeated", "long", "number"],
)
def test_what_is_no_file_of_a_vocabulary(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "v.json").write_bytes(content)
    refused(tmp_path / "v.json", "words", reason)


def test_a_vocabulary_has_a_limit_where_it_is_saved_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, "words")
    monkeypatch.setattr(module, "_MOST", 100)
    refused(path, "words", "expected at most 100 bytes, got more")
    with pytest.raises(
        ToolkitError, match=r"symbols take more than 100 bytes; set a vocabulary_si"
    ):
        Vocabulary.build(side("words"), LINES).save(path)


def test_a_pipe_is_no_vocabulary(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "v.json")
    refused(tmp_path / "v.json", "words", "expected a file, got a pipe")


def test_many_merges_and_long_symbols_take_seconds(tmp_path: Path) -> None:
    """Each merge makes a longer symbol: 2 MB of symbols from 2,000 merges."""
    parts = ["a" * n for n in range(1, 2000)]
    names = [*SPECIAL, *parts]
    path = saved(tmp_path, "bpe")
    model = {
        "vocab": {name: i for i, name in enumerate(names)},
        "merges": [[part, "a"] for part in parts[:-1]],
    }
    changed(path, lambda tree: tree["model"].update(model))
    began = time.monotonic()
    loaded = Vocabulary.load(path, side("bpe"))
    loaded.encode(["a" * 5000] * 10)
    assert time.monotonic() - began < 20
