from __future__ import annotations

import pytest

from luong.toolkit.evaluating import error_rates


def test_rates_worked_by_hand() -> None:
    hypotheses = {"one": list("wan"), "two": list("tu"), "three": list("free"), "four": []}
    references = {
        "one": [list("wun"), list("wan")],  # right: equals a reference. 0 edits, length 3
        "two": [list("tuu"), list("tw")],  # 1 edit to both: the shorter counts. length 2
        "three": [list("three"), list("sree")],  # "sree" is 1 edit away, length 4
        "four": [list("for")],  # 3 edits, length 3
    }
    result = error_rates(hypotheses, references)
    assert result.sources == 4
    assert result.wer == pytest.approx(100 * 3 / 4)
    assert result.per == pytest.approx(100 * (0 + 1 + 1 + 3) / (3 + 2 + 4 + 3))
