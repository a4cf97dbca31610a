"""`luong.columns`: the formulas with one vector a column."""

import math

import pytest
import torch

import luong
from comparing import assert_near
from luong import columns
from refusing import assert_refused, zeros


def normal(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


Q, K, V = normal(13, 5, seed=0), normal(13, 7, seed=1), normal(17, 7, seed=2)
Q11, W = normal(11, 5, seed=3), normal(13, 11, seed=4)
JOINT, v = normal(19, 24, seed=5), normal(19, seed=6)


def test_softmax_is_over_each_column():
    X = normal(5, 7, seed=7)
    assert_near(columns.softmax(X), X.exp() / X.exp().sum(0))
    assert_near(columns.softmax(X).sum(0), torch.ones(7, dtype=torch.float64))


FORMULAS = {
    "dot": (
        lambda: columns.dot_product_attention(Q, K, V),
        lambda: V @ torch.softmax(K.T @ Q, dim=0),
        lambda: luong.dot_attention(Q.T, K.T, V.T),
    ),
    "scaled": (
        lambda: columns.scaled_dot_product_attention(Q, K, V),
        lambda: V @ torch.softmax(K.T @ Q / math.sqrt(13), dim=0),
        lambda: luong.scaled_dot_attention(Q.T, K.T, V.T),
    ),
    "general": (
        lambda: columns.general_attention(Q11, K, V, W),
        lambda: V @ torch.softmax(K.T @ W @ Q11, dim=0),
        lambda: luong.general_attention(Q11.T, K.T, V.T, W),
    ),
    "concat": (
        lambda: columns.concat_attention(Q11, K, V, JOINT, v),
        lambda: V @ torch.softmax(concat_scores(), dim=0),
        lambda: luong.concat_attention(Q11.T, K.T, V.T, JOINT, v),
    ),
    "any f": (
        lambda: columns.attention(Q, K, V, lambda Q, K: -torch.cdist(K.T, Q.T)),
        lambda: V @ torch.softmax(-torch.cdist(K.T, Q.T), dim=0),
        lambda: luong.attention(Q.T, K.T, V.T, score=lambda q, k: -torch.cdist(q, k)),
    ),
}


def concat_scores() -> torch.Tensor:
    rows = [[v @ torch.tanh(JOINT @ torch.cat([q, k])) for q in Q11.T] for k in K.T]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("name", FORMULAS)
def test_equals_the_formula_and_the_rows_transposed(name):
    ours, formula, rows = (make() for make in FORMULAS[name])
    assert ours.shape == (17, 5)
    assert_near(ours, formula)
    assert_near(ours, rows.context.T)


def test_score_of_two_vectors():
    assert_near(columns.score(Q[:, 0], K[:, 1]), (Q[:, 0] * K[:, 1]).sum())
    assert_near(columns.score(Q11[:, 0], K[:, 1], W), (K[:, 1:2] * W * Q11[:, 0]).sum())


ERRORS = {
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


@pytest.mark.parametrize(("call", "kind", "pattern"), ERRORS.values(), ids=ERRORS)
def test_error(call, kind, pattern):
    assert_refused(call, kind, pattern)
