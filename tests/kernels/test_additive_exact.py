"""Additive attention by each backend is exact for any finite input: rounding.py has the rule."""

from itertools import product

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from additive_cases import (
    DENORMAL,
    HUGE,
    SHAPES,
    assert_attention_rounded,
    assert_scores_rounded,
    backends,
    dtypes,
    inputs,
)

SCALES = (1e-6, 1e-4, 1e-2, 0.1, 0.3, 1, 3, 6, 10, 15, 30, 100)
scales = pytest.mark.parametrize("scale", SCALES)


@scales
@dtypes
@backends
def test_scores_are_exact_at_every_scale(backend, dtype, scale):
    for (n, m, d), spread in product(SHAPES, (0, 3, 12, 25, 40, 100)):
        query, key, _, v = inputs(n, m, d, batch=2)
        query, key = query * scale, key * scale
        if spread:  # one feature that is all over the place
            query[..., 0] = spread * torch.tanh(query[..., 0] / scale)
            key[..., 0] = spread * torch.tanh(key[..., 0] / scale)
        query, key, v = (x.to(dtype) for x in (query, key, v))
        assert_scores_rounded(query, key, v, backend, f"n {n} m {m} d {d} spread {spread}")


@pytest.mark.parametrize("size", [1e-3, "denormal", "huge", "mixed"])
@dtypes
@backends
def test_scores_are_exact_whatever_the_size_of_v(backend, dtype, size):
    for (n, m, d), scale in product(SHAPES, (0.01, 1, 10, 100)):
        query, key, _, v = inputs(n, m, d, batch=2)
        factor = {"denormal": DENORMAL[dtype], "huge": HUGE[dtype], "mixed": 1}.get(size, size)
        v = v * factor
        if size == "mixed":
            v[0], v[-1] = DENORMAL[dtype], HUGE[dtype]
        query, key, v = (x.to(dtype) for x in (query * scale, key * scale, v))
        assert_scores_rounded(query, key, v, backend, f"n {n} m {m} d {d} scale {scale}")


@pytest.mark.parametrize("at", [2, 4, 5, 6, 9, 11, 15, 20, 45, 90, 180, 400])
@dtypes
@backends
def test_scores_are_exact_where_tanh_saturates(backend, dtype, at):
    for sign, d, width in product((1, -1), (1, 2, 64), (0.3, 1e-3)):
        query, key, _, v = (x.to(dtype) for x in inputs(6, 9, d, batch=2))
        query, key, where = query * width, key * width, f"d {d} sign {sign} width {width}"
        assert_scores_rounded(query + sign * at, key + sign * at, v, backend, f"together; {where}")
        assert_scores_rounded(query + sign * at, key, v, backend, f"query; {where}")
        assert_scores_rounded(query, key + sign * at, v, backend, f"key; {where}")


@pytest.mark.parametrize("at", [0.1, 1, 4, 9, 11, 13, 20, 45, 90, 149, 400, 1e4])
@dtypes
@backends
def test_scores_are_exact_where_query_and_key_are_opposed(backend, dtype, at):
    for sign, d, width in product((1, -1), (1, 2, 64), (0, 0.3, 1e-3)):
        query, key, _, v = (x.to(dtype) for x in inputs(6, 9, d, batch=2))
        query, key = query * width + sign * at, key * width - sign * at
        assert_scores_rounded(query, key, v, backend, f"d {d} sign {sign} width {width}")


@pytest.mark.parametrize("power", [-1, -0.15, 0, 1])
@dtypes
@backends
def test_scores_are_exact_whatever_the_size_of_the_incoming_gradient(backend, dtype, power):
    far = 3.5 if dtype == torch.float32 else 28.0  # of the units below
    for q, k, width in product((-far, -1.25, 0, 1.25, far), (-11, 0, 11), (0.1, 1)):
        query, key, _, v = (x.to(dtype) for x in inputs(6, 9, 5, batch=2))
        query, key, where = query * width + 12 * q, key * width + k, f"at {q} {k} width {width}"
        assert_scores_rounded(query, key, v * 0.1, backend, where, HUGE[dtype] ** power)


@pytest.mark.parametrize("scale", [1e-4, 0.1, 1, 6, 15, 100])
@dtypes
@backends
def test_attention_is_exact(backend, dtype, scale):
    """Up to sum |v| = 2: an error of eps sum |v|, which a score may have, is a relative error of a
    weight, so that for larger v no formula in this dtype keeps to the rule."""
    for (n, m, d), padded in product(SHAPES, (False, True)):
        query, key, value, v = inputs(n, m, d, batch=2)
        lengths = torch.tensor([m, (m + 1) // 2]) if padded else None
        query, key, value, v = (x.to(dtype) for x in (query * scale, key * scale, value, v))
        where = f"n {n} m {m} d {d} padded {padded}"
        assert_attention_rounded(query, key, value, v, backend, lengths, where)


@backends
@hypothesis.settings(deadline=None, max_examples=100, derandomize=True, database=None)
@hypothesis.given(
    sizes=st.tuples(*(st.integers(1, most) for most in (3, 20, 40, 150))),
    exponent=st.floats(-6, 2),
    spread=st.one_of(st.just(0.0), st.floats(1, 100)),
    v_exponent=st.floats(-8, 1),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 999),
)
def test_scores_are_exact_at_random(backend, sizes, exponent, spread, v_exponent, dtype, seed):
    batch, n, m, d = sizes
    query, key, _, v = inputs(n, m, d, batch=batch, seed=seed)
    first = [torch.tanh(x[..., 0]) * spread for x in (query, key)]
    query, key, v = query * 10**exponent, key * 10**exponent, v * 10**v_exponent
    if spread:
        query[..., 0], key[..., 0] = first
    query, key, v = (x.to(dtype) for x in (query, key, v))
    assert_scores_rounded(query, key, v, backend)
