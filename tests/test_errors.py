"""Wrong input: one line that names the argument, what was expected and what came."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

import luong
from luong import columns


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


QUERY, KEY, VALUE = zeros(3, 5, 11), zeros(3, 7, 11), zeros(3, 7, 17)
WEIGHT, JOINT, V, TABLE = zeros(11, 11), zeros(19, 22), zeros(19), zeros(7, 11)
MEMORY = luong.Attention(luong.Dot()).prepare(KEY, VALUE)
DOUBLE, LONG = torch.float64, torch.int64


def dot(query=QUERY, key=KEY, value=VALUE, **options):
    return luong.dot_attention(query, key, value, **options)


def general(query=QUERY, key=KEY, value=VALUE, weight=WEIGHT):
    return luong.general_attention(query, key, value, weight)


def concat(weight=JOINT, v=V, bias=None, key=KEY, **options):
    return luong.concat_attention(QUERY, key, VALUE, weight, v, bias, **options)


def module(score, query=QUERY, key=KEY, value=VALUE):
    return luong.Attention(score)(query, key, value)


def attend(query, memory=MEMORY):
    return luong.Attention(luong.Dot()).attend(query, memory)


def prepared(score, *tensors, **options):
    return luong.Attention(score).prepare(*tensors, **options)


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

MODULES = {
    "General query": (
        lambda: module(luong.General(13, 11)),
        ValueError,
        r"query: expected size 13 .*query_size of this General, got shape \(3, 5, 11\)",
    ),
    "General key": (
        lambda: module(luong.General(11, 13)),
        ValueError,
        r"key: expected size 13 .*key_size of this General, got shape \(3, 7, 11\)",
    ),
    "General prepare": (
        lambda: prepared(luong.General(11, 13), KEY),
        ValueError,
        r"key: expected size 13 in the last dimension, the key_size of this General, "
        r"got shape \(3, 7, 11\)",
    ),
    "Concat query": (
        lambda: module(luong.Concat(13, 11, 19)),
        ValueError,
        r"query: expected size 13 .*query_size of this Concat, got shape \(3, 5, 11\)",
    ),
    "Concat key": (
        lambda: module(luong.Concat(11, 13, 19)),
        ValueError,
        r"key: expected size 13 .*key_size of this Concat, got shape \(3, 7, 11\)",
    ),
    "simplified Concat key": (
        lambda: module(luong.Concat(11, 19, 19, simplified=True)),
        ValueError,
        r"key: expected size 19 .*got shape \(3, 7, 11\)",
    ),
    "Location query": (
        lambda: module(luong.Location(13, 7)),
        ValueError,
        r"query: expected size 13 .*got shape \(3, 5, 11\)",
    ),
    "module dtype": (
        lambda: module(luong.General(11, 11), QUERY.double(), KEY.double(), VALUE.double()),
        TypeError,
        r": expected torch.float32 like the module's weights, got torch.float64 .*autocast",
    ),
    "module device": (
        lambda: module(luong.General(11, 11).to("meta")),
        ValueError,
        r": expected device meta of the module, got cpu",
    ),
    "Scaled device": (
        lambda: module(luong.Scaled(luong.General(11, 11)).to("meta")),
        ValueError,
        r": expected device meta of the module, got cpu",
    ),
    "Scaled Dot device": (
        lambda: module(luong.Scaled(luong.Dot()).to("meta")),
        ValueError,
        r"query: expected device meta of the module, got cpu",
    ),
    "attend query width": (
        lambda: attend(zeros(3, 1, 13)),
        ValueError,
        r"(query|key): expected size .* got shape \(3, [17], 1[13]\)",
    ),
    "attend query rank": (
        lambda: attend(zeros(11)),
        ValueError,
        r"query: expected at least 2 dimensions, \(\*batch, n, d_q\), got shape \(11,\)",
    ),
    "attend query batch": (
        lambda: attend(zeros(2, 1, 11)),
        ValueError,
        r"\(2,\) .*\(3,\)|\(3,\) .*\(2,\)",
    ),
    "attend query dtype": (
        lambda: attend(zeros(3, 1, 11, dtype=DOUBLE)),
        TypeError,
        "query: expected torch.float32 like key, got torch.float64",
    ),
    "attend other n than the mask": (
        lambda: attend(
            zeros(3, 1, 11), prepared(luong.Dot(), KEY, mask=torch.eye(7).bool()[None, :5])
        ),
        ValueError,
        r"query: expected n = 5 .*mask.*got shape \(3, 1, 11\)",
    ),
    "prepare int key": (
        lambda: prepared(luong.Dot(), KEY.long()),
        TypeError,
        "key: expected a floating-point tensor, got torch.int64",
    ),
    "prepare key rank": (
        lambda: prepared(luong.Dot(), zeros(11)),
        ValueError,
        r"key: expected at least 2 dimensions, \(\*batch, m, d_k\), got shape \(11,\)",
    ),
    "prepare lengths": (
        lambda: prepared(luong.Dot(), KEY, lengths=torch.tensor([9, 1, 1])),
        ValueError,
        "lengths: expected values from 0 to m = 7, got 9",
    ),
    "select without batch": (
        lambda: prepared(luong.Dot(), zeros(7, 11)).select(torch.tensor([0])),
        ValueError,
        r"select: this memory has no batch.*\(7, 11\)",
    ),
    "dropout": (
        lambda: luong.Attention(luong.Dot(), dropout=1.0),
        ValueError,
        r"dropout: expected a probability in \[0, 1\), got 1.0",
    ),
    "negative dropout": (
        lambda: luong.Attention(luong.Dot(), dropout=-0.1),
        ValueError,
        r"dropout: expected a probability in \[0, 1\), got -0.1",
    ),
    "score name": (
        lambda: luong.Attention("general"),
        TypeError,
        "score: expected a Score or a function, got str",
    ),
    "key_size with simplified": (
        lambda: luong.Concat(11, 13, 19, simplified=True),
        ValueError,
        "key_size: expected hidden_size = 19 with simplified=True, got 13",
    ),
    "state context": (
        lambda: luong.AttentionalState(17, 11, 23)(zeros(3, 11), zeros(3, 11)),
        ValueError,
        r"context: expected size 17 .*got shape \(3, 11\)",
    ),
    "state query": (
        lambda: luong.AttentionalState(17, 11, 23)(zeros(3, 17), zeros(3, 17)),
        ValueError,
        r"query: expected size 11 .*got shape \(3, 17\)",
    ),
    "attend without a memory": (
        lambda: luong.Attention(luong.Dot()).attend(QUERY, KEY),
        TypeError,
        "memory: expected what prepare returns, got Tensor",
    ),
    "scale": (
        lambda: luong.scaled_dot_attention(QUERY, QUERY, QUERY, scale="large"),
        TypeError,
        "scale: expected a number or None, got str",
    ),
    "dropout of a function": (
        lambda: luong.dot_attention(QUERY, QUERY, QUERY, dropout="high"),
        ValueError,
        r"dropout: expected a probability in \[0, 1\), got 'high'",
    ),
    "empty table": (
        lambda: luong.location_attention(QUERY, VALUE, zeros(0, 11)),
        ValueError,
        r"weight: expected shape \(m_max, d_q\), m_max at least 1, got \(0, 11\)",
    ),
    "state list": (
        lambda: luong.AttentionalState(17, 11, 23)([1.0], zeros(3, 11)),
        TypeError,
        "context: expected a torch.Tensor, got list",
    ),
    "state dtype": (
        lambda: luong.AttentionalState(17, 11, 23)(zeros(3, 17).double(), zeros(3, 11).double()),
        TypeError,
        r"context: expected torch.float32 .*got torch.float64",
    ),
} | {
    f"{name}={value}": (
        lambda make=make, value=value: make(value),
        ValueError,
        f"{name}: expected a whole number, 1 or more, got {value}$",
    )
    for name, make in {
        "query_size": lambda size: luong.General(size, 2),
        "key_size": lambda size: luong.Concat(2, size, 2),
        "hidden_size": lambda size: luong.Concat(2, 2, size),
        "max_length": lambda size: luong.Location(2, size),
        "context_size": lambda size: luong.AttentionalState(size, 2, 2),
        "output_size": lambda size: luong.AttentionalState(2, 2, size),
    }.items()
    for value in (0, -1, 2.5, True)
}

COLUMNS = {
    "three dimensions": (
        lambda: columns.dot_product_attention(zeros(1, 3, 5), zeros(3, 7), zeros(2, 7)),
        ValueError,
        r"Q: expected a matrix of column vectors, got \(1, 3, 5\)",
    ),
    "no tensor": (
        lambda: columns.dot_product_attention(zeros(3, 5), [1.0], zeros(2, 7)),
        (TypeError, ValueError),
        "K: expected a matrix of column vectors, got list",
    ),
    "weight": (
        lambda: columns.general_attention(zeros(3, 5), zeros(2, 7), zeros(2, 7), zeros(3, 2)),
        ValueError,
        r"expected shape \(d_k, d_q\) = \(2, 3\), got \(3, 2\)",
    ),
    "score of a matrix": (
        lambda: columns.score(zeros(3, 1), zeros(3)),
        ValueError,
        r"q: expected shape \(d_q,\), got \(3, 1\)",
    ),
    "score of a list": (
        lambda: columns.score([1.0], zeros(3)),
        TypeError,
        "q: expected a torch.Tensor, got list",
    ),
    "f": (
        lambda: columns.attention(zeros(3, 5), zeros(3, 7), zeros(2, 7), zeros(1)),
        TypeError,
        r"f: expected a function of \(Q, K\), got Tensor",
    ),
    "score widths": (
        lambda: columns.score(zeros(3), zeros(2)),
        ValueError,
        r"k: expected size 3 .*got shape \(2,\)",
    ),
    "score W": (
        lambda: columns.score(zeros(3), zeros(2), zeros(3, 2)),
        ValueError,
        r"W: expected shape \(d_k, d_q\) = \(2, 3\), got \(3, 2\)",
    ),
}


def local(position=0, window=None):
    window = luong.LocalMonotonic(1) if window is None else window
    return luong.attention(QUERY, KEY, VALUE, score=luong.Dot(), window=window, position=position)


def alone(window=None):
    return luong.Attention(luong.Dot(), window=window).attend_window(QUERY, MEMORY)


LOCAL = {
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

ALL: dict[str, Any] = INPUTS | MASKS | PARAMETERS | MODULES | COLUMNS | LOCAL


@pytest.mark.parametrize("name", ALL)
def test_error(name):
    call, kind, pattern = ALL[name]
    with pytest.raises(kind) as error:
        call()
    text = str(error.value)
    assert re.search(pattern, text), text
    assert "\n" not in text


def test_values_of_lengths_are_not_read_under_vmap():
    """There they cost a wait, or are not there; too long is the same as m."""
    lengths = torch.tensor([1, 7, 99])
    mapped = torch.func.vmap(lambda q, k, v, m: luong.dot_attention(q, k, v, lengths=m).context)
    assert mapped(QUERY, KEY, VALUE, lengths).shape == (3, 5, 17)
