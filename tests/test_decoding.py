"""The settings of decoding."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from luong.seq2seq import Decoding, Sampling


def test_an_output_is_cut_where_its_weights_would_not_fit_into_memory() -> None:
    wide, narrow = Decoding(beam=1000), Decoding()
    assert [narrow.limit(m) for m in (0, 3, 1000)] == [10, 16, 2010]
    assert [wide.limit(m) for m in (3, 1000, 10_000)] == [16, 134, 13]
    assert Decoding(max_ratio=100, max_extra=10_000).limit(10_000) == 2**27 // 10_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam": 0}, "beam: expected 1 to 1,000, got 0"),
        ({"beam": 1_000_000}, "beam: expected 1 to 1,000, got 1000000"),
        ({"beam": 2.5}, "beam: expected a whole number, 1 to 1,000, got 2.5"),
        ({"beam": True}, "beam: expected a whole number, 1 to 1,000, got True"),
        ({"n_best": 0}, "n_best: expected 1 to 1,000, got 0"),
        ({"beam": 3, "n_best": 4}, "n_best: expected at most the beam, 3, got 4"),
        ({"length_penalty": -1.0}, "length_penalty: expected 0 to 20, got -1.0"),
        ({"length_penalty": math.nan}, "length_penalty: expected 0 to 20, got nan"),
        ({"length_penalty": math.inf}, "length_penalty: expected 0 to 20, got inf"),
        ({"length_penalty": 700}, "length_penalty: expected 0 to 20, got 700"),
        ({"length_penalty": "1"}, "length_penalty: expected a number, 0 to 20, got '1'"),
        ({"max_ratio": math.inf}, "max_ratio: expected 0 to 100, got inf"),
        ({"max_ratio": 1e30}, r"max_ratio: expected 0 to 100, got 1e\+30"),
        ({"max_ratio": 10**400}, "max_ratio: expected 0 to 100, got 10"),
        ({"max_ratio": 0, "max_extra": 0}, "max_extra: expected at least 1 where max_ratio is 0"),
        ({"max_extra": 2**63 - 1}, "max_extra: expected 0 to 10,000, got 9223372036854775807"),
        ({"min_extra": -1}, "min_extra: expected 0 to 10,000, got -1"),
        ({"min_ratio": math.nan}, "min_ratio: expected 0 to 100, got nan"),
        ({"no_repeat_ngram": -1}, "no_repeat_ngram: expected 0 to 100, got -1"),
        ({"beam": 2, "sampling": Sampling()}, "beam: expected 1 where outputs are drawn, got 2"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Decoding(), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, "temperature: expected 0.01 to 100, got 0.0"),
        ({"temperature": 1e-300}, "temperature: expected 0.01 to 100, got 1e-300"),
        ({"top_k": -1}, "top_k: expected 0 to 1,000,000, got -1"),
        ({"top_p": 0.0}, "top_p: expected above 0, up to 1, got 0.0"),
        ({"top_p": 1.1}, "top_p: expected above 0, up to 1, got 1.1"),
        ({"top_p": math.nan}, "top_p: expected above 0, up to 1, got nan"),
        ({"seed": -1}, "seed: expected 0 to 4,294,967,295, got -1"),
    ],
)
def test_sampling_that_makes_no_sense_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Sampling(), **settings)
