"""What the methods of a translator refuse."""

from __future__ import annotations

from typing import Any

import pytest

from luong.seq2seq import Decoding
from luong.toolkit.inference.translator import Translator


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("cat", r"lines: expected a list of strings; for one line, give \['cat'\]"),
        (["a", 3], "lines: expected a list of strings, but number 1 is 3"),
        ([b"cat"], "lines: expected a list of strings, but number 0 is b'cat'"),
    ],
)
def test_what_is_no_list_of_strings_is_refused(
    translator: Translator, lines: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        translator.translate(lines)
    with pytest.raises(TypeError, match=message):
        translator.search(lines, Decoding())
    for pairs in (translator.score, translator.align, translator.evaluate):
        with pytest.raises(TypeError, match=message.replace("lines", "sources", 1)):
            pairs(lines, ["a", "b"])
        with pytest.raises(TypeError, match=message.replace("lines", "targets", 1)):
            pairs(["a", "b"], lines)
        with pytest.raises(ValueError, match="targets: expected 2, as many as sources, got 1"):
            pairs(["a", "b"], ["a"])


def test_numbers_out_of_range_are_refused(translator: Translator) -> None:
    with pytest.raises(ValueError, match="batch_size: expected 1 to 10,000, got 0"):
        translator.translate(["a"], batch_size=0)
    with pytest.raises(ValueError, match="max_source: expected 1 to 10,000, got 0"):
        translator.search(["a"], Decoding(), max_source=0)
    with pytest.raises(ValueError, match="batch_size: expected 1 to 10,000, got 0"):
        translator.score(["a"], ["a"], batch_size=0)
    with pytest.raises(ValueError, match="threshold: expected above 0, up to 1, got nan"):
        translator.align(["a"], ["a"], threshold=float("nan"))
    with pytest.raises(ValueError, match="join: expected only with reverse"):
        translator.align(["a"], ["a"], join="union")
    with pytest.raises(ValueError, match=r"join: expected one of intersection,.* got 'all'"):
        translator.align(["a"], ["a"], join="all", reverse=translator)
    step: Any = "next"
    with pytest.raises(ValueError, match=r"step: expected one of predicted,.* got 'next'"):
        translator.align(["a"], ["a"], step=step)
    with pytest.raises(ValueError, match=r"metrics: expected some of wer,.* got 'blue'"):
        translator.evaluate(["a"], ["a"], metrics=["blue"])
    with pytest.raises(TypeError, match=r"metrics: expected a list .* give \['wer'\]"):
        translator.evaluate(["a"], ["a"], metrics="wer")
    with pytest.raises(ValueError, match="sources: expected at least one, got none"):
        translator.evaluate([], [])
