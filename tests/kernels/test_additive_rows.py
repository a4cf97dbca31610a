"""A row is that of its query and source, whatever stands beside it in batch or block."""

from itertools import product

import numpy as np
import pytest
import torch

import luong
from additive_cases import NAN, backends, dtypes, eager_score, inputs, true_attention, true_scores
from comparing import assert_all_near, combine, derivatives
from luong import reference
from luong.kernels.additive import blocks, compiled
from operator_cases import options
from rounding import assert_rounded, wide


@pytest.mark.parametrize("scale", [0.01, 1, 8])
@dtypes
@backends
def test_a_row_is_that_of_its_query_and_source_alone(backend, scale, dtype):
    query, key, value, v = inputs(n=11, m=13, d=70, dtype=dtype)
    query, key = query * scale, key * scale
    query[1], key[1] = 1e3 * query[1], 1e3 * key[1]  # batch mates
    query[0, 4], query[2, 5] = NAN, 1e4  # and neighbours
    context = luong.additive_attention(query, key, value, v, backend=backend).context
    scores = luong.additive_score(query, key, v, backend=backend)
    for i, j in product((0, 2), (0, 3, 5, 9, 10)):
        row = (query[i : i + 1, j : j + 1], key[i : i + 1], value[i : i + 1], v)
        alone = luong.additive_attention(*row, backend=backend).context
        score = luong.additive_score(*row[:2], v, backend=backend)
        ones, zeros = np.ones((1, 1, 13), bool), np.zeros((1, 1, 13))
        q, k, x, wide_v = (wide(each) for each in row)
        (true, *_), (scale, *_) = true_attention(q, k, x, wide_v, ones, zeros[..., :3])
        (true_score, *_), (sum_v, *_) = true_scores(q, k, wide_v, zeros)
        plain = [eager_score(*row[:2], v).softmax(-1) @ row[2], eager_score(*row[:2], v)]
        among = [context[i : i + 1, j : j + 1], scores[i : i + 1, j : j + 1]]
        for found in ([alone, score], among):
            where = f"source {i} query {j}"
            assert_rounded(found, plain, [true, true_score], [scale, sum_v], where)


def test_batch_mates_change_no_bit_of_a_source():
    query, key, value, v = inputs(n=11, m=13, d=70, dtype=torch.float32)
    other = [x.clone() for x in (query, key, value)]
    for x in other:
        x[1:] *= 1e3

    def first(query, key, value):
        leaves = query, key, value = [x.clone().requires_grad_() for x in (query, key, value)]
        context = luong.additive_attention(query, key, value, v, backend="numba").context
        return [context[0], *(x[0] for x in torch.autograd.grad(combine([context]), leaves))]

    assert_all_near(first(query, key, value), first(*other), 0.0)


@pytest.mark.parametrize("kind", ["none", "both", "mask_b1m"])
@backends
def test_blocks_of_queries_make_up_the_whole(backend, kind, monkeypatch):
    """Five blocks; 40 x 40 weights are too many for d = 9 to be kept."""
    monkeypatch.setattr(compiled, "_BLOCK", 8 * 3 * 40)
    monkeypatch.setattr(blocks, "_BLOCK", 8 * 3 * 40 * 9)
    tensors, given = inputs(37, 40, 9), options(kind, 37, 40)
    actual = derivatives(luong.additive_attention, tensors, backend=backend, **given)
    expected = derivatives(lambda *x: reference.additive_attention(*x, **given)[:1], tensors)
    assert_all_near(actual, expected, 1e-12)
    tensors = [tensors[i] for i in (0, 1, 3)]
    actual = derivatives(lambda *x: [luong.additive_score(*x, backend=backend)], tensors)
    expected = derivatives(lambda *x: [reference.additive_score(*x)], tensors)
    assert_all_near(actual, expected, 1e-12)
