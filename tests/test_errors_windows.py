"""Wrong windows and positions."""

import pytest
import torch

import luong
from refusing import (
    KEY,
    LONG,
    MEMORY,
    QUERY,
    VALUE,
    assert_refused,
    zeros,
)


def local(position=0, window=None):
    window = luong.LocalMonotonic(1) if window is None else window
    return luong.attention(QUERY, KEY, VALUE, score=luong.Dot(), window=window, position=position)


def alone(window=None):
    return luong.Attention(luong.Dot(), window=window).attend_window(QUERY, MEMORY)


WINDOWS = {
    "window": (
        lambda: local(window="local-m"),
        TypeError,
        "^window: expected a Window or None, got str$",
    ),
    "window that is a class": (
        lambda: local(window=luong.Causal),
        TypeError,
        "^window: expected a Window or None, got (type|ABCMeta)$",
    ),
    "window of a module": (
        lambda: luong.Attention(luong.Dot(), window=3),
        TypeError,
        "^window: expected a Window or None, got int$",
    ),
    "local-p query": (
        lambda: local(window=luong.LocalPredictive(13, 3, 2)),
        ValueError,
        r"^query: expected size 13 in the last dimension, the query_size of this "
        r"LocalPredictive, got shape \(3, 5, 11\)$",
    ),
    "local-p dtype": (
        lambda: local(window=luong.LocalPredictive(11, 3, 2).double()),
        TypeError,
        "^query: expected torch.float64 like the module's weights, got torch.float32",
    ),
    "negative position": (
        lambda: local(-1),
        ValueError,
        "^position: expected 0 or more, got -1$",
    ),
    "position float": (
        lambda: local(1.0),
        TypeError,
        "^position: expected a whole number or an integer tensor, got float$",
    ),
    "position None": (
        lambda: local(None),
        TypeError,
        "^position: expected a whole number or an integer tensor, got NoneType$",
    ),
    "position bool": (
        lambda: local(True),
        TypeError,
        "^position: expected a whole number or an integer tensor, got bool$",
    ),
    "position float tensor": (
        lambda: local(zeros(5)),
        TypeError,
        "^position: expected an integer tensor, got torch.float32$",
    ),
    "position bool tensor": (
        lambda: local(zeros(5).bool()),
        TypeError,
        "^position: expected an integer tensor, got torch.bool$",
    ),
    "position per batch row": (
        lambda: local(torch.tensor([1, 2, 3])),
        ValueError,
        r"^position: expected a shape that broadcasts to \(\*batch, n\) = \(3, 5\), got \(3,\)$",
    ),
    "position rank": (
        lambda: local(torch.ones(1, 3, 5, dtype=LONG)),
        ValueError,
        r"^position: expected a shape that broadcasts to .*\(3, 5\), got \(1, 3, 5\)$",
    ),
    "position device": (
        lambda: local(torch.ones(5, dtype=LONG, device="meta")),
        ValueError,
        "^position: expected device cpu like query, got meta$",
    ),
    "attend_window without a window": (
        alone,
        ValueError,
        "^window: this attention has none: ask attend for all weights$",
    ),
    "attend_window of Causal": (
        lambda: alone(luong.Causal()),
        ValueError,
        "^window: this one has no width: ask attend for all weights$",
    ),
    "local-m half_width": (
        lambda: luong.LocalMonotonic(-1),
        ValueError,
        "^half_width: expected a whole number, 0 or more, got -1$",
    ),
    "local-m half_width float": (
        lambda: luong.LocalMonotonic(2.0),
        ValueError,
        "^half_width: expected a whole number, 0 or more, got 2.0$",
    ),
    "local-m half_width bool": (
        lambda: luong.LocalMonotonic(True),
        ValueError,
        "^half_width: expected a whole number, 0 or more, got True$",
    ),
    "local-p half_width": (
        lambda: luong.LocalPredictive(11, 3, 0),
        ValueError,
        "^half_width: expected a whole number, 1 or more, got 0$",
    ),
    "local-p query_size": (
        lambda: luong.LocalPredictive(0, 3, 2),
        ValueError,
        "^query_size: expected a whole number, 1 or more, got 0$",
    ),
    "local-p hidden_size": (
        lambda: luong.LocalPredictive(11, -3, 2),
        ValueError,
        "^hidden_size: expected a whole number, 1 or more, got -3$",
    ),
}


@pytest.mark.parametrize(("call", "kind", "pattern"), WINDOWS.values(), ids=WINDOWS)
def test_error(call, kind, pattern):
    assert_refused(call, kind, pattern)
