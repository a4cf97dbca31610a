"""Products with neighbouring rows, against einsum over all rows with a matrix of who meets whom."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from comparing import assert_all_near, assert_near, derivatives, probe
from luong.kernels import windowed
from operator_cases import window_backend
from rounding import assert_rounded

BACKENDS = ("numba", "torch", "reference")
backends = pytest.mark.parametrize("backend", BACKENDS)


def inputs(b=2, n=5, m=11, w=4, d=3, dtype=torch.float64, seed=0):
    """weights, query, x and the positions, which start anywhere and may come twice."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    first = torch.randint(0, m - w + 1, (b, n), generator=generator)
    key_positions = first[..., None] + torch.arange(w)
    return normal(b, n, w), normal(b, n, d), normal(b, m, d), key_positions


def meets(key_positions, m):
    """1 where the k-th row of query i is row j: (b, n, w, m)."""
    return torch.nn.functional.one_hot(key_positions, m).double()


@pytest.mark.parametrize("w", [1, 2, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("d", [1, 3, 63, 64, 65, 130])
@backends
def test_equals_einsum(backend, w, d):
    weights, query, x, key_positions = inputs(w=w, d=d)
    met = meets(key_positions, 11)
    with window_backend(backend):
        dots, sums = (
            windowed.dots(query, x, key_positions),
            windowed.sums(weights, x, key_positions),
        )
    assert_near(dots, torch.einsum("bid,bjd,bikj->bik", query, x, met))
    assert_near(sums, torch.einsum("bik,bjd,bikj->bid", weights, x, met))


@pytest.mark.parametrize("w", [1, 3, 4, 11])
@pytest.mark.parametrize("d", [1, 64, 65, 130])
@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_spread_equals_einsum(backend, w, d):
    weights, query, _, key_positions = inputs(w=w, d=d)
    found = windowed.apply(
        windowed._Product, "spread", weights, query, key_positions[..., 0], 11, backend
    )
    assert_near(found, torch.einsum("bik,bid,bikj->bjd", weights, query, meets(key_positions, 11)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@backends
def test_derivatives_equal_those_of_the_formulas(backend, dtype):
    weights, query, x, key_positions = inputs(dtype=dtype)
    with window_backend(backend):
        for function, plain, left in (
            (windowed.dots, windowed.plain_dots, query),
            (windowed.sums, windowed.plain_sums, weights),
        ):
            tensors, wide = [left, x], [left.double(), x.double()]
            actual = derivatives(lambda *y, f=function: [f(*y, key_positions)], tensors, 2)
            exact = derivatives(lambda *y, f=plain: [f(*y, key_positions)], wide, 2)
            if dtype == torch.float64:
                assert_all_near(actual, exact)
                continue
            assert_rounded(
                actual, derivatives(lambda *y, f=plain: [f(*y, key_positions)], tensors, 2), exact
            )


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_each_is_the_derivative_of_the_others(backend, check):
    weights, query, x, key_positions = inputs(n=3, m=5, w=3, d=2)
    weights, query, x = (y.requires_grad_() for y in (weights, query, x))
    with window_backend(backend):
        assert check(lambda q, x: windowed.dots(q, x, key_positions), (query, x))
        assert check(lambda a, x: windowed.sums(a, x, key_positions), (weights, x))
    first = key_positions[..., 0]
    assert check(
        lambda a, r: windowed.apply(windowed._Product, "spread", a, r, first, 5, backend),
        (weights, query),
    )


@pytest.mark.parametrize("of", [0, 1])
@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_one_side_may_need_no_gradient(backend, of):
    _, query, x, key_positions = inputs()
    leaves = [query, x]
    leaves[of].requires_grad_()
    with window_backend(backend):
        out = windowed.dots(query, x, key_positions)
    (gradient,) = torch.autograd.grad((out * probe(out)).sum(), leaves[of])
    expected = derivatives(lambda q, x: [windowed.plain_dots(q, x, key_positions)], [query, x])[
        1 + of
    ]
    assert_near(gradient, expected)


@backends
def test_blocks_of_queries_make_up_the_whole(backend, monkeypatch):
    tensors = inputs(n=7)
    weights, query, x, key_positions = tensors
    with window_backend(backend):
        whole = derivatives(lambda q, x: [windowed.dots(q, x, key_positions)], [query, x], 2)
        whole += derivatives(lambda a, x: [windowed.sums(a, x, key_positions)], [weights, x], 2)
        monkeypatch.setattr(windowed, "_BLOCK", 3 * 2 * 4 * 3)  # three queries at a time
        pieces = derivatives(lambda q, x: [windowed.dots(q, x, key_positions)], [query, x], 2)
        pieces += derivatives(lambda a, x: [windowed.sums(a, x, key_positions)], [weights, x], 2)
    assert_all_near(pieces, whole)


@pytest.mark.parametrize("batches", [((), (3,), ()), ((3,), (), (2, 1)), ((2, 3), (1, 3), (3,))])
@backends
def test_batch_dimensions_broadcast(backend, batches):
    weights, query, x, key_positions = (
        y[: math.prod(batch)].reshape(*batch, *y.shape[1:])
        for y, batch in zip(inputs(b=6), (batches[0], *batches), strict=True)
    )
    met = meets(key_positions, 11)
    with window_backend(backend):
        dots, sums = (
            windowed.dots(query, x, key_positions),
            windowed.sums(weights, x, key_positions),
        )
    assert_near(dots, torch.einsum("...id,...jd,...ikj->...ik", query, x, met))
    assert_near(sums, torch.einsum("...ik,...jd,...ikj->...id", weights, x, met))


@pytest.mark.parametrize("empty", ["b", "n", "d"])
@backends
def test_zero_sizes(backend, empty):
    weights, query, x, key_positions = inputs(**{empty: 0})
    with window_backend(backend):
        dots = derivatives(lambda q, x: [windowed.dots(q, x, key_positions)], [query, x], 2)
        sums = derivatives(lambda a, x: [windowed.sums(a, x, key_positions)], [weights, x], 2)
    assert dots[0].shape == weights.shape
    assert sums[0].shape == query.shape
    assert not any(y.any() for y in (*dots, *sums))


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_the_number_of_threads_changes_no_bit(backend):
    weights, query, x, key_positions = inputs(b=3, n=400, m=500, w=21, d=130, dtype=torch.float32)

    def everything():
        with window_backend(backend):
            return [
                *derivatives(lambda q, x: [windowed.dots(q, x, key_positions)], [query, x]),
                *derivatives(lambda a, x: [windowed.sums(a, x, key_positions)], [weights, x]),
            ]

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = everything()
        for threads in (2, 3):
            torch.set_num_threads(threads)
            for one, other in zip(everything(), alone, strict=True):
                assert torch.equal(one, other)
    finally:
        torch.set_num_threads(before)
