"""Wrong tensors, masks and lengths: one line names the argument, what was expected, what came."""

import pytest
import torch

import luong
from refusing import (
    KEY,
    LONG,
    QUERY,
    VALUE,
    WEIGHT,
    assert_refused,
    concat,
    dot,
    general,
    prepared,
    zeros,
)

INPUTS = {
    "query list": (lambda: dot([1.0]), TypeError, "query: expected a torch.Tensor, got list"),
    "key None": (lambda: dot(key=None), TypeError, "key: expected a torch.Tensor, got NoneType"),
    "value ints": (
        lambda: dot(value=VALUE.long()),
        TypeError,
        "value: expected a floating-point tensor, got torch.int64",
    ),
    "float8": (
        lambda: dot(QUERY.to(torch.float8_e4m3fn), KEY.to(torch.float8_e4m3fn)),
        TypeError,
        "query: expected float32, bfloat16, float16 or float64, got torch.float8_e4m3fn",
    ),
    "weight list": (
        lambda: general(weight=[1.0]),
        TypeError,
        "weight: expected a torch.Tensor, got list",
    ),
    "bias number": (
        lambda: concat(bias=0.5),
        TypeError,
        "bias: expected a torch.Tensor, got float",
    ),
    "query rank": (
        lambda: dot(zeros(11)),
        ValueError,
        r"query: expected at least 2 dimensions, \(\*batch, n, d_q\), got shape \(11,\)",
    ),
    "key rank": (
        lambda: dot(key=zeros(11)),
        ValueError,
        r"key: expected at least 2 dimensions, \(\*batch, m, d_k\), got shape \(11,\)",
    ),
    "value rank": (
        lambda: dot(value=zeros(7)),
        ValueError,
        r"value: expected at least 2 dimensions, \(\*batch, m, d_v\), got shape \(7,\)",
    ),
    "value rows": (
        lambda: dot(value=zeros(3, 6, 17)),
        ValueError,
        r"value: expected m = 7 rows like key, got shape \(3, 6, 17\)",
    ),
    "width": (
        lambda: dot(key=zeros(3, 7, 13)),
        ValueError,
        r"key: expected size 11 in the last dimension, like query, got shape \(3, 7, 13\)",
    ),
    "batch of key": (
        lambda: dot(key=zeros(2, 7, 11)),
        ValueError,
        r"key: batch dimensions \(2,\) do not broadcast with \(3,\)",
    ),
    "batch of value": (
        lambda: dot(value=zeros(2, 7, 17)),
        ValueError,
        r"value: batch dimensions \(2,\) do not broadcast with \(3,\)",
    ),
    "dtype of key": (
        lambda: dot(key=KEY.double()),
        TypeError,
        r"key: expected torch.float32 like query, got torch.float64 .*autocast",
    ),
    "dtype of weight": (
        lambda: general(weight=WEIGHT.half()),
        TypeError,
        r"weight: expected torch.float32 like query, got torch.float16 .*autocast",
    ),
    "device of key": (
        lambda: dot(key=KEY.to("meta")),
        ValueError,
        "key: expected device cpu like query, got meta",
    ),
    "unknown option": (lambda: dot(lenghts=1), TypeError, "lenghts"),
    "options are not positional": (
        lambda: luong.dot_attention(QUERY, KEY, VALUE, None),  # type: ignore[call-arg]
        TypeError,
        "positional arguments? but 4",
    ),
    "dropout above 1": (
        lambda: dot(dropout=1.5),
        ValueError,
        r"dropout: expected a probability in \[0, 1\), got 1.5",
    ),
    "dropout below 0": (
        lambda: dot(dropout=-0.5),
        ValueError,
        r"dropout: expected a probability in \[0, 1\), got -0.5",
    ),
}

MASKS = {
    "float mask": (
        lambda: dot(mask=zeros(3, 5, 7)),
        TypeError,
        "mask: expected a bool tensor, True where attended, got torch.float32",
    ),
    "int mask": (
        lambda: dot(mask=zeros(3, 5, 7, dtype=LONG)),
        TypeError,
        "mask: expected a bool tensor, True where attended, got torch.int64",
    ),
    "list mask": (
        lambda: dot(mask=[[True]]),
        TypeError,
        "mask: expected a bool tensor, True where attended, got list",
    ),
    "(batch, m) mask": (
        lambda: dot(mask=zeros(3, 7).bool()),
        ValueError,
        r"mask: expected 3 dimensions, \(\*batch, n, m\) = \(3, 5, 7\), got shape \(3, 7\); "
        r"use lengths=, or mask\[:, None\]",
    ),
    "(batch, m) mask of a memory": (
        lambda: prepared(luong.Dot(), KEY, mask=zeros(3, 7).bool()),
        ValueError,
        r"mask: expected 3 dimensions, \(\*batch, n, m\) = \(3, n, 7\), got shape \(3, 7\); "
        r"use lengths=, or mask\[:, None\]",
    ),
    "mask rank": (
        lambda: dot(mask=zeros(1, 3, 5, 7).bool()),
        ValueError,
        r"mask: expected 3 dimensions.*got shape \(1, 3, 5, 7\)$",
    ),
    "mask shape": (
        lambda: dot(mask=zeros(3, 5, 6).bool()),
        ValueError,
        r"mask: expected a shape that broadcasts to \(\*batch, n, m\) = \(3, 5, 7\), "
        r"got \(3, 5, 6\)",
    ),
    "mask of other queries": (
        lambda: dot(mask=zeros(3, 4, 7).bool()),
        ValueError,
        r"mask: .*\(3, 5, 7\), got \(3, 4, 7\)",
    ),
    "mask device": (
        lambda: dot(mask=zeros(3, 5, 7).bool().to("meta")),
        ValueError,
        "mask: expected device cpu like key, got meta",
    ),
    "float lengths": (
        lambda: dot(lengths=zeros(3)),
        TypeError,
        "lengths: expected an integer tensor, got torch.float32",
    ),
    "bool lengths": (
        lambda: dot(lengths=zeros(3).bool()),
        TypeError,
        "lengths: expected an integer tensor, got torch.bool",
    ),
    "list lengths": (
        lambda: dot(lengths=[1, 2, 3]),
        TypeError,
        "lengths: expected an integer tensor, got list",
    ),
    "lengths shape": (
        lambda: dot(lengths=torch.tensor([1, 2])),
        ValueError,
        r"lengths: expected a shape that broadcasts to the batch \(3,\), got \(2,\)",
    ),
    "lengths rank": (
        lambda: dot(lengths=torch.ones(1, 3, dtype=LONG)),
        ValueError,
        r"lengths: expected a shape that broadcasts to the batch \(3,\), got \(1, 3\)",
    ),
    "negative lengths": (
        lambda: dot(lengths=torch.tensor([1, -2, 3])),
        ValueError,
        "lengths: expected values from 0 to m = 7, got -2",
    ),
    "long lengths": (
        lambda: dot(lengths=torch.tensor([7, 8, 3])),
        ValueError,
        "lengths: expected values from 0 to m = 7, got 8",
    ),
    "lengths device": (
        lambda: dot(lengths=torch.ones(3, dtype=LONG, device="meta")),
        ValueError,
        "lengths: expected device cpu like key, got meta",
    ),
}

ALL = INPUTS | MASKS


@pytest.mark.parametrize(("call", "kind", "pattern"), ALL.values(), ids=ALL)
def test_error(call, kind, pattern):
    assert_refused(call, kind, pattern)


def test_values_of_lengths_are_not_read_under_vmap():
    """There they cost a wait, or are not there; too long is the same as m."""
    lengths = torch.tensor([1, 7, 99])
    mapped = torch.func.vmap(lambda q, k, v, m: luong.dot_attention(q, k, v, lengths=m).context)
    assert mapped(QUERY, KEY, VALUE, lengths).shape == (3, 5, 17)
