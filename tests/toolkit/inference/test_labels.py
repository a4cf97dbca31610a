from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luong.toolkit.inference import labels

TEXT = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("e\u0301\u1112\u1161\u11ab ")
)


def test_labels_of_what_cannot_be_seen() -> None:
    decomposed = unicodedata.normalize("NFD", "한á")
    assert labels.of(list(decomposed)).texts == ["ㅎ", "ㅏ", "ㄴ", "a", "◌\u0301"]
    assert labels.of([" ", "\u3000", "a b", "a\u0301"]).texts == ["␣", "␣", "a b", "a\u0301"]
    assert labels.of(["\u113c"]).texts == ["\u113c"]  # old Hangul, which has no such letter
    assert labels.of(["\t", "\x1b[1m", "\u200b", "a\nb", "\u202ex", "\uffff"]).texts == [
        r"\t",
        r"\x1b[1m",
        r"\u200b",
        r"a\nb",
        r"\u202ex",
        r"\uffff",
    ]
    assert labels.of(["\u0301x", decomposed, "\u1161\u11ab"]).texts == ["◌\u0301x", "한á", "ㅏㄴ"]
    assert labels.of(["", "x" * 99]).texts == ["", "x" * 39 + "…"]


@pytest.mark.parametrize(
    ("tokens", "spans"),
    [
        (
            list(unicodedata.normalize("NFD", "한글 e\u0301o")),
            [(0, 2, "한"), (3, 5, "글"), (7, 8, "é")],
        ),
        (["▁\u1112", "\u1161\u11ab"], [(0, 1, "▁한")]),
        (["a", "\u0323", "\u0301", "b"], [(0, 2, "ạ\u0301")]),
        ([" ", "\u0301", "\u0301"], []),
        (["a", "b", "", "\u0301"], []),
    ],
)
def test_what_belongs_together(tokens: list[str], spans: list[tuple[int, int, str]]) -> None:
    assert [
        (first, last, unicodedata.normalize("NFC", whole))
        for first, last, whole in labels.of(tokens).spans
    ] == [(a, b, unicodedata.normalize("NFC", c)) for a, b, c in spans]


@given(st.lists(TEXT, min_size=1))
def test_labels_of_anything(tokens: list[str]) -> None:
    found = labels.of(tokens)
    assert len(found.texts) == len(tokens)
    texts = [*found.texts, *(whole for *_, whole in found.spans)]
    assert all(len(text) <= 400 for text in texts)
    assert not any(unicodedata.category(c) in ("Cc", "Zl", "Zp") for text in texts for c in text)
    ends = [end for first, last, _ in found.spans for end in (first, last)]
    assert ends == sorted(set(ends))
    assert all(0 <= end < len(tokens) for end in ends)
