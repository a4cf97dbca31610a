"""Wrong settings of modules, and wrong tensors for them."""

import pytest
import torch

import luong
from refusing import DOUBLE, KEY, QUERY, VALUE, assert_refused, attend, module, prepared, zeros

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


@pytest.mark.parametrize(("call", "kind", "pattern"), MODULES.values(), ids=MODULES)
def test_error(call, kind, pattern):
    assert_refused(call, kind, pattern)
