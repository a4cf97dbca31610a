"""What tests of wrong input share: the tensors, the calls, and the check of the one line."""

import re

import pytest
import torch
from torch import Tensor

import luong


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


def assert_refused(call, kind, pattern):
    with pytest.raises(kind) as error:
        call()
    text = str(error.value)
    assert re.search(pattern, text), text
    assert "\n" not in text
