"""Wrong parameters of scores, and wrong score functions."""

import pytest

import luong
from refusing import KEY, QUERY, TABLE, VALUE, WEIGHT, V, assert_refused, concat, general, zeros

PARAMETERS = {
    "general weight": (
        lambda: general(weight=zeros(11, 13)),
        ValueError,
        r"weight: expected shape \(d_k, d_q\) = \(11, 11\), got \(11, 13\)",
    ),
    "concat weight": (
        lambda: concat(weight=zeros(19, 21)),
        ValueError,
        r"weight: expected shape \(d_a, d_q \+ d_k\) = \(19, 22\), got \(19, 21\)",
    ),
    "concat v": (
        lambda: concat(v=zeros(1, 19)),
        ValueError,
        r"v: expected .*\(d_a,\).* got .*\(1, 19\)",
    ),
    "concat v scalar": (lambda: concat(v=zeros()), ValueError, r"v: expected .* got .*\(\)"),
    "concat bias": (
        lambda: concat(bias=zeros(18)),
        ValueError,
        r"bias: expected shape \(d_a,\) = \(19,\), got \(18,\)",
    ),
    "simplified weight": (
        lambda: concat(simplified=True),
        ValueError,
        r"weight: expected shape \(d_a, d_q\) = \(19, 11\), got \(19, 22\)",
    ),
    "simplified key": (
        lambda: concat(zeros(19, 11), simplified=True),
        ValueError,
        r"key: expected size 19 in the last dimension, the size of v, .*got shape \(3, 7, 11\)",
    ),
    "additive query": (
        lambda: luong.additive_attention(QUERY, KEY, VALUE, V),
        ValueError,
        r"query: expected size 19 .*got shape \(3, 5, 11\)",
    ),
    "additive key": (
        lambda: luong.additive_attention(zeros(3, 5, 19), KEY, VALUE, V),
        ValueError,
        r"key: expected size 19 .*got shape \(3, 7, 11\)",
    ),
    "additive score key": (
        lambda: luong.additive_score(zeros(3, 5, 19), KEY, V),
        ValueError,
        r"key: expected size 19 .*got shape \(3, 7, 11\)",
    ),
    "additive v": (
        lambda: luong.additive_attention(QUERY, KEY, VALUE, zeros(1, 11)),
        ValueError,
        r"v: expected .*\(d_a,\).* got .*\(1, 11\)",
    ),
    "location weight": (
        lambda: luong.location_attention(QUERY, VALUE, zeros(7, 13)),
        ValueError,
        r"query: expected size 13 in the last dimension, the d_q of weight, "
        r"got shape \(3, 5, 11\)",
    ),
    "location weight rank": (
        lambda: luong.location_attention(QUERY, VALUE, zeros(11)),
        ValueError,
        r"weight: expected .*\(m_max, d_q\).* got .*\(11,\)",
    ),
    "location length": (
        lambda: luong.location_score(QUERY, TABLE, length=-1),
        ValueError,
        "length: expected .* got -1",
    ),
    "location length that is a bool": (
        lambda: luong.location_score(QUERY, TABLE, length=True),
        ValueError,
        "^length: expected a whole number, 0 or more, got True$",
    ),
    "score width": (
        lambda: luong.dot_score(QUERY, zeros(3, 7, 13)),
        ValueError,
        r"key: expected size 11 .*got shape \(3, 7, 13\)",
    ),
    "score batch": (
        lambda: luong.dot_score(QUERY, zeros(2, 7, 11)),
        ValueError,
        r"key: batch dimensions \(2,\) do not broadcast with \(3,\)",
    ),
    "score rank": (
        lambda: luong.general_score(zeros(11), KEY, WEIGHT),
        ValueError,
        r"query: expected at least 2 dimensions, \(\*batch, n, d_q\), got shape \(11,\)",
    ),
    "no score": (
        lambda: luong.attention(QUERY, KEY, VALUE, score="dot"),
        TypeError,
        "score: expected a Score or a function, got str",
    ),
    "score of a wrong shape": (
        lambda: luong.attention(QUERY, KEY, VALUE, score=lambda q, k: k @ q.mT),
        ValueError,
        r"score: expected scores of shape \(\*batch, n, m\) = \(3, 5, 7\), got \(3, 7, 5\)",
    ),
    "score of None": (
        lambda: luong.attention(QUERY, KEY, VALUE, score=lambda q, k: None),  # type: ignore[return-value]
        ValueError,
        r"score: expected scores of shape .*\(3, 5, 7\), got NoneType",
    ),
}


@pytest.mark.parametrize(("call", "kind", "pattern"), PARAMETERS.values(), ids=PARAMETERS)
def test_error(call, kind, pattern):
    assert_refused(call, kind, pattern)
